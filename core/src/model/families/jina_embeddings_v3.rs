//! jina-embeddings-v3 (arXiv:2409.10173): XLM-RoBERTa whose positions are rotary. The release for transformers has fused
//! projections, and its adapters for tasks are PEFT's, in folders beside the base; transformers 5 saves its own names. The
//! first release, for code of its own, calls itself `xlm-roberta` and has the adapters beside its weights
//! (`checkpoint::task_adapter`).

use serde_json::Value;

use super::Names;
use super::encoder::{self, IGNORED, KeyNames};
use super::{rope, rotary_encoder};
use crate::Result;
use crate::config::{Family, Keys, ModelConfig, Ropes};

const KEYS: KeyNames = KeyNames { norm_eps: ("layer_norm_eps", 1e-5), ..encoder::KEYS };

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    read_with(keys, 20_000.0)
}

/// Whether an `xlm-roberta` is one of these, as first released.
pub(super) fn is(keys: &Keys<'_>) -> bool {
    keys.get("position_embedding_type").is_some_and(|kind| kind == "rotary")
}

/// The configuration of the first release.
pub(super) fn read_first(keys: &Keys<'_>) -> Result<ModelConfig> {
    read_with(keys, keys.float_or("rotary_emb_base", 10_000.0)?)
}

fn read_with(keys: &Keys<'_>, theta: f64) -> Result<ModelConfig> {
    let (config, mut encoder) = encoder::base(keys, Family::JinaEmbeddingsV3, &KEYS, Some(1))?;
    encoder.type_vocab_size = keys.size_or("type_vocab_size", Some(1))?;
    encoder.ropes = Some(Ropes::alike(rope::read(keys, theta, config.max_positions)?));
    Ok(encoder::with(config, encoder))
}

pub(super) fn write(config: &ModelConfig) -> Value {
    rotary_encoder::write(config, "JinaEmbeddingsV3Model")
}

pub(super) fn names(config: &ModelConfig) -> Names {
    rotary_encoder::attention(config, &["", "roberta."])
        .linear("blocks.{}.feed_forward.up", "layers.{}.mlp.fc1")
        .linear("blocks.{}.feed_forward.down", "layers.{}.mlp.fc2")
}

/// Names of both releases.
pub(super) fn released(config: &ModelConfig) -> Names {
    Names::new(&["", "roberta."], "encoder.layers.0.mixer.Wqkv.weight")
        .tensor("token_embedding.weight", "embeddings.word_embeddings.weight")
        .tensor("type_embedding", "embeddings.token_type_embeddings.weight")
        .norm("norm", "emb_ln")
        .joined(
            "blocks.{}.attention.qkv",
            &[("encoder.layers.{}.mixer.Wqkv", 3 * config.hidden_size)],
        )
        .linear("blocks.{}.attention.output", "encoder.layers.{}.mixer.out_proj")
        .norm("blocks.{}.attention_norm", "encoder.layers.{}.norm1")
        .linear("blocks.{}.feed_forward.up", "encoder.layers.{}.mlp.fc1")
        .linear("blocks.{}.feed_forward.down", "encoder.layers.{}.mlp.fc2")
        .norm("blocks.{}.feed_forward_norm", "encoder.layers.{}.norm2")
        .ignored(&IGNORED)
        .ignored(&["{}.parametrizations.weight.0.lora_A", "{}.parametrizations.weight.0.lora_B"])
}
