//! A block and its gradients in Burn's tensor operations, for backends whose tensors are on a device.
//!
//! One operation of the graph stands for a whole block, so that what is kept of the forward pass is chosen here: the inputs
//! of norms, products and attention, those of products in the products' numbers. What costs little is computed
//! again: norms, activations, and the weights of attention, whose scores are never held for more than
//! [`attention::AT_ONCE`] pairs of tokens. The feed-forward's inner states are the widest, so that it is computed for some
//! tokens after others, and none of them has more than [`feed_forward::AT_ONCE`] values.
//!
//! * `forward`, `backward`: the whole;
//! * `projection`: products with adapters, of weights in floating point or in few bits;
//! * `attention`, `feed_forward`, `norm`, `activation`: the parts and their gradients.

mod activation;
mod attention;
mod backward;
mod feed_forward;
mod forward;
mod norm;
mod projection;
#[cfg(test)]
mod tests;

pub(super) use backward::backward;
pub(super) use forward::forward;

use std::ops::Range;

use burn::tensor::ops::FloatTensor;
use burn::tensor::{Bool, FloatDType, Tensor, TensorPrimitive};

use super::{Kernels, MatmulPrecision, Place, Projection, RotaryTables};

/// What the forward pass keeps. Rows are tokens, padding included.
struct Tape<B: Kernels> {
    shape: [usize; 2],
    angles: Option<RotaryTables<B>>,
    mask: Option<Tensor<B, 4, Bool>>,
    attention: BranchTape<B>,
    sides: Sides<B>,
    /// What attention gives `[rows, queries width]`.
    context: Tensor<B, 2>,
    /// Of the adapters of queries, keys and values, and of the output.
    qkv: Vec<Low<B>>,
    output: Vec<Low<B>>,
    feed_forward: BranchTape<B>,
    inner: InnerTapes<B>,
}

/// Queries, keys and values.
enum Sides<B: Kernels> {
    /// `[rows, heads width]`, before the norms of heads and before they are rotated.
    Projected([Tensor<B, 2>; 3]),
    /// `[batch, heads, seq, width]`, as attention takes them: where heads have no norms, whose gradients need the others.
    Attended([Tensor<B, 4>; 3]),
}

/// What is kept of the feed-forward's inner states: of its first rows, and of some after others.
struct InnerTapes<B: Kernels> {
    first: InnerTape<B>,
    rest: Vec<InnerTape<B>>,
}

/// What is kept of the feed-forward's inner states of some rows.
struct InnerTape<B: Kernels> {
    rows: Range<usize>,
    gate: Option<Tensor<B, 2>>,
    up: Tensor<B, 2>,
    of_gate: Vec<Low<B>>,
    of_up: Vec<Low<B>>,
    of_down: Vec<Low<B>>,
}

/// An adapter in a product's numbers, or several that are joined in one.
#[derive(Clone)]
struct Adapter<B: Kernels> {
    /// First of the columns that it adds to.
    first: usize,
    /// Its `A` `[inputs, rank]`; of several whose inputs drop out, on a diagonal.
    a: Tensor<B, 2>,
    /// Its `B` `[rank, width]`, times its factor.
    b: Tensor<B, 2>,
    /// Where `A` and `B` of each that is joined lie in these.
    parts: Vec<[Place; 2]>,
}

impl<B: Kernels> Adapter<B> {
    /// The columns that it adds to.
    fn columns(&self) -> Range<usize> {
        self.first..self.first + self.b.dims()[1]
    }
}

/// What is kept of an adapter.
struct Low<B: Kernels> {
    adapter: Adapter<B>,
    /// `dropout(x) A` `[rows, rank]`.
    low: Tensor<B, 2>,
}

/// The inputs `[rows, hidden]` of a branch's norms.
struct BranchTape<B: Kernels> {
    /// Of the branch.
    input: Tensor<B, 2>,
    /// Of the norm inside.
    inside: Option<Tensor<B, 2>>,
    /// Of the norm after the residual sum.
    after: Option<Tensor<B, 2>>,
}

impl MatmulPrecision {
    /// A factor of a product.
    fn factor<B: Kernels, const D: usize>(self, x: Tensor<B, D>) -> Tensor<B, D> {
        x.cast(self.dtype())
    }

    /// Numbers of the gradient of a projection's outputs: a factor already, but where a bias sums it in f32.
    fn of_outputs(self, wanted: &Projection<bool>) -> FloatDType {
        match wanted.bias {
            Some(true) => FloatDType::F32,
            _ => self.dtype(),
        }
    }

    /// Numbers of a product's factors.
    fn dtype(self) -> FloatDType {
        match self {
            Self::F32 => FloatDType::F32,
            Self::Bf16 => FloatDType::BF16,
        }
    }
}

/// In f32, as all but products is computed.
fn whole<B: Kernels, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    x.cast(FloatDType::F32)
}

fn tensor<B: Kernels, const D: usize>(x: &FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(x.clone()))
}

fn primitive<B: Kernels, const D: usize>(x: Tensor<B, D>) -> FloatTensor<B> {
    x.into_primitive().tensor()
}

/// Some columns of a matrix.
fn columns<B: Kernels>(x: &Tensor<B, 2>, range: Range<usize>) -> Tensor<B, 2> {
    part(x, 1, range)
}

/// Some rows of a matrix.
fn rows<B: Kernels>(x: &Tensor<B, 2>, range: Range<usize>) -> Tensor<B, 2> {
    part(x, 0, range)
}

fn part<B: Kernels>(x: &Tensor<B, 2>, dimension: usize, range: Range<usize>) -> Tensor<B, 2> {
    match range == (0..x.dims()[dimension]) {
        true => x.clone(),
        false => x.clone().narrow(dimension, range.start, range.len()),
    }
}

/// Matrices or heads side by side.
fn joined<B: Kernels, const D: usize>(
    mut parts: Vec<Tensor<B, D>>,
    dimension: usize,
) -> Tensor<B, D> {
    match parts.len() {
        1 => parts.remove(0),
        _ => Tensor::cat(parts, dimension),
    }
}
