//! Few-bit weights in the order in which shaders read them: four int8 or eight int4 values in a
//! 32-bit word, as unsigned numbers (plus 128 or 8).

use burn::tensor::{ElementConversion, Int, Tensor, backend::Backend};

use super::packed::side_by_side;
use super::quantized::Quantized;
use super::scheme::Number;
use crate::Result;

/// Outputs are padded to a multiple of this, because shaders read so many at once.
const OUTPUTS: usize = 4;

/// What packed words stand for: `outputs` rows of `inputs` numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PackedLayout {
    /// Inputs of a projection; width of a table.
    pub inputs: usize,
    /// Outputs of a projection; rows of a table.
    pub outputs: usize,
    /// Inputs that share a scale.
    pub block: usize,
    /// Bits of a number: 4 or 8.
    pub bits: usize,
}

impl PackedLayout {
    /// Numbers in a word.
    pub fn each(self) -> usize {
        32 / self.bits
    }

    /// What makes a number unsigned.
    pub fn offset(self) -> i32 {
        1 << (self.bits - 1)
    }

    /// The weights `[inputs, outputs]` of a projection, by Burn's own operations: of `codes`
    /// `[inputs / each, outputs]` and `scales` `[inputs / block, outputs]`.
    pub fn weights<B: Backend>(
        self,
        codes: Tensor<B, 2, Int>,
        scales: Tensor<B, 2>,
    ) -> Tensor<B, 2> {
        let Self { inputs, outputs, block, .. } = self;
        let [words, width] = codes.dims();
        let values = self.values(codes.reshape([words, 1, width]), 1);
        let values = values.reshape([words * self.each(), width]).narrow(0, 0, inputs);
        let values = values.reshape([inputs / block, block, width]);
        let weights = values * scales.reshape([inputs / block, 1, width]);
        weights.reshape([inputs, width]).narrow(1, 0, outputs)
    }

    /// A table `[outputs, inputs]`, by Burn's own operations: of `codes` `[outputs, inputs / each]`
    /// and `scales` `[outputs, inputs / block]`.
    pub fn table<B: Backend>(self, codes: Tensor<B, 2, Int>, scales: Tensor<B, 2>) -> Tensor<B, 2> {
        let Self { inputs, outputs, block, .. } = self;
        let [_, words] = codes.dims();
        let values = self.values(codes.reshape([outputs, words, 1]), 2);
        let values = values.reshape([outputs, inputs / block, block]);
        (values * scales.reshape([outputs, inputs / block, 1])).reshape([outputs, inputs])
    }

    /// The numbers of words, side by side along a dimension that is one wide.
    fn values<B: Backend>(self, words: Tensor<B, 3, Int>, along: usize) -> Tensor<B, 3> {
        let mask = (1i64 << self.bits) - 1;
        let values = (0..self.each()).map(|i| {
            let shifted = words.clone().bitwise_right_shift_scalar(((i * self.bits) as i64).elem());
            shifted.bitwise_and_scalar(mask.elem()).sub_scalar(self.offset()).float()
        });
        Tensor::cat(values.collect(), along)
    }
}

/// Packed words and scales, row by row, before they become tensors on a device.
pub(crate) struct PackedWords {
    /// The words, `[rows, words of a row]`.
    pub codes: Vec<u32>,
    /// The scales, `[rows, scales of a row]`.
    pub scales: Vec<f32>,
    /// Shape of the words.
    pub codes_shape: [usize; 2],
    /// Shape of the scales.
    pub scales_shape: [usize; 2],
    /// What they stand for.
    pub layout: PackedLayout,
}

impl PackedWords {
    /// Quantized projections `[outputs, inputs]` side by side, in their order, laid out as
    /// [`PackedLayout::weights`] reads them.
    ///
    /// # Errors
    /// As [`PackedMatrix::new`](super::PackedMatrix::new).
    pub(crate) fn projection(parts: &[Quantized]) -> Result<Self> {
        let (scheme, inputs, outputs) = side_by_side(parts)?;
        let (number, block) = (scheme.number, scheme.block_in(inputs));
        let layout = PackedLayout { inputs, outputs, block, bits: number.bits() };
        let (bits, each) = (layout.bits, layout.each());
        let width = outputs.next_multiple_of(OUTPUTS);
        let (words, blocks) = (inputs.div_ceil(each), inputs / block);
        let mut codes = vec![0u32; words * width];
        let mut scales = vec![0.0f32; blocks * width];
        let rows = parts.iter().flat_map(|part| (0..part.shape()[0]).map(move |row| (part, row)));
        for (output, (part, row)) in rows.enumerate() {
            for input in 0..inputs {
                let code = u32::from(unsigned(number, part.code(row, input)));
                codes[input / each * width + output] |= code << (input % each * bits);
            }
            for (i, scale) in part.scales()[row * blocks..][..blocks].iter().enumerate() {
                scales[i * width + output] = *scale;
            }
        }
        let (codes_shape, scales_shape) = ([words, width], [blocks, width]);
        Ok(Self { codes, scales, codes_shape, scales_shape, layout })
    }

    /// Whole rows of a table in int8 or int4, from their codes and scales in the file's order, laid
    /// out as [`PackedLayout::table`] reads them.
    pub(crate) fn table(
        codes: &[u8],
        scales: &[f32],
        number: Number,
        layout: PackedLayout,
    ) -> Self {
        let bytes: Vec<u8> = match number {
            // Two unsigned values a byte already.
            Number::Int4 => codes.to_vec(),
            _ => codes.iter().map(|code| unsigned(number, *code)).collect(),
        };
        let words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        let PackedLayout { inputs, outputs, block, .. } = layout;
        Self {
            codes: words.collect(),
            scales: scales.to_vec(),
            codes_shape: [outputs, inputs / layout.each()],
            scales_shape: [outputs, inputs / block],
            layout,
        }
    }
}

/// A file's code as an unsigned number, which is what shaders shift and mask.
fn unsigned(number: Number, code: u8) -> u8 {
    if number == Number::Int8 { code ^ 128 } else { code }
}
