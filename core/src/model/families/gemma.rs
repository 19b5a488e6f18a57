//! Gemma (arXiv:2403.08295): Llama with a gate of GELU, scaled embeddings, and norms that multiply with `1 + weight`.

use serde_json::{Value, json};

use super::decoder::{self, Traits};
use super::{Affine, Names};
use crate::Result;
use crate::config::{Activation, Family, Keys, ModelConfig};

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    let bias = keys.bool_or("attention_bias", false)?;
    let mut config = decoder::read(
        keys,
        Traits {
            family: Family::Gemma,
            qkv_bias: bias,
            output_bias: bias,
            mlp_bias: false,
            qk_norm: false,
            windows: vec![None; keys.size("num_hidden_layers")?.min(1025)],
        },
    )?;
    config.head_dim = keys.size_or("head_dim", Some(256))?;
    // Releases say "gelu" and mean its tanh approximation; transformers reads it so.
    config.activation = match Activation::from_hf(keys.text_or("hidden_act", "gelu")?)? {
        Activation::Gelu => Activation::GeluTanh,
        other => other,
    };
    let hidden = config.hidden_size as f64;
    let decoder = config.decoder_mut()?;
    decoder.embedding_scale = Some(hidden.sqrt());
    decoder.tie_word_embeddings = keys.bool_or("tie_word_embeddings", true)?;
    Ok(config)
}

pub(super) fn write(config: &ModelConfig) -> Value {
    let mut value = decoder::write(config, "GemmaModel");
    if let Ok(decoder) = config.decoder() {
        value["attention_bias"] = json!(decoder.output_bias);
    }
    value
}

pub(super) fn names(config: &ModelConfig) -> Names {
    let plus_one = Affine { add: 1.0, times: 1.0 };
    decoder::attention_and_feed_forward(config)
        .affine("blocks.{}.attention_norm", "layers.{}.input_layernorm", plus_one)
        .affine("blocks.{}.feed_forward_norm", "layers.{}.post_attention_layernorm", plus_one)
        .affine("norm", "norm", plus_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Value {
        json!({
            "model_type": "gemma", "vocab_size": 8, "hidden_size": 16, "intermediate_size": 8,
            "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 8,
        })
    }

    #[test]
    fn what_releases_leave_out_is_as_transformers_has_it() {
        let mut value = config();
        for act in ["gelu", "gelu_pytorch_tanh"] {
            value["hidden_act"] = json!(act);
            let found = ModelConfig::from_value(&value).unwrap();
            assert_eq!((found.activation, found.head_dim), (Activation::GeluTanh, 256));
            let decoder = found.decoder().unwrap();
            assert!(decoder.tie_word_embeddings && decoder.embedding_scale == Some(4.0));
        }
    }

    #[test]
    fn gemma_2_is_refused_by_name() {
        let mut value = config();
        value["model_type"] = json!("gemma2");
        let error = ModelConfig::from_value(&value).unwrap_err().to_string();
        assert!(error.contains("gemma2") && error.lines().count() == 1, "{error}");
    }
}
