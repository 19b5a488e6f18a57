//! Cross-encoders without the type of their backend: [`load_reranker`] makes them, `kiln rerank`, `kiln search
//! --reranker`, the server's `/rerank` and evaluation use them.

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use kiln_embed::Reranker;
use kiln_embed::checkpoint::{LoadOptions, is_reranker};
use kiln_embed::embedder::Progress;
use kiln_embed::kernels::Kernels;
use kiln_embed::reranker::{PairInput, Ranked, ScoreActivation, ranked};

use crate::device::Device;
use crate::embedding::{GoesOn, OnProgress};
use crate::interrupt;
use crate::model::{locate, open_to_read};
use crate::terminal::Terminal;
use crate::with_backend;

/// A cross-encoder on some device.
pub trait PairModel: Send + Sync {
    /// Scores of pairs of a query and a text before the model's activation, in their order; Ctrl-C ends it
    /// where it is `stoppable`.
    ///
    /// # Errors
    /// Texts that the tokenizer cannot take; [`kiln_embed::Error::Cancelled`] after Ctrl-C.
    fn logits(
        &self,
        pairs: &[(&str, &str)],
        batch_tokens: Option<usize>,
        stoppable: bool,
        progress: OnProgress<'_>,
    ) -> kiln_embed::Result<Vec<f32>> {
        self.logits_until(pairs, batch_tokens, &mut |done| {
            progress(done);
            match stoppable && interrupt::asked() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })
    }

    /// As [`PairModel::logits`]; `progress`, and not Ctrl-C, ends it by `Break`.
    ///
    /// # Errors
    /// Texts that the tokenizer cannot take; [`kiln_embed::Error::Cancelled`] where `progress` ended it.
    fn logits_until(
        &self,
        pairs: &[(&str, &str)],
        batch_tokens: Option<usize>,
        progress: GoesOn<'_>,
    ) -> kiln_embed::Result<Vec<f32>>;

    /// What the model makes of a score.
    fn activation(&self) -> ScoreActivation;

    /// Number of tokens of a pair, and whether it was cut.
    ///
    /// # Errors
    /// Texts that the tokenizer cannot take.
    fn length(&self, query: &str, text: &str) -> kiln_embed::Result<(usize, bool)>;

    /// Most tokens of a pair.
    fn max_length(&self) -> usize;
}

impl<B: Kernels> PairModel for Reranker<B> {
    fn logits_until(
        &self,
        pairs: &[(&str, &str)],
        batch_tokens: Option<usize>,
        progress: GoesOn<'_>,
    ) -> kiln_embed::Result<Vec<f32>> {
        self.logits_with(pairs, batch_tokens, progress)
    }

    fn activation(&self) -> ScoreActivation {
        Reranker::activation(self)
    }

    fn length(&self, query: &str, text: &str) -> kiln_embed::Result<(usize, bool)> {
        self.tokenize(query, text).map(|tokens| (tokens.ids.len(), tokens.truncated))
    }

    fn max_length(&self) -> usize {
        self.tokenizer().config().max_length
    }
}

impl dyn PairModel + '_ {
    /// Texts by how relevant they are to a query, the most relevant first; Ctrl-C ends it.
    ///
    /// # Errors
    /// As [`PairModel::logits`].
    pub fn rank(
        &self,
        query: &str,
        texts: &[impl AsRef<str>],
        batch_tokens: Option<usize>,
        mut progress: impl FnMut(Progress) + Send,
    ) -> kiln_embed::Result<Vec<Ranked>> {
        let pairs: Vec<(&str, &str)> = texts.iter().map(|text| (query, text.as_ref())).collect();
        let logits = self.logits(&pairs, batch_tokens, true, &mut progress)?;
        Ok(ranked(&logits, self.activation()))
    }
}

/// Loads a cross-encoder by folder or Hub id on a device, all of it into memory.
///
/// # Errors
/// As [`locate`], and whatever is wrong with the model's files; a model that is no reranker, or adapters of one.
pub fn load_reranker(
    name: &str,
    options: &LoadOptions,
    instruction: Option<&str>,
    device: &Device,
    terminal: Terminal,
) -> Result<Arc<dyn PairModel>> {
    let found = locate(name, terminal)?;
    if let Some(base) = found.base()? {
        bail!(
            "{name}: is adapters of {base}, and rerankers take none; merge them into {base} and name the merged model"
        );
    }
    let folder = open_to_read(&found.folder)?;
    Ok(with_backend!(device, B, handle => {
        let reranker = Reranker::<B>::load_with(folder.as_ref(), options, &handle)?;
        reranker.check_ranks().with_context(|| name.to_string())?;
        reranker.verify()?;
        if matches!(reranker.input(), PairInput::Prompt(_)) && !is_reranker(folder.as_ref())? {
            terminal.note(format!(
                "warning: {name}: is a language model, and nothing in its files says that it ranks; its scores are the logits of \
                 yes and no in the prompt of its family's released reranker, which mean little unless it was trained to give them"
            ));
        }
        match instruction {
            Some(text) => Arc::new(reranker.with_instruction(text)?) as Arc<dyn PairModel>,
            None => Arc::new(reranker),
        }
    }))
}
