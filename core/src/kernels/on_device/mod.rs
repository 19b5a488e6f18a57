//! A block and its gradients in Burn's tensor operations, for backends whose tensors are on a device.
//!
//! One operation of the graph stands for a whole block, so that what is kept of the forward pass is chosen here: the inputs
//! of norms, products and attention, those of products in the products' numbers. What costs little is computed
//! again: norms, activations, rotations, and the weights of attention, whose scores are never held for more than
//! [`attention::AT_ONCE`] pairs of tokens.
//!
//! * `forward`, `backward`: the whole;
//! * `projection`: products with adapters;
//! * `attention`, `norm`, `activation`: the parts and their gradients.

mod activation;
mod attention;
mod backward;
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

use super::{Kernels, MatmulPrecision, RotaryTables};

/// What the forward pass keeps. Rows are tokens, padding included.
struct Tape<B: Kernels> {
    shape: [usize; 2],
    angles: Option<RotaryTables<B>>,
    mask: Option<Tensor<B, 4, Bool>>,
    attention: BranchTape<B>,
    /// Queries, keys and values `[rows, heads width]`, before the norms of heads and before they are rotated.
    sides: [Tensor<B, 2>; 3],
    /// What attention gives `[rows, queries width]`.
    context: Tensor<B, 2>,
    feed_forward: BranchTape<B>,
    gate: Option<Tensor<B, 2>>,
    up: Tensor<B, 2>,
    lows: Lows<B>,
}

/// What is kept of the projections' adapters, in their order.
struct Lows<B: Kernels> {
    qkv: Vec<Low<B>>,
    output: Vec<Low<B>>,
    gate: Vec<Low<B>>,
    up: Vec<Low<B>>,
    down: Vec<Low<B>>,
}

/// An adapter in a product's numbers.
struct Low<B: Kernels> {
    /// First of the columns that it adds to.
    first: usize,
    /// Its `A` `[inputs, rank]`.
    a: Tensor<B, 2>,
    /// `x A` `[rows, rank]`.
    low: Tensor<B, 2>,
    /// Its `B` `[rank, width]`, times its factor.
    b: Tensor<B, 2>,
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
    match range == (0..x.dims()[1]) {
        true => x.clone(),
        false => x.clone().narrow(1, range.start, range.len()),
    }
}
