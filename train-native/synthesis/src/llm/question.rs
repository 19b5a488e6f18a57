//! What a model is asked.

use serde_json::Value;

/// One question.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// What tells it from all others ([`super::key`]); its answer is kept under it.
    pub key: u128,
    /// Who answers it: a place in the list of endpoints.
    pub endpoint: usize,
    /// What the model is told first.
    pub system: Option<String>,
    /// The prompt.
    pub prompt: String,
    /// JSON schema of the answer, with a `title`.
    pub schema: Option<Value>,
    /// Randomness of the answer.
    pub temperature: f32,
    /// What it is for, in the journal.
    pub label: String,
}
