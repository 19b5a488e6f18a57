//! Layers whose weights stay packed in a device's own memory: [`PackedWeight`], a projection, and
//! [`PackedTable`], an embedding table. [`PackedLayout`] says how the words lie.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{DType, FloatDType, Int, Tensor, TensorData, backend::Backend};

use crate::kernels::{DeviceMatrix, Kernels};
use crate::quant::{Number, PackedLayout, PackedWords, Quantized};
use crate::{Error, Result};

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
    /// As [`PackedMatrix::new`](crate::quant::PackedMatrix::new).
    pub fn new(parts: &[Quantized], device: &B::Device) -> Result<Self> {
        let words = PackedWords::projection(parts)?;
        let layout = words.layout;
        let (codes, scales) = to_device(words, device);
        Ok(Self { codes, scales, layout })
    }

    /// `[rows, inputs]` to `[rows, outputs]`.
    pub fn linear(&self, x: Tensor<B, 2>, bias: Option<Tensor<B, 1>>) -> Tensor<B, 2> {
        B::packed_linear(x, self.codes.val(), self.scales.val(), self.layout, bias)
    }

    /// The weights as a block takes them.
    pub(crate) fn matrix(&self) -> DeviceMatrix {
        B::device_matrix(self.codes.val(), self.scales.val(), self.layout)
    }

    /// Inputs and outputs.
    pub fn shape(&self) -> [usize; 2] {
        [self.layout.inputs, self.layout.outputs]
    }

    /// The weights `[inputs, outputs]` that the values stand for.
    pub fn weights(&self) -> Tensor<B, 2> {
        B::unpacked(self.codes.val(), self.scales.val(), self.layout, FloatDType::F32)
    }
}

/// A table `[rows, width]` of packed embeddings in a device's memory, in several tensors where one
/// would be larger than the device allows.
#[derive(Module, Debug)]
pub struct PackedTable<B: Backend> {
    parts: Vec<TablePart<B>>,
}

/// Consecutive rows of a table.
#[derive(Module, Debug)]
struct TablePart<B: Backend> {
    codes: Param<Tensor<B, 2, Int>>,
    scales: Param<Tensor<B, 2>>,
    #[module(skip)]
    layout: PackedLayout,
}

impl<B: Kernels> PackedTable<B> {
    /// Whether a table can stay packed: int8 or int4, in rows of whole words.
    pub fn takes(table: &Quantized) -> bool {
        let number = table.scheme().number;
        matches!(number, Number::Int8 | Number::Int4)
            && table.shape()[1].is_multiple_of(32 / number.bits())
    }

    /// Puts a table on a device.
    ///
    /// # Errors
    /// A table that [`PackedTable::takes`] does not take, or a device whose largest tensor is
    /// smaller than one row.
    pub fn new(table: &Quantized, device: &B::Device) -> Result<Self> {
        Self::in_parts(table, device, B::largest_tensor(device))
    }

    /// As [`PackedTable::new`], in tensors of at most `largest` bytes.
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
            let outputs = codes.len() / row;
            let layout = PackedLayout { inputs, outputs, block, bits: number.bits() };
            let words = PackedWords::table(codes, scales, number, layout);
            let (codes, scales) = to_device(words, device);
            TablePart { codes, scales, layout }
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
            // Each part looks up its own ids; for the others it reads some row, times zero.
            let (start, end) = (first, first + layout.outputs as i64);
            first = end;
            let last = layout.outputs as i64 - 1;
            let own = ids.clone().greater_equal_elem(start).bool_and(ids.clone().lower_elem(end));
            let result = rows(ids.clone().sub_scalar(start).clamp(0, last));
            result * own.float().reshape([batch, seq, 1])
        });
        let one = result.next();
        // A table has at least one part, so the zeros are never used.
        let one = one.unwrap_or_else(|| Tensor::zeros([batch, seq, 0], &ids.device()));
        result.fold(one, |sum, rows| sum + rows)
    }

    /// The table `[rows, width]` that the values stand for.
    pub fn table(&self) -> Tensor<B, 2> {
        let table = |part: &TablePart<B>| part.layout.table(part.codes.val(), part.scales.val());
        Tensor::cat(self.parts.iter().map(table).collect(), 0)
    }
}

/// Words and scales as parameters of a layer.
fn to_device<B: Backend>(
    words: PackedWords,
    device: &B::Device,
) -> (Param<Tensor<B, 2, Int>>, Param<Tensor<B, 2>>) {
    // The same bits: Burn's integer tensors are signed.
    let codes: Vec<i32> = words.codes.into_iter().map(u32::cast_signed).collect();
    let codes = TensorData::new(codes, words.codes_shape);
    let scales = TensorData::new(words.scales, words.scales_shape);
    // Shaders read f32 scales, whatever numbers the backend otherwise computes with.
    (
        Param::initialized(ParamId::new(), Tensor::from_data(codes, (device, DType::I32))),
        Param::initialized(ParamId::new(), Tensor::from_data(scales, (device, DType::F32))),
    )
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
