//! In place of the Vulkan backend, in a build without it.

use super::{FoundDevice, Missing};

/// A device of which there is none.
pub type Handle = std::convert::Infallible;

pub(super) fn devices() -> Result<Vec<FoundDevice<Handle>>, Missing> {
    Err(Missing::InBuild("Vulkan", "vulkan"))
}

/// The arm of [`with_backend!`](crate::with_backend) that cannot be reached.
#[doc(hidden)]
#[macro_export]
macro_rules! with_vulkan {
    ($found:ident, $B:ident, $handle:ident => $body:expr) => {
        match *$found {}
    };
}
