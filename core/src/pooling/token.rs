//! Heads without parameters: a weight for each token, then a weighted sum.
//!
//! `cls` (BERT, arXiv:1810.04805) and `last_token` (EOS of decoders) put all weight on one token,
//! `mean` weighs all alike (Sentence-BERT, arXiv:1908.10084, section 3), and `weighted_mean` weighs
//! by position (SGPT, arXiv:2202.08904). States `[batch, seq, hidden]`, weights `[batch, seq]` that
//! sum to 1 a row, vector `[batch, hidden]`.

use burn::tensor::{Tensor, backend::Backend};

use super::explanation::Explanation;
use crate::model::ModelInput;

/// Weighted sum of states `[batch, seq, hidden]` by weights `[batch, seq]`, computed in the weights'
/// dtype: states may be in half precision, long sums should not.
pub(super) fn pool<B: Backend>(
    states: &Tensor<B, 3>,
    weights: Tensor<B, 2>,
) -> (Tensor<B, 2>, Explanation<B>) {
    let states = states.clone().cast(weights.dtype());
    // [batch, 1, seq] x [batch, seq, hidden]
    let pooled = weights.clone().unsqueeze_dim::<3>(1).matmul(states).squeeze_dim::<2>(1);
    (pooled, Explanation::tokens(weights))
}

/// Divides each row by its sum; a row of zeros stays zero.
pub(super) fn normalize<B: Backend>(weights: Tensor<B, 2>) -> Tensor<B, 2> {
    let total = weights.clone().sum_dim(1).clamp_min(1e-9);
    weights / total
}

/// 1 at the tokens that are pooled.
pub(super) fn pooled<B: Backend>(input: &ModelInput<B>) -> Tensor<B, 2> {
    input.pooling_mask.clone().float()
}

/// Equal weights.
pub(super) fn mean<B: Backend>(input: &ModelInput<B>) -> Tensor<B, 2> {
    normalize(pooled(input))
}

/// Weights 1, 2, 3, ... by position in the text.
pub(super) fn position_weighted<B: Backend>(input: &ModelInput<B>) -> Tensor<B, 2> {
    normalize(pooled(input) * input.positions.clone().float().add_scalar(1.0))
}

/// All weight on the first pooled token.
pub(super) fn first<B: Backend>(input: &ModelInput<B>) -> Tensor<B, 2> {
    // Largest where the position is smallest; positions of tokens are distinct.
    at_largest(pooled(input), input.positions.clone().float().neg())
}

/// All weight on the last pooled token.
pub(super) fn last<B: Backend>(input: &ModelInput<B>) -> Tensor<B, 2> {
    at_largest(pooled(input), input.positions.clone().float())
}

/// 1 at the pooled token with the largest key, 0 elsewhere; all 0 where nothing is pooled.
fn at_largest<B: Backend>(pooled: Tensor<B, 2>, key: Tensor<B, 2>) -> Tensor<B, 2> {
    let [batch, seq] = pooled.dims();
    let key = key - (pooled.clone().neg().add_scalar(1.0)).mul_scalar(1e9);
    let i = key.argmax(1).expand([batch, seq]);
    let index =
        burn::tensor::Tensor::<B, 1, burn::tensor::Int>::arange(0..seq as i64, &pooled.device());
    let here = index.unsqueeze::<2>().expand([batch, seq]).equal(i).float();
    here * pooled
}
