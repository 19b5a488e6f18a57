//! `x W` with packed weights: int8 activations, integer sums a block, floating-point sums over
//! blocks. A portable version, and one for AVX-512 with VNNI; both give the same bits.

#![expect(
    unsafe_code,
    reason = "SIMD loads, stores and the call behind a check, each with its proof"
)]

use multiversion::multiversion;

use super::packed::{Activations, Bits, LANES, OFFSET, PackedMatrix, STEP};
use crate::{Error, Result};

/// Rows of activations that are worked on together.
const TILE: usize = 6;

/// Rounds a block of activations to int8 plus 128; what one step is worth.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(super) fn quantize(from: &[f32], to: &mut [u8]) -> f32 {
    let mut largest = 0.0f32;
    for value in from {
        let size = value.abs();
        // A select that keeps NaN out of the scale; NaN itself becomes 0 below.
        largest = if size > largest { size } else { largest };
    }
    let scale = if largest > 0.0 { largest / 127.0 } else { 1.0 };
    let inverse = 1.0 / scale;
    for (value, byte) in from.iter().zip(to) {
        *byte = ((value * inverse).round_ties_even() as i32).clamp(-127, 127).wrapping_add(OFFSET)
            as u8;
    }
    scale
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
        let mut y = match bias {
            Some(bias) => bias.repeat(rows),
            None => vec![0.0; rows * self.outputs],
        };
        let x = self.activations(x);
        #[cfg(target_arch = "x86_64")]
        if avx512::is_here() {
            // SAFETY: the processor has what the function was compiled for.
            unsafe { avx512::product(self, &x, &mut y) };
            return Ok(y);
        }
        portable(self, &x, &mut y);
        Ok(y)
    }
}

/// 64 values: 4 inputs of 16 outputs.
fn step(packed: &PackedMatrix, at: usize) -> [i8; LANES * STEP] {
    let mut values = [0i8; LANES * STEP];
    match packed.bits {
        Bits::Eight => {
            let bytes = &packed.values[at * 64..][..64];
            values.iter_mut().zip(bytes).for_each(|(value, byte)| *value = *byte as i8);
        }
        Bits::Four => {
            let (low, high) = values.split_at_mut(32);
            let bytes = &packed.values[at * 32..][..32];
            for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
                (*low, *high) = ((byte & 15) as i8 - 8, (byte >> 4) as i8 - 8);
            }
        }
    }
    values
}

/// The product in plain Rust, in loops that compilers turn into SIMD.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn portable(packed: &PackedMatrix, x: &Activations, y: &mut [f32]) {
    let (inputs, outputs, block) = (packed.inputs, packed.outputs, packed.block);
    let (blocks, steps) = (inputs / block, block / STEP);
    let rows = x.values.chunks_exact(inputs).zip(x.scales.chunks_exact(blocks));
    for ((values, scales), y) in rows.zip(y.chunks_exact_mut(outputs)) {
        for (group, y) in y.chunks_mut(LANES).enumerate() {
            let mut sums = [0.0f32; LANES];
            for at in 0..blocks {
                let place = (group * blocks + at) * LANES;
                let mut whole = [0i32; LANES];
                whole.copy_from_slice(&packed.corrections[place..place + LANES]);
                for part in 0..steps {
                    let weights = step(packed, group * (inputs / STEP) + at * steps + part);
                    let x = &values[at * block + part * STEP..][..STEP];
                    for (lane, weights) in whole.iter_mut().zip(weights.as_chunks::<STEP>().0) {
                        for (x, weight) in x.iter().zip(weights) {
                            *lane += i32::from(*x) * i32::from(*weight);
                        }
                    }
                }
                let scale = &packed.scales[place..place + LANES];
                for ((sum, whole), scale) in sums.iter_mut().zip(whole).zip(scale) {
                    *sum = (whole as f32).mul_add(scale * scales[at], *sum);
                }
            }
            y.iter_mut().zip(sums).for_each(|(y, sum)| *y += sum);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::{Activations, Bits, LANES, PackedMatrix, STEP, TILE};

    /// Whether the processor has the instructions.
    pub(super) fn is_here() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni")
    }

    /// As [`super::portable`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) fn product(packed: &PackedMatrix, x: &Activations, y: &mut [f32]) {
        let rows = x.values.len() / packed.inputs;
        let groups = packed.outputs.div_ceil(LANES);
        let mut group = 0;
        while group < groups {
            let pair = group + 1 < groups;
            let mut row = 0;
            while row < rows {
                let tall = row + TILE <= rows;
                match (tall, pair) {
                    (true, true) => tile::<TILE, 2>(packed, x, y, group, row),
                    (true, false) => tile::<TILE, 1>(packed, x, y, group, row),
                    (false, true) => tile::<1, 2>(packed, x, y, group, row),
                    (false, false) => tile::<1, 1>(packed, x, y, group, row),
                }
                row += if tall { TILE } else { 1 };
            }
            group += if pair { 2 } else { 1 };
        }
    }

    /// 4 inputs of 16 outputs.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    fn weights(packed: &PackedMatrix, at: usize) -> __m512i {
        match packed.bits {
            Bits::Eight => {
                let bytes: &[u8] = &packed.values[at * 64..at * 64 + 64];
                // SAFETY: the slice has 64 bytes, and the load asks for no alignment.
                unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
            }
            Bits::Four => {
                let bytes: &[u8] = &packed.values[at * 32..at * 32 + 32];
                // SAFETY: the slice has 32 bytes, and the load asks for no alignment.
                let pairs = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
                let low = _mm256_and_si256(pairs, _mm256_set1_epi8(15));
                let high = _mm256_and_si256(_mm256_srli_epi16::<4>(pairs), _mm256_set1_epi8(15));
                let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
                _mm512_sub_epi8(both, _mm512_set1_epi8(8))
            }
        }
    }

    /// Some rows by `GROUPS` times 16 outputs: a broadcast activation serves all groups.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    fn tile<const ROWS: usize, const GROUPS: usize>(
        packed: &PackedMatrix,
        x: &Activations,
        y: &mut [f32],
        group: usize,
        first: usize,
    ) {
        let (inputs, block) = (packed.inputs, packed.block);
        let (blocks, steps) = (inputs / block, block / STEP);
        let scales = &x.scales[first * blocks..(first + ROWS) * blocks];
        let rows: [&[[u8; STEP]]; ROWS] = std::array::from_fn(|row| {
            x.values[(first + row) * inputs..(first + row + 1) * inputs].as_chunks::<STEP>().0
        });
        let mut sums = [[_mm512_setzero_ps(); ROWS]; GROUPS];
        for at in 0..blocks {
            let place = |side: usize| ((group + side) * blocks + at) * LANES;
            let mut whole = [[_mm512_setzero_si512(); ROWS]; GROUPS];
            for (side, whole) in whole.iter_mut().enumerate() {
                let corrections: &[i32] = &packed.corrections[place(side)..place(side) + LANES];
                // SAFETY: the slice has 16 numbers of 4 bytes, and the load asks for no alignment.
                *whole = [unsafe { _mm512_loadu_si512(corrections.as_ptr().cast()) }; ROWS];
            }
            let parts: [&[[u8; STEP]]; ROWS] =
                std::array::from_fn(|row| &rows[row][at * steps..(at + 1) * steps]);
            for part in 0..steps {
                let weights: [__m512i; GROUPS] = std::array::from_fn(|side| {
                    weights(packed, (group + side) * (inputs / STEP) + at * steps + part)
                });
                for row in 0..ROWS {
                    let four = _mm512_set1_epi32(i32::from_le_bytes(parts[row][part]));
                    for side in 0..GROUPS {
                        whole[side][row] =
                            _mm512_dpbusd_epi32(whole[side][row], four, weights[side]);
                    }
                }
            }
            for side in 0..GROUPS {
                let scale: &[f32] = &packed.scales[place(side)..place(side) + LANES];
                // SAFETY: the slice has 16 numbers of 4 bytes, and the load asks for no alignment.
                let scale = unsafe { _mm512_loadu_ps(scale.as_ptr()) };
                for row in 0..ROWS {
                    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(scales[row * blocks + at]));
                    let whole = _mm512_cvtepi32_ps(whole[side][row]);
                    sums[side][row] = _mm512_fmadd_ps(whole, scale, sums[side][row]);
                }
            }
        }
        for (side, sums) in sums.into_iter().enumerate() {
            let start = (group + side) * LANES;
            let width = LANES.min(packed.outputs - start);
            for (row, sum) in sums.into_iter().enumerate() {
                let mut lanes = [0.0f32; LANES];
                // SAFETY: the array has 16 numbers of 4 bytes, and the store asks for no alignment.
                unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), sum) };
                let y = &mut y[(first + row) * packed.outputs + start..][..width];
                y.iter_mut().zip(lanes).for_each(|(y, sum)| *y += sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matrix(inputs: usize, outputs: usize, seed: u32) -> Vec<f32> {
        let mut state = seed | 1;
        (0..inputs * outputs)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    fn plain(x: &[f32], w: &[f32], [inputs, outputs]: [usize; 2]) -> Vec<f32> {
        let row = |x: &[f32]| -> Vec<f32> {
            (0..outputs).map(|o| (0..inputs).map(|i| x[i] * w[i * outputs + o]).sum()).collect()
        };
        x.chunks_exact(inputs).flat_map(row).collect()
    }

    proptest! {
        #[test]
        fn simd_is_the_portable_version_bit_for_bit(
            rows in 0usize..15, blocks in 1usize..4, outputs in 1usize..40, seed in 0u32..1000,
            four in proptest::bool::ANY, block in prop_oneof![Just(4usize), Just(32), Just(64)],
        ) {
            let inputs = blocks * block;
            let bits = if four { Bits::Four } else { Bits::Eight };
            let weights = matrix(inputs, outputs, seed);
            let packed = PackedMatrix::round(&weights, [inputs, outputs], bits, block).unwrap();
            let x = matrix(rows, inputs, seed + 1);
            let mut expected = vec![0.0; rows * outputs];
            portable(&packed, &packed.activations(&x), &mut expected);
            prop_assert_eq!(packed.product(&x, None).unwrap(), expected);
        }

        #[test]
        fn products_are_near_the_plain_ones(rows in 1usize..9, outputs in 1usize..40, seed in 0u32..1000) {
            let shape = [64, outputs];
            let (weights, x) = (matrix(64, outputs, seed), matrix(rows, 64, seed + 7));
            let bias = matrix(1, outputs, seed + 3);
            for bits in [Bits::Eight, Bits::Four] {
                let packed = PackedMatrix::round(&weights, shape, bits, 32).unwrap();
                let step = 1.0 / bits.largest();
                prop_assert!(packed.weights().iter().zip(&weights).all(|(a, b)| (a - b).abs() <= step / 2.0 + 1e-6));
                let found = packed.product(&x, Some(&bias)).unwrap();
                let plain = plain(&x, &weights, shape);
                for (at, (found, plain)) in found.iter().zip(&plain).enumerate() {
                    // Half a step of each weight, and of each activation.
                    let row = &x[at / outputs * 64..][..64];
                    let sum: f32 = row.iter().map(|x| x.abs()).sum();
                    let worst = sum * step / 2.0 + 64.0 * 1.01 / 127.0 / 2.0 + 1e-4;
                    let error = (found - plain - bias[at % outputs]).abs();
                    prop_assert!(error < worst, "{bits:?} {error} {worst}");
                }
            }
        }
    }

    #[test]
    #[ignore]
    fn timing() {
        use burn::backend::Flex;
        use burn::tensor::{Tensor, TensorData};
        for [inputs, outputs] in [[384usize, 1152usize], [384, 1536], [1536, 384]] {
            let rows = 2048;
            let (w, x) = (matrix(inputs, outputs, 1), matrix(rows, inputs, 2));
            let flops = (rows * inputs * outputs) as f64 * 2.0;
            let device = Default::default();
            let wt = Tensor::<Flex, 2>::from_data(
                TensorData::new(w.clone(), [inputs, outputs]),
                &device,
            );
            let xt =
                Tensor::<Flex, 2>::from_data(TensorData::new(x.clone(), [rows, inputs]), &device);
            let time = |name: &str, f: &mut dyn FnMut()| {
                f();
                let start = std::time::Instant::now();
                for _ in 0..5 {
                    f();
                }
                let s = start.elapsed().as_secs_f64() / 5.0;
                println!(
                    "{inputs}x{outputs} {name}: {:.2} ms {:.1} GFLOP/s",
                    1e3 * s,
                    flops / s / 1e9
                );
            };
            time("flex", &mut || {
                std::hint::black_box(xt.clone().matmul(wt.clone()).into_data());
            });
            for (name, bits, block) in [
                ("int8/32", Bits::Eight, 32),
                ("int8/128", Bits::Eight, 128),
                ("int4/32", Bits::Four, 32),
            ] {
                let packed = PackedMatrix::round(&w, [inputs, outputs], bits, block).unwrap();
                time(name, &mut || {
                    std::hint::black_box(packed.product(&x, None).unwrap());
                });
                if bits == Bits::Eight && block == 32 {
                    time("int8/32 portable", &mut || {
                        let mut y = vec![0.0; rows * outputs];
                        portable(&packed, &packed.activations(&x), &mut y);
                        std::hint::black_box(y);
                    });
                    time("activations", &mut || {
                        std::hint::black_box(packed.activations(&x).scales);
                    });
                }
            }
        }
    }

    #[test]
    fn extreme_numbers_stay_finite() {
        for weight in [1e36, 1e-40, -0.0] {
            let packed = PackedMatrix::round(&[weight; 64], [32, 2], Bits::Eight, 32).unwrap();
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
    fn what_does_not_fit_is_refused() {
        assert!(PackedMatrix::round(&[0.0; 60], [30, 2], Bits::Eight, 32).is_err());
        assert!(PackedMatrix::round(&[0.0; 60], [32, 2], Bits::Eight, 32).is_err());
        assert!(PackedMatrix::round(&[0.0; 12], [6, 2], Bits::Eight, 6).is_err());
        let mut weights = [0.5; 64];
        weights[9] = f32::NAN;
        let error = PackedMatrix::round(&weights, [32, 2], Bits::Four, 32).unwrap_err();
        assert!(error.to_string().contains("[4, 1]"), "{error}");
        let packed = PackedMatrix::round(&[0.5; 64], [32, 2], Bits::Four, 32).unwrap();
        assert!(packed.product(&[0.0; 33], None).is_err());
        assert!(packed.product(&[0.0; 32], Some(&[0.0])).is_err());
        assert!(packed.product(&[], None).unwrap().is_empty());
    }
}
