//! The dense projection after pooling (sentence-transformers' `2_Dense`).

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Tensor, activation, backend::Backend};
use serde::{Deserialize, Serialize};

use crate::kernels::Kernels;
use crate::model::{Linear, initialized};
use crate::{Error, Result};

/// Sizes of a [`Dense`] projection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DenseConfig {
    /// Input width.
    pub in_features: usize,
    /// Output width.
    pub out_features: usize,
    /// Whether there is a bias.
    #[serde(default = "yes")]
    pub bias: bool,
    /// Activation after the product.
    #[serde(default)]
    pub activation: DenseActivation,
}

fn yes() -> bool {
    true
}

/// Activation after a [`Dense`] projection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenseActivation {
    /// None.
    #[default]
    Identity,
    /// Hyperbolic tangent, sentence-transformers' default.
    Tanh,
    /// Rectified linear unit.
    Relu,
    /// Gaussian error linear unit.
    Gelu,
}

/// `act(x W + b)`: `[batch, in]` to `[batch, out]`.
#[derive(Module, Debug)]
pub struct Dense<B: Backend> {
    linear: Linear<B>,
    #[module(skip)]
    config: DenseConfig,
}

impl<B: Kernels> Dense<B> {
    /// A projection, randomly initialised.
    pub fn new(config: &DenseConfig, device: &B::Device) -> Self {
        initialized(Self::unfilled(config, device))
    }

    /// A projection to be filled from a checkpoint; no memory is allocated yet, whatever its size.
    pub(crate) fn unfilled(config: &DenseConfig, device: &B::Device) -> Self {
        let init = Initializer::KaimingUniform { gain: 1.0 / 3f64.sqrt(), fan_out_only: false };
        let parts = [("dense", config.out_features)];
        let linear = Linear::new(config.in_features, &parts, config.bias, &init, device);
        Self { linear, config: config.clone() }
    }

    /// The projection's sizes.
    pub fn config(&self) -> &DenseConfig {
        &self.config
    }

    /// Replaces the weights `[in, out]`.
    ///
    /// # Errors
    /// Weights of another shape.
    pub fn set_weight(&mut self, weight: Tensor<B, 2>) -> Result<()> {
        let shape = [self.config.in_features, self.config.out_features];
        if weight.dims() != shape {
            return Err(Error::invalid(format!(
                "weights of shape {:?} for a projection of shape {shape:?}",
                weight.dims()
            )));
        }
        self.linear.weight = Param::from_tensor(weight);
        Ok(())
    }

    /// `[batch, in]` to `[batch, out]`.
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let y = self.linear.forward_rows(x.cast(self.linear.weight.val().dtype()));
        match self.config.activation {
            DenseActivation::Identity => y,
            DenseActivation::Tanh => y.tanh(),
            DenseActivation::Relu => activation::relu(y),
            DenseActivation::Gelu => activation::gelu(y),
        }
    }
}
