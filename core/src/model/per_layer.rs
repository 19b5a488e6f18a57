//! Per-layer inputs (EmbeddingGemma 2): what each layer gets of the token embeddings beside the states, and the
//! branch that mixes it in.

use burn::module::Module;
use burn::nn::{Initializer, RmsNorm, RmsNormConfig};
use burn::tensor::{Tensor, backend::Backend};

use super::linear::Linear;
use crate::config::{Activation, ModelConfig};
use crate::kernels::{Kernels, activate};

/// `norm(projection(embeddings) / sqrt(hidden))`, for all layers at once.
#[derive(Module, Debug)]
pub struct PerLayerInputs<B: Backend> {
    /// `[hidden, layers width]`, the layers side by side.
    pub projection: Linear<B>,
    /// Norm of each layer's input `[width]`.
    pub norm: RmsNorm<B>,
}

impl<B: Kernels> PerLayerInputs<B> {
    pub(super) fn new(
        config: &ModelConfig,
        width: usize,
        init: &Initializer,
        device: &B::Device,
    ) -> Self {
        let parts = [("per_layer_model_projection", config.num_layers * width)];
        Self {
            projection: Linear::new(config.hidden_size, &parts, false, init, device),
            norm: RmsNormConfig::new(width).with_epsilon(config.norm_eps).init(device),
        }
    }

    /// Embeddings `[batch, seq, hidden]` to each layer's input `[batch, seq, width]`.
    pub(super) fn forward(&self, embeddings: &Tensor<B, 3>) -> Vec<Tensor<B, 3>> {
        let [_, _, hidden] = embeddings.dims();
        let [width] = self.norm.gamma.dims();
        let joined = self.projection.forward(embeddings.clone());
        let joined = joined.mul_scalar((hidden as f64).powf(-0.5));
        let layers = joined.dims()[2] / width.max(1);
        let of_layer = |layer| joined.clone().narrow(2, layer * width, width);
        (0..layers).map(|layer| B::rms_norm(of_layer(layer), &self.norm)).collect()
    }

    /// Keeps only some layers, in the order given.
    pub(super) fn keep(&mut self, layers: &[usize]) {
        let [width] = self.norm.gamma.dims();
        let kept: Vec<_> = layers.iter().map(|layer| layer * width..(layer + 1) * width).collect();
        self.projection.keep_columns(&kept);
    }
}

/// `x + norm(projection(act(gate(x)) * input))`, after attention and feed-forward.
#[derive(Module, Debug)]
pub struct PerLayerBranch<B: Backend> {
    /// `[hidden, width]`.
    pub gate: Linear<B>,
    /// `[width, hidden]`.
    pub projection: Linear<B>,
    /// Norm of the branch's output.
    pub norm: RmsNorm<B>,
    #[module(skip)]
    activation: Activation,
}

impl<B: Kernels> PerLayerBranch<B> {
    pub(super) fn new(
        config: &ModelConfig,
        width: usize,
        init: &Initializer,
        device: &B::Device,
    ) -> Self {
        let hidden = config.hidden_size;
        let gate = [("per_layer_input_gate", width)];
        Self {
            gate: Linear::new(hidden, &gate, false, init, device),
            projection: Linear::new(
                width,
                &[("per_layer_projection", hidden)],
                false,
                init,
                device,
            ),
            norm: RmsNormConfig::new(hidden).with_epsilon(config.norm_eps).init(device),
            activation: config.activation,
        }
    }

    /// States `[batch, seq, hidden]` and the layer's input `[batch, seq, width]` to states.
    pub(super) fn forward(&self, x: Tensor<B, 3>, input: Tensor<B, 3>) -> Tensor<B, 3> {
        let gated = activate(self.gate.forward(x.clone()), self.activation) * input;
        x + B::rms_norm(self.projection.forward(gated), &self.norm)
    }

    /// The projections with their paths inside the block.
    pub(super) fn projections_mut(&mut self) -> [(&'static str, &mut Linear<B>); 2] {
        [("per_layer.gate", &mut self.gate), ("per_layer.projection", &mut self.projection)]
    }
}
