//! Cross-encoders: a query and a text in one row, a score out of it ([`Reranker`]).

mod answer;
mod base;
mod head;
mod load;
mod prompt;
mod save;
mod score_test;
#[cfg(feature = "chat-templates")]
mod template;

use std::ops::ControlFlow;

use burn::tensor::{Tensor, backend::Backend, read_sync};
use serde::{Deserialize, Serialize};

use crate::checkpoint::ScoreTest;
use crate::config::ModelConfig;
use crate::embedder::{EmbeddingModel, Progress, go_on, read, run_batches};
use crate::folder::Files;
use crate::kernels::Kernels;
use crate::model::{Backbone, ForwardOptions, ModelInput};
use crate::pooling::Pooling;
use crate::tokenizer::{TokenBatch, Tokenizer, Tokens};
use crate::{Error, Result};

pub use answer::{Answer, AnswerTokens};
pub use base::{RerankerShape, read_reranker_shape, reranker_shape};
pub use head::{Between, HeadConfig, ScoreHead, Scored};
pub use prompt::PairPrompt;
pub use save::{save_reranker, save_reranker_as};

/// How a query and a text become one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PairInput {
    /// By the tokenizer's template for pairs.
    Template,
    /// Inside a prompt that asks whether the text is relevant (Qwen3-Reranker).
    Prompt(PairPrompt),
}

impl PairInput {
    /// Tokens of a query and a text.
    ///
    /// # Errors
    /// A text that the tokenizer cannot take; no room for it.
    pub fn tokenize(&self, tokenizer: &Tokenizer, query: &str, text: &str) -> Result<Tokens> {
        match self {
            PairInput::Template => tokenizer.encode_pair(query, text),
            PairInput::Prompt(prompt) => prompt.tokenize(tokenizer, query, text),
        }
    }
}

/// What is made of a score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreActivation {
    /// Nothing.
    Identity,
    /// A number between 0 and 1.
    Sigmoid,
}

impl ScoreActivation {
    /// Of one score.
    pub fn of(self, score: f32) -> f32 {
        match self {
            ScoreActivation::Identity => score,
            ScoreActivation::Sigmoid => 1.0 / (1.0 + (-score).exp()),
        }
    }
}

/// A text's place and score in a ranking.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ranked {
    /// Which of the texts it is, counted from 0.
    pub index: usize,
    /// Its score; higher is more relevant.
    pub score: f32,
}

/// A cross-encoder: scores of pairs of a query and a text.
#[derive(Debug, Clone)]
pub struct Reranker<B: Backend> {
    backbone: Backbone<B>,
    head: ScoreHead<B>,
    /// Of a decoder that is trained: what it is saved with, and its language-model head where that is not the table.
    answer: Option<Answer>,
    lm_head: Option<Tensor<B, 2>>,
    config: ModelConfig,
    tokenizer: Tokenizer,
    /// Tokenizer files of the loaded model, which are kept when it is saved.
    tokenizer_files: Files,
    input: PairInput,
    activation: ScoreActivation,
    score_test: Option<ScoreTest>,
    device: B::Device,
}

/// What makes a score of the state that is scored.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "there is one in a run")]
pub enum Scorer<B: Backend> {
    /// A head of its own.
    Head(ScoreHead<B>),
    /// Logits of the language-model head: `[vocab, hidden]` where that is not the table of token embeddings.
    Logits(Answer, Option<Tensor<B, 2>>),
}

/// What a cross-encoder is made of; see [`Reranker::into_parts`].
#[derive(Debug, Clone)]
pub struct RerankerParts<B: Backend> {
    /// The backbone, with the pooling that gives the state that is scored, and vectors that are not normalised.
    pub model: EmbeddingModel<B>,
    /// From that state to the score.
    pub scorer: Scorer<B>,
    /// How a query and a text become one row.
    pub input: PairInput,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Tokenizer files of the loaded model that are kept as they are when it is saved.
    pub tokenizer_files: Files,
    /// What is made of a score.
    pub activation: ScoreActivation,
    /// Where batches are computed.
    pub device: B::Device,
}

impl<B: Kernels> Reranker<B> {
    /// Shape of the backbone.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Puts a cross-encoder together.
    ///
    /// # Errors
    /// Pairs that are read by the template of a tokenizer that has none, or with ids and token types that the model has no
    /// embeddings for.
    pub fn from_parts(parts: RerankerParts<B>) -> Result<Self> {
        let RerankerParts { model, scorer, input, tokenizer, tokenizer_files, activation, device } =
            parts;
        let config = model.config().clone();
        if input == PairInput::Template {
            tokenizer.check_pairs()?;
            load::check_types(&config, &tokenizer)?;
        }
        let EmbeddingModel { backbone, .. } = model;
        let (head, answer, lm_head) = match scorer {
            Scorer::Head(head) => (head, None, None),
            Scorer::Logits(answer, lm_head) => {
                let table = lm_head.clone().unwrap_or_else(|| backbone.token_embedding());
                (answer.head(table, &config), Some(answer), lm_head)
            }
        };
        Ok(Self {
            backbone,
            head,
            answer,
            lm_head,
            config,
            tokenizer,
            tokenizer_files,
            input,
            activation,
            score_test: None,
            device,
        })
    }

    /// Takes a cross-encoder apart.
    pub fn into_parts(self) -> RerankerParts<B> {
        let Self { backbone, head, answer, lm_head, config, .. } = self;
        let Self { tokenizer, tokenizer_files, input, activation, device, .. } = self;
        let pooling = Pooling::unfilled(&head.config().scored.pooling(), &config, &device);
        let model = EmbeddingModel::new(backbone, pooling, &config).with_normalize(false);
        let scorer = match answer {
            Some(answer) => Scorer::Logits(answer, lm_head),
            None => Scorer::Head(head),
        };
        RerankerParts { model, scorer, input, tokenizer, tokenizer_files, activation, device }
    }

    /// How a query and a text become one row.
    pub fn input(&self) -> &PairInput {
        &self.input
    }

    /// The head.
    pub fn head(&self) -> &ScoreHead<B> {
        &self.head
    }

    /// Where batches are computed.
    pub fn device(&self) -> &B::Device {
        &self.device
    }

    /// Number of scores that the head gives a pair; rankings take heads of one ([`Reranker::check_ranks`]).
    pub fn labels(&self) -> usize {
        self.head.labels()
    }

    /// What is made of a score.
    pub fn activation(&self) -> ScoreActivation {
        self.activation
    }

    /// The same with something else made of a score.
    pub fn with_activation(self, activation: ScoreActivation) -> Self {
        Self { activation, ..self }
    }

    /// The same with another instruction in its prompt.
    ///
    /// # Errors
    /// A reranker without a prompt.
    pub fn with_instruction(mut self, text: &str) -> Result<Self> {
        self.input = match self.input {
            PairInput::Prompt(prompt) => PairInput::Prompt(prompt.with_instruction(text)?),
            PairInput::Template => {
                return Err(Error::invalid(
                    "this reranker takes no instruction: it reads the query and the text alone",
                ));
            }
        };
        self.score_test = None;
        Ok(self)
    }

    /// Tokens of a query and a text.
    ///
    /// # Errors
    /// A text that the tokenizer cannot take.
    pub fn tokenize(&self, query: &str, text: &str) -> Result<Tokens> {
        self.input.tokenize(&self.tokenizer, query, text)
    }

    /// Scores of pairs before the activation, in their order, on the CPU batches side by side. `progress` is
    /// called after each batch and stops the run with `Break`.
    ///
    /// # Errors
    /// A head with several scores, scores that are not finite, or [`Error::Cancelled`].
    pub fn logits_with<S: AsRef<str> + Sync>(
        &self,
        pairs: &[(S, S)],
        batch_tokens: Option<usize>,
        progress: impl FnMut(Progress) -> ControlFlow<()> + Send,
    ) -> Result<Vec<f32>> {
        self.check_ranks()?;
        let tokens = crate::parallel::try_map(pairs, |(query, text)| {
            self.tokenize(query.as_ref(), text.as_ref())
        })?;
        let budget = batch_tokens.unwrap_or(if B::HOST { 256 } else { 4096 });
        run_batches::<B, _>(&self.tokenizer, tokens, budget, progress, |batch, rows| {
            read_sync(self.of_batch(batch, rows))
        })
    }

    /// Scores of pairs, in their order.
    ///
    /// # Errors
    /// As [`Reranker::logits_with`].
    pub fn scores<S: AsRef<str> + Sync>(&self, pairs: &[(S, S)]) -> Result<Vec<f32>> {
        let logits = self.logits_with(pairs, None, go_on)?;
        Ok(logits.into_iter().map(|score| self.activation.of(score)).collect())
    }

    /// All texts, the most relevant first; equal ones in their order.
    ///
    /// # Errors
    /// As [`Reranker::logits_with`].
    pub fn rank(&self, query: &str, texts: &[impl AsRef<str> + Sync]) -> Result<Vec<Ranked>> {
        let pairs: Vec<(&str, &str)> = texts.iter().map(|text| (query, text.as_ref())).collect();
        Ok(ranked(&self.logits_with(&pairs, None, go_on)?, self.activation))
    }

    /// The score of one pair before the activation, for devices that cannot be waited for and pages that are given back in
    /// between.
    ///
    /// # Errors
    /// As [`Reranker::logits_with`].
    pub async fn logit_async(&self, query: &str, text: &str) -> Result<f32> {
        self.check_ranks()?;
        let tokens = self.tokenize(query, text)?;
        let logits = self.of_batch(&self.tokenizer.pad(&[&tokens]), &[0]).await?;
        Ok(logits[0])
    }

    /// Refuses a head of several scores, by which nothing can be ranked.
    ///
    /// # Errors
    /// Such a head.
    pub fn check_ranks(&self) -> Result<()> {
        match self.labels() {
            1 => Ok(()),
            labels => Err(Error::invalid(format!(
                "the model gives each pair {labels} scores, and a reranker gives one; name a model that was trained to rank"
            ))),
        }
    }

    async fn of_batch(&self, batch: &TokenBatch, rows: &[usize]) -> Result<Vec<f32>> {
        let input = ModelInput::new(batch, &self.device);
        let want = ForwardOptions::default();
        let states = self.backbone.forward(&input, self.config.attention, want);
        let of_row = |(row, extent)| self.head.forward(states.row(row, extent));
        let scores = input.rows.iter().enumerate().map(of_row).collect();
        let scores = read(Tensor::cat(scores, 0)).await?;
        if let Some((row, score)) = rows.iter().zip(&scores).find(|(_, score)| !score.is_finite()) {
            return Err(Error::invalid(format!(
                "the score of pair {row} is {score}; the device computed wrongly or the weights overflow"
            )));
        }
        Ok(scores)
    }
}

/// Indices and what is made of their scores, the highest first; equal ones in their order. The scores before
/// the activation decide: a sigmoid makes 1 of all that are high enough.
pub fn ranked(logits: &[f32], activation: ScoreActivation) -> Vec<Ranked> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let place = |index: usize| Ranked { index, score: activation.of(logits[index]) };
    order.into_iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_that_a_sigmoid_makes_equal_keep_their_order_before_it() {
        let ranked = ranked(&[20.0, 30.0, -1.0, 25.0], ScoreActivation::Sigmoid);
        assert_eq!(ranked.iter().map(|place| place.index).collect::<Vec<_>>(), [1, 3, 0, 2]);
        assert_eq!(ranked[0].score, ranked[1].score);
    }
}
