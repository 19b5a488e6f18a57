//! GISTEmbed (arXiv:2402.16829): another model says which texts of a batch are negatives. Names and rules are those of
//! sentence-transformers' `GISTEmbedLoss`.

use burn::tensor::{Tensor, backend::Backend};
use serde::{Deserialize, Serialize};

/// What the margin of a guide is of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarginStrategy {
    /// A distance from the positive's similarity.
    #[default]
    Absolute,
    /// A share of it.
    Relative,
}

impl MarginStrategy {
    /// Whether a recipe need not name it.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How a guide chooses negatives, and of which pairs. sentence-transformers contrasts anchors and positives by default.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Gist {
    /// A text is no negative where the guide's similarity is above the positive's less this.
    pub margin: f64,
    /// What the margin is of.
    pub margin_strategy: MarginStrategy,
    /// Other queries are negatives of a query, too.
    pub contrast_anchors: bool,
    /// Other queries' positives are negatives of a query's positive, too.
    pub contrast_positives: bool,
}

impl Gist {
    /// Similarities above which a pair is no negative, from the guide's of the positives.
    pub(super) fn limit<B: Backend>(&self, positives: Tensor<B, 2>) -> Tensor<B, 2> {
        match self.margin_strategy {
            MarginStrategy::Absolute => positives.sub_scalar(self.margin),
            MarginStrategy::Relative => positives.clone() - positives.abs().mul_scalar(self.margin),
        }
    }
}

/// What another model says of a batch. Nothing flows back into its vectors, which may be of another width.
#[derive(Debug, Clone)]
pub struct Guide<B: Backend> {
    /// Its vectors of the queries `[n, width]`, normalised.
    pub queries: Tensor<B, 2>,
    /// Its vectors of the documents `[m, width]`, normalised.
    pub documents: Tensor<B, 2>,
    /// What is made of them.
    pub settings: Gist,
}
