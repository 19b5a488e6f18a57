//! Train, run and search with Kiln models on CPU, Vulkan and CUDA.

pub mod device;
