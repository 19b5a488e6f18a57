//! Cross-entropy of a text's tokens: "Training LLMs to be Better Text Embedders through
//! Bidirectional Reconstruction" (Su et al. 2025), section 3.2, equations 3 and 4.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Bool, Int, Tensor, backend::Backend};
use serde::{Deserialize, Serialize};

/// How token losses become one loss.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// Mean over all target tokens, as `CE` in the paper's algorithm 1 and its public code.
    #[default]
    TokenMean,
    /// Sum over a text's tokens, mean over the texts, as in the paper's equations 3 and 4.
    TokenSum,
}

/// Sum of `-log p(target)` over the positions where `counts` holds.
///
/// `logits` `[batch, seq, vocab]`, `targets` and `counts` `[batch, seq]`.
pub fn token_cross_entropy<B: Backend>(
    logits: Tensor<B, 3>,
    targets: Tensor<B, 2, Int>,
    counts: Tensor<B, 2, Bool>,
) -> Tensor<B, 1> {
    let [batch, seq, _] = logits.dims();
    let result = log_softmax(logits, 2).gather(2, targets.reshape([batch, seq, 1]));
    result.reshape([batch, seq]).mask_fill(counts.bool_not(), 0.0).sum().neg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::Flex;

    #[test]
    fn sums_over_counted_positions() {
        let device = Default::default();
        let logits = Tensor::<Flex, 3>::from_data([[[0.0, 0.0], [2.0, 0.0], [9.0, -9.0]]], &device);
        let targets = Tensor::from_data([[1, 0, 1]], &device);
        let counts = Tensor::from_data([[true, true, false]], &device);
        let loss = token_cross_entropy(logits, targets, counts).into_scalar();
        let expected = 2f32.ln() + (1.0 + (-2f32).exp()).ln();
        assert!((loss - expected).abs() < 1e-5, "{loss} {expected}");
    }
}
