//! Qwen2 (arXiv:2407.10671): Llama with biases on q, k and v.

use serde_json::Value;

use super::decoder::{self, Traits};
use super::windows;
use crate::Result;
use crate::config::{Family, Keys, ModelConfig};

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    decoder::read(
        keys,
        Traits {
            family: Family::Qwen2,
            qkv_bias: true,
            output_bias: false,
            mlp_bias: false,
            qk_norm: false,
            windows: layers(keys)?,
        },
    )
}

/// `sliding_window` on the layers that `layer_types` or `max_window_layers` names.
pub(super) fn layers(keys: &Keys<'_>) -> Result<Vec<Option<usize>>> {
    let layers = keys.size("num_hidden_layers")?.min(1025);
    if !keys.bool_or("use_sliding_window", false)? {
        return Ok(vec![None; layers]);
    }
    let window = keys.size_or("sliding_window", Some(4096))?;
    let full = keys.size_or("max_window_layers", Some(28))?;
    windows::read(keys, window, layers, |layer| layer >= full)
}

pub(super) fn write(config: &ModelConfig) -> Value {
    let mut value = decoder::write(config, "Qwen2Model");
    write_windows(config, &mut value);
    value
}

/// The keys that [`layers`] reads.
pub(super) fn write_windows(config: &ModelConfig, value: &mut Value) {
    let Ok(decoder) = config.decoder() else {
        return;
    };
    let window = decoder.windows.iter().find_map(|window| *window);
    value["use_sliding_window"] = window.is_some().into();
    value["sliding_window"] = window.into();
    value["layer_types"] = windows::kinds(&decoder.windows);
}
