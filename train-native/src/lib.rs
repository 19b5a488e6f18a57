//! Train, run and search with Kiln models on CPU, Vulkan and CUDA.
//!
//! The binary is thin: [`cli`] holds one file a command. Everything else is a library, so that
//! tests and other programs can use it: [`device`] chooses the hardware, [`model`] finds and
//! loads a model from a folder or the Hub, as an [`embedding::TextModel`] that hides its backend,
//! [`text`] and [`vectors`] read and write files.

pub mod adapt;
pub mod analyze;
pub mod bench;
pub mod cli;
pub mod compress;
pub mod device;
pub mod embedding;
pub mod eval;
#[cfg(feature = "hnsw")]
pub mod hnsw;
pub mod http;
pub mod hub;
pub mod mine;
pub mod model;
pub mod output;
pub mod quickstart;
pub mod refine;
pub mod reranking;
pub mod search;
pub mod serve;
pub mod shards;
pub mod train;

// What needs no backend is in crates of its own, so that a change there is compiled in seconds.
pub use kiln_data::{data, recipe, text, vectors};
pub use kiln_report as report;
pub use kiln_terminal::{interrupt, terminal};
