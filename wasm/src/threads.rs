//! Threads that share this module's memory: workers that lend themselves to rayon's pool.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rayon::{ThreadBuilder, ThreadPoolBuilder};
use wasm_bindgen::prelude::*;

/// The pool's threads that no worker has taken yet.
static WAITING: Mutex<VecDeque<ThreadBuilder>> = Mutex::new(VecDeque::new());
static COMES: Condvar = Condvar::new();

fn waiting() -> MutexGuard<'static, VecDeque<ThreadBuilder>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This module and its memory, `[module, memory]`, with which a worker becomes able to [`lend`] itself.
#[wasm_bindgen]
pub fn shared() -> Vec<JsValue> {
    vec![wasm_bindgen::module(), wasm_bindgen::memory()]
}

/// Computes with so many threads from now on. As many workers have to call [`lend`], and have to be at
/// it already if they are workers of the one that calls this, which waits for them.
///
/// # Errors
/// When called twice.
#[wasm_bindgen(js_name = startThreads)]
pub fn start_threads(count: usize) -> Result<(), JsError> {
    let start = |thread| {
        waiting().push_back(thread);
        COMES.notify_one();
        Ok(())
    };
    Ok(ThreadPoolBuilder::new().num_threads(count).spawn_handler(start).build_global()?)
}

/// Works as one of the pool's threads, until the worker is ended.
#[wasm_bindgen]
pub fn lend() {
    let mut waiting = waiting();
    let thread = loop {
        match waiting.pop_front() {
            Some(thread) => break thread,
            None => waiting = COMES.wait(waiting).unwrap_or_else(PoisonError::into_inner),
        }
    };
    drop(waiting);
    thread.run();
}
