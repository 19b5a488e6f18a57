//! Burn's CPU backend, outside training: on the tensors' own memory.
//!
//! Burn 0.21's CPU backend computes GELU one value at a time and permutes four dimensions
//! element by element; together they cost as much as the matrix products of a small encoder. The
//! functions here do the same work on the tensor's own memory, in loops that the compiler turns
//! into SIMD, in a version for each instruction set that is chosen at run time.

mod attention;
#[cfg(any(not(target_arch = "wasm32"), feature = "autodiff"))]
mod block;
mod elementwise;
mod norm;
mod product;
#[cfg(any(not(target_arch = "wasm32"), feature = "autodiff"))]
mod right;

use burn::backend::Flex;
use burn::nn::RmsNorm;
#[cfg(any(not(target_arch = "wasm32"), feature = "autodiff"))]
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Tensor, TensorData, TensorPrimitive, activation, module};

#[cfg(any(not(target_arch = "wasm32"), feature = "autodiff"))]
use super::{Block, BlockGradients, BlockOf, Tape};
use super::{Heads, Kernels, Packing, Seen, plain};
use crate::parallel::each_part;
use crate::quant::HostMatrix;

/// Values that justify another core.
const PART: usize = 1 << 14;

impl Kernels for Flex {
    const HOST: bool = true;
    const BLOCKS: bool = cfg!(any(not(target_arch = "wasm32"), feature = "autodiff"));
    const BLOCK_GRADIENTS: bool = Self::BLOCKS;
    const PACKING: Packing = Packing::Host;
    const TEXTS_APART: bool = true;

    fn exact_gelu<const D: usize>(x: Tensor<Self, D>) -> Tensor<Self, D> {
        let device = x.device();
        let mut data = x.into_data();
        match data.as_mut_slice::<f32>() {
            Ok(values) => each_part(values, PART, |_, values| elementwise::gelu(values)),
            // Other dtypes take the plain operation.
            Err(_) => return activation::gelu(Tensor::from_data(data, &device)),
        }
        Tensor::from_data(data, &device)
    }

    fn rms_norm<const D: usize>(x: Tensor<Self, D>, norm: &RmsNorm<Self>) -> Tensor<Self, D> {
        let device = x.device();
        let (mut data, gamma) = (x.into_data(), norm.gamma.val().into_data());
        match (data.as_mut_slice::<f32>(), gamma.as_slice::<f32>()) {
            (Ok(values), Ok(gamma)) => norm::rms(values, gamma, norm.epsilon as f32),
            _ => return norm.forward(Tensor::from_data(data, &device)),
        }
        Tensor::from_data(data, &device)
    }

    fn silu_product(gate: Tensor<Self, 3>, up: Tensor<Self, 3>) -> Tensor<Self, 3> {
        let device = gate.device();
        let (mut gate, up) = (gate.into_data(), up.into_data());
        match (gate.as_mut_slice::<f32>(), up.as_slice::<f32>()) {
            (Ok(gate), Ok(up)) => each_part(gate, PART, |number, gate| {
                elementwise::silu_product(gate, &up[number * PART..][..gate.len()]);
            }),
            _ => {
                let [gate, up] = [gate, up].map(|data| Tensor::from_data(data, &device));
                return activation::silu(gate) * up;
            }
        }
        Tensor::from_data(gate, &device)
    }

    fn self_attention(qkv: Tensor<Self, 3>, heads: Heads, seen: Seen<'_, Self>) -> Tensor<Self, 3> {
        attention::attention(qkv, heads, seen)
    }

    #[cfg(any(not(target_arch = "wasm32"), feature = "autodiff"))]
    fn block(
        x: &Tensor<Self, 3>,
        block: BlockOf<Self>,
        seen: Seen<'_, Self>,
    ) -> Option<Tensor<Self, 3>> {
        let x = x.clone().into_primitive().tensor();
        let (y, _) = block::forward(x, &block, seen, false)?;
        Some(Tensor::from_primitive(TensorPrimitive::Float(y)))
    }

    #[cfg(any(not(target_arch = "wasm32"), feature = "autodiff"))]
    fn block_forward(
        x: FloatTensor<Self>,
        block: &BlockOf<Self>,
        seen: Seen<'_, Self>,
        trains: bool,
    ) -> Option<(FloatTensor<Self>, Option<Tape>)> {
        block::forward(x, block, seen, trains)
    }

    #[cfg(any(not(target_arch = "wasm32"), feature = "autodiff"))]
    fn block_backward(
        tape: &Tape,
        block: &BlockOf<Self>,
        gradient: FloatTensor<Self>,
        wanted: Block<bool>,
    ) -> BlockGradients<Self> {
        block::backward(tape, block, gradient, wanted)
    }

    fn merge_heads(x: Tensor<Self, 4>) -> Tensor<Self, 3> {
        if x.dtype() != DType::F32 {
            return plain::merge_heads(x);
        }
        let ([batch, heads, seq, width], device) = (x.dims(), x.device());
        let data = x.into_data();
        let Ok(values) = data.as_slice::<f32>() else {
            return plain::merge_heads(Tensor::from_data(data, &device));
        };
        let mut merged = Vec::with_capacity(values.len());
        for text in values.chunks_exact((heads * seq * width).max(1)) {
            for i in 0..seq {
                for head in 0..heads {
                    merged.extend_from_slice(&text[(head * seq + i) * width..][..width]);
                }
            }
        }
        Tensor::from_data(TensorData::new(merged, [batch, seq, heads * width]), &device)
    }

    // Natively Burn's own product is gemm on all cores. It adds the terms of a single row in another order: so a row
    // twice, and its bits are those that it has beside others.
    #[cfg(not(target_arch = "wasm32"))]
    fn dense_linear(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 2>,
        bias: Option<Tensor<Self, 1>>,
    ) -> Tensor<Self, 2> {
        if x.dims()[0] != 1 {
            return module::linear(x, weight, bias);
        }
        module::linear(Tensor::cat(vec![x.clone(), x], 0), weight, bias).narrow(0, 0, 1)
    }

    #[cfg(target_arch = "wasm32")]
    fn dense_linear(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 2>,
        bias: Option<Tensor<Self, 1>>,
    ) -> Tensor<Self, 2> {
        use product::{Strided, product};
        let ([rows, inner], [_, columns], device) = (x.dims(), weight.dims(), x.device());
        // Borrowed rather than taken: taking shared data would copy it.
        let [x, weight] = [x, weight].map(|x| x.into_primitive().tensor());
        let bias = bias.map(|bias| bias.into_primitive().tensor());
        let values = bias.as_ref().map(|bias| bias.as_slice::<f32>());
        if let (Some(x), Some(weight), None | Some(Some(_))) =
            (x.as_slice::<f32>(), weight.as_slice::<f32>(), values)
        {
            let (x, weight) = (Strided::rows(x, inner), Strided::rows(weight, columns));
            let mut y = vec![0.0; rows * columns];
            product(x, weight, [rows, inner, columns], 1.0, values.flatten(), &mut y, columns);
            return Tensor::from_data(TensorData::new(y, [rows, columns]), &device);
        }
        let [x, weight] = [x, weight].map(|x| Tensor::from_primitive(TensorPrimitive::Float(x)));
        let bias = bias.map(|bias| Tensor::from_primitive(TensorPrimitive::Float(bias)));
        module::linear(x, weight, bias)
    }

    fn host_linear(
        x: Tensor<Self, 2>,
        weight: &HostMatrix,
        bias: Option<Tensor<Self, 1>>,
    ) -> Tensor<Self, 2> {
        let ([rows, _], [_, outputs], device) = (x.dims(), weight.shape(), x.device());
        // Borrowed rather than taken: taking shared data would copy it.
        let values = x.clone().into_primitive().tensor().to_contiguous();
        let of_bias = bias.clone().map(|bias| bias.into_primitive().tensor());
        let of_bias = of_bias.as_ref().map(|bias| bias.as_slice::<f32>());
        let product = match (values.as_slice::<f32>(), of_bias) {
            // It fails only on widths that do not match, for which the plain product has the
            // clearer error.
            (Some(x), None | Some(Some(_))) => weight.product(x, of_bias.flatten()).ok(),
            _ => None,
        };
        match product {
            Some(y) => Tensor::from_data(TensorData::new(y, [rows, outputs]), &device),
            None => plain::host_linear(x, weight, bias),
        }
    }
}

#[cfg(all(test, feature = "autodiff"))]
mod tests {
    use super::*;
    use burn::backend::{Autodiff, Flex};
    use burn::tensor::Distribution;
    use burn::tensor::backend::Backend as _;

    #[test]
    fn gelu_is_burns_gelu() {
        let device = Default::default();
        let steps: Vec<f32> = (-9000..=9000)
            .map(|n| n as f32 / 1000.0)
            .chain([0.0, 1e-30, -1e-38, 1e30, -1e30])
            .collect();
        let x = Tensor::<Flex, 1>::from_floats(steps.as_slice(), &device);
        let plain: Vec<f32> = activation::gelu(x.clone()).into_data().to_vec().unwrap();
        let fast: Vec<f32> = Flex::exact_gelu(x).into_data().to_vec().unwrap();
        for ((x, plain), fast) in steps.iter().zip(&plain).zip(&fast) {
            assert!(
                (plain - fast).abs() <= 3e-7 * x.abs().max(1.0),
                "gelu({x}) = {plain}, not {fast}"
            );
        }
    }

    #[test]
    fn views_and_shared_tensors_are_left_alone() {
        let device = Default::default();
        let x = Tensor::<Flex, 2>::random([7, 12], Distribution::Normal(0.0, 2.0), &device);
        let view = x.clone().narrow(1, 3, 5);
        let before: Vec<f32> = x.clone().into_data().to_vec().unwrap();
        let fast: Vec<f32> = Flex::exact_gelu(view.clone()).into_data().to_vec().unwrap();
        let plain: Vec<f32> = activation::gelu(view).into_data().to_vec().unwrap();
        assert!(plain.iter().zip(&fast).all(|(a, b)| (a - b).abs() < 1e-6));
        assert_eq!(x.into_data().to_vec::<f32>().unwrap(), before);
    }

    #[test]
    fn merging_heads_is_a_permutation() {
        let device = Default::default();
        let x = Tensor::<Flex, 4>::random([2, 3, 5, 4], Distribution::Default, &device);
        let plain: Vec<f32> =
            x.clone().swap_dims(1, 2).reshape([2, 5, 12]).into_data().to_vec().unwrap();
        // A permuted view must be read through its strides.
        let view = x.clone().swap_dims(1, 2).swap_dims(1, 2);
        for x in [x, view] {
            assert_eq!(Flex::merge_heads(x).into_data().to_vec::<f32>().unwrap(), plain);
        }
    }

    #[test]
    fn rotations_in_rows_are_the_plain_ones() {
        type B = Autodiff<Flex>;
        let device = Default::default();
        B::seed(&device, 4);
        let normal = Distribution::Normal(0.0, 3.0);
        let x = Tensor::<B, 4>::random([2, 5, 3, 8], normal, &device).require_grad();
        let [cos, sin] =
            [0, 1].map(|_| Tensor::<B, 4>::random([1, 5, 1, 8], Distribution::Default, &device));
        let (first, second) = (x.clone().narrow(3, 0, 4), x.clone().narrow(3, 4, 4));
        let turned = Tensor::cat(vec![second.neg(), first], 3);
        let plain = x.clone() * cos.clone() + turned * sin.clone();
        let fast = B::rotate(x.clone(), cos, sin);
        let values = |x: Tensor<Flex, 4>| x.into_data().to_vec::<f32>().unwrap();
        assert_eq!(values(plain.clone().inner()), values(fast.clone().inner()));
        let gradient =
            |y: Tensor<B, 4>| values(x.grad(&y.powf_scalar(2.0).sum().backward()).unwrap());
        for (plain, fast) in gradient(plain).iter().zip(gradient(fast)) {
            assert!((plain - fast).abs() <= 1e-5 * plain.abs().max(1.0), "{plain} {fast}");
        }
    }

    #[test]
    fn gradients_flow() {
        let device = Default::default();
        type B = Autodiff<Flex>;
        let x = Tensor::<B, 4>::random([1, 2, 3, 4], Distribution::Default, &device).require_grad();
        let loss = B::exact_gelu(B::merge_heads(x.clone())).sum();
        assert_eq!(x.grad(&loss.backward()).unwrap().dims(), [1, 2, 3, 4]);
    }
}
