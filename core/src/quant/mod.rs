//! Few-bit weights: what they are ([`Scheme`], [`Quantized`]), and how they lie where they are
//! multiplied without becoming floating-point numbers first: on the CPU ([`PackedMatrix`]) and on
//! other devices ([`PackedLayout`]; the layers are `model::{PackedWeight, PackedTable}`).

mod activations;
mod on_device;
mod packed;
mod product;
mod quantized;
mod scheme;

pub use on_device::PackedLayout;
pub(crate) use on_device::PackedWords;
pub use packed::PackedMatrix;
pub use product::packed_instructions;
pub use quantized::{Quantized, block_scale};
pub use scheme::{Number, Scheme, WeightPrecision};
