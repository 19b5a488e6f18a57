//! The plain versions, made of Burn's tensor operations alone.

use burn::tensor::activation::{self, softmax};
use burn::tensor::ops::{AttentionModuleOptions, FloatTensor};
use burn::tensor::{Bool, DType, FloatDType, Int, Tensor, TensorData, TensorPrimitive, module};

use super::{DropoutMask, Heads, Kernels, Norm, Place, RotaryTables, Seen};
use crate::config::Activation;
use crate::quant::{HostMatrix, PackedLayout, Quantized};

/// See [`Kernels::self_attention`].
pub(super) fn attention<B: Kernels>(
    qkv: Tensor<B, 3>,
    heads: Heads,
    seen: Seen<'_, B>,
) -> Tensor<B, 3> {
    let Heads { queries, keys, width } = heads;
    let [batch, seq, _] = qkv.dims();
    // [batch, seq, heads, width]
    let part = |from: usize, count: usize| {
        qkv.clone().narrow(2, from * width, count * width).reshape([batch, seq, count, width])
    };
    let (query, key, value) = (part(0, queries), part(queries, keys), part(queries + keys, keys));
    let [query, key] = match seen.angles {
        Some(angles) => [query, key].map(|x| rotated(x, angles)),
        None => [query, key],
    };
    let [query, key, value] = by_head(query, key, value);
    B::merge_heads(scaled_dot_product(query, key, value, seen.mask, seen.bias))
}

/// Heads `[batch, seq, heads, width]` rotated by the angles of their positions.
pub(crate) fn rotated<B: Kernels>(x: Tensor<B, 4>, (cos, sin): &RotaryTables<B>) -> Tensor<B, 4> {
    let [_, seq, _, width] = x.dims();
    let table = |angles: &Tensor<B, 4>| angles.clone().reshape([1, seq, 1, width]);
    B::rotate(x, table(cos), table(sin))
}

/// `[batch, seq, heads, width]` to `[batch, heads, seq, width]`; heads of keys and values are
/// repeated to match those of queries.
pub(crate) fn by_head<B: Kernels>(
    query: Tensor<B, 4>,
    key: Tensor<B, 4>,
    value: Tensor<B, 4>,
) -> [Tensor<B, 4>; 3] {
    let times = query.dims()[2] / key.dims()[2];
    let [query, key, value] = [query, key, value].map(|x| x.swap_dims(1, 2));
    [query, repeat_heads(key, times), repeat_heads(value, times)]
}

/// `[batch, heads, seq, width]` to `[batch, heads * times, seq, width]`, each head repeated.
fn repeat_heads<B: Kernels>(x: Tensor<B, 4>, times: usize) -> Tensor<B, 4> {
    if times == 1 {
        return x;
    }
    let [batch, heads, seq, width] = x.dims();
    x.reshape([batch, heads, 1, seq, width]).expand([batch, heads, times, seq, width]).reshape([
        batch,
        heads * times,
        seq,
        width,
    ])
}

/// Longest text whose `[query, key]` scores are held at once; longer ones go through the backend's fused attention, where
/// it takes their bias: less memory and more time.
pub(super) const LONGEST_HELD: usize = 512;

/// What is added to a score that is hidden: large enough to swallow every other, and finite, because some shader
/// compilers assume that there are no infinities.
const HIDDEN: f64 = -1e30;

/// `softmax(q k^T / sqrt(width)) v` over `[batch, heads, seq, width]` tensors.
///
/// `mask` is `[batch, 1, query, key]`, true where attention is masked; `bias` `[heads, 2 seq - 1]` is added to
/// the scores, by distance (see [`Seen::bias`]).
pub fn scaled_dot_product<B: Kernels>(
    query: Tensor<B, 4>,
    key: Tensor<B, 4>,
    value: Tensor<B, 4>,
    mask: Option<&Tensor<B, 4, Bool>>,
    bias: Option<&Tensor<B, 2>>,
) -> Tensor<B, 4> {
    let shape @ [_, _, _, keys] =
        [query.dims()[0], query.dims()[1], query.dims()[2], key.dims()[2]];
    // Burn's flash attention leaves a bias out without a word (burn-cubecl 0.21, kernel/attention/base.rs).
    if keys > LONGEST_HELD && bias.is_none() {
        let mask = mask.cloned().map(|mask| mask.expand(shape));
        return module::attention(query, key, value, mask, None, AttentionModuleOptions::default());
    }
    weighted_scaled_dot_product(query, key, value, mask, bias).0
}

/// A bias by distance `[heads, 2 seq - 1]` for each query and key: `[1, heads, seq, seq]`, in the scores' format.
pub(super) fn by_pair<B: Kernels>(bias: &Tensor<B, 2>, dtype: FloatDType) -> Tensor<B, 4> {
    let [heads, distances] = bias.dims();
    let seq = distances.div_ceil(2);
    let index = pairs_by_distance(seq, &bias.device());
    bias.clone().cast(dtype).select(1, index).reshape([1, heads, seq, seq])
}

/// Where the distance of each query and key is in a bias by distance `[seq * seq]`.
pub(super) fn pairs_by_distance<B: Kernels>(seq: usize, device: &B::Device) -> Tensor<B, 1, Int> {
    let index = (0..seq).flat_map(|query| (0..seq).map(move |key| (seq - 1 + key - query) as i32));
    let index = TensorData::new(index.collect::<Vec<_>>(), [seq * seq]);
    Tensor::from_data(index, device)
}

/// See [`Kernels::drop_out`].
pub(super) fn drop_out<B: Kernels>(x: Tensor<B, 2>, masks: &[DropoutMask]) -> Tensor<B, 2> {
    let (shape, device, dtype) = (x.shape(), x.device(), x.dtype());
    // In f32, or the factor itself would be rounded.
    let x = x.cast(FloatDType::F32);
    let each = masks.iter().map(|mask| {
        let factors = TensorData::new(mask.factors(shape.num_elements()), shape.clone());
        let factors = Tensor::<B, 2>::from_data(factors, (&device, DType::F32));
        (x.clone() * factors).cast(dtype)
    });
    Tensor::cat(each.collect(), 1)
}

/// See [`Kernels::add_dropped`].
pub(super) fn add_dropped<B: Kernels>(
    sum: Tensor<B, 2>,
    x: &Tensor<B, 2>,
    masks: &[DropoutMask],
) -> Tensor<B, 2> {
    let width = sum.dims()[1];
    masks.iter().enumerate().fold(sum, |sum, (place, mask)| {
        let part = x.clone().narrow(1, place * width, width).cast(FloatDType::F32);
        sum + drop_out(part, &[*mask])
    })
}

/// Weights of scores `[batch, heads, query, key]`, zero where the mask (`heads` may be 1) is true.
pub(crate) fn softmax_where<B: Kernels>(
    mut scores: Tensor<B, 4>,
    mask: Option<&Tensor<B, 4, Bool>>,
) -> Tensor<B, 4> {
    if let Some(mask) = mask {
        // Added rather than filled in, which saves a pass in the backward.
        let (heads, dtype): (usize, FloatDType) = (scores.dims()[1], scores.dtype().into());
        let hidden = if dtype == FloatDType::F16 { -3e4 } else { HIDDEN };
        let mut mask = mask.clone().float().cast(dtype).mul_scalar(hidden);
        if B::HOST {
            // Burn's CPU backend broadcasts over inner dimensions one value at a time.
            mask = Tensor::cat(vec![mask; heads], 1);
        }
        scores = scores + mask;
    }
    softmax(scores, 3)
}

/// As [`scaled_dot_product`], with the weights `[batch, heads, query, key]`.
pub fn weighted_scaled_dot_product<B: Kernels>(
    query: Tensor<B, 4>,
    key: Tensor<B, 4>,
    value: Tensor<B, 4>,
    mask: Option<&Tensor<B, 4, Bool>>,
    bias: Option<&Tensor<B, 2>>,
) -> (Tensor<B, 4>, Tensor<B, 4>) {
    let [_, _, _, width] = query.dims();
    let mut scores = query.matmul(key.swap_dims(2, 3)).mul_scalar((width as f64).powf(-0.5));
    if let Some(bias) = bias {
        let dtype = scores.dtype().into();
        scores = scores + by_pair(bias, dtype);
    }
    let weights = softmax_where(scores, mask);
    (weights.clone().matmul(value), weights)
}

/// Rows with a variance of one, and what they were multiplied with `[rows, 1]`.
pub(super) fn unit_rows<B: Kernels>(
    x: Tensor<B, 2>,
    norm: &Norm<FloatTensor<B>>,
) -> [Tensor<B, 2>; 2] {
    let x = x.cast(FloatDType::F32);
    let centred = match norm.centred {
        true => x.clone() - x.mean_dim(1),
        false => x,
    };
    let variance = (centred.clone() * centred.clone()).mean_dim(1);
    let scale = (variance + norm.epsilon).sqrt().recip();
    [centred * scale.clone(), scale]
}

/// A vector beside all rows `[1, width]`.
fn beside<B: Kernels>(vector: &FloatTensor<B>) -> Tensor<B, 2> {
    let vector = Tensor::<B, 1>::from_primitive(TensorPrimitive::Float(vector.clone()));
    vector.cast(FloatDType::F32).unsqueeze()
}

/// See [`Kernels::norm_rows`].
pub(super) fn norm_rows<B: Kernels>(x: Tensor<B, 2>, norm: &Norm<FloatTensor<B>>) -> Tensor<B, 2> {
    let [unit, _] = unit_rows(x, norm);
    let y = unit * beside(&norm.gamma);
    match &norm.beta {
        Some(beta) => y + beside(beta),
        None => y,
    }
}

/// See [`Kernels::norm_rows_gradient`].
pub(super) fn norm_rows_gradient<B: Kernels>(
    x: Tensor<B, 2>,
    gradient: Tensor<B, 2>,
    norm: &Norm<FloatTensor<B>>,
) -> Tensor<B, 2> {
    let [unit, scale] = unit_rows(x, norm);
    let of_unit = gradient * beside(&norm.gamma);
    let along = (of_unit.clone() * unit.clone()).mean_dim(1);
    let mut of_x = of_unit.clone() - unit * along;
    if norm.centred {
        of_x = of_x - of_unit.mean_dim(1);
    }
    of_x * scale
}

/// See [`Kernels::split_heads`].
pub(super) fn split_heads<B: Kernels>(
    x: Tensor<B, 2>,
    [batch, seq]: [usize; 2],
    width: usize,
    angles: Option<&RotaryTables<B>>,
) -> Tensor<B, 4> {
    let heads = x.dims()[1] / width;
    let x = x.reshape([batch, seq, heads, width]);
    let x = match angles {
        Some(angles) => rotated(x.cast(FloatDType::F32), angles),
        None => x,
    };
    x.swap_dims(1, 2)
}

/// See [`Kernels::join_heads`].
pub(super) fn join_heads<B: Kernels>(
    x: Tensor<B, 4>,
    angles: Option<&RotaryTables<B>>,
) -> Tensor<B, 2> {
    let [batch, heads, seq, width] = x.dims();
    let x = x.swap_dims(1, 2);
    let x = match angles {
        // The angles of both halves of a head are the same.
        Some((cos, sin)) => rotated(x.cast(FloatDType::F32), &(cos.clone(), sin.clone().neg())),
        None => x,
    };
    x.reshape([batch * seq, heads * width])
}

/// See [`Kernels::split_sides`].
pub(super) fn split_sides<B: Kernels>(
    x: Tensor<B, 2>,
    shape: [usize; 2],
    Heads { queries, keys, width }: Heads,
    angles: Option<&RotaryTables<B>>,
) -> [Tensor<B, 4>; 3] {
    let side = |first: usize, count: usize, angles| {
        split_heads(x.clone().narrow(1, first * width, count * width), shape, width, angles)
    };
    [side(0, queries, angles), side(queries, keys, angles), side(queries + keys, keys, None)]
}

/// See [`Kernels::join_sides`].
pub(super) fn join_sides<B: Kernels>(
    [query, key, value]: [Tensor<B, 4>; 3],
    angles: Option<&RotaryTables<B>>,
    dtype: FloatDType,
) -> Tensor<B, 2> {
    let sides = [(query, angles), (key, angles), (value, None)];
    let sides = sides.map(|(side, angles)| join_heads(side, angles).cast(dtype));
    Tensor::cat(sides.to_vec(), 1)
}

/// See [`Kernels::placed`].
pub(super) fn placed<B: Kernels>(
    parts: Vec<Tensor<B, 2>>,
    places: &[Place],
    shape: [usize; 2],
) -> Tensor<B, 2> {
    let zeros = Tensor::<B, 2>::zeros(shape, (&parts[0].device(), DType::F32));
    parts.into_iter().zip(places).fold(zeros, |all, (part, place)| {
        all.slice_assign(place.ranges(), part.mul_scalar(place.factor))
    })
}

/// See [`Kernels::taken`].
pub(super) fn taken<B: Kernels>(x: &Tensor<B, 2>, places: &[Place]) -> Vec<Tensor<B, 2>> {
    let part = |place: &Place| x.clone().slice(place.ranges()).cast(FloatDType::F32);
    places.iter().map(|place| part(place).mul_scalar(place.factor)).collect()
}

/// See [`Kernels::attention_weights`].
pub(super) fn attention_weights<B: Kernels>(
    scores: Tensor<B, 4>,
    scale: f32,
    bias: Option<Tensor<B, 4>>,
    mask: Option<Tensor<B, 4, Bool>>,
) -> Tensor<B, 4> {
    let mut scores = scores.cast(FloatDType::F32).mul_scalar(scale);
    if let Some(bias) = bias {
        scores = scores + bias;
    }
    if let Some(mask) = mask {
        scores = scores + mask.float().cast(FloatDType::F32).mul_scalar(HIDDEN);
    }
    softmax(scores, 3)
}

/// See [`Kernels::attention_scores_gradient`].
pub(super) fn attention_scores_gradient<B: Kernels>(
    weights: Tensor<B, 4>,
    gradient: Tensor<B, 4>,
    scale: f32,
) -> Tensor<B, 4> {
    let gradient = gradient.cast(FloatDType::F32);
    let along = (weights.clone() * gradient.clone()).sum_dim(3);
    (weights * (gradient - along)).mul_scalar(scale)
}

/// An activation of any shape.
pub(crate) fn activate<B: Kernels, const D: usize>(
    x: Tensor<B, D>,
    kind: Activation,
) -> Tensor<B, D> {
    match kind {
        Activation::Gelu => B::exact_gelu(x),
        Activation::GeluTanh => activation::gelu_approximate(x),
        Activation::Silu => activation::silu(x),
        Activation::Relu => activation::relu(x),
    }
}

/// See [`Kernels::rotate`].
pub(super) fn rotate<B: Kernels>(
    x: Tensor<B, 4>,
    cos: Tensor<B, 4>,
    sin: Tensor<B, 4>,
) -> Tensor<B, 4> {
    let half = x.dims()[3] / 2;
    let (first, second) = (x.clone().narrow(3, 0, half), x.clone().narrow(3, half, half));
    x * cos + Tensor::cat(vec![second.neg(), first], 3) * sin
}

/// As [`rotate`], a whole text per row: Burn's CPU backend handles views and inner broadcasts one
/// value at a time.
pub(super) fn rotate_rows<B: Kernels>(
    x: Tensor<B, 4>,
    cos: Tensor<B, 4>,
    sin: Tensor<B, 4>,
) -> Tensor<B, 4> {
    let shape @ [batch, seq, heads, width] = x.dims();
    let row = seq * heads * width;
    // (a, b) to (-b, a) as a matrix product, which is exact: each sum has one nonzero term.
    let half = width / 2;
    let mut turn = vec![0.0f32; width * width];
    for i in 0..half {
        turn[(half + i) * width + i] = -1.0;
        turn[i * width + half + i] = 1.0;
    }
    let turn = TensorData::new(turn, [width, width]);
    let turn = Tensor::<B, 2>::from_data(turn, (&x.device(), x.dtype()));
    let turned = x.clone().reshape([batch * seq * heads, width]).matmul(turn).reshape([batch, row]);
    let table = |angles: Tensor<B, 4>| angles.expand([1, seq, heads, width]).reshape([1, row]);
    (x.reshape([batch, row]) * table(cos) + turned * table(sin)).reshape(shape)
}

/// See [`Kernels::merge_heads`].
pub(super) fn merge_heads<B: Kernels>(x: Tensor<B, 4>) -> Tensor<B, 3> {
    let [batch, heads, seq, width] = x.dims();
    x.swap_dims(1, 2).reshape([batch, seq, heads * width])
}

/// See [`Kernels::host_linear`].
pub(super) fn host_linear<B: Kernels>(
    x: Tensor<B, 2>,
    weight: &HostMatrix,
    bias: Option<Tensor<B, 1>>,
) -> Tensor<B, 2> {
    let weights = TensorData::new(weight.weights(), weight.shape());
    let weights = Tensor::from_data(weights, &x.device());
    module::linear(x, weights, bias)
}

/// See [`Kernels::packed_linear`].
pub(super) fn packed_linear<B: Kernels>(
    x: Tensor<B, 2>,
    codes: Tensor<B, 2, Int>,
    scales: Tensor<B, 2>,
    layout: PackedLayout,
    bias: Option<Tensor<B, 1>>,
) -> Tensor<B, 2> {
    let weights = B::unpacked(codes, scales, layout, x.dtype().into());
    module::linear(x, weights, bias)
}

/// See [`Kernels::host_rows`].
pub(super) fn host_rows<B: Kernels>(
    ids: Tensor<B, 2, Int>,
    table: &Quantized,
    device: &B::Device,
) -> Tensor<B, 3> {
    let [batch, seq] = ids.dims();
    let [rows, width] = table.shape();
    let mut values = vec![0.0; batch * seq * width];
    for (id, to) in ids.into_data().iter::<i64>().zip(values.chunks_exact_mut(width.max(1))) {
        // As in the plain lookup, ids have been checked against the vocabulary.
        assert!((id as usize) < rows, "token id {id} of a table with {rows} rows");
        table.read_row(id as usize, to);
    }
    Tensor::from_data(TensorData::new(values, [batch, seq, width]), device)
}
