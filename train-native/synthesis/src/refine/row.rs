//! A row on its way through the filters: its texts, what of them is still there, and how it is written.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use kiln_data::data::{DataRow, Edit, Example, Fields, Part, RowFormat, text_hash};
use kiln_data::text::{Columns, Format, TextFile, Unreadable};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_128;

use crate::documents::Split;
use crate::words;

/// A positive or a negative of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Passage {
    /// The text.
    pub text: String,
    /// Its place among the row's positives or negatives as they came.
    pub place: usize,
    /// The score that the row itself gives it.
    pub score: Option<f32>,
}

/// A query with its positives and negatives, and the line that it came in.
#[derive(Debug, Clone, PartialEq)]
pub struct RefineRow {
    /// The row as it came, as JSON.
    line: String,
    /// Its fields.
    pub fields: Fields,
    format: RowFormat,
    /// The task, where the row names one.
    pub instruction: Option<String>,
    /// The query.
    pub query: String,
    /// The positives that are left.
    pub positives: Vec<Passage>,
    /// The negatives that are left.
    pub negatives: Vec<Passage>,
    /// How many positives and negatives it came with.
    pub came: [usize; 2],
    /// Its `type`.
    pub kind: Option<String>,
    /// Its `source`, or the name of its file.
    pub source: String,
    /// The name of its file.
    pub file: String,
    /// Its `split`: training where it names none, nothing where it names another than ours.
    pub split: Option<Split>,
    /// What is put behind each of its texts when it is written.
    pub mark: Option<String>,
}

/// What of a row is kept on disk between two passes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Resting {
    line: String,
    file: String,
    positives: Vec<usize>,
    negatives: Vec<usize>,
    mark: Option<String>,
}

/// The text of a field, where it has one.
fn named<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    fields.get(name)?.as_str().map(str::trim).filter(|text| !text.is_empty())
}

/// The last part of a file's path.
fn file_name(file: &str) -> String {
    Path::new(file).file_name().map_or(file.into(), |name| name.to_string_lossy().into_owned())
}

fn passages(texts: Vec<String>, scores: &[f32]) -> Vec<Passage> {
    let passage = |(place, text)| Passage { text, place, score: scores.get(place).copied() };
    texts.into_iter().enumerate().map(passage).collect()
}

impl RefineRow {
    /// Reads a line of a file of rows.
    ///
    /// # Errors
    /// No JSON object, or no query with a positive.
    pub fn of_line(line: String, file: &str) -> Result<Self> {
        let fields = kiln_data::text::object(&line).context("not a JSON object")?;
        Self::of_fields(line, fields, file)
    }

    fn of_fields(line: String, fields: Fields, file: &str) -> Result<Self> {
        let format = RowFormat::of(&fields)?;
        let example = match format {
            RowFormat::LabelledTexts | RowFormat::Texts => bail!(
                "the rows are {}; refine takes queries with positives, or scored pairs",
                format.name()
            ),
            format => match format.read(&fields)? {
                DataRow::Example(example) => example,
                DataRow::Scored { pair: [query, positive], score, instruction } => Example {
                    instruction,
                    pos_scores: vec![score as f32],
                    ..Example::new(query, positive, Vec::new())
                },
                DataRow::Labelled { .. } => bail!("a labelled text has no positive"),
            },
        };
        Ok(Self {
            line,
            format,
            instruction: example.instruction,
            query: example.query,
            came: [example.pos.len(), example.neg.len()],
            positives: passages(example.pos, &example.pos_scores),
            negatives: passages(example.neg, &example.neg_scores),
            kind: named(&fields, "type").map(String::from),
            source: match named(&fields, "source") {
                Some(source) => source.into(),
                None => file_name(file),
            },
            file: file_name(file),
            split: match fields.get("split") {
                Some(split) => Split::deserialize(split).ok(),
                None => Some(Split::Train),
            },
            mark: None,
            fields,
        })
    }

    /// A text field of the row.
    pub fn named(&self, name: &str) -> Option<&str> {
        named(&self.fields, name)
    }

    /// The texts of a field: one or several, without empty ones.
    pub fn texts(&self, name: &str) -> Vec<&str> {
        let values = match self.fields.get(name) {
            Some(Value::Array(all)) => all.as_slice(),
            Some(one) => std::slice::from_ref(one),
            None => &[],
        };
        let texts = values.iter().filter_map(|value| Some(value.as_str()?.trim()));
        texts.filter(|text| !text.is_empty()).collect()
    }

    /// A number field of the row.
    pub fn number(&self, name: &str) -> Option<f32> {
        let value = self.fields.get(name)?;
        let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())?;
        Some(number as f32).filter(|number| number.is_finite())
    }

    /// For [`Self::wake`].
    pub fn rest(self, file: &str) -> Resting {
        let places = |all: &[Passage]| all.iter().map(|one| one.place).collect();
        Resting {
            positives: places(&self.positives),
            negatives: places(&self.negatives),
            file: file.into(),
            line: self.line,
            mark: self.mark,
        }
    }

    /// The row that was put to rest.
    ///
    /// # Errors
    /// As [`Self::of_line`].
    pub fn wake(resting: Resting) -> Result<Self> {
        let mut row = Self::of_line(resting.line, &resting.file)?;
        let [positives, negatives] =
            [resting.positives, resting.negatives].map(HashSet::<usize>::from_iter);
        row.positives.retain(|one| positives.contains(&one.place));
        row.negatives.retain(|one| negatives.contains(&one.place));
        row.mark = resting.mark;
        Ok(row)
    }

    /// The line to write: as it came, where nothing changed.
    ///
    /// # Errors
    /// As [`RowFormat::edit`].
    pub fn kept(&self) -> Result<String> {
        let left = [self.positives.len(), self.negatives.len()];
        if left == self.came && self.mark.is_none() {
            return Ok(self.line.clone());
        }
        let mut fields = self.fields.clone();
        let more = |there: bool| match (there, &self.mark) {
            (false, _) => Edit::Drop,
            (true, Some(mark)) => Edit::Append(mark.clone()),
            (true, None) => Edit::Keep,
        };
        let [positives, negatives] = [&self.positives, &self.negatives]
            .map(|all| all.iter().map(|one| one.place).collect::<HashSet<usize>>());
        self.format.edit(&mut fields, &mut |part| match part {
            Part::Query => more(true),
            Part::Positive(place) => more(positives.contains(&place)),
            Part::Negative(place) => more(negatives.contains(&place)),
        })?;
        Ok(serde_json::to_string(&fields)?)
    }

    /// The line as it came, with the filter that dropped it.
    ///
    /// # Errors
    /// None that JSON text of an object has.
    pub fn dropped(&self, filter: &str, why: &str) -> Result<String> {
        let reason = json!({ "filter": filter, "why": why });
        let line = self.line.trim_end();
        match line.strip_suffix('}') {
            // The other fields stay in their order.
            Some(start) if !self.fields.contains_key("dropped") => {
                Ok(format!("{start}, \"dropped\": {reason}}}"))
            }
            _ => {
                let mut fields = self.fields.clone();
                fields.insert("dropped".into(), reason);
                Ok(serde_json::to_string(&fields)?)
            }
        }
    }
}

/// Calls `each` with the rows of a file. A row that cannot be read is an item too, and others follow.
///
/// # Errors
/// A file that cannot be read, or `each`'s own.
pub fn lines(
    file: &TextFile,
    each: &mut dyn FnMut(usize, Result<String>) -> Result<()>,
) -> Result<()> {
    if file.format() == Format::JsonLines {
        for line in file.numbered()? {
            match line {
                Ok((number, line)) => each(number, Ok(line))?,
                Err(error) if error.is::<Unreadable>() => return Err(error),
                Err(error) => each(0, Err(error))?,
            }
        }
        return Ok(());
    }
    for object in file.objects()? {
        match object {
            Ok(object) => each(object.number, Ok(Value::from(object.fields).to_string()))?,
            Err(error) if error.is::<Unreadable>() => return Err(error),
            Err(error) => each(0, Err(error))?,
        }
    }
    Ok(())
}

/// Opens a file of rows.
///
/// # Errors
/// As [`TextFile::open`].
pub fn open(path: &Path) -> Result<TextFile> {
    TextFile::open(&path.to_string_lossy(), Columns::required(&[]))
}

/// A number for a text that is the same for texts of the same plain words.
pub(super) fn same(text: &str) -> u128 {
    text_hash(&words::plain_words(text).join(" "))
}

/// One number for several, in order.
pub(super) fn hash_of(numbers: impl IntoIterator<Item = u128>) -> u128 {
    let bytes: Vec<u8> = numbers.into_iter().flat_map(u128::to_le_bytes).collect();
    xxh3_128(&bytes)
}

/// Whether a row's task or query asks for what is against something. English words count in their usual forms,
/// those of other languages as they are given.
pub(super) fn asks_refutation(row: &RefineRow, words: &[String]) -> bool {
    let instruction = row.instruction.as_deref().unwrap_or_default();
    let texts = [instruction, &row.query].map(words::spaced);
    let forms = words.iter().flat_map(|word| forms(word.trim()));
    forms
        .map(|form| words::spaced(&form))
        .any(|form| form.len() > 1 && texts.iter().any(|text| text.contains(&form)))
}

/// A verb as it may stand in a text, and the nouns of it.
fn forms(word: &str) -> Vec<String> {
    let ending = |stem: &str, endings: &[&str]| -> Vec<String> {
        endings.iter().map(|ending| format!("{stem}{ending}")).collect()
    };
    let mut forms =
        ending(word, &["", "s", "es", "ed", "ing", "ion", "ions", "ory", "ment", "ments"]);
    if let Some(stem) = word.strip_suffix('e') {
        forms.extend(ending(stem, &["ed", "ing", "ation", "ations"]));
    }
    if let Some(stem) = word.strip_suffix('y') {
        forms.extend(ending(stem, &["ies", "ied", "ial", "ials"]));
    }
    forms
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A row of a file `rows.jsonl`.
    pub(in crate::refine) fn row(value: Value) -> RefineRow {
        RefineRow::of_line(value.to_string(), "rows.jsonl").unwrap()
    }

    #[test]
    fn a_row_is_written_as_it_came() {
        let line = r#"{"z": 1.50, "query": "q", "pos": ["p"], "neg": ["a", "b"], "meta": {"b": 1, "a": 2}}"#;
        let row = RefineRow::of_line(line.into(), "f.jsonl").unwrap();
        assert_eq!(row.kept().unwrap(), line);
        assert_eq!(
            row.dropped("length", "too <long>").unwrap(),
            line.replace("2}}", r#"2}, "dropped": {"filter":"length","why":"too <long>"}}"#)
        );
        let again = RefineRow::wake(row.clone().rest("f.jsonl")).unwrap();
        assert_eq!(again, row);
        // Dropped before, by others.
        let again = RefineRow::of_line(row.dropped("a", "b").unwrap(), "f.jsonl").unwrap();
        let line: Value = serde_json::from_str(&again.dropped("c", "d").unwrap()).unwrap();
        assert_eq!(line["dropped"]["filter"], "c");
    }

    #[test]
    fn what_is_left_of_a_row_survives_its_rest() {
        let mut row = row(
            json!({"query": "q", "positive": "p", "negatives": {"n1": "a", "n2": "b"}, "type": "short-long"}),
        );
        row.negatives.remove(0);
        row.mark = Some(" [1]".into());
        let row = RefineRow::wake(row.rest("rows.jsonl")).unwrap();
        assert_eq!(row.kind.as_deref(), Some("short-long"));
        let line: Value = serde_json::from_str(&row.kept().unwrap()).unwrap();
        let expected = json!({"query": "q [1]", "positive": "p [1]", "negatives": {"n2": "b [1]"}, "type": "short-long"});
        assert_eq!(line, expected);
    }

    #[test]
    fn pairs_are_rows_and_labelled_texts_are_not() {
        let pair = row(json!({"sentence1": "a", "sentence2": "b", "score": 3.5}));
        assert_eq!((pair.query.as_str(), pair.positives[0].score), ("a", Some(3.5)));
        let error = |line: &str| format!("{:#}", RefineRow::of_line(line.into(), "f").unwrap_err());
        assert!(error(r#"{"text": "a", "label": "b"}"#).contains("queries with positives"));
        assert!(error("[1]").contains("JSON object"));
    }

    #[test]
    fn equal_texts_are_equal_whatever_their_signs() {
        assert_eq!(same("  Hello,\n  WORLD! "), same("hello world"));
        assert_ne!(same("C++"), same("C#"));
        assert_ne!(same("!"), same("?"));
        assert_eq!(same("One, two, (three) four; FIVE."), same("one two three four five"));
        // Signs tell long texts apart as well.
        let asks = |name: &str| same(&format!("how do I write a loop in {name}?"));
        assert_ne!(asks("C++"), asks("C#"));
    }
}
