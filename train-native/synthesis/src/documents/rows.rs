//! Rows of JSONL, CSV, TSV and Parquet: each is a document.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use kiln_data::text::{Columns, Object, Stream, TextFile};
use kiln_terminal::terminal::field;
use serde_json::Value;

use super::outline::Outline;
use super::{Document, Facts};

/// Fields that hold a row's text; the first that is there counts.
const TEXTS: [&str; 3] = ["text", "body", "content"];
/// Fields that an error names, and letters of each.
const SHOWN: usize = 12;
const SHOWN_LETTERS: usize = 40;

/// A file of rows.
pub(super) struct Rows {
    name: String,
    label: String,
    rows: Stream<Object>,
}

impl Rows {
    /// Opens a file by its name below the folder.
    pub(super) fn open(path: &Path, name: &str) -> Result<Self> {
        let columns = Columns { fields: Vec::new(), optional: Vec::new() };
        let place = path.to_str().with_context(|| {
            format!("{}: the name is no UTF-8; give the file another", path.display())
        })?;
        let file = TextFile::open(place, columns)?;
        let rows = file.objects()?;
        Ok(Self { name: name.into(), label: file.label, rows })
    }

    /// The next row; `None` behind the last. A row without a text has no section.
    pub(super) fn next(&mut self) -> Option<Result<Document>> {
        let row = self.rows.next()?;
        Some(row.and_then(|row| self.document(&row)))
    }

    fn document(&self, row: &Object) -> Result<Document> {
        let fields = &row.fields;
        let place = || format!("{}:{}", self.label, row.number);
        let Some(name) = TEXTS.iter().find(|name| fields.contains_key(**name)) else {
            let known = names(fields.keys());
            bail!(
                "{}: a document's text is in the field text, body or content, and the row has {known}; name the \
                 field so, or take the file away",
                place()
            );
        };
        let word = |name: &str| match fields.get(name) {
            Some(Value::String(text)) => Some(text.clone()),
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => None,
        };
        let text = match &fields[*name] {
            Value::String(text) => text.as_str(),
            Value::Null => "",
            _ => bail!("{}: the field {name:?} is no text", place()),
        };
        let mut facts = Facts::default();
        for name in ["title", "licence", "license", "url", "source"] {
            facts.note(name, &word(name).unwrap_or_default());
        }
        let id = word("_id").or_else(|| word("id")).filter(|id| !id.is_empty());
        let id = id.unwrap_or_else(|| row.number.to_string());
        let mut outline = Outline::default();
        outline.block(&text.replace("\r\n", "\n"));
        Ok(outline.finish(format!("{}:{}", self.name, field(&id)), facts))
    }
}

/// Names of fields, as far as a line holds them.
fn names<'a>(names: impl ExactSizeIterator<Item = &'a String>) -> String {
    let more = if names.len() > SHOWN { ", .." } else { "" };
    let shown = names.take(SHOWN).map(|name| match name.char_indices().nth(SHOWN_LETTERS) {
        Some((end, _)) => format!("{}..", &name[..end]),
        None => name.clone(),
    });
    shown.collect::<Vec<_>>().join(", ") + more
}
