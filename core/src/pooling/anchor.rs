//! Anchor-token-aware pooling (Negative Matters, arXiv:2509.00842, section 2.2, equations 3 to 5):
//! tokens are weighted by the attention that they draw in the last layer.
//!
//! ```text
//! a_j = sum_h sum_i score(A^h_ij)      w_j = a_j / sum_k a_k      e = sum_j w_j x_j
//! ```
//!
//! Attention `A` `[batch, heads, query, key]`, weights `[batch, seq]`, vector `[batch, hidden]`. The
//! text of equation 3 that we could read has lost its formula; `log(1 + L A_ij)` with the length `L`
//! is our reading of the words around it, and the other scores are guesses as well: hence a setting.

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
    /// `sum_h (sum_i A_ij)^2`, a guess that favours anchors more than the sum.
    Square,
    /// `sum_h exp(mean_i log A_ij)`, the product down a column as in OPERA (arXiv:2311.17911), which the
    /// paper cites, with the root that keeps it from vanishing; over the rows that may see the token.
    ColumnProduct,
}

impl AnchorScore {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Log1p, Self::Linear, Self::Square, Self::ColumnProduct];
}

/// Attention whose logarithm is taken is at least this; f16 holds it.
const LEAST: f64 = 1e-7;

/// Weight of each token, `[batch, seq]`, from attention `[batch, heads, query, key]`:
/// the score over valid rows and columns, summed over heads, and normalised over pooled tokens.
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
    let rows = valid.clone().reshape([batch, 1, seq, 1]);
    let over_rows = |x: Tensor<B, 4>| (x * rows.clone()).sum_dim(2);
    // [batch, heads, query, key] -> [batch, heads, 1, key]
    let column = match score {
        AnchorScore::Log1p => {
            let length = valid.clone().sum_dim(1).reshape([batch, 1, 1, 1]);
            over_rows((attention * length).log1p())
        }
        AnchorScore::Linear => over_rows(attention),
        AnchorScore::Square => over_rows(attention).powf_scalar(2.0),
        AnchorScore::ColumnProduct => {
            let sees = attention.clone().greater_elem(0.0).float().cast(attention.dtype());
            let count = over_rows(sees.clone()).clamp_min(1.0);
            let logs = attention.clamp_min(LEAST).log() * sees.clone();
            let seen = over_rows(sees).clamp_max(1.0);
            (over_rows(logs) / count).exp() * seen
        }
    };
    let column = column.sum_dim(1).reshape([batch, seq]);
    token::normalize(column * valid * token::pooled(input))
}
