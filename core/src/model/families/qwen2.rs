//! Qwen2 (arXiv:2407.10671): Llama with biases on q, k and v.

use serde_json::Value;

use super::decoder::{self, Traits};
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
            windows: windows(keys)?,
        },
    )
}

/// `sliding_window` on the layers that `layer_types` or `max_window_layers` names.
pub(super) fn windows(keys: &Keys<'_>) -> Result<Vec<Option<usize>>> {
    let layers = keys.size("num_hidden_layers")?.min(1025);
    if !keys.bool_or("use_sliding_window", false)? {
        return Ok(vec![None; layers]);
    }
    let window = keys.size_or("sliding_window", Some(4096))?;
    if let Some(types) = keys.get("layer_types").and_then(Value::as_array) {
        return Ok(types
            .iter()
            .map(|kind| (kind.as_str() == Some("sliding_attention")).then_some(window))
            .collect());
    }
    let full = keys.size_or("max_window_layers", Some(28))?;
    Ok((0..layers).map(|layer| (layer >= full).then_some(window)).collect())
}

pub(super) fn write(config: &ModelConfig) -> Value {
    let mut value = decoder::write(config, "Qwen2Model");
    write_windows(config, &mut value);
    value
}

/// The keys that [`windows`] reads.
pub(super) fn write_windows(config: &ModelConfig, value: &mut Value) {
    let Ok(decoder) = config.decoder() else {
        return;
    };
    let window = decoder.windows.iter().find_map(|window| *window);
    let kind = |window: &Option<usize>| match window {
        Some(_) => "sliding_attention",
        None => "full_attention",
    };
    value["use_sliding_window"] = window.is_some().into();
    value["sliding_window"] = window.into();
    value["layer_types"] = decoder.windows.iter().map(kind).collect::<Vec<_>>().into();
}
