//! Backends with gradients use the plain versions, which Burn can differentiate.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;

use super::Kernels;

impl<B: Kernels, C: CheckpointStrategy> Kernels for Autodiff<B, C> {
    const HOST: bool = B::HOST;
}
