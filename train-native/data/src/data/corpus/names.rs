//! Invented names, so that no text is about anything real.

use std::collections::HashSet;

use rand::Rng as _;
use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;

/// How an entity is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Naming {
    Person,
    Town,
    Ship,
    Mountain,
    Company,
    Plant,
    Book,
    River,
}

const STARTS: [&str; 40] = [
    "Bar", "Bel", "Bran", "Cal", "Cor", "Dal", "Dor", "El", "Fen", "Fal", "Gar", "Gil", "Hal",
    "Hes", "Is", "Jor", "Kal", "Kes", "Lor", "Lum", "Mar", "Mel", "Nar", "Nor", "Or", "Pel",
    "Quil", "Ral", "Ros", "Sel", "Sor", "Tal", "Tor", "Ul", "Val", "Ver", "Wil", "Yar", "Zan",
    "Zel",
];
const MIDDLES: [&str; 24] = [
    "a", "e", "i", "o", "an", "en", "in", "on", "ar", "er", "ir", "or", "ad", "ed", "el", "il",
    "ol", "am", "em", "im", "as", "es", "is", "os",
];
const PERSON_ENDS: [&str; 16] = [
    "a", "ia", "us", "o", "wen", "ric", "dra", "mund", "ette", "ias", "nor", "lyn", "vik", "sen",
    "rov", "ley",
];
const TOWN_ENDS: [&str; 12] = [
    "ford", "ham", "burg", "mouth", "stead", "wick", "dale", "port", "bridge", "minster", "field",
    "haven",
];
const MOUNTAIN_ENDS: [&str; 6] = ["horn", "spitz", "fell", "tind", "crag", "berg"];
const SHIP_FIRST: [&str; 16] = [
    "Grey", "Silver", "Northern", "Patient", "Scarlet", "Morning", "Restless", "Golden", "Silent",
    "Amber", "Winter", "Faithful", "Crimson", "Distant", "Merry", "Iron",
];
const SHIP_SECOND: [&str; 16] = [
    "Gull", "Comet", "Maiden", "Tern", "Lantern", "Dolphin", "Sparrow", "Compass", "Heron",
    "Anchor", "Petrel", "Wanderer", "Otter", "Falcon", "Swift", "Star",
];
const COMPANY_ENDS: [&str; 8] =
    ["Works", "and Sons", "Industries", "Brothers", "Limited", "Foundry", "Mills", "Workshop"];
const PLANT_ENDS: [&str; 8] = ["wort", "bloom", "thistle", "moss", "root", "fern", "lily", "berry"];
const BOOK_FIRST: [&str; 14] = [
    "The Clock of",
    "A Winter in",
    "The Last Ferry to",
    "Letters from",
    "The Orchards of",
    "The Keeper of",
    "Songs of",
    "The Road to",
    "Beyond",
    "The Maps of",
    "Night over",
    "The Bells of",
    "A Stranger in",
    "The Salt of",
];

fn pick<'a>(choices: &[&'a str], rng: &mut ChaCha8Rng) -> &'a str {
    choices.choose(rng).copied().unwrap_or_default()
}

fn stem(rng: &mut ChaCha8Rng) -> String {
    let middle = if rng.random_bool(0.6) { pick(&MIDDLES, rng) } else { "" };
    format!("{}{middle}", pick(&STARTS, rng))
}

/// A name that may have been given before.
pub(super) fn invent(naming: Naming, rng: &mut ChaCha8Rng) -> String {
    match naming {
        Naming::Person => {
            let first = format!("{}{}", stem(rng), pick(&PERSON_ENDS, rng));
            format!("{first} {}{}", stem(rng), pick(&PERSON_ENDS, rng))
        }
        Naming::Town => format!("{}{}", stem(rng), pick(&TOWN_ENDS, rng)),
        Naming::Ship => {
            format!("the {} {} {}", pick(&SHIP_FIRST, rng), stem(rng), pick(&SHIP_SECOND, rng))
        }
        Naming::Mountain => format!("{}{}", stem(rng), pick(&MOUNTAIN_ENDS, rng)),
        Naming::Company => format!("{} {}", stem(rng), pick(&COMPANY_ENDS, rng)),
        Naming::Plant => format!("{} {}", stem(rng).to_lowercase(), pick(&PLANT_ENDS, rng)),
        Naming::Book => {
            format!("{} {}{}", pick(&BOOK_FIRST, rng), stem(rng), pick(&TOWN_ENDS, rng))
        }
        Naming::River => format!("the {}", stem(rng)),
    }
}

/// Names that were given, so that every entity has its own.
#[derive(Default)]
pub(super) struct Names(HashSet<String>);

impl Names {
    /// A name that was not given before.
    pub(super) fn fresh(&mut self, naming: Naming, rng: &mut ChaCha8Rng) -> String {
        loop {
            let name = invent(naming, rng);
            if self.0.insert(name.clone()) {
                return name;
            }
        }
    }
}
