//! Vulkan adapters, real and emulated.

use burn::backend::wgpu::WgpuDevice;
use wgpu::{Backends, DeviceType, Instance, InstanceDescriptor};

use super::{FoundDevice, Missing};

/// The Vulkan backend.
pub type Backend = burn::backend::Wgpu;

/// Burn's handle of an adapter.
pub type Handle = WgpuDevice;

/// All adapters, real GPUs first, or why there is none.
pub(super) fn devices() -> Result<Vec<FoundDevice<Handle>>, Missing> {
    let mut descriptor = InstanceDescriptor::new_without_display_handle();
    descriptor.backends = Backends::VULKAN;
    let result = pollster::block_on(Instance::new(descriptor).enumerate_adapters(Backends::VULKAN));
    // Burn numbers adapters within their type.
    let mut seen = [0; 3];
    let mut adapters: Vec<FoundDevice<Handle>> = result
        .iter()
        .filter_map(|adapter| {
            let info = adapter.get_info();
            let mut next = |kind: usize| {
                seen[kind] += 1;
                seen[kind] - 1
            };
            let handle = match info.device_type {
                DeviceType::DiscreteGpu => WgpuDevice::DiscreteGpu(next(0)),
                DeviceType::IntegratedGpu => WgpuDevice::IntegratedGpu(next(1)),
                DeviceType::VirtualGpu => WgpuDevice::VirtualGpu(next(2)),
                DeviceType::Cpu => WgpuDevice::Cpu,
                DeviceType::Other => return None,
            };
            let software = info.device_type == DeviceType::Cpu;
            Some(FoundDevice { name: info.name, software, handle })
        })
        .collect();
    adapters.sort_by_key(|adapter| adapter.software);
    if adapters.is_empty() {
        return Err(Missing::OnMachine(
            "no Vulkan driver is installed, or it lists no adapter".into(),
        ));
    }
    Ok(adapters)
}

/// The arm of [`with_backend!`](crate::with_backend) for Vulkan.
#[doc(hidden)]
#[macro_export]
macro_rules! with_vulkan {
    ($found:ident, $B:ident, $handle:ident => $body:expr) => {{
        type $B = $crate::device::vulkan::Backend;
        let $handle: burn::tensor::Device<$B> = $found.clone();
        $body
    }};
}
