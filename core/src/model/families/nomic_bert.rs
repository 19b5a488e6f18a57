//! nomic-embed-text v1 and v1.5 (arXiv:2402.01613): post-norm BERT blocks with rotary positions, a SwiGLU
//! feed-forward and no biases. The released files have GPT-2's keys and fused projections; transformers 5 saves
//! its own.

use serde_json::Value;

use super::Names;
use super::encoder::{self, IGNORED, KeyNames};
use super::{rope, rotary_encoder};
use crate::Result;
use crate::config::{Activation, Family, Gate, Keys, ModelConfig, Ropes, bad_config};

/// Those of the release.
const RELEASED: KeyNames = KeyNames {
    hidden_size: "n_embd",
    intermediate_size: "n_inner",
    num_layers: "n_layer",
    num_heads: "n_head",
    max_positions: "n_positions",
    norm_eps: ("layer_norm_epsilon", 1e-12),
    activation: ("hidden_act", "silu"),
};
const KEYS: KeyNames = KeyNames { activation: ("hidden_act", "silu"), ..encoder::KEYS };

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    for (key, plain) in [
        ("num_experts", 0.0),
        ("rotary_emb_fraction", 1.0),
        ("rotary_emb_interleaved", 0.0),
        ("rotary_emb_scale_base", 0.0),
        ("prenorm", 0.0),
        ("use_rms_norm", 0.0),
        ("qkv_proj_bias", 0.0),
        ("mlp_fc1_bias", 0.0),
        ("mlp_fc2_bias", 0.0),
        ("causal", 0.0),
        ("parallel_block", 0.0),
        ("scale_attn_weights", 1.0),
        ("scale_attn_by_inverse_layer_idx", 0.0),
        ("reorder_and_upcast_attn", 0.0),
        // Positions that are stretched by a text's length.
        ("rotary_scaling_factor", 1.0),
    ] {
        let found = keys.get(key).map(|value| match value {
            Value::Bool(flag) => f64::from(u8::from(*flag)),
            other => other.as_f64().unwrap_or(f64::NAN),
        });
        if found.is_some_and(|found| found != plain) {
            let value = keys.get(key).cloned().unwrap_or_default();
            return Err(bad_config(format!(
                "{key} is {value}, which is not supported; nomic-embed-text-v1 and -v1.5 are, without experts"
            )));
        }
    }
    let released = keys.get("n_embd").is_some();
    let names = if released { &RELEASED } else { &KEYS };
    let (mut config, mut encoder) = encoder::base(keys, Family::NomicBert, names, Some(0))?;
    if released {
        config.activation = match keys.text_or("activation_function", "swiglu")? {
            "swiglu" => Activation::Silu,
            "geglu" => Activation::Gelu,
            other => {
                return Err(bad_config(format!(
                    "activation_function {other:?} is not supported; swiglu and geglu are"
                )));
            }
        };
    }
    (encoder.qkv_bias, encoder.output_bias, encoder.up_bias, encoder.down_bias) =
        (false, false, false, false);
    encoder.gate = Gate::Apart;
    encoder.type_vocab_size = keys.size_or("type_vocab_size", Some(2))?;
    let theta = keys.float_or("rotary_emb_base", 1000.0)?;
    encoder.ropes = Some(Ropes::alike(rope::read(keys, theta, config.max_positions)?));
    Ok(encoder::with(config, encoder))
}

pub(super) fn write(config: &ModelConfig) -> Value {
    rotary_encoder::write(config, "NomicBertModel")
}

pub(super) fn names(config: &ModelConfig) -> Names {
    rotary_encoder::names(config, &["", "nomic_bert.", "bert."])
}

/// Names of the release.
pub(super) fn released(config: &ModelConfig) -> Names {
    Names::new(&["", "bert.", "nomic_bert."], "encoder.layers.0.attn.Wqkv.weight")
        .tensor("token_embedding.weight", "embeddings.word_embeddings.weight")
        .tensor("type_embedding", "embeddings.token_type_embeddings.weight")
        .norm("norm", "emb_ln")
        .joined(
            "blocks.{}.attention.qkv",
            &[("encoder.layers.{}.attn.Wqkv", 3 * config.hidden_size)],
        )
        .linear("blocks.{}.attention.output", "encoder.layers.{}.attn.out_proj")
        .norm("blocks.{}.attention_norm", "encoder.layers.{}.norm1")
        .linear("blocks.{}.feed_forward.gate", "encoder.layers.{}.mlp.fc12")
        .linear("blocks.{}.feed_forward.up", "encoder.layers.{}.mlp.fc11")
        .linear("blocks.{}.feed_forward.down", "encoder.layers.{}.mlp.fc2")
        .norm("blocks.{}.feed_forward_norm", "encoder.layers.{}.norm2")
        .ignored(&IGNORED)
}
