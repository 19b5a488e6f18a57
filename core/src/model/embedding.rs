//! A table of embeddings, which may be kept in few bits.

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Int, Tensor, TensorData, backend::Backend, module};

use crate::host;
use crate::quant::Quantized;

/// One row a token, position or type.
#[derive(Module, Debug)]
pub struct Embedding<B: Backend> {
    /// `[rows, width]`.
    pub weight: Param<Tensor<B, 2>>,
    /// The table in few bits, which then is used in its place (inference on the CPU).
    #[module(skip)]
    packed: Option<Arc<Quantized>>,
}

impl<B: Backend> Embedding<B> {
    /// A table of a size.
    pub fn new([rows, width]: [usize; 2], init: &Initializer, device: &B::Device) -> Self {
        Self { weight: init.init([rows, width], device), packed: None }
    }

    /// Rows of ids `[batch, seq]`: `[batch, seq, width]`.
    pub fn forward(&self, ids: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        match &self.packed {
            Some(packed) => host::packed_rows(ids, packed, &self.weight.device()),
            None => module::embedding(self.weight.val(), ids),
        }
    }

    /// The whole table `[rows, width]`.
    pub fn table(&self) -> Tensor<B, 2> {
        match &self.packed {
            Some(packed) => {
                let data = TensorData::new(packed.values(), packed.shape());
                Tensor::from_data(data, &self.weight.device())
            }
            None => self.weight.val(),
        }
    }

    /// Uses a packed table from now on, and lets the full one go.
    pub(crate) fn keep_packed(&mut self, packed: Quantized) {
        let device = self.weight.lazy_device();
        self.weight = Param::from_tensor(Tensor::zeros([0, 0], &device));
        self.packed = Some(Arc::new(packed));
    }

    /// Makes a packed table into a full one again.
    pub(crate) fn unpack(&mut self) {
        if self.packed.is_some() {
            self.weight = Param::from_tensor(self.table());
            self.packed = None;
        }
    }
}
