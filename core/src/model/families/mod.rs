//! One thin file a family: which keys of `config.json` and which weight names it has.

mod bert;
mod decoder;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;

use serde_json::Value;

use crate::checkpoint::names::Names;
use crate::config::{Family, Keys, ModelConfig};
use crate::{Error, Result};

/// Dispatches on `model_type`.
pub(crate) fn read_config(keys: &Keys<'_>) -> Result<ModelConfig> {
    match keys.text_or("model_type", "")? {
        "bert" => bert::read(Family::Bert, keys),
        "roberta" => bert::read(Family::Roberta, keys),
        "xlm-roberta" => bert::read(Family::XlmRoberta, keys),
        "llama" => llama::read(keys),
        "mistral" => mistral::read(keys),
        "qwen2" => qwen2::read(keys),
        "qwen3" => qwen3::read(keys),
        // NV-Embed wraps a Mistral that attends in both directions; its latent-attention
        // head is read by `checkpoint::sentence_transformers`.
        "nvembed" => {
            let inner = keys
                .get("text_config")
                .ok_or_else(|| keys.bad("the key text_config is missing"))?;
            let mut config = mistral::read(&Keys::new(inner)?)?;
            config.attention = crate::config::AttentionMode::Bidirectional;
            Ok(config)
        }
        found => Err(Error::UnknownFamily {
            found: found.to_string(),
            known: Family::ALL.map(Family::model_type).join(", ") + ", nvembed",
        }),
    }
}

/// The `config.json` of a model, as transformers reads it.
pub(crate) fn write_config(config: &ModelConfig) -> Value {
    match config.family {
        Family::Bert | Family::Roberta | Family::XlmRoberta => bert::write(config),
        Family::Llama => llama::write(config),
        Family::Mistral => mistral::write(config),
        Family::Qwen2 => qwen2::write(config),
        Family::Qwen3 => qwen3::write(config),
    }
}

/// The weight names of a model.
pub(crate) fn names(config: &ModelConfig) -> Names {
    match config.family {
        Family::Bert | Family::Roberta | Family::XlmRoberta => bert::names(config),
        Family::Llama | Family::Mistral | Family::Qwen2 | Family::Qwen3 => decoder::names(config),
    }
}
