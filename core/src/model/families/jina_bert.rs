//! jina-embeddings-v2 (arXiv:2310.19923): BERT with ALiBi in both directions in place of positions, and a gated
//! feed-forward. Its `config.json` says `bert` and means the class that `auto_map` names.

use serde_json::{Value, json};

use super::Names;
use super::encoder::{self, IGNORED};
use crate::Result;
use crate::config::{Activation, Family, Gate, Keys, ModelConfig, ScoreBias, bad_config};

/// Whether a BERT is one of these.
pub(super) fn is(keys: &Keys<'_>) -> bool {
    keys.get("position_embedding_type").and_then(Value::as_str) == Some("alibi")
}

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    let of_class = keys.get("auto_map").map(Value::to_string).unwrap_or_default();
    if of_class.contains("qk-post-norm") {
        return Err(bad_config(
            "jina-bert-v2-qk-post-norm (jina-embeddings-v2 for code, Chinese, German and Spanish) is not supported; \
             jina-embeddings-v2-small-en and -base-en are",
        ));
    }
    let (mut config, mut encoder) = encoder::base(keys, Family::JinaBert, &encoder::KEYS, Some(0))?;
    encoder.type_vocab_size = keys.size_or("type_vocab_size", Some(2))?;
    encoder.score_bias = Some(ScoreBias::Alibi);
    let kind = keys.text_or("feed_forward_type", "original")?;
    encoder.gate = if kind == "original" { Gate::None } else { Gate::Joined };
    encoder.up_bias = encoder.gate == Gate::None;
    config.activation = match kind {
        "original" => config.activation,
        "geglu" => Activation::Gelu,
        "reglu" => Activation::Relu,
        other => {
            return Err(bad_config(format!(
                "feed_forward_type {other:?} is not supported; original, geglu and reglu are"
            )));
        }
    };
    Ok(encoder::with(config, encoder))
}

pub(super) fn write(config: &ModelConfig) -> Value {
    let mut value = encoder::write(config, "JinaBertModel");
    value["position_embedding_type"] = json!("alibi");
    value["feed_forward_type"] = match (encoder::part(config).gate, config.activation) {
        (Gate::None, _) => json!("original"),
        (_, Activation::Relu) => json!("reglu"),
        _ => json!("geglu"),
    };
    // The class that reads this, which no release of transformers has.
    value["auto_map"] = json!({
        "AutoConfig": "jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig",
        "AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel",
    });
    value
}

pub(super) fn names(config: &ModelConfig) -> Names {
    let names = encoder::bert_attention(config, &["", "bert."]).ignored(&IGNORED);
    if encoder::part(config).gate == Gate::None {
        return encoder::bert_feed_forward(names);
    }
    names
        .linear("blocks.{}.feed_forward.up", "encoder.layer.{}.mlp.gated_layers")
        .linear("blocks.{}.feed_forward.down", "encoder.layer.{}.mlp.wo")
        .norm("blocks.{}.feed_forward_norm", "encoder.layer.{}.mlp.layernorm")
}
