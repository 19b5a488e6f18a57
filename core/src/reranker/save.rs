//! Writes a cross-encoder as transformers' class for sequence classification, as sentence-transformers'
//! `CrossEncoder` reads it.

use bytes::Bytes;
use serde_json::{Value, json};

use super::head::{self, Between, HeadConfig, Scored};
use super::{PairInput, Reranker, ScoreActivation};
use crate::checkpoint::{StoredTensor, each_tensor, save_backbone, write_tensors};
use crate::config::{Family, ModelConfig};
use crate::folder::Files;
use crate::kernels::Kernels;
use crate::{Error, Result};

/// The file of the tokenizer's settings, which says how many tokens a pair may have.
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// A cross-encoder as the files of a folder; LoRA adapters are merged.
///
/// # Errors
/// A cross-encoder that reads pairs inside a prompt, or parameters that cannot be read back from the device.
pub fn save_reranker<B: Kernels>(reranker: &Reranker<B>) -> Result<Files> {
    save_reranker_as(reranker, |_, shape, values| Ok::<_, Error>(StoredTensor::Full(shape, values)))
}

/// As [`save_reranker`], with the backbone's tensors as `store` makes them of their names, shapes and values; the head
/// stays in f32.
///
/// # Errors
/// As [`save_reranker`], and those of `store`.
pub fn save_reranker_as<B: Kernels, E: From<Error>>(
    reranker: &Reranker<B>,
    mut store: impl FnMut(&str, Vec<usize>, Vec<f32>) -> Result<StoredTensor, E>,
) -> Result<Files, E> {
    let Reranker { backbone, head, config, tokenizer, tokenizer_files, activation, .. } = reranker;
    let class = class_of(config.family).filter(|_| reranker.input == PairInput::Template);
    let Some((prefix, class)) = class else {
        return Err(Error::invalid(
            "a reranker that reads pairs inside a prompt cannot be saved; use the files that it was loaded from",
        )
        .into());
    };
    let value = config_value(config, class, head.config(), *activation);
    let Some((_, names)) = head::of_family(config, &value, prefix, head.labels())? else {
        return Err(Error::invalid(format!("{class} has no head")).into());
    };
    let mut tensors = Vec::new();
    save_backbone(config, backbone, &mut |name, shape, values| {
        let name = format!("{prefix}{name}");
        let tensor = store(&name, shape, values)?;
        tensors.push((name, tensor));
        Ok::<_, E>(())
    })?;
    each_tensor(head, &names, &mut |name, shape, values| {
        tensors.push((name, StoredTensor::Full(shape, values)));
        Ok::<_, E>(())
    })?;
    let mut files = Files::default();
    files.0.extend(tokenizer_files.0.clone());
    if !files.0.contains_key("tokenizer.json") {
        files.0.insert("tokenizer.json".into(), tokenizer.to_json()?.into());
    }
    let settings = files.0.get(TOKENIZER_CONFIG);
    let settings = with_max_length(settings, tokenizer.config().max_length)?;
    files.0.insert(TOKENIZER_CONFIG.into(), settings);
    files.0.insert("config.json".into(), format!("{value:#}\n").into());
    let weights = write_tensors(&tensors, &[("format", "pt")])?;
    files.0.insert("model.safetensors".into(), weights.into());
    Ok(files)
}

/// What stands before the names of the backbone's tensors in a family's class for sequence classification, and the
/// class.
fn class_of(family: Family) -> Option<(&'static str, &'static str)> {
    Some(match family {
        Family::Bert => ("bert.", "BertForSequenceClassification"),
        Family::Roberta => ("roberta.", "RobertaForSequenceClassification"),
        Family::XlmRoberta => ("roberta.", "XLMRobertaForSequenceClassification"),
        Family::Camembert => ("roberta.", "CamembertForSequenceClassification"),
        Family::Distilbert => ("distilbert.", "DistilBertForSequenceClassification"),
        Family::Mpnet => ("mpnet.", "MPNetForSequenceClassification"),
        Family::Modernbert => ("model.", "ModernBertForSequenceClassification"),
        Family::NomicBert => ("nomic_bert.", "NomicBertForSequenceClassification"),
        Family::Gte => ("gte.", "GteForSequenceClassification"),
        _ => return None,
    })
}

/// The `config.json`: the backbone's keys, the head's, and sentence-transformers' activation.
fn config_value(
    config: &ModelConfig,
    class: &str,
    head: &HeadConfig,
    activation: ScoreActivation,
) -> Value {
    let mut value = config.to_value();
    value["architectures"] = json!([class]);
    // transformers counts the labels by their names.
    let name = |label: usize| format!("LABEL_{label}");
    let labels = || 0..head.labels;
    value["id2label"] = labels().map(|label| (label.to_string(), json!(name(label)))).collect();
    value["label2id"] = labels().map(|label| (name(label), json!(label))).collect();
    let function = match activation {
        ScoreActivation::Identity => "torch.nn.modules.linear.Identity",
        ScoreActivation::Sigmoid => "torch.nn.modules.activation.Sigmoid",
    };
    value["sentence_transformers"] = json!({ "activation_fn": function });
    if config.family == Family::Modernbert {
        value["classifier_pooling"] =
            json!(if head.scored == Scored::Mean { "mean" } else { "cls" });
        if let Some((between, bias)) = head.dense {
            value["classifier_activation"] = json!(match between {
                Between::Tanh => "tanh",
                Between::Gelu => "gelu",
                Between::Relu => "relu",
            });
            value["classifier_bias"] = json!(bias);
        }
    }
    value
}

/// The tokenizer's settings with the most tokens that a pair may have.
fn with_max_length(settings: Option<&Bytes>, max_length: usize) -> Result<Bytes> {
    let mut value: Value = match settings {
        Some(text) => serde_json::from_slice(text).map_err(|cause| {
            Error::invalid(format!("{TOKENIZER_CONFIG}: is not valid JSON: {cause}"))
        })?,
        None => json!({}),
    };
    value["model_max_length"] = json!(max_length);
    Ok(format!("{value:#}\n").into())
}
