//! A weight matrix in int8 or int4, in the order in which the CPU's product reads it.
//!
//! For 16 outputs at a time, 4 inputs of each lie side by side, so that one instruction
//! (`vpdpbusd`) multiplies 64 pairs. That instruction takes one side unsigned, so weights are kept
//! plus 128 (int8) or plus 8 (int4); what the offset adds depends on the activations alone
//! ([`ActivationBlock::correction`](super::activations::ActivationBlock)).

use std::ops::Range;

use aligned_vec::{AVec, ConstAlign, avec};

use super::quantized::Quantized;
use super::scheme::{Number, Scheme};
use crate::{Error, Result};

/// Outputs of a group, which are computed together.
pub(super) const LANES: usize = 16;
/// Inputs of one output that lie side by side.
pub(super) const STEP: usize = 4;
/// Numbers that start on a cache line: SIMD and tile loads of a whole line take twice as long where
/// they straddle two.
pub(super) type CacheAligned<T> = AVec<T, ConstAlign<64>>;

/// A matrix `[inputs, outputs]` of packed weights.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedMatrix {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// `Int8` or `Int4`.
    pub(super) number: Number,
    pub(super) block: usize,
    /// `[outputs / 16][inputs / 4][16][4]`; two values per byte in int4.
    pub(super) values: CacheAligned<u8>,
    /// `[outputs / 16][inputs / block][16]`.
    pub(super) scales: Vec<f32>,
}

/// Some outputs of a [`PackedMatrix`], in whole groups: what a product takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outputs<'a> {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) number: Number,
    pub(super) block: usize,
    /// As [`PackedMatrix::values`].
    pub(super) values: &'a [u8],
    /// As [`PackedMatrix::scales`].
    pub(super) scales: &'a [f32],
}

impl PackedMatrix {
    /// Puts quantized projections `[outputs, inputs]` side by side, in their order.
    ///
    /// # Errors
    /// No projection, projections of different widths or schemes, or FP8, which the integer product
    /// cannot take.
    pub fn new(parts: &[Quantized]) -> Result<Self> {
        let (scheme, inputs, outputs) = side_by_side(parts)?;
        let block = scheme.block_in(inputs);
        let (groups, blocks) = (outputs.div_ceil(LANES), inputs / block);
        let zero = offset(scheme.number) as u8;
        let bytes = groups * inputs * LANES;
        let mut packed = Self {
            inputs,
            outputs,
            number: scheme.number,
            block,
            // Padding outputs of the last group are zeros.
            values: match scheme.number {
                Number::Int4 => avec!([64] | zero | zero << 4; bytes / 2),
                _ => avec!([64] | zero; bytes),
            },
            scales: vec![0.0; groups * blocks * LANES],
        };
        let mut output = 0;
        for part in parts {
            for row in 0..part.shape()[0] {
                let (group, lane) = (output / LANES, output % LANES);
                for (i, scale) in part.scales()[row * blocks..][..blocks].iter().enumerate() {
                    packed.scales[(group * blocks + i) * LANES + lane] = *scale;
                }
                for input in 0..inputs {
                    packed.set(group, input, lane, part.code(row, input));
                }
                output += 1;
            }
        }
        Ok(packed)
    }

    /// Some of the outputs, from the first of a group on.
    ///
    /// # Panics
    /// Where there are not as many.
    pub(super) fn outputs(&self, range: Range<usize>) -> Outputs<'_> {
        assert!(
            range.start.is_multiple_of(LANES) && range.end <= self.outputs,
            "outputs are taken in whole groups"
        );
        let groups = range.start / LANES..range.end.div_ceil(LANES);
        let of = |size: usize| groups.start * size..groups.end * size;
        let bytes = if self.number == Number::Int4 { LANES / 2 } else { LANES };
        Outputs {
            inputs: self.inputs,
            outputs: range.len(),
            number: self.number,
            block: self.block,
            values: &self.values[of(self.inputs * bytes)],
            scales: &self.scales[of(self.inputs / self.block * LANES)],
        }
    }

    /// Index of a value in reading order.
    fn index(&self, group: usize, input: usize, lane: usize) -> usize {
        ((group * (self.inputs / STEP) + input / STEP) * LANES + lane) * STEP + input % STEP
    }

    /// Stores a file's code.
    fn set(&mut self, group: usize, input: usize, lane: usize, code: u8) {
        let index = self.index(group, input, lane);
        match self.number {
            Number::Int4 => {
                let (byte, high) = nibble(index);
                let kept = self.values[byte];
                self.values[byte] = if high { kept & 15 | code << 4 } else { kept & 240 | code };
            }
            _ => self.values[index] = code ^ 128,
        }
    }

    /// A stored value, before its scale.
    fn get(&self, group: usize, input: usize, lane: usize) -> i32 {
        let index = self.index(group, input, lane);
        let unsigned = match self.number {
            Number::Int4 => {
                let (byte, high) = nibble(index);
                if high { self.values[byte] >> 4 } else { self.values[byte] & 15 }
            }
            _ => self.values[index],
        };
        i32::from(unsigned) - offset(self.number)
    }

    /// The weights `[inputs, outputs]` that the values stand for.
    pub fn weights(&self) -> Vec<f32> {
        let blocks = self.inputs / self.block;
        let mut weights = vec![0.0; self.inputs * self.outputs];
        for (input, row) in weights.chunks_exact_mut(self.outputs).enumerate() {
            for (output, weight) in row.iter_mut().enumerate() {
                let (group, lane) = (output / LANES, output % LANES);
                let scale = self.scales[(group * blocks + input / self.block) * LANES + lane];
                *weight = self.get(group, input, lane) as f32 * scale;
            }
        }
        weights
    }

    /// `[inputs, outputs]`.
    pub fn shape(&self) -> [usize; 2] {
        [self.inputs, self.outputs]
    }

    /// Memory, in bytes.
    pub fn bytes(&self) -> usize {
        self.values.len() + 4 * self.scales.len()
    }
}

/// Scheme, inputs and outputs of projections `[outputs, inputs]` to be packed side by side.
///
/// # Errors
/// As [`PackedMatrix::new`].
pub(super) fn side_by_side(parts: &[Quantized]) -> Result<(Scheme, usize, usize)> {
    let first = parts.first().ok_or_else(|| Error::invalid("no matrix to pack"))?;
    let (scheme, [_, inputs]) = (first.scheme(), first.shape());
    if !matches!(scheme.number, Number::Int8 | Number::Int4) {
        return Err(Error::invalid(format!("{scheme} is not computed with as it is")));
    }
    if parts.iter().any(|part| part.scheme() != scheme || part.shape()[1] != inputs) {
        return Err(Error::invalid("the parts of a projection are kept in different ways"));
    }
    scheme.check(inputs)?;
    Ok((scheme, inputs, parts.iter().map(|part| part.shape()[0]).sum()))
}

/// What is added to a weight to make it unsigned.
pub(super) fn offset(number: Number) -> i32 {
    if number == Number::Int4 { 8 } else { 128 }
}

/// Byte of an int4 value, and whether it is the high nibble: the 64 values of a step take 32 bytes,
/// the first 32 of them in the low nibbles.
fn nibble(index: usize) -> (usize, bool) {
    let (chunk, i) = (index / 64, index % 64);
    (chunk * 32 + i % 32, i >= 32)
}
