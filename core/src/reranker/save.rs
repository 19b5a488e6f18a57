//! Writes a cross-encoder as transformers' class for sequence classification, as sentence-transformers'
//! `CrossEncoder` reads it, as it reads a decoder that was trained; and another decoder that ranks with its prompt and the
//! direction of its score, for Kiln alone.

use burn::tensor::read_sync;
use bytes::Bytes;
use serde_json::{Value, json};

use super::head::{self, Between, HeadConfig, Scored};
use super::{PairInput, Reranker, ScoreActivation};
use crate::checkpoint::{
    StoredTensor, each_tensor, kept_score_files, save_backbone, write_tensors,
};
use crate::config::{Family, ModelConfig};
use crate::embedder::read;
use crate::folder::Files;
use crate::kernels::Kernels;
use crate::model::families::Names;
use crate::{Error, Result};

/// The file of the tokenizer's settings, which says how many tokens a pair may have.
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Those of a decoder's module that reads a pair, which may say it, too.
const TRANSFORMER_CONFIG: &str = "sentence_bert_config.json";
/// Where sentence-transformers looks for the activation of a list of modules.
const LISTED_CONFIG: &str = "config_sentence_transformers.json";

/// A cross-encoder as the files of a folder; LoRA adapters are merged. Of a decoder's language-model head the direction
/// of its score alone is kept, unless the decoder was loaded to be trained.
///
/// # Errors
/// Parameters that cannot be read back from the device.
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
    let Reranker { backbone, head, config, tokenizer, tokenizer_files, .. } = reranker;
    let Form { prefix, value, names } = Form::of(reranker)?;
    let (mut tensors, mut of_head) = (Vec::new(), Vec::new());
    save_backbone(config, backbone, &mut |name, shape, values| {
        let name = format!("{prefix}{name}");
        let tensor = store(&name, shape, values)?;
        tensors.push((name, tensor));
        Ok::<_, E>(())
    })?;
    each_tensor(head, &names, &mut |name, shape, values| {
        of_head.push((name, StoredTensor::Full(shape, values)));
        Ok::<_, E>(())
    })?;
    let mut files = match (&reranker.input, &reranker.answer) {
        (PairInput::Template, _) => {
            tensors.extend(of_head);
            Files::default()
        }
        (PairInput::Prompt(_), Some(answer)) => {
            if let Some(table) = &reranker.lm_head {
                let (name, shape) = ("lm_head.weight", table.dims().to_vec());
                let values = read_sync(read(table.clone()))?;
                tensors.push((name.into(), store(name, shape, values)?));
            }
            let mut files = answer.files.clone();
            let own = files.0.get(TRANSFORMER_CONFIG);
            let own = changed(TRANSFORMER_CONFIG, own, |value| {
                for of in ["chat_template", "text", "common"] {
                    let length = value.pointer_mut(&format!("/processing_kwargs/{of}/max_length"));
                    if let Some(length) = length.filter(|length| !length.is_null()) {
                        *length = json!(tokenizer.config().max_length);
                    }
                }
            })?;
            files.0.insert(TRANSFORMER_CONFIG.into(), own);
            let listed = changed(LISTED_CONFIG, files.0.get(LISTED_CONFIG), |value| {
                value["activation_fn"] = json!(function(reranker.activation));
            })?;
            files.0.insert(LISTED_CONFIG.into(), listed);
            files
        }
        (PairInput::Prompt(prompt), None) => {
            let prompt = serde_json::to_value(prompt).map_err(Error::invalid)?;
            let mut files =
                kept_score_files(&prompt, write_tensors(&of_head, &[("format", "pt")])?);
            let settings = json!({ "do_lower_case": tokenizer.config().lower_case });
            files.0.insert(TRANSFORMER_CONFIG.into(), format!("{settings:#}\n").into());
            files
        }
    };
    files.0.extend(tokenizer_files.0.clone());
    if !files.0.contains_key("tokenizer.json") {
        files.0.insert("tokenizer.json".into(), tokenizer.to_json()?.into());
    }
    let settings = changed(TOKENIZER_CONFIG, files.0.get(TOKENIZER_CONFIG), |value| {
        value["model_max_length"] = json!(tokenizer.config().max_length);
    })?;
    files.0.insert(TOKENIZER_CONFIG.into(), settings);
    files.0.insert("config.json".into(), format!("{value:#}\n").into());
    let weights = write_tensors(&tensors, &[("format", "pt")])?;
    files.0.insert("model.safetensors".into(), weights.into());
    Ok(files)
}

/// How a reranker is written.
struct Form {
    /// What stands before the names of the backbone's tensors.
    prefix: &'static str,
    /// The `config.json`.
    value: Value,
    /// Names of the head's tensors.
    names: Names,
}

impl Form {
    fn of<B: Kernels>(reranker: &Reranker<B>) -> Result<Self> {
        let Reranker { head, answer, config, input, activation, .. } = reranker;
        if let PairInput::Prompt(_) = input {
            let mut value = config.to_value();
            say_activation(&mut value, *activation);
            let mut prefix = "";
            if let Some(answer) = answer {
                prefix = answer.prefix;
                value["architectures"] = answer.architectures.clone();
            }
            let (_, names) = head::of_decoder(config);
            return Ok(Self { prefix, value, names });
        }
        let family = config.family.model_type();
        let none = || Error::invalid(format!("{family} has no class for sequence classification"));
        let (prefix, class) = class_of(config.family).ok_or_else(none)?;
        let value = config_value(config, class, head.config(), *activation);
        let of_family = head::of_family(config, &value, prefix, head.labels())?;
        let (_, names) = of_family.ok_or_else(none)?;
        Ok(Self { prefix, value, names })
    }
}

/// What stands before the names of the backbone's tensors in a family's class for sequence classification, and the
/// class.
fn class_of(family: Family) -> Option<(&'static str, &'static str)> {
    Some(match family {
        Family::Bert => ("bert.", "BertForSequenceClassification"),
        Family::Roberta => ("roberta.", "RobertaForSequenceClassification"),
        Family::XlmRoberta => ("roberta.", "XLMRobertaForSequenceClassification"),
        Family::XlmRobertaXl => ("roberta.", "XLMRobertaXLForSequenceClassification"),
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
    say_activation(&mut value, activation);
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

/// Puts the activation where sentence-transformers looks for it.
fn say_activation(config: &mut Value, activation: ScoreActivation) {
    config["sentence_transformers"] = json!({ "activation_fn": function(activation) });
}

/// PyTorch's name of an activation.
fn function(activation: ScoreActivation) -> &'static str {
    match activation {
        ScoreActivation::Identity => "torch.nn.modules.linear.Identity",
        ScoreActivation::Sigmoid => "torch.nn.modules.activation.Sigmoid",
    }
}

/// A file of settings, changed.
fn changed(file: &str, text: Option<&Bytes>, change: impl FnOnce(&mut Value)) -> Result<Bytes> {
    let mut value: Value = match text {
        Some(text) => serde_json::from_slice(text)
            .map_err(|cause| Error::invalid(format!("{file}: is not valid JSON: {cause}")))?,
        None => json!({}),
    };
    change(&mut value);
    Ok(format!("{value:#}\n").into())
}
