//! A block's gradients.

use burn::tensor::Tensor;
use burn::tensor::ops::FloatTensor;

use super::attention::{Attended, side_backward};
use super::forward::before;
use super::projection::Rows;
use super::{BranchTape, Sides, feed_forward, norm, primitive, tensor};
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
    let x = &tape.feed_forward.input;
    let input = before(x, &block.feed_forward, block);
    let (of_input, of_inner) =
        feed_forward::backward(&tape.inner, &input, &of_branch, block, wanted);
    drop((input, of_branch));
    let (gradient, feed_forward) =
        unite(stream, of_input, x, &block.feed_forward, &wanted.feed_forward, norms);

    let (stream, of_branch, norms) =
        split(gradient, &tape.attention, &block.attention, &wanted.attention);
    let (of_context, output) = Rows::<B>::new(&block.output, precision).backward(
        &tape.context,
        &tape.output,
        of_branch,
        &wanted.output,
        0,
    );
    let (angles, mask) = (tape.angles.as_ref(), tape.mask.as_ref());
    let attended = Attended::new(&tape.sides, tape.shape, block, angles, mask);
    let (of_sides, score_bias) = attended.backward(&of_context, wanted.score_bias == Some(true));
    drop((attended, of_context));
    let mut head_norms = Vec::new();
    let dtype = precision.of_outputs(&wanted.qkv);
    let of_qkv = match &tape.sides {
        Sides::Attended(_) => B::join_sides(of_sides, angles, dtype),
        Sides::Projected(projected) => {
            let mut parts = Vec::new();
            for (side, gradient) in of_sides.into_iter().enumerate() {
                let wanted = wanted.head_norms.get(side);
                let projected = &projected[side];
                let (gradient, of_norm) =
                    side_backward((projected, side), gradient, block, angles, wanted, dtype);
                parts.push(gradient);
                head_norms.extend(of_norm);
            }
            Tensor::cat(parts, 1)
        }
    };
    let x = &tape.attention.input;
    let (of_input, qkv) = Rows::<B>::new(&block.qkv, precision).backward(
        &before(x, &block.attention, block),
        &tape.qkv,
        of_qkv,
        &wanted.qkv,
        0,
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
        gate: of_inner.gate,
        joined: block.joined,
        up: of_inner.up,
        down: of_inner.down,
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
        let (of_sum, of_norm) = norm::backward(input, gradient, norm, wanted, None);
        (gradient, norms.after) = (of_sum, Some(of_norm));
    }
    let mut of_branch = gradient.clone();
    if let (Some(input), Some(norm), Some(wanted)) = (&tape.inside, &branch.inside, &wanted.inside)
    {
        let (of_output, of_norm) = norm::backward(input, of_branch, norm, wanted, None);
        (of_branch, norms.inside) = (of_output, Some(of_norm));
    }
    (gradient, of_branch, norms)
}

/// From the gradients of the residual stream and of a branch's input to that of the block's part.
fn unite<B: Kernels>(
    stream: Tensor<B, 2>,
    of_input: Tensor<B, 2>,
    input: &Tensor<B, 2>,
    branch: &Branch<FloatTensor<B>>,
    wanted: &Branch<bool>,
    mut norms: OfBranch<B>,
) -> (Tensor<B, 2>, OfBranch<B>) {
    let (Some(norm), Some(wanted)) = (&branch.before, &wanted.before) else {
        return (stream + of_input, norms);
    };
    let (of_x, of_norm) = norm::backward(input, of_input, norm, wanted, Some(stream));
    norms.before = Some(of_norm);
    (of_x, norms)
}
