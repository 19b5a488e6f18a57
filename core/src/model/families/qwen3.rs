//! Qwen3 (arXiv:2505.09388): Llama with RMS norms on the heads of q and k.

use serde_json::{Value, json};

use super::decoder::{self, Traits};
use super::qwen2;
use crate::Result;
use crate::config::{Family, Keys, ModelConfig};

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    let attention_bias = keys.bool_or("attention_bias", false)?;
    decoder::read(
        keys,
        Traits {
            family: Family::Qwen3,
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            mlp_bias: false,
            qk_norm: true,
            windows: qwen2::layers(keys)?,
        },
    )
}

pub(super) fn write(config: &ModelConfig) -> Value {
    let mut value = decoder::write(config, "Qwen3Model");
    if let Ok(decoder) = config.decoder() {
        value["attention_bias"] = json!(decoder.output_bias);
    }
    qwen2::write_windows(config, &mut value);
    value
}
