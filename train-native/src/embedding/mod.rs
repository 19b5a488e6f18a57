//! Embeds many texts: all cores on the CPU, block by block from files.
//!
//! The functions that are generic over a backend are compiled once for each; callers that do not
//! train take a [`TextModel`], which hides it.

mod states;
mod text_model;

use std::sync::Mutex;

use anyhow::{Result, bail};
use kiln_embed::embedder::{BatchPlan, EmbedOptions, Embedder, Progress};
use kiln_embed::kernels::Kernels;
use kiln_embed::tokenizer::{TokenBatch, Tokens};
use rayon::prelude::*;

pub use states::{LayerStates, TextView};
pub use text_model::{OnProgress, Parameters, TextModel};

use crate::interrupt;
use crate::terminal::Terminal;
use crate::text::{Record, TextFile, most_bytes};
use crate::vectors::VectorRow;

/// Texts that are sorted by length together and held in memory at once, as long as they are not
/// longer than [`most_bytes`] in all.
pub const BLOCK: usize = 4096;

/// As [`Embedder::embed`], with tokenisation on all cores; on the CPU, where most of a layer's
/// operations use one core, the batches run side by side too.
///
/// # Errors
/// As [`Embedder::embed`]; [`kiln_embed::Error::Cancelled`] after Ctrl-C.
pub fn embed_texts<B: Kernels>(
    embedder: &Embedder<B>,
    texts: &[impl AsRef<str> + Sync],
    options: &EmbedOptions,
    progress: impl FnMut(Progress) + Send,
) -> kiln_embed::Result<Vec<Vec<f32>>> {
    embedder.check(options)?;
    let prompt = embedder.prompt(options)?;
    let tokens: Vec<Tokens> = texts
        .par_iter()
        .map(|text| embedder.tokenizer.encode(prompt, text.as_ref()))
        .collect::<kiln_embed::Result<_>>()?;
    embed_encoded(embedder, tokens, options, interrupt::asked, progress)
}

/// As [`embed_texts`], of texts that are tokens already. Before each batch it asks whether to stop.
///
/// # Errors
/// As [`Embedder::batch_vectors`]; [`kiln_embed::Error::Cancelled`] when told to stop.
pub fn embed_encoded<B: Kernels>(
    embedder: &Embedder<B>,
    tokens: Vec<Tokens>,
    options: &EmbedOptions,
    stop: fn() -> bool,
    progress: impl FnMut(Progress) + Send,
) -> kiln_embed::Result<Vec<Vec<f32>>> {
    let vectors = |batch: &TokenBatch, rows: &[usize]| embedder.batch_vectors(batch, rows, options);
    each_batch(embedder, tokens, options, stop, progress, vectors)
}

/// What `of_batch` makes of each text, batch by batch, in the texts' order.
///
/// # Errors
/// Those of `of_batch`; [`kiln_embed::Error::Cancelled`] when told to stop.
pub fn each_batch<B: Kernels, T: Send + Clone + Default>(
    embedder: &Embedder<B>,
    tokens: Vec<Tokens>,
    options: &EmbedOptions,
    stop: fn() -> bool,
    progress: impl FnMut(Progress) + Send,
    of_batch: impl Fn(&TokenBatch, &[usize]) -> kiln_embed::Result<Vec<T>> + Sync,
) -> kiln_embed::Result<Vec<T>> {
    let mut made = vec![T::default(); tokens.len()];
    let done = Progress { texts: 0, total: tokens.len(), tokens: 0 };
    let plan = BatchPlan::new(tokens, options.batch_tokens::<B>(1));
    let shared = Mutex::new((done, progress));
    let run = |rows: &Vec<usize>| {
        if stop() {
            return Err(kiln_embed::Error::Cancelled);
        }
        let batch = embedder.tokenizer.pad(&plan.rows(rows));
        let found = of_batch(&batch, rows)?;
        // A poisoned lock means that another batch panicked, and the panic is on its way.
        if let Ok(mut shared) = shared.lock() {
            let (done, progress) = &mut *shared;
            done.add(&batch);
            progress(*done);
        }
        Ok(found)
    };
    // Fewer batches than cores are worked on one after another, each by all cores.
    let found: Vec<Vec<T>> = if B::HOST && plan.batches().len() >= rayon::current_num_threads() {
        plan.batches().par_iter().with_max_len(1).map(run).collect::<kiln_embed::Result<_>>()?
    } else {
        plan.batches().iter().map(run).collect::<kiln_embed::Result<_>>()?
    };
    for (rows, batch) in plan.batches().iter().zip(found) {
        for (&row, of_text) in rows.iter().zip(batch) {
            made[row] = of_text;
        }
    }
    Ok(made)
}

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
    let mut done = Progress { texts: 0, total, tokens: 0 };
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
