//! kiln-embed, the npm package, and its add-ons, as the page calls them.

mod embedder;
mod index;
mod trainer;

use js_sys::{Float32Array, Object, Reflect};
use serde::{Serialize, de::DeserializeOwned};
use wasm_bindgen::prelude::*;

pub(crate) use embedder::{Embedder, HeadView, Info, Lens, LoadProgress, Token};
pub(crate) use index::{Hit, Index, Passage};
pub(crate) use trainer::{Adapter, FitProgress, Length, Lessons, Score, Taught, Trainer};

#[wasm_bindgen(raw_module = "./kiln-embed/index.js")]
extern "C" {
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
