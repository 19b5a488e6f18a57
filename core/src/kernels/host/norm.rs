//! RMS norms of rows.

use multiversion::multiversion;

/// Partial sums, so that the loop is SIMD.
const LANES: usize = 16;

/// Normalises rows as wide as `gamma`, in place.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn rms(values: &mut [f32], gamma: &[f32], epsilon: f32) {
    for row in values.chunks_exact_mut(gamma.len().max(1)) {
        let (chunks, rest) = row.as_chunks::<LANES>();
        let mut sums = [0.0f32; LANES];
        for chunk in chunks {
            for (sum, value) in sums.iter_mut().zip(chunk) {
                *sum += value * value;
            }
        }
        let rest: f32 = rest.iter().map(|value| value * value).sum();
        let mean = (sums.iter().sum::<f32>() + rest) / row.len() as f32;
        let scale = 1.0 / (mean + epsilon).sqrt();
        for (value, gamma) in row.iter_mut().zip(gamma) {
            *value = *value * scale * gamma;
        }
    }
}
