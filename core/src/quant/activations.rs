//! Activations in int8: the side of a packed product that is quantized on the fly, block by block
//! with the symmetric scale `max |x| / 127`.

use std::sync::OnceLock;

use aligned_vec::avec;
use multiversion::multiversion;

use super::packed::{CacheAligned, PackedMatrix, STEP, offset};

/// Rows of activations that one tile instruction reads (AMX).
pub(super) const ROWS_TOGETHER: usize = if cfg!(target_arch = "x86_64") { 16 } else { 1 };

/// Activations `[rows, inputs]` in int8, each block of a row with its own scale.
pub(super) struct Activations {
    pub(super) rows: usize,
    /// `[rows][inputs]`, and rows of zeros up to a multiple of [`ROWS_TOGETHER`].
    pub(super) values: CacheAligned<i8>,
    /// `[rows][inputs / block]`.
    pub(super) blocks: Vec<ActivationBlock>,
    inputs: usize,
    block: usize,
    /// Of the weights, see [`offset`].
    offset: i32,
    wide: OnceLock<Vec<Wide>>,
}

/// Four values in 16 bits: the first and the third, then the second and the fourth, because a mask and a
/// shift widen the unsigned weights in that order.
pub(super) type Wide = [[i16; 2]; 2];

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
        let mut rounded = Self::zeros(x.len() / weights.inputs, weights);
        rounded.set(0, x, weights.inputs);
        rounded
    }

    /// Zeros `[rows, inputs]`.
    pub(super) fn zeros(rows: usize, weights: &PackedMatrix) -> Self {
        let (inputs, block) = (weights.inputs, weights.block);
        Self {
            rows,
            values: avec!([64] | 0; rows.next_multiple_of(ROWS_TOGETHER) * inputs),
            blocks: vec![ActivationBlock::default(); rows * (inputs / block)],
            inputs,
            block,
            offset: offset(weights.number),
            wide: OnceLock::new(),
        }
    }

    /// Whether a product with these weights takes them as they are.
    #[cfg(all(feature = "flex", any(not(target_arch = "wasm32"), feature = "autodiff")))]
    pub(super) fn are_for(&self, weights: &PackedMatrix) -> bool {
        [self.inputs, self.block] == [weights.inputs, weights.block]
            && self.offset == offset(weights.number)
    }

    /// Rounds the numbers `[rows, width]` of some inputs, from the first of a block on.
    pub(super) fn set(&mut self, first: usize, x: &[f32], width: usize) {
        self.wide.take();
        let blocks = self.inputs / self.block;
        for (row, x) in x.chunks_exact(width).enumerate() {
            let to = &mut self.values[row * self.inputs + first..][..width];
            let of_blocks = &mut self.blocks[row * blocks + first / self.block..];
            let parts = x.chunks_exact(self.block).zip(to.chunks_exact_mut(self.block));
            for ((from, to), of_block) in parts.zip(of_blocks) {
                let (scale, sum) = round_block(from, to);
                *of_block = ActivationBlock { scale, correction: -self.offset * sum };
            }
        }
    }

    /// The values in 16 bits, step by step.
    #[allow(dead_code, reason = "not all instruction sets ask for them")]
    pub(super) fn widened(&self) -> &[Wide] {
        self.wide.get_or_init(|| {
            let steps = self.values[..self.rows * self.inputs].as_chunks::<STEP>().0.iter();
            let wide = |step: &[i8; STEP]| {
                let [first, second, third, fourth] = step.map(i16::from);
                [[first, third], [second, fourth]]
            };
            steps.map(wide).collect()
        })
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
