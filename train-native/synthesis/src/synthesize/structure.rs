//! Examples from what documents are made of, where there is no model to ask.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kiln_data::vectors::NewFile;
use kiln_terminal::interrupt;
use kiln_terminal::terminal::Terminal;
use serde::Serialize;

use super::row::SynthesizedRow;
use super::run::ROWS;
use crate::documents::{Pair, Passage, by_document, read_passages, structure_pairs};
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

/// Writes pairs of titles, headings, questions and neighbouring passages ([`structure_pairs`]). A query that stands
/// above several texts says which one no more, and is left out.
///
/// # Errors
/// Passages that cannot be read, documents without any structure, or a folder that cannot be written.
pub fn from_structure(passages: &Path, folder: &Path, terminal: Terminal) -> Result<Structured> {
    let mut done = Structured { output: folder.join(ROWS), ..Structured::default() };
    // The text that a query stands above, or none, where there are several.
    let mut above: HashMap<u128, Option<u128>> = HashMap::new();
    each_document(passages, ("documents", terminal), &mut |document| {
        done.documents += 1;
        done.passages += document.len();
        for pair in structure_pairs(document) {
            let text = words::hash(&pair.pos);
            let known = above.entry(words::hash(&pair.query)).or_insert(Some(text));
            *known = known.filter(|known| *known == text);
        }
        Ok(())
    })?;
    let mut rows = NewFile::create(&done.output)?;
    each_document(passages, ("pairs", terminal), &mut |document| {
        for pair in structure_pairs(document) {
            // The first takes it.
            if above.get_mut(&words::hash(&pair.query)).and_then(Option::take).is_none() {
                done.duplicates += 1;
                continue;
            }
            let row = row(pair)?;
            *done.types.entry(row.kind.clone()).or_default() += 1;
            done.rows += 1;
            rows.line(&row)?;
        }
        Ok(())
    })?;
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

/// Goes through the documents of a file of passages.
fn each_document(
    passages: &Path,
    (what, terminal): (&str, Terminal),
    act: &mut dyn FnMut(&[Passage]) -> Result<()>,
) -> Result<()> {
    let counter = terminal.counter(what);
    for document in by_document(read_passages(passages)?) {
        if interrupt::asked() {
            return Err(kiln_embed::Error::Cancelled.into());
        }
        counter.inc(1);
        act(&document?)?;
    }
    counter.finish_and_clear();
    Ok(())
}

fn row(pair: Pair) -> Result<SynthesizedRow> {
    let kind = serde_json::to_value(pair.kind)?;
    Ok(SynthesizedRow {
        instruction: pair.instruction,
        query: pair.query,
        pos: vec![pair.pos],
        kind: kind.as_str().unwrap_or_default().into(),
        generator: "structure".into(),
        source: Some(pair.source),
        document: Some(pair.document),
        split: Some(pair.split),
        ..SynthesizedRow::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_above_several_texts_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("passages.jsonl");
        let passage = |document: &str, title: &str, text: &str| serde_json::json!({"_id": format!("{document}#1"), "document": document, "title": title, "text": text});
        let lines = [
            passage("a", "Summary", "The river floods the lower streets in spring."),
            passage("b", "Summary", "The ship carries tea and timber to the harbour."),
            passage("c", "Opening hours", "The museum is open from nine to five."),
            passage("d", "Opening hours", "The museum is open from nine to five."),
        ];
        std::fs::write(&path, lines.map(|line| line.to_string()).join("\n")).unwrap();
        let terminal = Terminal { json: false, quiet: true };
        let done = from_structure(&path, folder.path(), terminal).unwrap();
        assert_eq!((done.documents, done.rows, done.duplicates), (4, 1, 3));
        let rows = std::fs::read_to_string(folder.path().join(ROWS)).unwrap();
        assert!(rows.contains("Opening hours") && !rows.contains("Summary"), "{rows}");
    }
}
