//! Reads a request's body as the two protocols write it. What it allocates is bounded by the body's size.

use kiln_embed::embedder::Prompt;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use utoipa::ToSchema;

use super::limits::{Limits, MOST_TEXTS};
use super::openapi;
use super::refusal::Refusal;

/// The protocols that are spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// OpenAI's `/v1/embeddings`.
    OpenAi,
    /// The `/embed` of text-embeddings-inference.
    Tei,
}

impl Protocol {
    /// The protocol of a path.
    pub(super) fn of(path: &str) -> Self {
        let numbered = path.starts_with("/v1/") || path.starts_with("/v2/");
        if numbered { Self::OpenAi } else { Self::Tei }
    }
}

/// What is asked for, in either protocol.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingRequest {
    /// Which model is asked, by name.
    pub model: Option<String>,
    /// The texts, one at least.
    pub texts: Vec<String>,
    /// What stands before each text.
    pub prompt: Prompt,
    /// A prompt's name where its text is given, too: it is not used, and has to be one of the model's.
    pub unused_prompt: Option<String>,
    /// Whether texts that are too long are cut.
    pub truncate: bool,
    /// Whether vectors are divided by their norm, where the model does not do it.
    pub normalize: Normalize,
    /// How many of the vectors' first numbers.
    pub dimensions: Option<usize>,
    /// Vectors as little-endian f32 in base64 instead of numbers.
    pub base64: bool,
}

/// When vectors are divided by their norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalize {
    /// All (text-embeddings-inference's default).
    Always,
    /// Those that are cut to fewer numbers (OpenAI's).
    WhereCut,
    /// None.
    Never,
}

/// Reads a body.
///
/// # Errors
/// Anything that is not a request of the protocol within the limits.
pub fn parse_request(
    protocol: Protocol,
    body: &[u8],
    limits: &Limits,
) -> Result<EmbeddingRequest, Refusal> {
    let (texts, request) = match protocol {
        Protocol::OpenAi => {
            let OpenAiBody { model, input, encoding_format, dimensions, prompt_name, prompt } =
                json(body)?;
            let request = EmbeddingRequest {
                model,
                texts: Vec::new(),
                prompt: Prompt::from_options(prompt_name.as_deref(), prompt.as_deref()),
                unused_prompt: prompt_name.filter(|_| prompt.is_some()),
                truncate: limits.truncate,
                normalize: Normalize::WhereCut,
                dimensions,
                base64: encoding_format == Some(Encoding::Base64),
            };
            (input, request)
        }
        Protocol::Tei => {
            let TeiBody { inputs, truncate, normalize, prompt_name, dimensions } = json(body)?;
            let request = EmbeddingRequest {
                model: None,
                texts: Vec::new(),
                prompt: Prompt::from_options(prompt_name.as_deref(), None),
                unused_prompt: None,
                truncate: truncate.unwrap_or(limits.truncate),
                normalize: match normalize.unwrap_or(true) {
                    true => Normalize::Always,
                    false => Normalize::Never,
                },
                dimensions,
                base64: false,
            };
            (inputs, request)
        }
    };
    match texts.count {
        0 => Err(Refusal::invalid("the input is empty")),
        count if count > limits.max_texts => Err(Refusal::too_large(format!(
            "{count} texts in one request; at most {} are taken",
            limits.max_texts
        ))),
        _ => Ok(EmbeddingRequest { texts: texts.list, ..request }),
    }
}

/// A query and texts to be ranked.
#[derive(Debug, Clone, PartialEq)]
pub struct RerankRequest {
    /// The query.
    pub query: String,
    /// The texts, one at least.
    pub texts: Vec<String>,
    /// Scores before the model's activation.
    pub raw_scores: bool,
    /// Whether texts come back with their scores.
    pub return_texts: bool,
    /// How many of the best; `None`: all.
    pub top: Option<usize>,
    /// Whether pairs that are too long are cut.
    pub truncate: bool,
}

/// The protocols of reranking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RerankProtocol {
    /// The `/rerank` of text-embeddings-inference.
    Tei,
    /// Cohere's and Jina's `/v1/rerank`.
    Cohere,
}

/// text-embeddings-inference's request for a ranking.
#[derive(Deserialize, ToSchema)]
pub(super) struct TeiRerankBody {
    query: String,
    #[schema(value_type = openapi::Texts)]
    texts: Texts,
    #[serde(default)]
    raw_scores: bool,
    #[serde(default)]
    return_text: bool,
    truncate: Option<bool>,
}

/// Cohere's and Jina's request for a ranking.
#[derive(Deserialize, ToSchema)]
pub(super) struct CohereBody {
    query: String,
    #[schema(value_type = Vec<openapi::Document>)]
    documents: Documents,
    /// How many of the best.
    #[schema(minimum = 1)]
    #[serde(default, deserialize_with = "whole")]
    top_n: Option<usize>,
    #[serde(default)]
    return_documents: bool,
}

/// Texts, or objects with one.
struct Documents(Texts);

impl<'de> Deserialize<'de> for Documents {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Many;

        impl<'de> Visitor<'de> for Many {
            type Value = Documents;

            fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.write_str("a list of documents")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, from: A) -> Result<Documents, A::Error> {
                up_to_most(from, |Document(text)| text).map(Documents)
            }
        }

        from.deserialize_seq(Many)
    }
}

/// A text, or an object with one, of whose other fields nothing is kept.
struct Document(String);

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct One;

        impl<'de> Visitor<'de> for One {
            type Value = Document;

            fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.write_str("a text, or an object with a text")
            }

            fn visit_str<E>(self, text: &str) -> Result<Document, E> {
                Ok(Document(text.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, from: A) -> Result<Document, A::Error> {
                #[derive(Deserialize)]
                struct Object {
                    text: String,
                }
                Object::deserialize(MapAccessDeserializer::new(from))
                    .map(|Object { text }| Document(text))
            }
        }

        from.deserialize_any(One)
    }
}

/// The first [`MOST_TEXTS`] of a list, and how many there are.
fn up_to_most<'de, A, T>(mut from: A, text: impl Fn(T) -> String) -> Result<Texts, A::Error>
where
    A: SeqAccess<'de>,
    T: Deserialize<'de>,
{
    let mut list = Vec::new();
    while list.len() < MOST_TEXTS {
        match from.next_element::<T>()? {
            Some(one) => list.push(text(one)),
            None => return Ok(Texts { count: list.len(), list }),
        }
    }
    let mut count = list.len();
    while from.next_element::<IgnoredAny>()?.is_some() {
        count += 1;
    }
    Ok(Texts { list, count })
}

/// Reads the body of a request for a ranking.
///
/// # Errors
/// Anything that is not one within the limits.
pub fn parse_rerank(
    protocol: RerankProtocol,
    body: &[u8],
    limits: &Limits,
) -> Result<RerankRequest, Refusal> {
    let (texts, request) = match protocol {
        RerankProtocol::Tei => {
            let TeiRerankBody { query, texts, raw_scores, return_text, truncate } = json(body)?;
            let request = RerankRequest {
                query,
                texts: Vec::new(),
                raw_scores,
                return_texts: return_text,
                top: None,
                truncate: truncate.unwrap_or(limits.truncate),
            };
            (texts, request)
        }
        RerankProtocol::Cohere => {
            let CohereBody { query, documents, top_n, return_documents } = json(body)?;
            let request = RerankRequest {
                query,
                texts: Vec::new(),
                raw_scores: false,
                return_texts: return_documents,
                top: top_n,
                truncate: true,
            };
            (documents.0, request)
        }
    };
    match texts.count {
        0 => Err(Refusal::invalid("there are no texts to rank")),
        count if count > limits.max_texts => Err(Refusal::too_large(format!(
            "{count} texts in one request; at most {} are taken",
            limits.max_texts
        ))),
        _ if request.top == Some(0) => Err(Refusal::invalid("top_n is 0")),
        _ => Ok(RerankRequest { texts: texts.list, ..request }),
    }
}

/// Bytes of texts, each with its prompt before it.
pub(super) fn expanded_bytes(texts: &[String], prompt: &str) -> usize {
    texts
        .iter()
        .fold(0usize, |total, text| total.saturating_add(text.len()).saturating_add(prompt.len()))
}

/// A whole number, which JSON may also write as 40.0.
fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Whole(usize),
        Float(f64),
    }
    match Option::<Number>::deserialize(from)? {
        None => Ok(None),
        Some(Number::Whole(number)) => Ok(Some(number)),
        // One that is larger than any is the largest.
        Some(Number::Float(number)) if number.fract() == 0.0 && number >= 0.0 => {
            Ok(Some(number as usize))
        }
        Some(Number::Float(number)) => {
            Err(serde::de::Error::custom(format!("{number} is not a number of things")))
        }
    }
}

fn json<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    // A list would be taken for the fields in their order.
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Refusal::invalid("the body is not a JSON object"));
    }
    serde_json::from_slice(body).map_err(|error| Refusal::invalid(format!("the body: {error}")))
}

/// OpenAI's request; fields of theirs that change nothing here are taken and passed over.
#[derive(Deserialize, ToSchema)]
pub(super) struct OpenAiBody {
    /// Of several models the one with this name; a server with one does not ask.
    model: Option<String>,
    #[schema(value_type = openapi::Texts)]
    input: Texts,
    encoding_format: Option<Encoding>,
    #[serde(default, deserialize_with = "whole")]
    dimensions: Option<usize>,
    /// Ours: a prompt of the model by name.
    prompt_name: Option<String>,
    /// Ours: a prompt's text.
    prompt: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Encoding {
    Float,
    Base64,
}

/// The request of text-embeddings-inference.
#[derive(Deserialize, ToSchema)]
pub(super) struct TeiBody {
    #[schema(value_type = openapi::Texts)]
    inputs: Texts,
    truncate: Option<bool>,
    normalize: Option<bool>,
    prompt_name: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    dimensions: Option<usize>,
}

/// A text, or several. Beyond [`MOST_TEXTS`] they are only counted.
struct Texts {
    list: Vec<String>,
    count: usize,
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct OneOrMany;

        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Texts;

            fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.write_str("a text or a list of texts; token numbers are not taken")
            }

            fn visit_str<E>(self, text: &str) -> Result<Texts, E> {
                Ok(Texts { list: vec![text.into()], count: 1 })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, from: A) -> Result<Texts, A::Error> {
                up_to_most(from, |Text(text)| text)
            }
        }

        from.deserialize_any(OneOrMany)
    }
}

/// One of several texts.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct One;

        impl Visitor<'_> for One {
            type Value = Text;

            fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.write_str("a text; token numbers are not taken")
            }

            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.into()))
            }
        }

        from.deserialize_any(One)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn openai(body: &str) -> Result<EmbeddingRequest, Refusal> {
        parse_request(Protocol::OpenAi, body.as_bytes(), &Limits::default())
    }

    #[test]
    fn both_protocols_are_read() {
        let actual = openai(
            r#"{"model": "m", "input": ["a", "b\u0000"], "dimensions": 3, "encoding_format": "base64", "user": {"x": []}}"#,
        )
        .unwrap();
        assert_eq!(actual.texts, ["a", "b\0"]);
        assert!(actual.base64 && actual.dimensions == Some(3) && actual.truncate);
        let whole = openai(r#"{"input": "a", "dimensions": 40.0}"#).unwrap();
        assert_eq!(whole.dimensions, Some(40));
        let body = br#"{"inputs": "a", "truncate": false, "prompt_name": "query"}"#;
        let actual = parse_request(Protocol::Tei, body, &Limits::default()).unwrap();
        assert_eq!(actual.texts, ["a"]);
        assert!(!actual.truncate && actual.prompt == Prompt::Named("query".into()));
        assert_eq!((whole.normalize, actual.normalize), (Normalize::WhereCut, Normalize::Always));
        let raw = br#"{"inputs": "a", "normalize": false}"#;
        let raw = parse_request(Protocol::Tei, raw, &Limits::default()).unwrap();
        assert_eq!(raw.normalize, Normalize::Never);
    }

    #[test]
    fn what_is_no_request_is_refused_in_one_short_line() {
        let deep = format!(r#"{{"input": {}"a"}}"#, "[".repeat(100_000));
        let aside = format!(r#"{{"input": "a", "x": {}}}"#, "[".repeat(100_000));
        let many = format!(r#"{{"input": [{}"a"]}}"#, r#""a","#.repeat(70_000));
        let word = format!(r#"{{"input": "a", "encoding_format": "{}"}}"#, "x".repeat(1_000_000));
        for (body, status, part) in [
            ("", 422, "object"),
            ("[\"a\"]", 422, "object"),
            ("{", 422, "EOF"),
            (r#"{"input": []}"#, 422, "empty"),
            (r#"{"input": [1, 2]}"#, 422, "token numbers"),
            (r#"{"input": [["a"]]}"#, 422, "token numbers"),
            (r#"{"input": null}"#, 422, "token numbers"),
            (r#"{"input": {"a": 1}}"#, 422, "token numbers"),
            (r#"{"input": "a", "input": "b"}"#, 422, "duplicate"),
            (r#"{"input": "\ud800"}"#, 422, "hex escape"),
            (r#"{"input": "a", "dimensions": -1}"#, 422, "-1"),
            (r#"{"input": "a", "dimensions": 1e400}"#, 422, "out of range"),
            (r#"{"input": "a", "dimensions": 1.5}"#, 422, "dimensions"),
            (r#"{"input": "a", "encoding_format": 7}"#, 422, "encoding_format"),
            (r#"{"input": "a"} x"#, 422, "trailing"),
            (&deep, 422, "token numbers"),
            (&aside, 422, ""),
            (&many, 413, "70001 texts"),
            (&word, 422, "unknown variant"),
        ] {
            let shown = &body[..body.len().min(80)];
            let refusal = openai(body).expect_err(shown);
            assert_eq!(refusal.status(), status, "{shown}: {refusal:?}");
            // Not all of serde's messages name the field.
            if !["dimensions", "encoding_format"].contains(&part) {
                assert!(refusal.message().contains(part), "{shown}: {refusal:?}");
            }
            assert!(refusal.message().len() < 400, "{shown}: {refusal:?}");
        }
        let invalid = parse_request(Protocol::OpenAi, b"{\"input\": \"\xff\"}", &Limits::default());
        assert_eq!(invalid.unwrap_err().status(), 422);
    }

    #[test]
    fn documents_are_texts_or_objects_and_beyond_the_limit_only_counted() {
        let read = |documents: &str| {
            let body = format!(r#"{{"query": "q", "documents": {documents}}}"#);
            parse_rerank(RerankProtocol::Cohere, body.as_bytes(), &Limits::default())
        };
        let actual = read(r#"["a", {"id": {"x": [1]}, "text": "b"}]"#).unwrap();
        assert_eq!(actual.texts, ["a", "b"]);
        let many = format!("[{}\"a\"]", r#"{"text": "a"},"#.repeat(70_000));
        let deep = format!("[{}]", "[".repeat(100_000));
        for (documents, status, part) in [
            (r#""a""#, 422, "a list of documents"),
            (r#"[{"title": "a"}]"#, 422, "text"),
            ("[1]", 422, "a text, or an object"),
            (&deep, 422, "a text, or an object"),
            (&many, 413, "70001 texts"),
        ] {
            let refusal = read(documents).expect_err(&documents[..documents.len().min(40)]);
            assert_eq!(refusal.status(), status, "{refusal:?}");
            assert!(refusal.message().contains(part), "{refusal:?}");
        }
    }
}
