//! What an answer becomes: an example for training, or a reason why it is none.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::draw::Words;
use super::kind::ExampleKind;
use crate::documents::Split;
use crate::language::Language;
use crate::llm::{Answer, Finish, Usage, object, value};
use crate::words;

/// Letters of a text whose language is told by itself.
const LONG: usize = 200;
/// The instruction of examples of similar texts.
const SIMILAR: &str = "Retrieve semantically similar text.";
/// The instruction of translations.
const TRANSLATED: &str = "Retrieve parallel sentences.";
/// The instruction of queries for a corpus.
const CORPUS: &str = "Given a query, retrieve passages that answer it.";

/// An example, with where it comes from; training reads it as it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SynthesizedRow {
    /// The task.
    pub instruction: String,
    /// The query.
    pub query: String,
    /// Its positives.
    pub pos: Vec<String>,
    /// Its one negative, where negatives have no levels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub neg: Vec<String>,
    /// Its negatives by level: n1 is the hardest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub negatives: BTreeMap<String, String>,
    /// Kind of the example.
    #[serde(rename = "type")]
    pub kind: String,
    /// Language of the documents (ISO 639-1).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub language: String,
    /// Model that wrote it.
    pub generator: String,
    /// Template and its version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prompt_version: String,
    /// Seed of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Tokens of prompt and answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Usage>,
    /// Similarity that the positive was to have (1 to 5), of similar texts and translations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positive_score: Option<f32>,
    /// Similarity that the nearest negative was to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub negative_score: Option<f32>,
    /// Passage or row that it was made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Document that the passage is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
    /// The part of the corpus that the document belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
}

/// Why an answer is no example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// The model refused.
    Refused,
    /// The answer was cut off at the limit of tokens, and is no JSON.
    Cut,
    /// It is not the JSON that was asked for.
    NotJson,
    /// A key is missing, or has no text with a word.
    Keys,
    /// A negative says the same as another, as the query or as a positive.
    Repeats,
    /// A text has less than half or more than one and a half of the words that were asked for.
    Length,
    /// A label stands in the text.
    LabelInText,
    /// The text is in another language.
    Language,
    /// The query was there before.
    Duplicate,
    /// A text stands in evaluation data.
    Leak,
}

/// Which checks are left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedChecks {
    /// Words are not counted.
    pub length: bool,
    /// Languages are not told.
    pub language: bool,
}

/// What is known of an example before it is written.
pub(super) struct Wanted<'a> {
    pub(super) kind: ExampleKind,
    pub(super) levels: usize,
    pub(super) language: Language,
    pub(super) query: Words,
    pub(super) documents: Words,
    pub(super) left_out: SkippedChecks,
    /// Most queries of a passage.
    pub(super) queries: usize,
    pub(super) task: Option<&'a str>,
    /// A pair that there is: instruction, query, positive; of a passage the positive alone.
    pub(super) given: Option<[&'a str; 3]>,
}

/// The tasks in an answer of stage 1: an object of a list, or the list.
pub(super) fn tasks(answer: &Answer) -> Vec<String> {
    let listed = |value: &Value| value.get("tasks").unwrap_or(value).as_array().cloned();
    let found = value(&answer.text, |value| {
        listed(value).is_some_and(|list| list.iter().any(Value::is_string))
    });
    let list = found.as_ref().and_then(listed).unwrap_or_default();
    let tasks = list
        .iter()
        .filter_map(Value::as_str)
        .map(|task| task.split_whitespace().collect::<Vec<_>>().join(" "));
    // A sentence, and no essay.
    tasks.filter(|task| (10..=600).contains(&task.len())).collect()
}

/// The texts of an answer: queries with what all of them share.
#[derive(Debug, PartialEq)]
pub(super) struct Texts {
    pub(super) instruction: String,
    pub(super) queries: Vec<String>,
    pub(super) positive: String,
    /// Hardest first.
    pub(super) negatives: Vec<String>,
}

/// Reads an answer, and refuses what is no good example.
pub(super) fn read(wanted: &Wanted<'_>, answer: &Answer) -> Result<Texts, Rejection> {
    let keys = wanted.kind.keys(wanted.levels);
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    if answer.finish == Finish::Refused {
        return Err(Rejection::Refused);
    }
    let Some(found) = object(&answer.text, &names[..1]) else {
        return Err(if answer.finish == Finish::Length {
            Rejection::Cut
        } else {
            Rejection::NotJson
        });
    };
    let texts = texts(wanted, &names, &found)?;
    check(wanted, &texts)?;
    Ok(texts)
}

fn texts(
    wanted: &Wanted<'_>,
    keys: &[&str],
    found: &Map<String, Value>,
) -> Result<Texts, Rejection> {
    let text = |key: &str| {
        let text = found.get(key).and_then(Value::as_str).map(str::trim);
        text.filter(|text| has_word(text)).map(String::from).ok_or(Rejection::Keys)
    };
    let all = |keys: &[&str]| keys.iter().map(|key| text(key)).collect::<Result<Vec<_>, _>>();
    let given = wanted.given.unwrap_or_default().map(String::from);
    let [instruction, query, positive] = given;
    match wanted.kind {
        ExampleKind::Corpus => {
            let queries = found.get("queries").and_then(Value::as_array).ok_or(Rejection::Keys)?;
            let queries = queries.iter().filter_map(Value::as_str).map(str::trim);
            let mut seen = HashSet::new();
            let queries: Vec<String> = queries
                .filter(|query| has_word(query) && seen.insert(words::hash(query)))
                .take(wanted.queries)
                .map(String::from)
                .collect();
            if queries.is_empty() {
                return Err(Rejection::Keys);
            }
            Ok(Texts { instruction: CORPUS.into(), queries, positive, negatives: all(&keys[1..])? })
        }
        ExampleKind::Regenerated => {
            Ok(Texts { instruction, queries: vec![query], positive, negatives: all(keys)? })
        }
        kind => {
            let instruction = match kind {
                ExampleKind::Sts => SIMILAR,
                ExampleKind::Bitext => TRANSLATED,
                _ => wanted.task.unwrap_or_default(),
            };
            Ok(Texts {
                instruction: instruction.into(),
                queries: vec![text(keys[0])?],
                positive: text(keys[1])?,
                negatives: all(&keys[2..])?,
            })
        }
    }
}

fn has_word(text: &str) -> bool {
    words::count(text) > 0
}

fn check(wanted: &Wanted<'_>, texts: &Texts) -> Result<(), Rejection> {
    let mut seen: HashSet<u128> = texts.queries.iter().map(|query| words::hash(query)).collect();
    let documents = || [&texts.positive].into_iter().chain(&texts.negatives);
    if !documents().all(|text| seen.insert(words::hash(text))) {
        return Err(Rejection::Repeats);
    }
    let kind = wanted.kind;
    if !wanted.left_out.length {
        // What a passage or a pair brings along is as long as it is; so are labels.
        let own = matches!(kind, ExampleKind::ShortLong | ExampleKind::LongLong);
        let queries = texts.queries.iter().all(|query| wanted.query.admit(query));
        if !queries || (own && !documents().all(|text| wanted.documents.admit(text))) {
            return Err(Rejection::Length);
        }
    }
    if kind == ExampleKind::LongShort {
        let text = &texts.queries[0];
        if documents().any(|label| words::gives_away(text, label)) {
            return Err(Rejection::LabelInText);
        }
    }
    if !wanted.left_out.language {
        let queries = || Some(texts.queries.join("\n"));
        let written: Vec<String> = match kind {
            // The pair's own language, which nobody has named.
            ExampleKind::Regenerated => Vec::new(),
            // The first text is in another language on purpose.
            ExampleKind::Bitext => documents().cloned().collect(),
            // The passage was there before.
            ExampleKind::Corpus => queries().into_iter().chain(texts.negatives.clone()).collect(),
            _ => queries().into_iter().chain(documents().cloned()).collect(),
        };
        // Together, as most are too short to tell alone; and long ones alone, whose language would stand for all.
        let all = written.join("\n");
        let long = written.iter().filter(|text| text.len() >= LONG);
        let is_other = |text: &String| wanted.language.speaks(text) == Some(false);
        if is_other(&all) || written.len() > 1 && long.into_iter().any(is_other) {
            return Err(Rejection::Language);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(text: &str, finish: Finish) -> Answer {
        Answer { text: text.into(), finish, usage: Usage::default(), model: "m".into() }
    }

    fn wanted(kind: ExampleKind, levels: usize) -> Wanted<'static> {
        Wanted {
            kind,
            levels,
            language: Language::ENGLISH,
            query: Words::ANY,
            documents: Words::ANY,
            left_out: SkippedChecks::default(),
            queries: 2,
            task: Some("Given a question, find answers."),
            given: None,
        }
    }

    fn read_json(wanted: &Wanted<'_>, value: Value) -> Result<Texts, Rejection> {
        read(wanted, &answer(&value.to_string(), Finish::Stop))
    }

    #[test]
    fn every_long_text_is_in_the_language() {
        let english = "The harbour wall was built of granite, and the fishermen who live behind it mend their nets there in \
                       the winter, when the boats lie on the shore and the wind comes from the north for weeks.";
        let german = "Die Hafenmauer wurde aus Granit gebaut, und die Fischer, die hinter ihr wohnen, flicken dort im Winter \
                      ihre Netze, wenn die Boote am Ufer liegen und der Wind wochenlang aus dem Norden kommt, kalt und nass.";
        let value = |positive: &str| {
            json!({"user_query": "why is the wall of the harbour made of granite?", "positive_document": positive,
                "hard_negative_document": format!("{english} {english} {english} {english} It is so still.")})
        };
        let kind = wanted(ExampleKind::ShortLong, 1);
        read_json(&kind, value(english)).unwrap();
        assert_eq!(read_json(&kind, value(german)), Err(Rejection::Language));
    }

    #[test]
    fn a_good_answer_is_an_example() {
        let value = json!({"user_query": " why is the sky blue ", "positive_document": "Air scatters short waves.",
            "hard_negative_document": "The sea is deep.", "more": 1});
        let texts = read_json(&wanted(ExampleKind::ShortLong, 1), value).unwrap();
        assert_eq!((texts.queries[0].as_str(), texts.negatives.len()), ("why is the sky blue", 1));
        let value = json!({"queries": ["?", "a river", "A river!", "the floods", "third"]});
        let passage =
            Wanted { given: Some(["", "", "The river floods."]), ..wanted(ExampleKind::Corpus, 1) };
        let texts = read_json(&passage, value).unwrap();
        assert_eq!(
            (texts.queries, texts.positive.as_str()),
            (vec!["a river".into(), "the floods".into()], "The river floods.")
        );
        let value = json!({"hard_negative_1": "a b", "hard_negative_2": "c d"});
        let pair = Wanted { given: Some(["i", "q", "p"]), ..wanted(ExampleKind::Regenerated, 2) };
        let texts = read_json(&pair, value).unwrap();
        assert_eq!((texts.instruction.as_str(), texts.negatives.len()), ("i", 2));
    }

    #[test]
    fn bad_answers_have_their_reasons() {
        let short_long = |query: &str, positive: &str, negative: &str| json!({"user_query": query, "positive_document": positive, "hard_negative_document": negative});
        let plain = wanted(ExampleKind::ShortLong, 1);
        let reject = |value: Value| read_json(&plain, value).unwrap_err();
        assert_eq!(reject(short_long("q", "same text", "Same text!")), Rejection::Repeats);
        assert_eq!(reject(short_long("same", "same", "n")), Rejection::Repeats);
        assert_eq!(reject(short_long("q", " ", "n")), Rejection::Keys);
        assert_eq!(reject(short_long("???", "p", "n")), Rejection::Keys);
        assert_eq!(
            reject(
                json!({"user_query": "q", "positive_document": ["p"], "hard_negative_document": "n"})
            ),
            Rejection::Keys
        );
        assert_eq!(reject(json!({"query": "q"})), Rejection::NotJson);
        let german = "Der Fluss überschwemmt jedes Jahr im Frühling die unteren Straßen der Stadt.";
        assert_eq!(
            reject(short_long(german, "Und noch ein Satz auf Deutsch, damit man es merkt.", "n")),
            Rejection::Language
        );
        assert_eq!(
            read(&plain, &answer("{\"user_query\": \"", Finish::Length)),
            Err(Rejection::Cut)
        );
        assert_eq!(read(&plain, &answer("I cannot", Finish::Refused)), Err(Rejection::Refused));
        let label = json!({"input_text": "The guest was very content.", "label": "Very content", "misleading_label": "angry"});
        assert_eq!(
            read_json(&wanted(ExampleKind::LongShort, 1), label),
            Err(Rejection::LabelInText)
        );
        let long = Wanted {
            query: Words::LONG,
            documents: Words::LONG,
            ..wanted(ExampleKind::LongLong, 1)
        };
        let value = json!({"input": "too short", "positive_document": "much too short"});
        assert_eq!(read_json(&long, value.clone()), Err(Rejection::Length));
        let left_out = SkippedChecks { length: true, language: true };
        assert!(read_json(&Wanted { left_out, ..long }, value).is_ok());
    }

    #[test]
    fn tasks_are_read_from_objects_and_lists() {
        let of = |text: &str| tasks(&answer(text, Finish::Stop));
        assert_eq!(
            of(r#"{"tasks": ["Given a word,  find its meaning.", "x", 3]}"#),
            ["Given a word, find its meaning."]
        );
        assert_eq!(of(r#"Here: ["Given a word, find its meaning."]"#).len(), 1);
        assert!(of("none").is_empty() && of("[1, 2]").is_empty());
    }
}
