//! The product by AVX-512 with VNNI.

use std::arch::x86_64::*;

use super::{Activations, LANES, Number, Outputs, STEP, Unset};

/// Rows of activations per pass.
const TILE: usize = 6;
/// As [`TILE`], for what is left of the rows.
const SHORT_TILE: usize = 3;

/// Whether the CPU has the instructions.
pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vnni")
}

/// As [`super::portable`].
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn product(
    packed: &Outputs<'_>,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [Unset],
) {
    match packed.number {
        Number::Int4 => groups::<true>(packed, x, bias, y),
        _ => groups::<false>(packed, x, bias, y),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn groups<const FOUR: bool>(
    packed: &Outputs<'_>,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [Unset],
) {
    let rows = x.rows;
    let groups = packed.outputs.div_ceil(LANES);
    let mut group = 0;
    while group < groups {
        let pair = group + 1 < groups;
        let mut row = 0;
        while row < rows {
            row += match (rows - row, pair) {
                (TILE.., true) => tile::<TILE, 2, FOUR>(packed, x, bias, y, group, row),
                (TILE.., false) => tile::<TILE, 1, FOUR>(packed, x, bias, y, group, row),
                (SHORT_TILE.., true) => tile::<SHORT_TILE, 2, FOUR>(packed, x, bias, y, group, row),
                (_, true) => tile::<1, 2, FOUR>(packed, x, bias, y, group, row),
                (_, false) => tile::<1, 1, FOUR>(packed, x, bias, y, group, row),
            };
        }
        group += if pair { 2 } else { 1 };
    }
}

/// `ROWS` rows by `GROUPS` times 16 outputs: a broadcast activation serves all groups. Returns `ROWS`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn tile<const ROWS: usize, const GROUPS: usize, const FOUR: bool>(
    packed: &Outputs<'_>,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [Unset],
    group: usize,
    first: usize,
) -> usize {
    let (inputs, block) = (packed.inputs, packed.block);
    let (blocks, steps) = (inputs / block, block / STEP);
    // Bytes of 4 inputs of 16 outputs, and of a whole group.
    let stride = if FOUR { 32 } else { 64 };
    let whole_group = inputs / STEP * stride;
    let weights: &[u8] = &packed.values[group * whole_group..(group + GROUPS) * whole_group];
    let values: &[i8] = &x.values[first * inputs..(first + ROWS) * inputs];
    let of_blocks = &x.blocks[first * blocks..(first + ROWS) * blocks];
    let scales: &[f32] = &packed.scales[group * blocks * LANES..(group + GROUPS) * blocks * LANES];
    let width = |side: usize| LANES.min(packed.outputs - (group + side) * LANES);
    let mut start = [_mm512_setzero_ps(); GROUPS];
    if let Some(bias) = bias {
        for (side, start) in start.iter_mut().enumerate() {
            let of_group = &bias[(group + side) * LANES..][..width(side)];
            // SAFETY: as many numbers are read as the group has outputs.
            *start = unsafe { _mm512_maskz_loadu_ps(lanes(of_group.len()), of_group.as_ptr()) };
        }
    }
    let mut sums = [start; ROWS];
    for i in 0..blocks {
        let mut whole = [[_mm512_setzero_si512(); GROUPS]; ROWS];
        for (row, whole) in whole.iter_mut().enumerate() {
            *whole = [_mm512_set1_epi32(of_blocks[row * blocks + i].correction); GROUPS];
        }
        for step in i * steps..(i + 1) * steps {
            let mut sides = [_mm512_setzero_si512(); GROUPS];
            for (side, weight) in sides.iter_mut().enumerate() {
                // SAFETY: `step` is below `inputs / 4` and `side` below `GROUPS`, so the `stride`
                // bytes from here on lie inside `weights`, which has `GROUPS whole_group` bytes; as
                // many are read, and the loads ask for no alignment.
                *weight = unsafe {
                    let from = weights.as_ptr().add(side * whole_group + step * stride);
                    if FOUR {
                        let pairs = _mm256_loadu_si256(from.cast());
                        let mask = _mm256_set1_epi8(15);
                        let low = _mm256_and_si256(pairs, mask);
                        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(pairs), mask);
                        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
                    } else {
                        _mm512_loadu_si512(from.cast())
                    }
                };
            }
            for (row, whole) in whole.iter_mut().enumerate() {
                // SAFETY: `row` is below `ROWS` and `4 step + 3` below `inputs`, so the four bytes
                // lie inside `values`, which has `ROWS inputs` bytes.
                let four = unsafe {
                    let from = values.as_ptr().add(row * inputs + step * STEP);
                    from.cast::<i32>().read_unaligned()
                };
                let four = _mm512_set1_epi32(four);
                for (whole, side) in whole.iter_mut().zip(sides) {
                    *whole = _mm512_dpbusd_epi32(*whole, side, four);
                }
            }
        }
        let mut of_sides = [_mm512_setzero_ps(); GROUPS];
        for (side, scale) in of_sides.iter_mut().enumerate() {
            let from: &[f32] = &scales[(side * blocks + i) * LANES..][..LANES];
            // SAFETY: the slice has 16 numbers of 4 bytes, and the load asks for no alignment.
            *scale = unsafe { _mm512_loadu_ps(from.as_ptr()) };
        }
        for (row, (whole, sums)) in whole.iter().zip(&mut sums).enumerate() {
            let of_block = _mm512_set1_ps(of_blocks[row * blocks + i].scale);
            for ((whole, sum), scale) in whole.iter().zip(sums).zip(of_sides) {
                let scale = _mm512_mul_ps(scale, of_block);
                *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(*whole), scale, *sum);
            }
        }
    }
    for (row, sums) in sums.into_iter().enumerate() {
        let y = &mut y[(first + row) * packed.outputs + group * LANES..];
        for (side, sum) in sums.into_iter().enumerate() {
            let to = &mut y[side * LANES..][..width(side)];
            let numbers = to.as_mut_ptr().cast::<f32>();
            // SAFETY: as many numbers are written as there is room for.
            unsafe {
                // Whole vectors need no mask, which is slow on some processors.
                if to.len() == LANES {
                    _mm512_storeu_ps(numbers, sum);
                } else {
                    _mm512_mask_storeu_ps(numbers, lanes(to.len()), sum);
                }
            }
        }
    }
    ROWS
}

/// The first lanes of a vector, at least one.
#[inline]
fn lanes(count: usize) -> __mmask16 {
    __mmask16::MAX >> (LANES - count)
}
