//! Llama (arXiv:2302.13971, 2407.21783).

use serde_json::{Value, json};

use super::decoder::{self, Traits};
use crate::Result;
use crate::config::{Family, Keys, ModelConfig};

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    let attention_bias = keys.bool_or("attention_bias", false)?;
    decoder::read(
        keys,
        Traits {
            family: Family::Llama,
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            mlp_bias: keys.bool_or("mlp_bias", false)?,
            qk_norm: false,
            windows: vec![None; keys.size("num_hidden_layers")?.min(1025)],
        },
    )
}

pub(super) fn write(config: &ModelConfig) -> Value {
    let mut value = decoder::write(config, "LlamaModel");
    if let Ok(decoder) = config.decoder() {
        value["attention_bias"] = json!(decoder.output_bias);
        value["mlp_bias"] = json!(decoder.mlp_bias);
    }
    value
}
