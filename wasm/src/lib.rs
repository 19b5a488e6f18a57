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

use std::task::{Context, Poll, Waker};

use kiln_embed::Error;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{future_to_promise, js_sys::RangeError};

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

/// What a future gives, or why it fails, at once where nothing is waited for, as on the CPU; else a promise of it. What
/// breaks off in the midst of it is thrown where this is called: a promise would stay open for ever.
pub(crate) fn now_or_promise<T, E>(
    future: impl Future<Output = Result<T, E>> + 'static,
) -> Result<JsValue, JsValue>
where
    T: Into<JsValue> + 'static,
    E: Into<JsValue> + 'static,
{
    let mut future = Box::pin(async move {
        match future.await {
            Ok(value) => Ok(value.into()),
            Err(error) => Err(error.into()),
        }
    });
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        // It is polled again at once, by a task that can be woken.
        Poll::Pending => Ok(future_to_promise(future).into()),
    }
}

/// A failure of what was asked for: the files are not to blame, and need not be fetched once more.
pub(crate) fn wrongly_asked(error: &Error) -> JsValue {
    RangeError::new(&error.to_string()).into()
}
