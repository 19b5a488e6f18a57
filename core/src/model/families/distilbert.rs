//! DistilBERT (arXiv:1910.01108): BERT without token types, under names of its own.

use serde_json::{Value, json};

use super::Names;
use super::encoder::{self, KeyNames, Traits};
use crate::Result;
use crate::config::{AttentionMode, Family, Keys, ModelConfig};

/// Sinusoidal positions are a table in the file like others.
const KEYS: KeyNames = KeyNames {
    hidden_size: "dim",
    intermediate_size: "hidden_dim",
    num_layers: "n_layers",
    num_heads: "n_heads",
    max_positions: "max_position_embeddings",
    // The class has it built in.
    norm_eps: ("layer_norm_eps", 1e-12),
    activation: ("activation", "gelu"),
};

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    let traits = Traits {
        family: Family::Distilbert,
        default_pad: 0,
        position_offset: |_| 0,
        default_types: 0,
    };
    let (mut config, mut encoder) =
        encoder::base(keys, traits.family, &KEYS, Some(traits.default_pad))?;
    encoder::learn_positions(keys, &mut config, &mut encoder, &traits)?;
    Ok(encoder::with(config, encoder))
}

pub(super) fn write(config: &ModelConfig) -> Value {
    json!({
        "architectures": ["DistilBertModel"],
        "model_type": config.family.model_type(),
        "vocab_size": config.vocab_size,
        "dim": config.hidden_size,
        "hidden_dim": config.intermediate_size,
        "n_layers": config.num_layers,
        "n_heads": config.num_heads,
        "max_position_embeddings": config.max_positions,
        "activation": config.activation.to_hf(),
        "pad_token_id": config.pad_token_id,
        "sinusoidal_pos_embds": false,
        "is_decoder": config.attention == AttentionMode::Causal,
    })
}

pub(super) fn names(config: &ModelConfig) -> Names {
    let width = config.hidden_size;
    let names = Names::new(&["", "distilbert.", "model."], "embeddings.word_embeddings.weight");
    encoder::embeddings(names)
        .joined(
            "blocks.{}.attention.qkv",
            &[
                ("transformer.layer.{}.attention.q_lin", width),
                ("transformer.layer.{}.attention.k_lin", width),
                ("transformer.layer.{}.attention.v_lin", width),
            ],
        )
        .linear("blocks.{}.attention.output", "transformer.layer.{}.attention.out_lin")
        .norm("blocks.{}.attention_norm", "transformer.layer.{}.sa_layer_norm")
        .linear("blocks.{}.feed_forward.up", "transformer.layer.{}.ffn.lin1")
        .linear("blocks.{}.feed_forward.down", "transformer.layer.{}.ffn.lin2")
        .norm("blocks.{}.feed_forward_norm", "transformer.layer.{}.output_layer_norm")
        .ignored(&["vocab_transform.", "vocab_layer_norm.", "vocab_projector.", "pre_classifier."])
}
