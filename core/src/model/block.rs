//! A block as the kernels take it: its tensors and what the backend must know of them.

use burn::nn::{LayerNorm, RmsNorm};
use burn::tensor::{Tensor, backend::Backend, ops::FloatTensor};

use super::attention::Attention;
use super::feed_forward::FeedForward;
use crate::kernels::{Block, BlockOf, Branch, Kernels, Norm, Seen};

/// A block as one operation, where the backend computes it so and nobody asks for its weights of attention.
pub(super) fn at_once<B: Kernels>(
    x: &Tensor<B, 3>,
    seen: Seen<'_, B>,
    want_weights: bool,
    describe: impl FnOnce(usize) -> Option<BlockOf<B>>,
) -> Option<Tensor<B, 3>> {
    if want_weights || !B::BLOCKS {
        return None;
    }
    let [batch, seq, _] = x.dims();
    B::block(x, describe(batch * seq)?, seen)
}

/// The description of a block over so many rows, padding included; `None` where a layer of it is
/// pruned or observed. What drops out is drawn in the order in which the plain version draws.
pub(super) fn described<B: Kernels>(
    attention: &Attention<B>,
    feed_forward: &FeedForward<B>,
    [around_attention, around_feed_forward]: [Branch<FloatTensor<B>>; 2],
    seen: Seen<'_, B>,
    rows: usize,
) -> Option<BlockOf<B>> {
    let mut head_norms = Vec::new();
    if let (Some(query), Some(key)) = (&attention.query_norm, &attention.key_norm) {
        head_norms.extend([rms_norm(query), rms_norm(key)]);
        head_norms.extend(attention.value_norm().as_ref().map(rms_norm));
    }
    let qkv = attention.qkv.projection(rows)?;
    let output = attention.output.projection(rows)?;
    let gate = match &feed_forward.gate {
        Some(gate) => Some(gate.projection(rows)?),
        None => None,
    };
    Some(Block {
        heads: attention.heads(),
        activation: feed_forward.activation,
        precision: attention.qkv.matmul_precision(),
        attention: around_attention,
        head_norms,
        score_bias: seen.bias.map(|bias| bias.clone().into_primitive().tensor()),
        qkv,
        output,
        feed_forward: around_feed_forward,
        gate,
        joined: feed_forward.joined,
        up: feed_forward.up.projection(rows)?,
        down: feed_forward.down.projection(rows)?,
    })
}

/// A norm before a branch alone.
pub(super) fn before<T>(norm: Norm<T>) -> Branch<T> {
    Branch { before: Some(norm), inside: None, after: None }
}

/// A norm after the residual sum alone.
pub(super) fn after<T>(norm: Norm<T>) -> Branch<T> {
    Branch { before: None, inside: None, after: Some(norm) }
}

pub(super) fn rms_norm<B: Backend>(norm: &RmsNorm<B>) -> Norm<FloatTensor<B>> {
    Norm {
        gamma: primitive(norm.gamma.val()),
        beta: None,
        centred: false,
        epsilon: norm.epsilon as f32,
    }
}

pub(super) fn layer_norm<B: Backend>(norm: &LayerNorm<B>, epsilon: f64) -> Norm<FloatTensor<B>> {
    Norm {
        gamma: primitive(norm.gamma.val()),
        beta: norm.beta.as_ref().map(|beta| primitive(beta.val())),
        centred: true,
        epsilon: epsilon as f32,
    }
}

/// No norm.
pub(super) fn bare<T>() -> Branch<T> {
    Branch { before: None, inside: None, after: None }
}

fn primitive<B: Backend>(tensor: Tensor<B, 1>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}
