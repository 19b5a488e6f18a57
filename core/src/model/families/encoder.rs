//! What the encoder families share: BERT's keys and tensor names.

use serde_json::{Value, json};

use super::Names;
use crate::Result;
use crate::config::{
    Activation, Architecture, AttentionMode, EncoderConfig, Family, Keys, LearnedPositions,
    ModelConfig, bad_config,
};

/// What a family calls the keys that all have.
pub(super) struct KeyNames {
    pub hidden_size: &'static str,
    pub intermediate_size: &'static str,
    pub num_layers: &'static str,
    pub num_heads: &'static str,
    pub max_positions: &'static str,
    /// And what it is where it is not there.
    pub norm_eps: (&'static str, f64),
    /// Likewise.
    pub activation: (&'static str, &'static str),
}

/// BERT's.
pub(super) const KEYS: KeyNames = KeyNames {
    hidden_size: "hidden_size",
    intermediate_size: "intermediate_size",
    num_layers: "num_hidden_layers",
    num_heads: "num_attention_heads",
    max_positions: "max_position_embeddings",
    norm_eps: ("layer_norm_eps", 1e-12),
    activation: ("hidden_act", "gelu"),
};

/// A config with BERT's blocks, and no positions yet.
pub(super) fn base(
    keys: &Keys<'_>,
    family: Family,
    names: &KeyNames,
    default_pad: Option<usize>,
) -> Result<(ModelConfig, EncoderConfig)> {
    let hidden_size = keys.size(names.hidden_size)?;
    let num_heads = keys.size(names.num_heads)?;
    let num_layers = keys.size(names.num_layers)?;
    let pad = match (keys.get("pad_token_id"), default_pad) {
        (None, None) => None,
        _ => Some(keys.size_or("pad_token_id", default_pad)?),
    };
    let (norm_eps, activation) = (names.norm_eps, names.activation);
    let encoder = EncoderConfig::bert(num_layers.min(1025));
    let config = ModelConfig {
        family,
        vocab_size: keys.size("vocab_size")?,
        hidden_size,
        intermediate_size: keys.size(names.intermediate_size)?,
        num_layers,
        num_heads,
        num_kv_heads: num_heads,
        head_dim: hidden_size.checked_div(num_heads).unwrap_or(0),
        max_positions: keys.size(names.max_positions)?,
        norm_eps: keys.float_or(norm_eps.0, norm_eps.1)?,
        activation: Activation::from_hf(keys.text_or(activation.0, activation.1)?)?,
        attention: if keys.bool_or("is_decoder", false)? {
            AttentionMode::Causal
        } else {
            AttentionMode::Bidirectional
        },
        pad_token_id: pad.and_then(|pad| u32::try_from(pad).ok()),
        architecture: Architecture::Encoder(encoder.clone()),
    };
    Ok((config, encoder))
}

/// Joins both parts.
pub(super) fn with(config: ModelConfig, encoder: EncoderConfig) -> ModelConfig {
    ModelConfig { architecture: Architecture::Encoder(encoder), ..config }
}

/// What a family with learned positions decides for itself.
pub(super) struct Traits {
    pub family: Family,
    /// Id of the padding token where the config names none.
    pub default_pad: usize,
    /// Row of the position table for a text's first token, by the id of the padding token.
    pub position_offset: fn(usize) -> usize,
    /// Rows of the token-type table where the config does not say.
    pub default_types: usize,
}

pub(super) fn read(keys: &Keys<'_>, traits: &Traits) -> Result<ModelConfig> {
    if let Some(kind) = keys.get("position_embedding_type").and_then(Value::as_str)
        && kind != "absolute"
    {
        return Err(bad_config(format!(
            "position_embedding_type {kind:?} is not supported; absolute is, and alibi in BERT"
        )));
    }
    let (mut config, mut encoder) = base(keys, traits.family, &KEYS, Some(traits.default_pad))?;
    encoder.type_vocab_size = keys.size_or("type_vocab_size", Some(traits.default_types))?;
    learn_positions(keys, &mut config, &mut encoder, traits)?;
    Ok(with(config, encoder))
}

/// Gives a model learned positions.
pub(super) fn learn_positions(
    keys: &Keys<'_>,
    config: &mut ModelConfig,
    encoder: &mut EncoderConfig,
    traits: &Traits,
) -> Result<()> {
    let pad = keys.size_or("pad_token_id", Some(traits.default_pad))?;
    let (offset, rows) = ((traits.position_offset)(pad), config.max_positions);
    encoder.positions = Some(LearnedPositions { offset, rows });
    config.max_positions = rows.saturating_sub(offset);
    Ok(())
}

/// Positions as fairseq counts them: from the one after the padding id.
pub(super) fn after_padding(pad: usize) -> usize {
    pad.saturating_add(1)
}

/// The encoder's part; only a config built by hand can be a decoder where an encoder's family writes it, and
/// the reader refuses what is written then.
pub(super) fn part(config: &ModelConfig) -> EncoderConfig {
    match &config.architecture {
        Architecture::Encoder(encoder) => encoder.clone(),
        Architecture::Decoder(_) => EncoderConfig::bert(config.num_layers),
    }
}

pub(super) fn write(config: &ModelConfig, class: &str) -> Value {
    let encoder = part(config);
    json!({
        "architectures": [class],
        "model_type": config.family.model_type(),
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "max_position_embeddings": encoder.positions.map_or(config.max_positions, |table| table.rows),
        "type_vocab_size": encoder.type_vocab_size,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": config.activation.to_hf(),
        "pad_token_id": config.pad_token_id,
        "position_embedding_type": "absolute",
        "is_decoder": config.attention == AttentionMode::Causal,
    })
}

/// Heads for other tasks, and a buffer of old releases.
pub(super) const IGNORED: [&str; 8] = [
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    "pooler.",
    "cls.",
    "lm_head.",
    "classifier.",
    "qa_outputs.",
    "{}rotary_emb.inv_freq",
];

/// Names of BERT's embeddings and of the attention that most encoders have kept.
pub(super) fn bert_attention(config: &ModelConfig, prefixes: &[&'static str]) -> Names {
    bert_projections(config, prefixes)
        .norm("blocks.{}.attention_norm", "encoder.layer.{}.attention.output.LayerNorm")
}

/// The same without the norm of each attention.
pub(super) fn bert_projections(config: &ModelConfig, prefixes: &[&'static str]) -> Names {
    let width = config.hidden_size;
    embeddings(Names::new(prefixes, "embeddings.word_embeddings.weight"))
        .joined(
            "blocks.{}.attention.qkv",
            &[
                ("encoder.layer.{}.attention.self.query", width),
                ("encoder.layer.{}.attention.self.key", width),
                ("encoder.layer.{}.attention.self.value", width),
            ],
        )
        .linear("blocks.{}.attention.output", "encoder.layer.{}.attention.output.dense")
}

/// Names of BERT's embeddings.
pub(super) fn embeddings(names: Names) -> Names {
    names
        .tensor("token_embedding.weight", "embeddings.word_embeddings.weight")
        .tensor("position_embedding.weight", "embeddings.position_embeddings.weight")
        .tensor("type_embedding", "embeddings.token_type_embeddings.weight")
        .norm("norm", "embeddings.LayerNorm")
        .ignored(&IGNORED)
}

/// BERT's feed-forward.
pub(super) fn bert_feed_forward(names: Names) -> Names {
    names
        .linear("blocks.{}.feed_forward.up", "encoder.layer.{}.intermediate.dense")
        .linear("blocks.{}.feed_forward.down", "encoder.layer.{}.output.dense")
        .norm("blocks.{}.feed_forward_norm", "encoder.layer.{}.output.LayerNorm")
}

pub(super) fn names(config: &ModelConfig) -> Names {
    let prefixes = ["", "bert.", "roberta.", "xlm_roberta.", "camembert.", "model."];
    bert_feed_forward(bert_attention(config, &prefixes))
}
