//! Texts of a model that is not there: plausible, different from each other, and the same each time.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

/// A language: its name in prompts, its code, sentences, and words for their places: `N` a name that is made
/// up, `A` to `C` words.
struct Language {
    names: &'static [&'static str],
    sentences: &'static [&'static str],
    words: [&'static [&'static str]; 3],
}

const LANGUAGES: [Language; 4] = [
    Language {
        names: &["German", "Deutsch"],
        sentences: &[
            "In der Stadt N haben die A im letzten Jahr ein neues Haus für C gebaut und es B genannt",
            "Wer heute nach N fährt, der sieht dort noch immer die A und hört viel über C",
            "Nach dem großen Sturm waren die A von N so B, dass niemand mehr an C glaubte",
            "Es ist nicht bekannt, warum die A aus N so B über C sprechen",
            "Viele der A in N wissen nicht, dass C früher viel wichtiger war und B blieb",
        ],
        words: [
            &[
                "Fischer", "Lehrer", "Händler", "Weber", "Bauern", "Schmiede", "Ärzte", "Maler",
                "Boten", "Wächter",
            ],
            &["ruhig", "ernst", "müde", "fröhlich", "streng", "vorsichtig", "langsam", "stolz"],
            &[
                "Salz", "Getreide", "Kupfer", "Holz", "Wolle", "Musik", "Bücher", "Wasser", "Glas",
                "Honig",
            ],
        ],
    },
    Language {
        names: &["French", "français"],
        sentences: &[
            "Dans la ville de N, les A ont construit une maison pour C et elle est restée B",
            "Quand on arrive à N, on voit encore les A qui parlent de C d'une façon B",
            "Après la grande tempête, les A de N ne voulaient plus entendre parler de C",
            "On ne sait pas pourquoi les A venus de N sont devenus si B avec C",
        ],
        words: [
            &[
                "pêcheurs",
                "maîtres",
                "marchands",
                "tisserands",
                "paysans",
                "forgerons",
                "médecins",
                "peintres",
            ],
            &["calme", "sévère", "étrange", "simple", "utile", "célèbre", "rapide", "triste"],
            &["sel", "blé", "cuivre", "bois", "laine", "musique", "verre", "miel", "papier"],
        ],
    },
    Language {
        names: &["Spanish", "español"],
        sentences: &[
            "En la ciudad de N los A construyeron una casa para C que todavía es B",
            "Cuando se llega a N se ven todavía los A que hablan mucho de C",
            "Después de la gran tormenta los A de N no querían oír nada más sobre C",
            "No se sabe por qué los A que vinieron de N son tan B cuando hablan de C",
        ],
        words: [
            &[
                "pescadores",
                "maestros",
                "mercaderes",
                "tejedores",
                "campesinos",
                "herreros",
                "pintores",
            ],
            &["tranquilo", "severo", "extraño", "sencillo", "famoso", "triste", "lento"],
            &["sal", "trigo", "cobre", "madera", "lana", "música", "vidrio", "miel", "papel"],
        ],
    },
    Language {
        names: &["English"],
        sentences: &[
            "The A of N built a B house for C last year and then sold it to their neighbours",
            "Whoever travels to N today will still find A there who know everything about C",
            "After the great storm most A in N were so B that nobody believed in C any longer",
            "It is not known why the A who came from N became so B about their C",
            "Many A near N have never heard that C was once far more important than it is now",
            "A B report from N explains how A keep their C dry through a long winter",
            "Nobody in N had expected that the A would trade all their C for a B promise",
            "What the A from N wrote about C is B, but it was read with great interest",
            "For thirty years the road to N has been closed to A who carry C without a B permit",
            "When C became scarce, the A around N turned to something that looked quite B at first",
        ],
        words: [
            &[
                "fishermen",
                "teachers",
                "merchants",
                "weavers",
                "farmers",
                "smiths",
                "doctors",
                "painters",
                "sailors",
                "guards",
                "printers",
                "bakers",
                "miners",
                "judges",
                "singers",
                "hunters",
                "builders",
                "students",
            ],
            &[
                "quiet", "strict", "careful", "proud", "strange", "simple", "famous", "slow",
                "generous", "bitter", "modest", "sudden", "useful", "narrow",
            ],
            &[
                "salt", "grain", "copper", "timber", "wool", "music", "glass", "honey", "paper",
                "tea", "leather", "pottery", "silver", "rope", "ink", "cheese", "coal",
            ],
        ],
    },
];

const SYLLABLES: [&str; 24] = [
    "ba", "cor", "del", "fen", "gri", "hol", "ja", "kel", "lum", "mar", "nor", "os", "pel", "quin",
    "rav", "sol", "tam", "ul", "ver", "wen", "xan", "yor", "zet", "dra",
];
/// Labels, whose words stand in no sentence.
const LABELS: [&str; 16] = [
    "sarcasm",
    "technical complaint",
    "praise",
    "neutral remark",
    "urgent request",
    "off-topic",
    "billing issue",
    "science fiction",
    "obituary",
    "weather notice",
    "legal advice",
    "sports recap",
    "satire",
    "gardening",
    "astronomy",
    "political opinion",
];
/// Keys that an example may have, where no schema says which.
const KEYS: [&str; 26] = [
    "user_query",
    "positive_document",
    "hard_negative_document",
    "hard_negative_document_1",
    "hard_negative_document_2",
    "hard_negative_1",
    "hard_negative_2",
    "hard_negative_3",
    "hard_negative_4",
    "input_text",
    "label",
    "misleading_label",
    "misleading_label_1",
    "misleading_label_2",
    "misleading_label_3",
    "misleading_label_4",
    "input",
    "S1",
    "S2",
    "S3",
    "S4",
    "S5",
    "S6",
    "tasks",
    "queries",
    "query",
];

fn language(name: &str) -> &'static Language {
    let known = LANGUAGES.iter().find(|language| language.names.contains(&name));
    known.unwrap_or(&LANGUAGES[LANGUAGES.len() - 1])
}

/// The languages that a prompt names, in its order; English where it names none.
fn languages(prompt: &str) -> Vec<&'static Language> {
    let words = prompt.split(|c: char| !c.is_alphabetic());
    let all = || LANGUAGES.iter().flat_map(|language| language.names);
    let mut found: Vec<_> =
        words.filter(|word| all().any(|name| name == word)).map(language).collect();
    if found.is_empty() {
        found.push(language("English"));
    }
    found
}

fn name(rng: &mut ChaCha8Rng) -> String {
    let count = rng.random_range(3..5);
    let name: String = (0..count).filter_map(|_| SYLLABLES.choose(rng)).copied().collect();
    name[..1].to_uppercase() + &name[1..]
}

fn sentence(language: &Language, rng: &mut ChaCha8Rng) -> String {
    let pattern = language.sentences.choose(rng).unwrap();
    let mut words: Vec<String> = Vec::new();
    for (i, word) in pattern.split(' ').enumerate() {
        // Marks may follow a place.
        let (place, mark) = match word.strip_suffix(',') {
            Some(place) => (place, ","),
            None => (word, ""),
        };
        let word = match place {
            "N" => name(rng),
            // The article, not a place.
            "A" if i == 0 => "A".into(),
            "A" => language.words[0].choose(rng).unwrap().to_string(),
            "B" => language.words[1].choose(rng).unwrap().to_string(),
            "C" => language.words[2].choose(rng).unwrap().to_string(),
            other => other.into(),
        };
        words.push(word + mark);
    }
    words.join(" ") + "."
}

/// About so many words, in whole sentences but for the last.
fn passage(language: &Language, words: usize, rng: &mut ChaCha8Rng) -> String {
    let mut text: Vec<String> = Vec::new();
    while text.len() < words {
        text.extend(sentence(language, rng).split(' ').map(String::from));
    }
    text.truncate(words);
    let text = text.join(" ");
    text.trim_end_matches([',', '.']).to_string() + "."
}

/// The number after one phrase and before `words`.
fn words_after(prompt: &str, phrase: &str) -> Option<usize> {
    prompt.match_indices(phrase).find_map(|(at, _)| {
        let mut rest = prompt[at + phrase.len()..].split_whitespace();
        let number = rest.next()?.parse().ok()?;
        rest.next()?.starts_with("words").then_some(number)
    })
}

fn text(key: &str, i: usize, prompt: &str, rng: &mut ChaCha8Rng) -> String {
    let named = languages(prompt);
    // Of a translation the first text is in the language that is named first, the others in the last.
    let (first, last) = (named[0], named[named.len() - 1]);
    let less = words_after(prompt, "less than");
    let least = words_after(prompt, "at least");
    match key {
        "label" => LABELS[rng.random_range(0..4)].into(),
        _ if key.starts_with("misleading_label") => {
            LABELS[4 + 2 * (i % 6) + rng.random_range(0..2)].into()
        }
        "tasks" => format!("Given a text from {}, tell: {}", name(rng), sentence(last, rng)),
        "S1" => sentence(first, rng),
        "S2" | "S3" | "S4" | "S5" | "S6" => sentence(last, rng),
        "user_query" | "query" | "queries" => {
            let words = less.map_or(12, |words| words - 1);
            let rest = passage(first, words - 1, rng);
            format!("{} {}", name(rng), rest.trim_end_matches('.'))
        }
        "input_text" => {
            let words = less.map(|words| words - 1).or(least.map(|words| words + 2));
            passage(first, words.unwrap_or(30), rng)
        }
        _ => passage(last, words_after(prompt, "about").or(least).unwrap_or(20), rng),
    }
}

/// A value that fits a schema.
fn value(schema: &Value, key: &str, i: usize, prompt: &str, rng: &mut ChaCha8Rng) -> Value {
    if let Some(options) = schema["enum"].as_array() {
        return options.choose(rng).cloned().unwrap_or_default();
    }
    match schema["type"].as_str() {
        Some("object") => object(schema, prompt, rng),
        Some("array") => {
            let least = schema["minItems"].as_u64().unwrap_or(1);
            let most = schema["maxItems"].as_u64().unwrap_or(20);
            let items = 0..most.max(least);
            items.map(|i| value(&schema["items"], key, i as usize, prompt, rng)).collect()
        }
        Some("integer" | "number") => {
            let least = schema["minimum"].as_i64().unwrap_or(1);
            let most = schema["maximum"].as_i64().unwrap_or(10);
            rng.random_range(least..=most).into()
        }
        Some("boolean") => rng.random_bool(0.8).into(),
        _ => text(key, i, prompt, rng).into(),
    }
}

fn object(schema: &Value, prompt: &str, rng: &mut ChaCha8Rng) -> Value {
    let properties = schema["properties"].as_object().into_iter().flatten().enumerate();
    let fields =
        properties.map(|(i, (key, schema))| (key.clone(), value(schema, key, i, prompt, rng)));
    Value::Object(fields.collect::<Map<_, _>>())
}

/// What answers a prompt.
pub(super) fn fill(prompt: &str, schema: Option<&Value>, seed: u64) -> Value {
    let mut hasher = DefaultHasher::new();
    (prompt, seed).hash(&mut hasher);
    let mut rng = ChaCha8Rng::seed_from_u64(hasher.finish());
    if let Some(schema) = schema {
        return value(schema, "", 0, prompt, &mut rng);
    }
    let words: Vec<&str> = prompt.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let keys = KEYS.into_iter().filter(|key| words.contains(key)).enumerate();
    let fields = keys.map(|(i, key)| {
        let list = json!({ "type": "array", "minItems": 20 });
        let schema = if matches!(key, "tasks" | "queries") { list } else { Value::Null };
        (key.to_string(), value(&schema, key, i, prompt, &mut rng))
    });
    Value::Object(fields.collect())
}
