//! Examples from what documents are made of, where there is no model to ask.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kiln_data::vectors::NewFile;
use kiln_terminal::interrupt;
use kiln_terminal::terminal::Terminal;
use serde::Serialize;

use super::row::Row;
use super::run::ROWS;
use crate::documents::{Pair, by_document, read_passages, structure_pairs};
use crate::words;

/// What the documents gave.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Structured {
    /// Documents.
    pub documents: usize,
    /// Passages.
    pub passages: usize,
    /// Rows that were written.
    pub rows: usize,
    /// Rows by what they were made of.
    pub types: BTreeMap<String, usize>,
    /// Pairs whose query was there before.
    pub duplicates: usize,
    /// Where the rows are.
    pub output: PathBuf,
}

/// Writes pairs of titles, headings, questions and neighbouring passages ([`structure_pairs`]).
///
/// # Errors
/// Passages that cannot be read, documents without any structure, or a folder that cannot be written.
pub fn from_structure(passages: &Path, folder: &Path, terminal: Terminal) -> Result<Structured> {
    let mut rows = NewFile::create(&folder.join(ROWS))?;
    let mut done = Structured { output: folder.join(ROWS), ..Structured::default() };
    let mut seen = HashSet::new();
    let counter = terminal.counter("documents");
    for document in by_document(read_passages(passages)?) {
        if interrupt::asked() {
            return Err(kiln_embed::Error::Cancelled.into());
        }
        let document = document?;
        counter.inc(1);
        done.documents += 1;
        done.passages += document.len();
        for pair in structure_pairs(&document) {
            if !seen.insert(words::hash(&pair.query)) {
                done.duplicates += 1;
                continue;
            }
            let row = row(pair)?;
            *done.types.entry(row.kind.clone()).or_default() += 1;
            done.rows += 1;
            rows.line(&row)?;
        }
    }
    counter.finish_and_clear();
    if done.rows == 0 {
        bail!(
            "{}: {} documents without title, heading, question or neighbouring passages give no pair; ask a model \
             (--llm)",
            passages.display(),
            done.documents
        );
    }
    rows.finish()?;
    Ok(done)
}

fn row(pair: Pair) -> Result<Row> {
    let kind = serde_json::to_value(pair.kind)?;
    Ok(Row {
        instruction: pair.instruction,
        query: pair.query,
        pos: vec![pair.pos],
        kind: kind.as_str().unwrap_or_default().into(),
        generator: "structure".into(),
        source: Some(pair.source),
        document: Some(pair.document),
        split: Some(pair.split),
        ..Row::default()
    })
}
