//! Pooling heads: token states in, one vector a text out, and an [`Explanation`] of how.
//!
//! * `token`: heads without parameters; `anchor`: tokens weighted by the attention that they draw;
//! * `block`: the cross-attention block of the heads with parameters, which `self_attention`,
//!   `latent_attention` (NV-Embed) and `trainable` (Pooling and Attention) use:
//!
//! | head | queries | keys and values | pooled |
//! |---|---|---|---|
//! | self-attention | tokens | tokens | mean over tokens |
//! | latent attention | tokens | latents | mean over tokens |
//! | last-layer trainable | latents | tokens | mean over latents |
//! | multi-layer trainable | latents | one state a layer | mean over latents |
//!
//! * `dense`: the projection after pooling.

mod anchor;
mod block;
mod config;
mod dense;
mod explanation;
mod latent_attention;
mod self_attention;
mod token;
mod trainable;

use burn::module::Module;
use burn::tensor::{Tensor, backend::Backend};

pub use anchor::{AnchorScore, anchor_weights};
pub use block::{BlockConfig, CrossAttention, FeedForwardKind, LatentFeedForward, PoolingBlock};
pub use config::PoolingConfig;
pub use dense::{Dense, DenseActivation, DenseConfig};
pub use explanation::Explanation;
pub use trainable::{LayerState, layer_states};

use crate::config::{AttentionMode, ModelConfig};
use crate::kernels::Kernels;
use crate::model::{ModelInput, States, initialized};
use crate::{Error, Result};

/// A pooling head with its parameters, if it has any.
#[derive(Module, Debug)]
pub struct Pooling<B: Backend> {
    /// The cross-attention block of the heads with parameters.
    pub block: Option<PoolingBlock<B>>,
    #[module(skip)]
    config: PoolingConfig,
}

impl<B: Kernels> Pooling<B> {
    /// A head for a model, freshly initialised.
    pub fn new(config: &PoolingConfig, model: &ModelConfig, device: &B::Device) -> Self {
        initialized(Self::unfilled(config, model, device))
    }

    /// A head to be filled from a checkpoint, or of which the shape alone is wanted; no memory is allocated
    /// yet, whatever its size.
    pub fn unfilled(config: &PoolingConfig, model: &ModelConfig, device: &B::Device) -> Self {
        use PoolingConfig as P;
        let hidden = model.output_size();
        let block = match config {
            P::Cls | P::LastToken | P::Mean | P::WeightedMean | P::Anchor { .. } => None,
            P::SelfAttention(block) => Some(PoolingBlock::self_attention(block, hidden, device)),
            P::LatentAttention(block) => {
                Some(PoolingBlock::latent_attention(block, hidden, device))
            }
            P::LastLayerTrainable(block) => {
                Some(PoolingBlock::trainable(block, hidden, None, device))
            }
            P::MultiLayerTrainable(block) => {
                Some(PoolingBlock::trainable(block, hidden, Some(model.num_layers), device))
            }
        };
        Self { block, config: config.clone() }
    }

    /// The head's configuration.
    pub fn config(&self) -> &PoolingConfig {
        &self.config
    }

    /// The states `[batch, seq, hidden]` after the latent-attention block, which are the output states of a
    /// model with that head; `None` for other heads.
    ///
    /// # Errors
    /// A head without its parameters.
    pub fn output_states(&self, last: &Tensor<B, 3>) -> Result<Option<Tensor<B, 3>>> {
        match (&self.config, &self.block) {
            (PoolingConfig::LatentAttention(_), Some(block)) => {
                Ok(Some(block.latent_states(last)?.0))
            }
            _ => Ok(None),
        }
    }

    /// Pools `[batch, seq, hidden]` states to `[batch, dim]`, and explains.
    ///
    /// Only positions of the pooling mask take part. `mode` decides what stands for a layer in
    /// multi-layer pooling: the EOS state (causal) or the mean (bidirectional).
    ///
    /// # Errors
    /// States without the layers or the attention that [`PoolingConfig::forward_options`] asks for.
    pub fn forward(
        &self,
        states: &States<B>,
        input: &ModelInput<B>,
        mode: AttentionMode,
    ) -> Result<(Tensor<B, 2>, Explanation<B>)> {
        use PoolingConfig as P;
        let missing =
            |what: &str| Error::invalid(format!("{} pooling needs the {what}", self.config.name()));
        let attended = || self.block.as_ref().ok_or_else(|| missing("trainable block"));
        Ok(match &self.config {
            P::Cls => token::pool(&states.last, token::first(input)),
            P::LastToken => token::pool(&states.last, token::last(input)),
            P::Mean => token::pool(&states.last, token::mean(input)),
            P::WeightedMean => token::pool(&states.last, token::position_weighted(input)),
            P::Anchor { score } => {
                let attention =
                    states.attention.as_ref().ok_or_else(|| missing("attention weights"))?;
                token::pool(&states.last, anchor_weights(attention, input, *score))
            }
            P::SelfAttention(_) => attended()?.over_itself(&states.last, input),
            P::LatentAttention(_) => attended()?.over_latents(&states.last, input)?,
            P::LastLayerTrainable(_) => attended()?.latents_over_tokens(&states.last, input)?,
            P::MultiLayerTrainable(_) => {
                if states.layers.len() < 2 {
                    return Err(missing("hidden states of every layer"));
                }
                attended()?.latents_over_layers(&states.layers[1..], input, LayerState::of(mode))?
            }
        })
    }
}

/// Rows divided by their Euclidean norm: `[batch, dim]` to the same.
pub fn l2_normalize<B: Backend>(x: Tensor<B, 2>) -> Tensor<B, 2> {
    // 1e-12 as in PyTorch's `normalize`.
    let norm = x.clone().powf_scalar(2.0).sum_dim(1).sqrt().clamp_min(1e-12);
    x / norm
}

/// The first `dimensions` of each vector (Matryoshka, arXiv:2205.13147): `[batch, dim]` to
/// `[batch, dimensions]`.
///
/// # Errors
/// More dimensions than there are, or none.
pub fn truncate<B: Backend>(x: Tensor<B, 2>, dimensions: usize) -> Result<Tensor<B, 2>> {
    let [_, dim] = x.dims();
    if dimensions == 0 || dimensions > dim {
        return Err(Error::invalid(format!(
            "{dimensions} dimensions asked of vectors that have {dim}"
        )));
    }
    Ok(x.narrow(1, 0, dimensions))
}

#[cfg(test)]
mod tests;
