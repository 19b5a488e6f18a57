//! The placeholders of a prompt, drawn by seed: values as the papers have them.

use rand::Rng;
use rand::seq::IndexedRandom as _;
use serde::Serialize;

use super::kind::ExampleKind;
use crate::language::Language;

/// What a prompt says beside its task (E5-Mistral, appendix C; NV-Embed, table 15; Negative Matters, appendix A).
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub(super) enum Placeholders {
    ShortLong {
        query_type: &'static str,
        query_length: &'static str,
        clarity: &'static str,
        num_words: usize,
        difficulty: &'static str,
    },
    LongShort {
        num_words: &'static str,
        clarity: &'static str,
        difficulty: &'static str,
    },
    Similar {
        unit: &'static str,
        high_score: f32,
        low_scores: Vec<f32>,
        difficulty: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        source_language: Option<&'static str>,
    },
    Corpus {
        query_type: &'static str,
        query_length: &'static str,
    },
    None {},
}

const LENGTHS: [(&str, Words); 3] = [
    ("less than 5 words", Words { least: 0, most: 4 }),
    ("5 to 15 words", Words { least: 5, most: 15 }),
    ("at least 10 words", Words { least: 10, most: usize::MAX }),
];
const TEXT_LENGTHS: [(&str, Words); 5] = [
    ("less than 10", Words { least: 0, most: 9 }),
    ("at least 10", Words { least: 10, most: usize::MAX }),
    ("at least 50", Words { least: 50, most: usize::MAX }),
    ("at least 100", Words { least: 100, most: usize::MAX }),
    ("at least 200", Words { least: 200, most: usize::MAX }),
];
const CLARITY: [&str; 3] = ["clear", "understandable with some effort", "ambiguous"];
const DIFFICULTY: [&str; 3] = ["high school", "college", "PhD"];
const EASIER: [&str; 3] = ["elementary school", "high school", "college"];

/// Words that a text is asked to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Words {
    least: usize,
    most: usize,
}

impl Words {
    pub(super) const ANY: Self = Self { least: 0, most: usize::MAX };
    /// What `long-long` asks for.
    pub(super) const LONG: Self = Self { least: 300, most: usize::MAX };

    fn about(words: usize) -> Self {
        Self { least: words, most: words }
    }

    /// Whether a text is within half of what was asked for.
    pub(super) fn admit(self, text: &str) -> bool {
        let words = crate::words::count(text);
        words * 2 >= self.least && words <= self.most.saturating_add(self.most / 2)
    }

    /// About how many they are.
    pub(super) fn expected(self) -> usize {
        if self.most == usize::MAX {
            self.least.max(20) * 5 / 4
        } else {
            (self.least + self.most) / 2
        }
    }
}

/// Placeholders, and the words that query and documents are to have.
pub(super) struct Drawn {
    pub(super) placeholders: Placeholders,
    pub(super) query: Words,
    pub(super) documents: Words,
}

fn one<T: Copy, const N: usize>(values: [T; N], rng: &mut impl Rng) -> T {
    // An array of these is never empty.
    values.choose(rng).copied().unwrap_or(values[0])
}

pub(super) fn draw(
    kind: ExampleKind,
    levels: usize,
    source: Language,
    rng: &mut impl Rng,
) -> Drawn {
    let of = |placeholders, query, documents| Drawn { placeholders, query, documents };
    match kind {
        ExampleKind::ShortLong => {
            let (query_length, query) = one(LENGTHS, rng);
            let num_words = one([50, 100, 200, 300, 400, 500], rng);
            let placeholders = Placeholders::ShortLong {
                query_type: one(["extremely long-tail", "long-tail", "common"], rng),
                query_length,
                clarity: one(CLARITY, rng),
                num_words,
                difficulty: one(DIFFICULTY, rng),
            };
            of(placeholders, query, Words::about(num_words))
        }
        ExampleKind::LongShort => {
            let (num_words, text) = one(TEXT_LENGTHS, rng);
            let placeholders = Placeholders::LongShort {
                num_words,
                clarity: one(CLARITY, rng),
                difficulty: one(DIFFICULTY, rng),
            };
            of(placeholders, text, Words::ANY)
        }
        ExampleKind::Sts | ExampleKind::Bitext => {
            let bitext = kind == ExampleKind::Bitext;
            let low = if bitext { one([1.5f32, 2.0, 2.5], rng) } else { one([2.5, 3.0, 3.5], rng) };
            let least = if bitext { 0.0 } else { 1.0 };
            let placeholders = Placeholders::Similar {
                unit: one(["sentence", "phrase", "passage"], rng),
                high_score: one([4.0, 4.5, 5.0], rng),
                low_scores: (0..levels.max(1))
                    .map(|level| (low - 0.5 * level as f32).max(least))
                    .collect(),
                difficulty: one(EASIER, rng),
                source_language: bitext.then_some(source.name),
            };
            of(placeholders, Words::ANY, Words::ANY)
        }
        ExampleKind::Corpus => {
            let (query_length, query) = one(LENGTHS, rng);
            let query_type = one(
                [
                    "a question that its reader would ask",
                    "keywords as they are typed into a search field",
                    "a description of a problem that it solves",
                    "a statement that it supports or explains",
                ],
                rng,
            );
            of(Placeholders::Corpus { query_type, query_length }, query, Words::ANY)
        }
        ExampleKind::LongLong => of(Placeholders::None {}, Words::LONG, Words::LONG),
        ExampleKind::ShortShort | ExampleKind::Regenerated => {
            of(Placeholders::None {}, Words::ANY, Words::ANY)
        }
    }
}
