//! What a recipe says of steps: the optimizer and the learning rate.

use serde::{Deserialize, Serialize};

/// How gradients become steps. What each one computes is in `optimizer.rs`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// Adam with decoupled weight decay (arXiv:1711.05101).
    #[default]
    AdamW,
    /// Adam with an L2 penalty (arXiv:1412.6980).
    Adam,
    /// Stochastic gradient descent with momentum 0.9 and an L2 penalty.
    Sgd,
    /// AdaGrad with an L2 penalty (Duchi et al., JMLR 12, 2011).
    AdaGrad,
    /// Lion with decoupled weight decay (arXiv:2302.06675).
    Lion,
}

impl OptimizerKind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::AdamW, Self::Adam, Self::Sgd, Self::AdaGrad, Self::Lion];

    /// Its name in a recipe.
    pub fn name(self) -> &'static str {
        match self {
            Self::AdamW => "adamw",
            Self::Adam => "adam",
            Self::Sgd => "sgd",
            Self::AdaGrad => "adagrad",
            Self::Lion => "lion",
        }
    }

    /// Whether a recipe need not name it.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Learning rate after the warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Falls linearly to zero.
    #[default]
    Linear,
    /// Falls to zero along half a cosine.
    Cosine,
    /// Stays.
    Constant,
}

impl Schedule {
    /// Learning rate of a step, from 0: so many steps of linear warm-up to the `highest`, then as the schedule says.
    pub fn learning_rate(self, highest: f64, step: usize, steps: usize, warmup: usize) -> f64 {
        if step < warmup {
            return highest * (step + 1) as f64 / warmup as f64;
        }
        let left = steps.saturating_sub(step) as f64 / steps.saturating_sub(warmup).max(1) as f64;
        match self {
            Self::Constant => highest,
            Self::Linear => highest * left,
            Self::Cosine => highest * 0.5 * (1.0 + (std::f64::consts::PI * (1.0 - left)).cos()),
        }
    }
}
