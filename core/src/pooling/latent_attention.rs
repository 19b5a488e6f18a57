//! Latent attention (NV-Embed, arXiv:2405.17428, section 3.2, equation 1): `softmax(Q K^T) V` with the
//! last layer's states as queries and trainable latents as keys and values, an MLP, then the mean
//! over tokens.
//!
//! States `[batch, seq, hidden]`, latents `[r, hidden]` (paper: r = 512, 8 heads), vector
//! `[batch, hidden]`. No mask over latents; instruction and padding are left out of the mean.

use burn::tensor::Tensor;

use super::block::{BlockConfig, PoolingBlock, latents};
use super::explanation::Explanation;
use super::token;
use crate::Result;
use crate::kernels::Kernels;
use crate::model::ModelInput;

impl<B: Kernels> PoolingBlock<B> {
    /// A fresh block whose latents are as wide as the states.
    pub(super) fn latent_attention(
        config: &BlockConfig,
        hidden: usize,
        device: &B::Device,
    ) -> Self {
        Self {
            latents: Some(latents(config.latents, hidden, device)),
            ..Self::self_attention(config, hidden, device)
        }
    }

    /// Pools states `[batch, seq, hidden]` to `[batch, hidden]`.
    ///
    /// # Errors
    /// A block without latents.
    pub(super) fn over_latents(
        &self,
        x: &Tensor<B, 3>,
        input: &ModelInput<B>,
    ) -> Result<(Tensor<B, 2>, Explanation<B>)> {
        let (states, attention) = self.latent_states(x)?;
        let (pooled, mut explanation) = token::pool(&states, token::mean(input));
        explanation.latents = Some(attention);
        Ok((pooled, explanation))
    }

    /// What is pooled: the states `[batch, seq, hidden]` after the block, and its attention over the latents
    /// `[batch, heads, seq, latents]`.
    ///
    /// # Errors
    /// A block without latents.
    pub(super) fn latent_states(&self, x: &Tensor<B, 3>) -> Result<(Tensor<B, 3>, Tensor<B, 4>)> {
        let latents = self.latent_batch()?;
        let (x, attention) = self.attention.over_latents(x.clone(), latents);
        Ok((self.feed_forward.forward(x), attention))
    }
}
