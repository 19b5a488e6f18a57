//! What the models compute beyond Burn's own operations, in a version for each kind of device.
//!
//! [`Kernels`] extends Burn's [`Backend`] (Burn's own pattern for operations of one's own): every
//! operation has a plain version of Burn's tensor operations, through which gradients flow, and
//! the backends put a fast one in its place:
//!
//! * `host`: Burn's CPU backend, on the tensors' own memory;
//! * `gpu`: Burn's cubecl backends (Vulkan, CUDA, WebGPU), in shaders, with and without fusion.

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "gpu")]
mod gpu;
#[cfg(feature = "flex")]
mod host;
mod plain;

pub(crate) use plain::{by_head, rotated};
pub use plain::{scaled_dot_product, weighted_scaled_dot_product};

use std::ops::Range;

use burn::nn::{LayerNorm, RmsNorm};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Bool, Int, Tensor, activation, module};

use crate::quant::{PackedLayout, PackedMatrix, Quantized};

/// cos and sin `[1, 1, seq, width]` of the angles by which positions rotate heads.
pub type RotaryTables<B> = (Tensor<B, 4>, Tensor<B, 4>);

/// Widths of an attention block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Heads of the queries.
    pub queries: usize,
    /// Heads of keys and values; each is shared by as many heads of queries as there are more.
    pub keys: usize,
    /// Width of a head.
    pub width: usize,
}

impl Heads {
    /// Width of a token's queries, keys and values side by side.
    pub fn row(self) -> usize {
        (self.queries + 2 * self.keys) * self.width
    }
}

/// What a pass's attention looks at, besides queries, keys and values.
#[derive(Debug)]
pub struct Seen<'a, B: Backend> {
    /// Where each row's tokens stand; what stands elsewhere is padding.
    pub rows: &'a [Range<usize>],
    /// By what queries and keys are rotated, if they are.
    pub angles: Option<&'a RotaryTables<B>>,
    /// `[batch, 1, query, key]`, true where a query must not look; it hides padding from tokens.
    pub mask: Option<&'a Tensor<B, 4, Bool>>,
}

impl<B: Backend> Clone for Seen<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Seen<'_, B> {}

/// What weights of few bits (int8, int4) become when a model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// Floating-point numbers.
    Never,
    /// A [`PackedMatrix`] or [`Quantized`] table in the host's memory.
    Host,
    /// A [`PackedWeight`](crate::model::PackedWeight) or [`PackedTable`](crate::model::PackedTable)
    /// in the device's.
    Device,
}

/// A backend that Kiln's models run on.
pub trait Kernels: Backend {
    /// Whether tensors lie in the host's memory and are computed by its cores, in training too.
    const HOST: bool = false;

    /// What becomes of weights of few bits.
    const PACKING: Packing = Packing::Never;

    /// Whether attention computes each text as if it stood alone and unpadded, so that its numbers
    /// are the same bits whatever stands beside it.
    const TEXTS_APART: bool = false;

    /// Most bytes that a tensor may have on a device.
    fn largest_tensor(_device: &Self::Device) -> u64 {
        u64::MAX
    }

    /// Exact GELU, `x Phi(x)`.
    fn exact_gelu<const D: usize>(x: Tensor<Self, D>) -> Tensor<Self, D> {
        activation::gelu(x)
    }

    /// Layer normalization of `x + residual`, over the last dimension of `[batch, seq, width]`, by a
    /// norm whose epsilon is the one given.
    fn add_and_norm(
        x: Tensor<Self, 3>,
        residual: Tensor<Self, 3>,
        norm: &LayerNorm<Self>,
        _epsilon: f64,
    ) -> Tensor<Self, 3> {
        norm.forward(x + residual)
    }

    /// RMS normalization over the last dimension (arXiv:1910.07467).
    fn rms_norm<const D: usize>(x: Tensor<Self, D>, norm: &RmsNorm<Self>) -> Tensor<Self, D> {
        norm.forward(x)
    }

    /// `silu(gate) * up`, the inside of a gated feed-forward block (SwiGLU, arXiv:2002.05202).
    fn silu_product(gate: Tensor<Self, 3>, up: Tensor<Self, 3>) -> Tensor<Self, 3> {
        activation::silu(gate) * up
    }

    /// `softmax(q k^T / sqrt(width)) v` of `[batch, seq, (queries + 2 keys) width]`, queries, keys and
    /// values side by side: `[batch, seq, queries width]`. Queries and keys are rotated first. What
    /// comes of padding is finite and means nothing.
    fn self_attention(qkv: Tensor<Self, 3>, heads: Heads, seen: Seen<'_, Self>) -> Tensor<Self, 3> {
        plain::attention(qkv, heads, seen)
    }

    /// Rotates `[batch, seq, heads, width]` by tables `[1, seq, 1, width]` of cosines and sines: each
    /// half of a head's dimensions with the other.
    fn rotate(x: Tensor<Self, 4>, cos: Tensor<Self, 4>, sin: Tensor<Self, 4>) -> Tensor<Self, 4> {
        match Self::HOST {
            true => plain::rotate_rows(x, cos, sin),
            false => plain::rotate(x, cos, sin),
        }
    }

    /// `[batch, heads, seq, width]` to `[batch, seq, heads * width]`.
    fn merge_heads(x: Tensor<Self, 4>) -> Tensor<Self, 3> {
        plain::merge_heads(x)
    }

    /// `[rows, inputs]` to `[rows, outputs]` by weights `[inputs, outputs]`.
    fn dense_linear(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 2>,
        bias: Option<Tensor<Self, 1>>,
    ) -> Tensor<Self, 2> {
        module::linear(x, weight, bias)
    }

    /// `[rows, inputs]` to `[rows, outputs]` by weights that the host has packed.
    fn host_linear(
        x: Tensor<Self, 2>,
        weight: &PackedMatrix,
        bias: Option<Tensor<Self, 1>>,
    ) -> Tensor<Self, 2> {
        plain::host_linear(x, weight, bias)
    }

    /// Rows `[batch, seq, width]` of a table that the host has packed.
    fn host_rows(
        ids: Tensor<Self, 2, Int>,
        table: &Quantized,
        device: &Self::Device,
    ) -> Tensor<Self, 3> {
        plain::host_rows(ids, table, device)
    }

    /// `[rows, inputs]` to `[rows, outputs]` by weights that are packed on the device; codes and
    /// scales as [`PackedLayout::weights`] takes them.
    fn packed_linear(
        x: Tensor<Self, 2>,
        codes: Tensor<Self, 2, Int>,
        scales: Tensor<Self, 2>,
        layout: PackedLayout,
        bias: Option<Tensor<Self, 1>>,
    ) -> Tensor<Self, 2> {
        plain::packed_linear(x, codes, scales, layout, bias)
    }

    /// Rows `[batch, seq, width]` of a table that is packed on the device; codes and scales as
    /// [`PackedLayout::table`] takes them.
    fn packed_rows(
        ids: Tensor<Self, 2, Int>,
        codes: Tensor<Self, 2, Int>,
        scales: Tensor<Self, 2>,
        layout: PackedLayout,
    ) -> Tensor<Self, 3> {
        module::embedding(layout.table(codes, scales), ids)
    }
}

/// A backend with gradients that Kiln's models are trained on.
pub trait TrainingBackend: Kernels + AutodiffBackend<InnerBackend: Kernels> {}

impl<B: Kernels + AutodiffBackend<InnerBackend: Kernels>> TrainingBackend for B {}
