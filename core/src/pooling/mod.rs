//! Pooling heads: token states in, one vector a text out, and an [`Explanation`] of how.
//!
//! One file a kind of head: `token` for the parameter-free ones, `anchor` for
//! anchor-token-aware pooling, `latent` for every head that attends (self-attention, latent
//! attention, last-layer and multi-layer trainable), `dense` for the projection after pooling.

mod anchor;
mod dense;
mod latent;
mod token;

use burn::module::Module;
use burn::tensor::{Tensor, backend::Backend};
use serde::{Deserialize, Serialize};

pub use anchor::{AnchorScore, anchor_weights};
pub use dense::{Dense, DenseActivation, DenseConfig};
pub use latent::{
    BlockConfig, CrossAttention, FeedForwardKind, LatentFeedForward, LayerState, PoolingBlock,
    layer_states,
};

use crate::config::{AttentionMode, ModelConfig};
use crate::kernels::Kernels;
use crate::model::{ForwardOptions, ModelInput, States, initialized};
use crate::{Error, Result};

/// Which pooling head, with its settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case", deny_unknown_fields)]
pub enum PoolingConfig {
    /// State of the first token (BERT's `[CLS]`).
    Cls,
    /// State of the last token (EOS).
    LastToken,
    /// Mean of the states.
    Mean,
    /// Mean weighted by position 1, 2, ... (SGPT, arXiv:2202.08904).
    WeightedMean,
    /// Anchor-token-aware: states weighted by the attention that they draw (METHODS.md 2).
    Anchor {
        /// How attention becomes a token's score.
        #[serde(default)]
        score: AnchorScore,
    },
    /// A self-attention block over the states, then their mean (NV-Embed's ablation).
    SelfAttention(BlockConfig),
    /// Latent attention (NV-Embed, METHODS.md 1).
    LatentAttention(BlockConfig),
    /// Latents that attend over the last layer's tokens (METHODS.md 4).
    LastLayerTrainable(BlockConfig),
    /// Latents that attend over one state a layer (METHODS.md 4).
    MultiLayerTrainable(BlockConfig),
}

impl PoolingConfig {
    /// Reads the name of a head, with default sizes where it has some.
    pub fn from_name(name: &str) -> Result<Self> {
        serde_json::from_value(serde_json::json!({ "mode": name })).map_err(|_| {
            Error::invalid(format!(
                "unknown pooling {name:?}; known are cls, last_token, mean, weighted_mean, anchor, \
                 self_attention, latent_attention, last_layer_trainable, multi_layer_trainable"
            ))
        })
    }

    /// The heads without parameters, which any model's states can be seen through.
    pub fn parameter_free() -> [Self; 5] {
        let anchor = Self::Anchor { score: AnchorScore::default() };
        [Self::Mean, Self::Cls, Self::LastToken, Self::WeightedMean, anchor]
    }

    /// Name of the head.
    pub fn name(&self) -> &'static str {
        match self {
            PoolingConfig::Cls => "cls",
            PoolingConfig::LastToken => "last_token",
            PoolingConfig::Mean => "mean",
            PoolingConfig::WeightedMean => "weighted_mean",
            PoolingConfig::Anchor { .. } => "anchor",
            PoolingConfig::SelfAttention(_) => "self_attention",
            PoolingConfig::LatentAttention(_) => "latent_attention",
            PoolingConfig::LastLayerTrainable(_) => "last_layer_trainable",
            PoolingConfig::MultiLayerTrainable(_) => "multi_layer_trainable",
        }
    }

    /// Whether the sizes make sense, so that no later code divides by zero or allocates what no
    /// real head has.
    ///
    /// # Errors
    /// A size that is 0 or larger than any real one.
    pub fn check(&self) -> Result<()> {
        let (PoolingConfig::SelfAttention(block)
        | PoolingConfig::LatentAttention(block)
        | PoolingConfig::LastLayerTrainable(block)
        | PoolingConfig::MultiLayerTrainable(block)) = self
        else {
            return Ok(());
        };
        let sizes = [
            ("latents", Some(block.latents), 1 << 20),
            ("latent_size", block.latent_size, 1 << 20),
            // Of both the product is the width of the queries.
            ("heads", Some(block.heads), 1 << 12),
            ("head_dim", block.head_dim, 1 << 16),
        ];
        for (name, size, largest) in sizes {
            if let Some(size) = size.filter(|size| !(1..=largest).contains(size)) {
                return Err(Error::invalid(format!(
                    "{} pooling: {name} is {size}, outside 1..={largest}",
                    self.name()
                )));
            }
        }
        Ok(())
    }

    /// What the head needs from the forward pass.
    pub fn forward_options(&self) -> ForwardOptions {
        ForwardOptions {
            layers: matches!(self, PoolingConfig::MultiLayerTrainable(_)),
            attention: matches!(self, PoolingConfig::Anchor { .. }),
        }
    }

    /// Width of the pooled vector for a model of the given width.
    pub fn output_size(&self, hidden: usize) -> usize {
        match self {
            PoolingConfig::LastLayerTrainable(block)
            | PoolingConfig::MultiLayerTrainable(block) => block.latent_size.unwrap_or(hidden),
            _ => hidden,
        }
    }
}

/// How a pooled vector came about, for pictures.
#[derive(Debug, Clone)]
pub struct Explanation<B: Backend> {
    /// Weight of each token, summing to 1 a row: `[batch, seq]`; absent where tokens are not
    /// what the head weighs.
    pub tokens: Option<Tensor<B, 2>>,
    /// Attention between each token and each latent: `[batch, heads, seq, latents]`.
    pub latents: Option<Tensor<B, 4>>,
    /// Weight of each layer, summing to 1 a row: `[batch, layers]`.
    pub layers: Option<Tensor<B, 2>>,
}

impl<B: Backend> Explanation<B> {
    fn tokens(weights: Tensor<B, 2>) -> Self {
        Self { tokens: Some(weights), latents: None, layers: None }
    }
}

/// A pooling head with its parameters, if it has any.
#[derive(Module, Debug)]
pub struct Pooling<B: Backend> {
    /// The attending block of the trainable heads.
    pub block: Option<PoolingBlock<B>>,
    #[module(skip)]
    config: PoolingConfig,
}

impl<B: Kernels> Pooling<B> {
    /// A head for a model, freshly initialised.
    pub fn new(config: &PoolingConfig, model: &ModelConfig, device: &B::Device) -> Self {
        initialized(Self::unfilled(config, model, device))
    }

    /// A head whose parameters are to come from a checkpoint: none is there yet, whatever its size.
    pub(crate) fn unfilled(
        config: &PoolingConfig,
        model: &ModelConfig,
        device: &B::Device,
    ) -> Self {
        use PoolingConfig as P;
        let hidden = model.hidden_size;
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

    /// Pools `[batch, seq, hidden]` states to `[batch, dim]`, and explains.
    ///
    /// Only positions of the pooling mask take part. `mode` decides what stands for a layer in
    /// multi-layer pooling: the EOS state (causal) or the mean (bidirectional).
    ///
    /// # Errors
    /// States without the layers or the attention that [`PoolingConfig::want`] asks for.
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
