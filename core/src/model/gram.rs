//! Gram matrices of a projection's inputs, all that calibrated pruning and quantization need to
//! know of them.

use std::sync::{Arc, Mutex};

use burn::tensor::{Tensor, backend::Backend};

use crate::{Error, Result};

/// Sum of `x^T x` over the input rows `x` of a projection.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gram {
    /// Width of the rows.
    pub inputs: usize,
    /// `[inputs, inputs]`, symmetric.
    pub sum: Vec<f64>,
    /// Number of rows summed.
    pub rows: usize,
    failed: bool,
}

/// A [`Gram`] to which a projection adds its inputs at every use.
pub type SharedGram = Arc<Mutex<Gram>>;

impl Gram {
    /// A matrix that was summed elsewhere over `rows` rows.
    ///
    /// # Errors
    /// A matrix that is not square.
    pub fn new(inputs: usize, sum: Vec<f64>, rows: usize) -> Result<Self> {
        if sum.len() != inputs * inputs {
            return Err(Error::invalid(format!(
                "{} numbers are not [{inputs}, {inputs}]",
                sum.len()
            )));
        }
        Ok(Self { inputs, sum, rows, failed: false })
    }

    /// Adds rows `[rows, inputs]`.
    pub(super) fn add<B: Backend>(&mut self, x: &Tensor<B, 2>) {
        let [rows, inputs] = x.dims();
        let product = x.clone().transpose().matmul(x.clone());
        let Ok(values) = product.into_data().convert::<f32>().into_vec::<f32>() else {
            self.failed = true;
            return;
        };
        self.inputs = inputs;
        self.rows += rows;
        self.sum.resize(inputs * inputs, 0.0);
        self.sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(value));
    }

    /// The sum so far.
    ///
    /// # Errors
    /// Nothing was added, the sum cannot be read back, or it has NaN.
    pub fn seen(&self) -> Result<&Self> {
        if self.rows == 0 || self.failed {
            return Err(Error::invalid("no activations reached a projection"));
        }
        match self.sum.iter().all(|value| value.is_finite()) {
            true => Ok(self),
            false => Err(Error::invalid("activations have NaN or infinite values")),
        }
    }
}
