//! gte-v1.5, gte-multilingual (arXiv:2407.19669) and arctic-embed-m-v2.0: post-norm BERT blocks with rotary
//! positions (NTK scaling) and a gated feed-forward. The released files say `new` and fuse projections;
//! transformers 5 says `gte` and saves its own names.

use serde_json::Value;

use super::Names;
use super::encoder;
use super::{rope, rotary_encoder};
use crate::Result;
use crate::config::{Family, Gate, Keys, ModelConfig, Ropes, bad_config};

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    for (key, plain) in [("layer_norm_type", "layer_norm"), ("position_embedding_type", "rope")] {
        let found = keys.text_or(key, plain)?;
        if found != plain {
            return Err(bad_config(format!("{key} {found:?} is not supported; {plain:?} is")));
        }
    }
    for key in ["logn_attention_scale", "logn_attention_clip1"] {
        if keys.bool_or(key, false)? {
            return Err(bad_config(format!("{key} is true, which is not supported")));
        }
    }
    let (config, mut encoder) = encoder::base(keys, Family::Gte, &encoder::KEYS, Some(1))?;
    encoder.gate = Gate::Apart;
    encoder.up_bias = false;
    encoder.type_vocab_size = keys.size_or("type_vocab_size", Some(1))?;
    encoder.ropes = Some(Ropes::alike(rope::read(keys, 160_000.0, config.max_positions)?));
    Ok(encoder::with(config, encoder))
}

pub(super) fn write(config: &ModelConfig) -> Value {
    rotary_encoder::write(config, "GteModel")
}

pub(super) fn names(config: &ModelConfig) -> Names {
    rotary_encoder::names(config, &["", "gte.", "new."])
}

/// Names of the releases.
pub(super) fn released(config: &ModelConfig) -> Names {
    let probe = "encoder.layer.0.attention.qkv_proj.weight";
    encoder::embeddings(Names::new(&["", "new.", "gte."], probe))
        .joined(
            "blocks.{}.attention.qkv",
            &[("encoder.layer.{}.attention.qkv_proj", 3 * config.hidden_size)],
        )
        .linear("blocks.{}.attention.output", "encoder.layer.{}.attention.o_proj")
        .norm("blocks.{}.attention_norm", "encoder.layer.{}.attn_ln")
        .share("blocks.{}.feed_forward.up", "encoder.layer.{}.mlp.up_gate_proj", 0)
        .share("blocks.{}.feed_forward.gate", "encoder.layer.{}.mlp.up_gate_proj", 1)
        .linear("blocks.{}.feed_forward.down", "encoder.layer.{}.mlp.down_proj")
        .norm("blocks.{}.feed_forward_norm", "encoder.layer.{}.mlp_ln")
}
