//! Few-bit weights: what they are ([`Scheme`], [`Quantized`]), and how they lie where they are
//! multiplied without becoming floating-point numbers first: on the CPU ([`PackedMatrix`]) and on
//! other devices ([`PackedLayout`]; the layers are `model::{PackedWeight, PackedTable}`). And weights
//! in bf16, which the CPU multiplies as they are.

mod activations;
#[cfg(all(feature = "flex", any(not(target_arch = "wasm32"), feature = "autodiff")))]
pub(crate) mod bf16;
mod host_matrix;
mod on_device;
mod packed;
pub(crate) mod product;
mod quantized;
mod scheme;
#[cfg(target_arch = "x86_64")]
mod tiles;

#[cfg(all(feature = "flex", any(not(target_arch = "wasm32"), feature = "autodiff")))]
pub use bf16::{Bf16Matrix, bf16_instructions};
pub use host_matrix::HostMatrix;
pub use on_device::PackedLayout;
pub(crate) use on_device::PackedWords;
pub use packed::PackedMatrix;
pub use product::packed_instructions;
pub use quantized::{Quantized, block_scale};
pub use scheme::{Number, Scheme, WeightPrecision};
