//! The feed-forward and its gradient, some tokens after others: its inner states are the widest of a block, and on the way
//! back there are half a dozen of them.

use std::ops::Range;

use burn::tensor::Tensor;

use super::projection::{self, OfProjection, Rows};
use super::{Adapter, InnerTape, InnerTapes, activation, columns, joined, rows};
use crate::kernels::{Block, BlockOf, INNER_AT_ONCE, Kernels};

/// Values of an inner state that are held at once. Tests have several tiles.
pub(super) const AT_ONCE: usize = if cfg!(test) { 100 } else { INNER_AT_ONCE };

/// Tiles have multiples of so many rows, for which kernels are compiled anew less often, and whose masks of dropout begin
/// with a whole pair.
const ROWS: usize = if cfg!(test) { 2 } else { 64 };

/// Adapters of the gate, of `up` and of `down`.
pub(super) type Adapters<'a, B> = [&'a [Adapter<B>]; 3];

/// Gradients of the projections.
pub(super) struct OfInner<B: Kernels> {
    pub(super) gate: Option<OfProjection<B>>,
    pub(super) up: OfProjection<B>,
    pub(super) down: OfProjection<B>,
}

/// The projections of a block's states.
struct Projections<'a, B: Kernels> {
    gate: Option<Rows<'a, B>>,
    up: Rows<'a, B>,
}

impl<'a, B: Kernels> Projections<'a, B> {
    fn of(block: &'a BlockOf<B>) -> Self {
        Self {
            gate: block.gate.as_ref().map(|gate| Rows::new(gate, block.precision)),
            up: Rows::new(&block.up, block.precision),
        }
    }
}

/// `input` `[rows, hidden]` is a factor already; what it becomes `[rows, hidden]`, unless nobody reads it, and, where the block
/// trains, what the way back needs.
pub(super) fn forward<B: Kernels>(
    input: &Tensor<B, 2>,
    block: &BlockOf<B>,
    [gates, ups, downs]: Adapters<'_, B>,
    [trains, unread]: [bool; 2],
) -> (Option<Tensor<B, 2>>, Option<InnerTapes<B>>) {
    let own = Projections::<B>::of(block);
    let down = (!unread).then(|| Rows::<B>::new(&block.down, block.precision));
    let (mut outputs, mut tape) = (Vec::new(), Vec::new());
    for tile in tiles(input.dims()[0], own.up.outputs()) {
        let x = rows(input, tile.clone());
        let up = own.up.forward(&x, ups, tile.start);
        let gate = own.gate.as_ref().map(|gate| gate.forward(&x, gates, tile.start));
        drop(x);
        let all = up.all();
        let of_up = up.into_lows();
        let (gate, of_gate) = match gate {
            Some(gate) => (Some(gate.all()), gate.into_lows()),
            None => (None, Vec::new()),
        };
        let (gate, up) = match gate {
            None if block.joined => {
                let inner = all.dims()[1] / 2;
                (Some(columns(&all, 0..inner)), columns(&all, inner..2 * inner))
            }
            gate => (gate, all),
        };
        let inner = || {
            let inner = activation::activated(block.activation, gate.as_ref(), &up);
            block.precision.factor(inner)
        };
        let of_down = match &down {
            Some(down) => {
                let y = down.forward(&inner(), downs, tile.start);
                outputs.push(y.all());
                y.into_lows()
            }
            None if downs.is_empty() => Vec::new(),
            None => projection::lows(&block.down, &inner(), downs, tile.start),
        };
        if trains {
            tape.push(InnerTape { rows: tile, gate, up, of_gate, of_up, of_down });
        }
    }
    let mut tape = tape.into_iter();
    let tape = tape.next().map(|first| InnerTapes { first, rest: tape.collect() });
    (down.map(|_| joined(outputs, 0)), tape)
}

/// From the gradient `[rows, hidden]` of what [`forward`] gives to that of its input, f32, and those of the projections.
pub(super) fn backward<B: Kernels>(
    tape: &InnerTapes<B>,
    input: &Tensor<B, 2>,
    gradient: &Tensor<B, 2>,
    block: &BlockOf<B>,
    wanted: &Block<bool>,
) -> (Tensor<B, 2>, OfInner<B>) {
    let (own, precision) = (Projections::<B>::of(block), block.precision);
    let down = Rows::<B>::new(&block.down, precision);
    let of_tile = |tile: &InnerTape<B>| {
        let (range, first) = (tile.rows.clone(), tile.rows.start);
        let inner = activation::activated(block.activation, tile.gate.as_ref(), &tile.up);
        let inner = precision.factor(inner);
        let of_y = rows(gradient, range.clone());
        let (of_inner, down) = down.backward(&inner, &tile.of_down, of_y, &wanted.down, first);
        drop(inner);
        let (of_gate, of_up) =
            activation::backward(block.activation, tile.gate.as_ref(), &tile.up, of_inner);
        let of_gate = of_gate.map(|of_gate| {
            let wanted = wanted.gate.as_ref().unwrap_or(&wanted.up);
            of_gate.cast(precision.of_outputs(wanted))
        });
        let of_up = of_up.cast(precision.of_outputs(&wanted.up));
        let (of_gate, of_up) = match of_gate {
            Some(of_gate) if block.joined => (None, Tensor::cat(vec![of_gate, of_up], 1)),
            of_gate => (of_gate, of_up),
        };
        let x = rows(input, range);
        let (mut of_x, up) = own.up.backward(&x, &tile.of_up, of_up, &wanted.up, first);
        let gate = match (&own.gate, &wanted.gate, of_gate) {
            (Some(gate), Some(wanted), Some(of_gate)) => {
                let (more, gate) = gate.backward(&x, &tile.of_gate, of_gate, wanted, first);
                of_x = of_x + more;
                Some(gate)
            }
            _ => None,
        };
        (of_x, OfInner { gate, up, down })
    };
    let (of_x, mut of_own) = of_tile(&tape.first);
    let mut of_input = vec![of_x];
    for tile in &tape.rest {
        let (of_x, more) = of_tile(tile);
        of_input.push(of_x);
        of_own = sum(of_own, more);
    }
    (joined(of_input, 0), of_own)
}

/// Of some tiles and of another.
fn sum<B: Kernels>(one: OfInner<B>, other: OfInner<B>) -> OfInner<B> {
    OfInner {
        gate: one.gate.zip(other.gate).map(|(one, other)| projection::sum::<B>(one, other)),
        up: projection::sum::<B>(one.up, other.up),
        down: projection::sum::<B>(one.down, other.down),
    }
}

/// Ranges of `0..rows`, as even as may be, of which none has more than `AT_ONCE` values where a row has `width`, but
/// for one of the fewest rows.
pub(super) fn tiles(rows: usize, width: usize) -> impl Iterator<Item = Range<usize>> {
    let most = (AT_ONCE / width.max(1) / ROWS * ROWS).max(ROWS);
    let each = rows.div_ceil(rows.div_ceil(most).max(1)).next_multiple_of(ROWS).max(ROWS);
    (0..rows).step_by(each).map(move |start| start..(start + each).min(rows))
}
