//! The package's `Trainer`, what it is given and what it gives.

use js_sys::{Array, Object, Reflect, Uint8Array};
use serde::{Deserialize, Serialize};
use wasm_bindgen::prelude::*;
use web_sys::AbortSignal;

use super::{Result, from_js, set, to_js};

#[wasm_bindgen]
extern "C" {
    /// What `Embedder.trainer` gives.
    pub(super) type JsTrainer;
    #[wasm_bindgen(method, catch)]
    async fn fit(this: &JsTrainer, options: &JsValue) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch)]
    async fn resume(
        this: &JsTrainer,
        checkpoint: &str,
        options: &JsValue,
    ) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method)]
    fn dispose(this: &JsTrainer);
}

/// What a model was taught: an adapter's two files, on the JavaScript side, as `[name, bytes]`.
#[derive(Clone)]
pub(crate) struct Adapter(pub(super) Array);

impl Adapter {
    pub(crate) fn new(files: &[(String, Vec<u8>)]) -> Self {
        let pair = |(name, bytes): &(String, Vec<u8>)| {
            Array::of2(&name.into(), &Uint8Array::from(bytes.as_slice()))
        };
        Self(files.iter().map(pair).collect())
    }

    /// Whether it changes vectors, and not the model: then an index can follow it.
    pub(crate) fn is_of_vectors(&self) -> bool {
        let is_lora =
            |pair: JsValue| pair.unchecked_into::<Array>().get(0) == "adapter_config.json";
        !self.0.iter().any(is_lora)
    }

    pub(crate) fn files(&self) -> Vec<(String, Vec<u8>)> {
        let read = |pair: JsValue| {
            let pair: Array = pair.unchecked_into();
            let bytes: Uint8Array = pair.get(1).unchecked_into();
            (pair.get(0).as_string().unwrap_or_default(), bytes.to_vec())
        };
        self.0.iter().map(read).collect()
    }
}

/// What a model is taught.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Lessons {
    /// Queries with texts that answer them.
    pub(crate) pairs: Vec<(String, String)>,
    /// And with texts that do not.
    pub(crate) negatives: Vec<(String, String)>,
    /// Texts that answers are to be told apart from.
    pub(crate) others: Vec<String>,
}

/// How long a model is taught.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Length {
    Seconds(u32),
    /// The same everywhere, however fast the machine is.
    Steps(u32),
    /// As kiln-embed does where it is told nothing: longer where the words are new to the model.
    Usual,
}

/// How far teaching is.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FitProgress {
    pub(crate) step: usize,
    /// Within a time not known before the first.
    pub(crate) steps: Option<usize>,
    pub(crate) loss: Option<f64>,
    pub(crate) seconds_left: Option<f64>,
}

/// How well questions that were held back are answered.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(crate) struct Score {
    pub(crate) mrr: f64,
}

/// What became of lessons.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Taught {
    pub(crate) kept: bool,
    pub(crate) taught: usize,
    pub(crate) held_back: usize,
    pub(crate) steps: usize,
    pub(crate) before: Option<Score>,
    pub(crate) after: Option<Score>,
    /// Whether the words were new to the model, so that it practised longer.
    pub(crate) new_words: bool,
    pub(crate) seconds: f64,
}

/// A model that is taught.
pub(crate) struct Trainer(pub(super) JsTrainer);

impl Trainer {
    /// Teaches; the run is kept by a name until it ends, for [`Trainer::resume`].
    pub(crate) async fn fit(
        &self,
        lessons: &Lessons,
        length: Length,
        checkpoint: &str,
        signal: &AbortSignal,
        on_progress: impl FnMut(FitProgress) + 'static,
    ) -> Result<(Taught, Option<Adapter>)> {
        let (options, _report) =
            fit_options(to_js(lessons)?.unchecked_into(), length, signal, on_progress);
        set(&options, "checkpoint", &checkpoint.into());
        taught(self.0.fit(&options).await?)
    }

    /// Goes on with a run that was kept, where there is one of that name.
    pub(crate) async fn resume(
        &self,
        checkpoint: &str,
        length: Length,
        signal: &AbortSignal,
        on_progress: impl FnMut(FitProgress) + 'static,
    ) -> Result<Option<(Taught, Option<Adapter>)>> {
        let (options, _report) = fit_options(Object::new(), length, signal, on_progress);
        let result = self.0.resume(checkpoint, &options).await?;
        if result.is_undefined() { Ok(None) } else { taught(result).map(Some) }
    }

    pub(crate) fn dispose(&self) {
        self.0.dispose();
    }
}

/// Options of a run, and what it reports to, which has to live as long.
fn fit_options(
    options: Object,
    length: Length,
    signal: &AbortSignal,
    mut on_progress: impl FnMut(FitProgress) + 'static,
) -> (Object, Closure<dyn FnMut(JsValue)>) {
    let report = Closure::<dyn FnMut(JsValue)>::new(move |value| {
        if let Ok(progress) = from_js(value) {
            on_progress(progress);
        }
    });
    match length {
        Length::Seconds(seconds) => set(&options, "budget", &(f64::from(seconds) * 1000.0).into()),
        Length::Steps(steps) => set(&options, "steps", &steps.into()),
        Length::Usual => {}
    }
    set(&options, "signal", signal);
    set(&options, "onProgress", report.as_ref());
    (options, report)
}

fn taught(result: JsValue) -> Result<(Taught, Option<Adapter>)> {
    let adapter = Reflect::get(&result, &"adapter".into())?;
    let files = if adapter.is_object() {
        Some(Adapter(Reflect::get(&adapter, &"files".into())?.unchecked_into()))
    } else {
        None
    };
    Ok((from_js(result)?, files))
}
