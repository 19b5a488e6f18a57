//! A loaded model without the type of its backend, so that what uses it is compiled once and not
//! once a device. [`crate::model::load`] makes them.

use std::ops::ControlFlow;

use burn::module::Module as _;
use kiln_embed::embedder::{EmbedOptions, Embedder, EmbedderConfig, Progress, Prompts, Similarity};
use kiln_embed::explanation::TextExplanation;
use kiln_embed::kernels::Kernels;
use kiln_embed::pooling::LayerState;
use kiln_embed::tokenizer::{Tokenizer, Tokens};

use super::states::{LayerStates, TextView, layer_states, look};
use super::{GoesOn, OnProgress};
use crate::interrupt;

/// A model on some device.
pub trait TextModel: Send + Sync {
    /// Its tokenizer.
    fn tokenizer(&self) -> &Tokenizer;

    /// Its named prompts.
    fn prompts(&self) -> &Prompts;

    /// The shape of its transformer, pooling head and projections.
    fn shape(&self) -> EmbedderConfig;

    /// Whether its vectors have the length one under the options.
    fn normalizes(&self, options: &EmbedOptions) -> bool;

    /// How its vectors are meant to be compared.
    fn similarity(&self) -> Similarity;

    /// How many parameters it has.
    fn parameters(&self) -> Parameters;

    /// Whether it carries a self-test, which it passed when it was loaded.
    fn is_tested(&self) -> bool;

    /// Width of the vectors under the options.
    fn dimensions(&self, options: &EmbedOptions) -> usize;

    /// Most tokens in a batch under the options, for one core where the CPU computes.
    fn batch_tokens(&self, options: &EmbedOptions) -> usize;

    /// Whether the model can do what the options ask for.
    ///
    /// # Errors
    /// An unknown prompt, or more dimensions than the vectors have.
    fn check(&self, options: &EmbedOptions) -> kiln_embed::Result<()>;

    /// Vectors of texts, in their order; Ctrl-C ends it. `embed` of `dyn TextModel` takes texts of
    /// any type.
    ///
    /// # Errors
    /// As [`Embedder::embed_with`]; [`kiln_embed::Error::Cancelled`] after Ctrl-C.
    fn embed_strs(
        &self,
        texts: &[&str],
        options: &EmbedOptions,
        progress: OnProgress<'_>,
    ) -> kiln_embed::Result<Vec<Vec<f32>>> {
        self.embed_until(texts, options, &mut |done| {
            progress(done);
            interrupt::flow()
        })
    }

    /// Vectors of texts, in their order; `progress`, and not Ctrl-C, ends it by `Break`.
    ///
    /// # Errors
    /// As [`Embedder::embed_with`].
    fn embed_until(
        &self,
        texts: &[&str],
        options: &EmbedOptions,
        progress: GoesOn<'_>,
    ) -> kiln_embed::Result<Vec<Vec<f32>>>;

    /// Why a text gets its vector.
    ///
    /// # Errors
    /// As [`Embedder::explain`].
    fn explain(&self, text: &str, options: &EmbedOptions) -> kiln_embed::Result<TextExplanation>;

    /// Vectors of texts that are tokens already, in their order; Ctrl-C does not end it.
    ///
    /// # Errors
    /// As [`Embedder::embed_encoded`].
    fn embed_encoded(
        &self,
        tokens: Vec<Tokens>,
        options: &EmbedOptions,
    ) -> kiln_embed::Result<Vec<Vec<f32>>>;

    /// States of all layers of each text, the embeddings first; Ctrl-C ends it.
    ///
    /// # Errors
    /// Texts that the tokenizer cannot take; [`kiln_embed::Error::Cancelled`] after Ctrl-C.
    fn layer_states(
        &self,
        texts: &[String],
        prompt_text: &str,
        options: &EmbedOptions,
        state: LayerState,
        progress: OnProgress<'_>,
    ) -> kiln_embed::Result<Vec<LayerStates>>;

    /// One text, token by token.
    ///
    /// # Errors
    /// A text that cannot be embedded.
    fn look(
        &self,
        text: &str,
        prompt_text: &str,
        options: &EmbedOptions,
    ) -> kiln_embed::Result<TextView>;
}

/// Numbers of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// Of the transformer, packed weights included.
    pub backbone: usize,
    /// Of the pooling head.
    pub pooling: usize,
    /// Of the projections.
    pub dense: usize,
}

impl dyn TextModel + '_ {
    /// Vectors of texts, in their order; Ctrl-C ends it.
    ///
    /// # Errors
    /// As [`TextModel::embed_strs`].
    pub fn embed(
        &self,
        texts: &[impl AsRef<str>],
        options: &EmbedOptions,
        mut progress: impl FnMut(Progress) + Send,
    ) -> kiln_embed::Result<Vec<Vec<f32>>> {
        let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
        self.embed_strs(&texts, options, &mut progress)
    }
}

impl<B: Kernels> TextModel for Embedder<B> {
    fn tokenizer(&self) -> &Tokenizer {
        Embedder::tokenizer(self)
    }

    fn prompts(&self) -> &Prompts {
        Embedder::prompts(self)
    }

    fn shape(&self) -> EmbedderConfig {
        self.model().embedder_config()
    }

    fn normalizes(&self, options: &EmbedOptions) -> bool {
        Embedder::normalizes(self, options)
    }

    fn similarity(&self) -> Similarity {
        Embedder::similarity(self)
    }

    fn parameters(&self) -> Parameters {
        let model = self.model();
        Parameters {
            backbone: model.backbone().clone().unpacked().num_params(),
            pooling: model.pooling().num_params(),
            dense: model.dense().iter().map(|dense| dense.num_params()).sum(),
        }
    }

    fn is_tested(&self) -> bool {
        self.self_test().is_some()
    }

    fn dimensions(&self, options: &EmbedOptions) -> usize {
        Embedder::dimensions(self, options)
    }

    fn batch_tokens(&self, options: &EmbedOptions) -> usize {
        options.batch_tokens::<B>(1)
    }

    fn check(&self, options: &EmbedOptions) -> kiln_embed::Result<()> {
        Embedder::check(self, options)
    }

    fn embed_until(
        &self,
        texts: &[&str],
        options: &EmbedOptions,
        progress: GoesOn<'_>,
    ) -> kiln_embed::Result<Vec<Vec<f32>>> {
        self.embed_with(texts, options, progress)
    }

    fn explain(&self, text: &str, options: &EmbedOptions) -> kiln_embed::Result<TextExplanation> {
        Embedder::explain(self, text, options)
    }

    fn embed_encoded(
        &self,
        tokens: Vec<Tokens>,
        options: &EmbedOptions,
    ) -> kiln_embed::Result<Vec<Vec<f32>>> {
        Embedder::embed_encoded(self, tokens, options, |_| ControlFlow::Continue(()))
    }

    fn layer_states(
        &self,
        texts: &[String],
        prompt_text: &str,
        options: &EmbedOptions,
        state: LayerState,
        progress: OnProgress<'_>,
    ) -> kiln_embed::Result<Vec<LayerStates>> {
        layer_states(self, texts, prompt_text, options, state, progress)
    }

    fn look(
        &self,
        text: &str,
        prompt_text: &str,
        options: &EmbedOptions,
    ) -> kiln_embed::Result<TextView> {
        look(self, text, prompt_text, options)
    }
}
