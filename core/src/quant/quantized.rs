//! A quantized matrix, as files hold it.

use bytes::Bytes;
use half::f16;
use multiversion::multiversion;

use super::scheme::{Number, Scheme};
use crate::{Error, Result};

/// Fractions of the largest weight that are tried as a block's range: clipping the largest a little
/// makes all others finer.
const RANGES: [f32; 8] = [1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.75, 0.7];

/// A matrix `[rows, columns]` (outputs, inputs) of codes and scales.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantized {
    scheme: Scheme,
    shape: [usize; 2],
    /// Row by row; int4 codes two per byte, the first in the low nibble. They may live in a mapped
    /// file.
    codes: Bytes,
    /// `[rows][columns / block]`.
    scales: Vec<f32>,
}

impl Quantized {
    /// Rounds weights `[rows, columns]` to the nearest numbers. Each block takes the candidate
    /// scale with the least squared error.
    ///
    /// # Errors
    /// Rows that the block does not divide, numbers that are not finite, or a count that does not
    /// fit the shape.
    pub fn round(weights: &[f32], shape: [usize; 2], scheme: Scheme) -> Result<Self> {
        Self::check(weights, shape, scheme)?;
        let block = scheme.block_in(shape[1]);
        let scales: Vec<f32> =
            weights.chunks_exact(block).map(|block| block_scale(block, scheme.number)).collect();
        Ok(Self::with_scales(weights, shape, scheme, scales))
    }

    /// Rounds weights with the given scales `[rows][columns / block]`, which are narrowed to the
    /// file format first.
    ///
    /// # Errors
    /// As [`Quantized::round`], or a wrong number of scales.
    pub fn round_with(
        weights: &[f32],
        shape: [usize; 2],
        scheme: Scheme,
        scales: Vec<f32>,
    ) -> Result<Self> {
        Self::check(weights, shape, scheme)?;
        if scales.len() != weights.len() / scheme.block_in(shape[1]).max(1) {
            return Err(Error::invalid(format!("{} scales do not fit {shape:?}", scales.len())));
        }
        Ok(Self::with_scales(
            weights,
            shape,
            scheme,
            scales.into_iter().map(signed_narrow).collect(),
        ))
    }

    fn check(weights: &[f32], [rows, columns]: [usize; 2], scheme: Scheme) -> Result<()> {
        if weights.len() != rows * columns || weights.is_empty() {
            return Err(Error::invalid(format!(
                "{} weights are not [{rows}, {columns}]",
                weights.len()
            )));
        }
        scheme.check(columns)?;
        match weights.iter().position(|weight| !weight.is_finite()) {
            Some(i) => Err(Error::invalid(format!(
                "the weight at [{}, {}] is {}",
                i / columns,
                i % columns,
                weights[i]
            ))),
            None => Ok(()),
        }
    }

    fn with_scales(weights: &[f32], shape: [usize; 2], scheme: Scheme, scales: Vec<f32>) -> Self {
        let block = scheme.block_in(shape[1]);
        let number = scheme.number;
        let mut codes = vec![0; weights.len()];
        for ((block, codes), &scale) in
            weights.chunks_exact(block).zip(codes.chunks_exact_mut(block)).zip(&scales)
        {
            encode(block, scale, number, codes);
        }
        let codes = match number {
            Number::Int4 => codes.chunks_exact(2).map(|pair| pair[0] | pair[1] << 4).collect(),
            _ => codes,
        };
        Self { scheme, shape, codes: codes.into(), scales }
    }

    /// A matrix from its parts.
    ///
    /// # Errors
    /// A number of codes or scales that does not fit the shape, or a scale that is not finite.
    pub fn from_parts(
        scheme: Scheme,
        shape: [usize; 2],
        codes: impl Into<Bytes>,
        scales: Vec<f32>,
    ) -> Result<Self> {
        let codes = codes.into();
        let [rows, columns] = shape;
        scheme.check(columns)?;
        let count = rows.saturating_mul(columns);
        if codes.len() != count / (8 / scheme.number.bits())
            || scales.len() != count / scheme.block_in(columns).max(1)
        {
            return Err(Error::invalid(format!(
                "{} bytes of codes and {} scales are not a matrix {shape:?} of {scheme}",
                codes.len(),
                scales.len()
            )));
        }
        if let Some(scale) = scales.iter().find(|scale| !scale.is_finite()) {
            return Err(Error::invalid(format!("a scale is {scale}")));
        }
        Ok(Self { scheme, shape, codes, scales })
    }

    /// The first (0) or the second half of the rows.
    ///
    /// # Errors
    /// An odd number of rows.
    pub(crate) fn half(&self, half: usize) -> Result<Self> {
        let [rows, columns] = self.shape;
        if !rows.is_multiple_of(2) {
            return Err(Error::invalid(format!("a matrix of {rows} rows has no halves")));
        }
        let part = |size: usize| match half {
            0 => 0..size / 2,
            _ => size / 2..size,
        };
        let codes = self.codes.slice(part(self.codes.len()));
        let scales = self.scales[part(self.scales.len())].to_vec();
        Self::from_parts(self.scheme, [rows / 2, columns], codes, scales)
    }

    /// The scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// `[rows, columns]`: outputs and inputs of a projection, tokens and width of a table.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The codes, row by row.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The scales, `[rows][columns / block]`.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// Whether all scales survive half precision.
    pub fn has_narrow_scales(&self) -> bool {
        self.scales.iter().all(|&scale| f16::from_f32(scale).to_f32() == scale)
    }

    /// Memory, in bytes.
    pub fn bytes(&self) -> usize {
        self.codes.len() + 4 * self.scales.len()
    }

    /// The code of one weight.
    pub(super) fn code(&self, row: usize, column: usize) -> u8 {
        let i = row * self.shape[1] + column;
        match self.scheme.number {
            Number::Int4 => self.codes[i / 2] >> (4 * (i % 2)) & 15,
            _ => self.codes[i],
        }
    }

    /// Writes the values of a row.
    pub fn read_row(&self, row: usize, to: &mut [f32]) {
        let columns = self.shape[1];
        let block = self.scheme.block_in(columns);
        let scales = &self.scales[row * (columns / block)..][..columns / block];
        let number = self.scheme.number;
        let start = row * columns;
        for ((i, block), &scale) in to.chunks_exact_mut(block).enumerate().zip(scales) {
            let from = start + i * block.len();
            match number {
                Number::Int8 => {
                    let codes = &self.codes[from..][..block.len()];
                    for (value, &code) in block.iter_mut().zip(codes) {
                        *value = f32::from(code as i8) * scale;
                    }
                }
                Number::Int4 => {
                    let codes = &self.codes[from / 2..][..block.len() / 2];
                    for (pair, &code) in block.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                        let values = [code & 15, code >> 4];
                        *pair = values.map(|value| (f32::from(value) - 8.0) * scale);
                    }
                }
                _ => {
                    let codes = &self.codes[from..][..block.len()];
                    for (value, &code) in block.iter_mut().zip(codes) {
                        *value = number.decode(code) * scale;
                    }
                }
            }
        }
    }

    /// The values that the codes stand for, `[rows, columns]`.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.shape[0] * self.shape[1]];
        for (row, values) in values.chunks_exact_mut(self.shape[1].max(1)).enumerate() {
            self.read_row(row, values);
        }
        values
    }
}

/// `weight / scale`; 0 in a block of zeros.
fn divided(weight: f32, scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { weight / scale }
}

/// Codes of a block's weights.
fn encode(block: &[f32], scale: f32, number: Number, codes: &mut [u8]) {
    let each = |number: Number, codes: &mut [u8]| {
        for (code, &weight) in codes.iter_mut().zip(block) {
            *code = number.encode(divided(weight, scale));
        }
    };
    match number {
        // By name, so that the loop is SIMD.
        Number::Int8 => each(Number::Int8, codes),
        Number::Int4 => each(Number::Int4, codes),
        other => each(other, codes),
    }
}

/// A scale as files hold it: in half precision where that is precise enough.
fn narrow(scale: f32) -> f32 {
    let half = f16::from_f32(scale).to_f32();
    // Below, half precision loses digits; above, it overflows.
    if (1e-5..=65_504.0).contains(&scale) { half } else { scale }
}

/// The scale of a block of weights with the least squared error, as files hold it.
pub fn block_scale(block: &[f32], number: Number) -> f32 {
    let largest = largest(block);
    if largest == 0.0 {
        return 0.0;
    }
    if number != Number::Int4 {
        // Int8 is fine enough without a search, and floating point gains nothing from it.
        return signed_narrow(largest / number.largest());
    }
    // Int4 has -8 but not 8; a negative scale swaps them.
    let furthest = block.iter().find(|weight| weight.abs() == largest);
    let sign = if furthest.is_some_and(|&weight| weight > 0.0) { -1.0 } else { 1.0 };
    let upright = RANGES.iter().map(|range| range * largest / 7.0);
    let turned = RANGES.iter().map(|range| sign * range * largest / 8.0);
    let narrowed = upright.chain(turned).map(signed_narrow).filter(|scale| *scale != 0.0);
    let scored = narrowed.map(|scale| (int4_error(block, scale), scale));
    scored.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(0.0, |(_, scale)| scale)
}

/// The largest of a block, without its sign.
fn largest(block: &[f32]) -> f32 {
    let larger = |one: f32, weight: f32| if weight.abs() > one { weight.abs() } else { one };
    // Of every eighth, so that the loop is SIMD.
    let (chunks, rest) = block.as_chunks::<8>();
    let mut eighths = [0.0f32; 8];
    for chunk in chunks {
        for (eighth, &weight) in eighths.iter_mut().zip(chunk) {
            *eighth = larger(*eighth, weight);
        }
    }
    eighths.iter().chain(rest).fold(0.0, |one, &weight| larger(one, weight))
}

/// Squared error of a block in int4 with a scale.
#[multiversion(targets("x86_64+avx2+fma", "x86_64+sse4.1"))]
fn int4_error(block: &[f32], scale: f32) -> f64 {
    let one = |&weight: &f32| {
        let code = (weight / scale).round_ties_even().clamp(-8.0, 7.0);
        let off = f64::from(code * scale - weight);
        off * off
    };
    // Partial sums, so that the loop is SIMD.
    let (chunks, rest) = block.as_chunks::<8>();
    let mut sums = [0.0f64; 8];
    for chunk in chunks {
        for (sum, weight) in sums.iter_mut().zip(chunk) {
            *sum += one(weight);
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(one).sum::<f64>()
}

fn signed_narrow(scale: f32) -> f32 {
    narrow(scale.abs()).copysign(scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_weight_is_within_half_a_step() {
        let weights: Vec<f32> = (0..512).map(|i| (i as f32 * 0.37).sin() * 0.1).collect();
        for (scheme, step) in [("int8:32", 0.1 / 127.0), ("int4:32", 0.1 / 7.0)] {
            let packed = Quantized::round(&weights, [4, 128], scheme.parse().unwrap()).unwrap();
            let error: f32 =
                packed.values().iter().zip(&weights).map(|(a, b)| (a - b).powi(2)).sum();
            assert!((error / 512.0).sqrt() < step * 0.36, "{scheme} {error}");
        }
        for scheme in ["fp8-e4m3", "fp8-e5m2:64"] {
            let packed = Quantized::round(&weights, [4, 128], scheme.parse().unwrap()).unwrap();
            let relative = if scheme.contains("e4m3") { 1.0 / 16.0 } else { 1.0 / 8.0 };
            for (actual, weight) in packed.values().iter().zip(&weights) {
                assert!(
                    (actual - weight).abs() <= weight.abs() * relative * 1.01 + 1e-5,
                    "{scheme}"
                );
            }
        }
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        let scheme: Scheme = "int4:32".parse().unwrap();
        assert!(Quantized::round(&[0.0; 60], [2, 30], scheme).is_err());
        assert!(Quantized::round(&[0.0; 60], [2, 32], scheme).is_err());
        let mut weights = [0.5; 64];
        weights[33] = f32::NAN;
        let error = Quantized::round(&weights, [2, 32], scheme).unwrap_err().to_string();
        assert!(error.contains("[1, 1] is NaN"), "{error}");
        assert!(Quantized::from_parts(scheme, [2, 32], vec![0; 31], vec![1.0; 2]).is_err());
        assert!(Quantized::from_parts(scheme, [2, 32], vec![0; 32], vec![f32::NAN; 2]).is_err());
    }

    proptest! {
        #[test]
        fn extreme_weights_keep_their_order_of_magnitude(exponent in -40i32..38, sign in prop::bool::ANY) {
            let size = 10f32.powi(exponent) * if sign { -1.0 } else { 1.0 };
            let weights: Vec<f32> = (0..32).map(|i| size * (i as f32 / 31.0)).collect();
            for scheme in ["int8:32", "int4:32", "fp8-e4m3:32"] {
                let packed = Quantized::round(&weights, [1, 32], scheme.parse().unwrap()).unwrap();
                for (result, weight) in packed.values().iter().zip(&weights) {
                    prop_assert!((result - weight).abs() <= size.abs() * 0.15 + 1e-38, "{} {} {}", scheme, result, weight);
                }
            }
        }
    }
}
