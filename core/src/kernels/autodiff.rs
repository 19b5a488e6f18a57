//! With gradients: the plain versions, which are made of operations that Burn can differentiate.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;

use super::Kernels;

impl<B: Kernels, C: CheckpointStrategy> Kernels for Autodiff<B, C> {
    const HOST: bool = B::HOST;
}
