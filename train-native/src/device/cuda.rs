//! CUDA devices, by NVIDIA's driver.

use cudarc::driver::result;

use super::{Found, Missing};

/// The CUDA backend.
pub type Backend = burn::backend::Cuda;

/// The number of a CUDA device.
pub type Handle = usize;

/// The CUDA devices, or why there is none.
#[allow(unsafe_code)]
pub(super) fn devices() -> Result<Vec<Found<Handle>>, Missing> {
    let missing = |reason: &str| Err(Missing::OnMachine(reason.into()));
    // SAFETY: these two functions only try to open a shared library by its name. The
    // libraries named are NVIDIA's driver and run-time compiler, whose initialisers have
    // no precondition; Burn would open the same ones at its first use of CUDA.
    let (driver, compiler) = unsafe {
        (cudarc::driver::sys::is_culib_present(), cudarc::nvrtc::sys::is_culib_present())
    };
    if !driver {
        return missing("the NVIDIA driver (libcuda) is not installed");
    }
    if !compiler {
        return missing("CUDA's run-time compiler (libnvrtc) is not installed");
    }
    let failed = |error| Missing::OnMachine(format!("the NVIDIA driver answers {error:?}"));
    result::init().map_err(failed)?;
    let count = result::device::get_count().map_err(failed)?;
    if count == 0 {
        return missing("the NVIDIA driver lists no device");
    }
    (0..count)
        .map(|index| {
            let name = result::device::get(index).and_then(result::device::get_name);
            Ok(Found { name: name.map_err(failed)?, software: false, handle: index as usize })
        })
        .collect()
}

/// Burn's handle of a device.
pub fn burn_device(handle: Handle) -> burn::tensor::Device<Backend> {
    burn::backend::cuda::CudaDevice::new(handle)
}

/// The arm of [`with_backend!`](crate::with_backend) for CUDA.
#[doc(hidden)]
#[macro_export]
macro_rules! with_cuda {
    ($found:ident, $B:ident, $handle:ident => $body:expr) => {{
        type $B = $crate::device::cuda::Backend;
        let $handle: burn::tensor::Device<$B> = $crate::device::cuda::burn_device(*$found);
        $body
    }};
}
