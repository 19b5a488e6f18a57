//! Packed weights: what they are, and how they multiply on the CPU.

mod packed;
mod product;

pub use packed::{Bits, PackedMatrix};
