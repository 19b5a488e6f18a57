//! jina-embeddings-v5-text: EuroBERT (nano) or Qwen3 (small) under one `model_type`, for code of its own that pools the last
//! token and always takes one of its adapters (PEFT's, below `adapters/`).

use super::{eurobert, qwen3};
use crate::Result;
use crate::config::{Keys, ModelConfig};

/// That of both.
pub(crate) const MODEL_TYPE: &str = "jina_embeddings_v5";

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    // A key of Qwen's alone. A wrong guess finds no weights: Qwen3 has norms of queries and keys.
    match keys.get("use_sliding_window").is_some() {
        true => qwen3::read(keys),
        false => eurobert::read(keys),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::config::{AttentionMode, Family, ModelConfig};

    #[test]
    fn nano_is_eurobert_and_small_is_qwen3() {
        let mut config = json!({
            "model_type": "jina_embeddings_v5", "vocab_size": 40, "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 1e6, "tie_word_embeddings": false,
        });
        let nano = ModelConfig::from_value(&config).unwrap();
        assert_eq!((nano.family, nano.attention), (Family::Eurobert, AttentionMode::Bidirectional));
        config["use_sliding_window"] = false.into();
        config["head_dim"] = 16.into();
        let small = ModelConfig::from_value(&config).unwrap();
        assert_eq!((small.family, small.attention), (Family::Qwen3, AttentionMode::Causal));
    }
}
