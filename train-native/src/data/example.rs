//! One training example, and JSONL files of them.

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::text::{Columns, TextFile};

/// A query with its positives and negatives; other fields of a line (ids, scores) are passed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Example {
    /// The query.
    #[serde(alias = "anchor")]
    pub query: String,
    /// Texts that answer it; one is drawn each time.
    #[serde(alias = "positives", alias = "positive", deserialize_with = "one_or_many")]
    pub pos: Vec<String>,
    /// Texts that do not. Where they are graded, hardest first.
    #[serde(
        default,
        alias = "negatives",
        alias = "negative",
        deserialize_with = "one_or_many",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub neg: Vec<String>,
}

impl Example {
    /// An example with one positive.
    pub fn new(query: String, positive: String, negatives: Vec<String>) -> Self {
        Self { query, pos: vec![positive], neg: negatives }
    }
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Texts {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Texts::deserialize(deserializer)? {
        Texts::One(text) => vec![text],
        Texts::Many(texts) => texts,
    })
}

/// Reads a JSONL file of examples: `{"query", "pos": [..], "neg": [..]}` (also
/// `anchor`/`positive`/`negative`), plain or compressed.
///
/// # Errors
/// The first line that is none, named by file and line.
pub fn read_examples(path: &str) -> Result<Vec<Example>> {
    let file = TextFile::open(path, Columns::required(&[]))?;
    let mut examples = Vec::new();
    for line in file.raw_lines()? {
        let (number, line) = line?;
        let place = || format!("{}:{number}", file.label);
        let example: Example = serde_json::from_str(&line).with_context(|| {
            format!("{}: expected {{\"query\": .., \"pos\": [..], \"neg\": [..]}}", place())
        })?;
        if example.pos.is_empty() {
            bail!("{}: the query has no positive", place());
        }
        examples.push(example);
    }
    if examples.is_empty() {
        bail!("{}: holds no example", file.label);
    }
    Ok(examples)
}
