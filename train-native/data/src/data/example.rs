//! One training example.

use serde::{Deserialize, Serialize};

/// A query with its positives and negatives.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Example {
    /// The query.
    pub query: String,
    /// Texts that answer it; one is drawn each time.
    pub pos: Vec<String>,
    /// Texts that do not. Where they are graded, hardest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub neg: Vec<String>,
    /// A teacher's score of each positive, where mining kept it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pos_scores: Vec<f32>,
    /// A teacher's score of each negative.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub neg_scores: Vec<f32>,
}

impl Example {
    /// An example with one positive.
    pub fn new(query: String, positive: String, negatives: Vec<String>) -> Self {
        Self { query, pos: vec![positive], neg: negatives, ..Self::default() }
    }

    /// All texts.
    pub fn texts(&self) -> impl Iterator<Item = &String> {
        [&self.query].into_iter().chain(&self.pos).chain(&self.neg)
    }
}
