//! A block's gradients.

use std::ops::Range;

use burn::backend::Flex;

use super::forward::{before, contiguous, sides};
use super::projection::{self, Input, add_to};
use super::{BranchTape, Primitive, activation, floats, norm, tensor};
use crate::kernels::{
    Block, BlockGradients, BlockOf, Branch, Heads, Norm, Projection, Tape as AnyTape,
};

/// Gradients of a branch's norms.
type OfBranch = Branch<Option<Vec<f32>>>;

/// See [`Kernels::block_backward`](crate::kernels::Kernels::block_backward).
pub(in super::super) fn backward(
    tape: &AnyTape,
    block: &BlockOf<Flex>,
    gradient: Primitive,
    wanted: Block<bool>,
) -> BlockGradients<Flex> {
    let gradient = gradient.to_contiguous();
    let shape @ [_, _, hidden] = gradient.layout().shape().dims();
    let (Some(tape), Some(whole)) = (tape.0.downcast_ref::<super::Tape>(), contiguous(block))
    else {
        unreachable!("the tape and the tensors are those of the forward pass");
    };
    let gradient = tape.places.gather(floats(&gradient), hidden);
    let mut shapes = Vec::new();
    whole.clone().map(|tensor| shapes.push(tensor.layout().shape().clone()));
    let (of_x, of_block) = run(tape, &whole, gradient, &wanted);
    // Both are visited in the same order.
    let mut shapes = shapes.into_iter();
    let of_block = of_block.map(|gradient| {
        let shape = shapes.next()?;
        gradient.map(|values| tensor(values, shape))
    });
    (tensor(tape.places.scatter(of_x, hidden), shape), of_block)
}

fn run(
    tape: &super::Tape,
    block: &BlockOf<Flex>,
    gradient: Vec<f32>,
    wanted: &Block<bool>,
) -> (Vec<f32>, Block<Option<Vec<f32>>>) {
    let (places, heads) = (&tape.places, block.heads);
    let how = (block.precision, places);

    let (stream, of_branch, norms) =
        split(gradient, &tape.feed_forward, &block.feed_forward, &wanted.feed_forward);
    let mut inner = tape.up.clone();
    activation::activate(block.activation, tape.gate.as_deref(), &mut inner);
    let of_y = Input::new(of_branch.as_deref().unwrap_or(&stream), width_of(&block.down, 1));
    let mut of_inner = Vec::new();
    let down = projection::backward(
        (&Input::new(&inner, width_of(&block.down, 0)), &tape.lows.down),
        &of_y,
        &block.down,
        &wanted.down,
        how,
        &mut of_inner,
    );
    drop(of_y);
    drop((inner, of_branch));
    let of_gate =
        activation::backward(block.activation, tape.gate.as_deref(), &tape.up, &mut of_inner);
    let (of_gate, of_inner) = match of_gate {
        Some(of_gate) if block.joined => {
            (None, activation::side_by_side(&of_gate, &of_inner, width_of(&block.down, 0)))
        }
        of_gate => (of_gate, of_inner),
    };
    let x = &tape.feed_forward.input;
    let normed = before(x, &block.feed_forward);
    let input = Input::new(normed.as_deref().unwrap_or(x), width_of(&block.up, 0));
    let mut of_input = Vec::new();
    let up = projection::backward(
        (&input, &tape.lows.up),
        &Input::new(&of_inner, width_of(&block.up, 1)),
        &block.up,
        &wanted.up,
        how,
        &mut of_input,
    );
    drop(of_inner);
    let gate = match (&block.gate, &wanted.gate, &of_gate) {
        (Some(gate), Some(wanted), Some(of_gate)) => Some(projection::backward(
            (&input, &tape.lows.gate),
            &Input::new(of_gate, width_of(gate, 1)),
            gate,
            wanted,
            how,
            &mut of_input,
        )),
        _ => None,
    };
    drop(input);
    drop(of_gate);
    let (gradient, feed_forward) =
        unite(stream, of_input, x, &block.feed_forward, &wanted.feed_forward, norms);

    let (stream, of_branch, norms) =
        split(gradient, &tape.attention, &block.attention, &wanted.attention);
    let of_y = Input::new(of_branch.as_deref().unwrap_or(&stream), width_of(&block.output, 1));
    let mut of_context = Vec::new();
    let output = projection::backward(
        (&Input::new(&tape.context, width_of(&block.output, 0)), &tape.lows.output),
        &of_y,
        &block.output,
        &wanted.output,
        how,
        &mut of_context,
    );
    drop(of_y);
    drop(of_branch);
    let wants_bias = wanted.score_bias == Some(true);
    let (mut of_qkv, score_bias) = tape.attended.backward(&of_context, places, wants_bias);
    drop(of_context);
    let head_norms = match &tape.unnormed {
        Some(unnormed) => {
            heads_backward(unnormed, &mut of_qkv, heads, &block.head_norms, &wanted.head_norms)
        }
        None => Vec::new(),
    };
    let x = &tape.attention.input;
    let normed = before(x, &block.attention);
    let mut of_input = Vec::new();
    let qkv = projection::backward(
        (&Input::new(normed.as_deref().unwrap_or(x), width_of(&block.qkv, 0)), &tape.lows.qkv),
        &Input::new(&of_qkv, heads.row()),
        &block.qkv,
        &wanted.qkv,
        how,
        &mut of_input,
    );
    drop(normed);
    let (gradient, attention) =
        unite(stream, of_input, x, &block.attention, &wanted.attention, norms);
    let of_block = Block {
        heads,
        activation: block.activation,
        precision: block.precision,
        attention,
        head_norms,
        score_bias: block.score_bias.as_ref().map(|_| score_bias),
        qkv,
        output,
        feed_forward,
        gate,
        joined: block.joined,
        up,
        down,
    };
    (gradient, of_block)
}

/// Inputs (0) or outputs (1) of a projection.
fn width_of(projection: &Projection<Primitive>, side: usize) -> usize {
    projection.shape()[side]
}

/// From the gradient of a branch's sum to those of the residual stream and, where a norm makes it
/// another, of the branch.
fn split(
    mut gradient: Vec<f32>,
    tape: &BranchTape,
    branch: &Branch<Primitive>,
    wanted: &Branch<bool>,
) -> (Vec<f32>, Option<Vec<f32>>, OfBranch) {
    let mut norms = OfBranch { before: None, inside: None, after: None };
    if let (Some(input), Some(norm), Some(wanted)) = (&tape.after, &branch.after, &wanted.after) {
        norms.after = Some(norm::backward(input, &mut gradient, norm, wanted));
    }
    let mut of_branch = None;
    if let (Some(input), Some(norm), Some(wanted)) = (&tape.inside, &branch.inside, &wanted.inside)
    {
        let mut gradient = gradient.clone();
        norms.inside = Some(norm::backward(input, &mut gradient, norm, wanted));
        of_branch = Some(gradient);
    }
    (gradient, of_branch, norms)
}

/// From the gradients of the residual stream and of a branch's input to that of the block's part.
fn unite(
    mut stream: Vec<f32>,
    mut of_input: Vec<f32>,
    input: &[f32],
    branch: &Branch<Primitive>,
    wanted: &Branch<bool>,
    mut norms: OfBranch,
) -> (Vec<f32>, OfBranch) {
    if let (Some(norm), Some(wanted)) = (&branch.before, &wanted.before) {
        norms.before = Some(norm::backward(input, &mut of_input, norm, wanted));
    }
    add_to(&mut stream, &of_input);
    (stream, norms)
}

/// Gradients of the norms of heads; that of what went into them takes the place of `gradient`.
fn heads_backward(
    unnormed: &[f32],
    gradient: &mut [f32],
    heads: Heads,
    norms: &[Norm<Primitive>],
    wanted: &[Norm<bool>],
) -> Vec<Norm<Option<Vec<f32>>>> {
    let row = heads.row();
    let mut of_side = |((norm, wanted), part): ((&Norm<Primitive>, &Norm<bool>), Range<usize>)| {
        let cut = |rows: &[f32]| -> Vec<f32> {
            rows.chunks_exact(row).flat_map(|row| &row[part.clone()]).copied().collect()
        };
        let (input, mut of_part) = (cut(unnormed), cut(gradient));
        let of_norm = norm::backward(&input, &mut of_part, norm, wanted);
        let parts = of_part.chunks_exact(part.len().max(1));
        for (row, from) in gradient.chunks_exact_mut(row).zip(parts) {
            row[part.clone()].copy_from_slice(from);
        }
        of_norm
    };
    norms.iter().zip(wanted).zip(sides(heads)).map(&mut of_side).collect()
}
