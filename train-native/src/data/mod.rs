//! Training data: examples, how they are read, and how batches are drawn.

pub mod corpus;
mod example;
mod sampler;

pub use example::{Example, read_examples};
pub use sampler::{Batch, Sampler};
