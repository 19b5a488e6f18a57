//! `x W` with packed weights: int8 activations, an integer sum a block, a floating-point sum over
//! blocks. There is a portable version and one each for AVX2, AVX-512 with VNNI, AMX, NEON and
//! WebAssembly's SIMD; on one kind of machine they all give the same bits.

#![expect(
    unsafe_code,
    reason = "SIMD loads, stores and the calls behind a check, and memory written exactly once; each with its proof"
)]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(all(feature = "flex", any(not(target_arch = "wasm32"), feature = "autodiff")))]
mod feed_forward;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod wasm;

#[cfg(all(feature = "flex", any(not(target_arch = "wasm32"), feature = "autodiff")))]
pub(crate) use feed_forward::{Biased, Gate, feed_forward};

use std::convert::Infallible;
use std::mem::MaybeUninit;

use multiversion::multiversion;

use super::activations::Activations;
use super::packed::{LANES, Outputs, PackedMatrix, STEP};
use super::scheme::Number;
use crate::parallel::{cores, each_part, try_map};
use crate::{Error, Result};

/// Most activations or outputs of one part of the work: they stay in the L2 cache while every group
/// of 16 outputs passes over all rows of the part.
const L2_ELEMENTS: usize = 96 * 1536;

/// Fewest products for which a core is worth waking.
const WORTH: usize = 1 << 21;

/// Rows of a tile of the version in use; parts are whole tiles.
fn tiles() -> usize {
    #[cfg(target_arch = "x86_64")]
    if amx::is_available() {
        return amx::STRIP;
    }
    12
}

/// Rows of a part of the work, of which all rows together read or write so many numbers: each core gets as many parts.
fn rows_of_part(rows: usize, numbers: usize) -> usize {
    let parts = numbers.div_ceil(L2_ELEMENTS).max(1).next_multiple_of(cores());
    rows.div_ceil(parts).next_multiple_of(tiles())
}

/// The instruction set used for packed products on this CPU.
pub fn packed_instructions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if amx::is_available() {
            return "AMX";
        }
        if avx512::is_available() {
            return "AVX-512 VNNI";
        }
        if avx2::is_available() {
            return "AVX2";
        }
    }
    #[cfg(target_arch = "aarch64")]
    return if neon::has_dot_products() { "NEON's products of bytes" } else { "NEON" };
    #[cfg(not(target_arch = "aarch64"))]
    if cfg!(all(target_arch = "wasm32", target_feature = "simd128")) {
        "SIMD"
    } else {
        "plain loops"
    }
}

/// An output that may not have been written yet.
type Unset = MaybeUninit<f32>;

/// `count` numbers in memory that is not zeroed first.
///
/// # Safety
/// `write` must write all of them.
pub(crate) unsafe fn written<T: Copy>(
    count: usize,
    write: impl FnOnce(&mut [MaybeUninit<T>]),
) -> Vec<T> {
    let mut numbers = Vec::with_capacity(count);
    write(&mut numbers.spare_capacity_mut()[..count]);
    // SAFETY: the capacity is at least `count`, and the caller guarantees that all are written.
    unsafe { numbers.set_len(count) };
    numbers
}

/// Copies as many of the numbers as there is room for.
#[inline(always)]
pub(super) fn write<const N: usize>(to: &mut [Unset], from: &[f32; N]) {
    // A copy of unknown length would be a call.
    match <&mut [Unset; N]>::try_from(&mut *to) {
        Ok(to) => *to = from.map(MaybeUninit::new),
        Err(_) => to.iter_mut().zip(from).for_each(|(to, from)| *to = MaybeUninit::new(*from)),
    }
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
        let part = rows_of_part(rows, rows * self.inputs.max(self.outputs));
        if rows <= part && cores() > 1 && rows * self.inputs * self.outputs >= 2 * WORTH {
            return Ok(self.product_of_few(&Activations::quantize(x, self), bias));
        }
        let multiply = |y: &mut [Unset]| {
            each_part(y, (part * self.outputs).max(1), |number, y| {
                let rows = y.len() / self.outputs;
                let x = &x[number * part * self.inputs..][..rows * self.inputs];
                self.outputs(0..self.outputs).product(&Activations::quantize(x, self), bias, y);
            });
        };
        // SAFETY: the parts are all of `y`, and the product of a part writes every output of its rows.
        Ok(unsafe { written(rows * self.outputs, multiply) })
    }

    /// The product of so few rows that each core takes some of the outputs.
    fn product_of_few(&self, x: &Activations, bias: Option<&[f32]>) -> Vec<f32> {
        let width = self.outputs.div_ceil(cores()).next_multiple_of(2 * LANES);
        let ranges: Vec<_> = (0..self.outputs)
            .step_by(width)
            .map(|first| first..self.outputs.min(first + width))
            .collect();
        let Ok(parts) = try_map(&ranges, |range| {
            let multiply = |y: &mut [Unset]| {
                self.outputs(range.clone()).product(x, bias.map(|bias| &bias[range.clone()]), y);
            };
            // SAFETY: the product writes every output of its rows.
            Ok::<_, Infallible>(unsafe { written(x.rows * range.len(), multiply) })
        });
        let mut y = Vec::with_capacity(x.rows * self.outputs);
        for row in 0..x.rows {
            for (range, part) in ranges.iter().zip(&parts) {
                y.extend_from_slice(&part[row * range.len()..][..range.len()]);
            }
        }
        y
    }
}

impl Outputs<'_> {
    /// The product by the best version that this CPU has.
    fn product(&self, x: &Activations, bias: Option<&[f32]>, y: &mut [Unset]) {
        #[cfg(target_arch = "x86_64")]
        {
            if amx::is_available() && amx::is_worth(self, y.len() / self.outputs) {
                // SAFETY: `is_available` has just checked for the instructions.
                return unsafe { amx::product(self, x, bias, y) };
            }
            if avx512::is_available() {
                // SAFETY: the CPU has the features that the function was compiled for.
                return unsafe { avx512::product(self, x, bias, y) };
            }
            if avx2::is_available() {
                // SAFETY: the CPU has the features that the function was compiled for.
                return unsafe { avx2::product(self, x, bias, y) };
            }
        }
        #[cfg(target_arch = "aarch64")]
        neon::product(self, x, bias, y);
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        wasm::product(self, x, bias, y);
        #[cfg(not(any(
            target_arch = "aarch64",
            all(target_arch = "wasm32", target_feature = "simd128")
        )))]
        portable(self, x, bias, y);
    }
}

/// 64 unsigned values: 4 inputs of 16 outputs.
fn step(packed: &Outputs<'_>, i: usize) -> [u8; LANES * STEP] {
    let mut values = [0u8; LANES * STEP];
    match packed.number {
        Number::Int4 => {
            let (low, high) = values.split_at_mut(32);
            let bytes = &packed.values[i * 32..][..32];
            for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
                (*low, *high) = (byte & 15, byte >> 4);
            }
        }
        _ => values.copy_from_slice(&packed.values[i * 64..][..64]),
    }
    values
}

/// The product in plain Rust, in loops that compilers turn into SIMD.
#[multiversion(targets("x86_64+avx2+fma"))]
#[cfg_attr(
    any(target_arch = "aarch64", all(target_arch = "wasm32", target_feature = "simd128")),
    allow(dead_code)
)]
pub(super) fn portable(
    packed: &Outputs<'_>,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [Unset],
) {
    let (inputs, outputs, block) = (packed.inputs, packed.outputs, packed.block);
    let (blocks, steps) = (inputs / block, block / STEP);
    let rows = x.values.chunks_exact(inputs).zip(x.blocks.chunks_exact(blocks));
    for ((values, of_blocks), y) in rows.zip(y.chunks_exact_mut(outputs)) {
        for (group, y) in y.chunks_mut(LANES).enumerate() {
            let mut sums = starts(bias, group * LANES, y.len());
            for (i, of_block) in of_blocks.iter().enumerate() {
                let mut whole = [of_block.correction; LANES];
                for part in 0..steps {
                    let weights = step(packed, group * (inputs / STEP) + i * steps + part);
                    let x = &values[i * block + part * STEP..][..STEP];
                    for (lane, weights) in whole.iter_mut().zip(weights.as_chunks::<STEP>().0) {
                        for (x, weight) in x.iter().zip(weights) {
                            *lane += i32::from(*x) * i32::from(*weight);
                        }
                    }
                }
                let scales = &packed.scales[(group * blocks + i) * LANES..][..LANES];
                for ((sum, whole), scale) in sums.iter_mut().zip(whole).zip(scales) {
                    *sum = multiply_add(whole as f32, scale * of_block.scale, *sum);
                }
            }
            write(y, &sums);
        }
    }
}

/// `a b + c`, rounded once where the CPU has a fused instruction; WebAssembly has none.
#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(target_arch = "wasm32") { a * b + c } else { a.mul_add(b, c) }
}

/// Initial sums of a group of outputs: the bias, or zero.
#[inline(always)]
pub(super) fn starts(bias: Option<&[f32]>, first: usize, width: usize) -> [f32; LANES] {
    let bias = bias.map_or(&[][..], |bias| &bias[first..first + width]);
    // A copy of unknown length would be a call.
    bias.first_chunk().copied().unwrap_or_else(|| {
        let mut sums = [0.0; LANES];
        sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum = *bias);
        sums
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "x86_64")]
    use crate::quant::tiles::software::Software;
    use crate::quant::{Quantized, Scheme};
    use proptest::prelude::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

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

    /// The output of a version; NaN where it writes nothing.
    fn made(count: usize, product: impl FnOnce(&mut [Unset])) -> Vec<f32> {
        let mut y = vec![MaybeUninit::new(f32::NAN); count];
        product(&mut y);
        // SAFETY: all were initialised here, before the product overwrote them.
        y.into_iter().map(|y| unsafe { y.assume_init() }).collect()
    }

    /// `x W` for `W` `[outputs, inputs]`.
    fn plain(x: &[f32], w: &[f32], inputs: usize) -> Vec<f32> {
        let dot = |x: &[f32], w: &[f32]| -> f32 { x.iter().zip(w).map(|(x, w)| x * w).sum() };
        x.chunks_exact(inputs)
            .flat_map(|x| w.chunks_exact(inputs).map(|w| dot(x, w)).collect::<Vec<_>>())
            .collect()
    }

    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    type Product = fn(&Outputs<'_>, &Activations, Option<&[f32]>, &mut [Unset]);

    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    fn wasm_versions() -> Vec<Product> {
        #[cfg(not(target_feature = "relaxed-simd"))]
        return vec![wasm::product, wasm::product_of_words];
        #[cfg(target_feature = "relaxed-simd")]
        return vec![wasm::product, wasm::product_of_words, |packed, x, bias, y| {
            wasm::product_of_bytes(packed, x, bias, y, wasm::Bytes::Undefined)
        }];
    }

    proptest! {
        #[test]
        fn every_version_is_the_portable_one_bit_for_bit(
            rows in prop_oneof![0usize..15, 0usize..80], blocks in 1usize..4, outputs in 1usize..40,
            seed in 0u32..1000, four in prop::bool::ANY,
            block in prop_oneof![Just(4usize), Just(32), Just(64), Just(100), Just(160)],
            size in prop_oneof![Just(1f32), Just(1e-30), Just(1e30)],
        ) {
            let inputs = blocks * block;
            let scheme = format!("{}:{block}", if four { "int4" } else { "int8" });
            let packed = packed(&matrix(outputs, inputs, seed), [outputs, inputs], &scheme);
            let x: Vec<f32> = matrix(rows, inputs, seed + 1).iter().map(|x| x * size).collect();
            let x = Activations::quantize(&x, &packed);
            let packed = packed.outputs(0..outputs);
            let bias = matrix(1, outputs, seed + 2);
            let bias = (seed % 2 == 0).then_some(bias.as_slice());
            let expected = made(rows * outputs, |y| portable(&packed, &x, bias, y));
            #[cfg(target_arch = "x86_64")]
            {
                let made = |product: unsafe fn(&Outputs<'_>, &Activations, Option<&[f32]>, &mut [Unset])| {
                    // SAFETY: each call is behind a check for the features that the version needs.
                    made(rows * outputs, |y| unsafe { product(&packed, &x, bias, y) })
                };
                if amx::is_available() {
                    prop_assert_eq!(&made(amx::product), &expected);
                }
                if avx512::is_available() {
                    prop_assert_eq!(&made(avx512::product), &expected);
                }
                if avx512::is_available() && seed % 4 == 0 {
                    // What the processor's tiles would be told, by software's.
                    prop_assert_eq!(&made(|packed, x, bias, y| {
                        // SAFETY: the CPU has AVX-512, as was just asked.
                        unsafe { amx::product_on(Software::default(), packed, x, bias, y) }
                    }), &expected);
                }
                if avx2::is_available() {
                    prop_assert_eq!(&made(avx2::product), &expected);
                }
            }
            #[cfg(target_arch = "aarch64")]
            {
                if neon::has_dot_products() {
                    // SAFETY: the CPU has the features that the function was compiled for.
                    let product = |y: &mut [Unset]| unsafe { neon::with_dot_products(&packed, &x, bias, y) };
                    prop_assert_eq!(&made(rows * outputs, product), &expected);
                }
                let result = made(rows * outputs, |y| neon::without_dot_products(&packed, &x, bias, y));
                prop_assert_eq!(&result, &expected);
            }
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            for version in wasm_versions() {
                prop_assert_eq!(&made(rows * outputs, |y| version(&packed, &x, bias, y)), &expected);
            }
        }

        #[test]
        fn products_are_near_the_plain_ones(rows in 1usize..9, outputs in 1usize..40, seed in 0u32..1000) {
            let shape = [outputs, 64];
            let (weights, x) = (matrix(outputs, 64, seed), matrix(rows, 64, seed + 7));
            let bias = matrix(1, outputs, seed + 3);
            for (scheme, step) in [("int8:32", 1.0 / 127.0), ("int4:32", 1.0 / 7.0)] {
                let packed = packed(&weights, shape, scheme);
                let result = packed.product(&x, Some(&bias)).unwrap();
                let plain = plain(&x, &weights, 64);
                for (i, (result, plain)) in result.iter().zip(&plain).enumerate() {
                    // Half a step of each weight (more where a block's range was cut), and half a
                    // step of each activation.
                    let row = &x[i / outputs * 64..][..64];
                    let sum: f32 = row.iter().map(|x| x.abs()).sum();
                    let worst = sum * step * 2.0 + 64.0 * 1.01 / 127.0 / 2.0 + 1e-4;
                    let error = (result - plain - bias[i % outputs]).abs();
                    prop_assert!(error < worst, "{scheme} {error} {worst}");
                }
            }
        }

        #[test]
        fn the_product_is_that_of_the_rounded_weights(rows in 1usize..9, outputs in 1usize..40, seed in 0u32..1000) {
            // With activations that int8 holds exactly, only the sums are rounded.
            let x: Vec<f32> = matrix(rows, 64, seed).iter().map(|x| (x * 126.0).round()).collect();
            let mut x = x;
            x.chunks_exact_mut(32).for_each(|block| block[0] = 127.0);
            for scheme in ["int8:32", "int4:32", "int4:64", "int8:channel"] {
                let packed = packed(&matrix(outputs, 64, seed + 1), [outputs, 64], scheme);
                let weights = packed.weights();
                let turned: Vec<f32> =
                    (0..outputs * 64).map(|i| weights[i % 64 * outputs + i / 64]).collect();
                for (result, plain) in packed.product(&x, None).unwrap().iter().zip(plain(&x, &turned, 64)) {
                    prop_assert!((result - plain).abs() <= 1e-2, "{scheme} {result} {plain}");
                }
            }
        }
    }

    #[test]
    #[cfg(not(target_arch = "wasm32"))]
    fn few_rows_have_the_same_bits_on_one_core() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        for outputs in [2100, 2049] {
            let packed = packed(&matrix(outputs, 512, 1), [outputs, 512], "int8:32");
            let (x, bias) = (matrix(5, 512, 2), matrix(1, outputs, 3));
            let many = packed.product(&x, Some(&bias)).unwrap();
            let one = pool.install(|| packed.product(&x, Some(&bias))).unwrap();
            let apart = packed.product_of_few(&Activations::quantize(&x, &packed), Some(&bias));
            for (result, expected) in many.iter().chain(&apart).zip(one.iter().chain(&one)) {
                assert_eq!(result.to_bits(), expected.to_bits());
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
        for (i, weight) in joined.iter().enumerate() {
            assert_eq!(*weight, columns[i % 35][i / 35]);
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
