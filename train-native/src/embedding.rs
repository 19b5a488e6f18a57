//! Embeds the texts of files, block by block.

use std::path::Path;

use anyhow::Result;
use burn::tensor::backend::Backend;
use kiln_core::embedder::{EmbedOptions, Embedder, Progress};

use crate::interrupt;
use crate::terminal::Terminal;
use crate::text::{Record, TextFile};
use crate::vectors::{Row, VectorWriter};

/// Texts that are sorted by length together and held in memory at once.
pub const BLOCK: usize = 4096;

/// Calls `each` with the rows of every block of a file, in the file's order.
///
/// # Errors
/// A text that cannot be read, [`kiln_core::Error::Cancelled`] after Ctrl-C, or `each`'s own.
pub fn embed_blocks<B: Backend>(
    embedder: &Embedder<B>,
    file: &TextFile,
    total: usize,
    options: &EmbedOptions,
    terminal: Terminal,
    mut each: impl FnMut(Vec<Row>) -> Result<()>,
) -> Result<Progress> {
    let bar = terminal.progress(total as u64, "embedding");
    let mut done = Progress {
        texts: 0,
        total,
        tokens: 0,
    };
    let mut records = file.records()?;
    loop {
        let block: Vec<Record> = records.by_ref().take(BLOCK).collect::<Result<_>>()?;
        if block.is_empty() {
            break;
        }
        let texts: Vec<String> = block.iter().map(Record::joined).collect();
        let mut tokens = 0;
        let vectors = embedder.embed(&texts, options, |progress| {
            bar.set_position((done.texts + progress.texts) as u64);
            tokens = progress.tokens;
            interrupt::flow()
        })?;
        done.texts += texts.len();
        done.tokens += tokens;
        let rows = block.into_iter().zip(texts).zip(vectors);
        each(
            rows.map(|((record, text), vector)| Row {
                id: record.id,
                text,
                vector,
            })
            .collect(),
        )?;
    }
    bar.finish_and_clear();
    Ok(done)
}

/// Embeds a file into a vector file.
///
/// # Errors
/// As [`embed_blocks`], and a target that cannot be written.
pub fn embed_file<B: Backend>(
    embedder: &Embedder<B>,
    texts: &TextFile,
    total: usize,
    output: &Path,
    options: &EmbedOptions,
    terminal: Terminal,
) -> Result<Progress> {
    let mut writer = VectorWriter::create(output, total, embedder.dimensions(options))?;
    let done = embed_blocks(embedder, texts, total, options, terminal, |rows| {
        writer.write(&rows)
    })?;
    writer.finish()?;
    Ok(done)
}
