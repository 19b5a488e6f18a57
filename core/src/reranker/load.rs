//! Reads cross-encoders: transformers' folders with a head for sequence classification, as
//! sentence-transformers' `CrossEncoder` writes them, and decoders that answer `yes` or `no`, as they are released or as
//! Kiln wrote them.

use burn::module::Param;
use burn::tensor::{Tensor, TensorData};
use serde_json::Value;

use super::head::{self, HeadConfig, OUTPUTS, ScoreHead};
use super::{Answer, AnswerTokens, PairInput, PairPrompt, Reranker, ScoreActivation};
use crate::checkpoint::{
    KeptScore, LoadOptions, LogitScore, Manifest, ReadFolder, Weights, answers, check_head, fill,
    load_backbone, logit_score_files, pools, read_activation, read_folder, read_kept_score,
    read_logit_score, read_prompts,
};
use crate::config::{Family, ModelConfig};
use crate::embedder::Prompt;
use crate::folder::Folder;
use crate::kernels::Kernels;
use crate::model::families;
use crate::quant::WeightPrecision;
use crate::tokenizer::{InstructionSpan, Tokenizer};
use crate::{Error, Result};

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
        Self::load_as(folder, options, device, false)
    }

    /// As [`Reranker::load_with`]; a decoder that `trains` has its language-model head, too, and what it is saved with.
    pub(super) fn load_as(
        folder: &dyn Folder,
        options: &LoadOptions,
        device: &B::Device,
        trains: bool,
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
        let mut read = read_folder(folder, InstructionSpan::Pooled, options)?;
        let config = read.config.clone();
        check_head(folder, &config, &read.raw)?;
        let mut weights = Weights::open(folder, &read.stem)?;
        let labels = labels(&weights);
        let (of_backbone, prefix) = {
            let has = |name: &str| weights.tensors().contains_key(name);
            let names = families::names_in(&config, has);
            let prefix = names.prefix(has);
            (names, prefix)
        };
        let of_head = match labels {
            Some(labels) => head::of_family(&config, &read.raw, prefix, labels)
                .map_err(|error| error.in_file(folder.file_label("config.json")))?,
            None => None,
        };
        let asked = match of_head {
            Some(_) => None,
            None => Some(Asked::new(folder, &read, default_prompt.as_deref())?),
        };
        weights.give_in(options.precision);
        let backbone = load_backbone::<B>(&config, &mut weights, device)?;
        let (mut answer, mut lm_head) = (None, None);
        let (head, input) = match (of_head, asked) {
            (Some((shape, names)), _) => {
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
            (None, Some(asked)) => {
                let head = match asked.direction {
                    Direction::Kept(stem) => {
                        let (shape, names) = head::of_decoder(&config);
                        let mut weights = Weights::open(folder, &stem)?;
                        fill(ScoreHead::unfilled(shape, device), &mut weights, &names, "", device)?
                    }
                    Direction::Tokens(yes, no) => {
                        let table = language_head(&config, &weights, &of_backbone, prefix)?;
                        if trains {
                            let tokens = AnswerTokens { token: yes, other: no };
                            let template = || asked.prompt.to_template();
                            let files = logit_score_files(folder, (yes, no), &template)?;
                            let architectures = read.raw["architectures"].clone();
                            answer = Some(Answer { tokens, prefix, architectures, files });
                            if !config.decoder()?.tie_word_embeddings {
                                let values = weights.read(&table)?.unwrap_or_default();
                                let shape = [config.vocab_size, config.hidden_size];
                                let values = TensorData::new(values, shape);
                                lm_head = Some(Tensor::from_data(values, device));
                            }
                        }
                        logit(&config, (&mut weights, table.as_str()), (yes, no), device)?
                    }
                };
                if let Some(length) = asked.max_length.filter(|_| options.max_length.is_none()) {
                    let length = length.min(config.max_positions);
                    read.tokenizer = read.tokenizer.with_max_length(length)?;
                }
                (head, PairInput::Prompt(asked.prompt))
            }
            (None, None) => return Err(no_reranker(folder, "it has no classifier")),
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
            answer,
            lm_head,
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

/// The name of the projection from states to the vocabulary `[vocab, hidden]`: where both are tied, the table.
fn language_head(
    config: &ModelConfig,
    weights: &Weights,
    of_backbone: &families::Names,
    prefix: &str,
) -> Result<String> {
    let table = match config.decoder()?.tie_word_embeddings {
        true => of_backbone.source("token_embedding.weight")?.parts.into_iter().next(),
        false => None,
    };
    let name = table.map_or("lm_head.weight".into(), |table| format!("{prefix}{}", table.name));
    let shape = [config.vocab_size, config.hidden_size];
    let found = weights.tensors().get(&name).map(|info| info.shape.clone());
    let wrong = |cause: String| {
        Error::bad_file(weights.label(), cause, "use the file that was saved with the model")
    };
    match found {
        Some(found) if found == shape => Ok(name),
        Some(found) => Err(wrong(format!("{name} is {found:?} instead of {shape:?}"))),
        None => Err(wrong(format!(
            "lacks {name}, which tie_word_embeddings = false in config.json asks for"
        ))),
    }
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
    fill(ScoreHead::unfilled(shape, device), &mut weights, names, "", device)
}

/// How a decoder is asked.
struct Asked {
    direction: Direction,
    prompt: PairPrompt,
    max_length: Option<usize>,
}

/// Where the direction comes from, the product with which is a decoder's score.
enum Direction {
    /// Rows of the language-model head: of the token whose logit is the score, and of the one whose logit is taken from it.
    Tokens(u32, Option<u32>),
    /// A file of its own, by its path without the ending.
    Kept(String),
}

impl Asked {
    /// As the list of modules has it, else as the released models of its family are asked.
    fn new(folder: &dyn Folder, read: &ReadFolder, instruction: Option<&str>) -> Result<Self> {
        let mut asked = match read_kept_score(folder)? {
            Some(KeptScore { file, stem, prompt }) => {
                let wrong = |cause: String| {
                    Error::bad_file(file, cause, "use the file that was saved with the model")
                };
                let prompt = PairPrompt::kept(prompt).map_err(wrong)?;
                Self { direction: Direction::Kept(stem), prompt, max_length: None }
            }
            None => Self::by_tokens(folder, read)?,
        };
        read.config.decoder()?;
        if read.raw["final_logit_softcapping"].is_number() {
            let words =
                "its final_logit_softcapping would change the logits, which is not supported";
            return Err(no_reranker(folder, words));
        }
        if let Some(instruction) = instruction {
            asked.prompt = asked.prompt.with_instruction(instruction).map_err(|error| {
                let file = folder.file_label("config_sentence_transformers.json");
                let cause = format!("has the default prompt {instruction:?}, and {error}");
                Error::bad_file(file, cause, "take default_prompt_name away, if it is not meant")
            })?;
        }
        Ok(asked)
    }

    fn by_tokens(folder: &dyn Folder, read: &ReadFolder) -> Result<Self> {
        let (prompt, yes, no, max_length) = match read_logit_score(folder)? {
            Some(score) => (prompt_of(&score, folder)?, score.token, score.other, score.max_length),
            None if !answers(&read.raw) => return Err(no_reranker(folder, "it has no classifier")),
            None => {
                let (prompt, yes, no) = released(read).map_err(|why| no_reranker(folder, why))?;
                (prompt, yes, no, None)
            }
        };
        let size = read.config.vocab_size;
        if let Some(id) = [Some(yes), no].into_iter().flatten().find(|&id| id as usize >= size) {
            return Err(no_reranker(folder, &format!("its LogitScore names token {id} of {size}")));
        }
        Ok(Self { direction: Direction::Tokens(yes, no), prompt, max_length })
    }
}

/// How the released models of a family are asked, the token by whose logit they rank, and the one whose logit is
/// subtracted; why a model cannot be asked so.
fn released(
    read: &ReadFolder,
) -> std::result::Result<(PairPrompt, u32, Option<u32>), &'static str> {
    let id = |word| read.tokenizer.token_id(word);
    match read.config.family {
        Family::Gemma => match (id("<bos>"), id("Yes")) {
            (Some(_), Some(yes)) => Ok((PairPrompt::bge_gemma(), yes, None)),
            _ => Err("its vocabulary has no <bos> and Yes"),
        },
        _ => match (id("yes"), id("no")) {
            (Some(yes), no @ Some(_)) => Ok((PairPrompt::qwen3(), yes, no)),
            _ => Err("its vocabulary has no yes and no"),
        },
    }
}

/// The prompt that a chat template makes.
#[cfg(feature = "chat-templates")]
fn prompt_of(score: &LogitScore, folder: &dyn Folder) -> Result<PairPrompt> {
    let LogitScore { template, structured, options, tokens, .. } = score;
    super::template::Call { template, structured: *structured, options, tokens }
        .prompt()
        .map_err(|why| no_reranker(folder, &format!("its chat template {why}")))
}

/// A released model's prompt, where the chat template is that: others are not rendered here.
#[cfg(not(feature = "chat-templates"))]
fn prompt_of(score: &LogitScore, folder: &dyn Folder) -> Result<PairPrompt> {
    if let Some(prompt) = PairPrompt::of_released(&score.template).filter(|_| !score.structured) {
        return Ok(prompt);
    }
    Err(Error::invalid(format!(
        "{}: its chat template is not Qwen3-Reranker's, nor bge-reranker-v2-gemma's as Kiln writes it, the only ones that \
         are read here; take what `kiln export` or `kiln quantize` makes of it, or rank with `kiln rerank`",
        folder.label()
    )))
}

/// The score is the logit of a token, `h E_yes`, or the difference of two, `h (E_yes - E_no)`; of the rows as the file
/// has them, whatever the model's weights are rounded to.
fn logit<B: Kernels>(
    config: &ModelConfig,
    (weights, table): (&mut Weights, &str),
    (yes, no): (u32, Option<u32>),
    device: &B::Device,
) -> Result<ScoreHead<B>> {
    let (shape, _) = head::of_decoder(config);
    let mut head = ScoreHead::unfilled(shape, device);
    let mut row = |id: u32| Ok::<_, Error>(weights.row(table, id as usize)?.unwrap_or_default());
    let mut direction = row(yes)?;
    if let Some(no) = no {
        direction.iter_mut().zip(row(no)?).for_each(|(yes, no)| *yes -= no);
    }
    if direction.iter().any(|value| !value.is_finite()) {
        return Err(Error::invalid(format!(
            "{table}: the row of a token that the score is made of is not finite; the file is damaged"
        )));
    }
    let direction = TensorData::new(direction, [config.hidden_size, 1]);
    head.output.weight = Param::from_tensor(Tensor::from_data(direction, device));
    Ok(head)
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
