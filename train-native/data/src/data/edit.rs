//! Changes single texts of a row and leaves everything else as it came.

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::format::{
    ANCHORS, FIRST_TEXT, Fields, POSITIVES, RowFormat, SECOND_TEXT, columns, leveled, passage,
};

/// A text of a row, numbered as [`RowFormat::read`] numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The query.
    Query,
    /// One of its positives.
    Positive(usize),
    /// One of its negatives.
    Negative(usize),
}

/// What becomes of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// It stays.
    Keep,
    /// It goes, with its scores and its level; the others keep theirs. A query stays.
    Drop,
    /// This is put behind it.
    Append(String),
}

impl RowFormat {
    /// Changes a row that [`Self::read`] has read. Of graded negatives in an object a key goes, in a list
    /// or a column the place stays empty, so that no other negative changes its level.
    ///
    /// # Errors
    /// A row that is of another format.
    pub fn edit(self, fields: &mut Fields, edit: &mut dyn FnMut(Part) -> Edit) -> Result<()> {
        let (query, positives) = match self {
            Self::FlagEmbedding => (&ANCHORS[..], &["pos"][..]),
            Self::SentenceTransformers | Self::Graded => (&ANCHORS[..], &POSITIVES[..]),
            Self::Tevatron => (&ANCHORS[..], &["positive_passages"][..]),
            Self::ScoredPairs => (&FIRST_TEXT[..], &SECOND_TEXT[..]),
            Self::LabelledTexts | Self::Texts => bail!("{} have no positives", self.name()),
        };
        if let Edit::Append(more) = edit(Part::Query) {
            append(present(fields, query)?, &more);
        }
        let mut number = 0;
        let mut of_positive = || {
            number += 1;
            edit(Part::Positive(number - 1))
        };
        let gone = edit_texts(present(fields, positives)?, &mut of_positive);
        retain(fields, "pos_scores", &gone);
        let mut number = 0;
        let mut of_negative = || {
            number += 1;
            edit(Part::Negative(number - 1))
        };
        match self {
            Self::FlagEmbedding => {
                let Some(negatives) = fields.get_mut("neg") else { return Ok(()) };
                let gone = edit_texts(negatives, &mut of_negative);
                retain(fields, "neg_scores", &gone);
                if fields.get("levels").is_some_and(|levels| levels.is_array()) {
                    retain(fields, "levels", &gone);
                } else if gone.iter().any(|gone| *gone) {
                    let kept = gone.iter().zip(1..).filter(|(gone, _)| !**gone);
                    fields.insert("levels".into(), kept.map(|(_, level)| level).collect());
                }
            }
            Self::Tevatron => {
                if let Some(negatives) = fields.get_mut("negative_passages") {
                    edit_texts(negatives, &mut of_negative);
                }
            }
            Self::SentenceTransformers => {
                let names: Vec<String> =
                    columns(fields).into_iter().map(|(_, name)| name.clone()).collect();
                for name in names {
                    if let Some(column) = fields.get_mut(&name) {
                        edit_column(column, &mut of_negative);
                    }
                }
            }
            Self::Graded => edit_graded(fields, &mut of_negative)?,
            Self::ScoredPairs | Self::LabelledTexts | Self::Texts => {}
        }
        Ok(())
    }
}

/// The field of the first of some names that has a value.
fn present<'a>(fields: &'a mut Fields, names: &[&str]) -> Result<&'a mut Value> {
    let there = |name: &&&str| fields.get(**name).is_some_and(|value| !value.is_null());
    let name = names.iter().find(there).copied();
    name.and_then(|name| fields.get_mut(name))
        .with_context(|| format!("no field {}", names.join(" or ")))
}

fn append(value: &mut Value, more: &str) {
    match value {
        Value::String(text) => text.push_str(more),
        Value::Number(number) => *value = format!("{number}{more}").into(),
        Value::Object(passage) => {
            if let Some(Value::String(text)) = passage.get_mut("text") {
                text.push_str(more);
            }
        }
        _ => {}
    }
}

/// Changes a text, a list of texts or, from CSV, a list inside a text, and says which went.
fn edit_texts(value: &mut Value, edit: &mut dyn FnMut() -> Edit) -> Vec<bool> {
    match value {
        Value::Null => Vec::new(),
        Value::String(text) if text.is_empty() => Vec::new(),
        Value::Array(all) => {
            let mut gone = Vec::with_capacity(all.len());
            for one in all.iter_mut() {
                let edit = edit();
                gone.push(edit == Edit::Drop);
                if let Edit::Append(more) = edit {
                    append(one, &more);
                }
            }
            retain_list(all, &gone);
            gone
        }
        Value::String(text) => match serde_json::from_str::<Vec<String>>(text) {
            Ok(texts) => {
                let mut list = Value::from(texts);
                let gone = edit_texts(&mut list, edit);
                *value = list.to_string().into();
                gone
            }
            Err(_) => edit_one(value, edit),
        },
        _ => edit_one(value, edit),
    }
}

/// Changes one text. Where it goes, its place stays.
fn edit_one(value: &mut Value, edit: &mut dyn FnMut() -> Edit) -> Vec<bool> {
    let edit = edit();
    match &edit {
        Edit::Keep => {}
        Edit::Drop => *value = Value::Null,
        Edit::Append(more) => append(value, more),
    }
    vec![edit == Edit::Drop]
}

/// As [`edit_texts`]; blank texts of columns are none.
fn edit_column(value: &mut Value, edit: &mut dyn FnMut() -> Edit) {
    match value {
        // A blank text of a list is not seen by the reader.
        Value::Array(all) => {
            let mut gone = all.iter().map(is_blank).collect::<Vec<_>>();
            for (one, gone) in all.iter_mut().zip(&mut gone).filter(|(_, blank)| !**blank) {
                *gone = edit_one(one, edit)[0];
            }
            retain_list(all, &gone);
        }
        value if is_blank(value) => {}
        value => match value.as_str().map(serde_json::from_str::<Vec<String>>) {
            Some(Ok(texts)) => {
                let mut list = Value::from(texts);
                edit_column(&mut list, edit);
                *value = list.to_string().into();
            }
            _ => {
                edit_one(value, edit);
            }
        },
    }
}

fn is_blank(value: &Value) -> bool {
    passage(value).is_none_or(|text| text.trim().is_empty())
}

fn retain_list(all: &mut Vec<Value>, gone: &[bool]) {
    let mut gone = gone.iter();
    all.retain(|_| !gone.next().copied().unwrap_or(false));
}

/// Keeps the items of a list that belong to the texts that stay.
fn retain(fields: &mut Fields, name: &str, gone: &[bool]) {
    if let Some(Value::Array(all)) = fields.get_mut(name) {
        retain_list(all, gone);
    }
}

/// Changes a list in which an empty text is a level that is missing.
fn edit_levels(all: &mut [Value], edit: &mut dyn FnMut() -> Edit) {
    for value in all.iter_mut().filter(|value| !is_blank(value)) {
        match edit() {
            Edit::Keep => {}
            Edit::Append(more) => append(value, &more),
            Edit::Drop => *value = "".into(),
        }
    }
}

fn edit_graded(fields: &mut Fields, edit: &mut dyn FnMut() -> Edit) -> Result<()> {
    match fields.get_mut("negatives") {
        Some(Value::Object(all)) => {
            let there = all.iter().filter(|(_, value)| !is_blank(value));
            let mut names: Vec<(usize, String)> =
                there.map(|(name, _)| Ok((leveled(name)?, name.clone()))).collect::<Result<_>>()?;
            names.sort_by_key(|(level, _)| *level);
            for (_, name) in names {
                match (edit(), all.get_mut(&name)) {
                    (Edit::Append(more), Some(value)) => append(value, &more),
                    (Edit::Drop, Some(_)) => {
                        all.remove(&name);
                    }
                    (Edit::Keep, _) | (_, None) => {}
                }
            }
        }
        Some(Value::Array(all)) => edit_levels(all, edit),
        Some(value) => {
            let list = value.as_str().map(serde_json::from_str::<Vec<String>>);
            if let Some(Ok(texts)) = list {
                let mut all: Vec<Value> = texts.into_iter().map(Value::from).collect();
                edit_levels(&mut all, edit);
                *value = Value::Array(all).to_string().into();
            } else {
                edit_column(value, edit);
            }
        }
        None => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DataRow, Example};
    use serde_json::json;

    /// A row without some negatives, as it is written and as it is read again.
    fn without(row: Value, gone: &[usize]) -> (Value, Example) {
        let mut fields = row.as_object().unwrap().clone();
        let format = RowFormat::of(&fields).unwrap();
        let drop = |part| match part {
            Part::Negative(i) if gone.contains(&i) => Edit::Drop,
            _ => Edit::Keep,
        };
        let before = read(format, &fields);
        format.edit(&mut fields, &mut { drop }).unwrap();
        let after = read(format, &fields);
        let kept = before.neg.iter().enumerate().filter(|(i, _)| !gone.contains(i));
        assert_eq!(after.neg, kept.map(|(_, text)| text.clone()).collect::<Vec<_>>());
        (fields.into(), after)
    }

    fn read(format: RowFormat, fields: &Fields) -> Example {
        match format.read(fields).unwrap() {
            DataRow::Example(example) => example,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_negative_goes_and_the_others_keep_their_levels() {
        let (row, again) = without(
            json!({"query": "q", "pos": ["p"], "neg": ["a", "b", "c"], "neg_scores": [3, 2, 1], "x": {"y": 1}}),
            &[1],
        );
        let expected = json!({"query": "q", "pos": ["p"], "neg": ["a", "c"], "neg_scores": [3, 1], "levels": [1, 3],
            "x": {"y": 1}});
        assert_eq!((row, again.levels), (expected, vec![1, 3]));

        let graded =
            json!({"query": "q", "positive": "p", "negatives": {"n1": "a", "n2": "b", "n4": "d"}});
        let (row, again) = without(graded, &[1]);
        assert_eq!(row["negatives"], json!({"n1": "a", "n4": "d"}));
        assert_eq!(again.levels, [1, 4]);
        let list = json!({"query": "q", "positive": "p", "negatives": ["a", "b", "c"]});
        let (row, again) = without(list, &[0]);
        assert_eq!((&row["negatives"], again.levels), (&json!(["", "b", "c"]), vec![2, 3]));
        let list = json!({"query": "q", "positive": "p", "negatives": "[\"a\", \"b\"]"});
        assert_eq!(without(list, &[0]).0["negatives"], "[\"\",\"b\"]");

        let columns = json!({"anchor": "q", "positive": "p", "negative": "a", "negative_1": "b", "negative_2": "", "negative_3": "d"});
        let (row, again) = without(columns, &[0, 2]);
        assert_eq!((&row["negative"], &row["negative_3"]), (&Value::Null, &Value::Null));
        assert_eq!((&row["negative_1"], again.levels), (&json!("b"), vec![2]));

        let passages = json!({"query": "q", "positive_passages": [{"title": "t", "text": "p"}],
            "negative_passages": [{"docid": "1", "text": "a"}, {"docid": "2", "text": "b"}]});
        let (row, _) = without(passages, &[0]);
        assert_eq!(row["negative_passages"], json!([{"docid": "2", "text": "b"}]));
    }

    #[test]
    fn positives_go_and_texts_grow() {
        let mut fields = json!({"query": "q", "pos": [{"title": "t", "text": "p"}, "r"], "pos_scores": [2, 1], "neg": "n"})
            .as_object()
            .unwrap()
            .clone();
        let edit = |part| match part {
            Part::Positive(1) => Edit::Drop,
            _ => Edit::Append("+".into()),
        };
        RowFormat::FlagEmbedding.edit(&mut fields, &mut { edit }).unwrap();
        let expected = json!({"query": "q+", "pos": [{"title": "t", "text": "p+"}], "pos_scores": [2], "neg": "n+"});
        assert_eq!(Value::from(fields), expected);
        let mut pair =
            json!({"sentence1": "a", "sentence2": "b", "score": 3}).as_object().unwrap().clone();
        RowFormat::ScoredPairs.edit(&mut pair, &mut |_| Edit::Append("+".into())).unwrap();
        assert_eq!(Value::from(pair), json!({"sentence1": "a+", "sentence2": "b+", "score": 3}));
        assert!(RowFormat::Texts.edit(&mut Fields::new(), &mut |_| Edit::Keep).is_err());
    }
}
