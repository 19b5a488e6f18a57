//! MPNet (arXiv:2004.09297): RoBERTa's positions, no token types, and a learned bias on the scores for each
//! bucket of distances, which all layers share.

use serde_json::{Value, json};

use super::Names;
use super::encoder::{self, Traits};
use crate::Result;
use crate::config::{Family, Keys, ModelConfig, ScoreBias, bad_config};

/// Buckets and largest distance, which transformers' class has built in.
const BUCKETS: usize = 32;
const MAX_DISTANCE: usize = 128;

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    let buckets = keys.size_or("relative_attention_num_buckets", Some(BUCKETS))?;
    if buckets != BUCKETS {
        return Err(bad_config(format!(
            "relative_attention_num_buckets is {buckets}, and MPNet computes with {BUCKETS}"
        )));
    }
    let traits = Traits {
        family: Family::Mpnet,
        default_pad: 1,
        // The class counts from the one after 1, whatever the padding's id.
        position_offset: |_| 2,
        default_types: 0,
    };
    let (mut config, mut encoder) =
        encoder::base(keys, traits.family, &encoder::KEYS, Some(traits.default_pad))?;
    encoder::learn_positions(keys, &mut config, &mut encoder, &traits)?;
    encoder.score_bias = Some(ScoreBias::Buckets { buckets, max_distance: MAX_DISTANCE });
    Ok(encoder::with(config, encoder))
}

pub(super) fn write(config: &ModelConfig) -> Value {
    let mut value = encoder::write(config, "MPNetModel");
    value["relative_attention_num_buckets"] = json!(BUCKETS);
    if let Some(object) = value.as_object_mut() {
        object.remove("type_vocab_size");
        object.remove("position_embedding_type");
    }
    value
}

pub(super) fn names(config: &ModelConfig) -> Names {
    let width = config.hidden_size;
    let names = Names::new(&["", "mpnet.", "model."], "embeddings.word_embeddings.weight");
    encoder::bert_feed_forward(encoder::embeddings(names))
        .tensor("relative_bias", "encoder.relative_attention_bias.weight")
        .joined(
            "blocks.{}.attention.qkv",
            &[
                ("encoder.layer.{}.attention.attn.q", width),
                ("encoder.layer.{}.attention.attn.k", width),
                ("encoder.layer.{}.attention.attn.v", width),
            ],
        )
        .linear("blocks.{}.attention.output", "encoder.layer.{}.attention.attn.o")
        .norm("blocks.{}.attention_norm", "encoder.layer.{}.attention.LayerNorm")
}
