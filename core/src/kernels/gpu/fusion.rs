//! The GPU kernels under Burn's fusion, which does not look into them and fuses the rest.

use std::fmt;
use std::marker::PhantomData;

use burn::module::Param;
use burn::nn::{LayerNorm, LayerNormConfig, RmsNorm};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Bool, DType, FloatDType, Int, Shape, Tensor, TensorPrimitive};
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{Fusion, FusionBackend, FusionRuntime, FusionTensor};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, OperationOutput, TensorIr};

#[cfg(feature = "autodiff")]
use crate::kernels::{Block, BlockGradients, BlockOf, Tape, on_device};
use crate::kernels::{
    DropoutMask, Heads, Kernels, Norm, Packing, Place, Reading, RotaryTables, Seen, plain,
};
use crate::quant::PackedLayout;

/// The fusion backend's handle of a tensor.
type Handles<B> =
    HandleContainer<<<B as FusionBackend>::FusionRuntime as FusionRuntime>::FusionHandle>;

/// A tensor of the fusion backend, of any kind.
type Lazy<B> = FusionTensor<<B as FusionBackend>::FusionRuntime>;

impl<B: FusionBackend + Kernels> Kernels for Fusion<B> {
    const HOST: bool = B::HOST;
    const BLOCK_GRADIENTS: bool = B::BLOCK_GRADIENTS;
    const PACKING: Packing = B::PACKING;

    fn largest_tensor(device: &Self::Device) -> u64 {
        B::largest_tensor(device)
    }

    // Activations and products with gates are left to fusion, which computes each in one kernel with what stands around it;
    // of a norm it makes three or more.

    fn add_and_norm(
        x: Tensor<Self, 3>,
        residual: Tensor<Self, 3>,
        norm: &LayerNorm<Self>,
        epsilon: f64,
    ) -> Tensor<Self, 3> {
        let Some(beta) = norm.beta.as_ref().filter(|_| x.dtype() == DType::F32) else {
            return norm.forward(x + residual);
        };
        let ([_, _, width], to) = (x.dims(), (x.shape(), DType::F32));
        let inputs = vec![lazy(x), lazy(residual), lazy(norm.gamma.val()), lazy(beta.val())];
        opaque::<B, 3>("add_and_norm", inputs, to, move |inputs| {
            let (x, residual) = (inputs.float::<3>(), inputs.float::<3>());
            let config = LayerNormConfig::new(width).with_epsilon(epsilon);
            let mut norm = config.init::<B>(&x.device());
            norm.gamma = Param::from_tensor(inputs.float::<1>());
            norm.beta = Some(Param::from_tensor(inputs.float::<1>()));
            B::add_and_norm(x, residual, &norm, epsilon).into_primitive()
        })
    }

    fn rms_norm<const D: usize>(x: Tensor<Self, D>, norm: &RmsNorm<Self>) -> Tensor<Self, D> {
        let (gamma, epsilon) = (norm.gamma.val(), norm.epsilon);
        if [x.dtype(), gamma.dtype()] != [DType::F32; 2] {
            return norm.forward(x);
        }
        let to = (x.shape(), DType::F32);
        opaque::<B, D>("rms_norm", vec![lazy(x), lazy(gamma)], to, move |inputs| {
            let x = inputs.float::<D>();
            let norm = RmsNorm { gamma: Param::from_tensor(inputs.float::<1>()), epsilon };
            B::rms_norm(x, &norm).into_primitive()
        })
    }

    /// Short texts keep their `[query, key]` scores, whose products the backend's own kernels compute, on
    /// tensor cores where there are any. Of long ones these would fill the memory.
    fn self_attention(qkv: Tensor<Self, 3>, heads: Heads, seen: Seen<'_, Self>) -> Tensor<Self, 3> {
        let ([batch, seq, _], dtype) = (qkv.dims(), qkv.dtype());
        if seq <= plain::LONGEST_HELD {
            return plain::attention(qkv, heads, seen);
        }
        let rows = seen.rows.to_vec();
        let (rotates, masked, biased) =
            (seen.angles.is_some(), seen.mask.is_some(), seen.bias.is_some());
        let mask = seen.mask.map(|mask| mask.clone().into_primitive());
        let inputs = [lazy(qkv)]
            .into_iter()
            .chain(mask)
            .chain(seen.angles.map(tables).into_iter().flatten())
            .chain(seen.bias.map(|bias| lazy(bias.clone())));
        let shape = [batch, seq, heads.queries * heads.width];
        opaque::<B, 3>("self_attention", inputs.collect(), (shape.into(), dtype), move |inputs| {
            let qkv = inputs.float();
            let mask = masked.then(|| inputs.bool());
            let angles = rotates.then(|| (inputs.float(), inputs.float()));
            let bias = biased.then(|| inputs.float());
            let (angles, mask, bias) = (angles.as_ref(), mask.as_ref(), bias.as_ref());
            let seen = Seen { rows: &rows, angles, mask, bias, unread: false };
            B::self_attention(qkv, heads, seen).into_primitive()
        })
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

    fn norm_rows(x: Tensor<Self, 2>, norm: &Norm<Lazy<B>>, dtype: FloatDType) -> Tensor<Self, 2> {
        let shape = x.shape();
        let own = norm.clone();
        let (like, has_beta) = (Like::of(norm), norm.beta.is_some());
        let inputs = [lazy(x), own.gamma].into_iter().chain(own.beta).collect();
        opaque::<B, 2>("norm_rows", inputs, (shape, dtype.into()), move |inputs| {
            let x = inputs.float();
            let norm = like.norm(inputs.primitive(), has_beta.then(|| inputs.primitive()));
            B::norm_rows(x, &norm, dtype).into_primitive()
        })
    }

    fn norm_rows_gradient(
        x: Tensor<Self, 2>,
        gradient: Tensor<Self, 2>,
        norm: &Norm<Lazy<B>>,
        more: Option<Tensor<Self, 2>>,
    ) -> Tensor<Self, 2> {
        let (shape, like, adds) = (x.shape(), Like::of(norm), more.is_some());
        let inputs = [lazy(x), lazy(gradient), norm.gamma.clone()].into_iter();
        let inputs = inputs.chain(more.map(lazy)).collect();
        opaque::<B, 2>("norm_rows_gradient", inputs, (shape, DType::F32), move |inputs| {
            let (x, gradient) = (inputs.float(), inputs.float());
            let norm = like.norm(inputs.primitive(), None);
            let more = adds.then(|| inputs.float());
            B::norm_rows_gradient(x, gradient, &norm, more).into_primitive()
        })
    }

    fn split_heads(
        x: Tensor<Self, 2>,
        shape @ [batch, seq]: [usize; 2],
        width: usize,
        angles: Option<&RotaryTables<Self>>,
        dtype: FloatDType,
    ) -> Tensor<Self, 4> {
        let heads = x.dims()[1] / width;
        let rotates = angles.is_some();
        let inputs = [lazy(x)].into_iter().chain(angles.map(tables).into_iter().flatten());
        let to = (Shape::from([batch, heads, seq, width]), dtype.into());
        opaque::<B, 4>("split_heads", inputs.collect(), to, move |inputs| {
            let x = inputs.float();
            let angles = rotates.then(|| (inputs.float(), inputs.float()));
            B::split_heads(x, shape, width, angles.as_ref(), dtype).into_primitive()
        })
    }

    fn join_heads(
        x: Tensor<Self, 4>,
        angles: Option<&RotaryTables<Self>>,
        dtype: FloatDType,
    ) -> Tensor<Self, 2> {
        let [batch, heads, seq, width] = x.dims();
        let rotates = angles.is_some();
        let inputs = [lazy(x)].into_iter().chain(angles.map(tables).into_iter().flatten());
        let to = (Shape::from([batch * seq, heads * width]), dtype.into());
        opaque::<B, 2>("join_heads", inputs.collect(), to, move |inputs| {
            let x = inputs.float();
            let angles = rotates.then(|| (inputs.float(), inputs.float()));
            B::join_heads(x, angles.as_ref(), dtype).into_primitive()
        })
    }

    fn split_sides(
        x: Tensor<Self, 2>,
        shape @ [batch, seq]: [usize; 2],
        heads: Heads,
        angles: Option<&RotaryTables<Self>>,
        dtype: FloatDType,
    ) -> [Tensor<Self, 4>; 3] {
        let rotates = angles.is_some();
        let inputs = [lazy(x)].into_iter().chain(angles.map(tables).into_iter().flatten());
        let to: [(Shape, DType); 3] = [heads.queries, heads.keys, heads.keys]
            .map(|count| (Shape::from([batch, count, seq, heads.width]), dtype.into()));
        let sides = several::<B>("split_sides", inputs.collect(), Vec::from(to), move |inputs| {
            let x = inputs.float();
            let angles = rotates.then(|| (inputs.float(), inputs.float()));
            let sides = B::split_sides(x, shape, heads, angles.as_ref(), dtype);
            Vec::from(sides.map(|side| side.into_primitive().tensor()))
        });
        sides.outputs::<3>().map(float::<B, 4>)
    }

    fn join_sides(
        sides: [Tensor<Self, 4>; 3],
        angles: Option<&RotaryTables<Self>>,
        dtype: FloatDType,
    ) -> Tensor<Self, 2> {
        let [[batch, queries, seq, width], [_, keys, _, _]] = [sides[0].dims(), sides[1].dims()];
        let rotates = angles.is_some();
        let inputs = sides.map(lazy).into_iter();
        let inputs = inputs.chain(angles.map(tables).into_iter().flatten()).collect();
        let shape = Shape::from([batch * seq, (queries + 2 * keys) * width]);
        opaque::<B, 2>("join_sides", inputs, (shape, dtype.into()), move |inputs| {
            let sides = [inputs.float(), inputs.float(), inputs.float()];
            let angles = rotates.then(|| (inputs.float(), inputs.float()));
            B::join_sides(sides, angles.as_ref(), dtype).into_primitive()
        })
    }

    fn placed(
        parts: Vec<Tensor<Self, 2>>,
        places: &[Place],
        shape: [usize; 2],
        dtype: FloatDType,
    ) -> Tensor<Self, 2> {
        let (count, places) = (parts.len(), places.to_vec());
        let inputs = parts.into_iter().map(lazy).collect();
        let to = (Shape::from(shape), dtype.into());
        opaque::<B, 2>("placed", inputs, to, move |inputs| {
            let parts = (0..count).map(|_| inputs.float()).collect();
            B::placed(parts, &places, shape, dtype).into_primitive()
        })
    }

    fn taken(x: Tensor<Self, 2>, places: &[Place]) -> Vec<Tensor<Self, 2>> {
        let to = places.iter().map(|place| (Shape::from(place.extent), DType::F32)).collect();
        let places = places.to_vec();
        let parts = several::<B>("taken", vec![lazy(x)], to, move |inputs| {
            let parts = B::taken(inputs.float(), &places).into_iter();
            parts.map(|part| part.into_primitive().tensor()).collect()
        });
        parts.into_iter().map(float::<B, 2>).collect()
    }

    fn attention_weights(
        scores: Tensor<Self, 4>,
        scale: f32,
        bias: Option<Tensor<Self, 4>>,
        mask: Option<Tensor<Self, 4, Bool>>,
        dtype: FloatDType,
    ) -> Tensor<Self, 4> {
        let to = (scores.shape(), dtype.into());
        let (biased, masked) = (bias.is_some(), mask.is_some());
        let mask = mask.map(Tensor::into_primitive);
        let inputs = [lazy(scores)].into_iter().chain(bias.map(lazy)).chain(mask).collect();
        opaque::<B, 4>("attention_weights", inputs, to, move |inputs| {
            let scores = inputs.float();
            let bias = biased.then(|| inputs.float());
            let mask = masked.then(|| inputs.bool());
            B::attention_weights(scores, scale, bias, mask, dtype).into_primitive()
        })
    }

    fn attention_scores_gradient(
        weights: Tensor<Self, 4>,
        gradient: Tensor<Self, 4>,
        scale: f32,
        dtype: FloatDType,
    ) -> Tensor<Self, 4> {
        let to = (weights.shape(), dtype.into());
        let inputs = vec![lazy(weights), lazy(gradient)];
        opaque::<B, 4>("attention_scores_gradient", inputs, to, move |inputs| {
            let (weights, gradient) = (inputs.float(), inputs.float());
            B::attention_scores_gradient(weights, gradient, scale, dtype).into_primitive()
        })
    }

    fn drop_out(x: Tensor<Self, 2>, masks: &[DropoutMask]) -> Tensor<Self, 2> {
        let ([rows, width], masks) = (x.dims(), masks.to_vec());
        let to = (Shape::from([rows, masks.len() * width]), x.dtype());
        opaque::<B, 2>("drop_out", vec![lazy(x)], to, move |inputs| {
            B::drop_out(inputs.float(), &masks).into_primitive()
        })
    }

    fn add_dropped(
        sum: Tensor<Self, 2>,
        x: Tensor<Self, 2>,
        masks: &[DropoutMask],
    ) -> Tensor<Self, 2> {
        let (to, masks) = ((sum.shape(), DType::F32), masks.to_vec());
        opaque::<B, 2>("add_dropped", vec![lazy(sum), lazy(x)], to, move |inputs| {
            let (sum, x) = (inputs.float(), inputs.float());
            B::add_dropped(sum, x, &masks).into_primitive()
        })
    }

    fn packed_linear(
        x: Tensor<Self, 2>,
        codes: Tensor<Self, 2, Int>,
        scales: Tensor<Self, 2>,
        layout: PackedLayout,
        bias: Option<Tensor<Self, 1>>,
    ) -> Tensor<Self, 2> {
        let ([rows, _], dtype) = (x.dims(), x.dtype());
        let inputs = vec![lazy(x), codes.into_primitive(), lazy(scales)];
        let to = (Shape::from([rows, layout.outputs]), dtype);
        let y = opaque::<B, 2>("packed_linear", inputs, to, move |inputs| {
            let (x, codes, scales) = (inputs.float(), inputs.int(), inputs.float());
            B::packed_linear(x, codes, scales, layout, None).into_primitive()
        });
        // Left to fusion, which may merge it with what follows.
        match bias {
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
        let inputs = vec![codes.into_primitive(), lazy(scales)];
        let to = (Shape::from([layout.inputs, layout.outputs]), dtype.into());
        opaque::<B, 2>("unpacked", inputs, to, move |inputs| {
            let (codes, scales) = (inputs.int(), inputs.float());
            B::unpacked(codes, scales, layout, dtype).into_primitive()
        })
    }

    fn packed_rows(
        ids: Tensor<Self, 2, Int>,
        codes: Tensor<Self, 2, Int>,
        scales: Tensor<Self, 2>,
        layout: PackedLayout,
    ) -> Tensor<Self, 3> {
        let [batch, seq] = ids.dims();
        let inputs = vec![ids.into_primitive(), codes.into_primitive(), lazy(scales)];
        let to = (Shape::from([batch, seq, layout.inputs]), DType::F32);
        opaque::<B, 3>("packed_rows", inputs, to, move |inputs| {
            let (ids, codes, scales) = (inputs.int(), inputs.int(), inputs.float());
            B::packed_rows(ids, codes, scales, layout).into_primitive()
        })
    }

    fn begin_reading(number: Tensor<Self, 1>) -> Reading {
        let number = lazy(number);
        // What it is made of may still wait for more to be fused with.
        let number = number.client.clone().resolve_tensor_float::<B>(number);
        B::begin_reading(Tensor::from_primitive(TensorPrimitive::Float(number)))
    }
}

fn lazy<B: FusionBackend, const D: usize>(x: Tensor<Fusion<B>, D>) -> Lazy<B> {
    x.into_primitive().tensor()
}

fn float<B: FusionBackend, const D: usize>(x: Lazy<B>) -> Tensor<Fusion<B>, D> {
    Tensor::from_primitive(TensorPrimitive::Float(x))
}

fn tables<B: FusionBackend>((cos, sin): &RotaryTables<Fusion<B>>) -> [Lazy<B>; 2] {
    [cos, sin].map(|table| lazy(table.clone()))
}

/// A norm less its tensors.
#[derive(Clone, Copy)]
struct Like {
    centred: bool,
    epsilon: f32,
}

impl Like {
    fn of<T>(norm: &Norm<T>) -> Self {
        Self { centred: norm.centred, epsilon: norm.epsilon }
    }

    fn norm<T>(self, gamma: T, beta: Option<T>) -> Norm<T> {
        Norm { gamma, beta, centred: self.centred, epsilon: self.epsilon }
    }
}

/// An operation of the backend below, which fusion does not look into: its inputs, and the shape and the numbers of its
/// output.
fn opaque<B: FusionBackend + Kernels, const D: usize>(
    name: &'static str,
    inputs: Vec<Lazy<B>>,
    to: (Shape, DType),
    run: impl Fn(&mut Inputs<'_, B>) -> TensorPrimitive<B> + Send + Sync + 'static,
) -> Tensor<Fusion<B>, D> {
    let y = several::<B>(name, inputs, vec![to], move |inputs| vec![run(inputs).tensor()]);
    float::<B, D>(y.output())
}

/// As [`opaque`], with several outputs.
fn several<B: FusionBackend + Kernels>(
    name: &'static str,
    inputs: Vec<Lazy<B>>,
    to: Vec<(Shape, DType)>,
    run: impl Fn(&mut Inputs<'_, B>) -> Vec<FloatTensor<B>> + Send + Sync + 'static,
) -> Vec<Lazy<B>> {
    let client = inputs[0].client.clone();
    let output = |(shape, dtype)| TensorIr::uninit(client.create_empty_handle(), shape, dtype);
    let outputs: Vec<TensorIr> = to.into_iter().map(output).collect();
    let streams = OperationStreams::with_inputs(&inputs);
    let inputs: Vec<TensorIr> = inputs.into_iter().map(FusionTensor::into_ir).collect();
    let ir = CustomOpIr::new(name, &inputs, &outputs);
    let operation = Opaque { ir: ir.clone(), run, backend: PhantomData::<fn() -> B> };
    client.register(streams, OperationIr::Custom(ir), operation)
}

struct Opaque<B, F> {
    ir: CustomOpIr,
    run: F,
    backend: PhantomData<fn() -> B>,
}

impl<B, F> fmt::Debug for Opaque<B, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.ir)
    }
}

impl<B, F> Operation<B::FusionRuntime> for Opaque<B, F>
where
    B: FusionBackend + Kernels,
    F: Fn(&mut Inputs<'_, B>) -> Vec<FloatTensor<B>> + Send + Sync,
{
    fn execute(&self, handles: &mut Handles<B>) {
        let made = (self.run)(&mut Inputs { all: &self.ir.inputs, next: 0, handles });
        for (output, tensor) in self.ir.outputs.iter().zip(made) {
            handles.register_float_tensor::<B>(&output.id, tensor);
        }
    }
}

/// An operation's inputs, one after the other.
struct Inputs<'a, B: FusionBackend> {
    all: &'a [TensorIr],
    next: usize,
    handles: &'a mut Handles<B>,
}

impl<B: FusionBackend + Kernels> Inputs<'_, B> {
    fn next(&mut self) -> &TensorIr {
        self.next += 1;
        &self.all[self.next - 1]
    }

    fn primitive(&mut self) -> B::FloatTensorPrimitive {
        let ir = self.next().clone();
        self.handles.get_float_tensor::<B>(&ir)
    }

    fn float<const D: usize>(&mut self) -> Tensor<B, D> {
        Tensor::from_primitive(TensorPrimitive::Float(self.primitive()))
    }

    fn int<const D: usize>(&mut self) -> Tensor<B, D, Int> {
        let ir = self.next().clone();
        Tensor::from_primitive(self.handles.get_int_tensor::<B>(&ir))
    }

    fn bool<const D: usize>(&mut self) -> Tensor<B, D, Bool> {
        let ir = self.next().clone();
        Tensor::from_primitive(self.handles.get_bool_tensor::<B>(&ir))
    }
}
