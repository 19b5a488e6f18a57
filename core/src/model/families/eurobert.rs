//! EuroBERT (arXiv:2503.05500): Llama's blocks that attend in both directions.

use serde_json::Value;

use super::decoder::{self, Traits};
use crate::Result;
use crate::config::{AttentionMode, Family, Keys, ModelConfig};

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    let attention_bias = keys.bool_or("attention_bias", false)?;
    let config = decoder::read(
        keys,
        Traits {
            family: Family::Eurobert,
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            mlp_bias: keys.bool_or("mlp_bias", false)?,
            qk_norm: false,
            windows: vec![None; keys.size("num_hidden_layers")?.min(1025)],
        },
    )?;
    let attention = match keys.bool_or("is_causal", false)? {
        true => AttentionMode::Causal,
        false => AttentionMode::Bidirectional,
    };
    Ok(ModelConfig { attention, ..config })
}

pub(super) fn write(config: &ModelConfig) -> Value {
    let mut value = decoder::write(config, "EuroBertModel");
    if let Ok(decoder) = config.decoder() {
        value["attention_bias"] = decoder.output_bias.into();
        value["mlp_bias"] = decoder.mlp_bias.into();
    }
    value
}
