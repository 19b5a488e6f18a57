//! Embeds files of texts, block by block, with a [`TextModel`], which hides the backend.

mod states;
mod text_model;

use std::ops::ControlFlow;

use anyhow::{Result, bail};
use kiln_embed::embedder::{EmbedOptions, Progress};

pub use states::{LayerStates, TextView};
pub use text_model::{Parameters, TextModel};

use crate::terminal::{Terminal, counted};
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
    let mut rows = 0;
    let done = embed_records(
        model,
        file.records()?,
        options,
        |_, error| Err(error),
        |texts| bar.set_position(texts as u64),
        |block| {
            rows += block.len();
            if rows > total {
                bail!(
                    "{}: has more than the {} that it had; it is being written to",
                    file.label,
                    counted(total, "text", "texts")
                );
            }
            each(block)
        },
    )?;
    bar.finish_and_clear();
    Ok(done)
}

/// Calls `each` with the rows of every block of records, in their order, and `progress` with how many are embedded.
/// Of a record that cannot be read, or whose text the model cannot take, `bad` is told the number, from 1, and why;
/// it is left out, unless `bad` gives an error, which ends all.
///
/// # Errors
/// [`kiln_embed::Error::Cancelled`] after Ctrl-C, what hinders the device, or `bad`'s or `each`'s own.
pub fn embed_records(
    model: &dyn TextModel,
    mut records: impl Iterator<Item = Result<Record>>,
    options: &EmbedOptions,
    mut bad: impl FnMut(usize, anyhow::Error) -> Result<()>,
    mut progress: impl FnMut(usize) + Send,
    mut each: impl FnMut(Vec<VectorRow>) -> Result<()>,
) -> Result<Progress> {
    let mut done = Progress::of(0);
    let mut row = 0;
    loop {
        let (mut block, mut texts, mut bytes) = (Vec::new(), Vec::new(), 0);
        while block.len() < BLOCK && bytes < most_bytes() {
            let Some(record) = records.next() else { break };
            row += 1;
            match record {
                Ok(record) => {
                    texts.push(record.joined());
                    bytes += texts.last().map_or(0, String::len);
                    block.push((row, record.id));
                }
                Err(error) => bad(row, error)?,
            }
        }
        if block.is_empty() {
            break;
        }
        let mut tokens = 0;
        let mut embed = |texts: &[String]| {
            model.embed(texts, options, |now| {
                progress(done.texts + now.texts);
                tokens = now.tokens;
            })
        };
        let vectors = match embed(&texts) {
            Ok(vectors) => vectors,
            Err(kiln_embed::Error::Cancelled) => return Err(kiln_embed::Error::Cancelled.into()),
            Err(error) => {
                // Which texts it is; where it is none of them, it is the device.
                let prompt = model.prompts().text(&options.prompt)?;
                let refused = |text: &String| model.tokenizer().encode(prompt, text).err();
                let refused: Vec<_> = texts.iter().map(refused).collect();
                if refused.iter().all(Option::is_none) {
                    return Err(error.into());
                }
                let mut left = (Vec::new(), Vec::new());
                for ((place, text), refused) in block.into_iter().zip(texts).zip(refused) {
                    match refused {
                        Some(error) => bad(place.0, error.into())?,
                        None => {
                            left.0.push(place);
                            left.1.push(text);
                        }
                    }
                }
                (block, texts) = left;
                embed(&texts)?
            }
        };
        done.texts += texts.len();
        done.tokens += tokens;
        let rows = block.into_iter().zip(texts).zip(vectors);
        each(rows.map(|(((_, id), text), vector)| VectorRow { id, text, vector }).collect())?;
    }
    done.total = done.texts;
    Ok(done)
}
