//! Reads cross-encoders: transformers' folders with a head for sequence classification, as
//! sentence-transformers' `CrossEncoder` writes them, and decoders that answer `yes` or `no`.

use burn::module::Param;
use burn::tensor::{Int, Tensor, TensorData};
use serde_json::Value;

use super::head::{self, HeadConfig, OUTPUTS, ScoreHead, Scored};
use super::{PairInput, Reranker, ScoreActivation};
use crate::checkpoint::{LoadOptions, Weights, load_backbone, read_folder};
use crate::config::ModelConfig;
use crate::folder::Folder;
use crate::kernels::Kernels;
use crate::model::families;
use crate::tokenizer::{InstructionSpan, Tokenizer};
use crate::{Error, Result};

/// Qwen3-Reranker's prompt (arXiv:2506.05176, section 2 and its model card).
const BEFORE: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and \
                      the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n\
                      <|im_start|>user\n";
const AFTER: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
const INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

impl<B: Kernels> Reranker<B> {
    /// Loads a cross-encoder onto a device. Of `options` only length limit and precision are taken.
    ///
    /// # Errors
    /// Files that are missing, cannot be read or do not fit each other; a model that is no reranker.
    pub fn load_with(
        folder: &dyn Folder,
        options: &LoadOptions,
        device: &B::Device,
    ) -> Result<Self> {
        let read = read_folder(folder, InstructionSpan::Pooled, options)?;
        let config = read.config;
        let mut weights = Weights::open(folder, &read.stem)?;
        let labels = OUTPUTS.iter().find_map(|name| {
            let info = weights.tensors().get(*name)?;
            info.shape.first().copied().filter(|_| info.shape.len() == 2)
        });
        let prefix = {
            let has = |name: &str| weights.tensors().contains_key(name);
            families::names_in(&config, has).prefix(has)
        };
        let of_head = labels.and_then(|labels| head::of_family(&config, &read.raw, prefix, labels));
        if of_head.is_none() && !answers(&read.raw) {
            return Err(no_reranker(folder, "it has no classifier"));
        }
        weights.give_in(options.precision);
        let backbone = load_backbone::<B>(&config, &mut weights, device)?;
        let (head, input) = match of_head {
            Some((shape, names)) => {
                read.tokenizer.check_pairs()?;
                check_types(&config, &read.tokenizer)?;
                (filled(shape, &names, prefix, folder, &read.stem, device)?, PairInput::Template)
            }
            None => {
                let (yes, no) =
                    match (read.tokenizer.token_id("yes"), read.tokenizer.token_id("no")) {
                        (Some(yes), Some(no)) => (yes, no),
                        _ => return Err(no_reranker(folder, "its vocabulary has no yes and no")),
                    };
                let table = match weights.read("lm_head.weight")? {
                    Some(values) => {
                        let shape = [config.vocab_size, config.hidden_size];
                        if values.len() != shape[0] * shape[1] {
                            return Err(no_reranker(folder, "lm_head.weight has another shape"));
                        }
                        Tensor::from_data(TensorData::new(values, shape), device)
                    }
                    None => backbone.token_embedding(),
                };
                let prompt = PairInput::Prompt {
                    before: BEFORE.into(),
                    after: AFTER.into(),
                    instruction: INSTRUCTION.into(),
                };
                (yes_minus_no(&config, table, [yes, no], device), prompt)
            }
        };
        let activation = activation(&read.raw, head.labels()).map_err(|cause| {
            Error::bad_file(folder.file_label("config.json"), cause, "change it there")
        })?;
        Ok(Self {
            backbone,
            head,
            config,
            tokenizer: read.tokenizer,
            input,
            activation,
            device: device.clone(),
        })
    }
}

/// Whether the model has an embedding for each type that the tokenizer gives tokens.
fn check_types(config: &ModelConfig, tokenizer: &Tokenizer) -> Result<()> {
    let types = config.encoder()?.type_vocab_size;
    let largest = tokenizer.encode_pair("a", "b")?.types.into_iter().max().unwrap_or(0);
    if types == 0 || (largest as usize) < types {
        return Ok(());
    }
    Err(Error::bad_file(
        "tokenizer.json",
        format!("has token types up to {largest}, and the model embeddings for {types}"),
        "use the tokenizer.json that was saved with the reranker",
    ))
}

fn no_reranker(folder: &dyn Folder, why: &str) -> Error {
    Error::invalid(format!(
        "{}: is no reranker: {why}; name a cross-encoder, or use an embedder with `kiln search`",
        folder.label()
    ))
}

/// Whether a model is a language model that is asked for an answer.
fn answers(raw: &Value) -> bool {
    let class = raw["architectures"][0].as_str().unwrap_or_default();
    class.ends_with("ForCausalLM") && raw["model_type"] == "qwen3"
}

fn filled<B: Kernels>(
    shape: HeadConfig,
    names: &families::Names,
    prefix: &str,
    folder: &dyn Folder,
    stem: &str,
    device: &B::Device,
) -> Result<ScoreHead<B>> {
    // Opened again, so that the head's reader lists only its own tensors.
    let mut weights = Weights::open(folder, stem)?;
    let pooler = format!("{prefix}pooler.");
    let starts = [pooler.as_str(), "classifier.", "pre_classifier.", "head."];
    weights.retain(|name| starts.iter().any(|start| name.starts_with(start)));
    crate::checkpoint::fill(ScoreHead::unfilled(shape, device), &mut weights, names, "", device)
}

/// The score is the difference of two logits, `h (E_yes - E_no)`.
fn yes_minus_no<B: Kernels>(
    config: &ModelConfig,
    table: Tensor<B, 2>,
    [yes, no]: [u32; 2],
    device: &B::Device,
) -> ScoreHead<B> {
    let shape = HeadConfig {
        hidden: config.hidden_size,
        labels: 1,
        scored: Scored::Last,
        dense: None,
        norm: None,
        output_bias: false,
    };
    let mut head = ScoreHead::unfilled(shape, device);
    let ids = TensorData::new(vec![yes as i32, no as i32], [2]);
    let rows = table.select(0, Tensor::<B, 1, Int>::from_data(ids, device));
    let difference = rows.clone().narrow(0, 0, 1) - rows.narrow(0, 1, 1);
    head.output.weight = Param::from_tensor(difference.transpose());
    head
}

/// What is made of the scores: as the files say, else a sigmoid of a single score.
fn activation(raw: &Value, labels: usize) -> std::result::Result<ScoreActivation, String> {
    let class = raw["sentence_transformers"]["activation_fn"]
        .as_str()
        .or(raw["sbert_ce_default_activation_function"].as_str());
    match class.map(|class| class.rsplit('.').next().unwrap_or_default()) {
        Some("Identity") => Ok(ScoreActivation::Identity),
        Some("Sigmoid") => Ok(ScoreActivation::Sigmoid),
        Some(other) => Err(format!(
            "the activation {other:?} of its scores is not supported; Identity and Sigmoid are"
        )),
        None if labels == 1 => Ok(ScoreActivation::Sigmoid),
        None => Ok(ScoreActivation::Identity),
    }
}
