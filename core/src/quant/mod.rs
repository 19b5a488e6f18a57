//! Few-bit weights: what they are ([`Scheme`], [`Quantized`]), and how they multiply on the CPU
//! without being made into floating-point numbers ([`PackedMatrix`]).

mod packed;
mod product;
mod quantized;
mod scheme;

pub use packed::PackedMatrix;
pub use quantized::{Quantized, block_scale};
pub use scheme::{Number, Scheme};
