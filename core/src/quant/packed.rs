//! A weight matrix in int8 or int4, and its product with activations that are quantized on the way.
//!
//! Scales are shared by `block` inputs of one output. Values lie in the order in which the product
//! reads them: for 16 outputs at a time, 4 inputs of each side by side, so that one instruction
//! (`vpdpbusd`) multiplies 64 pairs.

use crate::{Error, Result};

/// Outputs that are computed together.
pub(super) const LANES: usize = 16;
/// Inputs of one output that lie side by side.
pub(super) const STEP: usize = 4;
/// What makes a signed byte an unsigned one.
pub(super) const OFFSET: i32 = 128;

/// Bits of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bits {
    /// -127 to 127.
    Eight,
    /// -7 to 7.
    Four,
}

impl Bits {
    /// Largest value.
    pub fn largest(self) -> f32 {
        match self {
            Self::Eight => 127.0,
            Self::Four => 7.0,
        }
    }
}

/// A matrix `[inputs, outputs]` of packed weights.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedMatrix {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) bits: Bits,
    pub(super) block: usize,
    /// `[outputs / 16][inputs / 4][16][4]`; two values a byte where they have four bits.
    pub(super) values: Vec<u8>,
    /// `[outputs / 16][inputs / block][16]`.
    pub(super) scales: Vec<f32>,
    /// -128 times the sum of each block's values, as the scales: what the offset of the
    /// activations adds.
    pub(super) corrections: Vec<i32>,
}

/// Activations in int8, each block of a row with a scale of its own.
pub(super) struct Activations {
    /// `[rows][inputs]`, each value plus 128.
    pub(super) values: Vec<u8>,
    /// `[rows][inputs / block]`.
    pub(super) scales: Vec<f32>,
}

impl PackedMatrix {
    /// Rounds weights `[inputs, outputs]`, row by row, to the nearest value.
    ///
    /// # Errors
    /// Inputs that the block does not divide, a block that is no multiple of 4, numbers that are
    /// not finite, or weights of another size.
    pub fn round(
        weights: &[f32],
        [inputs, outputs]: [usize; 2],
        bits: Bits,
        block: usize,
    ) -> Result<Self> {
        if weights.len() != inputs * outputs {
            return Err(Error::invalid(format!(
                "{} weights are not [{inputs}, {outputs}]",
                weights.len()
            )));
        }
        if block == 0 || !block.is_multiple_of(STEP) || !inputs.is_multiple_of(block) {
            return Err(Error::invalid(format!(
                "blocks of {block} do not fit a matrix with {inputs} inputs; a block is a multiple of 4 that divides the inputs"
            )));
        }
        if let Some(at) = weights.iter().position(|weight| !weight.is_finite()) {
            return Err(Error::invalid(format!(
                "the weight at [{}, {}] is {}",
                at / outputs.max(1),
                at % outputs.max(1),
                weights[at]
            )));
        }
        let (groups, blocks) = (outputs.div_ceil(LANES), inputs / block);
        let mut packed = Self {
            inputs,
            outputs,
            bits,
            block,
            values: vec![0; groups * inputs * LANES / if bits == Bits::Four { 2 } else { 1 }],
            scales: vec![1.0; groups * blocks * LANES],
            corrections: vec![0; groups * blocks * LANES],
        };
        for output in 0..outputs {
            let (group, lane) = (output / LANES, output % LANES);
            for at in 0..blocks {
                let rows = at * block..(at + 1) * block;
                let weight = |row: usize| weights[row * outputs + output];
                let largest = rows.clone().map(|row| weight(row).abs()).fold(0.0, f32::max);
                let scale = if largest > 0.0 { largest / bits.largest() } else { 1.0 };
                let place = (group * blocks + at) * LANES + lane;
                packed.scales[place] = scale;
                let mut sum = 0;
                for row in rows {
                    // A subnormal scale may round the quotient past the largest value.
                    let value =
                        (weight(row) / scale).round().clamp(-bits.largest(), bits.largest());
                    sum += value as i32;
                    packed.set(group, row, lane, value as i8);
                }
                packed.corrections[place] = -OFFSET * sum;
            }
        }
        Ok(packed)
    }

    /// Place of a value among all, in reading order.
    fn place(&self, group: usize, input: usize, lane: usize) -> usize {
        ((group * (self.inputs / STEP) + input / STEP) * LANES + lane) * STEP + input % STEP
    }

    fn set(&mut self, group: usize, input: usize, lane: usize, value: i8) {
        let place = self.place(group, input, lane);
        match self.bits {
            Bits::Eight => self.values[place] = value as u8,
            Bits::Four => {
                let (byte, high) = nibble(place);
                let nibble = (value + 8) as u8;
                self.values[byte] |= if high { nibble << 4 } else { nibble };
            }
        }
    }

    /// A value as it is kept, before its scale.
    fn get(&self, group: usize, input: usize, lane: usize) -> i8 {
        let place = self.place(group, input, lane);
        match self.bits {
            Bits::Eight => self.values[place] as i8,
            Bits::Four => {
                let (byte, high) = nibble(place);
                let pair = self.values[byte];
                (if high { pair >> 4 } else { pair & 15 }) as i8 - 8
            }
        }
    }

    /// The weights `[inputs, outputs]` that the values stand for.
    pub fn weights(&self) -> Vec<f32> {
        let blocks = self.inputs / self.block;
        let mut weights = vec![0.0; self.inputs * self.outputs];
        for (input, row) in weights.chunks_exact_mut(self.outputs).enumerate() {
            for (output, weight) in row.iter_mut().enumerate() {
                let (group, lane) = (output / LANES, output % LANES);
                let scale = self.scales[(group * blocks + input / self.block) * LANES + lane];
                *weight = f32::from(self.get(group, input, lane)) * scale;
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
        self.values.len() + 4 * (self.scales.len() + self.corrections.len())
    }

    /// Activations `[rows, inputs]` in int8.
    pub(super) fn activations(&self, x: &[f32]) -> Activations {
        let mut values = vec![0u8; x.len()];
        let mut scales = Vec::with_capacity(x.len() / self.block);
        for (from, to) in x.chunks_exact(self.block).zip(values.chunks_exact_mut(self.block)) {
            scales.push(super::product::quantize(from, to));
        }
        Activations { values, scales }
    }
}

/// Byte of a four-bit value, and whether it is the higher half: 64 values that are read together
/// are 32 bytes, the first 32 of them in the lower halves.
fn nibble(place: usize) -> (usize, bool) {
    let (chunk, at) = (place / 64, place % 64);
    (chunk * 32 + at % 32, at >= 32)
}
