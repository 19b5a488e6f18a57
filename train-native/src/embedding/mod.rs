//! Embeds files of texts, block by block, with a [`TextModel`], which hides the backend.

mod states;
mod text_model;

use std::ops::ControlFlow;

use anyhow::{Result, bail};
use kiln_embed::embedder::{EmbedOptions, Progress};

pub use states::{LayerStates, TextView};
pub use text_model::{Parameters, TextModel};

use crate::terminal::Terminal;
use crate::text::{Record, TextFile, most_bytes};
use crate::vectors::VectorRow;

/// Texts that are sorted by length together and held in memory at once, as long as they are not
/// longer than [`most_bytes`] in all.
pub const BLOCK: usize = 4096;

/// Told after each batch how far an embedding run is.
pub type OnProgress<'a> = &'a mut (dyn FnMut(Progress) + Send);

/// Told after each batch how far an embedding run is; `Break` ends the run.
pub type GoesOn<'a> = &'a mut (dyn FnMut(Progress) -> ControlFlow<()> + Send);

/// Calls `each` with the rows of every block of a file, in the file's order.
///
/// # Errors
/// A text that cannot be read, [`kiln_embed::Error::Cancelled`] after Ctrl-C, or `each`'s own.
pub fn embed_blocks(
    model: &dyn TextModel,
    file: &TextFile,
    total: usize,
    options: &EmbedOptions,
    terminal: Terminal,
    mut each: impl FnMut(Vec<VectorRow>) -> Result<()>,
) -> Result<Progress> {
    let bar = terminal.progress(total as u64, "embedding");
    let mut done = Progress::of(total);
    let mut records = file.records()?;
    loop {
        let (mut block, mut texts, mut bytes) = (Vec::new(), Vec::new(), 0);
        while block.len() < BLOCK && bytes < most_bytes() {
            let Some(record) = records.next() else { break };
            let record = record?;
            texts.push(record.joined());
            bytes += texts.last().map_or(0, String::len);
            block.push(Record { fields: Vec::new(), ..record });
        }
        if block.is_empty() {
            break;
        }
        if done.texts + block.len() > total {
            bail!(
                "{}: has more than the {total} texts that it had; it is being written to",
                file.label
            );
        }
        let mut tokens = 0;
        let vectors = model.embed(&texts, options, |progress| {
            bar.set_position((done.texts + progress.texts) as u64);
            tokens = progress.tokens;
        })?;
        done.texts += texts.len();
        done.tokens += tokens;
        let rows = block.into_iter().zip(texts).zip(vectors);
        each(
            rows.map(|((record, text), vector)| VectorRow { id: record.id, text, vector })
                .collect(),
        )?;
    }
    bar.finish_and_clear();
    Ok(done)
}
