//! kiln-embed, the npm package, as the page calls it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;

use js_sys::{Array, Float32Array, Object, Promise, Reflect, Uint8Array};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::AbortSignal;

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

    #[wasm_bindgen(js_name = Index)]
    type JsIndex;
    #[wasm_bindgen(static_method_of = JsIndex, js_class = "Index", catch)]
    async fn create(options: &JsValue) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(static_method_of = JsIndex, js_class = "Index", catch)]
    async fn import(saved: &JsValue) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(static_method_of = JsIndex, js_class = "Index", js_name = load, catch)]
    async fn load_index(name: &str) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, getter)]
    fn dimensions(this: &JsIndex) -> usize;
    #[wasm_bindgen(method, getter)]
    fn precision(this: &JsIndex) -> String;
    #[wasm_bindgen(method, getter)]
    fn model(this: &JsIndex) -> Option<String>;
    #[wasm_bindgen(method)]
    fn entries(this: &JsIndex) -> Array;
    #[wasm_bindgen(method, catch)]
    async fn add(this: &JsIndex, entries: &JsValue) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch)]
    async fn search(this: &JsIndex, query: &JsValue, options: &JsValue)
    -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch)]
    async fn vectors(this: &JsIndex, ids: &JsValue) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch)]
    async fn export(this: &JsIndex) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch)]
    async fn save(this: &JsIndex, name: &str) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, js_name = dispose)]
    fn dispose_index(this: &JsIndex);

    #[wasm_bindgen(js_name = clearCache, catch)]
    async fn clear_cache_js() -> Result<JsValue, JsValue>;
}

#[wasm_bindgen]
extern "C" {
    /// What `Embedder.trainer` gives.
    type JsTrainer;
    #[wasm_bindgen(method, catch)]
    async fn fit(this: &JsTrainer, options: &JsValue) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch)]
    async fn resume(
        this: &JsTrainer,
        checkpoint: &str,
        options: &JsValue,
    ) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, js_name = dispose)]
    fn dispose_trainer(this: &JsTrainer);
}

/// What went wrong, in one line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    /// Whether the run was stopped by who began it.
    pub(crate) aborted: bool,
    pub(crate) message: String,
}

impl From<JsValue> for Failure {
    fn from(value: JsValue) -> Self {
        let text =
            |key: &str| Reflect::get(&value, &key.into()).ok().and_then(|found| found.as_string());
        Self {
            aborted: text("name").as_deref() == Some("AbortError"),
            message: text("message").unwrap_or_else(|| format!("{value:?}")),
        }
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self { aborted: false, message }
    }
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

fn to_js<T: Serialize + ?Sized>(value: &T) -> Result<JsValue> {
    let serializer = serde_wasm_bindgen::Serializer::json_compatible();
    value.serialize(&serializer).map_err(|error| Failure::from(error.to_string()))
}

fn from_js<T: DeserializeOwned>(value: JsValue) -> Result<T> {
    serde_wasm_bindgen::from_value(value).map_err(|error| Failure::from(error.to_string()))
}

fn set(object: &Object, key: &str, value: &JsValue) {
    // Plain objects take every key.
    let _ = Reflect::set(object, &key.into(), value);
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
        // Its files are those that the page keeps, exports and imports.
        set(&options, "kind", &"lora".into());
        Ok(Trainer(self.0.trainer(&options).await?.unchecked_into()))
    }

    pub(crate) fn dispose(&self) {
        self.0.dispose();
    }
}

/// What a model was taught: an adapter's two files, on the JavaScript side, as `[name, bytes]`.
#[derive(Clone)]
pub(crate) struct Adapter(Array);

impl Adapter {
    pub(crate) fn new(files: &[(String, Vec<u8>)]) -> Self {
        let pair = |(name, bytes): &(String, Vec<u8>)| {
            Array::of2(&name.into(), &Uint8Array::from(bytes.as_slice()))
        };
        Self(files.iter().map(pair).collect())
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
    pub(crate) seconds: f64,
}

/// A model that is taught.
pub(crate) struct Trainer(JsTrainer);

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
        self.0.dispose_trainer();
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

/// A vector, kept on the JavaScript side.
#[derive(Clone)]
pub(crate) struct Vector(Float32Array);

impl Vector {
    pub(crate) fn to_vec(&self) -> Vec<f32> {
        self.0.to_vec()
    }

    /// Inner product; of vectors of length 1 their cosine.
    pub(crate) fn dot(&self, other: &Vector) -> f32 {
        self.to_vec().iter().zip(other.to_vec()).map(|(a, b)| a * b).sum()
    }

    /// Cosine of the angle between them; 0 where one of them is zero.
    pub(crate) fn cosine(&self, other: &Vector) -> f32 {
        let lengths = (self.dot(self) * other.dot(other)).sqrt();
        if lengths > 0.0 { self.dot(other) / lengths } else { 0.0 }
    }
}

/// A found entry.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Hit {
    pub(crate) id: u32,
    pub(crate) score: f32,
}

/// An entry's data, as it is saved beside its vector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Passage {
    pub(crate) title: String,
    pub(crate) text: String,
    /// Where it is from: a subject of the built-in collection, or a file's name.
    pub(crate) source: String,
}

/// The largest number of a passage that is read.
const LARGEST_NUMBER: u32 = 1 << 31;

/// Passages by number, and search among their vectors.
pub(crate) struct Index(JsIndex);

impl Index {
    /// `model` tells whose vectors they are.
    pub(crate) async fn create(
        dimensions: usize,
        precision: &str,
        model: Option<&str>,
    ) -> Result<Self> {
        let options = Object::new();
        if let Some(model) = model {
            set(&options, "model", &model.into());
        }
        set(&options, "dimensions", &(dimensions as f64).into());
        set(&options, "precision", &precision.into());
        Ok(Self(JsIndex::create(&options).await?.unchecked_into()))
    }

    /// The index of a name, where one is saved.
    pub(crate) async fn load(name: &str) -> Result<Option<Self>> {
        let found = JsIndex::load_index(name).await?;
        Ok((!found.is_undefined()).then(|| Self(found.unchecked_into())))
    }

    pub(crate) fn dimensions(&self) -> usize {
        self.0.dimensions()
    }

    pub(crate) fn precision(&self) -> String {
        self.0.precision()
    }

    /// Whose vectors they are, where it was told.
    pub(crate) fn model(&self) -> Option<String> {
        self.0.model()
    }

    /// The passages, in the order of their numbers.
    pub(crate) fn passages(&self) -> Result<Vec<(u32, Passage)>> {
        let mut passages: Vec<(u32, Passage)> = from_js(self.0.entries().into())?;
        passages.sort_unstable_by_key(|(id, _)| *id);
        match passages.last() {
            // More are added behind the last.
            Some((id, _)) if *id > LARGEST_NUMBER => Err(Failure::from(format!(
                "this is no saved index: it has a passage with the number {id}, and {LARGEST_NUMBER} is the largest"
            ))),
            _ => Ok(passages),
        }
    }

    pub(crate) async fn add(&self, entries: &[(u32, &Passage, Vector)]) -> Result<()> {
        let list = Array::new();
        for (id, passage, vector) in entries {
            let entry = Object::new();
            set(&entry, "id", &(*id).into());
            set(&entry, "vector", &vector.0);
            set(&entry, "data", &to_js(passage)?);
            list.push(&entry);
        }
        self.0.add(&list).await?;
        Ok(())
    }

    pub(crate) async fn search(&self, query: &Vector, k: usize) -> Result<Vec<Hit>> {
        let options = Object::new();
        set(&options, "k", &(k as f64).into());
        from_js(self.0.search(&query.0, &options).await?)
    }

    pub(crate) async fn vectors(&self, ids: &[u32]) -> Result<Vec<Vector>> {
        let found: Array = self.0.vectors(&to_js(ids)?).await?.unchecked_into();
        Ok(found.iter().map(|vector| Vector(vector.unchecked_into())).collect())
    }

    pub(crate) async fn save(&self, name: &str) -> Result<()> {
        self.0.save(name).await?;
        Ok(())
    }

    /// The index as a file: the length of the JSON, the JSON (settings, passages), the vectors.
    pub(crate) async fn to_file(&self) -> Result<Vec<u8>> {
        let saved = self.0.export().await?;
        let get = |key: &str| Reflect::get(&saved, &key.into());
        let head = Object::new();
        for key in ["version", "settings", "entries"] {
            set(&head, key, &get(key)?);
        }
        let head: String = js_sys::JSON::stringify(&head)?.into();
        let mut file = FILE_MAGIC.to_vec();
        file.extend((head.len() as u32).to_le_bytes());
        file.extend(head.as_bytes());
        file.extend(get("bytes")?.unchecked_into::<Uint8Array>().to_vec());
        Ok(file)
    }

    /// The vectors as they are kept, behind a header of some bytes.
    pub(crate) async fn to_bytes(&self) -> Result<Vec<u8>> {
        let saved = self.0.export().await?;
        Ok(Reflect::get(&saved, &"bytes".into())?.unchecked_into::<Uint8Array>().to_vec())
    }

    /// Reads what [`Index::to_file`] wrote.
    pub(crate) async fn from_file(file: &[u8]) -> Result<Self> {
        let wrong = |what: &str| Failure::from(format!("this is no saved index: {what}"));
        let rest = file.strip_prefix(&FILE_MAGIC);
        let rest = rest.ok_or_else(|| wrong("it begins with other bytes"))?;
        let short = || wrong("it is cut short");
        let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        let (head, bytes) =
            rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(short)?;
        let head = std::str::from_utf8(head).map_err(|error| wrong(&error.to_string()))?;
        let saved = js_sys::JSON::parse(head)?;
        set(saved.unchecked_ref(), "bytes", &Uint8Array::from(bytes));
        let index = Self(JsIndex::import(&saved).await?.unchecked_into());
        // Entries of another shape are found now, and not at the first search.
        index.passages()?;
        Ok(index)
    }

    pub(crate) fn dispose(&self) {
        self.0.dispose_index();
    }
}

const FILE_MAGIC: [u8; 8] = *b"KILNDEMO";

/// Whether this browser knows WebGPU at all.
pub(crate) fn knows_webgpu() -> bool {
    let navigator = leptos::prelude::window().navigator();
    Reflect::get(&navigator, &"gpu".into()).is_ok_and(|gpu| gpu.is_truthy())
}

/// Forgets all downloaded models.
pub(crate) async fn clear_cache() -> Result<()> {
    clear_cache_js().await?;
    Ok(())
}
