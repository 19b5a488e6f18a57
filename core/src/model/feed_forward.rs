//! Feed-forward blocks: plain (encoders) and gated (decoders; GLU variants, arXiv:2002.05202).

use burn::module::Module;
use burn::nn::Initializer;
use burn::tensor::{Tensor, activation, backend::Backend};

use super::linear::Linear;
use crate::config::Activation;
use crate::kernels::Kernels;

/// `down(act(up(x)))`, or `down(act(gate(x)) * up(x))` with a gate.
#[derive(Module, Debug)]
pub struct FeedForward<B: Backend> {
    /// `[hidden, intermediate]`, in gated blocks only.
    pub gate: Option<Linear<B>>,
    /// `[hidden, intermediate]`.
    pub up: Linear<B>,
    /// `[intermediate, hidden]`.
    pub down: Linear<B>,
    #[module(skip)]
    pub(super) activation: Activation,
}

impl<B: Kernels> FeedForward<B> {
    /// `names` are what the family calls gate (unless there is none), up and down.
    pub(super) fn new(
        [hidden, intermediate]: [usize; 2],
        (gate, up, down): (Option<&str>, &str, &str),
        bias: bool,
        activation: Activation,
        init: &Initializer,
        device: &B::Device,
    ) -> Self {
        Self {
            gate: gate.map(|gate| Linear::new(hidden, &[(gate, intermediate)], bias, init, device)),
            up: Linear::new(hidden, &[(up, intermediate)], bias, init, device),
            down: Linear::new(intermediate, &[(down, hidden)], bias, init, device),
            activation,
        }
    }

    /// `[batch, seq, hidden]` to the same.
    pub fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let inner = match &self.gate {
            Some(gate) => {
                let (gate, up) = (gate.forward(x.clone()), self.up.forward(x));
                match self.activation {
                    Activation::Silu => B::silu_product(gate, up),
                    other => activate(gate, other) * up,
                }
            }
            None => activate(self.up.forward(x), self.activation),
        };
        self.down.forward(inner)
    }

    /// The projections with their paths inside the block.
    pub(super) fn projections_mut(&mut self) -> Vec<(&'static str, &mut Linear<B>)> {
        let gate = self.gate.iter_mut().map(|gate| ("feed_forward.gate", gate));
        gate.chain([("feed_forward.up", &mut self.up), ("feed_forward.down", &mut self.down)])
            .collect()
    }
}

fn activate<B: Kernels>(x: Tensor<B, 3>, activation: Activation) -> Tensor<B, 3> {
    match activation {
        Activation::Gelu => B::exact_gelu(x),
        Activation::GeluTanh => activation::gelu_approximate(x),
        Activation::Silu => activation::silu(x),
        Activation::Relu => activation::relu(x),
    }
}
