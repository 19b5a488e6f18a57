//! The GPU kernels under Burn's fusion: products with packed weights and attention over long texts are opaque to
//! it, and it fuses the rest.

use std::marker::PhantomData;
use std::ops::Range;

#[cfg(feature = "autodiff")]
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Bool, DType, Int, Shape, Tensor, TensorPrimitive};
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{Fusion, FusionBackend, FusionRuntime};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, OperationOutput, TensorIr};

#[cfg(feature = "autodiff")]
use crate::kernels::{Block, BlockGradients, BlockOf, Tape, on_device};
use crate::kernels::{DropoutMask, Heads, Kernels, Packing, Seen, plain};
use crate::quant::PackedLayout;

/// The fusion backend's handle of a tensor.
type Handles<B> =
    HandleContainer<<<B as FusionBackend>::FusionRuntime as FusionRuntime>::FusionHandle>;

impl<B: FusionBackend + Kernels> Kernels for Fusion<B> {
    const HOST: bool = B::HOST;
    const BLOCK_GRADIENTS: bool = B::BLOCK_GRADIENTS;
    const PACKING: Packing = B::PACKING;

    fn largest_tensor(device: &Self::Device) -> u64 {
        B::largest_tensor(device)
    }

    /// Short texts keep their `[query, key]` scores, whose products the backend's own kernels compute, on
    /// tensor cores where there are any. Of long ones these would fill the memory.
    fn self_attention(qkv: Tensor<Self, 3>, heads: Heads, seen: Seen<'_, Self>) -> Tensor<Self, 3> {
        let ([batch, seq, _], dtype) = (qkv.dims(), qkv.dtype());
        if seq <= plain::LONGEST_HELD || seen.bias.is_some() {
            return plain::attention(qkv, heads, seen);
        }
        let qkv = qkv.into_primitive().tensor();
        let mask = seen.mask.map(|mask| mask.clone().into_primitive());
        let tables = |(cos, sin): &(Tensor<Self, 4>, Tensor<Self, 4>)| {
            [cos, sin].map(|table| table.clone().into_primitive().tensor())
        };
        let angles = seen.angles.map(tables);
        let client = qkv.client.clone();
        let shape = Shape::from([batch, seq, heads.queries * heads.width]);
        let context = TensorIr::uninit(client.create_empty_handle(), shape, dtype);
        let all = || [&qkv].into_iter().chain(&mask).chain(angles.iter().flatten());
        let streams = OperationStreams::with_inputs(all());
        let (rotates, masked) = (angles.is_some(), mask.is_some());
        let inputs: Vec<TensorIr> = [qkv]
            .into_iter()
            .chain(mask)
            .chain(angles.into_iter().flatten())
            .map(|tensor| tensor.into_ir())
            .collect();
        let ir = CustomOpIr::new("self_attention", &inputs, &[context]);
        let operation = SelfAttention::<B> {
            ir: ir.clone(),
            heads,
            rows: seen.rows.to_vec(),
            rotates,
            masked,
            backend: PhantomData,
        };
        let context = client.register(streams, OperationIr::Custom(ir), operation).output();
        Tensor::from_primitive(TensorPrimitive::Float(context))
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

    fn drop_out(x: Tensor<Self, 2>, mask: DropoutMask) -> Tensor<Self, 2> {
        let (shape, dtype) = (x.shape(), x.dtype());
        let x = x.into_primitive().tensor();
        let client = x.client.clone();
        let y = TensorIr::uninit(client.create_empty_handle(), shape, dtype);
        let streams = OperationStreams::with_inputs([&x]);
        let ir = CustomOpIr::new("drop_out", &[x.into_ir()], &[y]);
        let operation = DropOut::<B> { ir: ir.clone(), mask, backend: PhantomData };
        let y = client.register(streams, OperationIr::Custom(ir), operation).output();
        Tensor::from_primitive(TensorPrimitive::Float(y))
    }

    fn packed_linear(
        x: Tensor<Self, 2>,
        codes: Tensor<Self, 2, Int>,
        scales: Tensor<Self, 2>,
        layout: PackedLayout,
        bias: Option<Tensor<Self, 1>>,
    ) -> Tensor<Self, 2> {
        let ([rows, _], dtype) = (x.dims(), x.dtype());
        let x = x.into_primitive().tensor();
        let codes = codes.into_primitive();
        let scales = scales.into_primitive().tensor();
        let client = x.client.clone();
        let shape = Shape::from([rows, layout.outputs]);
        let y = TensorIr::uninit(client.create_empty_handle(), shape, dtype);
        let streams = OperationStreams::with_inputs([&x, &codes, &scales]);
        let inputs = [x.into_ir(), codes.into_ir(), scales.into_ir()];
        let ir = CustomOpIr::new("packed_linear", &inputs, &[y]);
        let operation = PackedLinear::<B> { ir: ir.clone(), layout, backend: PhantomData };
        let y = client.register(streams, OperationIr::Custom(ir), operation).output();
        let y = Tensor::from_primitive(TensorPrimitive::Float(y));
        // Left to fusion, which may merge it with what follows.
        match bias {
            Some(bias) => y + bias.unsqueeze(),
            None => y,
        }
    }

    fn packed_rows(
        ids: Tensor<Self, 2, Int>,
        codes: Tensor<Self, 2, Int>,
        scales: Tensor<Self, 2>,
        layout: PackedLayout,
    ) -> Tensor<Self, 3> {
        let [batch, seq] = ids.dims();
        let ids = ids.into_primitive();
        let codes = codes.into_primitive();
        let scales = scales.into_primitive().tensor();
        let client = ids.client.clone();
        let shape = Shape::from([batch, seq, layout.inputs]);
        let result = TensorIr::uninit(client.create_empty_handle(), shape, DType::F32);
        let streams = OperationStreams::with_inputs([&ids, &codes, &scales]);
        let inputs = [ids.into_ir(), codes.into_ir(), scales.into_ir()];
        let ir = CustomOpIr::new("packed_rows", &inputs, &[result]);
        let operation = PackedRows::<B> { ir: ir.clone(), layout, backend: PhantomData };
        let result = client.register(streams, OperationIr::Custom(ir), operation).output();
        Tensor::from_primitive(TensorPrimitive::Float(result))
    }
}

/// Attention of texts; its inputs are queries, keys and values, then the mask and the two rotary tables, where
/// there are any.
#[derive(Debug)]
struct SelfAttention<B> {
    ir: CustomOpIr,
    heads: Heads,
    rows: Vec<Range<usize>>,
    rotates: bool,
    masked: bool,
    backend: PhantomData<B>,
}

impl<B: FusionBackend + Kernels> Operation<B::FusionRuntime> for SelfAttention<B> {
    fn execute(&self, handles: &mut Handles<B>) {
        let (qkv, rest) = self.ir.inputs.split_at(1);
        let qkv = float::<B, 3>(handles.get_float_tensor::<B>(&qkv[0]));
        let (masks, tables) = rest.split_at(usize::from(self.masked));
        let mask: Option<Tensor<B, 4, Bool>> =
            masks.first().map(|mask| Tensor::from_primitive(handles.get_bool_tensor::<B>(mask)));
        let mut table = |i: usize| float::<B, 4>(handles.get_float_tensor::<B>(&tables[i]));
        let angles = self.rotates.then(|| (table(0), table(1)));
        let seen =
            Seen { rows: &self.rows, angles: angles.as_ref(), mask: mask.as_ref(), bias: None };
        let context = B::self_attention(qkv, self.heads, seen);
        handles
            .register_float_tensor::<B>(&self.ir.outputs[0].id, context.into_primitive().tensor());
    }
}

#[derive(Debug)]
struct DropOut<B> {
    ir: CustomOpIr,
    mask: DropoutMask,
    backend: PhantomData<B>,
}

impl<B: FusionBackend + Kernels> Operation<B::FusionRuntime> for DropOut<B> {
    fn execute(&self, handles: &mut Handles<B>) {
        let ([x], [y]) = self.ir.as_fixed();
        let result = B::drop_out(float::<B, 2>(handles.get_float_tensor::<B>(x)), self.mask);
        handles.register_float_tensor::<B>(&y.id, result.into_primitive().tensor());
    }
}

#[derive(Debug)]
struct PackedLinear<B> {
    ir: CustomOpIr,
    layout: PackedLayout,
    backend: PhantomData<B>,
}

impl<B: FusionBackend + Kernels> Operation<B::FusionRuntime> for PackedLinear<B> {
    fn execute(&self, handles: &mut Handles<B>) {
        let ([x, codes, scales], [y]) = self.ir.as_fixed();
        let x = float::<B, 2>(handles.get_float_tensor::<B>(x));
        let codes = Tensor::from_primitive(handles.get_int_tensor::<B>(codes));
        let scales = float::<B, 2>(handles.get_float_tensor::<B>(scales));
        let result = B::packed_linear(x, codes, scales, self.layout, None);
        handles.register_float_tensor::<B>(&y.id, result.into_primitive().tensor());
    }
}

#[derive(Debug)]
struct PackedRows<B> {
    ir: CustomOpIr,
    layout: PackedLayout,
    backend: PhantomData<B>,
}

impl<B: FusionBackend + Kernels> Operation<B::FusionRuntime> for PackedRows<B> {
    fn execute(&self, handles: &mut Handles<B>) {
        let ([ids, codes, scales], [result]) = self.ir.as_fixed();
        let ids = Tensor::from_primitive(handles.get_int_tensor::<B>(ids));
        let codes = Tensor::from_primitive(handles.get_int_tensor::<B>(codes));
        let scales = float::<B, 2>(handles.get_float_tensor::<B>(scales));
        let rows = B::packed_rows(ids, codes, scales, self.layout);
        handles.register_float_tensor::<B>(&result.id, rows.into_primitive().tensor());
    }
}

fn float<B: FusionBackend, const D: usize>(x: B::FloatTensorPrimitive) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(x))
}
