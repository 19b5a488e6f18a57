//! CUDA devices, by NVIDIA's driver.

mod nccl;

use std::any::{Any, TypeId};
use std::path::{Path, PathBuf};
use std::sync::Once;

use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig as _};
use cudarc::driver::result;
use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
use kiln_hosts::Ended;

use super::{Collective, FoundDevice, Joining, Missing, Offer, too_old};

/// The CUDA backend.
pub type Backend = burn::backend::Cuda;

/// The number of a CUDA device.
pub type Handle = usize;

/// The CUDA devices, or why there is none.
#[allow(unsafe_code)]
pub(super) fn devices() -> Result<Vec<FoundDevice<Handle>>, Missing> {
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
    let (mut of_driver, mut major, mut minor) = (0, 0, 0);
    // SAFETY: both libraries are there, and write these numbers.
    let asked = unsafe {
        (
            cudarc::driver::sys::cuDriverGetVersion(&mut of_driver).result(),
            cudarc::nvrtc::sys::nvrtcVersion(&mut major, &mut minor).result(),
        )
    };
    if let (Ok(()), Ok(())) = asked
        && let Some(reason) = too_old(of_driver, 1000 * major + 10 * minor)
    {
        return missing(&reason);
    }
    let failed = |error| Missing::OnMachine(format!("the NVIDIA driver answers {error:?}"));
    let headers =
        cubecl::cuda::install::cuda_path().map(|path| path.join("include/cuda_runtime.h"));
    if !headers.as_deref().is_some_and(Path::exists) {
        return missing(
            "CUDA's headers are not there, which kernels are compiled with: set CUDA_PATH to the folder whose include \
             has cuda_runtime.h (Debian's nvidia-cuda-dev has them, and PyPI's nvidia-cuda-runtime)",
        );
    }
    result::init().map_err(failed)?;
    let count = result::device::get_count().map_err(failed)?;
    if count == 0 {
        return missing("the NVIDIA driver lists no device");
    }
    (0..count)
        .map(|index| {
            let name = result::device::get(index).and_then(result::device::get_name);
            Ok(FoundDevice { name: name.map_err(failed)?, software: false, handle: index as usize })
        })
        .collect()
}

/// Burn's handle of a device.
pub fn burn_device(handle: Handle) -> burn::tensor::Device<Backend> {
    static ONCE: Once = Once::new();
    ONCE.call_once(keep_kernels);
    burn::backend::cuda::CudaDevice::new(handle)
}

/// What a device of the backend `B` brings to sums among several, or why it cannot; none where `B` is not CUDA's.
pub fn offer<B: burn::tensor::backend::Backend>(
    device: &B::Device,
) -> Option<Result<Offer, String>> {
    Some(nccl::offer(own::<B>(device)?))
}

/// An identifier for devices to meet by.
///
/// # Errors
/// What the library says.
pub fn meeting() -> Result<Vec<u8>, String> {
    nccl::unique_id()
}

/// Meets the others.
///
/// # Errors
/// What the library says, or that who joins has given up.
pub fn collective<B: burn::tensor::backend::Backend>(
    device: &B::Device,
    joining: &Joining<'_>,
) -> Result<Box<dyn Collective<B>>, Ended> {
    let none = || Ended::Here("it is no CUDA device".into());
    let index = own::<B>(device).ok_or_else(none)?;
    let joined: Box<dyn Collective<Backend>> = Box::new(nccl::Nccl::join(index, joining)?);
    // `B` is this backend: its devices are.
    let joined: Box<dyn Any> = Box::new(joined);
    let joined = joined.downcast::<Box<dyn Collective<B>>>();
    joined.map(|joined| *joined).map_err(|_| none())
}

/// The number of a device, if the backend `B` is this one.
fn own<B: burn::tensor::backend::Backend>(device: &B::Device) -> Option<usize> {
    if TypeId::of::<B>() != TypeId::of::<Backend>() {
        return None;
    }
    let device: &dyn Any = device;
    device.downcast_ref::<burn::tensor::Device<Backend>>().map(|device| device.index)
}

/// Has cubecl keep compiled kernels, and which it found the fastest, in the user's cache folder: a training run
/// compiles hundreds, at a third of a second each. What the user's `cubecl.toml` says goes first.
fn keep_kernels() {
    if CubeClRuntimeConfig::storage().lock().is_some() {
        return;
    }
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    let Some(folder) = dirs::cache_dir().map(|cache| cache.join("kiln").join("kernels")) else {
        return;
    };
    if matches!(config.autotune.cache, CacheConfig::Target) && is_writable(&folder) {
        config.autotune.cache = CacheConfig::File(folder.clone());
    }
    if config.compilation.cache.is_none()
        && let Some(target) = compiled_for()
    {
        let folder = folder.join(target);
        // cubecl panics where it cannot write.
        if is_writable(&folder) {
            config.compilation.cache = Some(CacheConfig::File(folder));
        }
    }
    CubeClRuntimeConfig::set(config);
}

/// What compiled kernels are for: the devices' architecture, the compiler's version and the kernels' sources, none of
/// which cubecl knows them by. `None` where devices of several architectures would share them.
#[allow(unsafe_code)]
fn compiled_for() -> Option<PathBuf> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is there (`devices`), and writes two numbers.
    unsafe { cudarc::nvrtc::sys::nvrtcVersion(&mut major, &mut minor) }.result().ok()?;
    let architectures = (0..result::device::get_count().ok()?).map(|index| {
        let device = result::device::get(index).ok()?;
        // SAFETY: the device is the driver's own.
        let number = |what| unsafe { result::device::get_attribute(device, what) }.ok();
        Some((
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ))
    });
    let architectures: Vec<(i32, i32)> = architectures.collect::<Option<_>>()?;
    let (first, rest) = architectures.split_first()?;
    if rest.iter().any(|one| one != first) {
        return None;
    }
    let sources = kiln_embed::kernels::gpu_sources();
    Some(format!("sm_{}{}-nvrtc-{major}.{minor}-{sources:016x}", first.0, first.1).into())
}

/// Whether files can be made in a folder, which is made first.
fn is_writable(folder: &Path) -> bool {
    std::fs::create_dir_all(folder).is_ok() && tempfile::tempfile_in(folder).is_ok()
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
