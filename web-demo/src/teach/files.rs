//! What was learned as files, kept for the next visit.

use js_sys::{Uint8Array, encode_uri_component};
use leptos::prelude::*;
use wasm_bindgen::{JsCast as _, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{Cache, Response};

use crate::kiln::{Adapter, Failure, Result};

/// The files of each kind of adapter: PEFT's, and those of an adapter of vectors.
const KINDS: [[&str; 2]; 2] =
    [["adapter_config.json", "adapter_model.safetensors"], ["config.json", "model.safetensors"]];
/// Where adapters are kept for the next visit.
const CACHE: &str = "kiln-demo-adapters";

/// The address under which a file of a model's adapter is kept.
fn kept_address(model: &str, file: &str) -> String {
    format!("adapters/{}/{file}", String::from(encode_uri_component(model)))
}

async fn cache() -> Result<Cache> {
    let caches = window().caches()?;
    // There is none where the page is not served securely.
    if caches.is_undefined() {
        return Err(Failure::from("the browser keeps nothing here".to_string()));
    }
    Ok(JsFuture::from(caches.open(CACHE)).await?.unchecked_into())
}

/// Keeps an adapter in the place of the one before it, of whichever kind that was.
pub(super) async fn keep(model: &str, adapter: &Adapter) -> Result<()> {
    let cache = cache().await?;
    let files = adapter.files();
    for name in KINDS.as_flattened() {
        let address = kept_address(model, name);
        match files.iter().find(|(own, _)| own == name) {
            Some((_, bytes)) => {
                let response = Response::new_with_opt_u8_array(Some(&mut bytes.clone()))?;
                JsFuture::from(cache.put_with_str(&address, &response)).await?;
            }
            None => {
                JsFuture::from(cache.delete_with_str(&address)).await?;
            }
        }
    }
    Ok(())
}

pub(super) async fn kept(model: &str) -> Result<Option<Adapter>> {
    let cache = cache().await?;
    for kind in KINDS {
        let mut files = Vec::new();
        for name in kind {
            let found: JsValue =
                JsFuture::from(cache.match_with_str(&kept_address(model, name))).await?;
            if found.is_undefined() {
                break;
            }
            let bytes = JsFuture::from(found.unchecked_into::<Response>().array_buffer()?).await?;
            files.push((name.to_string(), Uint8Array::new(&bytes).to_vec()));
        }
        if files.len() == kind.len() {
            return Ok(Some(Adapter::new(&files)));
        }
    }
    Ok(None)
}
