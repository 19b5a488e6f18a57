//! Texts in, vectors out: [`Embedder`], a model with its tokenizer and prompts.

mod batch;
mod model;
mod options;
mod prompts;
mod self_test;
mod similarity;

use std::ops::ControlFlow;

use burn::tensor::{Tensor, backend::Backend};

use crate::folder::Files;
use crate::kernels::Kernels;
use crate::model::{ForwardOptions, ModelInput};
use crate::pooling;
use crate::tokenizer::{TokenBatch, Tokenizer, Tokens};
use crate::{Error, Result};

pub(crate) use batch::run_batches;
pub use batch::{EmbedRun, Progress};
pub use model::{EmbedderConfig, EmbeddingModel};
pub use options::EmbedOptions;
pub use prompts::{DOCUMENT, Prompt, Prompts, QUERY};
pub use self_test::SelfTest;
pub use similarity::Similarity;

/// A model with its tokenizer and prompts.
#[derive(Debug, Clone)]
pub struct Embedder<B: Backend> {
    /// On the heap: moved about in the frames of an unoptimised build, it would fill a thread's stack.
    model: Box<EmbeddingModel<B>>,
    tokenizer: Tokenizer,
    prompts: Prompts,
    /// How its vectors are meant to be compared.
    similarity: Similarity,
    /// How many of a vector's numbers are kept where nobody says.
    truncate_dim: Option<usize>,
    /// Where batches are computed.
    device: B::Device,
    /// Tokenizer files of the loaded model that are kept as they are when it is saved.
    tokenizer_files: Files,
    /// The test that an exported model carries; see [`Embedder::verify`].
    self_test: Option<SelfTest>,
}

/// What an [`Embedder`] is made of; see [`Embedder::into_parts`].
#[derive(Debug, Clone)]
pub struct EmbedderParts<B: Backend> {
    /// The parameters.
    pub model: EmbeddingModel<B>,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Named prompts.
    pub prompts: Prompts,
    /// Tokenizer files of the loaded model that are kept as they are when it is saved.
    pub tokenizer_files: Files,
    /// Where batches are computed.
    pub device: B::Device,
}

/// Whether a tokenizer's ids and lengths are ones that the model has embeddings and positions for.
fn check_fits<B: Kernels>(model: &EmbeddingModel<B>, tokenizer: &Tokenizer) -> Result<()> {
    let config = model.config();
    if tokenizer.id_bound() > config.vocab_size {
        return Err(Error::bad_file(
            "tokenizer.json",
            format!(
                "has token ids up to {}, but the model has {} embeddings",
                tokenizer.id_bound().saturating_sub(1),
                config.vocab_size
            ),
            "use the tokenizer.json that was saved with the model",
        ));
    }
    let limit = tokenizer.config().max_length;
    if limit > config.max_positions {
        return Err(Error::invalid(format!(
            "max_length {limit} is more than the model's {} positions",
            config.max_positions
        )));
    }
    Ok(())
}

impl<B: Kernels> Embedder<B> {
    /// A new embedder, without prompts.
    ///
    /// # Errors
    /// A tokenizer with more ids than the model has embeddings, or a length limit beyond the
    /// model's positions.
    pub fn new(model: EmbeddingModel<B>, tokenizer: Tokenizer, device: &B::Device) -> Result<Self> {
        check_fits(&model, &tokenizer)?;
        Ok(Self {
            model: Box::new(model),
            tokenizer,
            prompts: Prompts::default(),
            similarity: Similarity::default(),
            truncate_dim: None,
            device: device.clone(),
            tokenizer_files: Files::default(),
            self_test: None,
        })
    }

    /// The same with other prompts.
    pub fn with_prompts(self, prompts: Prompts) -> Self {
        Self { prompts, ..self }
    }

    /// The same with another way to compare its vectors.
    pub fn with_similarity(self, similarity: Similarity) -> Self {
        Self { similarity, ..self }
    }

    /// The same, of whose vectors so many numbers are kept where options say nothing of it (`truncate_dim` of
    /// sentence-transformers 6).
    ///
    /// # Errors
    /// None, or more than the vectors have.
    pub fn with_truncate_dim(self, truncate_dim: Option<usize>) -> Result<Self> {
        let all = self.model.dimensions();
        match truncate_dim {
            Some(n) if n == 0 || n > all => {
                Err(Error::invalid(format!("truncate_dim is {n}, of vectors of {all} dimensions")))
            }
            _ => Ok(Self { truncate_dim, ..self }),
        }
    }

    /// The same with the tokenizer's files, which are kept as they are when the model is saved; without
    /// them a `tokenizer.json` is written anew.
    pub fn with_tokenizer_files(self, tokenizer_files: Files) -> Self {
        Self { tokenizer_files, ..self }
    }

    /// The same with the test that the model's files carry; see [`Embedder::verify`].
    pub(crate) fn with_self_test(self, self_test: Option<SelfTest>) -> Self {
        Self { self_test, ..self }
    }

    /// The same with another model in the place of its own. The test that an exported model carries is
    /// dropped: another model gives other vectors.
    ///
    /// # Errors
    /// Those of `change`, and a model that [`Embedder::new`] refuses with this tokenizer.
    pub fn map_model(
        self,
        change: impl FnOnce(EmbeddingModel<B>) -> Result<EmbeddingModel<B>>,
    ) -> Result<Self> {
        let model = Box::new(change(*self.model)?);
        check_fits(&model, &self.tokenizer)?;
        Ok(Self { model, self_test: None, ..self })
    }

    /// The parameters.
    pub fn model(&self) -> &EmbeddingModel<B> {
        &self.model
    }

    /// The parameters, to be changed; its shape must stay. As in
    /// [`Embedder::map_model`] the model's test is dropped.
    pub fn model_mut(&mut self) -> &mut EmbeddingModel<B> {
        self.self_test = None;
        &mut self.model
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Named prompts.
    pub fn prompts(&self) -> &Prompts {
        &self.prompts
    }

    /// How its vectors are meant to be compared.
    pub fn similarity(&self) -> Similarity {
        self.similarity
    }

    /// How many of a vector's numbers are kept where options say nothing of it, if not all.
    pub fn truncate_dim(&self) -> Option<usize> {
        self.truncate_dim
    }

    /// Where batches are computed.
    pub fn device(&self) -> &B::Device {
        &self.device
    }

    /// Tokenizer files of the loaded model.
    pub fn tokenizer_files(&self) -> &Files {
        &self.tokenizer_files
    }

    /// The test that the model carries, if it was exported with one and nothing has changed its vectors since.
    pub fn self_test(&self) -> Option<&SelfTest> {
        self.self_test.as_ref()
    }

    /// Takes the embedder apart.
    pub fn into_parts(self) -> EmbedderParts<B> {
        let Self { model, tokenizer, prompts, tokenizer_files, device, .. } = self;
        EmbedderParts { model: *model, tokenizer, prompts, tokenizer_files, device }
    }

    /// Width of the vectors under the options.
    pub fn dimensions(&self, options: &EmbedOptions) -> usize {
        options.dimensions.or(self.truncate_dim).unwrap_or_else(|| self.model.dimensions())
    }

    /// Whether vectors have the length one under the options: not where the model's files cut them (`truncate_dim`) and
    /// the options say nothing of either, as sentence-transformers has it.
    pub fn normalizes(&self, options: &EmbedOptions) -> bool {
        let is_cut_by_file = self.truncate_dim.is_some() && options.dimensions.is_none();
        options.normalize.unwrap_or(self.model.normalizes() && !is_cut_by_file)
    }

    /// Whether the model can do what the options ask for.
    ///
    /// # Errors
    /// An unknown prompt, or more dimensions than the vectors have.
    pub fn check(&self, options: &EmbedOptions) -> Result<()> {
        self.prompts.text(&options.prompt)?;
        match options.dimensions {
            Some(n) if n == 0 || n > self.model.dimensions() => Err(Error::invalid(format!(
                "{n} dimensions asked of a model that gives {}",
                self.model.dimensions()
            ))),
            _ => Ok(()),
        }
    }

    /// Tokens of texts behind the prompt, in the texts' order.
    ///
    /// # Errors
    /// As [`Embedder::check`]; a text that the tokenizer cannot take.
    pub fn tokenize(
        &self,
        texts: &[impl AsRef<str> + Sync],
        options: &EmbedOptions,
    ) -> Result<Vec<Tokens>> {
        self.check(options)?;
        self.tokenizer.encode_all(self.prompts.text(&options.prompt)?, texts)
    }

    /// Vectors of texts, in the texts' order, with the model's default prompt.
    ///
    /// # Errors
    /// As [`Embedder::embed_with`].
    pub fn embed(&self, texts: &[impl AsRef<str> + Sync]) -> Result<Vec<Vec<f32>>> {
        self.embed_with(texts, &EmbedOptions::default(), go_on)
    }

    /// Vectors of queries: with the prompt `query` where the model has it, else none
    /// (sentence-transformers' `encode_query`; see [`Prompts::first_of`]).
    ///
    /// # Errors
    /// As [`Embedder::embed_with`].
    pub fn embed_query(&self, texts: &[impl AsRef<str> + Sync]) -> Result<Vec<Vec<f32>>> {
        let prompt = self.prompts.first_of(&QUERY);
        self.embed_with(texts, &EmbedOptions::with_prompt(prompt), go_on)
    }

    /// Vectors of documents: with the first of the prompts `document`, `passage` and `corpus` that the
    /// model has, else none (sentence-transformers' `encode_document`).
    ///
    /// # Errors
    /// As [`Embedder::embed_with`].
    pub fn embed_document(&self, texts: &[impl AsRef<str> + Sync]) -> Result<Vec<Vec<f32>>> {
        let prompt = self.prompts.first_of(&DOCUMENT);
        self.embed_with(texts, &EmbedOptions::with_prompt(prompt), go_on)
    }

    /// Vectors of texts, in the texts' order.
    ///
    /// Texts are sorted by length and cut into batches of [`EmbedOptions::batch_tokens`], longest first,
    /// so that too small a memory shows at once; on the CPU batches are computed side by side.
    /// `progress` is called after each batch and stops the run with `Break`.
    ///
    /// # Errors
    /// An unknown prompt, too many dimensions, vectors with NaN, or [`Error::Cancelled`].
    pub fn embed_with(
        &self,
        texts: &[impl AsRef<str> + Sync],
        options: &EmbedOptions,
        progress: impl FnMut(Progress) -> ControlFlow<()> + Send,
    ) -> Result<Vec<Vec<f32>>> {
        self.embed_encoded(self.tokenize(texts, options)?, options, progress)
    }

    /// As [`Embedder::embed`], for devices that cannot be waited for (WebGPU in a page).
    ///
    /// # Errors
    /// As [`Embedder::embed_with`].
    pub async fn embed_async(&self, texts: &[impl AsRef<str> + Sync]) -> Result<Vec<Vec<f32>>> {
        self.embed_async_with(texts, &EmbedOptions::default(), go_on).await
    }

    /// As [`Embedder::embed_with`], for devices that cannot be waited for; batches are computed one after
    /// another. [`Embedder::begin`] leaves it to the caller when.
    ///
    /// # Errors
    /// As [`Embedder::embed_with`].
    pub async fn embed_async_with(
        &self,
        texts: &[impl AsRef<str> + Sync],
        options: &EmbedOptions,
        mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<f32>>> {
        let mut run = self.begin(texts, options)?;
        while !run.is_done() {
            run.step(self).await?;
            if progress(run.progress()).is_break() {
                return Err(Error::Cancelled);
            }
        }
        Ok(run.into_vectors())
    }

    /// Vectors `[batch, dim]` of a token batch, truncated and normalised as the options say.
    ///
    /// On the CPU, a model in int8 or int4 gives a text the same bits whatever stands beside it in the
    /// batch, on whichever side that is padded, and on however many cores.
    ///
    /// # Errors
    /// More dimensions than the vectors have.
    pub fn embed_batch(&self, batch: &TokenBatch, options: &EmbedOptions) -> Result<Tensor<B, 2>> {
        let input = ModelInput::new(batch, &self.device);
        let finish = |mut vectors: Tensor<B, 2>| {
            let normalize = options.normalize.unwrap_or(self.model.normalizes());
            // What a file asks for is done by sentence-transformers behind all modules, Normalize too.
            let is_last = normalize && !self.normalizes(options);
            if is_last {
                vectors = pooling::l2_normalize(vectors);
            }
            if let Some(dimensions) = options.dimensions.or(self.truncate_dim) {
                vectors = pooling::truncate(vectors, dimensions)?;
            }
            if normalize && !is_last {
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

    /// Vectors of a batch, read back from the device; `rows` say which texts they are of.
    async fn batch_vectors(
        &self,
        batch: &TokenBatch,
        rows: &[usize],
        options: &EmbedOptions,
    ) -> Result<Vec<Vec<f32>>> {
        let vectors = self.embed_batch(batch, options)?;
        let [_, width] = vectors.dims();
        split_vectors(&read(vectors).await?, width, rows)
    }
}

/// For runs that nobody watches.
pub(crate) fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A tensor's numbers, read back from the device.
pub(crate) async fn read<B: Backend, const D: usize>(x: Tensor<B, D>) -> Result<Vec<f32>> {
    let wrong = |error: String| Error::invalid(format!("numbers could not be read back: {error}"));
    let data = x.into_data_async().await.map_err(|error| wrong(format!("{error:?}")))?;
    data.convert::<f32>().into_vec().map_err(|error| wrong(format!("{error:?}")))
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
