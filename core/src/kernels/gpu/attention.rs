//! Attention in one dispatch, without a `[query, key]` matrix: keys and values pass through shared
//! memory a tile at a time, with a running softmax (FlashAttention, arXiv:2205.14135, algorithm 1).

use burn_cubecl::{CubeRuntime, kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{LANES, new_tensor};
use crate::kernels::Heads;

/// Invocations of a workgroup, each with a query.
const UNITS: usize = 32;
/// Widest head whose tiles fit into 16 KiB.
pub(super) const WIDEST: usize = 128;

/// Rotates a vector of a head with its partner in the head's other half, by its position's angles
/// (RoFormer, arXiv:2104.09864). `width` counts vectors.
#[cube]
fn rotated<V: Size>(
    qkv: &Array<Vector<f32, V>>,
    head: usize,
    i: usize,
    position: usize,
    cos: &Array<Vector<f32, V>>,
    sin: &Array<Vector<f32, V>>,
    #[comptime] width: usize,
) -> Vector<f32, V> {
    let half = comptime!(width / 2);
    let other = qkv[head + (i + half) % width];
    let sign = select(i < half, f32::new(comptime!(-1.0)), f32::new(1.0));
    let angle = position * width + i;
    qkv[head + i] * cos[angle] + other * Vector::new(sign) * sin[angle]
}

/// One workgroup for 32 queries of one head of one text. `width` counts vectors; `bias` is added to the scaled scores, by
/// distance `[queries, 2 seq - 1]`.
#[cube(launch)]
fn flash<M: Int, V: Size>(
    qkv: &Array<Vector<f32, V>>,
    cos: &ComptimeOption<Array<Vector<f32, V>>>,
    sin: &ComptimeOption<Array<Vector<f32, V>>>,
    mask: &ComptimeOption<Array<M>>,
    bias: &ComptimeOption<Array<f32>>,
    context: &mut Array<Vector<f32, V>>,
    seq: usize,
    scale: f32,
    #[comptime] queries: usize,
    #[comptime] keys: usize,
    #[comptime] width: usize,
    #[comptime] tile: usize,
    #[define(M)] _dtype: StorageType,
) {
    let row = comptime!((queries + 2 * keys) * width);
    let unit = UNIT_POS as usize;
    let query = CUBE_POS_X as usize * UNITS + unit;
    let head = CUBE_POS_Y as usize;
    let text = CUBE_POS_Z as usize;
    let first = text * seq * row;
    let shared_head = head / comptime!(queries / keys);
    let key_at = (queries + shared_head) * width;
    let value_at = comptime!((queries + keys) * width) + shared_head * width;
    // Where the bias of the query with the first key is. Units and keys beyond the text take that of its last token, which
    // nobody reads.
    let last = seq - 1;
    let bias_at = head * (seq + last) + last - select(query < seq, query, last);

    let mut key_tile = SharedMemory::<Vector<f32, V>>::new(comptime!(tile * width));
    let mut value_tile = SharedMemory::<Vector<f32, V>>::new(comptime!(tile * width));
    let mut scores = SharedMemory::<f32>::new(comptime!(tile * UNITS));
    let mut asked = Array::<Vector<f32, V>>::new(width);
    let mut sums = Array::<Vector<f32, V>>::new(width);
    let zero = Vector::<f32, V>::new(0.0f32);
    #[unroll]
    for i in 0..width {
        let of_head = first + query * row + head * width;
        let mut value = qkv[of_head + i];
        #[comptime]
        if let ComptimeOption::Some(cos) = cos {
            #[comptime]
            if let ComptimeOption::Some(sin) = sin {
                value = rotated(qkv, of_head, i, query, cos, sin, width);
            }
        }
        asked[i] = select(query < seq, value, zero) * Vector::new(scale);
        sums[i] = Vector::new(0.0f32);
    }
    // Less than any score; finite, because some shader compilers assume that there are no
    // infinities.
    let lowest = f32::new(comptime!(-3.0e38));
    let mut top = lowest;
    let mut total = 0.0f32;

    for begin in range_stepped(0, seq, tile) {
        #[unroll]
        for i in 0..comptime!((tile * width).div_ceil(UNITS)) {
            let index = unit + comptime!(i * UNITS);
            if index < comptime!(tile * width) {
                let key = begin + index / width;
                let token = first + key * row + index % width;
                let mut turned = qkv[token + key_at];
                #[comptime]
                if let ComptimeOption::Some(cos) = cos {
                    #[comptime]
                    if let ComptimeOption::Some(sin) = sin {
                        let of_head = first + key * row + key_at;
                        turned = rotated(qkv, of_head, index % width, key, cos, sin, width);
                    }
                }
                key_tile[index] = select(key < seq, turned, zero);
                value_tile[index] = select(key < seq, qkv[token + value_at], zero);
            }
        }
        sync_cube();
        let mut highest = top;
        for i in 0..tile {
            let mut products = Vector::<f32, V>::new(0.0f32);
            #[unroll]
            for vector in 0..width {
                products += asked[vector] * key_tile[i * width + vector];
            }
            let mut score = products[0] + products[1] + products[2] + products[3];
            let key = begin + i;
            #[comptime]
            if let ComptimeOption::Some(bias) = bias {
                score += bias[bias_at + select(key < seq, key, last)];
            }
            #[comptime]
            if let ComptimeOption::Some(mask) = mask {
                let hidden = mask[(text * seq + query) * seq + key] != M::from_int(0);
                score = select(hidden, f32::new(comptime!(-1.0e30)), score);
            }
            score = select(key < seq, score, lowest);
            scores[i * UNITS + unit] = score;
            highest = select(score > highest, score, highest);
        }
        let faded = (top - highest).exp();
        top = highest;
        total *= faded;
        #[unroll]
        for vector in 0..width {
            sums[vector] *= Vector::new(faded);
        }
        for i in 0..tile {
            let weight = (scores[i * UNITS + unit] - top).exp();
            total += weight;
            #[unroll]
            for vector in 0..width {
                sums[vector] += Vector::new(weight) * value_tile[i * width + vector];
            }
        }
        sync_cube();
    }
    if query < seq {
        let to = (text * seq + query) * comptime!(queries * width) + head * width;
        #[unroll]
        for i in 0..width {
            context[to + i] = sums[i] / Vector::new(total);
        }
    }
}

/// See [`Kernels::self_attention`](super::Kernels::self_attention); heads must be whole vectors, up
/// to [`WIDEST`], and rotated heads must have halves of whole vectors. The bias is f32.
pub(super) fn attention<R: CubeRuntime>(
    qkv: CubeTensor<R>,
    heads: Heads,
    angles: Option<[CubeTensor<R>; 2]>,
    mask: Option<CubeTensor<R>>,
    bias: Option<CubeTensor<R>>,
) -> CubeTensor<R> {
    let qkv = into_contiguous(qkv);
    let (batch, seq) = (qkv.meta.shape()[0], qkv.meta.shape()[1]);
    let context = new_tensor(&qkv, [batch, seq, heads.queries * heads.width]);
    let client = qkv.client.clone();
    let [cos, sin] = match angles {
        Some(tables) => tables.map(|table| Some(into_contiguous(table))),
        None => [None, None],
    };
    let [mask, bias] = [mask, bias].map(|tensor| tensor.map(into_contiguous));
    let dtype = mask.as_ref().map_or(burn::tensor::DType::U32, |mask| mask.dtype);
    flash::launch::<R>(
        &client,
        CubeCount::Static(seq.div_ceil(UNITS) as u32, heads.queries as u32, batch as u32),
        CubeDim::new_1d(UNITS as u32),
        LANES,
        qkv.into_array_arg(),
        cos.map(CubeTensor::into_array_arg).into(),
        sin.map(CubeTensor::into_array_arg).into(),
        mask.map(CubeTensor::into_array_arg).into(),
        bias.map(CubeTensor::into_array_arg).into(),
        context.clone().into_array_arg(),
        seq,
        (heads.width as f32).powf(-0.5),
        heads.queries,
        heads.keys,
        heads.width / LANES,
        if heads.width > 64 { 8 } else { 16 },
        dtype.into(),
    );
    context
}
