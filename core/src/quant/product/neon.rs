//! The product by NEON, with and without the dot products of bytes that most ARM CPUs have had
//! since 2017 (ARMv8.2's `dotprod`).

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use super::{Activations, LANES, Number, Outputs, STEP, Unset, starts, write};

/// Rows of activations per pass: their sums take half of the 32 registers.
const TILE: usize = 4;
/// Vectors of four outputs in a group.
const QUARTERS: usize = LANES / 4;

/// Whether the CPU has dot products of bytes.
pub(super) fn has_dot_products() -> bool {
    is_aarch64_feature_detected!("dotprod")
}

/// As [`super::portable`]. Every AArch64 CPU that Rust's standard library runs on has NEON.
pub(super) fn product(
    packed: &Outputs<'_>,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [Unset],
) {
    if has_dot_products() {
        // SAFETY: the CPU has the features that the function was compiled for.
        unsafe { with_dot_products(packed, x, bias, y) };
    } else {
        without_dot_products(packed, x, bias, y);
    }
}

/// As [`super::portable`].
#[target_feature(enable = "neon,dotprod")]
pub(super) fn with_dot_products(
    packed: &Outputs<'_>,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [Unset],
) {
    groups(packed, x, bias, y, |sums, weights, four| dot(sums, weights, four));
}

/// As [`super::portable`].
pub(super) fn without_dot_products(
    packed: &Outputs<'_>,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [Unset],
) {
    groups(packed, x, bias, y, |sums, weights, four| {
        // SAFETY: NEON is part of every AArch64 target of the standard library, and the instructions
        // touch no memory. Sums of two products are at most 2 * 128 * 127 = 32,512: nothing overflows.
        unsafe {
            let low = vmull_s8(vget_low_s8(weights), vget_low_s8(four));
            let high = vmull_high_s8(weights, four);
            vpadalq_s16(sums, vpaddq_s16(low, high))
        }
    });
}

/// Adds the products of 4 inputs of 4 outputs with 4 activations, repeated, to the outputs' sums. The
/// standard library's own name for the instruction (`vdotq_s32`) is not stable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot(sums: int32x4_t, weights: int8x16_t, four: int8x16_t) -> int32x4_t {
    let mut sums = sums;
    // SAFETY: the instruction reads and writes the named registers only.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {weights:v}.16b, {four:v}.16b",
            sums = inout(vreg) sums,
            weights = in(vreg) weights,
            four = in(vreg) four,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// All rows by all outputs; `add` adds the products of 4 inputs of 4 outputs to their sums.
#[inline(always)]
fn groups(
    packed: &Outputs<'_>,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [Unset],
    add: impl Fn(int32x4_t, int8x16_t, int8x16_t) -> int32x4_t + Copy,
) {
    let rows = x.rows;
    for group in 0..packed.outputs.div_ceil(LANES) {
        let mut row = 0;
        while row < rows {
            let tall = row + TILE <= rows;
            match (packed.number, tall) {
                (Number::Int4, true) => tile::<TILE, true>(packed, x, bias, y, [group, row], add),
                (Number::Int4, false) => tile::<1, true>(packed, x, bias, y, [group, row], add),
                (_, true) => tile::<TILE, false>(packed, x, bias, y, [group, row], add),
                (_, false) => tile::<1, false>(packed, x, bias, y, [group, row], add),
            }
            row += if tall { TILE } else { 1 };
        }
    }
}

/// 4 inputs of 16 outputs: -128 to 127 in int8, 0 to 15 in int4.
#[inline(always)]
fn weights<const FOUR: bool>(kept: &[u8]) -> [int8x16_t; QUARTERS] {
    // SAFETY: each load reads 16 bytes of a slice that was just cut to as many; NEON is part of every
    // AArch64 target of the standard library.
    unsafe {
        let load = |i: usize| vld1q_u8(kept[i * 16..i * 16 + 16].as_ptr());
        if FOUR {
            let pairs = [load(0), load(1)];
            let [first, second] = pairs.map(|pairs| vandq_u8(pairs, vdupq_n_u8(15)));
            let [third, fourth] = pairs.map(|pairs| vshrq_n_u8::<4>(pairs));
            [first, second, third, fourth].map(|four| vreinterpretq_s8_u8(four))
        } else {
            [0, 1, 2, 3].map(|i| vreinterpretq_s8_u8(veorq_u8(load(i), vdupq_n_u8(128))))
        }
    }
}

/// Four vectors of four numbers.
#[inline(always)]
fn load(from: &[f32; LANES]) -> [float32x4_t; QUARTERS] {
    // SAFETY: the four loads read the sixteen numbers; NEON is part of every AArch64 target of the
    // standard library.
    unsafe { [0, 1, 2, 3].map(|i| vld1q_f32(from.as_ptr().add(4 * i))) }
}

/// `ROWS` rows, from `first` on, by the 16 outputs of a group.
#[inline(always)]
fn tile<const ROWS: usize, const FOUR: bool>(
    packed: &Outputs<'_>,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [Unset],
    [group, first]: [usize; 2],
    add: impl Fn(int32x4_t, int8x16_t, int8x16_t) -> int32x4_t,
) {
    let (inputs, block) = (packed.inputs, packed.block);
    let (blocks, steps) = (inputs / block, block / STEP);
    // Bytes of 4 inputs of 16 outputs.
    let stride = if FOUR { 32 } else { 64 };
    let kept = &packed.values[group * (inputs / STEP) * stride..][..inputs / STEP * stride];
    let values: &[i8] = &x.values[first * inputs..(first + ROWS) * inputs];
    let of_blocks = &x.blocks[first * blocks..(first + ROWS) * blocks];
    let scales = &packed.scales[group * blocks * LANES..][..blocks * LANES];
    let width = LANES.min(packed.outputs - group * LANES);
    let mut sums = [load(&starts(bias, group * LANES, width)); ROWS];
    for (i, scales) in scales.as_chunks::<LANES>().0.iter().enumerate() {
        let mut whole = [0; ROWS].map(|_: i32| {
            // SAFETY: the instruction touches no memory, and NEON is there.
            [unsafe { vdupq_n_s32(0) }; QUARTERS]
        });
        for step in i * steps..(i + 1) * steps {
            let weights = weights::<FOUR>(&kept[step * stride..][..stride]);
            for (row, whole) in whole.iter_mut().enumerate() {
                // SAFETY: `row` is below `ROWS` and `4 step + 3` below `inputs`, so the four bytes lie
                // inside `values`, which has `ROWS inputs` bytes.
                let four = unsafe {
                    let from = values.as_ptr().add(row * inputs + step * STEP);
                    vreinterpretq_s8_s32(vdupq_n_s32(from.cast::<i32>().read_unaligned()))
                };
                for (whole, weights) in whole.iter_mut().zip(weights) {
                    *whole = add(*whole, weights, four);
                }
            }
        }
        let scales = load(scales);
        for (row, (whole, sums)) in whole.iter().zip(&mut sums).enumerate() {
            let of_block = of_blocks[row * blocks + i];
            // Int4 weights stay unsigned.
            let correction = if FOUR { of_block.correction } else { 0 };
            for ((whole, sum), scale) in whole.iter().zip(sums).zip(scales) {
                // SAFETY: the instructions touch no memory, and NEON is there.
                *sum = unsafe {
                    let whole = vcvtq_f32_s32(vaddq_s32(*whole, vdupq_n_s32(correction)));
                    vfmaq_f32(*sum, whole, vmulq_n_f32(scale, of_block.scale))
                };
            }
        }
    }
    for (row, sums) in sums.into_iter().enumerate() {
        let mut lanes = [0.0f32; LANES];
        for (to, sum) in lanes.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
            // SAFETY: a vector is as large as the four numbers; the store asks for no alignment.
            unsafe { vst1q_f32(to.as_mut_ptr(), sum) };
        }
        write(&mut y[(first + row) * packed.outputs + group * LANES..][..width], &lanes);
    }
}
