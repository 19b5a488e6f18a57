//! The feed-forward network of a block.

use burn::backend::Flex;

use super::projection::{self, Input};
use super::{Lows, Places, Primitive, activation, floats};
use crate::kernels::{BlockOf, Projection};
use crate::quant::HostMatrix;
use crate::quant::product::{Biased, Gate};

/// What a network computes, and what its gradient needs.
#[derive(Default)]
pub(super) struct Inside {
    /// `[tokens, hidden]`.
    pub y: Vec<f32>,
    pub gate: Option<Vec<f32>>,
    /// Before it is activated; empty where nothing trains.
    pub up: Vec<f32>,
}

/// The network of `x` `[tokens, hidden]`, one projection after the other.
pub(super) fn forward(
    x: &[f32],
    block: &BlockOf<Flex>,
    places: &Places,
    lows: &mut Lows,
    trains: bool,
) -> Inside {
    let precision = block.precision;
    let input = Input::new(x, block.up.shape()[0]);
    let (up, low) = projection::forward(&input, &block.up, precision, places);
    lows.up = low;
    let gate = block.gate.as_ref().map(|gate| {
        let (gate, low) = projection::forward(&input, gate, precision, places);
        lows.gate = low;
        gate
    });
    drop(input);
    let (gate, up) = if block.joined {
        let (gate, up) = activation::halves(&up, block.up.shape()[1]);
        (Some(gate), up)
    } else {
        (gate, up)
    };
    let mut inner = up;
    let up = if trains { inner.clone() } else { Vec::new() };
    activation::activate(block.activation, gate.as_deref(), &mut inner);
    let input = Input::new(&inner, block.down.shape()[0]);
    let (y, low) = projection::forward(&input, &block.down, precision, places);
    lows.down = low;
    Inside { y, gate, up }
}

/// The same in one go, where all weights are int8 or int4 and none has an adapter.
pub(super) fn packed(x: &[f32], block: &BlockOf<Flex>) -> Option<Vec<f32>> {
    let gate = match &block.gate {
        Some(gate) => Gate::Apart(biased(gate)?),
        None if block.joined => Gate::Joined,
        None => Gate::None,
    };
    let activate = |gate: Option<&[f32]>, up: &mut [f32]| {
        activation::activate(block.activation, gate, up);
    };
    crate::quant::product::feed_forward(x, biased(&block.up)?, gate, biased(&block.down)?, activate)
}

fn biased(projection: &Projection<Primitive>) -> Option<Biased<'_>> {
    match projection.matrix.as_deref() {
        Some(HostMatrix::Integers(weights)) if projection.adapters.is_empty() => {
            Some(Biased { weights, bias: projection.bias.as_ref().map(floats) })
        }
        _ => None,
    }
}
