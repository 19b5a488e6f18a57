//! Mistral (arXiv:2310.06825): Llama with a sliding window on every layer.

use serde_json::{Value, json};

use super::decoder::{self, Traits};
use crate::Result;
use crate::config::{Family, Keys, ModelConfig};

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    let window = match keys.get("sliding_window") {
        Some(_) => Some(keys.size("sliding_window")?),
        None => None,
    };
    decoder::read(
        keys,
        Traits {
            family: Family::Mistral,
            qkv_bias: false,
            output_bias: false,
            mlp_bias: false,
            qk_norm: false,
            windows: vec![window; keys.size("num_hidden_layers")?.min(1025)],
        },
    )
}

pub(super) fn write(config: &ModelConfig) -> Value {
    let mut value = decoder::write(config, "MistralModel");
    if let Ok(decoder) = config.decoder() {
        value["sliding_window"] = json!(decoder.windows.first().copied().flatten());
    }
    value
}
