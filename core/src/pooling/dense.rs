//! The dense projection after pooling (sentence-transformers' `2_Dense`).

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Tensor, TensorData, activation, backend::Backend};
use serde::{Deserialize, Serialize};

use crate::index::VectorAdapter;
use crate::kernels::Kernels;
use crate::model::{Linear, LoraConfig, initialized};
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

impl DenseConfig {
    /// The sizes of an adapter of vectors.
    pub fn of_adapter(adapter: &VectorAdapter) -> Self {
        let width = adapter.width();
        let activation = DenseActivation::Identity;
        Self { in_features: width, out_features: width, bias: false, activation }
    }

    /// Whether it may be an adapter of vectors: linear, of one width, and without a bias.
    pub fn is_adapter(&self) -> bool {
        self.in_features == self.out_features
            && !self.bias
            && self.activation == DenseActivation::Identity
    }
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

    /// The projection that an adapter of vectors is.
    ///
    /// # Errors
    /// None that such an adapter causes.
    pub fn of_adapter(adapter: &VectorAdapter, device: &B::Device) -> Result<Self> {
        let width = adapter.width();
        let mut dense = Self::new(&DenseConfig::of_adapter(adapter), device);
        let weights = TensorData::new(adapter.weights().to_vec(), [width, width]);
        dense.set_weight(Tensor::from_data(weights, device).transpose())?;
        Ok(dense)
    }

    /// The same with a low-rank step beside the weights, zero at first; the weights stay as they are. Of the
    /// configuration the targets are not asked.
    pub fn with_low_rank(mut self, lora: &LoraConfig, device: &B::Device) -> Self {
        let lora = LoraConfig { targets: vec!["all-linear".into()], ..lora.clone() };
        self.linear.add_adapters(&lora, &["dense".into()], &mut [false], device);
        self
    }

    /// The adapter of vectors that the projection is, the low-rank step included.
    ///
    /// # Errors
    /// A projection to another width, with a bias, or with an activation; values that cannot be read back.
    pub fn to_adapter(&self) -> Result<VectorAdapter> {
        let in_features = self.config.in_features;
        if !self.config.is_adapter() {
            return Err(Error::invalid(format!(
                "{:?} is no adapter of vectors: those keep the width, and have no bias and no activation",
                self.config
            )));
        }
        let weights = self.linear.whole_weight().transpose().into_data().convert::<f32>();
        let weights = weights
            .into_vec::<f32>()
            .map_err(|e| Error::invalid(format!("an adapter cannot be read back: {e:?}")))?;
        VectorAdapter::new(in_features, weights)
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
