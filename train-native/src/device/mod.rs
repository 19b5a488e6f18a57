//! Which device runs a command. The only folder of this crate that names a Burn backend.
//!
//! A build has the CPU, and by its features `vulkan` and `cuda` the GPUs. Each of those is a file
//! here; a build without one has an empty one of the same shape in its place, so that nothing else
//! asks what was built. This crate's unit tests compute on the CPU, and are built for it alone.

#[cfg(all(feature = "cuda", not(test)))]
pub mod cuda;
#[cfg(any(not(feature = "cuda"), test))]
#[path = "no_cuda.rs"]
pub mod cuda;
#[cfg(all(feature = "vulkan", not(test)))]
pub mod vulkan;
#[cfg(any(not(feature = "vulkan"), test))]
#[path = "no_vulkan.rs"]
pub mod vulkan;

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use kiln_embed::quant::{bf16_instructions, packed_instructions};
use kiln_hosts::Ended;
use serde::{Deserialize, Serialize};
use sysinfo::{CpuRefreshKind, RefreshKind, System};

use crate::terminal::counted;

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
    Vulkan(vulkan::Handle),
    /// A CUDA device.
    Cuda(cuda::Handle),
}

/// A device of one kind. A build without GPUs finds none.
#[allow(dead_code)]
struct FoundDevice<H> {
    name: String,
    software: bool,
    handle: H,
}

/// Sums over devices that these make among themselves, rather than through their hosts' memory.
pub trait Collective<B: Backend>: fmt::Debug + Send {
    /// The sums of values `[n]`, f32 or bf16, over all devices, the same bits on each. `gives_up` is asked again and again
    /// while the others are waited for.
    ///
    /// # Errors
    /// What went wrong, or that it was given up; after either no other sum can be made.
    fn all_reduce(
        &self,
        values: Tensor<B, 1>,
        gives_up: &dyn Fn() -> bool,
    ) -> Result<Tensor<B, 1>, Ended>;
}

/// What a device brings to a [`Collective`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Version of the library that sums, which has to be the same for all.
    pub version: i32,
    /// Which piece of hardware it is, among all in the world.
    pub gpu: String,
}

/// How a device meets the others of a [`Collective`].
pub struct Joining<'a> {
    /// What device 0 made for all to meet by.
    pub id: &'a [u8],
    /// The device's number.
    pub rank: usize,
    /// How many devices there are.
    pub world: usize,
    /// Asked again and again while the others are waited for.
    pub gives_up: &'a dyn Fn() -> bool,
}

/// Why a kind of device cannot be used. Which of the two there is depends on the build.
#[derive(Debug)]
#[allow(dead_code)]
enum Missing {
    /// This build was made without it: what it is called, and the feature that brings it.
    InBuild(&'static str, &'static str),
    /// This machine lacks a driver or the hardware.
    OnMachine(String),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InBuild(name, feature) => write!(
                f,
                "this build has no {name}: build with --features {feature}, or install the package"
            ),
            Self::OnMachine(reason) => f.write_str(reason),
        }
    }
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
    result.add("cuda", cuda::devices());
    result.add("vulkan", vulkan::devices());
    result.devices.push(Listed { device: "cpu".into(), name: processor(), software: false });
    result
}

impl Inventory {
    fn add<H>(&mut self, kind: &str, devices: Result<Vec<FoundDevice<H>>, Missing>) {
        match devices {
            Ok(devices) => {
                self.devices.extend(devices.into_iter().enumerate().map(|(index, found)| Listed {
                    device: format!("{kind}:{index}"),
                    name: found.name,
                    software: found.software,
                }));
            }
            Err(missing) => self.absent.push((kind.into(), missing.to_string())),
        }
    }
}

/// The CPU: its name, family and model, threads and vector instructions. Virtual machines call processors of several
/// generations by one name.
pub fn processor() -> String {
    let kind = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
    let system = System::new_with_specifics(kind);
    let brand = system.cpus().first().map_or("", |cpu| cpu.brand().trim());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let parts = [
        brand.to_string(),
        family_and_model(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
        counted(threads, "thread", "threads"),
        simd().to_string(),
        format!(
            "int8 and int4 by {}, bf16 products by {}",
            packed_instructions(),
            bf16_instructions()
        ),
    ];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

/// What Linux says of an x86 processor's family and model; empty where it says neither.
fn family_and_model(cpuinfo: &str) -> String {
    let number = |key: &str| {
        let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
    };
    match (number("cpu family"), number("model")) {
        (Some(family), Some(model)) => format!("family {family} model {model}"),
        _ => String::new(),
    }
}

/// Why a driver refuses what a compiler makes, where that is of a later CUDA. Versions are as `cuDriverGetVersion` gives
/// them: 13010 is 13.1.
#[allow(dead_code)]
fn too_old(driver: i32, compiler: i32) -> Option<String> {
    let [of_driver, of_compiler] =
        [driver, compiler].map(|version| format!("{}.{}", version / 1000, version % 1000 / 10));
    // PTX is of version 8.5 in both 12.5 and 12.6.
    let least = if compiler == 12060 { 12050 } else { compiler };
    (driver < least).then(|| {
        format!(
            "the NVIDIA driver is for CUDA {of_driver} and refuses kernels of the run-time compiler (libnvrtc) of CUDA \
             {of_compiler}: update the driver, or put a libnvrtc of CUDA {of_driver} first in LD_LIBRARY_PATH"
        )
    })
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
    match choice {
        DeviceChoice::Cpu => Ok(Device::Cpu),
        DeviceChoice::Cuda(index) => {
            Ok(Device::Cuda(numbered("CUDA device", index, cuda::devices())?))
        }
        DeviceChoice::Vulkan(index) => {
            Ok(Device::Vulkan(numbered("Vulkan adapter", index, vulkan::devices())?))
        }
        DeviceChoice::Auto => {
            if cuda::devices().is_ok() {
                return open(DeviceChoice::Cuda(0));
            }
            let adapters =
                if may_have_gpu() { vulkan::devices().unwrap_or_default() } else { Vec::new() };
            match adapters.into_iter().find(|adapter| !adapter.software) {
                Some(adapter) => Ok(Device::Vulkan(adapter.handle)),
                None => Ok(Device::Cpu),
            }
        }
    }
}

/// Whether a choice is of a GPU, or falls on one; one that is named need not be there.
pub fn is_gpu(choice: DeviceChoice) -> bool {
    match choice {
        DeviceChoice::Cpu => false,
        DeviceChoice::Vulkan(_) | DeviceChoice::Cuda(_) => true,
        DeviceChoice::Auto => open(choice).is_ok_and(|device| !matches!(device, Device::Cpu)),
    }
}

/// Finds the device of one of several processes of this host: where the choice is left open, the GPU of the
/// process's number, or the one that its launcher lets it see.
///
/// # Errors
/// As [`open`].
pub fn open_local(choice: DeviceChoice, local_rank: usize) -> Result<Device> {
    match (choice, cuda::devices()) {
        (DeviceChoice::Auto, Ok(found)) if !found.is_empty() => {
            open(DeviceChoice::Cuda(local_rank % found.len()))
        }
        _ => open(choice),
    }
}

/// Device number `index` of those that were found.
fn numbered<H>(kind: &str, index: usize, found: Result<Vec<FoundDevice<H>>, Missing>) -> Result<H> {
    let instead = "run `kiln devices` to see what is there, or use --device cpu";
    match found {
        Ok(mut found) if index < found.len() => Ok(found.swap_remove(index).handle),
        Ok(found) => bail!("no {kind} {index}: there are {}; {instead}", found.len()),
        Err(missing @ Missing::InBuild(..)) => bail!("{missing}"),
        Err(missing) => bail!("no {kind}: {missing}; {instead}"),
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
/// `with_backend!(&device, B, handle => run::<B>(handle))`. The expression is compiled for each
/// backend of the build, so that it belongs where there is no other way: the loader of models,
/// training, compression and analysis.
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
                $crate::with_vulkan!(handle, $B, $handle => $body)
            }
            $crate::device::Device::Cuda(handle) => {
                $crate::with_cuda!(handle, $B, $handle => $body)
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
            let handle: Box<dyn Any> = with_backend!(device, D, handle => Box::new(handle));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_says_what_it_lacks() {
        let missing = || Missing::InBuild("CUDA", "cuda");
        let said = "this build has no CUDA: build with --features cuda, or install the package";
        let error = numbered::<()>("CUDA device", 0, Err(missing())).unwrap_err();
        assert_eq!(error.to_string(), said);
        let mut inventory = Inventory::default();
        inventory.add::<()>("cuda", Err(missing()));
        assert_eq!(inventory.absent, [("cuda".to_string(), said.to_string())]);
    }

    #[test]
    fn a_driver_takes_kernels_of_its_own_cuda_and_of_earlier_ones() {
        assert_eq!(too_old(13000, 13000), None);
        assert_eq!(too_old(13010, 12090), None);
        assert_eq!(too_old(12050, 12060), None);
        let said = too_old(12080, 13000).unwrap();
        assert!(said.contains("is for CUDA 12.8 ") && said.contains("of CUDA 13.0: "), "{said}");
        assert!(too_old(13000, 13010).unwrap().contains("of CUDA 13.1: "));
    }

    #[test]
    fn processors_of_one_name_are_told_apart() {
        let said = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nstepping\t: 1\n\nprocessor\t: 1\n";
        assert_eq!(family_and_model(said), "family 25 model 17");
        assert_eq!(family_and_model("processor : 0\nCPU part : 0xd0c\n"), "");
    }

    #[test]
    fn a_number_beyond_the_last_says_how_many_there_are() {
        let found = || Ok(vec![FoundDevice { name: "one".into(), software: false, handle: () }]);
        assert!(numbered("CUDA device", 0, found()).is_ok());
        let error = numbered("CUDA device", 1, found()).unwrap_err().to_string();
        assert!(error.contains("no CUDA device 1: there are 1"), "{error}");
        let missing = Missing::OnMachine("no driver".into());
        let error = numbered::<()>("CUDA device", 0, Err(missing)).unwrap_err().to_string();
        assert!(error.contains("no CUDA device: no driver; run `kiln devices`"), "{error}");
    }
}
