//! What the decoder families share: the keys and weight names that Llama introduced.

use serde_json::{Value, json};

use super::Names;
use super::rope;
use crate::Result;
use crate::config::{
    Activation, Architecture, AttentionMode, DecoderConfig, Family, Keys, LayerHeads, ModelConfig,
    Ropes, bad_config,
};

/// What a family decides for itself.
pub(super) struct Traits {
    pub family: Family,
    pub qkv_bias: bool,
    pub output_bias: bool,
    pub mlp_bias: bool,
    pub qk_norm: bool,
    /// Sliding window of a layer in tokens.
    pub windows: Vec<Option<usize>>,
}

pub(super) fn read(keys: &Keys<'_>, traits: Traits) -> Result<ModelConfig> {
    let hidden_size = keys.size("hidden_size")?;
    let num_heads = keys.size("num_attention_heads")?;
    let max_positions = keys.size("max_position_embeddings")?;
    Ok(ModelConfig {
        family: traits.family,
        vocab_size: keys.size("vocab_size")?,
        hidden_size,
        intermediate_size: keys.size("intermediate_size")?,
        num_layers: keys.size("num_hidden_layers")?,
        num_heads,
        num_kv_heads: keys.size_or("num_key_value_heads", Some(num_heads))?,
        head_dim: keys
            .size_or("head_dim", Some(hidden_size.checked_div(num_heads).unwrap_or(0)))?,
        max_positions,
        norm_eps: keys.float_or("rms_norm_eps", 1e-6)?,
        activation: Activation::from_hf(keys.text_or("hidden_act", "silu")?)?,
        attention: read_attention(keys)?,
        pad_token_id: keys
            .get("pad_token_id")
            .and_then(Value::as_u64)
            .and_then(|id| u32::try_from(id).ok()),
        architecture: Architecture::Decoder(DecoderConfig {
            ropes: Ropes::alike(rope::read(keys, 10_000.0, max_positions)?),
            qkv_bias: traits.qkv_bias,
            output_bias: traits.output_bias,
            mlp_bias: traits.mlp_bias,
            qk_norm: traits.qk_norm,
            windows: traits.windows,
            sandwich_norms: false,
            embedding_scale: None,
            query_scalar: None,
            tie_word_embeddings: keys.bool_or("tie_word_embeddings", false)?,
            global_heads: None,
            value_norm: false,
            per_layer_input: None,
            layer_scales: false,
            output_size: None,
        }),
    })
}

/// transformers 5 reads `is_causal: false` as "attend in both directions"; Gemma's embedding models say
/// `use_bidirectional_attention: true`.
fn read_attention(keys: &Keys<'_>) -> Result<AttentionMode> {
    let causal = keys.get("is_causal").map(|_| keys.bool_or("is_causal", true)).transpose()?;
    let both = keys.bool_or("use_bidirectional_attention", false)?;
    match (causal, both) {
        (Some(true), true) => {
            Err(bad_config("is_causal and use_bidirectional_attention contradict each other"))
        }
        (Some(false), _) | (_, true) => Ok(AttentionMode::Bidirectional),
        (None | Some(true), false) => Ok(AttentionMode::Causal),
    }
}

pub(super) fn write(config: &ModelConfig, class: &str) -> Value {
    let Architecture::Decoder(decoder) = &config.architecture else {
        return Value::Null;
    };
    let rope = &decoder.ropes.global;
    json!({
        "architectures": [class],
        "model_type": config.family.model_type(),
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": config.activation.to_hf(),
        "pad_token_id": config.pad_token_id,
        "is_causal": config.attention == AttentionMode::Causal,
        "rope_theta": rope.theta,
        "rope_parameters": rope::write(rope),
        "tie_word_embeddings": decoder.tie_word_embeddings,
        "use_cache": false,
    })
}

/// Names that all have, the norms left out.
pub(super) fn attention_and_feed_forward(config: &ModelConfig) -> Names {
    let own = LayerHeads { kv_heads: config.num_kv_heads, head_dim: config.head_dim };
    let names =
        Names::new(&["", "model.", "embedding_model.", "base_model.model."], "embed_tokens.weight");
    qkv(names, config, "{}", own)
        .tensor("token_embedding.weight", "embed_tokens.weight")
        .linear("blocks.{}.attention.output", "layers.{}.self_attn.o_proj")
        .linear("blocks.{}.feed_forward.gate", "layers.{}.mlp.gate_proj")
        .linear("blocks.{}.feed_forward.up", "layers.{}.mlp.up_proj")
        .linear("blocks.{}.feed_forward.down", "layers.{}.mlp.down_proj")
        // A buffer of old releases, the language-model head, and NV-Embed's pooling head.
        .ignored(&["lm_head.", "score.", "latent_attention_model.", "{}rotary_emb.inv_freq"])
}

/// The projections into the attention of one layer, by its number, or of all (`{}`).
pub(super) fn qkv(names: Names, config: &ModelConfig, layer: &str, heads: LayerHeads) -> Names {
    let (query, key) = (config.num_heads * heads.head_dim, heads.kv_heads * heads.head_dim);
    let parts = [("q_proj", query), ("k_proj", key), ("v_proj", key)];
    let parts = parts.map(|(name, width)| (format!("layers.{layer}.self_attn.{name}"), width));
    let parts = parts.each_ref().map(|(name, width)| (name.as_str(), *width));
    names.joined(&format!("blocks.{layer}.attention.qkv"), &parts)
}

pub(super) fn names(config: &ModelConfig) -> Names {
    attention_and_feed_forward(config)
        .rms("blocks.{}.attention.query_norm", "layers.{}.self_attn.q_norm")
        .rms("blocks.{}.attention.key_norm", "layers.{}.self_attn.k_norm")
        .rms("blocks.{}.attention_norm", "layers.{}.input_layernorm")
        .rms("blocks.{}.feed_forward_norm", "layers.{}.post_attention_layernorm")
        .rms("norm", "norm")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_key_makes_attention_bidirectional() {
        let attention = |keys: Value| {
            let mut config = json!({
                "model_type": "llama", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8,
                "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 8,
            });
            let keys = keys.as_object().unwrap().clone();
            config.as_object_mut().unwrap().extend(keys);
            ModelConfig::from_value(&config).map(|config| config.attention)
        };
        assert_eq!(attention(json!({})).unwrap(), AttentionMode::Causal);
        for keys in [
            json!({"is_causal": false}),
            json!({"use_bidirectional_attention": true}),
            json!({"is_causal": false, "use_bidirectional_attention": true}),
        ] {
            assert_eq!(attention(keys).unwrap(), AttentionMode::Bidirectional);
        }
        let both = json!({"is_causal": true, "use_bidirectional_attention": true});
        assert!(attention(both).unwrap_err().to_string().contains("contradict"));
        assert!(attention(json!({"use_bidirectional_attention": "all"})).is_err());
    }
}
