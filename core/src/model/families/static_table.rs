//! Static embeddings (Model2Vec, potion, sentence-transformers' `StaticEmbedding`): a table of tokens whose rows
//! are averaged; an encoder without blocks.

use serde_json::{Value, json};

use super::Names;
use super::encoder;
use crate::Result;
use crate::config::{
    Activation, Architecture, AttentionMode, EncoderConfig, Family, Keys, ModelConfig,
};

/// Most tokens of a text: the mean of more says little, and their states take memory.
const LONGEST: usize = 1 << 17;
/// model2vec's limit where its config names none.
const MODEL2VEC_LENGTH: usize = 512;

/// The shape of a table `[rows, width]`; `keys` are those of model2vec's `config.json`, where there is one.
pub(crate) fn of_table([rows, width]: [usize; 2], keys: &Value) -> Result<ModelConfig> {
    let limit = match keys.get("model_type").and_then(Value::as_str) {
        Some("model2vec") => match keys.get("max_length") {
            Some(Value::Null) => LONGEST,
            Some(length) => length.as_u64().map_or(MODEL2VEC_LENGTH, |length| length as usize),
            None => MODEL2VEC_LENGTH,
        },
        _ => LONGEST,
    };
    let config = shape([rows, width], limit.clamp(1, LONGEST));
    config.check()?;
    Ok(config)
}

fn shape([rows, width]: [usize; 2], max_positions: usize) -> ModelConfig {
    let encoder = EncoderConfig { embedding_norm: false, ..EncoderConfig::bert(0) };
    ModelConfig {
        family: Family::Static,
        vocab_size: rows,
        hidden_size: width,
        intermediate_size: 1,
        num_layers: 0,
        num_heads: 1,
        num_kv_heads: 1,
        head_dim: width,
        max_positions,
        norm_eps: 1e-12,
        activation: Activation::Gelu,
        attention: AttentionMode::Bidirectional,
        pad_token_id: None,
        architecture: Architecture::Encoder(encoder),
    }
}

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    let size = [keys.size("vocab_size")?, keys.size("hidden_size")?];
    Ok(shape(size, keys.size_or("max_position_embeddings", Some(LONGEST))?))
}

pub(super) fn write(config: &ModelConfig) -> Value {
    json!({
        "model_type": config.family.model_type(),
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "max_position_embeddings": config.max_positions,
    })
}

/// The table's name in sentence-transformers' files.
pub(crate) const TABLE: &str = "embedding.weight";

pub(super) fn names() -> Names {
    Names::new(&[""], TABLE).tensor("token_embedding.weight", TABLE).ignored(&encoder::IGNORED)
}
