//! [`PoolingConfig`]: which head, with its settings.

use serde::{Deserialize, Serialize};

use super::anchor::AnchorScore;
use super::block::BlockConfig;
use crate::model::ForwardOptions;
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
    /// Anchor-token-aware: states weighted by the attention that they draw (arXiv:2509.00842, section 2.2).
    Anchor {
        /// How attention becomes a token's score.
        #[serde(default)]
        score: AnchorScore,
    },
    /// A self-attention block over the states, then their mean (NV-Embed's ablation, arXiv:2405.17428, section 5.2.3).
    SelfAttention(BlockConfig),
    /// Latent attention (NV-Embed, arXiv:2405.17428, section 3.2).
    LatentAttention(BlockConfig),
    /// Latents that attend over the last layer's tokens (arXiv:2409.02727, section 4.1, models 2 and 4).
    LastLayerTrainable(BlockConfig),
    /// Latents that attend over one state a layer (arXiv:2409.02727, section 3.2).
    MultiLayerTrainable(BlockConfig),
}

impl PoolingConfig {
    /// The head of a name, with default sizes where it has some.
    pub fn from_name(name: &str) -> Result<Self> {
        serde_json::from_value(serde_json::json!({ "mode": name })).map_err(|_| {
            Error::invalid(format!(
                "unknown pooling {name:?}; known are cls, last_token, mean, weighted_mean, anchor, \
                 self_attention, latent_attention, last_layer_trainable, multi_layer_trainable"
            ))
        })
    }

    /// The heads without parameters, which can pool any model's states.
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

    /// Whether another head over states that are `hidden` wide has the same parameters, however the sizes are written and
    /// whatever new ones are drawn from.
    pub fn same_parameters(&self, other: &Self, hidden: usize) -> bool {
        self.written_out(hidden) == other.written_out(hidden)
    }

    fn written_out(&self, hidden: usize) -> Self {
        let mut all = self.clone();
        if let Self::SelfAttention(block)
        | Self::LatentAttention(block)
        | Self::LastLayerTrainable(block)
        | Self::MultiLayerTrainable(block) = &mut all
        {
            block.head_dim = Some(block.width_of_head(hidden));
            block.latent_size = Some(block.latent_size.unwrap_or(hidden));
            block.layer_std = 0.0;
        }
        all
    }

    /// Refuses sizes that no real head has, so that no later code divides by zero or allocates
    /// without bound.
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
            // The width of the queries is the product of both.
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
        if !(0.0..=1e3).contains(&block.layer_std) {
            return Err(Error::invalid(format!(
                "{} pooling: layer_std is {}, outside 0..=1000",
                self.name(),
                block.layer_std
            )));
        }
        Ok(())
    }

    /// Settings that say nothing to this head and yet are given, to be refused where somebody writes them; those saved
    /// with a model are left alone.
    pub fn unused(&self) -> Vec<&'static str> {
        let (block, attends_over_states) = match self {
            Self::SelfAttention(block) | Self::LatentAttention(block) => (block, true),
            Self::LastLayerTrainable(block) | Self::MultiLayerTrainable(block) => (block, false),
            _ => return Vec::new(),
        };
        let usual = BlockConfig::default();
        let has_latents = !matches!(self, Self::SelfAttention(_));
        let has_layers = matches!(self, Self::MultiLayerTrainable(_));
        let fields = [
            ("latents", !has_latents && block.latents != usual.latents),
            ("latent_size", attends_over_states && block.latent_size.is_some()),
            ("layer_std", !has_layers && block.layer_std != usual.layer_std),
        ];
        fields.iter().filter(|(_, unused)| *unused).map(|(field, _)| *field).collect()
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
