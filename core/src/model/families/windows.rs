//! Which layers see the whole text and which a window around each token (`layer_types`).

use serde_json::{Value, json};

use crate::Result;
use crate::config::{Keys, bad_config};

/// What transformers calls the two kinds of layers.
pub(super) const LOCAL: &str = "sliding_attention";
pub(super) const GLOBAL: &str = "full_attention";

/// The window of each layer: as `layer_types` says, or where that is absent by `is_local`.
pub(super) fn read(
    keys: &Keys<'_>,
    window: usize,
    layers: usize,
    is_local: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>> {
    let Some(kinds) = keys.get("layer_types") else {
        return Ok((0..layers).map(|layer| is_local(layer).then_some(window)).collect());
    };
    let kinds = kinds.as_array().ok_or_else(|| bad_config("layer_types is no list"))?;
    let of_kind = |kind: &Value| match kind.as_str() {
        Some(LOCAL) => Ok(Some(window)),
        Some(GLOBAL) => Ok(None),
        _ => Err(bad_config(format!("layer_types has {kind}, neither {LOCAL} nor {GLOBAL}"))),
    };
    kinds.iter().map(of_kind).collect()
}

/// `layer_types` of these windows.
pub(super) fn kinds(windows: &[Option<usize>]) -> Value {
    let kinds = windows.iter().map(|window| if window.is_some() { LOCAL } else { GLOBAL });
    json!(kinds.collect::<Vec<_>>())
}
