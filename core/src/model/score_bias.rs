//! What is added to the scores of attention by the distance of key and query, `[heads, 2 seq - 1]`: the
//! distance `key - query` is at `seq - 1 + key - query`.

use burn::tensor::{Int, Tensor, TensorData, backend::Backend};

/// The bucket of each distance `key - query`, from `1 - seq` to `seq - 1` (transformers'
/// `MPNetEncoder.relative_position_bucket`): half of the buckets for keys after the query; in each half, one
/// for each small distance and then ever longer ranges.
fn buckets(seq: usize, buckets: usize, max_distance: usize) -> Vec<i32> {
    let half = buckets / 2;
    let exact = half / 2;
    let bucket = |distance: usize| {
        if distance < exact {
            return distance;
        }
        // In f32, as the reference computes it: rounding decides which bucket a border is in.
        let place = (distance as f32 / exact as f32).ln()
            / (max_distance as f64 / exact as f64).ln() as f32
            * (half - exact) as f32;
        (exact + place as usize).min(half - 1)
    };
    let seq = seq as i64;
    let signed = (1 - seq)..seq;
    signed
        .map(|distance| {
            let after = if distance > 0 { half } else { 0 };
            (after + bucket(distance.unsigned_abs() as usize)) as i32
        })
        .collect()
}

/// The learned biases `[buckets, heads]` by distance.
pub(super) fn bucketed<B: Backend>(
    table: Tensor<B, 2>,
    seq: usize,
    max_distance: usize,
) -> Tensor<B, 2> {
    let [rows, _] = table.dims();
    let distances = buckets(seq, rows, max_distance);
    let size = distances.len();
    let index = TensorData::new(distances, [size]);
    let index = Tensor::<B, 1, Int>::from_data(index, &table.device());
    table.select(0, index).transpose()
}

/// Slopes of the heads (ALiBi, arXiv:2108.12409, section 3): powers of `2^(-8 / heads)`; where the number of
/// heads is no power of two, those of the power below and then every other one of the power above, as its
/// authors' code has it.
fn slopes(heads: usize) -> Vec<f64> {
    let powers = |count: usize| {
        let start = 2f64.powf(-8.0 / count as f64);
        (1..=count).map(move |i| start.powi(i as i32))
    };
    let below = 1 << heads.max(1).ilog2();
    powers(below).chain(powers(2 * below).step_by(2)).take(heads).collect()
}

/// `-slope |key - query|` of each head.
pub(super) fn alibi<B: Backend>(heads: usize, seq: usize, device: &B::Device) -> Tensor<B, 2> {
    let last = seq as i64 - 1;
    let of_head = |slope: f64| {
        (-last..=last).map(move |distance| (-slope * distance.unsigned_abs() as f64) as f32)
    };
    let values: Vec<f32> = slopes(heads).into_iter().flat_map(of_head).collect();
    let width = values.len() / heads.max(1);
    Tensor::from_data(TensorData::new(values, [heads, width]), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_distances_have_buckets_of_their_own() {
        let found = buckets(200, 32, 128);
        let at = |distance: i64| found[(199 + distance) as usize];
        assert_eq!((0..9).map(|n| at(-n)).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!((at(1), at(7), at(8)), (17, 23, 24));
        // The last bucket takes all that is farther.
        assert_eq!((at(-127), at(-128), at(-199), at(199)), (15, 15, 15, 31));
        assert!(found.iter().all(|bucket| (0..32).contains(bucket)));
    }

    #[test]
    fn slopes_are_those_of_the_authors() {
        assert_eq!(slopes(8), (1..=8).map(|i| 0.5f64.powi(i)).collect::<Vec<_>>());
        let twelve = slopes(12);
        assert_eq!(twelve[..8], slopes(8));
        let expected = [0.5, 1.5, 2.5, 3.5].map(|power| 0.5f64.powf(power));
        for (found, expected) in twelve[8..].iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12, "{found} {expected}");
        }
    }
}
