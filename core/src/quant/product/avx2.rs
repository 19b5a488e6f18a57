//! The product by AVX2.

use std::arch::x86_64::*;

use super::{Activations, LANES, Number, PackedMatrix, STEP, starts};

/// Rows of activations that are worked on together.
const TILE: usize = 3;

/// Whether the processor has the instructions.
pub(super) fn is_here() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

/// As [`super::portable`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn product(packed: &PackedMatrix, x: &Activations, bias: Option<&[f32]>, y: &mut [f32]) {
    let rows = x.values.len() / packed.inputs;
    for group in 0..packed.outputs.div_ceil(LANES) {
        let mut row = 0;
        while row < rows {
            let tall = row + TILE <= rows;
            match (packed.number, tall) {
                (Number::Int4, true) => tile::<TILE, true>(packed, x, bias, y, group, row),
                (Number::Int4, false) => tile::<1, true>(packed, x, bias, y, group, row),
                (_, true) => tile::<TILE, false>(packed, x, bias, y, group, row),
                (_, false) => tile::<1, false>(packed, x, bias, y, group, row),
            }
            row += if tall { TILE } else { 1 };
        }
    }
}

/// 4 inputs of outputs 0 to 7 and of 8 to 15, unsigned.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn weights<const FOUR: bool>(packed: &PackedMatrix, at: usize) -> [__m256i; 2] {
    if FOUR {
        let bytes: &[u8] = &packed.values[at * 32..at * 32 + 32];
        // SAFETY: the slice has 32 bytes, and the load asks for no alignment.
        let pairs = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
        let low = _mm256_and_si256(pairs, _mm256_set1_epi8(15));
        [low, _mm256_and_si256(_mm256_srli_epi16::<4>(pairs), _mm256_set1_epi8(15))]
    } else {
        let bytes: &[u8] = &packed.values[at * 64..at * 64 + 64];
        let (low, high) = bytes.split_at(32);
        // SAFETY: both slices have 32 bytes, and the load asks for no alignment.
        unsafe {
            [_mm256_loadu_si256(low.as_ptr().cast()), _mm256_loadu_si256(high.as_ptr().cast())]
        }
    }
}

/// Some rows by 16 outputs.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn tile<const ROWS: usize, const FOUR: bool>(
    packed: &PackedMatrix,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [f32],
    group: usize,
    first: usize,
) {
    let (inputs, block) = (packed.inputs, packed.block);
    let (blocks, steps) = (inputs / block, block / STEP);
    let values: &[i8] = &x.values[first * inputs..(first + ROWS) * inputs];
    let of_blocks = &x.blocks[first * blocks..(first + ROWS) * blocks];
    let ones = _mm256_set1_epi16(1);
    let width = LANES.min(packed.outputs - group * LANES);
    let start = starts(bias, group * LANES, width);
    let (low, high) = start.split_at(8);
    // SAFETY: both halves have 8 numbers of 4 bytes, and the load asks for no alignment.
    let start = unsafe { [_mm256_loadu_ps(low.as_ptr()), _mm256_loadu_ps(high.as_ptr())] };
    let mut sums = [start; ROWS];
    for at in 0..blocks {
        let mut whole = [[_mm256_setzero_si256(); 2]; ROWS];
        for (row, whole) in whole.iter_mut().enumerate() {
            // Four-bit weights stay unsigned and need the correction; the others are made
            // signed below.
            let correction = if FOUR { of_blocks[row * blocks + at].correction } else { 0 };
            *whole = [_mm256_set1_epi32(correction); 2];
        }
        for part in 0..steps {
            let step = at * steps + part;
            let sides = weights::<FOUR>(packed, group * (inputs / STEP) + step);
            for (row, whole) in whole.iter_mut().enumerate() {
                let four = &values[row * inputs + step * STEP..][..STEP];
                let four = [four[0] as u8, four[1] as u8, four[2] as u8, four[3] as u8];
                let four = _mm256_set1_epi32(i32::from_le_bytes(four));
                for (whole, side) in whole.iter_mut().zip(sides) {
                    // Sums of two products: at most 2 * 15 * 127, or 2 * 127 * 127 = 32,258
                    // (activations are never -128), so nothing saturates.
                    let pairs = if FOUR {
                        _mm256_maddubs_epi16(side, four)
                    } else {
                        let signed = _mm256_xor_si256(side, _mm256_set1_epi8(-128));
                        let size = _mm256_abs_epi8(signed);
                        _mm256_maddubs_epi16(size, _mm256_sign_epi8(four, signed))
                    };
                    *whole = _mm256_add_epi32(*whole, _mm256_madd_epi16(pairs, ones));
                }
            }
        }
        let scales: &[f32] = &packed.scales[(group * blocks + at) * LANES..][..LANES];
        let (low, high) = scales.split_at(8);
        // SAFETY: both halves have 8 numbers of 4 bytes, and the load asks for no alignment.
        let of_sides = unsafe { [_mm256_loadu_ps(low.as_ptr()), _mm256_loadu_ps(high.as_ptr())] };
        for (row, (whole, sums)) in whole.iter().zip(&mut sums).enumerate() {
            let of_block = _mm256_set1_ps(of_blocks[row * blocks + at].scale);
            for ((whole, sum), scale) in whole.iter().zip(sums).zip(of_sides) {
                let scale = _mm256_mul_ps(scale, of_block);
                *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(*whole), scale, *sum);
            }
        }
    }
    let start = group * LANES;
    for (row, sums) in sums.into_iter().enumerate() {
        let mut lanes = [0.0f32; LANES];
        let (low, high) = lanes.split_at_mut(8);
        // SAFETY: both halves have 8 numbers of 4 bytes, and the store asks for no alignment.
        unsafe {
            _mm256_storeu_ps(low.as_mut_ptr(), sums[0]);
            _mm256_storeu_ps(high.as_mut_ptr(), sums[1]);
        }
        let y = &mut y[(first + row) * packed.outputs + start..][..width];
        y.copy_from_slice(&lanes[..width]);
    }
}
