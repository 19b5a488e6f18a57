//! BERT, RoBERTa and XLM-RoBERTa (arXiv:1810.04805, 1907.11692, 1911.02116).

use serde_json::{Value, json};

use crate::Result;
use crate::checkpoint::names::Names;
use crate::config::{
    Activation, Architecture, AttentionMode, EncoderConfig, Family, Keys, ModelConfig,
};

pub(super) fn read(family: Family, keys: &Keys<'_>) -> Result<ModelConfig> {
    if let Some(kind) = keys.get("position_embedding_type").and_then(Value::as_str)
        && kind != "absolute"
    {
        return Err(
            keys.bad(format!("position_embedding_type {kind:?} is not supported; absolute is"))
        );
    }
    let hidden_size = keys.size("hidden_size")?;
    let num_heads = keys.size("num_attention_heads")?;
    let pad = keys.size_or("pad_token_id", Some(if family == Family::Bert { 0 } else { 1 }))?;
    // fairseq numbers positions from the one after the padding id.
    let position_offset = if family == Family::Bert { 0 } else { pad.saturating_add(1) };
    let position_rows = keys.size("max_position_embeddings")?;
    Ok(ModelConfig {
        family,
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

pub(super) fn write(config: &ModelConfig) -> Value {
    let (class, rows, types) = match (&config.architecture, config.family) {
        (Architecture::Encoder(e), Family::Bert) => {
            ("BertModel", e.position_rows, e.type_vocab_size)
        }
        (Architecture::Encoder(e), Family::Roberta) => {
            ("RobertaModel", e.position_rows, e.type_vocab_size)
        }
        (Architecture::Encoder(e), _) => ("XLMRobertaModel", e.position_rows, e.type_vocab_size),
        // `ModelConfig` of these families is always an encoder; a hand-built one that is
        // not gets the shape that the reader will refuse.
        (Architecture::Decoder(_), _) => ("BertModel", config.max_positions, 0),
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
