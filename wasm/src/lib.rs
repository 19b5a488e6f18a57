//! Kiln in the page: the very models that are trained natively, on the CPU or on WebGPU.
//!
//! What is exported here is called from the package's own JavaScript (`wasm/js`), which puts it
//! behind a worker; its types are the ones that users see.

mod device;
mod index;
mod model;
mod promise;
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

use kiln_embed::Error;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::js_sys::RangeError;

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

/// A failure of what was asked for: the files are not to blame, and need not be fetched once more.
pub(crate) fn wrongly_asked(error: &Error) -> JsValue {
    RangeError::new(&error.to_string()).into()
}
