//! The score of a decoder that is trained to rank: logits of tokens, made of the language-model head as it is after each step.

use burn::module::Param;
use burn::tensor::{Int, Tensor, TensorData, backend::Backend, module::linear};
use serde_json::Value;

use super::head::{self, ScoreHead};
use crate::config::ModelConfig;
use crate::folder::Files;
use crate::kernels::Kernels;

/// The tokens whose logits make a decoder's score (sentence-transformers' `LogitScore`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerTokens {
    /// The token whose logit is the score.
    pub token: u32,
    /// The one whose logit is subtracted from it.
    pub other: Option<u32>,
}

impl AnswerTokens {
    /// The direction `[1, hidden]` whose product with a state is its score. Of the language-model head `[vocab, hidden]` the
    /// rows of the tokens alone take part.
    pub fn direction<B: Backend>(self, table: Tensor<B, 2>) -> Tensor<B, 2> {
        let ids: Vec<i32> =
            [Some(self.token), self.other].into_iter().flatten().map(|id| id as i32).collect();
        let (count, device) = (ids.len(), table.device());
        let ids = Tensor::<B, 1, Int>::from_data(TensorData::new(ids, [count]), &device);
        let rows = table.select(0, ids);
        match count {
            1 => rows,
            _ => rows.clone().narrow(0, 0, 1) - rows.narrow(0, 1, 1),
        }
    }

    /// Scores `[rows, 1]` of states `[rows, hidden]`, in the numbers of the language-model head `[vocab, hidden]`.
    pub fn scores<B: Backend>(self, states: Tensor<B, 2>, table: Tensor<B, 2>) -> Tensor<B, 2> {
        let direction = self.direction(table);
        linear(states.cast(direction.dtype()), direction.transpose(), None)
    }
}

/// What a decoder that is trained to rank keeps of its files, to be saved in their form.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Whose logits are its score.
    pub(super) tokens: AnswerTokens,
    /// What stands before the names of the backbone's tensors.
    pub(super) prefix: &'static str,
    /// Its class, as `config.json` names it.
    pub(super) architectures: Value,
    /// How it is asked, as sentence-transformers reads it.
    pub(super) files: Files,
}

impl Answer {
    /// The tokens whose logits are its score.
    pub fn tokens(&self) -> AnswerTokens {
        self.tokens
    }

    /// The head that gives the score, of the language-model head `[vocab, hidden]`.
    pub(super) fn head<B: Kernels>(
        &self,
        table: Tensor<B, 2>,
        config: &ModelConfig,
    ) -> ScoreHead<B> {
        let (shape, _) = head::of_decoder(config);
        let mut head = ScoreHead::unfilled(shape, &table.device());
        let direction = self.tokens.direction(table).reshape([config.hidden_size, 1]);
        head.output.weight = Param::from_tensor(direction);
        head
    }
}
