//! A weight as the CPU multiplies it.

#[cfg(all(feature = "flex", any(not(target_arch = "wasm32"), feature = "autodiff")))]
use super::bf16::Bf16Matrix;
use super::packed::PackedMatrix;
use crate::Result;

/// A weight `[inputs, outputs]` in the host's memory, in fewer bits than f32.
#[derive(Debug, Clone, PartialEq)]
pub enum HostMatrix {
    /// int8 or int4.
    Integers(PackedMatrix),
    /// bf16.
    #[cfg(all(feature = "flex", any(not(target_arch = "wasm32"), feature = "autodiff")))]
    Bf16(Bf16Matrix),
}

impl HostMatrix {
    /// `[inputs, outputs]`.
    pub fn shape(&self) -> [usize; 2] {
        match self {
            Self::Integers(matrix) => matrix.shape(),
            #[cfg(all(feature = "flex", any(not(target_arch = "wasm32"), feature = "autodiff")))]
            Self::Bf16(matrix) => matrix.shape(),
        }
    }

    /// The weights `[inputs, outputs]` that the values stand for.
    pub fn weights(&self) -> Vec<f32> {
        match self {
            Self::Integers(matrix) => matrix.weights(),
            #[cfg(all(feature = "flex", any(not(target_arch = "wasm32"), feature = "autodiff")))]
            Self::Bf16(matrix) => matrix.weights(),
        }
    }

    /// `[rows, inputs]` to `[rows, outputs]`, with the bias added.
    ///
    /// # Errors
    /// Activations or a bias of another width.
    pub fn product(&self, x: &[f32], bias: Option<&[f32]>) -> Result<Vec<f32>> {
        match self {
            Self::Integers(matrix) => matrix.product(x, bias),
            #[cfg(all(feature = "flex", any(not(target_arch = "wasm32"), feature = "autodiff")))]
            Self::Bf16(matrix) => matrix.product(x, bias),
        }
    }
}
