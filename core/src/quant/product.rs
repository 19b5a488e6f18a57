//! `x W` with packed weights: int8 activations, integer sums a block, floating-point sums over
//! blocks. A portable version, one for AVX2, and one for AVX-512 with VNNI; all give the same bits.

#![cfg_attr(
    target_arch = "x86_64",
    expect(
        unsafe_code,
        reason = "SIMD loads, stores and the calls behind a check, each with its proof"
    )
)]

use multiversion::multiversion;

use super::packed::{Activations, LANES, PackedMatrix, STEP};
use super::scheme::Number;
use crate::{Error, Result};

/// Rounds a block of activations to int8; what one step is worth (NaN where a value is NaN or
/// infinite, so that what comes of it is), and the sum of the values.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(super) fn quantize(from: &[f32], to: &mut [i8]) -> (f32, i32) {
    // Without the sign, the bits of numbers are in the numbers' order.
    let mut largest = 0u32;
    for value in from {
        largest = largest.max(value.to_bits() & 0x7fff_ffff);
    }
    let largest = f32::from_bits(largest);
    if !largest.is_finite() || largest == 0.0 {
        to.fill(0);
        return (if largest.is_finite() { 0.0 } else { f32::NAN }, 0);
    }
    // The smallest numbers, whose inverse is none, are made larger first.
    let lift = if largest < 1e-30 { 2f32.powi(100) } else { 1.0 };
    let (scale, inverse) = (largest / 127.0, 127.0 / (largest * lift));
    let mut sum = 0i32;
    for (value, byte) in from.iter().zip(to) {
        // Adding 1.5 * 2^23 rounds to a whole number, which then stands in the lowest bits.
        let shifted = value * lift * inverse + 12_582_912.0;
        let whole = shifted.to_bits().wrapping_sub(0x4b40_0000) as i32;
        let whole = whole.clamp(-127, 127);
        sum += whole;
        *byte = whole as i8;
    }
    (scale, sum)
}

impl PackedMatrix {
    /// `[rows, inputs]` to `[rows, outputs]`, with the bias added.
    ///
    /// # Errors
    /// Activations or a bias of another width.
    pub fn product(&self, x: &[f32], bias: Option<&[f32]>) -> Result<Vec<f32>> {
        if self.inputs == 0 || !x.len().is_multiple_of(self.inputs) {
            return Err(Error::invalid(format!(
                "{} activations are no rows of {}",
                x.len(),
                self.inputs
            )));
        }
        if bias.is_some_and(|bias| bias.len() != self.outputs) {
            return Err(Error::invalid("the bias has another width than the outputs"));
        }
        let rows = x.len() / self.inputs;
        let mut y = vec![0.0; rows * self.outputs];
        let x = self.activations(x);
        #[cfg(target_arch = "x86_64")]
        {
            if avx512::is_here() {
                // SAFETY: the processor has what the function was compiled for.
                unsafe { avx512::product(self, &x, bias, &mut y) };
                return Ok(y);
            }
            if avx2::is_here() {
                // SAFETY: the processor has what the function was compiled for.
                unsafe { avx2::product(self, &x, bias, &mut y) };
                return Ok(y);
            }
        }
        portable(self, &x, bias, &mut y);
        Ok(y)
    }
}

/// 64 unsigned values: 4 inputs of 16 outputs.
fn step(packed: &PackedMatrix, at: usize) -> [u8; LANES * STEP] {
    let mut values = [0u8; LANES * STEP];
    match packed.number {
        Number::Int4 => {
            let (low, high) = values.split_at_mut(32);
            let bytes = &packed.values[at * 32..][..32];
            for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
                (*low, *high) = (byte & 15, byte >> 4);
            }
        }
        _ => values.copy_from_slice(&packed.values[at * 64..][..64]),
    }
    values
}

/// The product in plain Rust, in loops that compilers turn into SIMD.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn portable(
    packed: &PackedMatrix,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [f32],
) {
    let (inputs, outputs, block) = (packed.inputs, packed.outputs, packed.block);
    let (blocks, steps) = (inputs / block, block / STEP);
    let rows = x.values.chunks_exact(inputs).zip(x.blocks.chunks_exact(blocks));
    for ((values, of_blocks), y) in rows.zip(y.chunks_exact_mut(outputs)) {
        for (group, y) in y.chunks_mut(LANES).enumerate() {
            let mut sums = starts(bias, group * LANES, y.len());
            for (at, of_block) in of_blocks.iter().enumerate() {
                let mut whole = [of_block.correction; LANES];
                for part in 0..steps {
                    let weights = step(packed, group * (inputs / STEP) + at * steps + part);
                    let x = &values[at * block + part * STEP..][..STEP];
                    for (lane, weights) in whole.iter_mut().zip(weights.as_chunks::<STEP>().0) {
                        for (x, weight) in x.iter().zip(weights) {
                            *lane += i32::from(*x) * i32::from(*weight);
                        }
                    }
                }
                let scales = &packed.scales[(group * blocks + at) * LANES..][..LANES];
                for ((sum, whole), scale) in sums.iter_mut().zip(whole).zip(scales) {
                    *sum = (whole as f32).mul_add(scale * of_block.scale, *sum);
                }
            }
            y.copy_from_slice(&sums[..y.len()]);
        }
    }
}

/// What the sums of a group of outputs begin with: the bias, or zero.
fn starts(bias: Option<&[f32]>, first: usize, width: usize) -> [f32; LANES] {
    let mut sums = [0.0f32; LANES];
    if let Some(bias) = bias {
        sums[..width].copy_from_slice(&bias[first..first + width]);
    }
    sums
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::{Activations, LANES, Number, PackedMatrix, STEP, starts};

    /// Rows of activations that are worked on together.
    const TILE: usize = 6;

    /// Whether the processor has the instructions.
    pub(super) fn is_here() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni")
    }

    /// As [`super::portable`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) fn product(
        packed: &PackedMatrix,
        x: &Activations,
        bias: Option<&[f32]>,
        y: &mut [f32],
    ) {
        match packed.number {
            Number::Int4 => groups::<true>(packed, x, bias, y),
            _ => groups::<false>(packed, x, bias, y),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    fn groups<const FOUR: bool>(
        packed: &PackedMatrix,
        x: &Activations,
        bias: Option<&[f32]>,
        y: &mut [f32],
    ) {
        let rows = x.values.len() / packed.inputs;
        let groups = packed.outputs.div_ceil(LANES);
        let mut group = 0;
        while group < groups {
            let pair = group + 1 < groups;
            let mut row = 0;
            while row < rows {
                let tall = row + TILE <= rows;
                match (tall, pair) {
                    (true, true) => tile::<TILE, 2, FOUR>(packed, x, bias, y, group, row),
                    (true, false) => tile::<TILE, 1, FOUR>(packed, x, bias, y, group, row),
                    (false, true) => tile::<1, 2, FOUR>(packed, x, bias, y, group, row),
                    (false, false) => tile::<1, 1, FOUR>(packed, x, bias, y, group, row),
                }
                row += if tall { TILE } else { 1 };
            }
            group += if pair { 2 } else { 1 };
        }
    }

    /// Some rows by `GROUPS` times 16 outputs: a broadcast activation serves all groups.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    fn tile<const ROWS: usize, const GROUPS: usize, const FOUR: bool>(
        packed: &PackedMatrix,
        x: &Activations,
        bias: Option<&[f32]>,
        y: &mut [f32],
        group: usize,
        first: usize,
    ) {
        let (inputs, block) = (packed.inputs, packed.block);
        let (blocks, steps) = (inputs / block, block / STEP);
        // Bytes of 4 inputs of 16 outputs, and of a whole group.
        let stride = if FOUR { 32 } else { 64 };
        let whole_group = inputs / STEP * stride;
        let weights: &[u8] = &packed.values[group * whole_group..(group + GROUPS) * whole_group];
        let values: &[i8] = &x.values[first * inputs..(first + ROWS) * inputs];
        let of_blocks = &x.blocks[first * blocks..(first + ROWS) * blocks];
        let scales: &[f32] =
            &packed.scales[group * blocks * LANES..(group + GROUPS) * blocks * LANES];
        let width = |side: usize| LANES.min(packed.outputs - (group + side) * LANES);
        let mut sums = [[_mm512_setzero_ps(); GROUPS]; ROWS];
        for side in 0..GROUPS {
            let start = starts(bias, (group + side) * LANES, width(side));
            // SAFETY: the array has 16 numbers of 4 bytes, and the load asks for no alignment.
            let start = unsafe { _mm512_loadu_ps(start.as_ptr()) };
            sums.iter_mut().for_each(|sums| sums[side] = start);
        }
        for at in 0..blocks {
            let mut whole = [[_mm512_setzero_si512(); GROUPS]; ROWS];
            for (row, whole) in whole.iter_mut().enumerate() {
                *whole = [_mm512_set1_epi32(of_blocks[row * blocks + at].correction); GROUPS];
            }
            for step in at * steps..(at + 1) * steps {
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
                let from: &[f32] = &scales[(side * blocks + at) * LANES..][..LANES];
                // SAFETY: the slice has 16 numbers of 4 bytes, and the load asks for no alignment.
                *scale = unsafe { _mm512_loadu_ps(from.as_ptr()) };
            }
            for (row, (whole, sums)) in whole.iter().zip(&mut sums).enumerate() {
                let of_block = _mm512_set1_ps(of_blocks[row * blocks + at].scale);
                for ((whole, sum), scale) in whole.iter().zip(sums).zip(of_sides) {
                    let scale = _mm512_mul_ps(scale, of_block);
                    *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(*whole), scale, *sum);
                }
            }
        }
        for (row, sums) in sums.into_iter().enumerate() {
            for (side, sum) in sums.into_iter().enumerate() {
                let mut lanes = [0.0f32; LANES];
                // SAFETY: the array has 16 numbers of 4 bytes, and the store asks for no alignment.
                unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), sum) };
                let start = (first + row) * packed.outputs + (group + side) * LANES;
                y[start..start + width(side)].copy_from_slice(&lanes[..width(side)]);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
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
    pub(super) fn product(
        packed: &PackedMatrix,
        x: &Activations,
        bias: Option<&[f32]>,
        y: &mut [f32],
    ) {
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
            let of_sides =
                unsafe { [_mm256_loadu_ps(low.as_ptr()), _mm256_loadu_ps(high.as_ptr())] };
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{Quantized, Scheme};
    use proptest::prelude::*;

    fn matrix(rows: usize, columns: usize, seed: u32) -> Vec<f32> {
        let mut state = seed | 1;
        (0..rows * columns)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    fn packed(weights: &[f32], shape: [usize; 2], scheme: &str) -> PackedMatrix {
        let scheme: Scheme = scheme.parse().unwrap();
        PackedMatrix::new(&[Quantized::round(weights, shape, scheme).unwrap()]).unwrap()
    }

    /// `x W` for `W` `[outputs, inputs]`.
    fn plain(x: &[f32], w: &[f32], inputs: usize) -> Vec<f32> {
        let dot = |x: &[f32], w: &[f32]| -> f32 { x.iter().zip(w).map(|(x, w)| x * w).sum() };
        x.chunks_exact(inputs)
            .flat_map(|x| w.chunks_exact(inputs).map(|w| dot(x, w)).collect::<Vec<_>>())
            .collect()
    }

    proptest! {
        #[test]
        fn every_version_is_the_portable_one_bit_for_bit(
            rows in 0usize..15, blocks in 1usize..4, outputs in 1usize..40, seed in 0u32..1000,
            four in prop::bool::ANY, block in prop_oneof![Just(4usize), Just(32), Just(64)],
            size in prop_oneof![Just(1f32), Just(1e-30), Just(1e30)],
        ) {
            let inputs = blocks * block;
            let scheme = format!("{}:{block}", if four { "int4" } else { "int8" });
            let packed = packed(&matrix(outputs, inputs, seed), [outputs, inputs], &scheme);
            let x: Vec<f32> = matrix(rows, inputs, seed + 1).iter().map(|x| x * size).collect();
            let x = packed.activations(&x);
            let bias = matrix(1, outputs, seed + 2);
            let bias = (seed % 2 == 0).then_some(bias.as_slice());
            let mut expected = vec![0.0; rows * outputs];
            portable(&packed, &x, bias, &mut expected);
            #[cfg(target_arch = "x86_64")]
            {
                if avx512::is_here() {
                    let mut found = vec![0.0; rows * outputs];
                    // SAFETY: the processor has what the function was compiled for.
                    unsafe { avx512::product(&packed, &x, bias, &mut found) };
                    prop_assert_eq!(&found, &expected);
                }
                if avx2::is_here() {
                    let mut found = vec![0.0; rows * outputs];
                    // SAFETY: the processor has what the function was compiled for.
                    unsafe { avx2::product(&packed, &x, bias, &mut found) };
                    prop_assert_eq!(&found, &expected);
                }
            }
        }

        #[test]
        fn products_are_near_the_plain_ones(rows in 1usize..9, outputs in 1usize..40, seed in 0u32..1000) {
            let shape = [outputs, 64];
            let (weights, x) = (matrix(outputs, 64, seed), matrix(rows, 64, seed + 7));
            let bias = matrix(1, outputs, seed + 3);
            for (scheme, step) in [("int8:32", 1.0 / 127.0), ("int4:32", 1.0 / 7.0)] {
                let packed = packed(&weights, shape, scheme);
                let found = packed.product(&x, Some(&bias)).unwrap();
                let plain = plain(&x, &weights, 64);
                for (at, (found, plain)) in found.iter().zip(&plain).enumerate() {
                    // Half a step of each weight (more where a block's range was cut), and half a
                    // step of each activation.
                    let row = &x[at / outputs * 64..][..64];
                    let sum: f32 = row.iter().map(|x| x.abs()).sum();
                    let worst = sum * step * 2.0 + 64.0 * 1.01 / 127.0 / 2.0 + 1e-4;
                    let error = (found - plain - bias[at % outputs]).abs();
                    prop_assert!(error < worst, "{scheme} {error} {worst}");
                }
            }
        }

        #[test]
        fn the_product_is_that_of_the_rounded_weights(rows in 1usize..9, outputs in 1usize..40, seed in 0u32..1000) {
            // Activations that int8 holds exactly leave the sums' own rounding only.
            let x: Vec<f32> = matrix(rows, 64, seed).iter().map(|x| (x * 126.0).round()).collect();
            let mut x = x;
            x.chunks_exact_mut(32).for_each(|block| block[0] = 127.0);
            for scheme in ["int8:32", "int4:32", "int4:64", "int8:channel"] {
                let packed = packed(&matrix(outputs, 64, seed + 1), [outputs, 64], scheme);
                let weights = packed.weights();
                let turned: Vec<f32> =
                    (0..outputs * 64).map(|at| weights[at % 64 * outputs + at / 64]).collect();
                for (found, plain) in packed.product(&x, None).unwrap().iter().zip(plain(&x, &turned, 64)) {
                    prop_assert!((found - plain).abs() <= 1e-2, "{scheme} {found} {plain}");
                }
            }
        }
    }

    #[test]
    fn parts_stand_side_by_side() {
        let scheme: Scheme = "int4:32".parse().unwrap();
        let round =
            |rows, seed| Quantized::round(&matrix(rows, 64, seed), [rows, 64], scheme).unwrap();
        let parts = [round(24, 1), round(8, 2), round(3, 3)];
        let joined = PackedMatrix::new(&parts).unwrap().weights();
        let columns: Vec<Vec<f32>> = parts
            .iter()
            .flat_map(|part| part.values().chunks(64).map(<[f32]>::to_vec).collect::<Vec<_>>())
            .collect();
        for (at, weight) in joined.iter().enumerate() {
            assert_eq!(*weight, columns[at % 35][at / 35]);
        }
        let other =
            Quantized::round(&matrix(4, 64, 1), [4, 64], "int8:32".parse().unwrap()).unwrap();
        assert!(PackedMatrix::new(&[parts[0].clone(), other]).is_err());
        let fp8 =
            Quantized::round(&matrix(4, 64, 1), [4, 64], "fp8-e4m3".parse().unwrap()).unwrap();
        assert!(PackedMatrix::new(&[fp8]).is_err());
    }

    #[test]
    fn extreme_numbers_stay_finite() {
        for weight in [1e36, 1e-40, -0.0] {
            let packed = packed(&[weight; 64], [2, 32], "int8:32");
            for x in [0.0, 1e-38, 1.0, -1e-40] {
                let y = packed.product(&[x; 32], None).unwrap();
                let plain = 32.0 * f64::from(x) * f64::from(weight);
                assert!(
                    y.iter().all(|y| (f64::from(*y) - plain).abs() <= plain.abs() * 0.02 + 1e-30),
                    "{weight} {x} {y:?}"
                );
            }
        }
    }

    #[test]
    fn nan_and_infinity_stay_in_their_row() {
        let packed = packed(&[0.5; 64], [2, 32], "int8:32");
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 96];
            x[40] = wrong;
            let y = packed.product(&x, None).unwrap();
            assert!(y[2..4].iter().all(|y| y.is_nan()), "{y:?}");
            assert!(y[..2].iter().chain(&y[4..]).all(|y| (y - 16.0).abs() < 0.2), "{y:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let packed = packed(&[0.5; 64], [2, 32], "int4:32");
        assert!(packed.product(&[0.0; 33], None).is_err());
        assert!(packed.product(&[0.0; 32], Some(&[0.0])).is_err());
        assert!(packed.product(&[], None).unwrap().is_empty());
    }
}
