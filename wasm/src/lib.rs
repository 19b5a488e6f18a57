//! Kiln in the page: the very models that are trained natively, on the CPU or on WebGPU.
//!
//! What is exported here is called from the package's own JavaScript (`wasm/js`), which puts it
//! behind a worker; its types are the ones that users see.

mod device;
mod index;
mod model;
mod reranker;
#[cfg(feature = "threads")]
mod threads;
#[cfg(feature = "train")]
mod trainer;

pub use index::VectorIndex;
pub use model::{Job, Model, ModelFiles, TextLens};
pub use reranker::PairScorer;
#[cfg(feature = "train")]
pub use trainer::Trainer;

use wasm_bindgen::prelude::*;

/// Puts the message of a panic, which is a bug, on the console.
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|panic| error(&format!("kiln-embed: {panic}"))));
}

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console)]
    fn error(message: &str);
}
