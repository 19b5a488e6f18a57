//! A block's gradients.

use burn::tensor::Tensor;
use burn::tensor::ops::FloatTensor;

use super::attention::{Attended, side_backward};
use super::forward::before;
use super::{BranchTape, activation, norm, primitive, projection, tensor};
use crate::kernels::{Block, BlockGradients, BlockOf, Branch, Kernels, Tape};

/// Gradients of a branch's norms.
type OfBranch<B> = Branch<Option<FloatTensor<B>>>;

/// See [`Kernels::block_backward`].
pub(in super::super) fn backward<B: Kernels>(
    tape: &Tape,
    block: &BlockOf<B>,
    gradient: FloatTensor<B>,
    wanted: Block<bool>,
) -> BlockGradients<B> {
    let Some(tape) = tape.0.downcast_ref::<super::Tape<B>>() else {
        unreachable!("the tape is that of the forward pass");
    };
    let gradient = tensor::<B, 3>(&gradient);
    let shape @ [batch, seq, hidden] = gradient.dims();
    let (of_x, of_block) = run(tape, block, gradient.reshape([batch * seq, hidden]), &wanted);
    (primitive(of_x.reshape(shape)), of_block)
}

fn run<B: Kernels>(
    tape: &super::Tape<B>,
    block: &BlockOf<B>,
    gradient: Tensor<B, 2>,
    wanted: &Block<bool>,
) -> (Tensor<B, 2>, Block<Option<FloatTensor<B>>>) {
    let precision = block.precision;
    let (stream, of_branch, norms) =
        split(gradient, &tape.feed_forward, &block.feed_forward, &wanted.feed_forward);
    let inner = activation::activated(block.activation, tape.gate.as_ref(), &tape.up);
    let inner = precision.factor(inner);
    let (of_inner, down) = projection::backward(
        &inner,
        &tape.lows.down,
        of_branch,
        &block.down,
        &wanted.down,
        precision,
    );
    drop(inner);
    let (of_gate, of_up) =
        activation::backward(block.activation, tape.gate.as_ref(), &tape.up, of_inner);
    let (of_gate, of_up) = match of_gate {
        Some(of_gate) if block.joined => (None, Tensor::cat(vec![of_gate, of_up], 1)),
        of_gate => (of_gate, of_up),
    };
    let x = &tape.feed_forward.input;
    let input = before(x, &block.feed_forward, block);
    let (mut of_input, up) =
        projection::backward(&input, &tape.lows.up, of_up, &block.up, &wanted.up, precision);
    let gate = match (&block.gate, &wanted.gate, of_gate) {
        (Some(gate), Some(wanted), Some(of_gate)) => {
            let (more, gate) =
                projection::backward(&input, &tape.lows.gate, of_gate, gate, wanted, precision);
            of_input = of_input + more;
            Some(gate)
        }
        _ => None,
    };
    drop(input);
    let (gradient, feed_forward) =
        unite(stream, of_input, x, &block.feed_forward, &wanted.feed_forward, norms);

    let (stream, of_branch, norms) =
        split(gradient, &tape.attention, &block.attention, &wanted.attention);
    let (of_context, output) = projection::backward(
        &tape.context,
        &tape.lows.output,
        of_branch,
        &block.output,
        &wanted.output,
        precision,
    );
    let (angles, mask) = (tape.angles.as_ref(), tape.mask.as_ref());
    let attended = Attended::new(&tape.sides, tape.shape, block, angles, mask);
    let (of_sides, score_bias) = attended.backward(&of_context, wanted.score_bias == Some(true));
    drop((attended, of_context));
    let mut head_norms = Vec::new();
    let mut of_qkv = Vec::new();
    for (side, (gradient, projected)) in of_sides.into_iter().zip(&tape.sides).enumerate() {
        let wanted = wanted.head_norms.get(side);
        let (gradient, of_norm) = side_backward(side, projected, gradient, block, angles, wanted);
        of_qkv.push(gradient);
        head_norms.extend(of_norm);
    }
    let x = &tape.attention.input;
    let (of_input, qkv) = projection::backward(
        &before(x, &block.attention, block),
        &tape.lows.qkv,
        Tensor::cat(of_qkv, 1),
        &block.qkv,
        &wanted.qkv,
        precision,
    );
    let (gradient, attention) =
        unite(stream, of_input, x, &block.attention, &wanted.attention, norms);
    let of_block = Block {
        heads: block.heads,
        activation: block.activation,
        precision,
        attention,
        head_norms,
        score_bias: block.score_bias.as_ref().map(|_| score_bias.map(primitive)),
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

/// From the gradient of a branch's sum to those of the residual stream and of the branch.
fn split<B: Kernels>(
    mut gradient: Tensor<B, 2>,
    tape: &BranchTape<B>,
    branch: &Branch<FloatTensor<B>>,
    wanted: &Branch<bool>,
) -> (Tensor<B, 2>, Tensor<B, 2>, OfBranch<B>) {
    let mut norms = OfBranch::<B> { before: None, inside: None, after: None };
    if let (Some(input), Some(norm), Some(wanted)) = (&tape.after, &branch.after, &wanted.after) {
        let (of_sum, of_norm) = norm::backward(input, gradient, norm, wanted);
        (gradient, norms.after) = (of_sum, Some(of_norm));
    }
    let mut of_branch = gradient.clone();
    if let (Some(input), Some(norm), Some(wanted)) = (&tape.inside, &branch.inside, &wanted.inside)
    {
        let (of_output, of_norm) = norm::backward(input, of_branch, norm, wanted);
        (of_branch, norms.inside) = (of_output, Some(of_norm));
    }
    (gradient, of_branch, norms)
}

/// From the gradients of the residual stream and of a branch's input to that of the block's part.
fn unite<B: Kernels>(
    stream: Tensor<B, 2>,
    mut of_input: Tensor<B, 2>,
    input: &Tensor<B, 2>,
    branch: &Branch<FloatTensor<B>>,
    wanted: &Branch<bool>,
    mut norms: OfBranch<B>,
) -> (Tensor<B, 2>, OfBranch<B>) {
    if let (Some(norm), Some(wanted)) = (&branch.before, &wanted.before) {
        let (of_x, of_norm) = norm::backward(input, of_input, norm, wanted);
        (of_input, norms.before) = (of_x, Some(of_norm));
    }
    (stream + of_input, norms)
}
