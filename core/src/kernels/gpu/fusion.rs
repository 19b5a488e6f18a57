//! The GPU kernels under Burn's fusion: products with packed weights are opaque to it, and it fuses
//! the rest.

use std::marker::PhantomData;

use burn::tensor::{DType, Int, Shape, Tensor, TensorPrimitive};
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{Fusion, FusionBackend, FusionRuntime};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, OperationOutput, TensorIr};

use crate::kernels::{Kernels, Packing};
use crate::quant::PackedLayout;

/// The fusion backend's handle of a tensor.
type Handles<B> =
    HandleContainer<<<B as FusionBackend>::FusionRuntime as FusionRuntime>::FusionHandle>;

impl<B: FusionBackend + Kernels> Kernels for Fusion<B> {
    const HOST: bool = B::HOST;
    const PACKING: Packing = B::PACKING;

    fn largest_tensor(device: &Self::Device) -> u64 {
        B::largest_tensor(device)
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
