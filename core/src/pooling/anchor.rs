//! Anchor-token-aware pooling (Negative Matters, section on ATA; METHODS.md 2).

use burn::tensor::{Tensor, backend::Backend};
use serde::{Deserialize, Serialize};

use super::token;
use crate::model::ModelInput;

/// How the attention that a token draws becomes its score.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnchorScore {
    /// `sum_h sum_i log(1 + L A_ij)`: our reading of eq. 3.
    #[default]
    Log1p,
    /// `sum_h sum_i A_ij`, the plain column sum.
    Linear,
}

/// Weight of each token, `[batch, seq]`, from attention `[batch, heads, query, key]`:
/// `a_j = sum_h sum_i score(A^h_ij)` over valid rows and columns, normalised over pooled tokens.
///
/// Where all attention is uniform the weights are those of mean pooling.
pub fn anchor_weights<B: Backend>(
    attention: &Tensor<B, 4>,
    input: &ModelInput<B>,
    score: AnchorScore,
) -> Tensor<B, 2> {
    let [batch, _, seq, _] = attention.dims();
    let valid = input.attention_mask.clone().float();
    let attention = attention.clone().cast(valid.dtype());
    let score = match score {
        AnchorScore::Log1p => {
            let length = valid.clone().sum_dim(1).reshape([batch, 1, 1, 1]);
            (attention * length).log1p()
        }
        AnchorScore::Linear => attention,
    };
    let rows = valid.clone().reshape([batch, 1, seq, 1]);
    // [batch, heads, query, key] -> [batch, key]
    let column = (score * rows).sum_dim(2).sum_dim(1).reshape([batch, seq]);
    token::normalize(column * valid * token::pooled(input))
}
