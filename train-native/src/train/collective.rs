//! Burn's collective, through which the devices of one machine sum what they computed; in a build
//! without GPUs there is one device and nothing to sum.

use anyhow::Result;
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorPrimitive};

#[cfg(feature = "several-devices")]
mod burns {
    use anyhow::{Result, anyhow};
    use burn::tensor::backend::Backend;
    use burn_collective::{
        CollectiveConfig, PeerId, ReduceOperation, all_reduce, finish_collective, register,
    };

    pub(super) fn join<B: Backend>(rank: usize, world: usize, device: &B::Device) -> Result<()> {
        let config = CollectiveConfig::default().with_num_devices(world);
        register::<B>(PeerId::from(rank), device.clone(), config)
            .map_err(|error| anyhow!("device {rank} cannot join the others: {error:?}"))
    }

    pub(super) fn sum<B: Backend>(
        rank: usize,
        tensor: B::FloatTensorPrimitive,
    ) -> Result<B::FloatTensorPrimitive> {
        all_reduce::<B>(PeerId::from(rank), tensor, ReduceOperation::Sum)
            .map_err(|error| anyhow!("the devices lost one another: {error:?}"))
    }

    pub(super) fn leave<B: Backend>(rank: usize) {
        // Nothing is left to do where the server is gone already.
        let _ = finish_collective::<B>(PeerId::from(rank));
    }
}

#[cfg(not(feature = "several-devices"))]
mod burns {
    use anyhow::{Result, bail};
    use burn::tensor::backend::Backend;

    const ABSENT: &str = "this build trains on one device: build with --features cuda or vulkan";

    pub(super) fn join<B: Backend>(_: usize, _: usize, _: &B::Device) -> Result<()> {
        bail!(ABSENT)
    }

    pub(super) fn sum<B: Backend>(
        _: usize,
        _: B::FloatTensorPrimitive,
    ) -> Result<B::FloatTensorPrimitive> {
        bail!(ABSENT)
    }

    pub(super) fn leave<B: Backend>(_: usize) {}
}

/// Joins `world` devices as number `rank`.
///
/// # Errors
/// What the collective refuses, or a build for one device.
pub(super) fn join<B: Backend>(rank: usize, world: usize, device: &B::Device) -> Result<()> {
    burns::join::<B>(rank, world, device)
}

/// The sum of a tensor over the devices, on each of them.
///
/// # Errors
/// A device that has gone away.
pub(super) fn sum<B: Backend, const D: usize>(
    rank: usize,
    tensor: Tensor<B, D>,
) -> Result<Tensor<B, D>> {
    let sum = burns::sum::<B>(rank, tensor.into_primitive().tensor())?;
    Ok(Tensor::from_primitive(TensorPrimitive::Float(sum)))
}

/// Leaves the others.
pub(super) fn leave<B: Backend>(rank: usize) {
    burns::leave::<B>(rank);
}
