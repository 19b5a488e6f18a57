//! ModernBERT (arXiv:2412.13663): pre-norm without biases, gated feed-forward, rotary positions; every third
//! layer sees the whole text, the others a window, each kind with its own base wavelength.

use serde_json::{Value, json};

use super::Names;
use super::encoder::{self, KeyNames};
use super::rope;
use super::windows::{self, GLOBAL, LOCAL};
use crate::Result;
use crate::config::{Family, Gate, Keys, ModelConfig, Ropes};

const KEYS: KeyNames = KeyNames {
    norm_eps: ("norm_eps", 1e-5),
    activation: ("hidden_activation", "gelu"),
    ..encoder::KEYS
};

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    let (config, mut encoder) = encoder::base(keys, Family::Modernbert, &KEYS, None)?;
    let attention_bias = keys.bool_or("attention_bias", false)?;
    (encoder.qkv_bias, encoder.output_bias) = (attention_bias, attention_bias);
    let mlp_bias = keys.bool_or("mlp_bias", false)?;
    (encoder.up_bias, encoder.down_bias) = (mlp_bias, mlp_bias);
    encoder.pre_norm = true;
    encoder.gate = Gate::Joined;
    encoder.norm_bias = keys.bool_or("norm_bias", false)?;
    // The width of the window, both sides together.
    let window = keys.size_or("local_attention", Some(128))? / 2;
    let every = keys.size_or("global_attn_every_n_layers", Some(3))?.max(1);
    let layers = encoder.windows.len();
    encoder.windows = windows::read(keys, window, layers, |layer| layer % every != 0)?;
    encoder.ropes = Some(Ropes {
        global: rope::of_kind(keys, GLOBAL, "global_rope_theta", 160_000.0, config.max_positions)?,
        local: Some(rope::of_kind(
            keys,
            LOCAL,
            "local_rope_theta",
            10_000.0,
            config.max_positions,
        )?),
    });
    Ok(encoder::with(config, encoder))
}

pub(super) fn write(config: &ModelConfig) -> Value {
    let encoder = encoder::part(config);
    let mut value = encoder::write(config, "ModernBertModel");
    let window = encoder.windows.iter().flatten().next().copied().unwrap_or(64);
    let mut ropes = serde_json::Map::new();
    if let Some(Ropes { global, local }) = &encoder.ropes {
        ropes.insert(GLOBAL.into(), rope::write(global));
        ropes.insert(LOCAL.into(), rope::write(local.as_ref().unwrap_or(global)));
        // What releases before transformers 5 read.
        value["global_rope_theta"] = json!(global.theta);
        value["local_rope_theta"] = json!(local.as_ref().unwrap_or(global).theta);
    }
    value["rope_parameters"] = ropes.into();
    value["layer_types"] = windows::kinds(&encoder.windows);
    value["local_attention"] = json!(2 * window);
    value["norm_eps"] = json!(config.norm_eps);
    value["norm_bias"] = json!(encoder.norm_bias);
    value["attention_bias"] = json!(encoder.qkv_bias);
    value["mlp_bias"] = json!(encoder.down_bias);
    value["hidden_activation"] = json!(config.activation.to_hf());
    if let Some(object) = value.as_object_mut() {
        for key in ["type_vocab_size", "layer_norm_eps", "hidden_act", "position_embedding_type"] {
            object.remove(key);
        }
    }
    value
}

pub(super) fn names(config: &ModelConfig) -> Names {
    Names::new(&["", "model.", "modernbert."], "embeddings.tok_embeddings.weight")
        .tensor("token_embedding.weight", "embeddings.tok_embeddings.weight")
        .norm("norm", "embeddings.norm")
        .joined("blocks.{}.attention.qkv", &[("layers.{}.attn.Wqkv", 3 * config.hidden_size)])
        .linear("blocks.{}.attention.output", "layers.{}.attn.Wo")
        .norm("blocks.{}.attention_norm", "layers.{}.attn_norm")
        .linear("blocks.{}.feed_forward.up", "layers.{}.mlp.Wi")
        .linear("blocks.{}.feed_forward.down", "layers.{}.mlp.Wo")
        .norm("blocks.{}.feed_forward_norm", "layers.{}.mlp_norm")
        .norm("final_norm", "final_norm")
        .ignored(&["head.", "decoder.", "classifier."])
}
