//! Reads cross-encoders: transformers' folders with a head for sequence classification, as
//! sentence-transformers' `CrossEncoder` writes them, and decoders that answer `yes` or `no`.

use burn::module::Param;
use burn::tensor::{Int, Tensor, TensorData};
use serde_json::Value;

use super::head::{self, HeadConfig, OUTPUTS, ScoreHead, Scored};
use super::{PairInput, Reranker, ScoreActivation};
use crate::checkpoint::{
    LoadOptions, Manifest, Weights, load_backbone, pools, read_activation, read_folder,
    read_prompts,
};
use crate::config::ModelConfig;
use crate::embedder::Prompt;
use crate::folder::Folder;
use crate::kernels::Kernels;
use crate::model::families;
use crate::quant::WeightPrecision;
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
    /// Files that are missing, damaged, cannot be read or do not fit each other; a model that is no reranker.
    pub fn load_with(
        folder: &dyn Folder,
        options: &LoadOptions,
        device: &B::Device,
    ) -> Result<Self> {
        let manifest = Manifest::read(folder)?;
        if let Some(manifest) = &manifest {
            manifest.check_files(folder)?;
        }
        if pools(folder)? {
            return Err(no_reranker(folder, "it pools states into vectors, as embedders do"));
        }
        let prompts = read_prompts(folder)?;
        let default_prompt = Some(prompts.text(&Prompt::Default)?).filter(|text| !text.is_empty());
        let default_prompt = default_prompt.map(String::from);
        let read = read_folder(folder, InstructionSpan::Pooled, options)?;
        let config = read.config;
        let mut weights = Weights::open(folder, &read.stem)?;
        let labels = labels(&weights);
        let prefix = {
            let has = |name: &str| weights.tensors().contains_key(name);
            families::names_in(&config, has).prefix(has)
        };
        let of_head = match labels {
            Some(labels) => head::of_family(&config, &read.raw, prefix, labels)
                .map_err(|error| error.in_file(folder.file_label("config.json")))?,
            None => None,
        };
        if of_head.is_none() && !answers(&read.raw) {
            return Err(no_reranker(folder, "it has no classifier"));
        }
        weights.give_in(options.precision);
        let backbone = load_backbone::<B>(&config, &mut weights, device)?;
        let (head, input) = match of_head {
            Some((shape, names)) => {
                if let Some(prompt) = &default_prompt {
                    return Err(no_reranker(
                        folder,
                        &format!(
                            "its default prompt {prompt:?} would stand before each query, which is not supported"
                        ),
                    ));
                }
                read.tokenizer.check_pairs()?;
                check_types(&config, &read.tokenizer)?;
                let stem = (read.stem.as_str(), head::takes_pooler(config.family));
                (filled(shape, &names, prefix, folder, stem, device)?, PairInput::Template)
            }
            None => {
                let (yes, no) =
                    match (read.tokenizer.token_id("yes"), read.tokenizer.token_id("no")) {
                        (Some(yes), Some(no)) => (yes, no),
                        _ => return Err(no_reranker(folder, "its vocabulary has no yes and no")),
                    };
                let table = match config.decoder()?.tie_word_embeddings {
                    true => backbone.token_embedding(),
                    false => language_head(&config, &mut weights, device)?,
                };
                let prompt = PairInput::Prompt {
                    before: BEFORE.into(),
                    after: AFTER.into(),
                    instruction: default_prompt.clone().unwrap_or(INSTRUCTION.into()),
                };
                (yes_minus_no(&config, table, [yes, no], device), prompt)
            }
        };
        let said = read_activation(folder)?;
        let activation =
            activation(said.as_deref(), &read.raw, head.labels()).map_err(|cause| {
                let file = match said {
                    Some(_) => "config_sentence_transformers.json",
                    None => "config.json",
                };
                Error::bad_file(folder.file_label(file), cause, "change it there")
            })?;
        Ok(Self {
            backbone,
            head,
            config,
            tokenizer: read.tokenizer,
            tokenizer_files: read.tokenizer_files,
            input,
            activation,
            // At another precision, or of pairs cut shorter, scores are others.
            score_test: manifest
                .filter(|_| {
                    options.precision == WeightPrecision::Kept && options.max_length.is_none()
                })
                .and_then(|manifest| manifest.score_test),
            device: device.clone(),
        })
    }
}

/// Number of scores of the classifier in a checkpoint, where there is one.
pub(super) fn labels(weights: &Weights) -> Option<usize> {
    OUTPUTS.iter().find_map(|name| {
        let info = weights.tensors().get(*name)?;
        info.shape.first().copied().filter(|_| info.shape.len() == 2)
    })
}

/// Whether the model has an embedding for each type that the tokenizer gives tokens.
pub(super) fn check_types(config: &ModelConfig, tokenizer: &Tokenizer) -> Result<()> {
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

/// The projection from states to the vocabulary `[vocab, hidden]`.
fn language_head<B: Kernels>(
    config: &ModelConfig,
    weights: &mut Weights,
    device: &B::Device,
) -> Result<Tensor<B, 2>> {
    const NAME: &str = "lm_head.weight";
    let shape = [config.vocab_size, config.hidden_size];
    let found = weights.tensors().get(NAME).map(|info| info.shape.clone());
    let wrong = |cause: String| {
        Error::bad_file(weights.label(), cause, "use the file that was saved with the model")
    };
    match found {
        Some(found) if found == shape => {}
        Some(found) => return Err(wrong(format!("{NAME} is {found:?} instead of {shape:?}"))),
        None => {
            return Err(wrong(format!(
                "lacks {NAME}, which tie_word_embeddings = false in config.json asks for"
            )));
        }
    }
    let values = weights.read(NAME)?.unwrap_or_default();
    Ok(Tensor::from_data(TensorData::new(values, shape), device))
}

/// Whether a model is a language model that is asked for an answer.
pub(super) fn answers(raw: &Value) -> bool {
    let class = raw["architectures"][0].as_str().unwrap_or_default();
    class.ends_with("ForCausalLM") && raw["model_type"] == "qwen3"
}

fn filled<B: Kernels>(
    shape: HeadConfig,
    names: &families::Names,
    prefix: &str,
    folder: &dyn Folder,
    (stem, takes_pooler): (&str, bool),
    device: &B::Device,
) -> Result<ScoreHead<B>> {
    // Opened again, so that the head's reader lists only its own tensors.
    let mut weights = Weights::open(folder, stem)?;
    // The heads of some families take the pooler; those of others leave it lie.
    let pooler = format!("{prefix}pooler.");
    let pooler = takes_pooler.then_some(pooler.as_str());
    let starts = ["classifier.", "pre_classifier.", "head."].into_iter().chain(pooler);
    let starts = starts.collect::<Vec<_>>();
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
fn activation(
    said: Option<&str>,
    raw: &Value,
    labels: usize,
) -> std::result::Result<ScoreActivation, String> {
    let class = said
        .or(raw["sentence_transformers"]["activation_fn"].as_str())
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
