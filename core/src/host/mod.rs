//! Fast paths for tensors whose memory is the host's own (Burn's CPU backend, outside training).
//!
//! Burn 0.21's CPU backend computes GELU one value at a time and permutes four dimensions
//! element by element; together they cost as much as the matrix products of a small encoder. The
//! functions here do the same work on the tensor's own memory, in loops that the compiler turns
//! into SIMD, in a version for each instruction set that is chosen at run time. Everywhere else
//! they are the plain tensor operations.

mod attention;

use burn::tensor::{DType, Int, Tensor, TensorData, activation, backend::Backend, module};
use multiversion::multiversion;

use crate::quant::{PackedMatrix, Quantized};

pub(crate) use attention::{Heads, attention};

/// Whether tensors of this backend can be taken apart and put together without a copy. Autodiff
/// wraps the backend and has another name, so training always takes the plain operations.
pub(crate) fn is_host<B: Backend, const D: usize>(x: &Tensor<B, D>) -> bool {
    B::name(&x.device()) == "flex" && x.dtype() == DType::F32
}

/// Whether this is Burn's CPU backend, in training too.
///
/// It goes through views and through sums that are broadcast over inner dimensions one value at a
/// time; what follows are the same operations on whole rows.
pub(crate) fn is_any_host<B: Backend, const D: usize>(x: &Tensor<B, D>) -> bool {
    B::name(&x.device()).contains("flex")
}

/// `[batch, 1, query, key]`, broadcast over the heads.
pub(crate) fn each_head<B: Backend>(x: Tensor<B, 4>, heads: usize) -> Tensor<B, 4> {
    match is_any_host(&x) {
        true => Tensor::cat(vec![x; heads], 1),
        false => x,
    }
}

/// Rotates `[batch, seq, heads, dim]` by tables `[1, seq, 1, dim]` of cosines and sines: each half
/// of a head's dimensions with the other, in rows of a whole text.
pub(crate) fn rotate<B: Backend>(
    x: Tensor<B, 4>,
    cos: Tensor<B, 4>,
    sin: Tensor<B, 4>,
) -> Tensor<B, 4> {
    let shape @ [batch, seq, heads, dim] = x.dims();
    let row = seq * heads * dim;
    // (a, b) to (-b, a) as a product, which is exact: one term of each sum is not zero.
    let half = dim / 2;
    let mut turn = vec![0.0f32; dim * dim];
    for at in 0..half {
        turn[(half + at) * dim + at] = -1.0;
        turn[at * dim + half + at] = 1.0;
    }
    let turn = TensorData::new(turn, [dim, dim]);
    let turn = Tensor::<B, 2>::from_data(turn, (&x.device(), x.dtype()));
    let turned = x.clone().reshape([batch * seq * heads, dim]).matmul(turn).reshape([batch, row]);
    let table = |angles: Tensor<B, 4>| angles.expand([1, seq, heads, dim]).reshape([1, row]);
    (x.reshape([batch, row]) * table(cos) + turned * table(sin)).reshape(shape)
}

/// Exact GELU, `x Phi(x)`.
pub(crate) fn gelu<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    if !is_host(&x) {
        return activation::gelu(x);
    }
    let device = x.device();
    let mut data = x.into_data();
    match data.as_mut_slice::<f32>() {
        Ok(values) => gelu_slice(values),
        // Not f32 after all: the plain operation.
        Err(_) => return activation::gelu(Tensor::from_data(data, &device)),
    }
    Tensor::from_data(data, &device)
}

/// Whether weights stay packed on a device; elsewhere they are made into floating-point numbers
/// when a model is loaded.
pub(crate) fn keeps_packed<B: Backend>(device: &B::Device) -> bool {
    B::name(device) == "flex"
}

/// Rows `[batch, seq, width]` of a packed table.
pub(crate) fn packed_rows<B: Backend>(
    ids: Tensor<B, 2, Int>,
    table: &Quantized,
    device: &B::Device,
) -> Tensor<B, 3> {
    let [batch, seq] = ids.dims();
    let [rows, width] = table.shape();
    let mut values = vec![0.0; batch * seq * width];
    for (id, to) in ids.into_data().iter::<i64>().zip(values.chunks_exact_mut(width.max(1))) {
        // As the plain lookup: ids are checked against the vocabulary before.
        assert!((id as usize) < rows, "token id {id} of a table with {rows} rows");
        table.read_row(id as usize, to);
    }
    Tensor::from_data(TensorData::new(values, [batch, seq, width]), device)
}

/// `[rows, in]` to `[rows, out]` by packed weights.
pub(crate) fn packed_linear<B: Backend>(
    x: Tensor<B, 2>,
    packed: &PackedMatrix,
    bias: Option<Tensor<B, 1>>,
) -> Tensor<B, 2> {
    let device = x.device();
    let ([rows, _], [_, outputs]) = (x.dims(), packed.shape());
    let plain = |x: Tensor<B, 2>, bias: Option<Tensor<B, 1>>| {
        let weight = Tensor::from_data(TensorData::new(packed.weights(), packed.shape()), &device);
        module::linear(x, weight, bias)
    };
    if !is_host(&x) {
        return plain(x, bias);
    }
    let values = bias.clone().map(Tensor::into_data);
    let values = values.as_ref().map(|values| values.as_slice::<f32>()).transpose();
    let data = x.into_data();
    match (data.as_slice::<f32>(), values) {
        (Ok(x), Ok(bias)) => match packed.product(x, bias) {
            Ok(y) => Tensor::from_data(TensorData::new(y, [rows, outputs]), &device),
            // Only widths that do not fit, about which the plain product is clearer.
            Err(_) => plain(Tensor::from_data(data.clone(), &device), None),
        },
        _ => plain(Tensor::from_data(data.clone(), &device), bias),
    }
}

/// `[batch, heads, seq, dim]` to `[batch, seq, heads * dim]`.
pub(crate) fn merge_heads<B: Backend>(x: Tensor<B, 4>) -> Tensor<B, 3> {
    let [batch, heads, seq, dim] = x.dims();
    let plain = |x: Tensor<B, 4>| x.swap_dims(1, 2).reshape([batch, seq, heads * dim]);
    if !is_host(&x) {
        return plain(x);
    }
    let device = x.device();
    let data = x.into_data();
    let Ok(values) = data.as_slice::<f32>() else {
        return plain(Tensor::from_data(data, &device));
    };
    let mut merged = Vec::with_capacity(values.len());
    for text in values.chunks_exact((heads * seq * dim).max(1)) {
        for at in 0..seq {
            for head in 0..heads {
                merged.extend_from_slice(&text[(head * seq + at) * dim..][..dim]);
            }
        }
    }
    Tensor::from_data(TensorData::new(merged, [batch, seq, heads * dim]), &device)
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn gelu_slice(values: &mut [f32]) {
    for value in values {
        *value = 0.5 * *value * (1.0 + erf(*value * std::f32::consts::FRAC_1_SQRT_2));
    }
}

/// The error function as a rational function of x^2 times x, which is exact to some units of the
/// last place in f32; beyond 3.8325 it rounds to 1 (the coefficients are those of Eigen and XLA).
#[inline(always)]
fn erf(x: f32) -> f32 {
    let x2 = x * x;
    let mut p = -2.726_142_3e-10f32;
    p = p * x2 + 2.770_681_4e-8;
    p = p * x2 + -2.101_024e-6;
    p = p * x2 + -5.692_506_4e-5;
    p = p * x2 + -7.349_906_3e-4;
    p = p * x2 + -2.954_6e-3;
    p = p * x2 + -1.609_603_3e-2;
    let mut q = -1.456_607_2e-5f32;
    q = q * x2 + -2.133_740_6e-4;
    q = q * x2 + -1.682_827e-3;
    q = q * x2 + -7.373_329_2e-3;
    q = q * x2 + -1.426_474e-2;
    // A select, not a branch, so that the loop stays SIMD.
    if x.abs() >= 3.832_5 { 1f32.copysign(x) } else { x * p / q }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::{Autodiff, Flex};
    use burn::tensor::Distribution;

    #[test]
    fn gelu_is_burns_gelu() {
        let device = Default::default();
        let steps: Vec<f32> = (-9000..=9000)
            .map(|n| n as f32 / 1000.0)
            .chain([0.0, 1e-30, -1e-38, 1e30, -1e30])
            .collect();
        let x = Tensor::<Flex, 1>::from_floats(steps.as_slice(), &device);
        let plain: Vec<f32> = activation::gelu(x.clone()).into_data().to_vec().unwrap();
        let fast: Vec<f32> = gelu(x).into_data().to_vec().unwrap();
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
        let fast: Vec<f32> = gelu(view.clone()).into_data().to_vec().unwrap();
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
            assert_eq!(merge_heads(x).into_data().to_vec::<f32>().unwrap(), plain);
        }
    }

    #[test]
    fn rotations_in_rows_are_the_plain_ones() {
        type B = Autodiff<Flex>;
        let device = Default::default();
        let normal = Distribution::Normal(0.0, 3.0);
        let x = Tensor::<B, 4>::random([2, 5, 3, 8], normal, &device).require_grad();
        let [cos, sin] =
            [0, 1].map(|_| Tensor::<B, 4>::random([1, 5, 1, 8], Distribution::Default, &device));
        let (first, second) = (x.clone().narrow(3, 0, 4), x.clone().narrow(3, 4, 4));
        let turned = Tensor::cat(vec![second.neg(), first], 3);
        let plain = x.clone() * cos.clone() + turned * sin.clone();
        let fast = rotate(x.clone(), cos, sin);
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
        let x = Tensor::<Autodiff<Flex>, 4>::random([1, 2, 3, 4], Distribution::Default, &device)
            .require_grad();
        let loss = gelu(merge_heads(x.clone())).sum();
        assert_eq!(x.grad(&loss.backward()).unwrap().dims(), [1, 2, 3, 4]);
    }
}
