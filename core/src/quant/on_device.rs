//! Few-bit weights in a device's own memory, as its shaders read them: four int8 or eight int4
//! values in a 32-bit word, as unsigned numbers (plus 128 or 8).

use burn::module::{Module, Param, ParamId};
use burn::tensor::{DType, ElementConversion, Int, Tensor, TensorData, backend::Backend};

use super::quantized::Quantized;
use super::scheme::Number;
use crate::kernels::Kernels;
use crate::{Error, Result};

/// Outputs are filled up to a multiple of this, as shaders read so many of them at once.
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

/// A projection `[inputs, outputs]` of packed weights in a device's memory.
#[derive(Module, Debug)]
pub struct PackedWeight<B: Backend> {
    codes: Param<Tensor<B, 2, Int>>,
    scales: Param<Tensor<B, 2>>,
    #[module(skip)]
    layout: PackedLayout,
}

impl<B: Kernels> PackedWeight<B> {
    /// Puts quantized projections `[outputs, inputs]` side by side, in their order.
    ///
    /// # Errors
    /// As [`PackedMatrix::new`](super::PackedMatrix::new).
    pub fn new(parts: &[Quantized], device: &B::Device) -> Result<Self> {
        let (scheme, inputs, outputs) = super::packed::side_by_side(parts)?;
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
        let codes = words_param(codes, [words, width], device);
        Ok(Self { codes, scales: scales_param(scales, [blocks, width], device), layout })
    }

    /// `[rows, inputs]` to `[rows, outputs]`.
    pub fn linear(&self, x: Tensor<B, 2>, bias: Option<Tensor<B, 1>>) -> Tensor<B, 2> {
        B::packed_linear(x, self.codes.val(), self.scales.val(), self.layout, bias)
    }

    /// The weights `[inputs, outputs]` that the values stand for.
    pub fn weights(&self) -> Tensor<B, 2> {
        self.layout.weights(self.codes.val(), self.scales.val())
    }
}

/// A table `[rows, width]` of packed embeddings in a device's memory; in parts where a single tensor
/// would be larger than the device takes.
#[derive(Module, Debug)]
pub struct PackedTable<B: Backend> {
    parts: Vec<TablePart<B>>,
}

/// Some rows of a table.
#[derive(Module, Debug)]
struct TablePart<B: Backend> {
    codes: Param<Tensor<B, 2, Int>>,
    scales: Param<Tensor<B, 2>>,
    #[module(skip)]
    layout: PackedLayout,
}

impl<B: Kernels> PackedTable<B> {
    /// Whether a table can be kept so: int8 or int4, in rows of whole words.
    pub fn takes(table: &Quantized) -> bool {
        let number = table.scheme().number;
        matches!(number, Number::Int8 | Number::Int4)
            && table.shape()[1].is_multiple_of(32 / number.bits())
    }

    /// Puts a table on a device.
    ///
    /// # Errors
    /// A table that [`PackedTable::takes`] does not take, or a device on which not even one row has
    /// room in a tensor.
    pub fn new(table: &Quantized, device: &B::Device) -> Result<Self> {
        Self::in_parts(table, device, B::largest_tensor(device))
    }

    /// As [`PackedTable::new`], in tensors of so many bytes at most.
    fn in_parts(table: &Quantized, device: &B::Device, largest: u64) -> Result<Self> {
        let ([_, inputs], scheme) = (table.shape(), table.scheme());
        let (number, block) = (scheme.number, scheme.block_in(inputs));
        let (row, blocks) = (inputs * number.bits() / 8, inputs / block.max(1));
        let rows = (largest / row.max(4 * blocks).max(1) as u64) as usize;
        if !Self::takes(table) || rows == 0 {
            return Err(Error::invalid(format!(
                "a table in {scheme} with rows of {inputs} is not kept packed on a device"
            )));
        }
        let codes = table.codes().chunks(rows.saturating_mul(row));
        let scales = table.scales().chunks(rows.saturating_mul(blocks));
        let parts = codes.zip(scales).map(|(codes, scales)| {
            let bytes: Vec<u8> = match number {
                // Two unsigned values a byte already.
                Number::Int4 => codes.to_vec(),
                _ => codes.iter().map(|code| unsigned(number, *code)).collect(),
            };
            let words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
            let outputs = codes.len() / row;
            let layout = PackedLayout { inputs, outputs, block, bits: number.bits() };
            TablePart {
                codes: words_param(words.collect(), [outputs, inputs / layout.each()], device),
                scales: scales_param(scales.to_vec(), [outputs, blocks], device),
                layout,
            }
        });
        Ok(Self { parts: parts.collect() })
    }

    /// Rows of ids `[batch, seq]`: `[batch, seq, width]`.
    pub fn rows(&self, ids: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let [batch, seq] = ids.dims();
        let mut first = 0;
        let mut result = self.parts.iter().map(|part| {
            let TablePart { codes, scales, layout } = part;
            let rows = |ids| B::packed_rows(ids, codes.val(), scales.val(), *layout);
            if self.parts.len() == 1 {
                return rows(ids.clone());
            }
            // Each part looks up its own ids, and some row for the others, which counts nothing.
            let (start, end) = (first, first + layout.outputs as i64);
            first = end;
            let last = layout.outputs as i64 - 1;
            let own = ids.clone().greater_equal_elem(start).bool_and(ids.clone().lower_elem(end));
            let result = rows(ids.clone().sub_scalar(start).clamp(0, last));
            result * own.float().reshape([batch, seq, 1])
        });
        let one = result.next();
        // A table has a part at least, so that nothing is drawn here.
        let one = one.unwrap_or_else(|| Tensor::zeros([batch, seq, 0], &ids.device()));
        result.fold(one, |sum, rows| sum + rows)
    }

    /// The table `[rows, width]` that the values stand for.
    pub fn table(&self) -> Tensor<B, 2> {
        let table = |part: &TablePart<B>| part.layout.table(part.codes.val(), part.scales.val());
        Tensor::cat(self.parts.iter().map(table).collect(), 0)
    }
}

/// A file's code as an unsigned number, which is what shaders shift and mask.
fn unsigned(number: Number, code: u8) -> u8 {
    if number == Number::Int8 { code ^ 128 } else { code }
}

fn words_param<B: Backend>(
    words: Vec<u32>,
    shape: [usize; 2],
    device: &B::Device,
) -> Param<Tensor<B, 2, Int>> {
    // The same bits; Burn's tensors of whole numbers are signed.
    let words: Vec<i32> = words.into_iter().map(u32::cast_signed).collect();
    let words = Tensor::from_data(TensorData::new(words, shape), (device, DType::I32));
    Param::initialized(ParamId::new(), words)
}

fn scales_param<B: Backend>(
    scales: Vec<f32>,
    shape: [usize; 2],
    device: &B::Device,
) -> Param<Tensor<B, 2>> {
    // Whatever numbers the backend takes else: shaders read these.
    let scales = Tensor::from_data(TensorData::new(scales, shape), (device, DType::F32));
    Param::initialized(ParamId::new(), scales)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::Flex;

    #[test]
    fn a_table_in_parts_is_the_table() {
        let device = Default::default();
        let values: Vec<f32> = (0..23 * 32).map(|i| (i as f32 * 0.37).sin()).collect();
        let ids: Vec<i64> = (0..24).map(|i| i * 7 % 23).collect();
        let ids = Tensor::<Flex, 2, Int>::from_data(TensorData::new(ids, [2, 12]), &device);
        let read = |actual: Tensor<Flex, 3>| actual.into_data().to_vec::<f32>().unwrap();
        for scheme in ["int8:32", "int4:16", "int8:4"] {
            let table = Quantized::round(&values, [23, 32], scheme.parse().unwrap()).unwrap();
            let whole = PackedTable::<Flex>::new(&table, &device).unwrap();
            assert_eq!(whole.parts.len(), 1);
            for largest in [32, 33, 100, 160, 350] {
                let parts = PackedTable::<Flex>::in_parts(&table, &device, largest).unwrap();
                assert!(parts.parts.len() > 1, "{largest}");
                let bytes = |part: &TablePart<Flex>| 4 * part.codes.val().shape().num_elements();
                assert!(parts.parts.iter().all(|part| bytes(part) as u64 <= largest));
                assert_eq!(read(parts.rows(ids.clone())), read(whole.rows(ids.clone())));
                let tables = [&parts, &whole].map(|table| table.table().into_data());
                assert_eq!(tables[0], tables[1]);
            }
            assert!(PackedTable::<Flex>::in_parts(&table, &device, 8).is_err());
        }
    }
}
