//! Anchor-token-aware pooling (Negative Matters, arXiv:2509.00842, section 2.2, equations 3 to 5):
//! tokens are weighted by the attention that they draw in the last layer.
//!
//! ```text
//! a_j = sum_h sum_i score(A^h_ij)      w_j = a_j / sum_k a_k      e = sum_j w_j x_j
//! ```
//!
//! Attention `A` `[batch, heads, query, key]`, weights `[batch, seq]`, vector `[batch, hidden]`. The
//! text of equation 3 that we could read has lost its formula; `log(1 + L A_ij)` with the length `L`
//! is our reading of the words around it, which is why the score is a setting.

use burn::tensor::{Tensor, backend::Backend};
use serde::{Deserialize, Serialize};

use super::token;
use crate::model::ModelInput;

/// How the attention that a token draws becomes its score.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnchorScore {
    /// `sum_h sum_i log(1 + L A_ij)`: our reading of equation 3.
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
