//! The package's `Embedder`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;

use js_sys::{Array, Object, Promise};
use serde::Deserialize;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::AbortSignal;

use super::trainer::{Adapter, Trainer};
use super::{Failure, Result, Vector, from_js, set, to_js};

#[wasm_bindgen(raw_module = "./kiln-embed/index.js")]
extern "C" {
    #[wasm_bindgen(js_name = Embedder)]
    type JsEmbedder;
    #[wasm_bindgen(static_method_of = JsEmbedder, js_class = "Embedder", catch)]
    async fn load(source: &JsValue, options: &JsValue) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, getter)]
    fn info(this: &JsEmbedder) -> JsValue;
    // Promises and not futures, which would call when they are first polled: the order of calls says which
    // adapter computes.
    #[wasm_bindgen(method)]
    fn embed(this: &JsEmbedder, texts: &JsValue, options: &JsValue) -> Promise;
    #[wasm_bindgen(method)]
    fn lens(this: &JsEmbedder, text: &str) -> Promise;
    #[wasm_bindgen(method, js_name = setAdapter)]
    fn set_adapter(this: &JsEmbedder, name: &JsValue) -> Promise;
    #[wasm_bindgen(method, js_name = addAdapter, catch)]
    async fn add_adapter(
        this: &JsEmbedder,
        name: &str,
        adapter: &JsValue,
    ) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch)]
    async fn trainer(this: &JsEmbedder, options: &JsValue) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method)]
    fn dispose(this: &JsEmbedder);
}

#[wasm_bindgen(raw_module = "./kiln-embed-webgpu/index.js")]
extern "C" {
    /// Where the build for WebGPU is.
    #[wasm_bindgen(thread_local_v2, js_name = default)]
    static WEBGPU: JsValue;
}

#[wasm_bindgen(raw_module = "./kiln-embed-train/index.js")]
extern "C" {
    /// Where the builds that train are.
    #[wasm_bindgen(thread_local_v2, js_name = default)]
    static TRAINING: JsValue;
}

/// What a model is: `ModelInfo` in the package.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Info {
    pub(crate) dimensions: usize,
    pub(crate) max_length: usize,
    pub(crate) hidden_size: usize,
    pub(crate) layers: usize,
    pub(crate) vocabulary_size: usize,
    pub(crate) pooling: String,
    pub(crate) prompts: BTreeMap<String, String>,
    pub(crate) weights: Option<String>,
    /// What tells its vectors from others.
    pub(crate) fingerprint: Option<String>,
    pub(crate) device: String,
}

/// How far loading is.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct LoadProgress {
    pub(crate) stage: String,
    #[serde(default)]
    pub(crate) file: String,
    #[serde(default)]
    pub(crate) loaded: f64,
    pub(crate) total: Option<f64>,
    #[serde(default)]
    pub(crate) cached: bool,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Token {
    pub(crate) token: String,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Why a text gets its vector.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Explanation {
    pub(crate) tokens: Vec<Token>,
    pub(crate) weights: Option<Vec<f32>>,
    pub(crate) latents: Option<Vec<Vec<Vec<f32>>>>,
    pub(crate) layers: Option<Vec<f32>>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct HeadView {
    pub(crate) name: String,
    pub(crate) weights: Vec<f32>,
    pub(crate) cosine: Option<f32>,
}

/// A text through every head.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Lens {
    pub(crate) own: Explanation,
    pub(crate) heads: Vec<HeadView>,
    pub(crate) layers: Vec<f32>,
    pub(crate) attention_heads: usize,
    /// `[head][query][key]`.
    pub(crate) attention: Vec<f32>,
    /// `[token][hidden]`, rows of length 1.
    pub(crate) states: Vec<f32>,
}

#[derive(Deserialize)]
struct EmbedProgress {
    texts: usize,
}

/// A loaded model, and the name of the adapter that it computes with.
pub(crate) struct Embedder(JsEmbedder, RefCell<Option<String>>);

impl Embedder {
    /// Loads a model from an address, a file or a list of files, on `auto`, `cpu` or `webgpu`, with its
    /// weights as they are `kept` or in another precision.
    pub(crate) async fn load(
        source: &JsValue,
        device: &str,
        weights: &str,
        signal: &AbortSignal,
        mut on_progress: impl FnMut(LoadProgress) + 'static,
    ) -> Result<Self> {
        let report = Closure::<dyn FnMut(JsValue)>::new(move |value| {
            if let Ok(progress) = from_js(value) {
                on_progress(progress);
            }
        });
        let options = Object::new();
        set(&options, "onProgress", report.as_ref());
        set(&options, "signal", signal);
        set(&options, "device", &device.into());
        WEBGPU.with(|webgpu| set(&options, "webgpu", webgpu));
        set(&options, "weights", &weights.into());
        let loaded = JsEmbedder::load(source, &options).await?;
        Ok(Self(loaded.unchecked_into(), RefCell::default()))
    }

    pub(crate) fn info(&self) -> Result<Info> {
        from_js(self.0.info())
    }

    /// Vectors of texts, in their order.
    pub(crate) async fn embed(&self, texts: &[&str]) -> Result<Vec<Vector>> {
        self.embed_with(texts, self.in_use().as_deref(), &Object::new()).await
    }

    /// As [`Embedder::embed`], with an adapter or as the model was, whatever computes otherwise.
    pub(crate) async fn embed_as(
        &self,
        texts: &[&str],
        adapter: Option<&str>,
    ) -> Result<Vec<Vector>> {
        self.embed_with(texts, adapter, &Object::new()).await
    }

    /// As [`Embedder::embed_as`] for many texts: it can be stopped, and tells how many are done.
    pub(crate) async fn embed_many(
        &self,
        texts: &[&str],
        adapter: Option<&str>,
        signal: &AbortSignal,
        mut on_progress: impl FnMut(usize) + 'static,
    ) -> Result<Vec<Vector>> {
        let report = Closure::<dyn FnMut(JsValue)>::new(move |value| {
            if let Ok(EmbedProgress { texts }) = from_js(value) {
                on_progress(texts);
            }
        });
        let options = Object::new();
        set(&options, "onProgress", report.as_ref());
        set(&options, "signal", signal);
        self.embed_with(texts, adapter, &options).await
    }

    async fn embed_with(
        &self,
        texts: &[&str],
        adapter: Option<&str>,
        options: &Object,
    ) -> Result<Vec<Vector>> {
        let texts = to_js(texts)?;
        let found = self.with(adapter, || self.0.embed(&texts, options)).await?;
        let vectors: Array = found.unchecked_into();
        Ok(vectors.iter().map(|vector| Vector(vector.unchecked_into())).collect())
    }

    pub(crate) async fn lens(&self, text: &str, adapter: Option<&str>) -> Result<Lens> {
        from_js(self.with(adapter, || self.0.lens(text)).await?)
    }

    /// Makes an adapter known by a name, which may not be the one that computes; gives what tells its vectors from others.
    pub(crate) async fn add_adapter(
        &self,
        name: &str,
        adapter: &Adapter,
    ) -> Result<Option<String>> {
        self.0.add_adapter(name, &adapter.0).await?;
        let (to, back) = (self.switch(Some(name)), self.switch(self.in_use().as_deref()));
        let there = to.await.map_err(Failure::from).and_then(|_| self.info());
        back.await?;
        Ok(there?.fingerprint)
    }

    /// Name of the adapter that computes; none for the model as it was.
    pub(crate) fn in_use(&self) -> Option<String> {
        self.1.borrow().clone()
    }

    /// Computes with an adapter, or as it was, from now on; what was asked before this call ends as it began.
    pub(crate) fn use_adapter(
        &self,
        name: Option<&str>,
    ) -> impl Future<Output = Result<()>> + use<> {
        let switch = self.switch(name);
        self.1.replace(name.map(String::from));
        async move {
            switch.await?;
            Ok(())
        }
    }

    fn switch(&self, name: Option<&str>) -> JsFuture {
        let name = name.map_or(JsValue::NULL, JsValue::from);
        JsFuture::from(self.0.set_adapter(&name))
    }

    /// A call that computes with an adapter, or as it was, whatever computes otherwise: it is asked between two
    /// switches, and nothing else in between.
    async fn with(&self, name: Option<&str>, call: impl FnOnce() -> Promise) -> Result<JsValue> {
        let present = self.in_use();
        if present.as_deref() == name {
            return Ok(JsFuture::from(call()).await?);
        }
        let (to, called) = (self.switch(name), JsFuture::from(call()));
        let back = self.switch(present.as_deref());
        let (to, called, back) = (to.await, called.await, back.await);
        to?;
        back?;
        Ok(called?)
    }

    /// A model to be taught: this one, loaded once more.
    pub(crate) async fn trainer(&self, signal: &AbortSignal) -> Result<Trainer> {
        let options = Object::new();
        set(&options, "signal", signal);
        TRAINING.with(|training| set(&options, "training", training));
        // Which kind is chosen by itself depends on how fast the machine is at that moment; here it is always the same.
        set(&options, "kind", &"lora".into());
        Ok(Trainer(self.0.trainer(&options).await?.unchecked_into()))
    }

    pub(crate) fn dispose(&self) {
        self.0.dispose();
    }
}
