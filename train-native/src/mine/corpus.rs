//! The texts that a teacher is asked about.

use std::collections::HashSet;

use anyhow::Result;

use crate::data::{DataSet, Store, StoreWriter, text_hash};
use crate::terminal::Terminal;
use crate::text::{Columns, TextFile};

/// The texts to mine from, each once: those of a file (field `text`, optionally `title`), or those of the
/// examples, of scored pairs all of them.
///
/// # Errors
/// A file that cannot be read, or a full temporary folder.
pub fn corpus(file: Option<&str>, set: &DataSet, terminal: Terminal) -> Result<Store> {
    let mut writer = StoreWriter::new()?;
    let mut seen = HashSet::new();
    let mut push = |text: &String| -> Result<()> {
        if !text.trim().is_empty() && seen.insert(text_hash(text)) {
            writer.push(text)?;
        }
        Ok(())
    };
    match file {
        Some(file) => {
            let columns = Columns { fields: vec!["text".into()], optional: vec!["title".into()] };
            let file = TextFile::open(file, columns)?;
            let counter = terminal.counter("corpus");
            for record in file.records()? {
                let record = record?;
                counter.inc(1);
                // The title first, as BEIR does.
                let parts: Vec<&str> = record.fields.iter().rev().map(String::as_str).collect();
                push(&parts.join(" ").trim().to_string())?;
            }
            counter.finish_and_clear();
        }
        None => {
            if let Some(texts) = set.pair_texts() {
                (0..texts.len()).try_for_each(|row| push(&texts.get(row)?))?;
            }
            for i in 0..set.len() {
                let example = set.get(i)?;
                example.pos.iter().chain(&example.neg).try_for_each(&mut push)?;
            }
        }
    }
    writer.finish()
}
