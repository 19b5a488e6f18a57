//! Burn's cubecl backends: shaders that keep within WebGPU's default limits (256 invocations and
//! 16 KiB of shared memory a workgroup), and ask for neither subgroups nor half precision.
//!
//! They are launched with cubecl's bounds checks: reads outside a buffer give zero, and writes
//! outside are dropped.

mod activation;
mod attention;
mod dropout;
#[cfg(feature = "fusion")]
mod fusion;
mod heads;
mod norm;
mod parts;
mod product;
mod rows;
mod softmax;

use std::fmt::Debug;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use burn::nn::{LayerNorm, RmsNorm};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Bool, DType, FloatDType, Int, Shape, Tensor, TensorPrimitive, module};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};

#[cfg(feature = "autodiff")]
use super::{Block, BlockGradients, BlockOf, Tape, on_device};
use super::{
    DropoutMask, Heads, Kernels, Norm, Packing, Place, Reading, RotaryTables, Seen, plain,
};
use crate::quant::PackedLayout;

/// What this crate's kernels are compiled of. cubecl names a compiled kernel by its types and constants and not by its
/// body: whoever keeps compiled kernels between versions has to tell these apart.
pub(super) const SOURCES: [&str; 9] = [
    include_str!("activation.rs"),
    include_str!("attention.rs"),
    include_str!("dropout.rs"),
    include_str!("heads.rs"),
    include_str!("norm.rs"),
    include_str!("parts.rs"),
    include_str!("product.rs"),
    include_str!("rows.rs"),
    include_str!("softmax.rs"),
];

/// Numbers that an invocation reads at once.
const LANES: usize = 4;

impl<R, F, I, BT> Kernels for CubeBackend<R, F, I, BT>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    const BLOCK_GRADIENTS: bool = cfg!(feature = "autodiff");
    const PACKING: Packing = Packing::Device;

    fn largest_tensor(device: &Self::Device) -> u64 {
        R::client(device).properties().memory.max_page_size
    }

    fn exact_gelu<const D: usize>(x: Tensor<Self, D>) -> Tensor<Self, D> {
        if x.dtype() != DType::F32 || !x.shape().num_elements().is_multiple_of(LANES) {
            return burn::tensor::activation::gelu(x);
        }
        float(activation::gelu(primitive(x)))
    }

    fn add_and_norm(
        x: Tensor<Self, 3>,
        residual: Tensor<Self, 3>,
        norm: &LayerNorm<Self>,
        epsilon: f64,
    ) -> Tensor<Self, 3> {
        match &norm.beta {
            Some(beta) if x.dtype() == DType::F32 && x.dims()[2].is_multiple_of(LANES) => {
                let [gamma, beta] = [norm.gamma.val(), beta.val()].map(primitive);
                float(norm::norm(primitive(x), primitive(residual), gamma, beta, epsilon))
            }
            _ => norm.forward(x + residual),
        }
    }

    fn rms_norm<const D: usize>(x: Tensor<Self, D>, norm: &RmsNorm<Self>) -> Tensor<Self, D> {
        let gamma = norm.gamma.val();
        if [x.dtype(), gamma.dtype()] != [DType::F32; 2] || !gamma.dims()[0].is_multiple_of(LANES) {
            return norm.forward(x);
        }
        float(norm::rms(primitive(x), primitive(gamma), norm.epsilon))
    }

    fn silu_product(gate: Tensor<Self, 3>, up: Tensor<Self, 3>) -> Tensor<Self, 3> {
        let whole = gate.shape().num_elements().is_multiple_of(LANES);
        if [gate.dtype(), up.dtype()] != [DType::F32; 2] || !whole {
            return burn::tensor::activation::silu(gate) * up;
        }
        float(activation::silu_product(primitive(gate), primitive(up)))
    }

    fn self_attention(qkv: Tensor<Self, 3>, heads: Heads, seen: Seen<'_, Self>) -> Tensor<Self, 3> {
        let Seen { angles, mask, bias, .. } = seen;
        let fits = heads.width.is_multiple_of(LANES) && heads.width <= attention::WIDEST;
        // The two halves of a head rotate together.
        let turns = angles.is_none() || heads.width.is_multiple_of(2 * LANES);
        if qkv.dtype() != DType::F32 || !fits || !turns {
            return plain::attention(qkv, heads, seen);
        }
        let mask = mask.map(|mask| mask.clone().into_primitive());
        let angles = angles.map(tables);
        let bias = bias.map(|bias| primitive(bias.clone().cast(FloatDType::F32)));
        float(attention::attention(primitive(qkv), heads, angles, mask, bias))
    }

    #[cfg(feature = "autodiff")]
    fn block_forward(
        x: FloatTensor<Self>,
        block: &BlockOf<Self>,
        seen: Seen<'_, Self>,
        trains: bool,
    ) -> Option<(FloatTensor<Self>, Option<Tape>)> {
        on_device::forward::<Self>(x, block, seen, trains)
    }

    #[cfg(feature = "autodiff")]
    fn block_backward(
        tape: &Tape,
        block: &BlockOf<Self>,
        gradient: FloatTensor<Self>,
        wanted: Block<bool>,
    ) -> BlockGradients<Self> {
        on_device::backward::<Self>(tape, block, gradient, wanted)
    }

    fn drop_out(x: Tensor<Self, 2>, masks: &[DropoutMask]) -> Tensor<Self, 2> {
        float(dropout::drop_out(primitive(x), masks))
    }

    fn add_dropped(
        sum: Tensor<Self, 2>,
        x: Tensor<Self, 2>,
        masks: &[DropoutMask],
    ) -> Tensor<Self, 2> {
        float(dropout::add_dropped(primitive(sum), primitive(x), masks))
    }

    fn norm_rows(
        x: Tensor<Self, 2>,
        norm: &Norm<FloatTensor<Self>>,
        dtype: FloatDType,
    ) -> Tensor<Self, 2> {
        float(norm::rows(primitive(x), None, None, norm, dtype.into()))
    }

    fn norm_rows_gradient(
        x: Tensor<Self, 2>,
        gradient: Tensor<Self, 2>,
        norm: &Norm<FloatTensor<Self>>,
        more: Option<Tensor<Self, 2>>,
    ) -> Tensor<Self, 2> {
        let (gradient, more) = (Some(primitive(gradient)), more.map(primitive));
        float(norm::rows(primitive(x), gradient, more, norm, DType::F32))
    }

    fn split_heads(
        x: Tensor<Self, 2>,
        shape: [usize; 2],
        width: usize,
        angles: Option<&RotaryTables<Self>>,
        dtype: FloatDType,
    ) -> Tensor<Self, 4> {
        float(heads::split(primitive(x), shape, width, angles.map(tables), dtype.into()))
    }

    fn join_heads(
        x: Tensor<Self, 4>,
        angles: Option<&RotaryTables<Self>>,
        dtype: FloatDType,
    ) -> Tensor<Self, 2> {
        float(heads::join(primitive(x), angles.map(tables), dtype.into()))
    }

    fn split_sides(
        x: Tensor<Self, 2>,
        shape: [usize; 2],
        heads: Heads,
        angles: Option<&RotaryTables<Self>>,
        dtype: FloatDType,
    ) -> [Tensor<Self, 4>; 3] {
        let angles = angles.map(tables);
        heads::split_sides(primitive(x), shape, heads, angles, dtype.into()).map(float)
    }

    fn join_sides(
        sides: [Tensor<Self, 4>; 3],
        angles: Option<&RotaryTables<Self>>,
        dtype: FloatDType,
    ) -> Tensor<Self, 2> {
        float(heads::join_sides(sides.map(primitive), angles.map(tables), dtype.into()))
    }

    fn placed(
        parts: Vec<Tensor<Self, 2>>,
        places: &[Place],
        shape: [usize; 2],
        dtype: FloatDType,
    ) -> Tensor<Self, 2> {
        if parts.len() > parts::MOST {
            return plain::placed(parts, places, shape).cast(dtype);
        }
        let parts = parts.into_iter().map(primitive).collect();
        float(parts::placed(parts, places, shape, dtype.into()))
    }

    fn taken(x: Tensor<Self, 2>, places: &[Place]) -> Vec<Tensor<Self, 2>> {
        if places.len() > parts::MOST {
            return plain::taken(&x, places);
        }
        parts::taken(primitive(x), places).into_iter().map(float).collect()
    }

    fn attention_weights(
        scores: Tensor<Self, 4>,
        scale: f32,
        bias: Option<Tensor<Self, 4>>,
        mask: Option<Tensor<Self, 4, Bool>>,
        dtype: FloatDType,
    ) -> Tensor<Self, 4> {
        let (bias, mask) = (bias.map(primitive), mask.map(Tensor::into_primitive));
        float(softmax::weights(primitive(scores), scale, bias, mask, dtype.into()))
    }

    fn attention_scores_gradient(
        weights: Tensor<Self, 4>,
        gradient: Tensor<Self, 4>,
        scale: f32,
        dtype: FloatDType,
    ) -> Tensor<Self, 4> {
        let [weights, gradient] = [weights, gradient].map(primitive);
        float(softmax::scores_gradient(weights, gradient, scale, dtype.into()))
    }

    fn dense_linear(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 2>,
        bias: Option<Tensor<Self, 1>>,
    ) -> Tensor<Self, 2> {
        let whole = weight.dims().iter().all(|width| width.is_multiple_of(LANES));
        if !whole || [x.dtype(), weight.dtype()] != [DType::F32; 2] {
            return module::linear(x, weight, bias);
        }
        float(product::full(primitive(x), primitive(weight), bias.map(primitive)))
    }

    fn packed_linear(
        x: Tensor<Self, 2>,
        codes: Tensor<Self, 2, Int>,
        scales: Tensor<Self, 2>,
        layout: PackedLayout,
        bias: Option<Tensor<Self, 1>>,
    ) -> Tensor<Self, 2> {
        let ([rows, _], [_, width], device) = (x.dims(), codes.dims(), x.device());
        let many = rows >= product::UNPACKED_FROM
            && product::has_matrix_units(&R::client(&device))
            && (4 * layout.inputs * width) as u64 <= Self::largest_tensor(&device);
        if x.dtype() != DType::F32 || many {
            return plain::packed_linear(x, codes, scales, layout, bias);
        }
        // The bias is added after the padding outputs have been cut off.
        let (inside, after) = match width == layout.outputs {
            true => (bias, None),
            false => (None, bias),
        };
        let y = product::packed(
            primitive(x),
            codes.into_primitive(),
            primitive(scales),
            layout,
            inside.map(primitive),
        );
        let y = float::<_, _, _, _, 2>(y);
        let y = if width == layout.outputs { y } else { y.narrow(1, 0, layout.outputs) };
        match after {
            Some(bias) => y + bias.unsqueeze(),
            None => y,
        }
    }

    fn unpacked(
        codes: Tensor<Self, 2, Int>,
        scales: Tensor<Self, 2>,
        layout: PackedLayout,
        dtype: FloatDType,
    ) -> Tensor<Self, 2> {
        let [_, width] = codes.dims();
        let (codes, scales) = (codes.into_primitive(), primitive(scales));
        let weights = product::unpacked(codes, scales, layout, dtype.into());
        let weights = float::<_, _, _, _, 2>(weights);
        if width == layout.outputs { weights } else { weights.narrow(1, 0, layout.outputs) }
    }

    fn packed_rows(
        ids: Tensor<Self, 2, Int>,
        codes: Tensor<Self, 2, Int>,
        scales: Tensor<Self, 2>,
        layout: PackedLayout,
    ) -> Tensor<Self, 3> {
        float(rows::rows(ids.into_primitive(), codes.into_primitive(), primitive(scales), layout))
    }

    fn begin_reading(number: Tensor<Self, 1>) -> Reading {
        let CubeTensor { client, handle, .. } = primitive(number);
        let mut reading: Reading = Box::pin(async move {
            // The copy is queued here, and its end is waited for below, which blocks and knows no other way.
            let copy = client.read_async(vec![handle]);
            later().await;
            let copied = copy.await.map_err(|error| short(&error))?;
            let number = copied.first().and_then(|bytes| bytes.first_chunk::<4>());
            number.map(|bytes| f32::from_ne_bytes(*bytes)).ok_or_else(|| "nothing came".to_string())
        });
        // As far as `later`.
        let _ = reading.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        reading
    }
}

/// Is pending when it is asked for the first time.
async fn later() {
    let mut asked = false;
    poll_fn(|_| if std::mem::replace(&mut asked, true) { Poll::Ready(()) } else { Poll::Pending })
        .await;
}

/// The beginning of an error, which may hold a kernel's source or a backtrace.
fn short(error: &impl Debug) -> String {
    format!("{error:?}").chars().take(200).collect()
}

/// A tensor as cubecl has it.
fn primitive<R, F, I, BT, const D: usize>(x: Tensor<CubeBackend<R, F, I, BT>, D>) -> CubeTensor<R>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    x.into_primitive().tensor()
}

/// Rotary tables as cubecl has them.
fn tables<R, F, I, BT>((cos, sin): &RotaryTables<CubeBackend<R, F, I, BT>>) -> [CubeTensor<R>; 2]
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    [cos, sin].map(|table| primitive(table.clone()))
}

fn float<R, F, I, BT, const D: usize>(x: CubeTensor<R>) -> Tensor<CubeBackend<R, F, I, BT>, D>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    Tensor::from_primitive(TensorPrimitive::Float(x))
}

/// An uninitialised tensor with the dtype and device of another, without gaps: CUDA's own begin rows at multiples of 512
/// bytes, and kernels here count on rows that follow one another.
fn new_tensor<R: CubeRuntime>(like: &CubeTensor<R>, shape: impl Into<Shape>) -> CubeTensor<R> {
    new_tensor_of(like, shape, like.dtype)
}

/// As [`new_tensor`], in numbers of its own.
fn new_tensor_of<R: CubeRuntime>(
    like: &CubeTensor<R>,
    shape: impl Into<Shape>,
    dtype: DType,
) -> CubeTensor<R> {
    let (client, device) = (like.client.clone(), like.device.clone());
    empty_device_contiguous_dtype(client, device, shape.into(), dtype)
}

#[cfg(test)]
mod tests {
    use super::SOURCES;

    /// The kernels' files are those of this folder, but for this one and `fusion.rs`, which have none.
    #[test]
    fn sources_are_all_kernels() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/kernels/gpu");
        let with_kernels = std::fs::read_dir(folder).unwrap().filter(|entry| {
            let text = std::fs::read_to_string(entry.as_ref().unwrap().path()).unwrap();
            text.contains(concat!("#[cube", "(launch)]"))
        });
        assert_eq!(with_kernels.count(), SOURCES.len());
    }
}
