//! A passage, and a file of them.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use kiln_data::text::{Columns, TextFile};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Split;

/// Between the parts of a title.
pub(super) const ABOVE: &str = " > ";

/// Part of a document that is searched and found as one. A line of JSON, which is also a line of a BEIR
/// corpus: `title + " " + text` is what is embedded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passage {
    /// The document's name, `#`, and a number from 1.
    #[serde(rename = "_id")]
    pub id: String,
    /// The document's title and the headings above the text, ` > ` between them; shortened where they are
    /// long.
    #[serde(default)]
    pub title: String,
    /// The text.
    pub text: String,
    /// The document's name.
    #[serde(default)]
    pub document: String,
    /// The headings above the text, outermost first, without the document's title.
    #[serde(default)]
    pub heading: Vec<String>,
    /// What the document is used for.
    #[serde(default)]
    pub split: Split,
    /// Tokens of title and text together, with those that the model puts around them.
    #[serde(default)]
    pub tokens: usize,
    /// Where the document came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The document's licence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub licence: Option<String>,
}

impl Passage {
    /// What is embedded.
    pub fn embedded(&self) -> String {
        embedded(&self.title, &self.text)
    }

    /// The document's title; `None` where it has none, or it was shortened with the headings.
    pub fn document_title(&self) -> Option<&str> {
        let headings = self.heading.join(ABOVE);
        let title = match headings.is_empty() {
            true => Some(self.title.as_str()),
            false => self.title.strip_suffix(&headings)?.strip_suffix(ABOVE),
        };
        title.filter(|title| !title.is_empty())
    }
}

/// Title and text as BEIR joins them.
pub(super) fn embedded(title: &str, text: &str) -> String {
    match title.is_empty() {
        true => text.to_string(),
        false => format!("{title} {text}"),
    }
}

/// The passages of a file, or the rows of a BEIR corpus, where each is a document by itself.
///
/// # Errors
/// A file that cannot be opened; a row without an id or a text.
pub fn read_passages(path: &Path) -> Result<impl Iterator<Item = Result<Passage>>> {
    let columns = Columns { fields: Vec::new(), optional: Vec::new() };
    let file = TextFile::open(&path.to_string_lossy(), columns)?;
    let label = file.label.clone();
    Ok(file.objects()?.map(move |row| {
        let row = row?;
        let place = || format!("{label}:{}: is no passage", row.number);
        let mut fields = row.fields;
        // What is null is not there.
        fields.retain(|_, value| !value.is_null());
        if let Some(Value::Number(number)) = fields.get("_id") {
            let text = number.to_string();
            fields.insert("_id".into(), text.into());
        }
        let mut passage: Passage = serde_json::from_value(Value::Object(fields))
            .map_err(|error| {
                anyhow!("{error} (a passage has _id and text; kiln chunk writes them)")
            })
            .with_context(place)?;
        if passage.document.is_empty() {
            passage.document.clone_from(&passage.id);
        }
        Ok(passage)
    }))
}

/// Passages that follow one another and belong to one document, together.
pub fn by_document(
    passages: impl Iterator<Item = Result<Passage>>,
) -> impl Iterator<Item = Result<Vec<Passage>>> {
    let mut passages = passages.peekable();
    std::iter::from_fn(move || {
        let first = match passages.next()? {
            Ok(first) => first,
            Err(error) => return Some(Err(error)),
        };
        let mut all = vec![first];
        let same =
            |next: &Result<Passage>| matches!(next, Ok(next) if next.document == all[0].document);
        let mut more = Vec::new();
        while let Some(Ok(next)) = passages.next_if(same) {
            more.push(next);
        }
        all.append(&mut more);
        Some(Ok(all))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passages_and_the_rows_of_a_corpus_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let passage = Passage {
            id: "a.md#1".into(),
            title: "T > H".into(),
            text: "x".into(),
            document: "a.md".into(),
            heading: vec!["H".into()],
            split: Split::Test,
            tokens: 3,
            origin: None,
            licence: Some("MIT".into()),
        };
        let line = serde_json::to_string(&passage).unwrap();
        let second = line.replace("a.md#1", "a.md#2");
        let corpus = "{\"_id\":7,\"title\":null,\"text\":\"row\",\"metadata\":{}}\n";
        std::fs::write(&path, format!("{line}\n{second}\n{corpus}")).unwrap();
        let read: Result<Vec<Vec<Passage>>> = by_document(read_passages(&path).unwrap()).collect();
        let read = read.unwrap();
        assert_eq!((read[0].len(), &read[0][0]), (2, &passage));
        assert_eq!((read[1][0].document.as_str(), read[1][0].split), ("7", Split::Train));
        assert_eq!((passage.document_title(), read[1][0].document_title()), (Some("T"), None));
        std::fs::write(&path, "{\"text\":\"x\"}\n").unwrap();
        let error = format!("{:#}", read_passages(&path).unwrap().next().unwrap().unwrap_err());
        assert!(error.contains("a.jsonl:1") && error.contains("_id"), "{error}");
    }
}
