//! Which device runs a command. The only file of this crate that names a Burn backend.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use kiln_embed::quant::packed_instructions;
use sysinfo::{CpuRefreshKind, RefreshKind, System};

/// What `--device` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// CUDA if it works, else a real Vulkan GPU, else the CPU.
    #[default]
    Auto,
    /// The CPU (Burn's Flex backend).
    Cpu,
    /// Vulkan adapter number n of `kiln devices`.
    Vulkan(usize),
    /// CUDA device number n.
    Cuda(usize),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, index) = match text.split_once(':') {
            Some((kind, index)) => {
                (kind, index.parse().map_err(|_| format!("{index:?} is not a device number"))?)
            }
            None => (text, 0),
        };
        match kind {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "vulkan" => Ok(Self::Vulkan(index)),
            "cuda" => Ok(Self::Cuda(index)),
            _ => Err(format!("{text:?} is none of auto, cpu, vulkan[:n], cuda[:n]")),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => write!(f, "auto"),
            Self::Cpu => write!(f, "cpu"),
            Self::Vulkan(index) => write!(f, "vulkan:{index}"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// A device that was found to be there.
#[derive(Debug, Clone, PartialEq)]
pub enum Device {
    /// The CPU.
    Cpu,
    /// A Vulkan adapter.
    Vulkan(burn::backend::wgpu::WgpuDevice),
    /// A CUDA device by number.
    Cuda(usize),
}

/// One line of `kiln devices`.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Listed {
    /// What to pass to `--device`.
    pub device: String,
    /// Name of the hardware.
    pub name: String,
    /// Whether it is emulated on the CPU.
    pub software: bool,
}

/// What is there, and why the rest is not.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct Inventory {
    /// Usable devices, fastest kind first.
    pub devices: Vec<Listed>,
    /// `(kind, reason)` of what cannot be used.
    pub absent: Vec<(String, String)>,
}

/// Looks for every device.
pub fn inventory() -> Inventory {
    let mut result = Inventory::default();
    match cuda::devices() {
        Ok(names) => result.devices.extend(names.into_iter().enumerate().map(|(index, name)| {
            Listed { device: format!("cuda:{index}"), name, software: false }
        })),
        Err(reason) => result.absent.push(("cuda".into(), reason)),
    }
    match vulkan::adapters() {
        Ok(adapters) => {
            result.devices.extend(adapters.into_iter().enumerate().map(|(index, adapter)| Listed {
                device: format!("vulkan:{index}"),
                name: adapter.name,
                software: adapter.software,
            }))
        }
        Err(reason) => result.absent.push(("vulkan".into(), reason)),
    }
    result.devices.push(Listed { device: "cpu".into(), name: processor(), software: false });
    result
}

/// The CPU: its name, threads and vector instructions.
pub fn processor() -> String {
    let kind = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
    let system = System::new_with_specifics(kind);
    let brand = system.cpus().first().map_or("", |cpu| cpu.brand().trim());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let parts = [
        brand.to_string(),
        format!("{threads} threads"),
        simd().to_string(),
        format!("int8 and int4 by {}", packed_instructions()),
    ];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

/// Whether the system shows a graphics device at all, so that `auto` need not start every Vulkan
/// driver only to find software ones.
fn may_have_gpu() -> bool {
    !cfg!(target_os = "linux")
        || ["/dev/dri/renderD128", "/dev/nvidiactl", "/dev/dxg", "/dev/kgsl-3d0", "/dev/mali0"]
            .iter()
            .any(|device| std::path::Path::new(device).exists())
}

/// The widest vector instructions that the CPU backend will use.
fn simd() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            return "AVX-512";
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            return "AVX2";
        }
    }
    if cfg!(target_arch = "aarch64") { "NEON" } else { "baseline SIMD" }
}

/// Finds the device that a choice names.
///
/// # Errors
/// It is not there; the error says why and what is.
pub fn open(choice: DeviceChoice) -> Result<Device> {
    let instead = "run `kiln devices` to see what is there, or use --device cpu";
    match choice {
        DeviceChoice::Cpu => Ok(Device::Cpu),
        DeviceChoice::Cuda(index) => match cuda::devices() {
            Ok(names) if index < names.len() => Ok(Device::Cuda(index)),
            Ok(names) => {
                bail!("no CUDA device {index}: the driver lists {}; {instead}", names.len())
            }
            Err(reason) => bail!("no CUDA device: {reason}; {instead}"),
        },
        DeviceChoice::Vulkan(index) => match vulkan::adapters() {
            Ok(mut adapters) if index < adapters.len() => {
                Ok(Device::Vulkan(adapters.swap_remove(index).device))
            }
            Ok(adapters) => {
                bail!("no Vulkan adapter {index}: there are {}; {instead}", adapters.len())
            }
            Err(reason) => bail!("no Vulkan adapter: {reason}; {instead}"),
        },
        DeviceChoice::Auto => {
            if cuda::devices().is_ok() {
                return open(DeviceChoice::Cuda(0));
            }
            let adapters =
                if may_have_gpu() { vulkan::adapters().unwrap_or_default() } else { Vec::new() };
            match adapters.into_iter().find(|adapter| !adapter.software) {
                Some(adapter) => Ok(Device::Vulkan(adapter.device)),
                None => Ok(Device::Cpu),
            }
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => write!(f, "cpu"),
            Device::Vulkan(device) => write!(f, "vulkan ({device:?})"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// Runs an expression with the backend type and the device handle of a [`Device`]:
/// `with_backend!(device, B, handle => run::<B>(handle))`.
#[macro_export]
macro_rules! with_backend {
    ($device:expr, $B:ident, $handle:ident => $body:expr) => {
        match $device {
            $crate::device::Device::Cpu => {
                type $B = $crate::device::Cpu;
                let $handle: burn::tensor::Device<$B> = Default::default();
                $body
            }
            $crate::device::Device::Vulkan(handle) => {
                type $B = $crate::device::Vulkan;
                let $handle: burn::tensor::Device<$B> = handle.clone();
                $body
            }
            $crate::device::Device::Cuda(index) => {
                type $B = $crate::device::Cuda;
                let $handle: burn::tensor::Device<$B> = $crate::device::cuda_handle(*index);
                $body
            }
        }
    };
}

/// The handles of several devices of one backend, the first of which the caller has.
///
/// # Errors
/// Devices of different kinds.
pub fn handles<B: burn::tensor::backend::Backend>(devices: &[Device]) -> Result<Vec<B::Device>> {
    use std::any::Any;
    devices
        .iter()
        .map(|device| {
            let handle: Box<dyn Any> = match device {
                Device::Cpu => Box::new(burn::tensor::Device::<Cpu>::default()),
                Device::Vulkan(handle) => Box::new(handle.clone()),
                Device::Cuda(index) => Box::new(cuda_handle(*index)),
            };
            match handle.downcast::<B::Device>() {
                Ok(handle) => Ok(*handle),
                Err(_) => bail!(
                    "{device} is of another kind than the first device; name devices of one kind"
                ),
            }
        })
        .collect()
}

/// The CPU backend.
pub type Cpu = burn::backend::Flex;
/// The Vulkan backend.
pub type Vulkan = burn::backend::Wgpu;
/// The CUDA backend.
pub type Cuda = burn::backend::Cuda;

/// Burn's handle of a CUDA device.
pub fn cuda_handle(index: usize) -> burn::backend::cuda::CudaDevice {
    burn::backend::cuda::CudaDevice::new(index)
}
mod cuda {
    use cudarc::driver::result;

    /// Names of the CUDA devices, or why there is none.
    #[allow(unsafe_code)]
    pub(super) fn devices() -> Result<Vec<String>, String> {
        // SAFETY: these two functions only try to open a shared library by its name. The
        // libraries named are NVIDIA's driver and run-time compiler, whose initialisers have
        // no precondition; Burn would open the same ones at its first use of CUDA.
        let (driver, compiler) = unsafe {
            (cudarc::driver::sys::is_culib_present(), cudarc::nvrtc::sys::is_culib_present())
        };
        if !driver {
            return Err("the NVIDIA driver (libcuda) is not installed".into());
        }
        if !compiler {
            return Err("CUDA's run-time compiler (libnvrtc) is not installed".into());
        }
        let failed = |error| format!("the NVIDIA driver answers {error:?}");
        result::init().map_err(failed)?;
        let count = result::device::get_count().map_err(failed)?;
        if count == 0 {
            return Err("the NVIDIA driver lists no device".into());
        }
        (0..count)
            .map(|index| {
                result::device::get(index).and_then(result::device::get_name).map_err(failed)
            })
            .collect()
    }
}
mod vulkan {
    use burn::backend::wgpu::WgpuDevice;
    use wgpu::{Backends, DeviceType, Instance, InstanceDescriptor};

    /// One Vulkan adapter.
    pub(super) struct Adapter {
        pub(super) name: String,
        pub(super) software: bool,
        pub(super) device: WgpuDevice,
    }

    /// All adapters, real GPUs first, or why there is none.
    pub(super) fn adapters() -> Result<Vec<Adapter>, String> {
        let mut descriptor = InstanceDescriptor::new_without_display_handle();
        descriptor.backends = Backends::VULKAN;
        let result =
            pollster::block_on(Instance::new(descriptor).enumerate_adapters(Backends::VULKAN));
        // Burn numbers adapters within their type.
        let mut seen = [0; 3];
        let mut adapters: Vec<Adapter> = result
            .iter()
            .filter_map(|adapter| {
                let info = adapter.get_info();
                let mut next = |kind: usize| {
                    seen[kind] += 1;
                    seen[kind] - 1
                };
                let device = match info.device_type {
                    DeviceType::DiscreteGpu => WgpuDevice::DiscreteGpu(next(0)),
                    DeviceType::IntegratedGpu => WgpuDevice::IntegratedGpu(next(1)),
                    DeviceType::VirtualGpu => WgpuDevice::VirtualGpu(next(2)),
                    DeviceType::Cpu => WgpuDevice::Cpu,
                    DeviceType::Other => return None,
                };
                let software = info.device_type == DeviceType::Cpu;
                Some(Adapter { name: info.name, software, device })
            })
            .collect();
        adapters.sort_by_key(|adapter| adapter.software);
        if adapters.is_empty() {
            return Err("no Vulkan driver is installed, or it lists no adapter".into());
        }
        Ok(adapters)
    }
}
