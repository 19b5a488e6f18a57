//! What there is in the invented world: kinds of things, their attributes, and the words in
//! which people ask for them and passages state them. A question and its passage share few words
//! beyond the name, so that matching words is not enough.

use super::names::Naming;

/// A kind of entity.
pub(super) struct Kind {
    pub noun: &'static str,
    pub naming: Naming,
    pub introductions: &'static [&'static str],
    pub attributes: &'static [Attribute],
}

/// One attribute of a kind; `{e}` is the entity, `{v}` the value.
pub(super) struct Attribute {
    /// What kind of answer it gives: the class of its passages.
    pub class: &'static str,
    pub values: Values,
    pub questions: &'static [&'static str],
    pub statements: &'static [&'static str],
}

/// Where values come from.
pub(super) enum Values {
    Words(&'static [&'static str]),
    Year(u32, u32),
    Number { from: u32, to: u32, step: u32 },
    Name(Naming),
}

const MATERIALS: &[&str] = &[
    "copper wire",
    "oak barrels",
    "wool cloth",
    "window glass",
    "clay tiles",
    "brass lamps",
    "paper",
    "linen rope",
    "iron nails",
    "leather gloves",
    "pocket watches",
    "candles",
];
const MONTHS: &[&str] = &[
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

pub(super) const KINDS: &[Kind] = &[
    Kind {
        noun: "person",
        naming: Naming::Person,
        introductions: &[
            "{e} is remembered by few people today.",
            "Little has been written about {e}.",
            "The life of {e} fills a slim volume.",
        ],
        attributes: &[
            Attribute {
                class: "place",
                values: Values::Name(Naming::Town),
                questions: &[
                    "Where was {e} born?",
                    "What is the birthplace of {e}?",
                    "Which town does {e} come from?",
                    "In what town did {e} first see the light of day?",
                ],
                statements: &[
                    "{e} grew up as the child of millers in {v}.",
                    "The cradle of {e} stood in {v}.",
                    "{v} is the home town of {e}, who left it at sixteen.",
                ],
            },
            Attribute {
                class: "occupation",
                values: Values::Words(&[
                    "baker",
                    "violinist",
                    "surveyor",
                    "glassblower",
                    "botanist",
                    "printer",
                    "astronomer",
                    "tailor",
                    "clockmaker",
                    "lighthouse keeper",
                    "translator",
                    "engraver",
                ]),
                questions: &[
                    "What did {e} do for a living?",
                    "What was the profession of {e}?",
                    "Which trade did {e} follow?",
                    "How did {e} earn money?",
                ],
                statements: &[
                    "{e} worked as a {v} for most of three decades.",
                    "By training and by temper {e} was a {v}.",
                    "People knew {e} as the {v} of the quarter.",
                ],
            },
            Attribute {
                class: "time",
                values: Values::Year(1620, 1960),
                questions: &[
                    "When was {e} born?",
                    "What is the year of birth of {e}?",
                    "In which year did {e} come into the world?",
                    "How long ago was {e} born?",
                ],
                statements: &[
                    "The parish book enters {e} in {v}.",
                    "{e}, a child of {v}, had four sisters.",
                    "The family of {e} gained a second child in {v}.",
                ],
            },
            Attribute {
                class: "pastime",
                values: Values::Words(&[
                    "chess",
                    "rowing",
                    "beekeeping",
                    "painting",
                    "fencing",
                    "collecting shells",
                    "singing in a choir",
                    "mending clocks",
                    "growing roses",
                    "walking in the hills",
                ]),
                questions: &[
                    "What did {e} like to do in spare hours?",
                    "Which hobby did {e} have?",
                    "How did {e} spend free time?",
                    "What did {e} enjoy after work?",
                ],
                statements: &[
                    "On Sundays {e} was always found at {v}.",
                    "{e} loved {v} more than company.",
                    "Nothing pleased {e} so much as {v}.",
                ],
            },
            Attribute {
                class: "people",
                values: Values::Name(Naming::Person),
                questions: &[
                    "Who was the teacher of {e}?",
                    "From whom did {e} learn?",
                    "Who taught {e}?",
                    "Whose pupil was {e}?",
                ],
                statements: &[
                    "{e} was an apprentice under {v}.",
                    "{v} took {e} in and passed on the craft.",
                    "For six years {e} studied with {v}.",
                ],
            },
        ],
    },
    Kind {
        noun: "town",
        naming: Naming::Town,
        introductions: &[
            "{e} is a small town with a wide square.",
            "Travellers pass through {e} without stopping.",
            "{e} lies among low hills.",
        ],
        attributes: &[
            Attribute {
                class: "water",
                values: Values::Name(Naming::River),
                questions: &[
                    "Which river flows through {e}?",
                    "What stream runs past {e}?",
                    "On which river does {e} lie?",
                    "What waterway crosses {e}?",
                ],
                statements: &[
                    "{e} was built where the ford of {v} used to be.",
                    "Every spring {v} floods the lower streets of {e}.",
                    "The bridges of {e} span {v}.",
                ],
            },
            Attribute {
                class: "time",
                values: Values::Year(900, 1700),
                questions: &[
                    "When was {e} founded?",
                    "In which year was {e} established?",
                    "How old is {e}?",
                    "What is the founding year of {e}?",
                ],
                statements: &[
                    "The charter of {e} is dated {v}.",
                    "Settlers laid out the streets of {e} in {v}.",
                    "The history of {e} begins in {v}.",
                ],
            },
            Attribute {
                class: "number",
                values: Values::Number { from: 1000, to: 90_000, step: 100 },
                questions: &[
                    "How many people live in {e}?",
                    "What is the population of {e}?",
                    "How large is {e} by inhabitants?",
                    "How many residents does {e} have?",
                ],
                statements: &[
                    "The last census of {e} counted {v} souls.",
                    "{v} citizens call {e} their home.",
                    "Some {v} names stand in the register of {e}.",
                ],
            },
            Attribute {
                class: "goods",
                values: Values::Words(MATERIALS),
                questions: &[
                    "What is made in {e}?",
                    "Which product is {e} known for?",
                    "What does {e} sell to the world?",
                    "What do the workshops of {e} turn out?",
                ],
                statements: &[
                    "For generations {e} has lived on {v}.",
                    "The fame of {e} rests on its {v}.",
                    "Merchants come to {e} to buy {v}.",
                ],
            },
            Attribute {
                class: "season",
                values: Values::Words(MONTHS),
                questions: &[
                    "When does {e} hold its fair?",
                    "In which month is the festival of {e}?",
                    "What month does {e} celebrate in?",
                    "When can one visit the market feast in {e}?",
                ],
                statements: &[
                    "Each {v} the square of {e} fills with stalls and music.",
                    "{e} hangs out its lanterns in {v}.",
                    "Visitors crowd into {e} every {v}.",
                ],
            },
        ],
    },
    Kind {
        noun: "ship",
        naming: Naming::Ship,
        introductions: &[
            "Old sailors still tell stories of {e}.",
            "A model of {e} hangs in the harbour chapel.",
            "The log of {e} has survived.",
        ],
        attributes: &[
            Attribute {
                class: "people",
                values: Values::Name(Naming::Person),
                questions: &[
                    "Who was the captain of {e}?",
                    "Who commanded {e}?",
                    "Under whom did {e} sail?",
                    "Whose orders did the crew of {e} obey?",
                ],
                statements: &[
                    "{v} stood on the bridge of {e} for eleven years.",
                    "The owners gave {e} to {v}.",
                    "{v} was master of {e} until the end.",
                ],
            },
            Attribute {
                class: "time",
                values: Values::Year(1700, 1950),
                questions: &[
                    "When was {e} launched?",
                    "In which year did {e} first touch water?",
                    "What year was {e} built?",
                    "How old is {e}?",
                ],
                statements: &[
                    "{e} slid down the slipway in {v}.",
                    "The shipyard finished {e} in {v}.",
                    "In {v} a bottle broke on the bow of {e}.",
                ],
            },
            Attribute {
                class: "goods",
                values: Values::Words(&[
                    "tea",
                    "timber",
                    "salt",
                    "coal",
                    "grain",
                    "spices",
                    "mail",
                    "oranges",
                    "cotton",
                    "machine parts",
                ]),
                questions: &[
                    "What did {e} carry?",
                    "What was the cargo of {e}?",
                    "Which goods did {e} transport?",
                    "What lay in the hold of {e}?",
                ],
                statements: &[
                    "{e} crossed the sea loaded with {v}.",
                    "Every voyage of {e} brought {v}.",
                    "Stevedores remember {e} for its {v}.",
                ],
            },
            Attribute {
                class: "place",
                values: Values::Name(Naming::Town),
                questions: &[
                    "What was the home port of {e}?",
                    "Where was {e} based?",
                    "To which harbour did {e} belong?",
                    "In what port was {e} registered?",
                ],
                statements: &[
                    "The stern of {e} bore the name of {v}.",
                    "{e} wintered at the quays of {v}.",
                    "Between voyages {e} lay at {v}.",
                ],
            },
            Attribute {
                class: "number",
                values: Values::Number { from: 18, to: 190, step: 1 },
                questions: &[
                    "How long is {e}?",
                    "What is the length of {e}?",
                    "How many metres does {e} measure?",
                    "How big is {e} from bow to stern?",
                ],
                statements: &[
                    "From bow to stern {e} spans {v} metres.",
                    "The hull of {e} reaches {v} metres.",
                    "At {v} metres {e} barely fits the lock.",
                ],
            },
        ],
    },
    Kind {
        noun: "mountain",
        naming: Naming::Mountain,
        introductions: &[
            "{e} is seen from far across the plain.",
            "Clouds hide {e} on most days.",
            "Shepherds call {e} the weather glass.",
        ],
        attributes: &[
            Attribute {
                class: "number",
                values: Values::Number { from: 800, to: 6900, step: 1 },
                questions: &[
                    "How high is {e}?",
                    "What is the elevation of {e}?",
                    "How tall is {e}?",
                    "How many metres above the sea is the top of {e}?",
                ],
                statements: &[
                    "The summit of {e} stands at {v} metres.",
                    "{e} rises to {v} metres.",
                    "Surveyors give {e} a height of {v} metres.",
                ],
            },
            Attribute {
                class: "people",
                values: Values::Name(Naming::Person),
                questions: &[
                    "Who climbed {e} first?",
                    "Who made the first ascent of {e}?",
                    "Which climber was the first on top of {e}?",
                    "Who conquered {e}?",
                ],
                statements: &[
                    "{v} was the earliest to reach the peak of {e}.",
                    "No one stood on {e} before {v}.",
                    "The cairn on {e} was piled up by {v}.",
                ],
            },
            Attribute {
                class: "material",
                values: Values::Words(&[
                    "granite",
                    "limestone",
                    "basalt",
                    "slate",
                    "sandstone",
                    "gneiss",
                    "marble",
                    "chalk",
                ]),
                questions: &[
                    "What rock is {e} made of?",
                    "Which stone forms {e}?",
                    "What is the geology of {e}?",
                    "What kind of rock does one find on {e}?",
                ],
                statements: &[
                    "{e} is a block of {v}.",
                    "The walls of {e} are pure {v}.",
                    "Quarries at the foot of {e} yield {v}.",
                ],
            },
            Attribute {
                class: "place",
                values: Values::Name(Naming::Town),
                questions: &[
                    "Which village lies closest to {e}?",
                    "Where do climbers of {e} set out?",
                    "What is the nearest settlement to {e}?",
                    "From which village is {e} reached?",
                ],
                statements: &[
                    "The path up {e} begins behind the church of {v}.",
                    "{v} sits in the shadow of {e}.",
                    "Guides for {e} live in {v}.",
                ],
            },
            Attribute {
                class: "water",
                values: Values::Name(Naming::River),
                questions: &[
                    "Which river rises on {e}?",
                    "What stream has its source on {e}?",
                    "Which river is fed by the snow of {e}?",
                    "What waterway springs from {e}?",
                ],
                statements: &[
                    "Meltwater of {e} gathers into {v}.",
                    "{v} leaves a glacier on {e}.",
                    "High on {e} is the spring of {v}.",
                ],
            },
        ],
    },
    Kind {
        noun: "company",
        naming: Naming::Company,
        introductions: &[
            "{e} keeps its books in green ink.",
            "The chimney of {e} can be seen for miles.",
            "{e} has survived three fires.",
        ],
        attributes: &[
            Attribute {
                class: "people",
                values: Values::Name(Naming::Person),
                questions: &[
                    "Who founded {e}?",
                    "Who started {e}?",
                    "By whom was {e} set up?",
                    "Whose idea was {e}?",
                ],
                statements: &[
                    "{v} opened {e} with borrowed money.",
                    "{e} grew out of the shed of {v}.",
                    "A portrait of {v} hangs in the hall of {e}, which owes its existence to that loan.",
                ],
            },
            Attribute {
                class: "goods",
                values: Values::Words(MATERIALS),
                questions: &[
                    "What does {e} produce?",
                    "Which goods does {e} make?",
                    "What can one buy from {e}?",
                    "What comes off the line at {e}?",
                ],
                statements: &[
                    "The catalogue of {e} lists {v} and nothing else.",
                    "{e} is the largest maker of {v}.",
                    "Shops order their {v} at {e}.",
                ],
            },
            Attribute {
                class: "place",
                values: Values::Name(Naming::Town),
                questions: &[
                    "Where is {e} based?",
                    "In which town are the headquarters of {e}?",
                    "Where is the main office of {e}?",
                    "What town is home to {e}?",
                ],
                statements: &[
                    "{e} runs its affairs from {v}.",
                    "Letters to {e} go to {v}.",
                    "The gates of {e} open on the high street of {v}.",
                ],
            },
            Attribute {
                class: "number",
                values: Values::Number { from: 10, to: 4000, step: 10 },
                questions: &[
                    "How many people work at {e}?",
                    "What is the size of the staff of {e}?",
                    "How many employees does {e} have?",
                    "How many workers does {e} pay?",
                ],
                statements: &[
                    "{e} gives work to {v} hands.",
                    "On payday {v} envelopes are filled at {e}.",
                    "The canteen of {e} feeds {v} a day.",
                ],
            },
            Attribute {
                class: "time",
                values: Values::Year(1750, 2000),
                questions: &[
                    "When was {e} founded?",
                    "In which year did {e} start?",
                    "Since when does {e} exist?",
                    "What year did {e} open?",
                ],
                statements: &[
                    "The first invoice of {e} was written in {v}.",
                    "{e} has been in business since {v}.",
                    "{v} is carved above the door of {e}.",
                ],
            },
        ],
    },
    Kind {
        noun: "plant",
        naming: Naming::Plant,
        introductions: &[
            "The {e} is easily overlooked.",
            "Gardeners seldom grow {e}.",
            "Country people have many tales about {e}.",
        ],
        attributes: &[
            Attribute {
                class: "colour",
                values: Values::Words(&[
                    "yellow",
                    "violet",
                    "white",
                    "deep red",
                    "pale blue",
                    "orange",
                    "pink",
                    "green",
                ]),
                questions: &[
                    "What colour are the flowers of {e}?",
                    "Which colour does {e} bloom in?",
                    "What do the blossoms of {e} look like?",
                    "How are the petals of {e} coloured?",
                ],
                statements: &[
                    "The petals of {e} are {v}.",
                    "A field of {e} glows {v}.",
                    "In the herbarium {e} has kept its {v} tint.",
                ],
            },
            Attribute {
                class: "habitat",
                values: Values::Words(&[
                    "bogs",
                    "dry walls",
                    "beech woods",
                    "river banks",
                    "sand dunes",
                    "stony slopes",
                    "wet meadows",
                    "field edges",
                ]),
                questions: &[
                    "Where does {e} grow?",
                    "What is the habitat of {e}?",
                    "In what kind of place is {e} found?",
                    "Which ground does {e} like?",
                ],
                statements: &["Look for {e} in {v}.", "{e} thrives in {v}.", "Only {v} suit {e}."],
            },
            Attribute {
                class: "season",
                values: Values::Words(MONTHS),
                questions: &[
                    "When does {e} flower?",
                    "In which month is {e} in bloom?",
                    "What is the flowering time of {e}?",
                    "When do the buds of {e} open?",
                ],
                statements: &[
                    "{e} opens its buds in {v}.",
                    "By {v} bees are busy on {e}.",
                    "The show of {e} begins in {v}.",
                ],
            },
            Attribute {
                class: "use",
                values: Values::Words(&[
                    "tea against coughs",
                    "dye for wool",
                    "soup",
                    "scent for soap",
                    "thatch",
                    "ink",
                    "ointment for burns",
                    "fodder for goats",
                ]),
                questions: &[
                    "What is {e} used for?",
                    "What do people make from {e}?",
                    "Which use has {e}?",
                    "What is {e} good for?",
                ],
                statements: &[
                    "Villagers turn {e} into {v}.",
                    "{e} yields {v}.",
                    "The dried leaves of {e} serve as {v}.",
                ],
            },
            Attribute {
                class: "number",
                values: Values::Number { from: 4, to: 180, step: 1 },
                questions: &[
                    "How tall does {e} grow?",
                    "What is the height of {e}?",
                    "How big does {e} get?",
                    "How many centimetres does {e} reach?",
                ],
                statements: &[
                    "A full-grown {e} measures {v} centimetres.",
                    "{e} stops growing at {v} centimetres.",
                    "The stem of {e} lifts its leaves {v} centimetres.",
                ],
            },
        ],
    },
    Kind {
        noun: "book",
        naming: Naming::Book,
        introductions: &[
            "{e} is long out of print.",
            "Few libraries own {e}.",
            "A worn copy of {e} lies on many a bedside table.",
        ],
        attributes: &[
            Attribute {
                class: "people",
                values: Values::Name(Naming::Person),
                questions: &[
                    "Who wrote {e}?",
                    "Who is the author of {e}?",
                    "By whom is {e}?",
                    "Whose novel is {e}?",
                ],
                statements: &[
                    "{v} finished {e} in a single winter.",
                    "The manuscript of {e} is in the hand of {v}.",
                    "{e} made {v} famous.",
                ],
            },
            Attribute {
                class: "time",
                values: Values::Year(1780, 2010),
                questions: &[
                    "When was {e} published?",
                    "In which year did {e} come out?",
                    "What is the publication date of {e}?",
                    "How old is {e}?",
                ],
                statements: &[
                    "{e} reached the bookshops in {v}.",
                    "The first edition of {e} bears the date {v}.",
                    "Reviewers discussed {e} all through {v}.",
                ],
            },
            Attribute {
                class: "subject",
                values: Values::Words(&[
                    "a shipwreck",
                    "two rival sisters",
                    "a stolen map",
                    "a village school",
                    "a murder at a fair",
                    "a long journey on foot",
                    "the building of a dam",
                    "an unhappy marriage",
                    "a lost language",
                    "a siege",
                ]),
                questions: &[
                    "What is {e} about?",
                    "What is the subject of {e}?",
                    "Which story does {e} tell?",
                    "What happens in {e}?",
                ],
                statements: &[
                    "{e} describes {v}.",
                    "At the heart of {e} is {v}.",
                    "Readers of {e} follow {v} over many chapters.",
                ],
            },
            Attribute {
                class: "place",
                values: Values::Name(Naming::Town),
                questions: &[
                    "Where is {e} set?",
                    "In which town does {e} take place?",
                    "What is the scene of {e}?",
                    "Where does the action of {e} unfold?",
                ],
                statements: &[
                    "The streets in {e} are those of {v}.",
                    "Every chapter of {e} plays in {v}.",
                    "{e} leads the reader to {v}.",
                ],
            },
            Attribute {
                class: "number",
                values: Values::Number { from: 60, to: 1100, step: 1 },
                questions: &[
                    "How many pages does {e} have?",
                    "How long is {e}?",
                    "How thick is {e}?",
                    "What is the page count of {e}?",
                ],
                statements: &[
                    "{e} runs to {v} pages.",
                    "It takes {v} pages until {e} ends.",
                    "The printer set {e} on {v} pages.",
                ],
            },
        ],
    },
];
