//! A block's forward pass.

use std::sync::Arc;

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType, Tensor};

use super::attention::Attended;
use super::projection::{self, Rows};
use super::{BranchTape, Sides, feed_forward, primitive, tensor, whole};
use crate::kernels::plain::LONGEST_HELD;
use crate::kernels::{BlockOf, Branch, Kernels, Seen, Tape};

/// See [`Kernels::block_forward`]. `None` where the states are not f32, or a weight is in the host's memory.
pub(in super::super) fn forward<B: Kernels>(
    x: FloatTensor<B>,
    block: &BlockOf<B>,
    seen: Seen<'_, B>,
    trains: bool,
) -> Option<(FloatTensor<B>, Option<Tape>)> {
    let x = tensor::<B, 3>(&x);
    let projections = [&block.qkv, &block.output, &block.up, &block.down];
    let packed = projections.into_iter().chain(&block.gate).any(|own| own.matrix.is_some());
    if x.dtype() != DType::F32 || packed {
        return None;
    }
    let shape @ [batch, seq, hidden] = x.dims();
    let (y, tape) = run(x.reshape([batch * seq, hidden]), [batch, seq], block, seen, trains);
    Some((primitive(y.reshape(shape)), tape.map(|tape| Tape(Arc::new(tape)))))
}

fn run<B: Kernels>(
    x: Tensor<B, 2>,
    shape @ [batch, seq]: [usize; 2],
    block: &BlockOf<B>,
    seen: Seen<'_, B>,
    trains: bool,
) -> (Tensor<B, 2>, Option<super::Tape<B>>) {
    let precision = block.precision;
    let projections = [
        Some(&block.qkv),
        Some(&block.output),
        block.gate.as_ref(),
        Some(&block.up),
        Some(&block.down),
    ];
    let [of_qkv, of_output, of_gate, of_up, of_down] =
        projection::adapters::<B, 5>(projections, precision);
    let input = before(&x, &block.attention, block);
    let qkv = Rows::<B>::new(&block.qkv, precision).forward(&input, &of_qkv, 0);
    drop(input);
    let (queries, keys) =
        (block.heads.queries * block.heads.width, block.heads.keys * block.heads.width);
    let normless = block.head_norms.is_empty();
    let long = !trains && seq > LONGEST_HELD && normless && block.score_bias.is_some();
    let at_once = normless && !long && qkv.is_whole();
    let projected = match at_once {
        true => {
            let (heads, dtype) = (block.heads, precision.dtype());
            Sides::Attended(B::split_sides(qkv.all(), shape, heads, seen.angles, dtype))
        }
        false => {
            let ranges = [0..queries, queries..queries + keys, queries + keys..queries + 2 * keys];
            Sides::Projected(ranges.map(|range| qkv.columns(range)))
        }
    };
    let qkv = qkv.into_lows();
    let (sides, context) = match (&block.score_bias, projected) {
        // The bias for each pair of a long text's tokens, which gradients need, is as large as all of its scores.
        (Some(bias), Sides::Projected(sides)) if long => {
            let bias = tensor::<B, 2>(bias);
            let seen = Seen { bias: Some(&bias), ..seen };
            let all = whole(Tensor::cat(sides.to_vec(), 1));
            let all = all.reshape([batch, seq, block.heads.row()]);
            let context = B::self_attention(all, block.heads, seen);
            let context = precision.factor(context.reshape([batch * seq, queries]));
            (Sides::Projected(sides), context)
        }
        (_, projected) => {
            let attended = Attended::new(&projected, shape, block, seen.angles, seen.mask);
            let sides = match normless {
                true => {
                    drop(projected);
                    Sides::Attended(attended.sides())
                }
                false => projected,
            };
            (sides, attended.forward())
        }
    };
    let output = Rows::<B>::new(&block.output, precision).forward(&context, &of_output, 0);
    let (x, attention) = join(x, output.all(), &block.attention);
    let output = output.into_lows();

    let input = before(&x, &block.feed_forward, block);
    // The gradients of the norms after it need what the feed-forward gives.
    let Branch { inside, after, .. } = &block.feed_forward;
    let unread = seen.unread && trains && inside.is_none() && after.is_none();
    let adapters: feed_forward::Adapters<'_, B> = [&of_gate, &of_up, &of_down];
    let (y, inner) = feed_forward::forward(&input, block, adapters, [trains, unread]);
    drop(input);
    let (x, feed_forward) = match y {
        Some(y) => join(x, y, &block.feed_forward),
        None => (x.clone(), BranchTape { input: x, inside: None, after: None }),
    };
    let tape = inner.map(|inner| super::Tape {
        shape,
        angles: seen.angles.cloned(),
        mask: seen.mask.cloned(),
        attention,
        sides,
        context,
        qkv,
        output,
        feed_forward,
        inner,
    });
    (x, tape)
}

/// What a branch's first products compute with.
pub(super) fn before<B: Kernels>(
    x: &Tensor<B, 2>,
    branch: &Branch<FloatTensor<B>>,
    block: &BlockOf<B>,
) -> Tensor<B, 2> {
    match &branch.before {
        Some(norm) => B::norm_rows(x.clone(), norm, block.precision.dtype()),
        None => block.precision.factor(x.clone()),
    }
}

/// Joins a branch with the residual stream.
fn join<B: Kernels>(
    x: Tensor<B, 2>,
    y: Tensor<B, 2>,
    branch: &Branch<FloatTensor<B>>,
) -> (Tensor<B, 2>, BranchTape<B>) {
    let (y, inside) = match &branch.inside {
        Some(norm) => (B::norm_rows(y.clone(), norm, FloatDType::F32), Some(y)),
        None => (whole(y), None),
    };
    let sum = x.clone() + y;
    let (y, after) = match &branch.after {
        Some(norm) => (B::norm_rows(sum.clone(), norm, FloatDType::F32), Some(sum)),
        None => (sum, None),
    };
    (y, BranchTape { input: x, inside, after })
}
