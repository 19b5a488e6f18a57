//! Attention on the host's own memory: queries, keys and values are read where the projection left
//! them, a tile of queries at a time, and the context is written where the next projection reads
//! it. No `[query, key]` matrix of a whole text is kept (FlashAttention's point, arXiv:2205.14135),
//! and padding is skipped: a text's numbers are the same bits whatever the batch.

use burn::backend::Flex;
use burn::tensor::{DType, Tensor, TensorData};
use multiversion::multiversion;

use super::elementwise::{exp, fuses};
use super::product::{Strided, product};
use crate::kernels::{Heads, Seen, plain};
use crate::parallel::each_part;

/// Queries whose scores are held at once.
const TILE: usize = 64;

/// See [`Kernels::self_attention`](super::Kernels::self_attention). The plain version where tensors are not f32.
pub(super) fn attention(
    qkv: Tensor<Flex, 3>,
    heads: Heads,
    seen: Seen<'_, Flex>,
) -> Tensor<Flex, 3> {
    let plain = |qkv| plain::attention(qkv, heads, seen);
    let [batch, seq, row] = qkv.dims();
    let inside = seen.rows.len() == batch && seen.rows.iter().all(|extent| extent.end <= seq);
    if qkv.dtype() != DType::F32 || row != heads.row() || row == 0 || seq == 0 || !inside {
        return plain(qkv);
    }
    let device = qkv.device();
    let angles = match seen.angles {
        Some((cos, sin)) => {
            let table = |x: &Tensor<Flex, 4>| x.clone().into_data().into_vec::<f32>();
            match (table(cos), table(sin)) {
                (Ok(cos), Ok(sin)) => Some((cos, sin)),
                _ => return plain(qkv),
            }
        }
        None => None,
    };
    let mask = match seen.mask.map(|mask| mask.clone().into_data().into_vec::<bool>()) {
        Some(Ok(mask)) => Some(mask),
        Some(Err(_)) => return plain(qkv),
        None => None,
    };
    let bias = match seen.bias.map(|bias| (bias.dims(), bias.clone().into_data().into_vec::<f32>()))
    {
        Some((shape, Ok(bias))) if shape == [heads.queries, 2 * seq - 1] => Some(bias),
        Some(_) => return plain(qkv),
        None => None,
    };
    let data = qkv.into_data();
    if data.as_slice::<f32>().is_err() {
        return plain(Tensor::from_data(data, &device));
    }
    // The tensor is f32, so nothing is lost.
    let mut values = data.into_vec::<f32>().unwrap_or_default();
    if let Some((cos, sin)) = &angles {
        let rotated = (heads.queries + heads.keys) * heads.width;
        for (text, extent) in values.chunks_exact_mut(seq * row).zip(seen.rows) {
            // Positions count from the text's first token, on whichever side the padding is.
            let text = &mut text[extent.start * row..extent.end * row];
            for (i, token) in text.chunks_exact_mut(row).enumerate() {
                let place = i * heads.width..(i + 1) * heads.width;
                for head in token[..rotated].chunks_exact_mut(heads.width) {
                    rotate(head, &cos[place.clone()], &sin[place.clone()]);
                }
            }
        }
    }
    let width = heads.queries * heads.width;
    let mut context = vec![0.0; batch * seq * width];
    // In parallel over texts, or over the tiles of a single one.
    each_part(&mut context, seq * width, |number, context| {
        let extent = seen.rows[number].clone();
        let text = Text {
            qkv: &values[(number * seq + extent.start) * row..][..extent.len() * row],
            mask: mask
                .as_ref()
                .map(|mask| &mask[(number * seq + extent.start) * seq + extent.start..]),
            bias: bias.as_deref(),
            tokens: extent.len(),
            padded: seq,
        };
        let context = &mut context[extent.start * width..extent.end * width];
        each_part(context, TILE * width, |number, context| {
            let mut scores = vec![0.0; TILE.min(text.tokens) * text.tokens];
            for head in 0..heads.queries {
                tile(text, context, &mut scores, heads, head, number * TILE);
            }
        });
    });
    Tensor::from_data(TensorData::new(context, [batch, seq, width]), &device)
}

/// Rotates the two halves of a head by a position's angles.
pub(super) fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = head.len() / 2;
    let (first, second) = head.split_at_mut(half);
    for i in 0..half {
        let (a, b) = (first[i], second[i]);
        first[i] = a * cos[i] - b * sin[i];
        second[i] = b * cos[half + i] + a * sin[half + i];
    }
}

/// The tokens of one text, without its padding.
#[derive(Clone, Copy)]
struct Text<'a> {
    /// Queries, keys and values of each token.
    qkv: &'a [f32],
    /// True where attention is masked, starting at the first token.
    mask: Option<&'a [bool]>,
    /// Added to the scores `[heads, 2 padded - 1]`.
    bias: Option<&'a [f32]>,
    tokens: usize,
    /// Keys of a row of the mask, padding included.
    padded: usize,
}

/// Attention of some queries of one head of one text, written over the queries.
fn tile(
    text: Text<'_>,
    context: &mut [f32],
    scores: &mut [f32],
    heads: Heads,
    head: usize,
    first: usize,
) {
    let Heads { queries, keys, width } = heads;
    let (qkv, seq) = (text.qkv, text.tokens);
    let row = heads.row();
    let rows = TILE.min(seq - first);
    // Several heads of queries share one of keys.
    let shared = head / (queries / keys.max(1)).max(1);
    let query = first * row + head * width;
    let key = (queries + shared) * width;
    let value = (queries + keys + shared) * width;
    let scores = &mut scores[..rows * seq];
    let part =
        |from: usize, row: usize, column: usize| Strided { values: &qkv[from..], row, column };
    let scale = (width as f32).powf(-0.5);
    let (queries_of, keys_of) = (part(query, row, 1), part(key, 1, row));
    product(queries_of, keys_of, [rows, width, seq], scale, None, scores, seq);
    for (i, scores) in scores.chunks_exact_mut(seq).enumerate() {
        if let Some(bias) = text.bias {
            add_bias(scores, bias, head, first + i, text.padded);
        }
        if let Some(mask) = text.mask {
            let mask = &mask[(first + i) * text.padded..][..seq];
            for (score, hidden) in scores.iter_mut().zip(mask) {
                *score = if *hidden { -3e4 } else { *score };
            }
        }
        softmax(scores);
    }
    let weights = Strided::rows(scores, seq);
    let to = &mut context[head * width..];
    product(weights, part(value, row, 1), [rows, seq, width], 1.0, None, to, queries * width);
}

/// Adds what a head adds to the scores of a query with the keys from the text's first on.
pub(super) fn add_bias(scores: &mut [f32], bias: &[f32], head: usize, query: usize, padded: usize) {
    let from = head * (2 * padded - 1) + padded - 1 - query;
    for (score, bias) in scores.iter_mut().zip(&bias[from..]) {
        *score += bias;
    }
}

/// Values per SIMD step.
const LANES: usize = 16;

/// Softmax of a row, in place; gives the logarithm of the sum that it divided by.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn softmax(row: &mut [f32]) -> f32 {
    let fused = fuses!();
    let (chunks, rest) = row.as_chunks::<LANES>();
    let mut tops = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (top, value) in tops.iter_mut().zip(chunk) {
            *top = if *value > *top { *value } else { *top };
        }
    }
    let top = tops.iter().chain(rest).fold(f32::NEG_INFINITY, |top, value| top.max(*value));
    let (chunks, rest) = row.as_chunks_mut::<LANES>();
    let mut sums = [0.0f32; LANES];
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *value = weight(*value - top, fused);
            *sum += *value;
        }
    }
    let mut sum: f32 = sums.iter().sum();
    for value in rest {
        *value = weight(*value - top, fused);
        sum += *value;
    }
    let inverse = 1.0 / sum;
    row.iter_mut().for_each(|value| *value *= inverse);
    top + sum.ln()
}

/// `e^x` for `x` up to 0, flushed to zero where it is negligible beside a weight of 1: subnormal
/// numbers, and products with them, take some CPUs a hundred times as long.
#[inline(always)]
pub(super) fn weight(x: f32, fused: bool) -> f32 {
    let power = exp(x, fused);
    if x < -60.0 { 0.0 } else { power }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::weighted_scaled_dot_product;
    use burn::backend::Flex;
    use burn::tensor::Distribution;
    use burn::tensor::backend::Backend as _;
    use proptest::prelude::*;

    type B = Flex;

    #[test]
    fn lost_weights_are_zero_and_none_is_below_the_normal_numbers() {
        let mut row: Vec<f32> = (0..70).map(|i| -(i as f32) * 1.7).chain([-3e4]).collect();
        softmax(&mut row);
        assert!(row.iter().all(|&weight| weight == 0.0 || weight > 1e-27), "{row:?}");
        assert!(row[20] > 0.0 && row[70] == 0.0);
        let mut hidden = [-3e4; 20];
        softmax(&mut hidden);
        assert!(hidden.iter().all(|weight| (weight - 0.05).abs() < 1e-7), "{hidden:?}");
        let mut odd = [0.0, f32::NAN, -3.0];
        softmax(&mut odd);
        assert!(odd.iter().all(|weight| weight.is_nan()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn it_is_the_plain_attention(
            batch in 1usize..3, seq in 1usize..150, keys in 1usize..3, times in 1usize..3,
            width in prop_oneof![Just(4usize), Just(16), Just(32)], masked in prop::bool::ANY, biased in prop::bool::ANY,
            size in prop_oneof![Just(1.0f64), Just(30.0)], seed in any::<u64>(),
        ) {
            let device = Default::default();
            B::seed(&device, seed);
            let heads = Heads { queries: keys * times, keys, width };
            let all = heads.queries + 2 * keys;
            let qkv = Tensor::<B, 3>::random([batch, seq, all * width], Distribution::Normal(0.0, size), &device);
            let mask = masked.then(|| {
                let random = Tensor::<B, 4>::random([batch, 1, seq, seq], Distribution::Default, &device);
                // Every query sees the first token.
                let first = Tensor::<B, 1, burn::tensor::Int>::arange(0..seq as i64, &device)
                    .equal_elem(0).reshape([1, 1, 1, seq]).expand([batch, 1, seq, seq]);
                random.greater_elem(0.5).bool_and(first.bool_not())
            });
            let bias = biased.then(|| {
                let shape = [heads.queries, 2 * seq - 1];
                Tensor::<B, 2>::random(shape, Distribution::Normal(0.0, 2.0), &device)
            });
            let split = qkv.clone().reshape([batch, seq, all, width]).swap_dims(1, 2);
            let part = |from: usize, count: usize, times: usize| {
                let part = split.clone().narrow(1, from, count);
                part.reshape([batch, count, 1, seq, width])
                    .expand([batch, count, times, seq, width])
                    .reshape([batch, count * times, seq, width])
            };
            let (plain, _) = weighted_scaled_dot_product(
                part(0, heads.queries, 1),
                part(heads.queries, keys, times),
                part(heads.queries + keys, keys, times),
                mask.as_ref(),
                bias.as_ref(),
            );
            let plain = plain.swap_dims(1, 2).reshape([batch, seq, heads.queries * width]);
            let rows = vec![0..seq; batch];
            let (mask, bias) = (mask.as_ref(), bias.as_ref());
            let seen = Seen { rows: &rows, angles: None, mask, bias, unread: false };
            let result = attention(qkv.clone(), heads, seen);
            let (plain, result) = (plain.into_data().to_vec::<f32>().unwrap(), result.into_data().to_vec::<f32>().unwrap());
            for (plain, result) in plain.iter().zip(&result) {
                prop_assert!((plain - result).abs() <= 2e-5 * size as f32, "{plain} {result}");
            }
        }
    }
}
