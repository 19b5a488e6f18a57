//! In place of the CUDA backend, in a build without it.

use super::{Found, Missing};

/// A device of which there is none.
pub type Handle = std::convert::Infallible;

pub(super) fn devices() -> Result<Vec<Found<Handle>>, Missing> {
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
