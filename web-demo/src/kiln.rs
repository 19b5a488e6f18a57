//! kiln-embed, the npm package, as the page calls it.

use std::collections::BTreeMap;

use js_sys::{Array, Float32Array, Object, Reflect, Uint8Array};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use wasm_bindgen::prelude::*;
use web_sys::AbortSignal;

#[wasm_bindgen(raw_module = "./kiln-embed/index.js")]
extern "C" {
    #[wasm_bindgen(js_name = Embedder)]
    type JsEmbedder;
    #[wasm_bindgen(static_method_of = JsEmbedder, js_class = "Embedder", catch)]
    async fn load(source: &JsValue, options: &JsValue) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, getter)]
    fn info(this: &JsEmbedder) -> JsValue;
    #[wasm_bindgen(method, catch)]
    async fn embed(
        this: &JsEmbedder,
        texts: &JsValue,
        options: &JsValue,
    ) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch)]
    async fn lens(this: &JsEmbedder, text: &str) -> Result<JsValue, JsValue>;
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

/// A loaded model.
pub(crate) struct Embedder(JsEmbedder);

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
        Ok(Self(loaded.unchecked_into()))
    }

    pub(crate) fn info(&self) -> Result<Info> {
        from_js(self.0.info())
    }

    /// Vectors of texts, in their order.
    pub(crate) async fn embed(&self, texts: &[&str]) -> Result<Vec<Vector>> {
        self.embed_with(texts, &Object::new()).await
    }

    /// As [`Embedder::embed`] for many texts: it can be stopped, and tells how many are done.
    pub(crate) async fn embed_many(
        &self,
        texts: &[&str],
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
        self.embed_with(texts, &options).await
    }

    async fn embed_with(&self, texts: &[&str], options: &Object) -> Result<Vec<Vector>> {
        let vectors: Array = self.0.embed(&to_js(texts)?, options).await?.unchecked_into();
        Ok(vectors.iter().map(|vector| Vector(vector.unchecked_into())).collect())
    }

    pub(crate) async fn lens(&self, text: &str) -> Result<Lens> {
        from_js(self.0.lens(text).await?)
    }

    pub(crate) fn dispose(&self) {
        self.0.dispose();
    }
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
    pub(crate) async fn create(dimensions: usize, precision: &str) -> Result<Self> {
        let options = Object::new();
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
