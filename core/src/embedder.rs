//! Texts in, vectors out: [`EmbeddingModel`] (backbone, pooling, projection) and [`Embedder`]
//! (the model with its tokenizer and prompts).

mod self_test;

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use burn::module::Module;
use burn::tensor::{Tensor, backend::Backend, read_sync};

pub use self_test::SelfTest;

use crate::config::{AttentionMode, ModelConfig};
use crate::folder::Files;
use crate::kernels::Kernels;
use crate::model::{Backbone, ForwardOptions, ModelInput, States};
use crate::parallel::cores;
use crate::pooling::{self, Dense, DenseConfig, Explanation, Pooling, PoolingConfig};
use crate::tokenizer::{TokenBatch, Tokenizer, Tokens};
use crate::{Error, Result};

/// Shape of an [`EmbeddingModel`].
#[derive(Debug, Clone, PartialEq)]
pub struct EmbedderConfig {
    /// The transformer's.
    pub config: ModelConfig,
    /// The pooling head's.
    pub pooling: PoolingConfig,
    /// The projections', in order.
    pub dense: Vec<DenseConfig>,
}

impl EmbedderConfig {
    /// Width of the vectors.
    pub fn dimensions(&self) -> usize {
        let pooled = self.pooling.output_size(self.config.hidden_size);
        self.dense.last().map_or(pooled, |dense| dense.out_features)
    }
}

/// Backbone, pooling head and projections: everything that has parameters.
#[derive(Module, Debug)]
pub struct EmbeddingModel<B: Backend> {
    /// The transformer.
    pub backbone: Backbone<B>,
    /// The pooling head.
    pub pooling: Pooling<B>,
    /// Projections after pooling, in order.
    pub dense: Vec<Dense<B>>,
    /// Shape of the backbone, attention mode included.
    #[module(skip)]
    pub config: ModelConfig,
    /// Whether vectors are divided by their norm.
    pub normalize: bool,
}

impl<B: Kernels> EmbeddingModel<B> {
    /// A model with random weights and L2-normalised output.
    pub fn random(config: &ModelConfig, pooling: &PoolingConfig, device: &B::Device) -> Self {
        Self {
            backbone: Backbone::random(config, device),
            pooling: Pooling::new(pooling, config, device),
            dense: Vec::new(),
            config: config.clone(),
            normalize: true,
        }
    }

    /// Its shape.
    pub fn embedder_config(&self) -> EmbedderConfig {
        EmbedderConfig {
            config: self.config.clone(),
            pooling: self.pooling.config().clone(),
            dense: self.dense.iter().map(|dense| dense.config().clone()).collect(),
        }
    }

    /// Width of the vectors.
    pub fn dimensions(&self) -> usize {
        self.embedder_config().dimensions()
    }

    /// One forward pass: vectors `[batch, dim]` and how pooling made them.
    ///
    /// # Errors
    /// A pooling head without its parameters.
    pub fn forward(&self, input: &ModelInput<B>) -> Result<(Tensor<B, 2>, Explanation<B>)> {
        let (vectors, explanation, _) = self.forward_with(input, ForwardOptions::default())?;
        Ok((vectors, explanation))
    }

    /// As [`EmbeddingModel::forward`], with the states that it passed through.
    ///
    /// # Errors
    /// As [`EmbeddingModel::forward`].
    pub fn forward_with(
        &self,
        input: &ModelInput<B>,
        want: ForwardOptions,
    ) -> Result<(Tensor<B, 2>, Explanation<B>, States<B>)> {
        let (mut vectors, explanation, states) = self.projected(input, want)?;
        if self.normalize {
            vectors = pooling::l2_normalize(vectors);
        }
        Ok((vectors, explanation, states))
    }

    /// Vectors as the last projection leaves them.
    pub(crate) fn projected(
        &self,
        input: &ModelInput<B>,
        want: ForwardOptions,
    ) -> Result<(Tensor<B, 2>, Explanation<B>, States<B>)> {
        let mode = self.config.attention;
        let states =
            self.backbone.forward(input, mode, self.pooling.config().forward_options().or(want));
        let (vectors, explanation) = self.pool(&states, input)?;
        Ok((vectors, explanation, states))
    }

    /// The end of the forward pass: the backbone's states through the pooling head and the
    /// projections to vectors `[batch, dim]`, not normalised, and how pooling made them.
    ///
    /// # Errors
    /// A pooling head without its parameters.
    pub fn pool(
        &self,
        states: &States<B>,
        input: &ModelInput<B>,
    ) -> Result<(Tensor<B, 2>, Explanation<B>)> {
        let (pooled, explanation) = self.pooling.forward(states, input, self.config.attention)?;
        Ok((self.project(pooled), explanation))
    }

    /// As [`EmbeddingModel::projected`], text by text `[1, dim]`: what follows the backbone sees each text
    /// alone and unpadded, so its numbers are the same bits whatever the batch.
    fn projected_apart(&self, input: &ModelInput<B>) -> Result<Vec<Tensor<B, 2>>> {
        let (mode, want) = (self.config.attention, self.pooling.config().forward_options());
        // Attention weights are made of whole batches, padding included.
        let together = (!want.attention).then(|| self.backbone.forward(input, mode, want));
        let vector = |(row, extent): (usize, &Range<usize>)| {
            let alone = input.row(row);
            let states = match &together {
                Some(states) => states.row(row, extent),
                None => self.backbone.forward(&alone, mode, want),
            };
            Ok(self.pool(&states, &alone)?.0)
        };
        input.rows.iter().enumerate().map(vector).collect()
    }

    /// Pooled states through the projections.
    pub(crate) fn project(&self, pooled: Tensor<B, 2>) -> Tensor<B, 2> {
        self.dense.iter().fold(pooled, |x, dense| dense.forward(x))
    }

    /// Everything at once: states of all layers and the last attention, for analyses.
    pub fn states(&self, input: &ModelInput<B>) -> States<B> {
        self.backbone.forward(
            input,
            self.config.attention,
            ForwardOptions { layers: true, attention: true },
        )
    }

    /// The attention mode.
    pub fn attention(&self) -> AttentionMode {
        self.config.attention
    }
}

/// Named prompts (instructions) of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompts {
    /// Text by name, to be put before a text as it is.
    pub by_name: BTreeMap<String, String>,
    /// Name of the prompt that is used where none is asked for.
    pub default: Option<String>,
}

impl Prompts {
    /// Text of a prompt by name; `None` asks for the default, which may be empty.
    ///
    /// # Errors
    /// An unknown name; the error lists the known ones.
    pub fn get(&self, name: Option<&str>) -> Result<&str> {
        match name.or(self.default.as_deref()) {
            None => Ok(""),
            Some(name) => self.by_name.get(name).map(String::as_str).ok_or_else(|| {
                let known: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
                let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                Error::invalid(format!("the model has no prompt {name:?}; it has {known}"))
            }),
        }
    }
}

/// What to embed with: prompt, size of the vectors and of the batches.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EmbedOptions {
    /// Prompt by name; `None`: the model's default prompt, if it has one.
    pub prompt_name: Option<String>,
    /// Prompt text, in place of a named one.
    pub prompt: Option<String>,
    /// Keep only the first dimensions (Matryoshka), before vectors are divided by their norm.
    pub dimensions: Option<usize>,
    /// Whether vectors are divided by their norm; `None`: as the model does.
    pub normalize: Option<bool>,
    /// Most tokens in a batch, padding included; `None`: what suits the device.
    pub batch_tokens: Option<usize>,
}

impl EmbedOptions {
    /// Most tokens in a batch on a backend, on the CPU one that so many cores work on together. What a layer
    /// makes of it is to stay in their caches; a GPU wants to be filled.
    pub fn batch_tokens<B: Kernels>(&self, cores: usize) -> usize {
        self.batch_tokens.unwrap_or(if B::HOST { 256 * cores } else { 4096 })
    }
}

/// How far an embedding run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Texts done.
    pub texts: usize,
    /// Texts in all.
    pub total: usize,
    /// Tokens done, padding not counted.
    pub tokens: usize,
}

/// A model with its tokenizer and prompts.
#[derive(Debug, Clone)]
pub struct Embedder<B: Backend> {
    /// The parameters.
    pub model: EmbeddingModel<B>,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Named prompts.
    pub prompts: Prompts,
    /// Where batches are computed.
    pub device: B::Device,
    /// Tokenizer files of the loaded model that are kept as they are when it is saved.
    pub tokenizer_files: Files,
    /// The test that an exported model carries; see [`Embedder::verify`].
    pub self_test: Option<SelfTest>,
}

impl<B: Kernels> Embedder<B> {
    /// A new embedder.
    ///
    /// # Errors
    /// A tokenizer with more ids than the model has embeddings, or a length limit beyond the
    /// model's positions.
    pub fn new(model: EmbeddingModel<B>, tokenizer: Tokenizer, device: &B::Device) -> Result<Self> {
        if tokenizer.id_bound() > model.config.vocab_size {
            return Err(Error::bad_file(
                "tokenizer.json",
                format!(
                    "has token ids up to {}, but the model has {} embeddings",
                    tokenizer.id_bound().saturating_sub(1),
                    model.config.vocab_size
                ),
                "use the tokenizer.json that was saved with the model",
            ));
        }
        let limit = tokenizer.config().max_length;
        if limit > model.config.max_positions {
            return Err(Error::invalid(format!(
                "max_length {limit} is more than the model's {} positions",
                model.config.max_positions
            )));
        }
        Ok(Self {
            model,
            tokenizer,
            prompts: Prompts::default(),
            device: device.clone(),
            tokenizer_files: Files::default(),
            self_test: None,
        })
    }

    /// Compares the vectors that an exported model carries with those that it gives here; a model
    /// without such a test passes. To be called once after loading.
    ///
    /// # Errors
    /// A device or a precision at which the model computes wrongly.
    pub fn verify(&self) -> Result<()> {
        read_sync(self.verify_async())
    }

    /// As [`Embedder::verify`], for devices that cannot be waited for (WebGPU in a page).
    ///
    /// # Errors
    /// As [`Embedder::verify`].
    pub async fn verify_async(&self) -> Result<()> {
        let place = if B::HOST { "the CPU" } else { "this GPU" };
        match &self.self_test {
            Some(test) => test.judge(test.run(self).await?, place),
            None => Ok(()),
        }
    }

    /// The prompt text that the options ask for.
    pub fn prompt<'a>(&'a self, options: &'a EmbedOptions) -> Result<&'a str> {
        match &options.prompt {
            Some(prompt) => Ok(prompt),
            None => self.prompts.get(options.prompt_name.as_deref()),
        }
    }

    /// Width of the vectors under the options.
    pub fn dimensions(&self, options: &EmbedOptions) -> usize {
        options.dimensions.unwrap_or_else(|| self.model.dimensions())
    }

    /// Vectors of texts, in the texts' order.
    ///
    /// Texts are sorted by length and batched by [`EmbedOptions::batch_tokens`], longest first,
    /// so that too small a memory shows at once. `progress` is called after each batch and stops
    /// the run with `Break`.
    ///
    /// # Errors
    /// An unknown prompt, too many dimensions, vectors with NaN, or [`Error::Cancelled`].
    pub fn embed(
        &self,
        texts: &[impl AsRef<str>],
        options: &EmbedOptions,
        progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<f32>>> {
        read_sync(self.embed_async(texts, options, progress))
    }

    /// As [`Embedder::embed`], for devices that cannot be waited for (WebGPU in a page).
    ///
    /// # Errors
    /// As [`Embedder::embed`].
    pub async fn embed_async(
        &self,
        texts: &[impl AsRef<str>],
        options: &EmbedOptions,
        mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<f32>>> {
        let plan = self.plan(texts, options)?;
        let mut vectors = vec![Vec::new(); texts.len()];
        let mut done = Progress { texts: 0, total: texts.len(), tokens: 0 };
        for rows in plan.batches() {
            let batch = self.tokenizer.pad(&plan.rows(rows));
            let result = self.batch_vectors_async(&batch, rows, options).await?;
            for (&row, vector) in rows.iter().zip(result) {
                vectors[row] = vector;
            }
            done.add(&batch);
            if progress(done).is_break() {
                return Err(Error::Cancelled);
            }
        }
        Ok(vectors)
    }

    /// Vectors of one batch of a [`BatchPlan`], read back from the device.
    ///
    /// # Errors
    /// Too many dimensions, or vectors with NaN.
    pub fn batch_vectors(
        &self,
        batch: &TokenBatch,
        rows: &[usize],
        options: &EmbedOptions,
    ) -> Result<Vec<Vec<f32>>> {
        read_sync(self.batch_vectors_async(batch, rows, options))
    }

    /// As [`Embedder::batch_vectors`], for devices that cannot be waited for.
    ///
    /// # Errors
    /// As [`Embedder::batch_vectors`].
    pub async fn batch_vectors_async(
        &self,
        batch: &TokenBatch,
        rows: &[usize],
        options: &EmbedOptions,
    ) -> Result<Vec<Vec<f32>>> {
        let vectors = self.embed_batch(batch, options)?;
        let [_, width] = vectors.dims();
        split_vectors(&read(vectors).await?, width, rows)
    }

    /// Vectors `[batch, dim]` of a token batch, truncated and normalised as the options say.
    ///
    /// On the CPU, a model in int8 or int4 gives a text the same bits whatever stands beside it in the
    /// batch, on whichever side that is padded, and on however many cores.
    pub fn embed_batch(&self, batch: &TokenBatch, options: &EmbedOptions) -> Result<Tensor<B, 2>> {
        let input = ModelInput::new(batch, &self.device);
        let finish = |mut vectors: Tensor<B, 2>| {
            if let Some(dimensions) = options.dimensions {
                vectors = pooling::truncate(vectors, dimensions)?;
            }
            if options.normalize.unwrap_or(self.model.normalize) {
                vectors = pooling::l2_normalize(vectors);
            }
            Ok(vectors)
        };
        if !B::TEXTS_APART {
            let (vectors, ..) = self.model.projected(&input, ForwardOptions::default())?;
            return finish(vectors);
        }
        let vectors = self.model.projected_apart(&input)?;
        let vectors: Vec<_> = vectors.into_iter().map(finish).collect::<Result<_>>()?;
        Ok(Tensor::cat(vectors, 0))
    }

    /// The batches in which texts are to be computed, for callers that compute them one by one.
    ///
    /// # Errors
    /// What [`Embedder::check`] says.
    pub fn plan(&self, texts: &[impl AsRef<str>], options: &EmbedOptions) -> Result<BatchPlan> {
        self.check(options)?;
        let tokens = self.tokenizer.encode_all(self.prompt(options)?, texts)?;
        Ok(BatchPlan::new(tokens, options.batch_tokens::<B>(cores())))
    }

    /// Whether the model can do what the options ask for.
    ///
    /// # Errors
    /// An unknown prompt, or more dimensions than the vectors have.
    pub fn check(&self, options: &EmbedOptions) -> Result<()> {
        self.prompt(options)?;
        match options.dimensions {
            Some(n) if n == 0 || n > self.model.dimensions() => Err(Error::invalid(format!(
                "{n} dimensions asked of a model that gives {}",
                self.model.dimensions()
            ))),
            _ => Ok(()),
        }
    }
}

impl Progress {
    /// Counts a batch as done.
    pub fn add(&mut self, batch: &TokenBatch) {
        self.texts += batch.batch;
        self.tokens += batch.attention.iter().filter(|&&token| token).count();
    }
}

/// A tensor's numbers, read back from the device.
pub(crate) async fn read<B: Backend, const D: usize>(x: Tensor<B, D>) -> Result<Vec<f32>> {
    let wrong = |error: String| Error::invalid(format!("numbers could not be read back: {error}"));
    let data = x.into_data_async().await.map_err(|error| wrong(format!("{error:?}")))?;
    data.convert::<f32>().into_vec().map_err(|error| wrong(format!("{error:?}")))
}

/// Tokenised texts and the batches in which they are computed.
#[derive(Debug, Clone)]
pub struct BatchPlan {
    tokens: Vec<Tokens>,
    batches: Vec<Vec<usize>>,
}

impl BatchPlan {
    /// Sorts texts by length, longest first, and cuts them into batches of at most so many tokens.
    pub fn new(tokens: Vec<Tokens>, batch_tokens: usize) -> Self {
        Self { batches: batches(&tokens, batch_tokens), tokens }
    }

    /// Rows of each batch.
    pub fn batches(&self) -> &[Vec<usize>] {
        &self.batches
    }

    /// Tokens of some rows.
    pub fn rows(&self, rows: &[usize]) -> Vec<&Tokens> {
        rows.iter().map(|&row| &self.tokens[row]).collect()
    }
}

/// The vectors of a batch `[rows, dim]`, each checked to be finite.
fn split_vectors(values: &[f32], width: usize, rows: &[usize]) -> Result<Vec<Vec<f32>>> {
    let vectors = values.chunks(width.max(1));
    if let Some((row, _)) =
        rows.iter().zip(vectors.clone()).find(|(_, vector)| !vector.iter().all(|x| x.is_finite()))
    {
        return Err(Error::invalid(format!(
            "the vector of text {row} has NaN or infinite values; the device computed wrongly or the weights overflow"
        )));
    }
    Ok(vectors.map(<[f32]>::to_vec).collect())
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_row_is_in_one_batch_within_the_budget(
            lengths in proptest::collection::vec(1usize..50, 0..60), budget in 1usize..200,
        ) {
            let tokens: Vec<Tokens> = lengths
                .iter()
                .map(|&n| Tokens { ids: vec![0; n], pooling: vec![true; n], offsets: vec![(0, 0); n], content: 0..n, truncated: false })
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

    #[test]
    fn unknown_prompts_list_the_known_ones() {
        let prompts =
            Prompts { by_name: [("query".to_string(), "q: ".to_string())].into(), default: None };
        assert_eq!(prompts.get(None).unwrap(), "");
        assert_eq!(prompts.get(Some("query")).unwrap(), "q: ");
        assert!(prompts.get(Some("passage")).unwrap_err().to_string().contains("query"));
    }
}
