//! What the models compute beyond Burn's own operations, with a version for each kind of device.
//!
//! [`Kernels`] extends Burn's [`Backend`], which is Burn's own pattern for custom operations. Every
//! operation has a plain version made of Burn's tensor operations, through which gradients flow;
//! backends override it with a fast one:
//!
//! * `host`: Burn's CPU backend, on the tensors' own memory, and whole blocks in training;
//! * `gpu`: Burn's cubecl backends (Vulkan, CUDA, WebGPU), in shaders, with and without fusion;
//! * `on_device`: whole blocks in training, in Burn's operations, for those.

#[cfg(feature = "autodiff")]
mod autodiff;
mod block;
#[cfg(feature = "gpu")]
mod gpu;
#[cfg(feature = "flex")]
mod host;
#[cfg(all(feature = "autodiff", any(feature = "gpu", test)))]
mod on_device;
mod plain;

pub(crate) use block::Prepared;
pub use block::{
    Block, BlockGradients, BlockOf, Branch, DeviceMatrix, DropoutMask, LowRank, MatmulPrecision,
    Norm, Place, Projection, Tape,
};
pub(crate) use plain::{activate, by_head, rotated, softmax_where};
pub use plain::{scaled_dot_product, weighted_scaled_dot_product};

use std::ops::Range;
use std::pin::Pin;

use burn::nn::{LayerNorm, RmsNorm};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Bool, ElementConversion as _, FloatDType, Int, Tensor, activation, module};

use crate::quant::{HostMatrix, PackedLayout, Quantized};

/// A number for what the GPU kernels of this version are compiled of: a folder of compiled kernels is another's where
/// it is another number.
#[cfg(feature = "gpu")]
pub fn gpu_sources() -> u64 {
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    hash.update(env!("CARGO_PKG_VERSION").as_bytes());
    for source in gpu::SOURCES {
        hash.update(source.as_bytes());
    }
    hash.digest()
}

/// Scores of attention, pairs of a query and a key of each head, that a GPU holds at once in training: 128 MiB in f32; or
/// those of one query where it has more.
pub const SCORES_AT_ONCE: usize = 1 << 25;

/// Values of an inner state of the feed-forward that a GPU holds at once in training: 256 MiB in f32.
pub const INNER_AT_ONCE: usize = 1 << 26;

/// A number on its way from a device to the host, or why it does not come.
pub type Reading = Pin<Box<dyn Future<Output = Result<f32, String>>>>;

/// cos and sin `[1, 1, seq, width]` of the rotary angles of each position.
pub type RotaryTables<B> = (Tensor<B, 4>, Tensor<B, 4>);

/// Widths of an attention block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Heads of the queries.
    pub queries: usize,
    /// Heads of keys and values; each serves `queries / keys` heads of queries.
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

/// What attention needs besides queries, keys and values.
#[derive(Debug)]
pub struct Seen<'a, B: Backend> {
    /// Extent of each row's tokens; the rest is padding.
    pub rows: &'a [Range<usize>],
    /// Rotary tables for queries and keys, if the model has them.
    pub angles: Option<&'a RotaryTables<B>>,
    /// `[batch, 1, query, key]`, true where attention is masked; it hides padding from tokens.
    pub mask: Option<&'a Tensor<B, 4, Bool>>,
    /// What is added to the scores `[heads, 2 seq - 1]`, by distance: at `seq - 1 + key - query`.
    pub bias: Option<&'a Tensor<B, 2>>,
    /// Whether nobody reads what the block gives, which is asked for its gradients alone: then it may be anything of that shape.
    pub unread: bool,
}

impl<B: Backend> Clone for Seen<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Seen<'_, B> {}

/// What int8 and int4 weights become when a model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// Floating-point numbers.
    Never,
    /// A [`HostMatrix`] or [`Quantized`] table in the host's memory.
    Host,
    /// A [`PackedWeight`](crate::model::PackedWeight) or [`PackedTable`](crate::model::PackedTable)
    /// in the device's.
    Device,
}

/// A backend that Kiln's models run on.
pub trait Kernels: Backend {
    /// Whether tensors live in the host's memory and are computed on its cores, in training too.
    const HOST: bool = false;

    /// Whether [`Kernels::block`] computes whole blocks.
    const BLOCKS: bool = false;

    /// Whether [`Kernels::block_forward`] and [`Kernels::block_backward`] do.
    const BLOCK_GRADIENTS: bool = false;

    /// What int8 and int4 weights become.
    const PACKING: Packing = Packing::Never;

    /// Whether attention computes each text as if it were alone and unpadded, so that its numbers
    /// are the same bits whatever the batch.
    const TEXTS_APART: bool = false;

    /// Largest tensor of a device, in bytes.
    fn largest_tensor(_device: &Self::Device) -> u64 {
        u64::MAX
    }

    /// Exact GELU, `x Phi(x)`.
    fn exact_gelu<const D: usize>(x: Tensor<Self, D>) -> Tensor<Self, D> {
        activation::gelu(x)
    }

    /// Layer normalization of `x + residual`, over the last dimension of `[batch, seq, width]`,
    /// with the given epsilon.
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

    /// `softmax(q k^T / sqrt(width) + bias) v` of `[batch, seq, (queries + 2 keys) width]`, queries, keys
    /// and values side by side: `[batch, seq, queries width]`. Queries and keys are rotated first.
    /// The output at padding is finite and meaningless.
    fn self_attention(qkv: Tensor<Self, 3>, heads: Heads, seen: Seen<'_, Self>) -> Tensor<Self, 3> {
        plain::attention(qkv, heads, seen)
    }

    /// A whole block, `[batch, seq, hidden]` to the same, where the backend computes it as one
    /// operation; its output at padding is finite.
    fn block(
        _x: &Tensor<Self, 3>,
        _block: BlockOf<Self>,
        _seen: Seen<'_, Self>,
    ) -> Option<Tensor<Self, 3>> {
        None
    }

    /// As [`Kernels::block`], and what [`Kernels::block_backward`] needs, if the block trains. The output at padding
    /// is finite.
    fn block_forward(
        _x: FloatTensor<Self>,
        _block: &BlockOf<Self>,
        _seen: Seen<'_, Self>,
        _trains: bool,
    ) -> Option<(FloatTensor<Self>, Option<Tape>)> {
        None
    }

    /// Gradients of a block of which [`Kernels::block_forward`] has made a tape, for the gradient
    /// `[batch, seq, hidden]` of its output.
    ///
    /// # Panics
    /// A tape that another backend has made.
    fn block_backward(
        _tape: &Tape,
        _block: &BlockOf<Self>,
        _gradient: FloatTensor<Self>,
        _wanted: Block<bool>,
    ) -> BlockGradients<Self> {
        block::unsupported::<Self>()
    }

    /// A number `[1]` of no use but that `x` is given this gradient on the way back from it; it must itself be the loss.
    fn owed(x: Tensor<Self, 3>, gradient: Tensor<Self, 3>) -> Tensor<Self, 1> {
        (x * gradient).sum()
    }

    /// `[rows, width]` as each mask leaves it, some values zero and the others larger, one beside the other:
    /// `[rows, masks width]`.
    fn drop_out(x: Tensor<Self, 2>, masks: &[DropoutMask]) -> Tensor<Self, 2> {
        plain::drop_out(x, masks)
    }

    /// `sum` `[rows, width]`, f32, plus the parts of `x` `[rows, masks width]` as their masks leave them: from the gradient of
    /// what [`Kernels::drop_out`] gives to that of its input.
    fn add_dropped(
        sum: Tensor<Self, 2>,
        x: Tensor<Self, 2>,
        masks: &[DropoutMask],
    ) -> Tensor<Self, 2> {
        plain::add_dropped(sum, &x, masks)
    }

    /// A norm of `[rows, width]` in any numbers, computed in f32.
    fn norm_rows(
        x: Tensor<Self, 2>,
        norm: &Norm<FloatTensor<Self>>,
        dtype: FloatDType,
    ) -> Tensor<Self, 2> {
        plain::norm_rows(x, norm).cast(dtype)
    }

    /// From the gradient `[rows, width]`, f32, of what [`Kernels::norm_rows`] gives to that of `x`, plus `more`.
    fn norm_rows_gradient(
        x: Tensor<Self, 2>,
        gradient: Tensor<Self, 2>,
        norm: &Norm<FloatTensor<Self>>,
        more: Option<Tensor<Self, 2>>,
    ) -> Tensor<Self, 2> {
        let of_x = plain::norm_rows_gradient(x, gradient, norm);
        match more {
            Some(more) => more + of_x,
            None => of_x,
        }
    }

    /// `[batch seq, heads width]` to `[batch, heads, seq, width]`, rotated by the angles of their positions.
    fn split_heads(
        x: Tensor<Self, 2>,
        shape: [usize; 2],
        width: usize,
        angles: Option<&RotaryTables<Self>>,
        dtype: FloatDType,
    ) -> Tensor<Self, 4> {
        plain::split_heads(x, shape, width, angles).cast(dtype)
    }

    /// `[batch, heads, seq, width]` to `[batch seq, heads width]`, rotated back: from the gradient of what
    /// [`Kernels::split_heads`] gives to that of its input.
    fn join_heads(
        x: Tensor<Self, 4>,
        angles: Option<&RotaryTables<Self>>,
        dtype: FloatDType,
    ) -> Tensor<Self, 2> {
        plain::join_heads(x, angles).cast(dtype)
    }

    /// Queries, keys and values `[batch, heads, seq, width]` of `[batch seq, (queries + 2 keys) width]`, side by side; queries
    /// and keys are rotated by the angles of their positions.
    fn split_sides(
        x: Tensor<Self, 2>,
        shape: [usize; 2],
        heads: Heads,
        angles: Option<&RotaryTables<Self>>,
        dtype: FloatDType,
    ) -> [Tensor<Self, 4>; 3] {
        plain::split_sides(x, shape, heads, angles).map(|side| side.cast(dtype))
    }

    /// Side by side again, rotated back: from the gradients of what [`Kernels::split_sides`] gives to that of its input.
    /// Those of keys and of values are in the same numbers.
    fn join_sides(
        sides: [Tensor<Self, 4>; 3],
        angles: Option<&RotaryTables<Self>>,
        dtype: FloatDType,
    ) -> Tensor<Self, 2> {
        plain::join_sides(sides, angles, dtype)
    }

    /// A matrix of the shape given that has one matrix or more, f32, each times its factor at its place, where no other lies, and zeros beside them.
    fn placed(
        parts: Vec<Tensor<Self, 2>>,
        places: &[Place],
        shape: [usize; 2],
        dtype: FloatDType,
    ) -> Tensor<Self, 2> {
        plain::placed(parts, places, shape).cast(dtype)
    }

    /// What lies at each place, times its factor, f32.
    fn taken(x: Tensor<Self, 2>, places: &[Place]) -> Vec<Tensor<Self, 2>> {
        plain::taken(&x, places)
    }

    /// The weights of attention, `softmax(scale scores + bias)` over the keys of `[texts, heads, queries, keys]`; `bias`
    /// is `[1, heads, queries, keys]`, and the mask `[texts, 1, queries, keys]` is true where a key is hidden.
    fn attention_weights(
        scores: Tensor<Self, 4>,
        scale: f32,
        bias: Option<Tensor<Self, 4>>,
        mask: Option<Tensor<Self, 4, Bool>>,
        dtype: FloatDType,
    ) -> Tensor<Self, 4> {
        plain::attention_weights(scores, scale, bias, mask).cast(dtype)
    }

    /// From the gradient of what [`Kernels::attention_weights`] gives, which are f32, to `scale` times that of the scaled scores.
    fn attention_scores_gradient(
        weights: Tensor<Self, 4>,
        gradient: Tensor<Self, 4>,
        scale: f32,
        dtype: FloatDType,
    ) -> Tensor<Self, 4> {
        plain::attention_scores_gradient(weights, gradient, scale).cast(dtype)
    }

    /// Rotates `[batch, seq, heads, width]` by tables `[1, seq, 1, width]` of cosines and sines:
    /// the first half of a head's dimensions with the second.
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
        weight: &HostMatrix,
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

    /// The weights `[inputs, outputs]` that packed ones stand for, in the numbers that a product takes; codes and scales as
    /// [`PackedLayout::weights`] takes them.
    fn unpacked(
        codes: Tensor<Self, 2, Int>,
        scales: Tensor<Self, 2>,
        layout: PackedLayout,
        dtype: FloatDType,
    ) -> Tensor<Self, 2> {
        layout.weights(codes, scales).cast(dtype)
    }

    /// Packed weights as a block takes them, in the tensors of the backend that computes it.
    fn device_matrix(
        codes: Tensor<Self, 2, Int>,
        scales: Tensor<Self, 2>,
        layout: PackedLayout,
    ) -> DeviceMatrix {
        DeviceMatrix::new(codes, scales, layout)
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

    /// Begins to bring a number `[1]`, f32, to the host. Whoever waits for it waits for what the device was given before, and not
    /// for what it is given later; here it is there at once.
    fn begin_reading(number: Tensor<Self, 1>) -> Reading {
        Box::pin(std::future::ready(Ok(number.into_scalar().elem::<f32>())))
    }
}

/// A backend with gradients that Kiln's models are trained on.
pub trait TrainingBackend: Kernels + AutodiffBackend<InnerBackend: Kernels> {}

impl<B: Kernels + AutodiffBackend<InnerBackend: Kernels>> TrainingBackend for B {}
