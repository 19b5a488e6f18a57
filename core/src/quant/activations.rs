//! Activations in int8: the side of a packed product that is quantized on the fly, block by block
//! with the symmetric scale `max |x| / 127`.

use aligned_vec::avec;
use multiversion::multiversion;

use super::packed::{CacheAligned, PackedMatrix, offset};

/// Rows of activations that one tile instruction reads (AMX).
pub(super) const ROWS_TOGETHER: usize = if cfg!(target_arch = "x86_64") { 16 } else { 1 };

/// Activations `[rows, inputs]` in int8, each block of a row with its own scale.
pub(super) struct Activations {
    pub(super) rows: usize,
    /// `[rows][inputs]`, and rows of zeros up to a multiple of [`ROWS_TOGETHER`].
    pub(super) values: CacheAligned<i8>,
    /// `[rows][inputs / block]`.
    pub(super) blocks: Vec<ActivationBlock>,
}

/// Scale and correction of one block of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct ActivationBlock {
    pub(super) scale: f32,
    /// Minus the weights' offset times the sum of the block's values: takes the offset of the
    /// unsigned weights out of the integer sum.
    pub(super) correction: i32,
}

impl Activations {
    /// Activations `[rows, inputs]` of a product with `weights`, rounded.
    pub(super) fn quantize(x: &[f32], weights: &PackedMatrix) -> Self {
        let (inputs, block) = (weights.inputs, weights.block);
        let rows = x.len() / inputs;
        let mut values: CacheAligned<i8> =
            avec!([64] | 0; rows.next_multiple_of(ROWS_TOGETHER) * inputs);
        let mut blocks = Vec::with_capacity(x.len() / block);
        let offset = offset(weights.number);
        for (from, to) in x.chunks_exact(block).zip(values.chunks_exact_mut(block)) {
            let (scale, sum) = round_block(from, to);
            blocks.push(ActivationBlock { scale, correction: -offset * sum });
        }
        Self { rows, values, blocks }
    }
}

/// Rounds a block of activations to int8 and returns the scale (NaN where a value is NaN or
/// infinite, so that the output is NaN too) and the sum of the rounded values.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn round_block(from: &[f32], to: &mut [i8]) -> (f32, i32) {
    // Without the sign bit, floats sort as their bits do.
    let mut largest = 0u32;
    for value in from {
        largest = largest.max(value.to_bits() & 0x7fff_ffff);
    }
    let largest = f32::from_bits(largest);
    if !largest.is_finite() || largest == 0.0 {
        to.fill(0);
        return (if largest.is_finite() { 0.0 } else { f32::NAN }, 0);
    }
    // The inverse of the smallest numbers overflows, so they are scaled up first.
    let lift = if largest < 1e-30 { 2f32.powi(100) } else { 1.0 };
    let (scale, inverse) = (largest / 127.0, 127.0 / (largest * lift));
    let mut sum = 0i32;
    for (value, byte) in from.iter().zip(to) {
        // Adding 1.5 * 2^23 rounds to an integer, which then sits in the lowest bits.
        let shifted = value * lift * inverse + 12_582_912.0;
        let whole = shifted.to_bits().wrapping_sub(0x4b40_0000) as i32;
        let whole = whole.clamp(-127, 127);
        sum += whole;
        *byte = whole as i8;
    }
    (scale, sum)
}
