//! What the BERT families share: BERT's keys and tensor names.

use serde_json::{Value, json};

use super::Names;
use crate::Result;
use crate::config::{
    Activation, Architecture, AttentionMode, EncoderConfig, Family, Keys, ModelConfig, bad_config,
};

/// What a family decides for itself.
pub(super) struct Traits {
    pub family: Family,
    /// Id of the padding token where the config names none.
    pub default_pad: usize,
    /// Row of the position table for a text's first token, by the id of the padding token.
    pub position_offset: fn(usize) -> usize,
}

pub(super) fn read(keys: &Keys<'_>, traits: &Traits) -> Result<ModelConfig> {
    if let Some(kind) = keys.get("position_embedding_type").and_then(Value::as_str)
        && kind != "absolute"
    {
        return Err(bad_config(format!(
            "position_embedding_type {kind:?} is not supported; absolute is"
        )));
    }
    let hidden_size = keys.size("hidden_size")?;
    let num_heads = keys.size("num_attention_heads")?;
    let pad = keys.size_or("pad_token_id", Some(traits.default_pad))?;
    let position_offset = (traits.position_offset)(pad);
    let position_rows = keys.size("max_position_embeddings")?;
    Ok(ModelConfig {
        family: traits.family,
        vocab_size: keys.size("vocab_size")?,
        hidden_size,
        intermediate_size: keys.size("intermediate_size")?,
        num_layers: keys.size("num_hidden_layers")?,
        num_heads,
        num_kv_heads: num_heads,
        head_dim: hidden_size.checked_div(num_heads).unwrap_or(0),
        max_positions: position_rows.saturating_sub(position_offset),
        norm_eps: keys.float_or("layer_norm_eps", 1e-12)?,
        activation: Activation::from_hf(keys.text_or("hidden_act", "gelu")?)?,
        attention: if keys.bool_or("is_decoder", false)? {
            AttentionMode::Causal
        } else {
            AttentionMode::Bidirectional
        },
        pad_token_id: u32::try_from(pad).ok(),
        architecture: Architecture::Encoder(EncoderConfig {
            position_offset,
            type_vocab_size: keys.size_or("type_vocab_size", Some(2))?,
            position_rows,
        }),
    })
}

pub(super) fn write(config: &ModelConfig, class: &str) -> Value {
    let (rows, types) = match &config.architecture {
        Architecture::Encoder(encoder) => (encoder.position_rows, encoder.type_vocab_size),
        // Only a config built by hand can be a decoder here; the reader refuses this shape.
        Architecture::Decoder(_) => (config.max_positions, 0),
    };
    json!({
        "architectures": [class],
        "model_type": config.family.model_type(),
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "max_position_embeddings": rows,
        "type_vocab_size": types,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": config.activation.to_hf(),
        "pad_token_id": config.pad_token_id,
        "position_embedding_type": "absolute",
        "is_decoder": config.attention == AttentionMode::Causal,
    })
}

pub(super) fn names(config: &ModelConfig) -> Names {
    let width = config.hidden_size;
    Names::new(&["", "bert.", "roberta.", "xlm_roberta."], "embeddings.word_embeddings.weight")
        .tensor("token_embedding.weight", "embeddings.word_embeddings.weight")
        .tensor("position_embedding.weight", "embeddings.position_embeddings.weight")
        .tensor("type_embedding", "embeddings.token_type_embeddings.weight")
        .norm("norm", "embeddings.LayerNorm")
        .joined(
            "blocks.{}.attention.qkv",
            &[
                ("encoder.layer.{}.attention.self.query", width),
                ("encoder.layer.{}.attention.self.key", width),
                ("encoder.layer.{}.attention.self.value", width),
            ],
        )
        .linear("blocks.{}.attention.output", "encoder.layer.{}.attention.output.dense")
        .norm("blocks.{}.attention_norm", "encoder.layer.{}.attention.output.LayerNorm")
        .linear("blocks.{}.feed_forward.up", "encoder.layer.{}.intermediate.dense")
        .linear("blocks.{}.feed_forward.down", "encoder.layer.{}.output.dense")
        .norm("blocks.{}.feed_forward_norm", "encoder.layer.{}.output.LayerNorm")
        // Heads for other tasks, and a buffer of old releases.
        .ignored(&[
            "embeddings.position_ids",
            "pooler.",
            "cls.",
            "lm_head.",
            "classifier.",
            "qa_outputs.",
        ])
}
