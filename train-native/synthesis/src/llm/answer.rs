//! What a model answered, and what of it is JSON.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Tokens of a request, as the server counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens of the answer.
    pub completion: u64,
    /// Whether the server did not say, and four bytes were taken for a token.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

impl Usage {
    /// Tokens of texts whose server did not count them.
    pub fn estimate(prompt: &str, answer: &str) -> Self {
        let tokens = |text: &str| (text.len() as u64).div_ceil(4);
        Self { prompt: tokens(prompt), completion: tokens(answer), estimated: true }
    }
}

/// What answers used, in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Used {
    /// Tokens of prompts.
    pub prompt: u64,
    /// Tokens of answers.
    pub completion: u64,
    /// Money, at the prices when they came.
    pub cost: f64,
}

impl Used {
    /// Adds an answer's.
    pub(super) fn add(&mut self, usage: Usage, cost: f64) {
        self.prompt = self.prompt.saturating_add(usage.prompt);
        self.completion = self.completion.saturating_add(usage.completion);
        self.cost += cost;
    }

    /// Tokens of prompts and answers.
    pub(super) fn tokens(self) -> u64 {
        self.prompt.saturating_add(self.completion)
    }
}

/// Why an answer ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model was done.
    #[default]
    Stop,
    /// It reached the limit of tokens, so the end is missing.
    Length,
    /// The model, its provider or the server refused.
    Refused,
}

/// An answer as it came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The text, unparsed.
    pub text: String,
    /// Why it ends.
    #[serde(default)]
    pub finish: Finish,
    /// Tokens.
    pub usage: Usage,
    /// Model that was asked.
    pub model: String,
}

/// How many places of an answer may be tried as the beginning of its JSON.
const MOST_STARTS: usize = 64;

/// The first JSON value in an answer that `fits`: fences, talk around it and a model's thinking aloud are
/// left out.
pub fn value(text: &str, fits: impl Fn(&Value) -> bool) -> Option<Value> {
    // What a reasoning model says before it answers may hold JSON too.
    let text = text.rsplit_once("</think>").map_or(text, |(_, after)| after);
    let starts = text.match_indices(['{', '[']).take(MOST_STARTS);
    starts.map(|(start, _)| &text[start..]).find_map(|from| {
        let mut values = serde_json::Deserializer::from_str(from).into_iter::<Value>();
        values.next()?.ok().filter(|value| fits(value))
    })
}

/// The first JSON object in an answer that has these keys.
pub fn object(text: &str, keys: &[&str]) -> Option<Map<String, Value>> {
    let has = |value: &Value| keys.iter().all(|key| value.get(key).is_some());
    match value(text, |value| value.is_object() && has(value)) {
        Some(Value::Object(object)) => Some(object),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_found_among_talk() {
        let find = |text: &str| object(text, &["a"]).map(|object| object["a"].clone());
        for text in [
            r#"{"a": "x"}"#,
            "Sure! Here it is:\n```json\n{\"a\": \"x\", \"b\": 2}\n```\nAnything else?",
            r#"<think>maybe {"a": "no"}</think> {"a": "x"}"#,
            r#"The set {1, 2} and {"b": 1} then {"a": "x"} trailing }]"#,
            r#"{"answer": {"a": "x"}}"#,
        ] {
            assert_eq!(find(text), Some("x".into()), "{text}");
        }
        for text in ["", "{", r#"{"a": "cut"#, r#"["a"]"#, r#"{"b": 1}"#, "[[[[[[[[[["] {
            assert_eq!(find(text), None, "{text}");
        }
    }

    #[test]
    fn deep_and_many_brackets_end_soon() {
        assert_eq!(object(&"{".repeat(1 << 20), &["a"]), None);
        assert_eq!(object(&"[".repeat(1 << 20), &["a"]), None);
        let many = "{} ".repeat(100_000) + r#"{"a": 1}"#;
        assert_eq!(object(&many, &["a"]), None);
    }
}
