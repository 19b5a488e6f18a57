//! Vectors as the two protocols write them, straight from the numbers: a tree of JSON values would take ten
//! times their memory.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::ser::{Serialize, Serializer};

use super::memory::Held;
use super::request::Protocol;

/// Bytes of a number as text, about.
pub(super) const NUMBER: usize = 14;

/// An answer's bytes, with the memory that they hold until they are sent.
pub(super) struct Answer {
    pub(super) bytes: Vec<u8>,
    pub(super) _held: Held,
}

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Writes an answer.
///
/// # Errors
/// None that vectors can cause.
pub(super) fn write(
    protocol: Protocol,
    model: &str,
    vectors: &[Vec<f32>],
    base64: bool,
    tokens: usize,
) -> serde_json::Result<Vec<u8>> {
    let numbers: usize = vectors.iter().map(Vec::len).sum();
    let mut bytes = Vec::with_capacity(numbers.saturating_mul(NUMBER) + 1024);
    match protocol {
        Protocol::Tei => serde_json::to_writer(&mut bytes, vectors)?,
        Protocol::OpenAi => {
            let answer = OpenAi {
                object: "list",
                data: Entries { vectors, base64 },
                model,
                usage: Usage { prompt_tokens: tokens, total_tokens: tokens },
            };
            serde_json::to_writer(&mut bytes, &answer)?;
        }
    }
    Ok(bytes)
}

#[derive(serde::Serialize)]
struct OpenAi<'a> {
    object: &'static str,
    data: Entries<'a>,
    model: &'a str,
    usage: Usage,
}

#[derive(serde::Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

struct Entries<'a> {
    vectors: &'a [Vec<f32>],
    base64: bool,
}

impl Serialize for Entries<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.vectors.iter().enumerate().map(|(index, vector)| Entry {
            object: "embedding",
            index,
            embedding: if self.base64 { Vector::Packed(vector) } else { Vector::Numbers(vector) },
        }))
    }
}

#[derive(serde::Serialize)]
struct Entry<'a> {
    object: &'static str,
    index: usize,
    embedding: Vector<'a>,
}

enum Vector<'a> {
    Numbers(&'a [f32]),
    Packed(&'a [f32]),
}

impl Serialize for Vector<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Numbers(numbers) => numbers.serialize(to),
            Self::Packed(numbers) => {
                let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
                to.serialize_str(&STANDARD.encode(bytes))
            }
        }
    }
}
