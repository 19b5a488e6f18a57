//! A block's forward pass.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::Flex;
use burn::tensor::{DType, Tensor};

use super::attention::{Attended, rotate_all};
use super::feed_forward::{self, Inside};
use super::projection::{self, Input, add_to};
use super::{BranchTape, Lows, Places, Primitive, floats, norm, tensor};
use crate::kernels::{BlockOf, Branch, Heads, Norm, Seen, Tape};
use crate::parallel::each_part;

/// Rows of a core.
const PART: usize = 64;

/// See [`Kernels::block_forward`](crate::kernels::Kernels::block_forward). `None` where a tensor is not
/// f32 or not what a block is made of.
pub(in super::super) fn forward(
    x: Primitive,
    block: &BlockOf<Flex>,
    seen: Seen<'_, Flex>,
    trains: bool,
) -> Option<(Primitive, Option<Tape>)> {
    let (x, block) = (x.to_contiguous(), contiguous(block)?);
    let [batch, seq, hidden] = x.layout().shape().dims();
    let inside = seen.rows.len() == batch && seen.rows.iter().all(|extent| extent.end <= seq);
    let biased = block.score_bias.as_ref().is_none_or(|bias| {
        seq > 0 && bias.layout().shape().as_slice() == [block.heads.queries, 2 * seq - 1]
    });
    if x.dtype() != DType::F32 || !inside || hidden == 0 || !biased || !fits(&block, hidden) {
        return None;
    }
    // Views of what all blocks share, not copies: a mask is as large as all scores of a head.
    let angles = seen.angles.map(|(cos, sin)| [table(cos), table(sin)]);
    let mask = seen.mask.map(|mask| {
        let mask = mask.clone().into_primitive();
        // Without padding all texts share one.
        let shared = mask.layout().strides()[0] == 0;
        if shared { mask.narrow(0, 0, 1).to_contiguous() } else { mask.to_contiguous() }
    });
    if angles.iter().flatten().any(|table| table.dtype() != DType::F32)
        || mask.as_ref().is_some_and(|mask| {
            let shape = mask.layout().shape();
            (shape[0] != batch && shape[0] != 1) || mask.bytes().len() != shape[0] * seq * seq
        })
    {
        return None;
    }
    let places = Places::new(seen.rows, seq);
    let x = places.gather(floats(&x), hidden);
    let (values, tape) = run(x, &block, places, (angles, mask), trains);
    let y = tensor(tape.places.scatter(values, hidden), [batch, seq, hidden]);
    Some((y, trains.then(|| Tape(Arc::new(tape)))))
}

/// Whether the projections are of widths that follow from one another.
fn fits(block: &BlockOf<Flex>, hidden: usize) -> bool {
    let (heads, inner) = (block.heads, block.down.shape()[0]);
    let into = if block.joined { 2 * inner } else { inner };
    let expected = [
        (&block.qkv, [hidden, heads.row()]),
        (&block.output, [heads.queries * heads.width, hidden]),
        (&block.up, [hidden, into]),
        (&block.down, [inner, hidden]),
    ];
    let gate = block.gate.iter().map(|gate| (gate, [hidden, inner]));
    heads.keys > 0
        && !(block.joined && block.gate.is_some())
        && heads.queries.is_multiple_of(heads.keys)
        && inner > 0
        && heads.width > 0
        && expected.into_iter().chain(gate).all(|(projection, shape)| {
            let bias = projection.bias.as_ref().map(|bias| bias.layout().shape().num_elements());
            let strides = projection.weight.layout().strides();
            projection.shape() == shape
                && strides.iter().all(|stride| *stride >= 0)
                && bias.is_none_or(|bias| bias == shape[1])
        })
}

fn table(angles: &Tensor<Flex, 4>) -> Primitive {
    angles.clone().into_primitive().tensor().to_contiguous()
}

/// All tensors but the weights without gaps, where all are f32.
pub(super) fn contiguous(block: &BlockOf<Flex>) -> Option<BlockOf<Flex>> {
    let mut all_f32 = true;
    let mut to = block.clone().map(|tensor| {
        all_f32 &= tensor.dtype() == DType::F32;
        tensor
    });
    if !all_f32 {
        return None;
    }
    let norms = [&mut to.attention, &mut to.feed_forward]
        .into_iter()
        .flat_map(|branch| [&mut branch.before, &mut branch.inside, &mut branch.after])
        .flatten()
        .chain(&mut to.head_norms);
    for norm in norms {
        norm.gamma = norm.gamma.to_contiguous();
        norm.beta = norm.beta.as_ref().map(Primitive::to_contiguous);
    }
    to.score_bias = to.score_bias.as_ref().map(Primitive::to_contiguous);
    let projections = [&mut to.qkv, &mut to.output, &mut to.up, &mut to.down];
    for projection in projections.into_iter().chain(&mut to.gate) {
        projection.bias = projection.bias.as_ref().map(Primitive::to_contiguous);
        for low in &mut projection.adapters {
            (low.a, low.b) = (low.a.to_contiguous(), low.b.to_contiguous());
        }
    }
    Some(to)
}

/// The block over rows without padding. What only the backward pass needs is kept where the block trains.
fn run(
    x: Vec<f32>,
    block: &BlockOf<Flex>,
    places: Places,
    (angles, mask): (Option<[Primitive; 2]>, Option<Primitive>),
    trains: bool,
) -> (Vec<f32>, super::Tape) {
    let precision = block.precision;
    let mut lows = Lows::default();
    let project = |x: &[f32], projection, low: &mut Vec<f32>| {
        let width = x.len() / places.tokens().max(1);
        let (y, of_adapters) =
            projection::forward(&Input::new(x, width), projection, precision, &places);
        *low = of_adapters;
        y
    };

    let normed = before(&x, &block.attention);
    let mut qkv = project(normed.as_deref().unwrap_or(&x), &block.qkv, &mut lows.qkv);
    drop(normed);
    let unnormed = (!block.head_norms.is_empty()).then(|| {
        let unnormed = if trains { qkv.clone() } else { Vec::new() };
        norm_heads(&mut qkv, block.heads, &block.head_norms);
        unnormed
    });
    if let Some(angles) = &angles {
        rotate_all(&mut qkv, block.heads, angles, &places, false);
    }
    let bias = block.score_bias.clone();
    let mut attended = Attended { heads: block.heads, qkv, sums: Vec::new(), angles, mask, bias };
    let context = attended.forward(&places);
    let y = project(&context, &block.output, &mut lows.output);
    let (x, attention) = join(x, y, &block.attention, trains);

    let normed = before(&x, &block.feed_forward);
    let input = normed.as_deref().unwrap_or(&x);
    let packed = if trains { None } else { feed_forward::packed(input, block) };
    let inside = match packed {
        Some(y) => Inside { y, ..Inside::default() },
        None => feed_forward::forward(input, block, &places, &mut lows, trains),
    };
    drop(normed);
    let Inside { y, gate, up } = inside;
    let (x, feed_forward) = join(x, y, &block.feed_forward, trains);
    let tape = super::Tape {
        places,
        attended,
        attention,
        unnormed,
        context,
        feed_forward,
        gate,
        up,
        lows,
    };
    (x, tape)
}

/// What a branch computes with.
pub(super) fn before(x: &[f32], branch: &Branch<Primitive>) -> Option<Vec<f32>> {
    branch.before.as_ref().map(|before| norm::normed(x, before))
}

/// Joins a branch with the residual stream.
fn join(
    x: Vec<f32>,
    mut y: Vec<f32>,
    branch: &Branch<Primitive>,
    trains: bool,
) -> (Vec<f32>, BranchTape) {
    let norm = |y: &mut Vec<f32>, norm: &Norm<Primitive>| {
        let input = if trains { y.clone() } else { Vec::new() };
        norm::norm_in_place(y, norm);
        input
    };
    let inside = branch.inside.as_ref().map(|inside| norm(&mut y, inside));
    add_to(&mut y, &x);
    let after = branch.after.as_ref().map(|after| norm(&mut y, after));
    (y, BranchTape { input: x, inside, after })
}

/// Norms the heads of queries, of keys and of values, as far as there are norms.
fn norm_heads(qkv: &mut [f32], heads: Heads, norms: &[Norm<Primitive>]) {
    each_part(qkv, PART * heads.row(), |_, rows| {
        for row in rows.chunks_exact_mut(heads.row()) {
            for (norm, part) in norms.iter().zip(sides(heads)) {
                norm::norm_in_place(&mut row[part], norm);
            }
        }
    });
}

/// Where a token's queries, keys and values are in its row.
pub(super) fn sides(heads: Heads) -> [Range<usize>; 3] {
    let (queries, keys) = (heads.queries * heads.width, heads.keys * heads.width);
    [0..queries, queries..queries + keys, queries + keys..queries + 2 * keys]
}
