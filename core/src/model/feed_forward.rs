//! Feed-forward blocks: plain (BERT) and gated (GLU variants, arXiv:2002.05202).

use burn::module::Module;
use burn::nn::Initializer;
use burn::tensor::{Tensor, backend::Backend};

use super::linear::Linear;
use crate::config::{Activation, Gate};
use crate::kernels::{Kernels, activate};

/// `down(act(up(x)))`, or `down(act(gate(x)) * up(x))` with a gate.
#[derive(Module, Debug)]
pub struct FeedForward<B: Backend> {
    /// `[hidden, intermediate]`, where the gate has a projection of its own.
    pub gate: Option<Linear<B>>,
    /// `[hidden, intermediate]`, or `[hidden, 2 intermediate]` where the gate is its first half.
    pub up: Linear<B>,
    /// `[intermediate, hidden]`.
    pub down: Linear<B>,
    /// Whether the gate is the first half of `up`.
    pub(super) joined: bool,
    #[module(skip)]
    pub(super) activation: Activation,
}

impl<B: Kernels> FeedForward<B> {
    /// `names` are what the family calls gate, up and down.
    pub(super) fn new(
        [hidden, intermediate]: [usize; 2],
        kind: Gate,
        [gate, up, down]: [&str; 3],
        [up_bias, down_bias]: [bool; 2],
        activation: Activation,
        init: &Initializer,
        device: &B::Device,
    ) -> Self {
        let joined = kind == Gate::Joined;
        let into = |name, width| Linear::new(hidden, &[(name, width)], up_bias, init, device);
        Self {
            gate: (kind == Gate::Apart).then(|| into(gate, intermediate)),
            up: into(up, if joined { 2 * intermediate } else { intermediate }),
            down: Linear::new(intermediate, &[(down, hidden)], down_bias, init, device),
            joined,
            activation,
        }
    }

    /// `[rows, hidden]` to the same.
    pub fn forward_rows(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.forward(x.unsqueeze::<3>()).squeeze_dim(0)
    }

    /// `[batch, seq, hidden]` to the same.
    pub fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let gate = self.gate.as_ref().map(|gate| gate.forward(x.clone()));
        let up = self.up.forward(x);
        let (gate, up) = if self.joined {
            let inner = up.dims()[2] / 2;
            (Some(up.clone().narrow(2, 0, inner)), up.narrow(2, inner, inner))
        } else {
            (gate, up)
        };
        self.down.forward(match (gate, self.activation) {
            (Some(gate), Activation::Silu) => B::silu_product(gate, up),
            (Some(gate), other) => activate(gate, other) * up,
            (None, activation) => activate(up, activation),
        })
    }

    /// The projections with their paths inside the block; `path` is this one's.
    pub(super) fn projections_mut(&mut self, path: &str) -> Vec<(String, &mut Linear<B>)> {
        let gate = self.gate.iter_mut().map(|gate| ("gate", gate));
        gate.chain([("up", &mut self.up), ("down", &mut self.down)])
            .map(|(name, linear)| (format!("{path}.{name}"), linear))
            .collect()
    }
}
