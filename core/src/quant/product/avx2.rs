//! The product by AVX2.
//!
//! Its only product of bytes (`vpmaddubsw`) saturates sums of two at 16 bits. Int4 weights stay far
//! below that, so several such sums are added before they are widened. Int8 weights are widened
//! first and multiplied in 16 bits: avoiding the saturation would take as many instructions, and
//! more multiplications.

use std::arch::x86_64::*;

use super::super::activations::ActivationBlock;
use super::{Activations, LANES, Number, Outputs, STEP, Unset, starts};

/// Rows of activations per pass: as many as keep their sums in registers.
const TILE: usize = 6;
/// As [`TILE`], for int8, whose weights take more registers.
const WIDE_TILE: usize = 4;

/// Steps of four inputs whose sums of two products fit 16 bits: 2 * 15 * 127 * 8 = 30,480.
const STEPS: usize = 8;

/// Whether the CPU has the instructions.
pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

/// As [`super::portable`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn product(
    packed: &Outputs<'_>,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [Unset],
) {
    let wide = match packed.number {
        Number::Int4 => &[],
        _ => x.widened(),
    };
    let rows = x.rows;
    for group in 0..packed.outputs.div_ceil(LANES) {
        let mut row = 0;
        while row < rows {
            let i = [group, row];
            row += match (packed.number, rows - row) {
                (Number::Int4, TILE..) => four_bits::<TILE>(packed, x, bias, y, i),
                (Number::Int4, _) => four_bits::<1>(packed, x, bias, y, i),
                (_, WIDE_TILE..) => eight_bits::<WIDE_TILE>(packed, x, wide, bias, y, i),
                (_, _) => eight_bits::<1>(packed, x, wide, bias, y, i),
            };
        }
    }
}

/// `ROWS` rows, from `first` on, by the 16 outputs of a group; returns `ROWS`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn four_bits<const ROWS: usize>(
    packed: &Outputs<'_>,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [Unset],
    [group, first]: [usize; 2],
) -> usize {
    let (inputs, block) = (packed.inputs, packed.block);
    let (blocks, steps) = (inputs / block, block / STEP);
    // Bytes of 4 inputs of 16 outputs.
    let stride = LANES * STEP / 2;
    let kept = &packed.values[group * (inputs / STEP) * stride..][..inputs / STEP * stride];
    let values: &[i8] = &x.values[first * inputs..(first + ROWS) * inputs];
    let mut sums = begin::<ROWS>(packed, bias, group);
    for i in 0..blocks {
        let mut whole = [[_mm256_setzero_si256(); 2]; ROWS];
        for from in (i * steps..(i + 1) * steps).step_by(STEPS) {
            let mut pairs = [[_mm256_setzero_si256(); 2]; ROWS];
            for step in from..(from + STEPS).min((i + 1) * steps) {
                // SAFETY: `step` is below `inputs / 4`, so the 32 bytes lie inside `kept`, which has
                // `inputs / 4` times as many; the load asks for no alignment.
                let both = unsafe { _mm256_loadu_si256(kept.as_ptr().add(step * stride).cast()) };
                let low = _mm256_set1_epi8(15);
                let weights = [
                    _mm256_and_si256(both, low),
                    _mm256_and_si256(_mm256_srli_epi16::<4>(both), low),
                ];
                for (row, pairs) in pairs.iter_mut().enumerate() {
                    // SAFETY: `row` is below `ROWS` and `4 step + 3` below `inputs`, so the four bytes
                    // lie inside `values`, which has `ROWS inputs` bytes.
                    let four = unsafe {
                        let from = values.as_ptr().add(row * inputs + step * STEP);
                        _mm256_set1_epi32(from.cast::<i32>().read_unaligned())
                    };
                    for (pairs, weights) in pairs.iter_mut().zip(weights) {
                        *pairs = _mm256_add_epi16(*pairs, _mm256_maddubs_epi16(weights, four));
                    }
                }
            }
            let ones = _mm256_set1_epi16(1);
            for (whole, pairs) in whole.as_flattened_mut().iter_mut().zip(pairs.as_flattened()) {
                *whole = _mm256_add_epi32(*whole, _mm256_madd_epi16(*pairs, ones));
            }
        }
        let scales: &[f32] = &packed.scales[(group * blocks + i) * LANES..][..LANES];
        add(&mut sums, whole, scales, &x.blocks[first * blocks + i..], blocks);
    }
    write::<ROWS>(sums, y, packed.outputs, [group, first]);
    ROWS
}

/// As [`four_bits`], for int8; activations come as [`Activations::widened`] gives them.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn eight_bits<const ROWS: usize>(
    packed: &Outputs<'_>,
    x: &Activations,
    wide: &[[[i16; 2]; 2]],
    bias: Option<&[f32]>,
    y: &mut [Unset],
    [group, first]: [usize; 2],
) -> usize {
    let (inputs, block) = (packed.inputs, packed.block);
    let (blocks, steps) = (inputs / block, block / STEP);
    // Bytes of 4 inputs of 16 outputs.
    let stride = LANES * STEP;
    let kept = &packed.values[group * (inputs / STEP) * stride..][..inputs / STEP * stride];
    let apart = inputs / STEP;
    let values = &wide[first * apart..(first + ROWS) * apart];
    let mut sums = begin::<ROWS>(packed, bias, group);
    for i in 0..blocks {
        let mut whole = [[_mm256_setzero_si256(); 2]; ROWS];
        for step in i * steps..(i + 1) * steps {
            let weights = [0, 1].map(|side| {
                // SAFETY: `step` is below `inputs / 4` and `side` below 2, so the 32 bytes lie inside
                // `kept`, which has `64 inputs / 4`; the load asks for no alignment.
                let four = unsafe {
                    _mm256_loadu_si256(kept.as_ptr().add(step * stride + side * 32).cast())
                };
                // Inputs 0 and 2 of eight outputs, and 1 and 3.
                [_mm256_and_si256(four, _mm256_set1_epi16(255)), _mm256_srli_epi16::<8>(four)]
            });
            for (row, whole) in whole.iter_mut().enumerate() {
                // SAFETY: `row` is below `ROWS` and `step` below `apart`, so the step lies inside
                // `values`, which has `ROWS apart` of them.
                let step = unsafe { values.get_unchecked(row * apart + step) };
                for (half, two) in step.iter().enumerate() {
                    let [low, high] = two.map(|value| u32::from(value as u16));
                    let two = _mm256_set1_epi32((low | high << 16) as i32);
                    for (whole, weights) in whole.iter_mut().zip(weights) {
                        *whole = _mm256_add_epi32(*whole, _mm256_madd_epi16(weights[half], two));
                    }
                }
            }
        }
        let scales: &[f32] = &packed.scales[(group * blocks + i) * LANES..][..LANES];
        add(&mut sums, whole, scales, &x.blocks[first * blocks + i..], blocks);
    }
    write::<ROWS>(sums, y, packed.outputs, [group, first]);
    ROWS
}

/// Initial sums of some rows.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn begin<const ROWS: usize>(
    packed: &Outputs<'_>,
    bias: Option<&[f32]>,
    group: usize,
) -> [[__m256; 2]; ROWS] {
    let width = LANES.min(packed.outputs - group * LANES);
    let start = starts(bias, group * LANES, width);
    [[load(&start[..8]), load(&start[8..])]; ROWS]
}

/// Adds a block's integer sums, corrected and scaled. `of_blocks` has a row's entry for the block
/// every `apart`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add<const ROWS: usize>(
    sums: &mut [[__m256; 2]; ROWS],
    whole: [[__m256i; 2]; ROWS],
    scales: &[f32],
    of_blocks: &[ActivationBlock],
    apart: usize,
) {
    let scales = [load(&scales[..8]), load(&scales[8..])];
    for (row, (whole, sums)) in whole.into_iter().zip(sums).enumerate() {
        let ActivationBlock { scale: of_block, correction } = of_blocks[row * apart];
        for ((whole, sum), scale) in whole.into_iter().zip(sums).zip(scales) {
            let whole = _mm256_add_epi32(whole, _mm256_set1_epi32(correction));
            let scale = _mm256_mul_ps(scale, _mm256_set1_ps(of_block));
            *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), scale, *sum);
        }
    }
}

/// Loads eight numbers.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn load(from: &[f32]) -> __m256 {
    let eight: &[f32; 8] = from.first_chunk().unwrap_or(&[0.0; 8]);
    // SAFETY: a vector is as large as eight numbers, and the load asks for no alignment.
    unsafe { _mm256_loadu_ps(eight.as_ptr()) }
}

/// Stores the sums of some rows by a group's outputs, without padding outputs.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn write<const ROWS: usize>(
    sums: [[__m256; 2]; ROWS],
    y: &mut [Unset],
    outputs: usize,
    [group, first]: [usize; 2],
) {
    let start = group * LANES;
    let width = LANES.min(outputs - start);
    for (row, sums) in sums.into_iter().enumerate() {
        let mut lanes = [0.0f32; LANES];
        for (to, sum) in lanes.as_chunks_mut::<8>().0.iter_mut().zip(sums) {
            // SAFETY: a vector is as large as eight numbers, and the store asks for no alignment.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), sum) };
        }
        super::write(&mut y[(first + row) * outputs + start..][..width], &lanes);
    }
}
