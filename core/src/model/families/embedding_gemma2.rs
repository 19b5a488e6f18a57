//! EmbeddingGemma 2's text part, as transformers' `EmbeddingGemma2TextModel` has it: Gemma 3's blocks in both
//! directions, RMS norms on the heads of values too, wider heads in layers that see the whole text, a third branch
//! that mixes a layer's own input of the token into its states, and a projection of the last states.
//!
//! `sliding_window` is a radius: a token sees so many on either side. The towers for images, audio and video, which
//! a release may have beside the text part, are left out.

use serde_json::{Map, Value, json};

use super::decoder::{self, Traits};
use super::windows::{self, GLOBAL, LOCAL};
use super::{Affine, Names, rope};
use crate::Result;
use crate::config::{
    Activation, AttentionMode, Family, Keys, LayerHeads, ModelConfig, Ropes, bad_config,
};

/// The `model_type` of a release with its towers; the text part's keys are under `text_config`.
pub(super) const WITH_TOWERS: &str = "embedding_gemma2";

pub(super) fn read_text_part(keys: &Keys<'_>) -> Result<ModelConfig> {
    let inner =
        keys.get("text_config").ok_or_else(|| bad_config("the key text_config is missing"))?;
    let inner = Keys::new(inner)?;
    let expected = Family::EmbeddingGemma2.model_type();
    match inner.text_or("model_type", expected)? {
        kind if kind == expected => read(&inner),
        other => Err(bad_config(format!(
            "the model_type of text_config is {other:?}, and {expected} is supported"
        ))),
    }
}

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    refuse(keys)?;
    let bias = keys.bool_or("attention_bias", false)?;
    let traits = Traits {
        family: Family::EmbeddingGemma2,
        qkv_bias: bias,
        output_bias: bias,
        mlp_bias: false,
        qk_norm: true,
        windows: layers(keys)?,
    };
    // Of the layers with a window.
    let own = LayerHeads {
        kv_heads: keys.size_or("num_key_value_heads", Some(2))?,
        head_dim: keys.size_or("head_dim", Some(256))?,
    };
    let [local, global] = heads(keys, own, &traits.windows)?;
    let mut config = decoder::read(keys, traits)?;
    config.attention = AttentionMode::Bidirectional;
    config.activation =
        Activation::from_hf(keys.text_or("hidden_activation", "gelu_pytorch_tanh")?)?;
    (config.num_kv_heads, config.head_dim) = (local.kv_heads, local.head_dim);
    let (max_positions, hidden) = (config.max_positions, config.hidden_size as f64);
    let decoder = config.decoder_mut()?;
    decoder.ropes = Ropes {
        global: rope::of_kind(keys, GLOBAL, "rope_theta", 1e6, max_positions)?,
        local: Some(rope::of_kind(keys, LOCAL, "rope_theta", 1e4, max_positions)?),
    };
    decoder.sandwich_norms = true;
    decoder.embedding_scale = Some(hidden.sqrt());
    // Scores are not scaled.
    decoder.query_scalar = Some(1.0);
    decoder.tie_word_embeddings = false;
    decoder.global_heads = (global != local).then_some(global);
    decoder.value_norm = true;
    decoder.per_layer_input = Some(keys.size_or("hidden_size_per_layer_input", Some(512))?);
    decoder.layer_scales = true;
    decoder.output_size = Some(keys.size_or("embedding_dim", Some(768))?);
    Ok(config)
}

/// Refuses what another model of this kind may have, and what transformers does not read here.
fn refuse(keys: &Keys<'_>) -> Result<()> {
    let refused = [
        // Gemma 4's.
        ("num_kv_shared_layers", json!(0)),
        ("attention_k_eq_v", json!(false)),
        ("use_double_wide_mlp", json!(false)),
        ("enable_moe_block", json!(false)),
        ("attn_logit_softcapping", Value::Null),
        // Attention is in both directions.
        ("is_causal", json!(false)),
        ("use_bidirectional_attention", json!(true)),
        // They are in `rope_parameters`, by kind of layer.
        ("rope_theta", Value::Null),
        ("rope_scaling", Value::Null),
    ];
    match refused.iter().find(|(key, plain)| keys.get(key).is_some_and(|value| value != plain)) {
        Some((key, _)) => {
            let value = keys.get(key).unwrap_or(&Value::Null);
            Err(bad_config(format!("{key} is {value}, which EmbeddingGemma 2 has not")))
        }
        None => Ok(()),
    }
}

/// The radius of each layer's window; as in transformers the last layer sees the whole text, whatever is said of it.
fn layers(keys: &Keys<'_>) -> Result<Vec<Option<usize>>> {
    let radius = keys.size_or("sliding_window", Some(512))?;
    let every = keys.size_or("sliding_window_pattern", Some(6))?.max(1);
    let layers = keys.size("num_hidden_layers")?.min(1025);
    let mut windows = windows::read(keys, radius, layers, |layer| (layer + 1) % every != 0)?;
    if let Some(last) = windows.last_mut() {
        *last = None;
    }
    Ok(windows)
}

/// Heads of layers with a window and of those that see the whole text: `own` but for what `per_layer_config` says of
/// a layer, or, where that is absent, `global_head_dim` and `num_global_key_value_heads`.
fn heads(keys: &Keys<'_>, own: LayerHeads, windows: &[Option<usize>]) -> Result<[LayerHeads; 2]> {
    if !keys.0.contains_key("per_layer_config") {
        let global = LayerHeads {
            kv_heads: keys.size_or("num_global_key_value_heads", Some(1))?,
            head_dim: keys.size_or("global_head_dim", Some(512))?,
        };
        return Ok([own, global]);
    }
    let mut of_layers = vec![own; windows.len()];
    let none = Map::new();
    let told = match keys.get("per_layer_config") {
        Some(told) => {
            told.as_object().ok_or_else(|| bad_config("per_layer_config is no object"))?
        }
        None => &none,
    };
    for (layer, values) in told {
        let heads = layer.parse().ok().and_then(|layer: usize| of_layers.get_mut(layer));
        let (Some(heads), Some(values)) = (heads, values.as_object()) else {
            return Err(bad_config(format!("per_layer_config has {layer:?}: {values}")));
        };
        for key in values.keys() {
            let size = Keys(values).size(key);
            match key.as_str() {
                "num_key_value_heads" => heads.kv_heads = size?,
                "head_dim" => heads.head_dim = size?,
                other => {
                    return Err(bad_config(format!(
                        "per_layer_config sets {other} of layer {layer}, which is not supported"
                    )));
                }
            }
        }
    }
    let of_kind = |local: bool| {
        let kind = of_layers.iter().zip(windows).filter(|(_, window)| window.is_some() == local);
        let mut kind = kind.map(|(heads, _)| *heads);
        let first = kind.next().unwrap_or(own);
        match kind.all(|heads| heads == first) {
            true => Ok(first),
            false => Err(bad_config(format!(
                "per_layer_config gives layers of {} different heads, which is not supported",
                if local { LOCAL } else { GLOBAL }
            ))),
        }
    };
    Ok([of_kind(true)?, of_kind(false)?])
}

pub(super) fn write(config: &ModelConfig) -> Value {
    let mut value = decoder::write(config, "EmbeddingGemma2TextModel");
    let Ok(decoder) = config.decoder() else { return value };
    let (global, local) = (&decoder.ropes.global, decoder.ropes.local.as_ref());
    let of_global = |(layer, window): (usize, &Option<usize>)| {
        let LayerHeads { kv_heads, head_dim } = config.heads_of(layer);
        let heads = json!({"head_dim": head_dim, "num_key_value_heads": kv_heads});
        window.is_none().then(|| (layer.to_string(), heads))
    };
    let per_layer: Map<String, Value> =
        decoder.windows.iter().enumerate().filter_map(of_global).collect();
    let radius = decoder.windows.iter().flatten().next().copied().unwrap_or(512);
    for (key, said) in [
        ("attention_bias", json!(decoder.qkv_bias)),
        ("sliding_window", json!(radius)),
        ("layer_types", windows::kinds(&decoder.windows)),
        ("per_layer_config", per_layer.into()),
        (
            "rope_parameters",
            json!({GLOBAL: rope::write(global), LOCAL: rope::write(local.unwrap_or(global))}),
        ),
        ("hidden_activation", json!(config.activation.to_hf())),
        ("hidden_size_per_layer_input", json!(decoder.per_layer_input)),
        ("embedding_dim", json!(config.output_size())),
    ] {
        value[key] = said;
    }
    if let Some(object) = value.as_object_mut() {
        for key in ["hidden_act", "is_causal", "rope_theta", "tie_word_embeddings", "use_cache"] {
            object.remove(key);
        }
    }
    value
}

pub(super) fn names(config: &ModelConfig) -> Names {
    // Scores are not scaled, and attention divides them by the root of the heads' width: the norm of the queries,
    // which is linear in its factors, carries the difference.
    let unscaled = |heads: LayerHeads| Affine { add: 0.0, times: (heads.head_dim as f64).sqrt() };
    let own = LayerHeads { kv_heads: config.num_kv_heads, head_dim: config.head_dim };
    let mut names = decoder::attention_and_feed_forward(config)
        .prefixed(&["language_model.", "model.language_model."])
        .affine("blocks.{}.attention.query_norm", "layers.{}.self_attn.q_norm", unscaled(own))
        .rms("blocks.{}.attention.key_norm", "layers.{}.self_attn.k_norm")
        .rms("blocks.{}.attention_norm", "layers.{}.input_layernorm")
        .rms("blocks.{}.attention_output_norm", "layers.{}.post_attention_layernorm")
        .rms("blocks.{}.feed_forward_norm", "layers.{}.pre_feedforward_layernorm")
        .rms("blocks.{}.feed_forward_output_norm", "layers.{}.post_feedforward_layernorm")
        .linear("blocks.{}.per_layer.gate", "layers.{}.ple_block.per_layer_input_gate")
        .linear("blocks.{}.per_layer.projection", "layers.{}.ple_block.per_layer_projection")
        .rms("blocks.{}.per_layer.norm", "layers.{}.ple_block.post_per_layer_input_norm")
        .tensor("blocks.{}.scale", "layers.{}.layer_scalar")
        .linear("per_layer_inputs.projection", "ple.per_layer_model_projection")
        .rms("per_layer_inputs.norm", "ple.per_layer_projection_norm")
        .rms("norm", "norm")
        .linear("output_projection", "embedding_projection")
        .ignored(&["vision_tower.", "embed_vision.", "audio_tower.", "embed_audio."])
        .ignored(&[
            "model.vision_tower.",
            "model.embed_vision.",
            "model.audio_tower.",
            "model.embed_audio.",
        ]);
    for layer in 0..config.num_layers {
        let heads = config.heads_of(layer);
        if heads != own {
            names = decoder::qkv(names, config, &layer.to_string(), heads).affine(
                &format!("blocks.{layer}.attention.query_norm"),
                &format!("layers.{layer}.self_attn.q_norm"),
                unscaled(heads),
            );
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> Value {
        json!({
            "model_type": "embedding_gemma2_text", "vocab_size": 8, "hidden_size": 8,
            "intermediate_size": 8, "num_hidden_layers": 7, "num_attention_heads": 4,
            "max_position_embeddings": 8,
        })
    }

    fn with(changes: Value) -> Result<ModelConfig> {
        let mut value = tiny();
        let changes = changes.as_object().unwrap().clone();
        value.as_object_mut().unwrap().extend(changes);
        ModelConfig::from_value(&value)
    }

    #[test]
    fn what_is_not_said_is_as_in_transformers() {
        let config = with(json!({})).unwrap();
        let wide = LayerHeads { kv_heads: 1, head_dim: 512 };
        let narrow = LayerHeads { kv_heads: 2, head_dim: 256 };
        // Every sixth layer sees the whole text, and the last one.
        let heads: Vec<LayerHeads> = (0..7).map(|layer| config.heads_of(layer)).collect();
        assert_eq!(heads, [narrow, narrow, narrow, narrow, narrow, wide, wide]);
        assert_eq!(
            config.windows()[..6],
            [Some(512), Some(512), Some(512), Some(512), Some(512), None]
        );
        assert_eq!(
            (config.output_size(), config.state_size(6), config.state_size(7)),
            (768, 8, 768)
        );
        assert_eq!(config.attention, AttentionMode::Bidirectional);
        assert_eq!(ModelConfig::from_value(&config.to_value()).unwrap(), config);
    }

    #[test]
    fn layers_have_heads_of_their_own_by_kind() {
        let heads = |kv: usize, dim: usize| json!({"num_key_value_heads": kv, "head_dim": dim});
        let both = json!({"05": heads(4, 6), "6": heads(4, 6)});
        let config = with(json!({"per_layer_config": both})).unwrap();
        assert_eq!(config.heads_of(5), LayerHeads { kv_heads: 4, head_dim: 6 });
        assert_eq!(ModelConfig::from_value(&config.to_value()).unwrap(), config);
        let alike = with(json!({"per_layer_config": {}})).unwrap();
        assert_eq!(alike.heads_of(5), alike.heads_of(0));
        assert_eq!(ModelConfig::from_value(&alike.to_value()).unwrap(), alike);
        for (told, named) in [
            (json!({"5": heads(4, 6)}), "different heads"),
            (json!({"5": heads(3, 6), "6": heads(3, 6)}), "no multiple of the 3"),
            (json!({"5": heads(1, 5), "6": heads(1, 5)}), "head_dim 5 is odd"),
            (json!({"5": {"intermediate_size": 4}}), "sets intermediate_size of layer 5"),
            (json!({"7": heads(4, 6)}), "\"7\""),
            (json!([1]), "no object"),
        ] {
            let error = with(json!({"per_layer_config": told})).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn what_is_not_supported_is_named() {
        for (key, value) in [
            ("num_kv_shared_layers", json!(2)),
            ("is_causal", json!(true)),
            ("use_bidirectional_attention", json!(false)),
            ("rope_theta", json!(1e5)),
            ("attn_logit_softcapping", json!(50.0)),
            ("hidden_size_per_layer_input", json!(0)),
            ("embedding_dim", json!(0)),
        ] {
            let error = with(json!({key: value})).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
        let towers = json!({"model_type": "embedding_gemma2", "text_config": tiny()});
        assert_eq!(ModelConfig::from_value(&towers).unwrap(), with(json!({})).unwrap());
        let other =
            json!({"model_type": "embedding_gemma2", "text_config": {"model_type": "llama"}});
        let error = ModelConfig::from_value(&other).unwrap_err().to_string();
        assert!(error.contains("text_config is \"llama\""), "{error}");
    }

    #[test]
    fn the_last_layer_kept_sees_the_whole_text() {
        let config = with(json!({})).unwrap();
        let kept = config.clone().keep_layers(&[0, 3, 5]).unwrap();
        assert_eq!(kept.windows(), [Some(512), Some(512), None]);
        assert_eq!(ModelConfig::from_value(&kept.to_value()).unwrap(), kept);
        let error = config.keep_layers(&[5, 0]).unwrap_err().to_string();
        assert!(error.contains("last block"), "{error}");
    }
}
