//! In place of the CUDA backend, in a build without it.

use burn::tensor::backend::Backend;
use kiln_hosts::Ended;

use super::{Collective, FoundDevice, Joining, Missing, Offer};

/// A device of which there is none.
pub type Handle = std::convert::Infallible;

/// No device brings anything to sums among GPUs.
pub fn offer<B: Backend>(_: &B::Device) -> Option<Result<Offer, String>> {
    None
}

/// There is no way to meet.
pub fn meeting() -> Result<Vec<u8>, String> {
    Err("this build has no CUDA".into())
}

/// There is nobody to meet.
pub fn collective<B: Backend>(
    _: &B::Device,
    _: &Joining<'_>,
) -> Result<Box<dyn Collective<B>>, Ended> {
    Err(Ended::Here("this build has no CUDA".into()))
}

pub(super) fn devices() -> Result<Vec<FoundDevice<Handle>>, Missing> {
    Err(Missing::InBuild("CUDA", "cuda"))
}

/// The arm of [`with_backend!`](crate::with_backend) that cannot be reached.
#[doc(hidden)]
#[macro_export]
macro_rules! with_cuda {
    ($found:ident, $B:ident, $handle:ident => $body:expr) => {
        match *$found {}
    };
}
