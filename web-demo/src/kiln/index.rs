//! The package's `Index`, with passages as its entries' data.

use js_sys::{Array, Object, Reflect, Uint8Array};
use serde::{Deserialize, Serialize};
use wasm_bindgen::prelude::*;

use super::{Adapter, Failure, Result, Vector, from_js, set, to_js};

#[wasm_bindgen(raw_module = "./kiln-embed/index.js")]
extern "C" {
    #[wasm_bindgen(js_name = Index)]
    type JsIndex;
    #[wasm_bindgen(static_method_of = JsIndex, js_class = "Index", catch)]
    async fn create(options: &JsValue) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(static_method_of = JsIndex, js_class = "Index", catch)]
    async fn import(saved: &JsValue) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(static_method_of = JsIndex, js_class = "Index", catch)]
    async fn load(name: &str) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, getter)]
    fn dimensions(this: &JsIndex) -> usize;
    #[wasm_bindgen(method, getter)]
    fn precision(this: &JsIndex) -> String;
    #[wasm_bindgen(method, getter)]
    fn model(this: &JsIndex) -> Option<String>;
    #[wasm_bindgen(method)]
    fn entries(this: &JsIndex) -> Array;
    #[wasm_bindgen(method, catch)]
    async fn add(this: &JsIndex, entries: &JsValue, options: &JsValue) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch)]
    async fn search(this: &JsIndex, query: &JsValue, options: &JsValue)
    -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch)]
    async fn vectors(this: &JsIndex, ids: &JsValue) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch)]
    async fn adapted(this: &JsIndex, adapter: &JsValue) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch)]
    async fn export(this: &JsIndex) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch)]
    async fn save(this: &JsIndex, name: &str) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method)]
    fn dispose(this: &JsIndex);
}

#[wasm_bindgen(raw_module = "./kiln-embed/store.js")]
extern "C" {
    #[wasm_bindgen(js_namespace = indexes, js_name = load, catch)]
    async fn load_saved(name: &str) -> Result<JsValue, JsValue>;
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

/// The version of saved indexes, as the package writes it.
const VERSION: f64 = 1.0;
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
        let options = of_model(model);
        set(&options, "dimensions", &(dimensions as f64).into());
        set(&options, "precision", &precision.into());
        Ok(Self(JsIndex::create(&options).await?.unchecked_into()))
    }

    /// The index of a name, where one is saved.
    pub(crate) async fn load(name: &str) -> Result<Option<Self>> {
        let found = JsIndex::load(name).await?;
        Ok((!found.is_undefined()).then(|| Self(found.unchecked_into())))
    }

    /// The passages of a saved index alone: no worker is begun for it, and its vectors are not looked at.
    pub(crate) async fn saved_passages(name: &str) -> Result<Option<Vec<(u32, Passage)>>> {
        let saved = load_saved(name).await?;
        if saved.is_undefined() {
            return Ok(None);
        }
        // Entries of another version may say something else.
        if Reflect::get(&saved, &"version".into())?.as_f64() != Some(VERSION) {
            let unknown = "this is no saved index of a version that is known here";
            return Err(Failure::from(unknown.to_string()));
        }
        in_order(Reflect::get(&saved, &"entries".into())?).map(Some)
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
        in_order(self.0.entries().into())
    }

    /// `model` tells whose vectors these are; where it is not the index's they are refused.
    pub(crate) async fn add(
        &self,
        entries: &[(u32, &Passage, Vector)],
        model: Option<&str>,
    ) -> Result<()> {
        let list = Array::new();
        for (id, passage, vector) in entries {
            let entry = Object::new();
            set(&entry, "id", &(*id).into());
            set(&entry, "vector", &vector.0);
            set(&entry, "data", &to_js(passage)?);
            list.push(&entry);
        }
        self.0.add(&list, &of_model(model)).await?;
        Ok(())
    }

    /// `model` tells whose vector is asked for, as in [`Index::add`].
    pub(crate) async fn search(
        &self,
        query: &Vector,
        k: usize,
        model: Option<&str>,
    ) -> Result<Vec<Hit>> {
        let options = of_model(model);
        set(&options, "k", &(k as f64).into());
        from_js(self.0.search(&query.0, &options).await?)
    }

    pub(crate) async fn vectors(&self, ids: &[u32]) -> Result<Vec<Vector>> {
        let found: Array = self.0.vectors(&to_js(ids)?).await?.unchecked_into();
        Ok(found.iter().map(|vector| Vector(vector.unchecked_into())).collect())
    }

    /// The same passages in the space of an adapter of vectors: nothing is embedded.
    pub(crate) async fn adapted(&self, adapter: &Adapter) -> Result<Self> {
        Ok(Self(self.0.adapted(&adapter.0).await?.unchecked_into()))
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
        self.0.dispose();
    }
}

/// Options that tell whose vectors are meant, where that is known.
fn of_model(model: Option<&str>) -> Object {
    let options = Object::new();
    if let Some(model) = model {
        set(&options, "model", &model.into());
    }
    options
}

/// Entries as passages, in the order of their numbers.
fn in_order(entries: JsValue) -> Result<Vec<(u32, Passage)>> {
    let mut passages: Vec<(u32, Passage)> = from_js(entries)?;
    passages.sort_unstable_by_key(|(id, _)| *id);
    match passages.last() {
        // More are added behind the last.
        Some((id, _)) if *id > LARGEST_NUMBER => Err(Failure::from(format!(
            "this is no saved index: it has a passage with the number {id}, and {LARGEST_NUMBER} is the largest"
        ))),
        _ => Ok(passages),
    }
}

const FILE_MAGIC: [u8; 8] = *b"KILNDEMO";
