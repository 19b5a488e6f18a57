//! Many texts through a model: sorted by length, cut into padded batches, put back into their order.
//!
//! [`BatchPlan`] says what the batches are. Two ways lead through it, with the same batches and the same
//! order of results:
//!
//! * [`Embedder::embed_with`] and [`Embedder::each_batch`] compute all of them and return; on the CPU,
//!   where most of a layer's operations use one core, batches run side by side;
//! * [`EmbedRun`] computes one batch a call and waits for the device without blocking, for a page, whose
//!   thread must be given back in between. On the CPU all cores work on that one batch.

use std::ops::ControlFlow;
use std::sync::Mutex;

use burn::tensor::read_sync;

use super::{EmbedOptions, Embedder};
use crate::kernels::Kernels;
use crate::parallel::{cores, try_map, workers};
use crate::tokenizer::{TokenBatch, Tokenizer, Tokens};
use crate::{Error, Result};

/// How far an embedding run is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Texts done.
    pub texts: usize,
    /// Texts in all.
    pub total: usize,
    /// Tokens done, padding not counted.
    pub tokens: usize,
}

impl Progress {
    /// At the start of so many texts.
    pub fn of(total: usize) -> Self {
        Self { total, ..Self::default() }
    }

    /// Counts a batch as done.
    fn add(&mut self, batch: &TokenBatch) {
        self.texts += batch.rows();
        self.tokens += batch.count_tokens();
    }
}

/// Tokenised texts and the batches in which they are computed.
#[derive(Debug, Clone)]
struct BatchPlan {
    tokens: Vec<Tokens>,
    /// Rows of each batch.
    batches: Vec<Vec<usize>>,
}

impl BatchPlan {
    /// Sorts texts by length, longest first, and cuts them into batches of at most so many tokens.
    fn new(tokens: Vec<Tokens>, batch_tokens: usize) -> Self {
        Self { batches: batches(&tokens, batch_tokens), tokens }
    }

    /// The tokens of some rows, padded.
    fn pad(&self, rows: &[usize], tokenizer: &Tokenizer) -> TokenBatch {
        let tokens: Vec<&Tokens> = rows.iter().map(|&row| &self.tokens[row]).collect();
        tokenizer.pad(&tokens)
    }
}

/// Rows by length, longest first, cut where a batch would exceed the token budget; a single
/// text over the budget is a batch of its own.
fn batches(tokens: &[Tokens], budget: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..tokens.len()).collect();
    order.sort_by_key(|&row| std::cmp::Reverse(tokens[row].ids.len()));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let mut longest = 0;
    for row in order {
        match batches.last_mut() {
            Some(batch) if (batch.len() + 1) * longest <= budget => batch.push(row),
            _ => {
                longest = tokens[row].ids.len();
                batches.push(vec![row]);
            }
        }
    }
    batches
}

impl<B: Kernels> Embedder<B> {
    /// As [`Embedder::embed_with`], of texts that are tokens already.
    ///
    /// # Errors
    /// As [`Embedder::embed_with`].
    pub fn embed_encoded(
        &self,
        tokens: Vec<Tokens>,
        options: &EmbedOptions,
        progress: impl FnMut(Progress) -> ControlFlow<()> + Send,
    ) -> Result<Vec<Vec<f32>>> {
        self.each_batch(tokens, options, progress, |batch, rows| {
            read_sync(self.batch_vectors(batch, rows, options))
        })
    }

    /// What `of_batch` makes of each text, in the texts' order; it gets a padded batch and which text each
    /// of its rows is. `progress` is called after each batch and stops the run with `Break`.
    ///
    /// # Errors
    /// Those of `of_batch`, another number of results than a batch has texts, and [`Error::Cancelled`].
    pub fn each_batch<T: Send + Default>(
        &self,
        tokens: Vec<Tokens>,
        options: &EmbedOptions,
        progress: impl FnMut(Progress) -> ControlFlow<()> + Send,
        of_batch: impl Fn(&TokenBatch, &[usize]) -> Result<Vec<T>> + Sync,
    ) -> Result<Vec<T>> {
        run_batches::<B, T>(
            &self.tokenizer,
            tokens,
            options.batch_tokens::<B>(1),
            progress,
            of_batch,
        )
    }

    /// Begins a run that is computed batch by batch.
    ///
    /// # Errors
    /// As [`Embedder::tokenize`].
    pub fn begin(
        &self,
        texts: &[impl AsRef<str> + Sync],
        options: &EmbedOptions,
    ) -> Result<EmbedRun> {
        let tokens = self.tokenize(texts, options)?;
        let width = self.dimensions(options);
        Ok(EmbedRun {
            vectors: vec![0.0; texts.len() * width],
            width,
            done: Progress::of(texts.len()),
            next: 0,
            plan: BatchPlan::new(tokens, options.batch_tokens::<B>(cores())),
            options: options.clone(),
        })
    }
}

/// What `of_batch` makes of each row, in the rows' order; see [`Embedder::each_batch`].
pub(crate) fn run_batches<B: Kernels, T: Send + Default>(
    tokenizer: &Tokenizer,
    tokens: Vec<Tokens>,
    batch_tokens: usize,
    progress: impl FnMut(Progress) -> ControlFlow<()> + Send,
    of_batch: impl Fn(&TokenBatch, &[usize]) -> Result<Vec<T>> + Sync,
) -> Result<Vec<T>> {
    let done = Progress::of(tokens.len());
    let plan = BatchPlan::new(tokens, batch_tokens);
    let shared = Mutex::new((done, ControlFlow::Continue(()), progress));
    let run = |rows: &Vec<usize>| {
        let batch = plan.pad(rows, tokenizer);
        let results = of_batch(&batch, rows)?;
        if results.len() != rows.len() {
            return Err(Error::invalid(format!(
                "{} results for a batch of {} texts",
                results.len(),
                rows.len()
            )));
        }
        // A poisoned lock means that another batch panicked, and the panic is on its way.
        if let Ok(mut shared) = shared.lock() {
            let (done, flow, progress) = &mut *shared;
            if flow.is_continue() {
                done.add(&batch);
                *flow = progress(*done);
            }
            // Batches that have not begun never will.
            if flow.is_break() {
                return Err(Error::Cancelled);
            }
        }
        Ok(results)
    };
    // Fewer batches than cores are worked on one after another, each by all cores.
    let results = if B::HOST && plan.batches.len() >= workers() {
        try_map(&plan.batches, run)?
    } else {
        plan.batches.iter().map(run).collect::<Result<_>>()?
    };
    let mut in_order: Vec<T> = Vec::new();
    in_order.resize_with(plan.tokens.len(), T::default);
    for (rows, results) in plan.batches.iter().zip(results) {
        for (&row, result) in rows.iter().zip(results) {
            in_order[row] = result;
        }
    }
    Ok(in_order)
}

/// A run of texts through a model that is computed batch by batch; see [`Embedder::begin`].
#[derive(Debug, Clone)]
pub struct EmbedRun {
    plan: BatchPlan,
    options: EmbedOptions,
    /// Batches done.
    next: usize,
    done: Progress,
    /// Vectors in the texts' order, `[texts, width]`.
    vectors: Vec<f32>,
    width: usize,
}

impl EmbedRun {
    /// Whether all batches are computed.
    pub fn is_done(&self) -> bool {
        self.next >= self.plan.batches.len()
    }

    /// How far the run is.
    pub fn progress(&self) -> Progress {
        self.done
    }

    /// Computes the next batch, if there is one, with the embedder that began the run.
    ///
    /// # Errors
    /// Vectors with NaN, or of another width than the run began with.
    pub async fn step<B: Kernels>(&mut self, embedder: &Embedder<B>) -> Result<()> {
        let Some(rows) = self.plan.batches.get(self.next) else {
            return Ok(());
        };
        let batch = self.plan.pad(rows, &embedder.tokenizer);
        let vectors = embedder.batch_vectors(&batch, rows, &self.options).await?;
        if vectors.iter().any(|vector| vector.len() != self.width) {
            return Err(Error::invalid(
                "the run was begun by an embedder with vectors of another width",
            ));
        }
        for (&row, vector) in rows.iter().zip(vectors) {
            self.vectors[row * self.width..][..self.width].copy_from_slice(&vector);
        }
        self.done.add(&batch);
        self.next += 1;
        Ok(())
    }

    /// The vectors, one after another; those of texts that are not done are zero.
    pub fn into_flat(self) -> Vec<f32> {
        self.vectors
    }

    /// The vectors; those of texts that are not done are zero.
    pub fn into_vectors(self) -> Vec<Vec<f32>> {
        self.vectors.chunks(self.width.max(1)).map(<[f32]>::to_vec).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelConfig;
    use crate::embedder::{EmbeddingModel, go_on};
    use crate::pooling::PoolingConfig;
    use crate::tokenizer::TokenizerConfig;
    use burn::backend::Flex;
    use proptest::prelude::*;
    use serde_json::json;

    /// A random model whose words are numbers.
    fn embedder() -> Embedder<Flex> {
        let config = ModelConfig::from_value(&json!({
            "model_type": "bert", "hidden_act": "gelu", "vocab_size": 12, "hidden_size": 8,
            "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
            "max_position_embeddings": 32,
        }))
        .unwrap();
        let word = |id: usize| if id == 10 { "?".to_string() } else { id.to_string() };
        let vocab: serde_json::Map<_, _> = (0..11).map(|id| (word(id), id.into())).collect();
        let file = json!({
            "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "?"}
        });
        let names = json!({"pad_token": "?"});
        let tokenizer =
            Tokenizer::new(file.to_string().as_bytes(), &names, TokenizerConfig::new(32)).unwrap();
        let device = Default::default();
        let model = EmbeddingModel::random(&config, &PoolingConfig::Mean, &device);
        Embedder::new(model, tokenizer, &device).unwrap()
    }

    /// Twenty texts of 1 to 7 words.
    fn texts() -> Vec<String> {
        let words = |text: usize| (0..text * 5 % 7 + 1).map(move |i| (text + i) % 10);
        let text = |text| words(text).map(|word| word.to_string()).collect::<Vec<_>>().join(" ");
        (0..20).map(text).collect()
    }

    fn close(a: &[f32], b: &[f32]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5)
    }

    #[test]
    fn vectors_are_in_the_texts_order_side_by_side_and_step_by_step() {
        let (embedder, texts) = (embedder(), texts());
        let options = EmbedOptions { batch_tokens: Some(16), ..Default::default() };
        let together = embedder.embed_with(&texts, &options, go_on).unwrap();
        let mut run = embedder.begin(&texts, &options).unwrap();
        while !run.is_done() {
            read_sync(run.step(&embedder)).unwrap();
        }
        let tokens = texts.iter().map(|text| text.split(' ').count()).sum();
        assert_eq!(run.progress(), Progress { texts: 20, total: 20, tokens });
        let steps = run.into_vectors();
        for (row, text) in texts.iter().enumerate() {
            let alone = &embedder.embed(&[text]).unwrap()[0];
            assert!(close(alone, &together[row]) && close(alone, &steps[row]), "text {row}");
        }
    }

    #[test]
    fn a_break_ends_the_run_and_is_the_last_report() {
        let (embedder, texts) = (embedder(), texts());
        let options = EmbedOptions { batch_tokens: Some(8), ..Default::default() };
        let mut calls = 0;
        let result = embedder.embed_with(&texts, &options, |_| {
            calls += 1;
            if calls == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(result, Err(Error::Cancelled)));
        assert_eq!(calls, 2);
    }

    #[test]
    fn no_texts_give_no_vectors() {
        let embedder = embedder();
        assert!(embedder.embed(&[""; 0]).unwrap().is_empty());
        let run = embedder.begin(&[""; 0], &EmbedOptions::default()).unwrap();
        assert!(run.is_done() && run.into_flat().is_empty());
    }

    proptest! {
        #[test]
        fn every_row_is_in_one_batch_within_the_budget(
            lengths in proptest::collection::vec(1usize..50, 0..60), budget in 1usize..200,
        ) {
            let tokens: Vec<Tokens> = lengths
                .iter()
                .map(|&n| Tokens { ids: vec![0; n], pooling: vec![true; n], offsets: vec![(0, 0); n], content: 0..n, truncated: false, types: Vec::new() })
                .collect();
            let batches = batches(&tokens, budget);
            let mut seen: Vec<usize> = batches.concat();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
            for batch in &batches {
                let longest = batch.iter().map(|&row| lengths[row]).max().unwrap();
                prop_assert!(batch.len() == 1 || batch.len() * longest <= budget);
            }
        }
    }
}
