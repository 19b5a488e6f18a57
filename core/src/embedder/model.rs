//! [`EmbeddingModel`]: backbone, pooling head and projections; everything that has parameters.

use std::ops::Range;

use burn::module::Module;
use burn::tensor::{Tensor, backend::Backend};

use crate::Result;
use crate::config::{AttentionMode, ModelConfig};
use crate::kernels::Kernels;
use crate::model::{Backbone, ForwardOptions, LoraConfig, ModelInput, States};
use crate::pooling::{self, Dense, DenseConfig, Explanation, Pooling, PoolingConfig};

/// Shape of an [`EmbeddingModel`].
#[derive(Debug, Clone, PartialEq)]
pub struct EmbedderConfig {
    /// The transformer's.
    pub config: ModelConfig,
    /// The pooling head's.
    pub pooling: PoolingConfig,
    /// The projections', in order.
    pub dense: Vec<DenseConfig>,
}

impl EmbedderConfig {
    /// Width of the vectors.
    pub fn dimensions(&self) -> usize {
        let pooled = self.pooling.output_size(self.config.output_size());
        self.dense.last().map_or(pooled, |dense| dense.out_features)
    }
}

/// Backbone, pooling head and projections: everything that has parameters.
#[derive(Module, Debug)]
pub struct EmbeddingModel<B: Backend> {
    pub(crate) backbone: Backbone<B>,
    pub(crate) pooling: Pooling<B>,
    /// Projections after pooling, in order.
    pub(crate) dense: Vec<Dense<B>>,
    /// Shape of the backbone, attention mode included.
    #[module(skip)]
    pub(crate) config: ModelConfig,
    /// Whether vectors are divided by their norm.
    pub(crate) normalize: bool,
}

/// What a model is made of, and how it is changed.
impl<B: Backend> EmbeddingModel<B> {
    /// The transformer.
    pub fn backbone(&self) -> &Backbone<B> {
        &self.backbone
    }

    /// The transformer, to be changed in place; its shape must stay that of [`EmbeddingModel::config`].
    pub fn backbone_mut(&mut self) -> &mut Backbone<B> {
        &mut self.backbone
    }

    /// The pooling head.
    pub fn pooling(&self) -> &Pooling<B> {
        &self.pooling
    }

    /// The projections after pooling, in order.
    pub fn dense(&self) -> &[Dense<B>] {
        &self.dense
    }

    /// The projections, to be changed in place.
    pub fn dense_mut(&mut self) -> &mut [Dense<B>] {
        &mut self.dense
    }

    /// Shape of the backbone, attention mode included.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Whether vectors are divided by their norm.
    pub fn normalizes(&self) -> bool {
        self.normalize
    }

    /// The same with a backbone of the same shape in the place of its own: with or without adapters, merged,
    /// with other weights.
    pub fn map_backbone(self, change: impl FnOnce(Backbone<B>) -> Backbone<B>) -> Self {
        Self { backbone: change(self.backbone), ..self }
    }

    /// The same with another pooling head for the same backbone; the projections must take what it gives.
    pub fn with_pooling(self, pooling: Pooling<B>) -> Self {
        Self { pooling, ..self }
    }

    /// The same with one more projection, which must take what the step before it gives.
    pub fn with_dense(mut self, dense: Dense<B>) -> Self {
        self.dense.push(dense);
        self
    }

    /// The same with vectors that are, or are not, divided by their norm.
    pub fn with_normalize(self, normalize: bool) -> Self {
        Self { normalize, ..self }
    }
}

impl<B: Kernels> EmbeddingModel<B> {
    /// A model with random weights and L2-normalised output.
    pub fn random(config: &ModelConfig, pooling: &PoolingConfig, device: &B::Device) -> Self {
        let backbone = Backbone::random(config, device);
        Self::new(backbone, Pooling::new(pooling, config, device), config)
    }

    /// A backbone and a pooling head, both of the shape given, without projections and with L2-normalised
    /// output.
    pub fn new(backbone: Backbone<B>, pooling: Pooling<B>, config: &ModelConfig) -> Self {
        Self { backbone, pooling, dense: Vec::new(), config: config.clone(), normalize: true }
    }

    /// The same with only some of the backbone's blocks, in the order given (a student of less depth).
    ///
    /// # Errors
    /// No block at all, or one that the backbone does not have.
    pub fn keep_blocks(self, keep: &[usize]) -> Result<Self> {
        let backbone = self.backbone.keep_blocks(keep)?;
        Ok(Self { backbone, config: self.config.keep_layers(keep)?, ..self })
    }

    /// The same with LoRA adapters on every projection that the configuration names.
    ///
    /// # Errors
    /// A target that matches no projection.
    pub fn with_lora(self, lora: &LoraConfig, device: &B::Device) -> Result<Self> {
        let (backbone, _) = self.backbone.with_lora(lora, &self.config, device)?;
        Ok(Self { backbone, ..self })
    }

    /// Its shape.
    pub fn embedder_config(&self) -> EmbedderConfig {
        EmbedderConfig {
            config: self.config.clone(),
            pooling: self.pooling.config().clone(),
            dense: self.dense.iter().map(|dense| dense.config().clone()).collect(),
        }
    }

    /// Width of the vectors.
    pub fn dimensions(&self) -> usize {
        self.embedder_config().dimensions()
    }

    /// One forward pass: vectors `[batch, dim]` and how pooling made them.
    ///
    /// # Errors
    /// A pooling head without its parameters.
    pub fn forward(&self, input: &ModelInput<B>) -> Result<(Tensor<B, 2>, Explanation<B>)> {
        let (vectors, explanation, _) = self.forward_with(input, ForwardOptions::default())?;
        Ok((vectors, explanation))
    }

    /// As [`EmbeddingModel::forward`], with the states that it passed through.
    ///
    /// # Errors
    /// As [`EmbeddingModel::forward`].
    pub fn forward_with(
        &self,
        input: &ModelInput<B>,
        want: ForwardOptions,
    ) -> Result<(Tensor<B, 2>, Explanation<B>, States<B>)> {
        let (mut vectors, explanation, states) = self.projected(input, want)?;
        if self.normalize {
            vectors = pooling::l2_normalize(vectors);
        }
        Ok((vectors, explanation, states))
    }

    /// Vectors as the last projection leaves them.
    pub(crate) fn projected(
        &self,
        input: &ModelInput<B>,
        want: ForwardOptions,
    ) -> Result<(Tensor<B, 2>, Explanation<B>, States<B>)> {
        let mode = self.config.attention;
        let states =
            self.backbone.forward(input, mode, self.pooling.config().forward_options().or(want));
        let (vectors, explanation) = self.pool(&states, input)?;
        Ok((vectors, explanation, states))
    }

    /// The end of the forward pass: the backbone's states through the pooling head and the
    /// projections to vectors `[batch, dim]`, not normalised, and how pooling made them.
    ///
    /// # Errors
    /// A pooling head without its parameters.
    pub fn pool(
        &self,
        states: &States<B>,
        input: &ModelInput<B>,
    ) -> Result<(Tensor<B, 2>, Explanation<B>)> {
        let (pooled, explanation) = self.pooling.forward(states, input, self.config.attention)?;
        Ok((self.project(pooled), explanation))
    }

    /// As [`EmbeddingModel::projected`], text by text `[1, dim]`: what follows the backbone sees each text
    /// alone and unpadded, so its numbers are the same bits whatever the batch.
    pub(super) fn projected_apart(&self, input: &ModelInput<B>) -> Result<Vec<Tensor<B, 2>>> {
        let (mode, want) = (self.config.attention, self.pooling.config().forward_options());
        // Attention weights are made of whole batches, padding included.
        let together = (!want.attention).then(|| self.backbone.forward(input, mode, want));
        let vector = |(row, extent): (usize, &Range<usize>)| {
            let alone = input.row(row);
            let states = match &together {
                Some(states) => states.row(row, extent),
                None => self.backbone.forward(&alone, mode, want),
            };
            Ok(self.pool(&states, &alone)?.0)
        };
        input.rows.iter().enumerate().map(vector).collect()
    }

    /// Pooled states through the projections.
    pub(crate) fn project(&self, pooled: Tensor<B, 2>) -> Tensor<B, 2> {
        self.dense.iter().fold(pooled, |x, dense| dense.forward(x))
    }

    /// Everything at once: states of all layers and the last attention, for analyses.
    pub fn states(&self, input: &ModelInput<B>) -> States<B> {
        self.backbone.forward(
            input,
            self.config.attention,
            ForwardOptions { layers: true, attention: true },
        )
    }

    /// The attention mode.
    pub fn attention(&self) -> AttentionMode {
        self.config.attention
    }
}
