//! What a row of a training file is, by the names of its fields.
//!
//! | rows | fields |
//! |---|---|
//! | FlagEmbedding | `query`, `pos` [..], `neg` [..], optionally `pos_scores`, `neg_scores` |
//! | sentence-transformers | `anchor` (or `query`, `question`), `positive` (or `answer`, `document`, `passage`), `negative`, `negative_1`, ... |
//! | Tevatron | `query`, `positive_passages`, `negative_passages`, each with `title` and `text` |
//! | MGH | `query`, `positive`, `negatives`: a list, hardest first, or `{"n1": .., "n4": ..}` |
//! | scored pairs | `sentence1`, `sentence2` ([`FIRST_TEXT`], [`SECOND_TEXT`]), `score` (or `label`) |
//! | labelled texts | `text`, `label` |
//! | texts (for distillation) | `text`, or plain lines |

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Map, Value};

use super::Example;
use crate::text::short;

/// A row of a file: field names and values.
pub type Fields = Map<String, Value>;

/// The kinds of rows that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowFormat {
    /// `query`, `pos`, `neg`.
    FlagEmbedding,
    /// `anchor`, `positive`, `negative`, `negative_1`, ...
    SentenceTransformers,
    /// `query`, `positive_passages`, `negative_passages`.
    Tevatron,
    /// `query`, `positive`, `negatives` by level.
    Graded,
    /// Two texts and how alike they are.
    ScoredPairs,
    /// A text and its class.
    LabelledTexts,
    /// Texts alone, for distillation.
    Texts,
}

/// A row as one of the things that training data can be.
#[derive(Debug, Clone, PartialEq)]
pub enum DataRow {
    /// A query with positives and negatives.
    Example(Example),
    /// Two texts and their score.
    Scored([String; 2], f64),
    /// A text and its label.
    Labelled(String, String),
}

const ANCHORS: [&str; 3] = ["anchor", "query", "question"];
const POSITIVES: [&str; 5] = ["positive", "pos", "answer", "document", "passage"];

/// Names that a pair's first text has in the data sets that there are, for training and evaluation.
pub const FIRST_TEXT: [&str; 4] = ["sentence1", "text1", "sent1", "sentence_A"];
/// Names of its second text.
pub const SECOND_TEXT: [&str; 4] = ["sentence2", "text2", "sent2", "sentence_B"];
/// Names of how alike the two are.
pub const PAIR_SCORE: [&str; 3] = ["score", "similarity_score", "label"];

fn field<'a>(fields: &'a Fields, names: &[&str]) -> Option<&'a Value> {
    names.iter().find_map(|name| fields.get(*name)).filter(|value| !value.is_null())
}

impl RowFormat {
    /// The format of rows with these fields.
    ///
    /// # Errors
    /// None of the known ones; the error lists the fields and the formats.
    pub fn of(fields: &Fields) -> Result<Self> {
        let has = |name: &str| fields.contains_key(name);
        let any = |names: &[&str]| names.iter().any(|name| has(name));
        Ok(if has("positive_passages") {
            Self::Tevatron
        } else if any(&ANCHORS) && has("pos") {
            Self::FlagEmbedding
        } else if any(&ANCHORS) && any(&POSITIVES) && has("negatives") {
            Self::Graded
        } else if any(&ANCHORS) && any(&POSITIVES) {
            Self::SentenceTransformers
        } else if any(&FIRST_TEXT) && any(&SECOND_TEXT) {
            Self::ScoredPairs
        } else if has("text") && (has("label") || has("label_text")) {
            Self::LabelledTexts
        } else if has("text") {
            Self::Texts
        } else {
            let result = fields.keys().cloned().collect::<Vec<_>>().join(", ");
            bail!(
                "rows have the fields {result}; training data are query/pos/neg, anchor/positive/negative, \
                 query/positive_passages/negative_passages, query/positive/negatives, \
                 sentence1/sentence2/score, text/label, or text alone (for distillation)"
            )
        })
    }

    /// Name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::FlagEmbedding => "query/pos/neg (FlagEmbedding)",
            Self::SentenceTransformers => "anchor/positive/negative (sentence-transformers)",
            Self::Tevatron => "query/positive_passages/negative_passages (Tevatron)",
            Self::Graded => "query/positive/negatives by level (MGH)",
            Self::ScoredPairs => "scored pairs",
            Self::LabelledTexts => "labelled texts",
            Self::Texts => "texts",
        }
    }

    /// Reads a row.
    ///
    /// # Errors
    /// A missing field, a field of another type, or an empty query or positive.
    pub fn read(self, fields: &Fields) -> Result<DataRow> {
        let anchor = || text(fields, &ANCHORS);
        let example = match self {
            Self::FlagEmbedding => Example {
                query: anchor()?,
                pos: texts(fields, "pos")?,
                neg: texts(fields, "neg")?,
                pos_scores: numbers(fields, "pos_scores")?,
                neg_scores: numbers(fields, "neg_scores")?,
            },
            Self::SentenceTransformers => {
                let mut negatives: Vec<(usize, String)> = Vec::new();
                for (name, value) in fields {
                    let level = match name.strip_prefix("negative") {
                        Some("") => 0,
                        Some(rest) => match rest.trim_start_matches('_').parse() {
                            Ok(level) => level,
                            Err(_) => continue,
                        },
                        None => continue,
                    };
                    for text in one_or_many(name, value)? {
                        negatives.push((level, text));
                    }
                }
                negatives.sort_by_key(|(level, _)| *level);
                let positive = field(fields, &POSITIVES)
                    .with_context(|| format!("no field {}", POSITIVES.join(" or ")))?;
                Example {
                    query: anchor()?,
                    pos: one_or_many("positive", positive)?,
                    neg: negatives.into_iter().map(|(_, text)| text).collect(),
                    ..Example::default()
                }
            }
            Self::Tevatron => Example {
                query: anchor()?,
                pos: texts(fields, "positive_passages")?,
                neg: texts(fields, "negative_passages")?,
                ..Example::default()
            },
            Self::Graded => {
                let positive = field(fields, &POSITIVES)
                    .with_context(|| format!("no field {}", POSITIVES.join(" or ")))?;
                Example {
                    query: anchor()?,
                    pos: one_or_many("positive", positive)?,
                    neg: levels(&fields["negatives"])?,
                    ..Example::default()
                }
            }
            Self::ScoredPairs => {
                let pair = [text(fields, &FIRST_TEXT)?, text(fields, &SECOND_TEXT)?];
                let score = field(fields, &PAIR_SCORE).context("no field score or label")?;
                let score = number(score)
                    .with_context(|| format!("the score is {}, not a number", short(score)))?;
                if pair.iter().any(|text| text.trim().is_empty()) {
                    bail!("an empty text");
                }
                return Ok(DataRow::Scored(pair, score));
            }
            Self::LabelledTexts => {
                let content = text(fields, &["text"])?;
                if content.trim().is_empty() {
                    bail!("an empty text");
                }
                return Ok(DataRow::Labelled(content, text(fields, &["label_text", "label"])?));
            }
            Self::Texts => {
                // Blank lines are no texts, and are counted as such.
                let query = text(fields, &["text"])?.trim().to_string();
                return Ok(DataRow::Example(Example { query, ..Example::default() }));
            }
        };
        if example.query.trim().is_empty() {
            bail!("an empty query");
        }
        if example.pos.is_empty() {
            bail!("the query has no positive");
        }
        if example.pos.iter().any(|text| text.trim().is_empty()) {
            bail!("an empty positive");
        }
        let scored = [(&example.pos_scores, &example.pos), (&example.neg_scores, &example.neg)];
        if scored.iter().any(|(scores, texts)| !scores.is_empty() && scores.len() != texts.len()) {
            bail!("pos_scores and neg_scores must have as many entries as pos and neg");
        }
        Ok(DataRow::Example(example))
    }
}

fn number(value: &Value) -> Option<f64> {
    value
        .as_f64()
        .or_else(|| value.as_str()?.trim().parse().ok())
        .filter(|number| number.is_finite())
}

fn text(fields: &Fields, names: &[&str]) -> Result<String> {
    let value = field(fields, names).with_context(|| format!("no field {}", names.join(" or ")))?;
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other => bail!("the field {:?} is {}, not a text", names[0], short(other)),
    }
}

/// A passage: a text, or an object with `text` and perhaps `title`.
fn passage(value: &Value) -> Option<String> {
    if let Some(text) = value.as_str() {
        return Some(text.to_string());
    }
    let text = value.get("text")?.as_str()?;
    match value.get("title").and_then(Value::as_str).filter(|title| !title.is_empty()) {
        Some(title) => Some(format!("{title} {text}")),
        None => Some(text.to_string()),
    }
}

/// A text, a list of texts, or (from CSV) a list as JSON inside a text.
fn one_or_many(name: &str, value: &Value) -> Result<Vec<String>> {
    let wrong = || anyhow!("the field {name:?} is neither a text nor a list of texts");
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(all) => all.iter().map(|one| passage(one).ok_or_else(wrong)).collect(),
        Value::String(text) if text.is_empty() => Ok(Vec::new()),
        Value::String(text) => match serde_json::from_str::<Vec<String>>(text) {
            Ok(texts) => Ok(texts),
            Err(_) => Ok(vec![text.clone()]),
        },
        other => Ok(vec![passage(other).ok_or_else(wrong)?]),
    }
}

fn texts(fields: &Fields, name: &str) -> Result<Vec<String>> {
    fields.get(name).map_or(Ok(Vec::new()), |value| one_or_many(name, value))
}

fn numbers(fields: &Fields, name: &str) -> Result<Vec<f32>> {
    let score = |one: &Value| {
        let score = number(one).map(|number| number as f32).filter(|score| score.is_finite());
        score.with_context(|| {
            format!("the field {name:?} holds {}, not a number that f32 can hold", short(one))
        })
    };
    match fields.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(all)) => all.iter().map(score).collect(),
        Some(other) => bail!("the field {name:?} is {}, not a list of numbers", short(other)),
    }
}

/// Graded negatives, hardest first: a list, or an object whose keys end in the level.
fn levels(value: &Value) -> Result<Vec<String>> {
    let Value::Object(levels) = value else {
        return one_or_many("negatives", value);
    };
    let mut graded = Vec::new();
    for (name, value) in levels {
        let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
        let level: usize = digits.parse().map_err(|_| {
            anyhow!("negatives has the key {name:?}; expected n1 (hardest), n2, ...")
        })?;
        graded
            .push((level, passage(value).with_context(|| format!("negatives.{name} is no text"))?));
    }
    graded.sort_by_key(|(level, _)| *level);
    Ok(graded.into_iter().map(|(_, text)| text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: Value) -> Result<DataRow> {
        let fields = value.as_object().unwrap();
        RowFormat::of(fields)?.read(fields)
    }

    fn example(query: &str, pos: &[&str], neg: &[&str]) -> DataRow {
        let owned = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect();
        DataRow::Example(Example {
            query: query.into(),
            pos: owned(pos),
            neg: owned(neg),
            ..Default::default()
        })
    }

    #[test]
    fn every_format_is_told_by_its_fields() {
        let expected = example("q", &["p"], &["a", "b"]);
        for value in [
            json!({"query": "q", "pos": ["p"], "neg": ["a", "b"]}),
            json!({"anchor": "q", "positive": "p", "negative_2": "b", "negative_1": "a"}),
            json!({"query": "q", "answer": "p", "negative": ["a", "b"]}),
            json!({"query": "q", "positive_passages": [{"docid": "1", "title": "", "text": "p"}],
                "negative_passages": [{"text": "a"}, {"title": "b", "text": ""}, ]}),
            json!({"query": "q", "positive": "p", "negatives": {"n2": "b", "n1": "a"}}),
            json!({"query": "q", "positive": "p", "negatives": ["a", "b"]}),
        ] {
            let actual = read(value.clone()).unwrap();
            let DataRow::Example(mut actual) = actual else { panic!("{value}") };
            actual.neg.iter_mut().for_each(|text| *text = text.trim().to_string());
            assert_eq!(DataRow::Example(actual), expected, "{value}");
        }
        assert_eq!(
            read(json!({"sentence1": "a", "sentence2": "b", "score": "4.5"})).unwrap(),
            DataRow::Scored(["a".into(), "b".into()], 4.5)
        );
        assert_eq!(
            read(json!({"sent1": "a", "sent2": "b", "label": 1})).unwrap(),
            DataRow::Scored(["a".into(), "b".into()], 1.0)
        );
        assert_eq!(
            read(json!({"text": "a", "label": 3})).unwrap(),
            DataRow::Labelled("a".into(), "3".into())
        );
        assert_eq!(
            read(json!({"question": "q", "answer": "p"})).unwrap(),
            example("q", &["p"], &[])
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (value, word) in [
            (json!({"title": "x"}), "title"),
            (json!({"query": "", "pos": ["p"]}), "empty query"),
            (json!({"query": "q", "pos": []}), "no positive"),
            (json!({"query": "q", "pos": ["p"], "neg": [3]}), "neg"),
            (json!({"query": "q", "pos": ["p"], "pos_scores": [1, 2]}), "pos_scores"),
            (json!({"query": "q", "pos": ["p"], "neg": ["n"], "neg_scores": [1e300]}), "1e+300"),
            (json!({"sentence1": "a", "sentence2": "b", "score": "high"}), "not a number"),
            (json!({"text": "  ", "label": "x"}), "empty text"),
            (json!({"query": "q", "positive": "p", "negatives": {"hard": "a"}}), "n1"),
        ] {
            let error = format!("{:#}", read(value.clone()).unwrap_err());
            assert!(error.contains(word), "{value}: {error}");
        }
    }
}
