//! Gemma 3's text models (arXiv:2503.19786), EmbeddingGemma (arXiv:2509.20354) among them: Qwen3's norms on
//! the heads, norms before and after each branch, scaled embeddings; most layers see a window, with their own
//! base wavelength.

use serde_json::{Value, json};

use super::decoder::{self, Traits};
use super::windows::{self, GLOBAL, LOCAL};
use super::{Affine, Names, rope};
use crate::Result;
use crate::config::{Activation, AttentionMode, Family, Keys, ModelConfig, Ropes, bad_config};

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    for key in ["attn_logit_softcapping", "use_value_norm"] {
        if let Some(value) = keys.get(key) {
            return Err(bad_config(format!("{key} is {value}, which is not supported")));
        }
    }
    let bias = keys.bool_or("attention_bias", false)?;
    let both = keys.bool_or("use_bidirectional_attention", false)?;
    let mut config = decoder::read(
        keys,
        Traits {
            family: Family::Gemma3,
            qkv_bias: bias,
            output_bias: bias,
            mlp_bias: false,
            qk_norm: true,
            windows: layers(keys, both)?,
        },
    )?;
    config.activation =
        Activation::from_hf(keys.text_or("hidden_activation", "gelu_pytorch_tanh")?)?;
    let max_positions = config.max_positions;
    let hidden = config.hidden_size as f64;
    let scalar = keys.float_or("query_pre_attn_scalar", 256.0)?;
    if !(scalar > 0.0 && scalar.is_finite()) {
        return Err(bad_config(format!("query_pre_attn_scalar is {scalar}")));
    }
    let decoder = config.decoder_mut()?;
    decoder.ropes = Ropes {
        global: rope::of_kind(keys, GLOBAL, "rope_theta", 1e6, max_positions)?,
        local: Some(rope::of_kind(keys, LOCAL, "rope_local_base_freq", 1e4, max_positions)?),
    };
    decoder.sandwich_norms = true;
    decoder.embedding_scale = Some(hidden.sqrt());
    decoder.query_scalar = Some(scalar);
    decoder.tie_word_embeddings = keys.bool_or("tie_word_embeddings", true)?;
    Ok(config)
}

/// In both directions half of `sliding_window` is on each side.
fn layers(keys: &Keys<'_>, both: bool) -> Result<Vec<Option<usize>>> {
    let window = keys.size_or("sliding_window", Some(4096))?;
    let window = if both { window / 2 } else { window };
    let every = keys.size_or("sliding_window_pattern", Some(6))?.max(1);
    let layers = keys.size("num_hidden_layers")?.min(1025);
    windows::read(keys, window, layers, |layer| (layer + 1) % every != 0)
}

pub(super) fn write(config: &ModelConfig) -> Value {
    let mut value = decoder::write(config, "Gemma3TextModel");
    let Ok(decoder) = config.decoder() else { return value };
    let both = config.attention == AttentionMode::Bidirectional;
    let window = decoder.windows.iter().flatten().next().copied();
    let (global, local) = (&decoder.ropes.global, decoder.ropes.local.as_ref());
    let local = local.unwrap_or(global);
    value["attention_bias"] = json!(decoder.qkv_bias);
    value["use_bidirectional_attention"] = json!(both);
    value["sliding_window"] =
        json!(window.map_or(4096, |window| if both { 2 * window } else { window }));
    value["layer_types"] = windows::kinds(&decoder.windows);
    value["rope_parameters"] = json!({GLOBAL: rope::write(global), LOCAL: rope::write(local)});
    // What releases before transformers 5 read.
    value["rope_theta"] = json!(global.theta);
    value["rope_local_base_freq"] = json!(local.theta);
    // transformers takes a whole number alone.
    value["query_pre_attn_scalar"] = match decoder.query_scalar {
        Some(scalar) if scalar.fract() == 0.0 => json!(scalar as u64),
        scalar => json!(scalar),
    };
    value["hidden_activation"] = json!(config.activation.to_hf());
    if let Some(object) = value.as_object_mut() {
        object.remove("hidden_act");
        object.remove("is_causal");
    }
    value
}

pub(super) fn names(config: &ModelConfig) -> Names {
    // Norms multiply with `1 + weight`. The scale of scores, `query_pre_attn_scalar^-0.5` rather than that of
    // the head's width, goes into the norm of the queries, which is linear in its factors.
    let plus_one = Affine { add: 1.0, times: 1.0 };
    let scalar = config.decoder().ok().and_then(|decoder| decoder.query_scalar);
    let scale = scalar.map_or(1.0, |scalar| (config.head_dim as f64 / scalar).sqrt());
    decoder::attention_and_feed_forward(config)
        .affine(
            "blocks.{}.attention.query_norm",
            "layers.{}.self_attn.q_norm",
            Affine { times: scale, ..plus_one },
        )
        .affine("blocks.{}.attention.key_norm", "layers.{}.self_attn.k_norm", plus_one)
        .affine("blocks.{}.attention_norm", "layers.{}.input_layernorm", plus_one)
        .affine("blocks.{}.attention_output_norm", "layers.{}.post_attention_layernorm", plus_one)
        .affine("blocks.{}.feed_forward_norm", "layers.{}.pre_feedforward_layernorm", plus_one)
        .affine(
            "blocks.{}.feed_forward_output_norm",
            "layers.{}.post_feedforward_layernorm",
            plus_one,
        )
        .affine("norm", "norm", plus_one)
}
