//! nomic-embed-text: post-norm BERT blocks with rotary positions. v1 and v1.5 (arXiv:2402.01613) have a SwiGLU
//! feed-forward and no biases; v2-moe (arXiv:2502.07972) has a plain one, biases, and in every second layer experts.
//!
//! The released files have GPT-2's keys and fused projections. transformers 5 saves its own for gated models, and has
//! no others: those are saved as they are released, for the classes of `nomic-ai/nomic-bert-2048` that their `auto_map`
//! names. Keys and tensors of v2-moe are those of its published configuration, of text-embeddings-inference (nomic.rs)
//! and of vLLM (bert_with_rope.py).

use serde_json::{Value, json};

use super::encoder::{self, IGNORED, KeyNames};
use super::{Names, Stacked};
use super::{rope, rotary_encoder};
use crate::Result;
use crate::config::{
    Activation, AttentionMode, EncoderConfig, Family, Gate, Keys, MixtureOfExperts, ModelConfig,
    RopeScaling, Ropes, bad_config,
};

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

/// Flags with the one value of each that is supported.
const PLAIN: [(&str, f64); 14] = [
    ("rotary_emb_fraction", 1.0),
    ("rotary_emb_interleaved", 0.0),
    ("rotary_emb_scale_base", 0.0),
    ("prenorm", 0.0),
    ("use_rms_norm", 0.0),
    ("causal", 0.0),
    ("parallel_block", 0.0),
    ("scale_attn_weights", 1.0),
    ("scale_attn_by_inverse_layer_idx", 0.0),
    ("reorder_and_upcast_attn", 0.0),
    // Experts that every token takes.
    ("num_shared_experts", 0.0),
    // Experts that choose their tokens: a token's vector would depend on the batch.
    ("expert_choice_router", 0.0),
    // Weights of a token's experts that are divided by their sum.
    ("moe_normalize_expert_weights", 0.0),
    // Experts of another width.
    ("ffn_div", 1.0),
];
/// Those of gated models.
const WITHOUT_BIASES: [(&str, f64); 3] =
    [("qkv_proj_bias", 0.0), ("mlp_fc1_bias", 0.0), ("mlp_fc2_bias", 0.0)];

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    check_flags(keys, &PLAIN)?;
    let released = keys.get("n_embd").is_some();
    let names = if released { &RELEASED } else { &KEYS };
    let (mut config, mut encoder) = encoder::base(keys, Family::NomicBert, names, Some(0))?;
    let function =
        if released { Some(keys.text_or("activation_function", "swiglu")?) } else { None };
    if function == Some("gelu") {
        config.activation = Activation::Gelu;
        // The output projection of the attention goes with the others.
        let bias = keys.bool_or("qkv_proj_bias", true)?;
        (encoder.qkv_bias, encoder.output_bias) = (bias, bias);
        encoder.up_bias = keys.bool_or("mlp_fc1_bias", true)?;
        encoder.down_bias = keys.bool_or("mlp_fc2_bias", true)?;
    } else {
        check_flags(keys, &WITHOUT_BIASES)?;
        config.activation = match function {
            None => config.activation,
            Some("swiglu") => Activation::Silu,
            Some("geglu") => Activation::Gelu,
            Some(other) => {
                return Err(bad_config(format!(
                    "activation_function {other:?} is not supported; swiglu, geglu and gelu are"
                )));
            }
        };
        (encoder.qkv_bias, encoder.output_bias, encoder.up_bias, encoder.down_bias) =
            (false, false, false, false);
        encoder.gate = Gate::Apart;
    }
    encoder.experts = experts(keys)?;
    if encoder.experts.is_some() && encoder.gate != Gate::None {
        return Err(bad_config(
            "num_experts is supported with the keys of the release (n_embd ..) and activation_function \"gelu\"",
        ));
    }
    encoder.type_vocab_size = keys.size_or("type_vocab_size", Some(2))?;
    let theta = keys.float_or("rotary_emb_base", 1000.0)?;
    if keys.float_or("rotary_scaling_factor", 1.0)? != 1.0 {
        // The release stretches positions in texts that are longer than those of its training. transformers does so behind
        // `max_position_embeddings`, where its keys are there, too.
        let trained = keys.size_or("max_trained_positions", Some(2048))?;
        let limit = keys.size_or("max_position_embeddings", Some(trained))?;
        config.max_positions = config.max_positions.min(limit);
    }
    encoder.ropes = Some(Ropes::alike(rope::read(keys, theta, config.max_positions)?));
    Ok(encoder::with(config, encoder))
}

/// Refuses flags of other values, by name.
fn check_flags(keys: &Keys<'_>, flags: &[(&str, f64)]) -> Result<()> {
    for (key, plain) in flags {
        let found = keys.get(key).map(|value| match value {
            Value::Bool(flag) => f64::from(u8::from(*flag)),
            other => other.as_f64().unwrap_or(f64::NAN),
        });
        if found.is_some_and(|found| found != *plain) {
            let value = keys.get(key).cloned().unwrap_or_default();
            return Err(bad_config(format!(
                "{key} is {value}, which is not supported; nomic-embed-text-v1, -v1.5 and -v2-moe are"
            )));
        }
    }
    Ok(())
}

fn experts(keys: &Keys<'_>) -> Result<Option<MixtureOfExperts>> {
    match keys.size_or("num_experts", Some(0))? {
        0 => Ok(None),
        count => Ok(Some(MixtureOfExperts {
            count,
            top_k: keys.size("moe_top_k")?,
            every: keys.size("moe_every_n_layers")?,
        })),
    }
}

/// Whether transformers has no names for a model: one without a gate.
pub(super) fn is_plain(encoder: &EncoderConfig) -> bool {
    encoder.gate == Gate::None
}

pub(super) fn write(config: &ModelConfig) -> Value {
    let encoder = encoder::part(config);
    if !is_plain(&encoder) {
        return rotary_encoder::write(config, "NomicBertModel");
    }
    let classes = "nomic-ai/nomic-bert-2048--";
    let mut value = json!({
        "architectures": ["NomicBertModel"],
        "model_type": config.family.model_type(),
        // The classes that read this, which no release of transformers has.
        "auto_map": {
            "AutoConfig": format!("{classes}configuration_hf_nomic_bert.NomicBertConfig"),
            "AutoModel": format!("{classes}modeling_hf_nomic_bert.NomicBertModel"),
        },
        "vocab_size": config.vocab_size,
        "n_embd": config.hidden_size,
        "n_inner": config.intermediate_size,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "n_positions": config.max_positions,
        "type_vocab_size": encoder.type_vocab_size,
        "layer_norm_epsilon": config.norm_eps,
        "activation_function": config.activation.to_hf(),
        "pad_token_id": config.pad_token_id,
        "add_pooling_layer": false,
        "prenorm": false,
        "use_rms_norm": false,
        "causal": false,
        "parallel_block": false,
        "is_decoder": config.attention == AttentionMode::Causal,
        "qkv_proj_bias": encoder.qkv_bias,
        "mlp_fc1_bias": encoder.up_bias,
        "mlp_fc2_bias": encoder.down_bias,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": false,
        "rotary_emb_scale_base": null,
        "rotary_scaling_factor": null,
        "num_experts": 0,
    });
    if let Some(ropes) = &encoder.ropes {
        value["rotary_emb_base"] = json!(ropes.global.theta);
        if ropes.global.scaling != RopeScaling::Default {
            value["rope_parameters"] = rope::write(&ropes.global);
        }
    }
    if let Some(experts) = encoder.experts {
        value["num_experts"] = json!(experts.count);
        value["moe_top_k"] = json!(experts.top_k);
        value["moe_every_n_layers"] = json!(experts.every);
        value["moe_impl"] = json!("megablocks");
        for flag in ["moe_normalize_expert_weights", "expert_choice_router"] {
            value[flag] = json!(false);
        }
        value["num_shared_experts"] = json!(0);
        value["ffn_div"] = json!(1);
    }
    value
}

pub(super) fn names(config: &ModelConfig) -> Names {
    match is_plain(&encoder::part(config)) {
        true => released(config),
        false => rotary_encoder::names(config, &["", "nomic_bert.", "bert."]),
    }
}

/// Names of the release; each expert by itself, as quantized files have them and [`stacked`] reads them.
pub(super) fn released(config: &ModelConfig) -> Names {
    let names = Names::new(&["", "bert.", "nomic_bert."], "encoder.layers.0.attn.Wqkv.weight")
        .tensor("token_embedding.weight", "embeddings.word_embeddings.weight")
        .tensor("type_embedding", "embeddings.token_type_embeddings.weight")
        .norm("norm", "emb_ln")
        .joined(
            "blocks.{}.attention.qkv",
            &[("encoder.layers.{}.attn.Wqkv", 3 * config.hidden_size)],
        )
        .linear("blocks.{}.attention.output", "encoder.layers.{}.attn.out_proj")
        .norm("blocks.{}.attention_norm", "encoder.layers.{}.norm1")
        .linear("blocks.{}.feed_forward.down", "encoder.layers.{}.mlp.fc2")
        .norm("blocks.{}.feed_forward_norm", "encoder.layers.{}.norm2")
        .ignored(&IGNORED);
    if !is_plain(&encoder::part(config)) {
        return names
            .linear("blocks.{}.feed_forward.gate", "encoder.layers.{}.mlp.fc12")
            .linear("blocks.{}.feed_forward.up", "encoder.layers.{}.mlp.fc11");
    }
    let expert = "encoder.layers.{}.mlp.experts.{}";
    names
        .linear("blocks.{}.feed_forward.up", "encoder.layers.{}.mlp.fc1")
        .linear("blocks.{}.feed_forward.router", "encoder.layers.{}.mlp.router.layer")
        .linear("blocks.{}.feed_forward.experts.{}.up", &format!("{expert}.fc1"))
        .linear("blocks.{}.feed_forward.experts.{}.down", &format!("{expert}.fc2"))
        .tensor("blocks.{}.feed_forward.bias", "encoder.layers.{}.mlp.experts.bias")
}

/// The weights of all experts of a layer, which the release has in one tensor `[experts inner, hidden]` each: those
/// into an expert as `[out, in]`, those out of it as `[in, out]`.
pub(super) fn stacked(config: &ModelConfig) -> Vec<Stacked> {
    let Some(experts) = encoder::part(config).experts else {
        return Vec::new();
    };
    let layers = (0..config.num_layers).filter(|layer| experts.are_in(*layer));
    let of_layer = |layer| {
        let mlp = format!("encoder.layers.{layer}.mlp.experts");
        [("w1", "fc1", false), ("w2", "fc2", true)].map(|(whole, part, turned)| Stacked {
            name: format!("{mlp}.mlp.{whole}"),
            parts: (0..experts.count)
                .map(|expert| format!("{mlp}.{expert}.{part}.weight"))
                .collect(),
            shape: [experts.count * config.intermediate_size, config.hidden_size],
            turned,
        })
    };
    layers.flat_map(of_layer).collect()
}
