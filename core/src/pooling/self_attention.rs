//! Self-attention pooling, NV-Embed's ablation (arXiv:2405.17428, section 5.2.3): the block over the
//! tokens themselves, then the mean over tokens.
//!
//! States `[batch, seq, hidden]` are queries, keys and values; the vector is `[batch, hidden]`.

use burn::tensor::Tensor;

use super::block::{BlockConfig, CrossAttention, LatentFeedForward, PoolingBlock};
use super::explanation::Explanation;
use super::token;
use crate::kernels::Kernels;
use crate::model::ModelInput;

impl<B: Kernels> PoolingBlock<B> {
    /// A fresh block without latents.
    pub(super) fn self_attention(config: &BlockConfig, hidden: usize, device: &B::Device) -> Self {
        Self {
            latents: None,
            layer_embedding: None,
            attention: CrossAttention::new(config, hidden, hidden, hidden, device),
            feed_forward: LatentFeedForward::new(config.feed_forward, hidden, device),
        }
    }

    /// Pools states `[batch, seq, hidden]` to `[batch, hidden]`.
    pub(super) fn over_itself(
        &self,
        x: &Tensor<B, 3>,
        input: &ModelInput<B>,
    ) -> (Tensor<B, 2>, Explanation<B>) {
        let hidden = input.padded.then(|| input.attention_mask.clone().bool_not());
        let (x, attention) = self.attention.forward(x.clone(), x.clone(), hidden);
        let mean = token::mean(input);
        let (pooled, _) = token::pool(&self.feed_forward.forward(x), mean.clone());
        // Attention that the pooled tokens give each token: [batch, 1, query] x [batch, query, key]
        let attention = attention.mean_dim(1).squeeze_dim::<3>(1).cast(mean.dtype());
        let given = mean.unsqueeze_dim::<3>(1).matmul(attention);
        (pooled, Explanation::tokens(given.squeeze_dim(1)))
    }
}
