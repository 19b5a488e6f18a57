//! [`Explanation`]: what a head looked at.

use burn::tensor::{Tensor, backend::Backend};

/// What a pooled vector is made of, for pictures.
#[derive(Debug, Clone)]
pub struct Explanation<B: Backend> {
    /// Weight of each token, summing to 1 a row: `[batch, seq]`; absent where the head
    /// does not weigh tokens.
    pub tokens: Option<Tensor<B, 2>>,
    /// Attention between each token and each latent: `[batch, heads, seq, latents]`.
    pub latents: Option<Tensor<B, 4>>,
    /// Weight of each layer, summing to 1 a row: `[batch, layers]`.
    pub layers: Option<Tensor<B, 2>>,
}

impl<B: Backend> Explanation<B> {
    pub(super) fn tokens(weights: Tensor<B, 2>) -> Self {
        Self { tokens: Some(weights), latents: None, layers: None }
    }
}
