//! Asks language models through chat endpoints that speak OpenAI's protocol.
//!
//! `Question -> ask (concurrency, retries, budget) -> Answer -> Journal`: every answer is kept as it came,
//! and what the journal knows is not asked again.

mod answer;
mod ask;
mod client;
mod endpoint;
mod journal;
mod pace;
mod question;

pub use answer::{Answer, Finish, Usage, Used, object, value};
pub use ask::{Limits, Spent, Stop, ask};
pub use client::Llm;
pub use endpoint::{Endpoint, EndpointList, Role};
pub use journal::Journal;
pub use question::Question;

/// The key of a question: the same for the same parts in the same order.
pub fn key(parts: &[&str]) -> u128 {
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    for part in parts {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.digest128()
}

/// The JSON schema of an object of texts, all of them there and nothing else, for `response_format`.
pub fn texts_schema<'a>(name: &str, keys: impl IntoIterator<Item = &'a str>) -> serde_json::Value {
    let keys: Vec<&str> = keys.into_iter().collect();
    let texts: serde_json::Map<String, serde_json::Value> =
        keys.iter().map(|key| (key.to_string(), serde_json::json!({"type": "string"}))).collect();
    serde_json::json!({
        "title": name, "type": "object", "properties": texts, "required": keys, "additionalProperties": false,
    })
}
