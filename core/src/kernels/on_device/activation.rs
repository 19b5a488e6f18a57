//! What lies between the feed-forward's products, in f32.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use burn::tensor::{Tensor, activation};

use super::whole;
use crate::config::Activation;
use crate::kernels::{Kernels, activate};

/// The factor of the cube in the approximation of GELU by tanh (arXiv:1606.08415).
const CUBE: f64 = 0.044_715;

/// `act(gate) * up`, or `act(up)` without a gate: `[rows, inner]`.
pub(super) fn activated<B: Kernels>(
    kind: Activation,
    gate: Option<&Tensor<B, 2>>,
    up: &Tensor<B, 2>,
) -> Tensor<B, 2> {
    match gate {
        Some(gate) => activate(whole(gate.clone()), kind) * whole(up.clone()),
        None => activate(whole(up.clone()), kind),
    }
}

/// From the gradient of what [`activated`] gives to those of the gate and of `up`.
pub(super) fn backward<B: Kernels>(
    kind: Activation,
    gate: Option<&Tensor<B, 2>>,
    up: &Tensor<B, 2>,
    gradient: Tensor<B, 2>,
) -> (Option<Tensor<B, 2>>, Tensor<B, 2>) {
    let up = whole(up.clone());
    match gate {
        Some(gate) => {
            let gate = whole(gate.clone());
            let of_gate = gradient.clone() * up * slope(kind, gate.clone());
            (Some(of_gate), gradient * activate(gate, kind))
        }
        None => (None, gradient * slope(kind, up)),
    }
}

/// The derivative.
fn slope<B: Kernels>(kind: Activation, x: Tensor<B, 2>) -> Tensor<B, 2> {
    match kind {
        Activation::Gelu => {
            let density = (x.clone() * x.clone() * -0.5).exp() * (2.0 * PI).sqrt().recip();
            normal(x.clone()) + x * density
        }
        Activation::GeluTanh => {
            let tanh = bent(x.clone());
            let of_tanh = (tanh.clone() * tanh.clone() * -1.0) + 1.0;
            let inside = (x.clone() * x.clone() * (3.0 * CUBE) + 1.0) * (2.0 / PI).sqrt();
            (tanh + 1.0 + x * of_tanh * inside) * 0.5
        }
        Activation::Silu => {
            let share = activation::sigmoid(x.clone());
            share.clone() * (x * (share * -1.0 + 1.0) + 1.0)
        }
        Activation::Relu => x.greater_elem(0.0).float(),
    }
}

/// The normal distribution below `x`.
fn normal<B: Kernels>(x: Tensor<B, 2>) -> Tensor<B, 2> {
    ((x * FRAC_1_SQRT_2).erf() + 1.0) * 0.5
}

/// tanh of GELU's approximation.
fn bent<B: Kernels>(x: Tensor<B, 2>) -> Tensor<B, 2> {
    let cubed = x.clone() * x.clone() * x.clone() * CUBE;
    ((x + cubed) * (2.0 / PI).sqrt()).tanh()
}
