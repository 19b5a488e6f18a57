//! What the post-norm encoders with rotary positions share: transformers' names of nomic-embed, gte and
//! jina-embeddings-v3.

use serde_json::{Value, json};

use super::Names;
use super::encoder::{self, IGNORED};
use super::rope;
use crate::config::ModelConfig;

/// `config.json` as transformers 5 reads it.
pub(super) fn write(config: &ModelConfig, class: &str) -> Value {
    let mut value = encoder::write(config, class);
    if let Some(object) = value.as_object_mut() {
        object.remove("position_embedding_type");
    }
    if let Some(ropes) = encoder::part(config).ropes {
        value["rope_theta"] = json!(ropes.global.theta);
        value["rope_parameters"] = rope::write(&ropes.global);
    }
    value
}

/// transformers' names, with a gated feed-forward.
pub(super) fn names(config: &ModelConfig, prefixes: &[&'static str]) -> Names {
    attention(config, prefixes)
        .linear("blocks.{}.feed_forward.gate", "layers.{}.mlp.gate_proj")
        .linear("blocks.{}.feed_forward.up", "layers.{}.mlp.up_proj")
        .linear("blocks.{}.feed_forward.down", "layers.{}.mlp.down_proj")
}

/// transformers' names of all but the feed-forward.
pub(super) fn attention(config: &ModelConfig, prefixes: &[&'static str]) -> Names {
    let width = config.hidden_size;
    Names::new(prefixes, "layers.0.self_attn.q_proj.weight")
        .tensor("token_embedding.weight", "embeddings.word_embeddings.weight")
        .tensor("type_embedding", "embeddings.token_type_embeddings.weight")
        .norm("norm", "embeddings.LayerNorm")
        .joined(
            "blocks.{}.attention.qkv",
            &[
                ("layers.{}.self_attn.q_proj", width),
                ("layers.{}.self_attn.k_proj", width),
                ("layers.{}.self_attn.v_proj", width),
            ],
        )
        .linear("blocks.{}.attention.output", "layers.{}.self_attn.o_proj")
        .norm("blocks.{}.attention_norm", "layers.{}.post_attention_layernorm")
        .norm("blocks.{}.feed_forward_norm", "layers.{}.post_mlp_layernorm")
        .ignored(&IGNORED)
}
