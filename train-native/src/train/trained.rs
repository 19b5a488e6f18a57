//! What a run trains: an embedder, or a cross-encoder.

use anyhow::Result;
use burn::tensor::backend::Backend;
use kiln_embed::checkpoint::{Files, save};
use kiln_embed::embedder::{Embedder, EmbedderConfig};
use kiln_embed::kernels::Kernels;
use kiln_embed::pooling::PoolingConfig;
use kiln_embed::reranker::{HeadConfig, PairInput, Reranker, RerankerShape, save_reranker};

use crate::eval::Model;

/// A model before or after its training.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "there is one in a run")]
pub enum Trained<B: Backend> {
    /// Vectors of texts.
    Embedder(Embedder<B>),
    /// Scores of pairs.
    Reranker(Reranker<B>),
}

impl<B: Backend> From<Embedder<B>> for Trained<B> {
    fn from(embedder: Embedder<B>) -> Self {
        Self::Embedder(embedder)
    }
}

impl<B: Kernels> Trained<B> {
    /// The embedder, where it is one.
    pub fn embedder(&self) -> Option<&Embedder<B>> {
        match self {
            Self::Embedder(embedder) => Some(embedder),
            Self::Reranker(_) => None,
        }
    }

    /// Where batches are computed.
    pub fn device(&self) -> &B::Device {
        match self {
            Self::Embedder(embedder) => embedder.device(),
            Self::Reranker(reranker) => reranker.device(),
        }
    }

    /// The files of its folder, less its card.
    ///
    /// # Errors
    /// Parameters that cannot be read back from the device.
    pub fn files(&self) -> Result<Files> {
        Ok(match self {
            Self::Embedder(embedder) => save(embedder)?,
            Self::Reranker(reranker) => save_reranker(reranker)?,
        })
    }

    /// As evaluation sets take it.
    pub fn measured(&self) -> Model<'_> {
        match self {
            Self::Embedder(embedder) => Model::Texts(embedder),
            Self::Reranker(reranker) => Model::Pairs(reranker),
        }
    }

    /// Its shape.
    pub fn shape(&self) -> TrainedShape {
        match self {
            Self::Embedder(embedder) => embedder.model().embedder_config().into(),
            Self::Reranker(reranker) => RerankerShape {
                config: reranker.config().clone(),
                head: match reranker.input() {
                    PairInput::Template => Some(reranker.head().config().clone()),
                    PairInput::Prompt(_) => None,
                },
            }
            .into(),
        }
    }
}

/// Shape of what a run trains.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainedShape {
    /// Backbone, pooling and projections.
    pub embedder: EmbedderConfig,
    /// A cross-encoder's head; a decoder's is its language-model head.
    pub head: Option<HeadConfig>,
}

impl From<EmbedderConfig> for TrainedShape {
    fn from(embedder: EmbedderConfig) -> Self {
        Self { embedder, head: None }
    }
}

impl From<RerankerShape> for TrainedShape {
    fn from(RerankerShape { config, head }: RerankerShape) -> Self {
        let pooling = head.as_ref().map_or(PoolingConfig::LastToken, |head| head.scored.pooling());
        Self { embedder: EmbedderConfig { config, pooling, dense: Vec::new() }, head }
    }
}
