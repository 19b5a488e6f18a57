//! Train, run and search with Kiln models on CPU, Vulkan and CUDA.
//!
//! The binary is thin: [`cli`] holds one file a command. Everything else is a library, so that
//! tests and other programs can use it: [`device`] chooses the hardware, [`model`] finds and
//! loads a model from a folder or the Hub, as an [`embedding::TextModel`] that hides its backend,
//! [`text`] and [`vectors`] read and write files.

pub mod analyze;
pub mod bench;
pub mod cli;
pub mod compress;
pub mod data;
pub mod device;
pub mod embedding;
pub mod eval;
pub mod http;
pub mod hub;
pub mod interrupt;
pub mod mine;
pub mod model;
pub mod output;
pub mod quickstart;
pub mod recipe;
pub mod report;
pub mod search;
pub mod serve;
pub mod terminal;
pub mod text;
pub mod train;
pub mod vectors;
