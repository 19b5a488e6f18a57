//! Futures as JavaScript waits for them: what breaks off is told of, after a wait too.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::js_sys::Function;

/// What is computed, in JavaScript's values.
type Computed = Pin<Box<dyn Future<Output = Result<JsValue, JsValue>>>>;

/// What a future gives, or why it fails, at once where nothing is waited for, as on the CPU; else a promise of it.
///
/// A trap is thrown where this is called, or rejects the promise. Hence a future is polled by nothing but the callbacks
/// of promises: JavaScript rejects what `then` gave where its callback throws. `future_to_promise` polls in a microtask
/// of its own, from which a trap reaches nobody, and its promise stays open for ever.
pub(crate) fn now_or_promise<T, E>(
    future: impl Future<Output = Result<T, E>> + 'static,
) -> Result<JsValue, JsValue>
where
    T: Into<JsValue> + 'static,
    E: Into<JsValue> + 'static,
{
    polled(Box::pin(async move {
        match future.await {
            Ok(value) => Ok(value.into()),
            Err(error) => Err(error.into()),
        }
    }))
}

/// What is computed, or a promise that goes on with it once it is woken.
fn polled(mut computed: Computed) -> Result<JsValue, JsValue> {
    let (woken, waker) = wait();
    match computed.as_mut().poll(&mut Context::from_waker(&waker)) {
        Poll::Ready(result) => result,
        Poll::Pending => {
            let next = Closure::once_into_js(move |_: JsValue| polled(computed));
            Ok(woken.then(&next).into())
        }
    }
}

#[wasm_bindgen]
extern "C" {
    /// JavaScript's own; `then` here takes a callback that may give another promise, and throw any value.
    type Promise;

    #[wasm_bindgen(constructor)]
    fn new(executor: &mut dyn FnMut(Function)) -> Promise;

    #[wasm_bindgen(method)]
    fn then(this: &Promise, next: &JsValue) -> Promise;
}

thread_local! {
    /// What resolves the promise of each wait that goes on, by its number.
    static WAITS: RefCell<BTreeMap<u64, Function>> = const { RefCell::new(BTreeMap::new()) };
    /// The number of the last wait.
    static LAST: Cell<u64> = const { Cell::new(0) };
}

/// A promise that is resolved by a waker, and that waker.
fn wait() -> (Promise, Waker) {
    let number = LAST.get() + 1;
    LAST.set(number);
    let promise = Promise::new(&mut |resolve: Function| {
        WAITS.with_borrow_mut(|waits| waits.insert(number, resolve));
    });
    (promise, Waker::from(Arc::new(Wakes(number))))
}

/// Wakes the wait of a number, which may go to other threads, where JavaScript's values may not.
struct Wakes(u64);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        let resolve = WAITS.with_borrow_mut(|waits| waits.remove(&self.0));
        if let Some(resolve) = resolve {
            let _ = resolve.call0(&JsValue::UNDEFINED);
        }
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        WAITS.with_borrow_mut(|waits| waits.remove(&self.0));
    }
}
