//! Few-bit weights: what they are ([`Scheme`], [`Quantized`]), and how they lie where they multiply
//! without being made into floating-point numbers first: on the CPU ([`PackedMatrix`]) and on other
//! devices ([`PackedWeight`], [`PackedTable`]).

mod on_device;
mod packed;
mod product;
mod quantized;
mod scheme;

pub use on_device::{PackedLayout, PackedTable, PackedWeight};
pub use packed::PackedMatrix;
pub use product::packed_instructions;
pub use quantized::{Quantized, block_scale};
pub use scheme::{Number, Scheme, WeightPrecision};
