//! Embedding tables, in floating point or packed in few bits.

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Int, Tensor, TensorData, backend::Backend, module};

use super::packed::PackedTable;
use crate::Result;
use crate::kernels::{Kernels, Packing};
use crate::quant::Quantized;

/// One row a token, position or type.
#[derive(Module, Debug)]
pub struct Embedding<B: Backend> {
    /// `[rows, width]`.
    pub weight: Param<Tensor<B, 2>>,
    /// The packed table in the host's memory, used instead of `weight` where it is set.
    #[module(skip)]
    packed_on_host: Option<Arc<Quantized>>,
    /// The packed table in the device's memory, likewise.
    packed: Option<PackedTable<B>>,
}

impl<B: Kernels> Embedding<B> {
    /// A table of a size.
    pub fn new([rows, width]: [usize; 2], init: &Initializer, device: &B::Device) -> Self {
        Self { weight: init.init([rows, width], device), packed_on_host: None, packed: None }
    }

    /// Rows of ids `[batch, seq]`: `[batch, seq, width]`.
    pub fn forward(&self, ids: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        match (&self.packed_on_host, &self.packed) {
            (Some(packed), _) => B::host_rows(ids, packed, &self.weight.device()),
            (_, Some(packed)) => packed.rows(ids),
            _ => module::embedding(self.weight.val(), ids),
        }
    }

    /// The whole table `[rows, width]`.
    pub fn table(&self) -> Tensor<B, 2> {
        match (&self.packed_on_host, &self.packed) {
            (Some(packed), _) => {
                let data = TensorData::new(packed.values(), packed.shape());
                Tensor::from_data(data, &self.weight.device())
            }
            (_, Some(packed)) => packed.table(),
            _ => self.weight.val(),
        }
    }

    /// Replaces the table by a packed one where the backend computes with it packed; otherwise
    /// nothing changes.
    ///
    /// # Errors
    /// A table that cannot be packed, which is a defect.
    pub(crate) fn keep_packed(&mut self, table: Quantized) -> Result<()> {
        let device = self.weight.lazy_device();
        match B::PACKING {
            Packing::Host => self.packed_on_host = Some(Arc::new(table)),
            Packing::Device if PackedTable::<B>::takes(&table) => {
                self.packed = Some(PackedTable::new(&table, &device)?);
            }
            Packing::Never | Packing::Device => return Ok(()),
        }
        self.weight = Param::from_tensor(Tensor::zeros([0, 0], &device));
        Ok(())
    }

    /// Whether the table is packed.
    pub(crate) fn is_packed(&self) -> bool {
        self.packed_on_host.is_some() || self.packed.is_some()
    }

    /// Replaces a packed table by a floating-point one.
    pub(crate) fn unpack(&mut self) {
        if self.is_packed() {
            self.weight = Param::from_tensor(self.table());
            (self.packed_on_host, self.packed) = (None, None);
        }
    }
}
