//! The weights of attention and their gradient, a workgroup for each query.

use burn::tensor::DType;
use burn_cubecl::{CubeRuntime, kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::new_tensor_of;
use super::norm::{COUNT, UNITS, workgroups};

/// A score that is hidden: large enough to swallow every other, and finite, because some shader compilers assume that there
/// are no infinities.
const HIDDEN: f32 = -1e30;

/// A score as it is weighed.
#[cube]
fn scaled<F: Float, M: Int>(
    scores: &Array<F>,
    bias: &ComptimeOption<Array<f32>>,
    mask: &ComptimeOption<Array<M>>,
    at: usize,
    at_bias: usize,
    at_mask: usize,
    scale: f32,
) -> f32 {
    let mut score = f32::cast_from(scores[at]) * scale;
    #[comptime]
    if let ComptimeOption::Some(bias) = bias {
        score += bias[at_bias];
    }
    #[comptime]
    if let ComptimeOption::Some(mask) = mask {
        let hidden = mask[at_mask] != M::from_int(0);
        score += select(hidden, f32::new(comptime!(HIDDEN)), f32::new(0.0));
    }
    score
}

/// `softmax(scale * scores + bias)` over the last dimension of `[texts, heads, queries, keys]`.
#[cube(launch)]
fn weights_of_rows<F: Float, M: Int, G: Float>(
    scores: &Array<F>,
    bias: &ComptimeOption<Array<f32>>,
    mask: &ComptimeOption<Array<M>>,
    weights: &mut Array<G>,
    rows: usize,
    heads: usize,
    queries: usize,
    keys: usize,
    scale: f32,
    #[define(F)] _in: StorageType,
    #[define(M)] _flags: StorageType,
    #[define(G)] _out: StorageType,
) {
    let row = CUBE_POS_Y as usize * COUNT + CUBE_POS_X as usize;
    let unit = UNIT_POS as usize;
    let mut largest = SharedMemory::<f32>::new(UNITS);
    let mut sums = SharedMemory::<f32>::new(UNITS);
    // The same for all invocations of a workgroup.
    if row < rows {
        let first = row * keys;
        let of_bias = row % (heads * queries) * keys;
        let of_mask = (row / (heads * queries) * queries + row % queries) * keys;
        let mut most = f32::new(-1.0e38);
        for key in range_stepped(unit, keys, UNITS) {
            let (at, at_bias, at_mask) = (first + key, of_bias + key, of_mask + key);
            let score = scaled(scores, bias, mask, at, at_bias, at_mask, scale);
            most = select(score > most, score, most);
        }
        largest[unit] = most;
        sync_cube();
        for i in 0..UNITS {
            most = select(largest[i] > most, largest[i], most);
        }
        let mut sum = 0.0f32;
        for key in range_stepped(unit, keys, UNITS) {
            let (at, at_bias, at_mask) = (first + key, of_bias + key, of_mask + key);
            let score = scaled(scores, bias, mask, at, at_bias, at_mask, scale);
            sum += (score - most).exp();
        }
        sums[unit] = sum;
        sync_cube();
        let mut total = 0.0f32;
        for i in 0..UNITS {
            total += sums[i];
        }
        for key in range_stepped(unit, keys, UNITS) {
            let (at, at_bias, at_mask) = (first + key, of_bias + key, of_mask + key);
            let score = scaled(scores, bias, mask, at, at_bias, at_mask, scale);
            weights[at] = G::cast_from((score - most).exp() / total);
        }
    }
}

/// See [`Kernels::attention_weights`](super::Kernels::attention_weights).
pub(super) fn weights<R: CubeRuntime>(
    scores: CubeTensor<R>,
    scale: f32,
    bias: Option<CubeTensor<R>>,
    mask: Option<CubeTensor<R>>,
    dtype: DType,
) -> CubeTensor<R> {
    let scores = into_contiguous(scores);
    let shape = scores.meta.shape().clone();
    let (texts, heads, queries, keys) = (shape[0], shape[1], shape[2], shape[3]);
    let weights = new_tensor_of(&scores, shape, dtype);
    let (client, of_scores, rows) = (scores.client.clone(), scores.dtype, texts * heads * queries);
    let [bias, mask] = [bias, mask].map(|tensor| tensor.map(into_contiguous));
    let of_mask = mask.as_ref().map_or(DType::U32, |mask| mask.dtype);
    weights_of_rows::launch::<R>(
        &client,
        workgroups(rows),
        CubeDim::new_1d(UNITS as u32),
        scores.into_array_arg(),
        bias.map(CubeTensor::into_array_arg).into(),
        mask.map(CubeTensor::into_array_arg).into(),
        weights.clone().into_array_arg(),
        rows,
        heads,
        queries,
        keys,
        scale,
        of_scores.into(),
        of_mask.into(),
        dtype.into(),
    );
    weights
}

/// `scale * weights * (gradient - sum(weights * gradient))`.
#[cube(launch)]
fn scores_of_rows<F: Float, G: Float>(
    weights: &Array<f32>,
    gradient: &Array<F>,
    of_scores: &mut Array<G>,
    rows: usize,
    keys: usize,
    scale: f32,
    #[define(F)] _in: StorageType,
    #[define(G)] _out: StorageType,
) {
    let row = CUBE_POS_Y as usize * COUNT + CUBE_POS_X as usize;
    let unit = UNIT_POS as usize;
    let mut sums = SharedMemory::<f32>::new(UNITS);
    if row < rows {
        let mut sum = 0.0f32;
        for key in range_stepped(unit, keys, UNITS) {
            let i = row * keys + key;
            sum += weights[i] * f32::cast_from(gradient[i]);
        }
        sums[unit] = sum;
        sync_cube();
        let mut along = 0.0f32;
        for i in 0..UNITS {
            along += sums[i];
        }
        for key in range_stepped(unit, keys, UNITS) {
            let i = row * keys + key;
            let value = weights[i] * (f32::cast_from(gradient[i]) - along) * scale;
            of_scores[i] = G::cast_from(value);
        }
    }
}

/// See [`Kernels::attention_scores_gradient`](super::Kernels::attention_scores_gradient).
pub(super) fn scores_gradient<R: CubeRuntime>(
    weights: CubeTensor<R>,
    gradient: CubeTensor<R>,
    scale: f32,
    dtype: DType,
) -> CubeTensor<R> {
    let [weights, gradient] = [weights, gradient].map(into_contiguous);
    let shape = weights.meta.shape().clone();
    let keys = shape[3];
    let rows = shape.num_elements() / keys.max(1);
    let of_scores = new_tensor_of(&weights, shape, dtype);
    let (client, of_gradient) = (weights.client.clone(), gradient.dtype);
    scores_of_rows::launch::<R>(
        &client,
        workgroups(rows),
        CubeDim::new_1d(UNITS as u32),
        weights.into_array_arg(),
        gradient.into_array_arg(),
        of_scores.clone().into_array_arg(),
        rows,
        keys,
        scale,
        of_gradient.into(),
        dtype.into(),
    );
    of_scores
}
