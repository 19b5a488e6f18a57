//! What a row of a training file is, by the names of its fields.
//!
//! | rows | fields |
//! |---|---|
//! | FlagEmbedding | `query`, `pos` [..], `neg` [..], optionally `pos_scores`, `neg_scores`, `levels` |
//! | sentence-transformers | `anchor` (or `query`, `question`), `positive` (or `answer`, `document`, `passage`), `negative`, `negative_1`, ... |
//! | E5 | `user_query`, `positive_document`, `hard_negative_document` |
//! | Tevatron | `query`, `positive_passages`, `negative_passages`, each with `title` and `text` |
//! | MGH | `query`, `positive` (or `pos`), `negatives`: a list, hardest first, or `{"n1": .., "n4": ..}` |
//! | scored pairs | `sentence1`, `sentence2` ([`FIRST_TEXT`], [`SECOND_TEXT`]), `score` (or `label`) |
//! | labelled texts | `text`, or `title` and `abstract`, `text` or `body`; `label_text`, `label`, `labels` or `category` |
//! | texts (for distillation) | `text`, or plain lines |
//!
//! Rows with a query may name their task: `instruction`, FlagEmbedding's `prompt`, E5's `task`; pairs and
//! labelled texts by `instruction`.

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
    /// `anchor`, `positive`, `negative`, `negative_1`, ...; also E5's names.
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
    Scored {
        /// The texts.
        pair: [String; 2],
        /// How alike they are.
        score: f64,
        /// The task's instruction, where the row has one.
        instruction: Option<String>,
    },
    /// A text and its label.
    Labelled {
        /// The text.
        text: String,
        /// Its class.
        label: String,
        /// The task's instruction, where the row has one.
        instruction: Option<String>,
    },
}

pub(super) const ANCHORS: [&str; 4] = ["anchor", "query", "question", "user_query"];
pub(super) const POSITIVES: [&str; 6] =
    ["positive", "pos", "answer", "document", "passage", "positive_document"];
/// Names of columns of negatives, perhaps with a number behind them.
const NEGATIVES: [&str; 3] = ["hard_negative_document", "hard_negative", "negative"];
/// Names of what a text is called and of what it says, which stand together in one text.
pub(super) const TITLED: [&str; 3] = ["abstract", "text", "body"];
pub(super) const LABELS: [&str; 4] = ["label_text", "label", "labels", "category"];
/// Names of a row's own instruction, where the row has a query.
const INSTRUCTIONS: [&str; 3] = ["instruction", "prompt", "task"];

/// Names that a pair's first text has in the data sets that there are, for training and evaluation.
pub const FIRST_TEXT: [&str; 4] = ["sentence1", "text1", "sent1", "sentence_A"];
/// Names of its second text.
pub const SECOND_TEXT: [&str; 4] = ["sentence2", "text2", "sent2", "sentence_B"];
/// Names of how alike the two are.
pub const PAIR_SCORE: [&str; 3] = ["score", "similarity_score", "label"];

fn field<'a>(fields: &'a Fields, names: &[&str]) -> Option<&'a Value> {
    names.iter().filter_map(|name| fields.get(*name)).find(|value| !value.is_null())
}

/// Whether a row of a file says which class it is of.
pub(super) fn has_label(fields: &Fields) -> bool {
    LABELS.iter().any(|name| fields.contains_key(*name))
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
        } else if any(&ANCHORS) && any(&POSITIVES) && has("negatives") {
            Self::Graded
        } else if any(&ANCHORS) && has("pos") {
            Self::FlagEmbedding
        } else if any(&ANCHORS) && any(&POSITIVES) {
            Self::SentenceTransformers
        } else if any(&FIRST_TEXT) && any(&SECOND_TEXT) {
            Self::ScoredPairs
        } else if has_label(fields) && (has("text") || has("title") && any(&TITLED)) {
            Self::LabelledTexts
        } else if has("text") {
            Self::Texts
        } else {
            let result = fields.keys().cloned().collect::<Vec<_>>().join(", ");
            bail!(
                "rows have the fields {result}; training data are query/pos/neg, anchor/positive/negative, \
                 query/positive_passages/negative_passages, query/positive/negatives, \
                 sentence1/sentence2/score, text/label, title/abstract/label, or text alone (for distillation)"
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
        let example = match self {
            Self::FlagEmbedding => Example {
                pos: texts(fields, "pos")?,
                neg: texts(fields, "neg")?,
                levels: whole_numbers(fields, "levels")?,
                pos_scores: numbers(fields, "pos_scores")?,
                neg_scores: numbers(fields, "neg_scores")?,
                ..asked(fields)?
            },
            Self::SentenceTransformers => {
                let (neg, levels) = negative_columns(fields)?;
                Example { pos: positives(fields)?, neg, levels, ..asked(fields)? }
            }
            Self::Tevatron => Example {
                pos: texts(fields, "positive_passages")?,
                neg: texts(fields, "negative_passages")?,
                ..asked(fields)?
            },
            Self::Graded => {
                let (neg, levels) = graded(fields.get("negatives").unwrap_or(&Value::Null))?;
                Example { pos: positives(fields)?, neg, levels, ..asked(fields)? }
            }
            Self::ScoredPairs => {
                let pair = [text(fields, &FIRST_TEXT)?, text(fields, &SECOND_TEXT)?];
                let score = field(fields, &PAIR_SCORE).context("no field score or label")?;
                let score = number(score)
                    .with_context(|| format!("the score is {}, not a number", short(score)))?;
                if pair.iter().any(|text| text.trim().is_empty()) {
                    bail!("an empty text");
                }
                let instruction = instruction(fields, &INSTRUCTIONS[..1])?;
                return Ok(DataRow::Scored { pair, score, instruction });
            }
            Self::LabelledTexts => return labelled(fields, &[]),
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
        let levels = &example.levels;
        let is_level = |level: &usize| (1..=MOST_LEVELS).contains(level);
        if !levels.is_empty() && levels.len() != example.neg.len() || !levels.iter().all(is_level) {
            bail!(
                "levels must have as many entries as there are negatives, each from 1 (hardest) to {MOST_LEVELS}"
            );
        }
        Ok(DataRow::Example(example))
    }
}

/// A row's query and its instruction.
fn asked(fields: &Fields) -> Result<Example> {
    let query = text(fields, &ANCHORS)?;
    Ok(Example { query, instruction: instruction(fields, &INSTRUCTIONS)?, ..Example::default() })
}

fn instruction(fields: &Fields, names: &[&str]) -> Result<Option<String>> {
    match names
        .iter()
        .filter_map(|name| Some((name, fields.get(*name)?)))
        .find(|(_, value)| !value.is_null())
    {
        None => Ok(None),
        Some((_, Value::String(text))) => {
            Ok(Some(text.trim().to_string()).filter(|text| !text.is_empty()))
        }
        Some((name, other)) => bail!("the field {name:?} is {}, not a text", short(other)),
    }
}

fn positives(fields: &Fields) -> Result<Vec<String>> {
    let positive = field(fields, &POSITIVES)
        .with_context(|| format!("no field {}", POSITIVES.join(" or ")))?;
    one_or_many("positive", positive)
}

/// The names of the columns of negatives by their numbers, 0 being the one without.
pub(super) fn columns(fields: &Fields) -> Vec<(usize, &String)> {
    let number = |name: &String| {
        NEGATIVES.iter().find_map(|prefix| match name.strip_prefix(prefix)? {
            "" => Some(0),
            rest => rest.trim_start_matches('_').parse().ok(),
        })
    };
    let mut columns: Vec<(usize, &String)> =
        fields.keys().filter_map(|name| Some((number(name)?, name))).collect();
    columns.sort_by_key(|(number, _)| *number);
    columns
}

/// The texts of the columns `negative`, `negative_1`, ..., and their levels: the columns' numbers,
/// counted from the unnumbered one where there is one. A list in one column has no levels.
fn negative_columns(fields: &Fields) -> Result<(Vec<String>, Vec<usize>)> {
    let mut columns: Vec<(usize, Vec<String>)> = Vec::new();
    let mut unnumbered = 0;
    for (number, name) in self::columns(fields) {
        unnumbered |= usize::from(number == 0);
        columns.push((number, one_or_many(name, &fields[name])?));
    }
    let graded = columns.iter().all(|(_, texts)| texts.len() <= 1);
    let numbered = columns
        .into_iter()
        .flat_map(|(number, texts)| texts.into_iter().map(move |text| (text, number + unnumbered)));
    let (texts, levels): (Vec<String>, Vec<usize>) =
        numbered.filter(|(text, _)| !text.trim().is_empty()).unzip();
    Ok((texts, if graded { levels } else { Vec::new() }))
}

/// A labelled text. It is made of `names`, where they are given, else of the title and what it is
/// the title of, or of `text`.
///
/// # Errors
/// No text or no label, or one that is neither a text nor a number.
pub(super) fn labelled(fields: &Fields, names: &[String]) -> Result<DataRow> {
    let content = match names {
        [] => {
            let body = match fields.contains_key("title") {
                true => text(fields, &TITLED)?,
                false => text(fields, &["text"])?,
            };
            match fields.get("title").and_then(Value::as_str).map(str::trim) {
                Some(title) if !title.is_empty() => format!("{title} {body}"),
                _ => body,
            }
        }
        names => joined(fields, names)?,
    };
    // Without a text in the columns asked for it is left out and counted.
    if content.trim().is_empty() && names.is_empty() {
        bail!("an empty text");
    }
    let value =
        field(fields, &LABELS).with_context(|| format!("no field {}", LABELS.join(" or ")))?;
    let label = match value {
        Value::Array(all) if all.len() == 1 => label_of(&all[0]),
        value => label_of(value),
    };
    let label =
        label.with_context(|| format!("the label is {}, not one text or number", short(value)))?;
    let instruction = instruction(fields, &INSTRUCTIONS[..1])?;
    Ok(DataRow::Labelled { text: content, label, instruction })
}

fn label_of(value: &Value) -> Option<String> {
    match value {
        Value::String(label) if !label.trim().is_empty() => Some(label.clone()),
        Value::Number(label) => Some(label.to_string()),
        _ => None,
    }
}

/// Some fields of a row as one text; an empty one where it has none of them.
pub(super) fn joined(fields: &Fields, names: &[String]) -> Result<String> {
    let mut texts = Vec::new();
    for name in names {
        match fields.get(name) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => texts.push(text.trim()),
            Some(other) => bail!("the field {name:?} is {}, not a text", short(other)),
        }
    }
    texts.retain(|text| !text.is_empty());
    Ok(texts.join(" "))
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
pub(super) fn passage(value: &Value) -> Option<String> {
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

fn whole_numbers(fields: &Fields, name: &str) -> Result<Vec<usize>> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(value) => serde_json::from_value(value.clone()).map_err(|_| {
            anyhow!("the field {name:?} is {}, not a list of whole numbers", short(value))
        }),
    }
}

/// Highest level of a negative; a number above it is a mistake.
const MOST_LEVELS: usize = 1 << 10;

/// The level that a key of graded negatives names.
pub(super) fn leveled(name: &str) -> Result<usize> {
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    let level = digits.parse().ok().filter(|level| (1..=MOST_LEVELS).contains(level));
    level.with_context(|| format!("negatives has the key {name:?}; expected n1 (hardest), n2, ..."))
}

/// Graded negatives, hardest first, and their levels: a list, in which an empty text is a level that
/// is missing, or an object whose keys end in the level.
fn graded(value: &Value) -> Result<(Vec<String>, Vec<usize>)> {
    let mut graded: Vec<(usize, String)> = Vec::new();
    match value {
        Value::Object(levels) => {
            for (name, value) in levels {
                let level = leveled(name)?;
                if !value.is_null() {
                    let text = passage(value);
                    graded.push((
                        level,
                        text.with_context(|| format!("negatives.{name} is no text"))?,
                    ));
                }
            }
            graded.sort_by_key(|(level, _)| *level);
        }
        Value::Array(all) => {
            for (i, value) in all.iter().enumerate().filter(|(_, value)| !value.is_null()) {
                let text = passage(value).with_context(|| {
                    anyhow!("the field \"negatives\" is neither a text nor a list of texts")
                })?;
                graded.push((i + 1, text));
            }
        }
        other => graded.extend((1..).zip(one_or_many("negatives", other)?)),
    }
    graded.retain(|(_, text)| !text.trim().is_empty());
    let (levels, texts) = graded.into_iter().unzip();
    Ok((texts, levels))
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
            json!({"query": "q", "pos": ["p"], "negatives": {"n1": "a", "n2": "b"}}),
            json!({"user_query": "q", "positive_document": "p", "hard_negative_document": ["a", "b"]}),
            json!({"user_query": "q", "positive_document": "p", "hard_negative_1": "a",
                "hard_negative_2": "b"}),
        ] {
            let actual = read(value.clone()).unwrap();
            let DataRow::Example(mut actual) = actual else { panic!("{value}") };
            actual.neg.iter_mut().for_each(|text| *text = text.trim().to_string());
            actual.levels.clear();
            assert_eq!(DataRow::Example(actual), expected, "{value}");
        }
        let pair = |pair: [&str; 2], score| DataRow::Scored {
            pair: pair.map(String::from),
            score,
            instruction: None,
        };
        assert_eq!(
            read(json!({"sentence1": "a", "sentence2": "b", "score": "4.5"})).unwrap(),
            pair(["a", "b"], 4.5)
        );
        assert_eq!(
            read(json!({"sent1": "a", "sent2": "b", "label": 1})).unwrap(),
            pair(["a", "b"], 1.0)
        );
        assert_eq!(
            read(json!({"question": "q", "answer": "p"})).unwrap(),
            example("q", &["p"], &[])
        );
        // The triplets of echo embeddings and LLM2Vec.
        let echo = read(json!({"query": "q", "positive": "p", "negative": "n"})).unwrap();
        let DataRow::Example(echo) = echo else { panic!("{echo:?}") };
        assert_eq!((echo.neg, echo.levels), (vec!["n".to_string()], vec![1]));
    }

    #[test]
    fn levels_keep_their_numbers() {
        for (value, levels) in [
            (json!({"negatives": {"n1": "a", "n3": "c", "n4": "d"}}), &[1, 3, 4][..]),
            (json!({"negatives": {"n1": "a", "n2": "", "n3": null, "n4": "d"}}), &[1, 4]),
            (json!({"negatives": ["a", "", "c", " ", "e"]}), &[1, 3, 5]),
            (json!({"negatives": {}}), &[]),
            (json!({"negatives": null}), &[]),
            (json!({"negative_1": "a", "negative_3": "c"}), &[1, 3]),
            (json!({"negative_1": "a", "negative_2": "", "negative_3": "c"}), &[1, 3]),
            // An unnumbered column is the hardest.
            (json!({"negative": "a", "negative_1": "b", "negative_3": "d"}), &[1, 2, 4]),
            // A list is no grades.
            (json!({"negative": ["a", "b"]}), &[]),
            (json!({"neg": ["a", "d"], "levels": [1, 4]}), &[1, 4]),
        ] {
            let mut row = value.clone();
            row["query"] = "q".into();
            let positive = if row.get("neg").is_some() { "pos" } else { "positive" };
            row[positive] = json!(["p"]);
            let DataRow::Example(example) = read(row).unwrap() else { panic!("{value}") };
            assert_eq!(example.levels, levels, "{value}");
            assert!(levels.is_empty() || example.neg.len() == levels.len(), "{value}");
            assert!(example.neg.iter().all(|text| !text.trim().is_empty()), "{value}");
        }
    }

    #[test]
    fn a_row_names_its_task() {
        for (value, instruction) in [
            (json!({"query": "q", "pos": ["p"], "prompt": "find"}), Some("find")),
            (json!({"query": "q", "positive": "p", "task": "t", "instruction": " i "}), Some("i")),
            (json!({"user_query": "q", "positive_document": "p", "task": "t"}), Some("t")),
            (json!({"query": "q", "pos": ["p"], "prompt": "", "task": null}), None),
        ] {
            let DataRow::Example(example) = read(value.clone()).unwrap() else { panic!("{value}") };
            assert_eq!(example.instruction.as_deref(), instruction, "{value}");
        }
        let pair = json!({"text1": "a", "text2": "b", "score": 5, "instruction": "i", "task": "t"});
        let DataRow::Scored { instruction, .. } = read(pair).unwrap() else { panic!() };
        assert_eq!(instruction.as_deref(), Some("i"));
        let error = read(json!({"query": "q", "pos": ["p"], "task": 3})).unwrap_err();
        assert!(error.to_string().contains("task"), "{error}");
    }

    #[test]
    fn labelled_texts_may_have_a_title() {
        let labelled = |text: &str, label: &str| DataRow::Labelled {
            text: text.into(),
            label: label.into(),
            instruction: None,
        };
        for (value, text, label) in [
            (json!({"text": "a", "label": 3}), "a", "3"),
            (json!({"title": "t", "abstract": "a", "label": "x"}), "t a", "x"),
            (json!({"title": "t", "body": "a", "category": "x"}), "t a", "x"),
            (json!({"title": "", "text": "a", "labels": ["x"]}), "a", "x"),
            (json!({"text": "a", "label": 0, "label_text": "joy"}), "a", "joy"),
            (json!({"text": "a", "label_text": null, "labels": "x"}), "a", "x"),
        ] {
            assert_eq!(read(value.clone()).unwrap(), labelled(text, label), "{value}");
        }
        let fields = json!({"heading": " h", "summary": "s", "labels": "x"});
        let names = ["heading", "missing", "summary"].map(String::from);
        let row = super::labelled(fields.as_object().unwrap(), &names).unwrap();
        assert_eq!(row, labelled("h s", "x"));
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
            (json!({"query": "q", "pos": ["p"], "neg": ["n"], "levels": [1, 2]}), "levels"),
            (json!({"query": "q", "pos": ["p"], "neg": ["n"], "levels": [0]}), "levels"),
            (json!({"query": "q", "pos": ["p"], "neg": ["n"], "levels": ["a"]}), "levels"),
            (json!({"sentence1": "a", "sentence2": "b", "score": "high"}), "not a number"),
            (json!({"text": "  ", "label": "x"}), "empty text"),
            (json!({"text": "a", "labels": ["x", "y"]}), "not one text"),
            (json!({"query": "q", "positive": "p", "negatives": {"hard": "a"}}), "n1"),
            (json!({"query": "q", "positive": "p", "negatives": {"n0": "a"}}), "n1"),
        ] {
            let error = format!("{:#}", read(value.clone()).unwrap_err());
            assert!(error.contains(word), "{value}: {error}");
        }
    }
}
