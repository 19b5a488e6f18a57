//! Reads a sentence-transformers, plain Hugging Face or NV-Embed folder.

use std::collections::BTreeMap;

use burn::tensor::{DType, Tensor, TensorData};
use bytes::Bytes;
use serde_json::{Value, json};

use super::calls::read_text_calls;
use super::{DROPS_UNKNOWN, INSTRUCTION, INSTRUCTION_FORMAT, MODES, dense_names, head_names};
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::parameters::{fill, load_backbone};
use crate::checkpoint::weights::Weights;
use crate::config::{AttentionMode, Family, ModelConfig};
use crate::embedder::{Embedder, EmbedderConfig, EmbeddingModel, Prompts, Similarity};
use crate::folder::{Files, Folder, read_text, stays_inside};
use crate::kernels::{Kernels, Packing};
use crate::model::Backbone;
use crate::model::families::{jina_embeddings_v5, nv_embed, static_table};
use crate::pooling::{
    BlockConfig, Dense, DenseActivation, DenseConfig, FeedForwardKind, Pooling, PoolingConfig,
};
use crate::quant::{Number, WeightPrecision};
use crate::tokenizer::{InstructionSpan, PaddingSide, TextOptions, Tokenizer, TokenizerConfig};
use crate::{Error, Result};

/// Overrides of the folder's own settings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoadOptions {
    /// Another pooling head. A trainable one starts untrained, unless it is the folder's own.
    pub pooling: Option<PoolingConfig>,
    /// Another attention mode.
    pub attention: Option<AttentionMode>,
    /// Another length limit in tokens.
    pub max_length: Option<usize>,
    /// What stands around a text, and what of it is pooled.
    pub text: TextOptions,
    /// Numbers in which the backbone's matrices are computed.
    pub precision: WeightPrecision,
}

/// Files of a tokenizer that are copied through unchanged; `tokenizer.json` is among them so
/// that other readers get what they wrote.
const TOKENIZER_FILES: [&str; 9] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "sentencepiece.bpe.model",
];

pub(super) fn bad(folder: &dyn Folder, path: &str, cause: impl std::fmt::Display) -> Error {
    Error::bad_file(folder.file_label(path), cause, "use the file that was saved with the model")
}

/// Largest JSON file that is parsed, which takes many times its length in memory; the largest
/// published `config.json` has some 100 kB.
const LARGEST_JSON: u64 = 1 << 24;

/// Reads a JSON file; `None` where there is none.
pub(crate) fn read_json(folder: &dyn Folder, path: &str) -> Result<Option<Value>> {
    let io = |cause| Error::Io { file: folder.file_label(path), cause };
    if let Some((_, length)) = folder.open(path).map_err(io)?
        && length > LARGEST_JSON
    {
        let cause = format!("has {length} bytes, more than the {LARGEST_JSON} that are read");
        return Err(bad(folder, path, cause));
    }
    match read_text(folder, path)? {
        Some(text) => match serde_json::from_slice(&text) {
            Ok(value) => Ok(Some(value)),
            Err(cause) => Err(bad(folder, path, format!("not valid JSON: {cause}"))),
        },
        None => Ok(None),
    }
}

/// `{path}/{name}`, or `name` where the path is empty.
pub(super) fn inside(path: &str, name: &str) -> String {
    if path.is_empty() { name.into() } else { format!("{path}/{name}") }
}

/// The module of a static embedding.
const STATIC: &str = "StaticEmbedding";
/// The module of a decoder that ranks.
pub(super) const LOGIT_SCORE: &str = "LogitScore";

/// One entry of `modules.json`.
pub(super) struct ModuleEntry {
    pub(super) kind: String,
    pub(super) path: String,
}

pub(super) fn read_modules(folder: &dyn Folder) -> Result<Option<Vec<ModuleEntry>>> {
    let Some(value) = read_json(folder, "modules.json")? else {
        return Ok(None);
    };
    let entries = value.as_array().ok_or_else(|| bad(folder, "modules.json", "is no list"))?;
    let text = |entry: &Value, key: &str| {
        entry
            .get(key)
            .and_then(Value::as_str)
            .map(String::from)
            .ok_or_else(|| bad(folder, "modules.json", format!("an entry has no {key}")))
    };
    let entries: Vec<ModuleEntry> = entries
        .iter()
        .enumerate()
        .map(|(i, entry)| {
            // The list's order counts, in sentence-transformers too; if the numbers contradict it,
            // either could be meant.
            if entry.get("idx").is_some_and(|idx| idx.as_u64() != Some(i as u64)) {
                return Err(bad(
                    folder,
                    "modules.json",
                    format!("module {i} of the list has the idx {}", entry["idx"]),
                ));
            }
            let path = text(entry, "path")?;
            let path = if path == "." { String::new() } else { path };
            if !path.is_empty() && !stays_inside(&path) {
                return Err(bad(
                    folder,
                    "modules.json",
                    format!("the path {path:?} leaves the folder"),
                ));
            }
            let class = text(entry, "type")?;
            let kind = class.rsplit('.').next().unwrap_or_default().to_string();
            Ok(ModuleEntry { kind, path })
        })
        .collect::<Result<_>>()?;
    check_order(&entries).map_err(|cause| bad(folder, "modules.json", cause))?;
    Ok(Some(entries))
}

/// Modules are computed as Transformer (or StaticEmbedding), Pooling, Dense, .., Normalize, those of a decoder that
/// ranks as Transformer, LogitScore; a list in another order would mean other vectors, so it is refused. NV-Embed's
/// release and static embeddings pool by themselves and list no Pooling.
fn check_order(entries: &[ModuleEntry]) -> std::result::Result<(), String> {
    if let [first, second] = entries
        && (first.kind.as_str(), second.kind.as_str()) == ("Transformer", LOGIT_SCORE)
    {
        return Ok(());
    }
    const ORDER: [&str; 4] = ["Transformer", "Pooling", "Dense", "Normalize"];
    let mut before: Option<(usize, &str)> = None;
    for entry in entries {
        let kind = match entry.kind.as_str() {
            STATIC => "Transformer",
            "Asym" | "Router" => {
                return Err(format!(
                    "the module type {:?} sends queries and documents through different models, which is not \
                     supported; name the folder of one of them",
                    entry.kind
                ));
            }
            kind => kind,
        };
        let Some(place) = ORDER.iter().position(|known| *known == kind) else {
            return Err(format!(
                "the module type {kind:?} is not supported; Transformer, Pooling, Dense and Normalize are"
            ));
        };
        match before {
            None if kind != "Transformer" => {
                return Err(format!("the first module is {kind}, not Transformer"));
            }
            Some((_, last)) if last == kind && kind != "Dense" => {
                return Err(format!("there are two modules {kind}"));
            }
            Some((last_place, last)) if place < last_place => {
                return Err(format!(
                    "{kind} comes after {last}; the order Transformer, Pooling, Dense, Normalize is supported"
                ));
            }
            _ => before = Some((place, kind)),
        }
    }
    match before {
        Some(_) => Ok(()),
        None => Err("lists no module".into()),
    }
}

/// A list without a Pooling gives no vector for a text, unless the model pools by itself.
fn check_pooled(folder: &dyn Folder, modules: Option<&[ModuleEntry]>, raw: &Value) -> Result<()> {
    let pools = |module: &ModuleEntry| module.kind == "Pooling" || module.kind == STATIC;
    let pooled = |modules: &[ModuleEntry]| modules.iter().any(pools);
    match modules.is_none_or(pooled) || nv_embed_block(raw).is_some() || takes_last_token(raw) {
        true => Ok(()),
        false => Err(bad(folder, "modules.json", "lists no Pooling")),
    }
}

/// Folder of the transformer, its `config.json`, and the shape that it gives.
fn read_shape(
    folder: &dyn Folder,
    modules: Option<&[ModuleEntry]>,
) -> Result<(String, Value, ModelConfig)> {
    let first = modules.and_then(<[ModuleEntry]>::first);
    let root = first.map_or(String::new(), |module| module.path.clone());
    let config_path = inside(&root, "config.json");
    let raw = read_json(folder, &config_path)?;
    let kind = raw.as_ref().and_then(|raw| raw["model_type"].as_str()).unwrap_or_default();
    let table = kind == "model2vec" || first.is_some_and(|module| module.kind == STATIC);
    if table && kind != "static" {
        // With a list of modules sentence-transformers rules, which knows no keys of model2vec.
        let keys = raw.filter(|_| modules.is_none()).unwrap_or_default();
        let config = static_table::of_table(table_shape(folder, &root)?, &keys)?;
        return Ok((root, keys, config));
    }
    let mut raw = raw.ok_or_else(|| Error::MissingFile {
        folder: folder.label(),
        file: config_path.clone(),
        remedy: "name a folder that holds a saved model".into(),
    })?;
    // What sentence-transformers has transformers take in the place of the model's own.
    let (_, sentence) = read_sentence(folder, &root)?;
    overlay(&mut raw, &sentence, &["config_args", "config_kwargs"]);
    // `ModelConfig`'s errors name the file config.json, whatever its folder.
    let config = ModelConfig::from_value(&raw)
        .map_err(|error| error.in_file(folder.file_label(&config_path)))?;
    Ok((root, raw, config))
}

/// Names of the file in which sentence-transformers says how it calls transformers; the first that is there rules.
pub const TRANSFORMER_CONFIGS: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// What that file says, and where it is.
fn read_sentence(folder: &dyn Folder, root: &str) -> Result<(String, Value)> {
    for name in TRANSFORMER_CONFIGS {
        let path = inside(root, name);
        if let Some(value) = read_json(folder, &path)? {
            return Ok((path, value));
        }
    }
    Ok((inside(root, TRANSFORMER_CONFIGS[0]), Value::default()))
}

/// Puts what some keys of `given` hold into an object, in the place of its own.
fn overlay(object: &mut Value, given: &Value, keys: &[&str]) {
    if !object.is_object() {
        return;
    }
    for (key, value) in keys.iter().filter_map(|key| given[key].as_object()).flatten() {
        object[key] = value.clone();
    }
}

/// Rows and width of a static embedding: one row for each token, which may be another's (model2vec's
/// `mapping`).
fn table_shape(folder: &dyn Folder, root: &str) -> Result<[usize; 2]> {
    let weights = Weights::open(folder, &inside(root, "model"))?;
    let shape = |name: &str| weights.tensors().get(name).map(|info| info.shape.as_slice());
    match (shape(static_table::TABLE).or(shape(TABLE)), shape(MAPPING)) {
        (Some(&[_, width]), Some(&[rows])) | (Some(&[rows, width]), None) => Ok([rows, width]),
        _ => Err(Error::bad_file(
            weights.label(),
            format!("has no table {:?} or {TABLE:?} of two dimensions", static_table::TABLE),
            "name a folder that holds a saved model",
        )),
    }
}

/// model2vec's names: the table, which of its rows is each token's, and what a token's row is multiplied with.
const TABLE: &str = "embeddings";
const MAPPING: &str = "mapping";
const TOKEN_WEIGHTS: &str = "weights";

/// The table of a static embedding under model2vec's names, one row for each token.
fn fold_table(weights: &mut Weights, [rows, width]: [usize; 2]) -> Result<Vec<f32>> {
    let label = weights.label();
    let wrong = |cause: &str| {
        Error::bad_file(label.clone(), cause, "use the file that was saved with the model")
    };
    let table = weights.read_numbers(TABLE)?.unwrap_or_default();
    let stored = table.len() / width.max(1);
    if stored == 0 || table.len() != stored * width {
        return Err(wrong(&format!("its table {TABLE:?} has no rows of {width} numbers")));
    }
    let mapping = weights.read_numbers(MAPPING)?;
    let factors = weights.read_numbers(TOKEN_WEIGHTS)?;
    for (name, numbers) in [(MAPPING, &mapping), (TOKEN_WEIGHTS, &factors)] {
        if let Some(count) = numbers.as_ref().map(Vec::len).filter(|&count| count != rows) {
            return Err(wrong(&format!("{name:?} has {count} entries for {rows} tokens")));
        }
    }
    let mut folded = Vec::with_capacity(rows * width);
    for token in 0..rows {
        let place = match &mapping {
            Some(mapping) => mapping[token],
            None => token as f32,
        };
        if !(place >= 0.0 && (place as usize) < stored && place.fract() == 0.0) {
            return Err(wrong("its mapping names a row that the table has not"));
        }
        let factor = factors.as_ref().map_or(1.0, |factors| factors[token]);
        let row = &table[place as usize * width..][..width];
        folded.extend(row.iter().map(|value| value * factor));
    }
    if folded.iter().any(|value| !value.is_finite()) {
        return Err(wrong("its table holds NaN or infinite values"));
    }
    Ok(folded)
}

/// The weights of a backbone, static ones under either name.
fn read_backbone<B: Kernels>(
    config: &ModelConfig,
    weights: &mut Weights,
    device: &B::Device,
) -> Result<Backbone<B>> {
    if config.family != Family::Static || !weights.tensors().contains_key(TABLE) {
        return load_backbone(config, weights, device);
    }
    let shape = [config.vocab_size, config.hidden_size];
    let table = fold_table(weights, shape)?;
    let table = Tensor::from_data(TensorData::new(table, shape), device);
    Ok(Backbone::of_table(config, table, device))
}

/// Whether a folder's list of modules makes a vector of a text.
///
/// # Errors
/// A list that cannot be read.
pub(crate) fn pools(folder: &dyn Folder) -> Result<bool> {
    let modules = read_modules(folder)?;
    let pools = |module: &ModuleEntry| module.kind == "Pooling" || module.kind == STATIC;
    Ok(modules.is_some_and(|modules| modules.iter().any(pools)))
}

/// Shape of a model, read from its configuration files alone.
///
/// # Errors
/// Configuration files that are missing, cannot be read or do not fit each other.
pub fn read_embedder_config(folder: &dyn Folder) -> Result<EmbedderConfig> {
    let modules = read_modules(folder)?;
    let (_, raw, config) = read_shape(folder, modules.as_deref())?;
    check_pooled(folder, modules.as_deref(), &raw)?;
    let released = nv_embed_block(&raw).map(PoolingConfig::LatentAttention);
    let mut pooling = released.clone().unwrap_or(own_pooling(&raw));
    let mut dense = Vec::new();
    for module in modules.iter().flatten() {
        match module.kind.as_str() {
            "Pooling" if released.is_some() => mean_behind_latents(folder, &module.path)?,
            "Pooling" => (pooling, _) = read_pooling(folder, &module.path)?,
            "Dense" => dense.push(read_dense(folder, &module.path)?),
            _ => {}
        }
    }
    let shape = EmbedderConfig { config, pooling, dense };
    check_widths(folder, &shape)?;
    Ok(shape)
}

/// The tokenizer of a model and its prompts, read without its weights. Which tokens are pooled is not
/// asked: it is as for a model that pools its instruction.
///
/// # Errors
/// Files of configuration or of the tokenizer that are missing, cannot be read or do not fit each other.
pub fn load_tokenizer(folder: &dyn Folder, options: &LoadOptions) -> Result<(Tokenizer, Prompts)> {
    let modules = read_modules(folder)?;
    let (root, _, config) = read_shape(folder, modules.as_deref())?;
    let pooled = InstructionSpan::Pooled;
    let (tokenizer, _) = read_tokenizer(folder, &root, &config, pooled, options)?;
    Ok((tokenizer, read_prompts(folder)?))
}

/// What all that is read from a folder has in common: shape and tokenizer.
pub(crate) struct ReadFolder {
    pub config: ModelConfig,
    /// The `config.json` as it is.
    pub raw: Value,
    /// Path of the weights without their ending.
    pub stem: String,
    pub tokenizer: Tokenizer,
    /// As they are.
    pub tokenizer_files: Files,
}

/// Shape and tokenizer of a folder, whatever its head.
///
/// # Errors
/// Files of configuration or of the tokenizer that are missing, cannot be read or do not fit each other.
pub(crate) fn read_folder(
    folder: &dyn Folder,
    instruction: InstructionSpan,
    options: &LoadOptions,
) -> Result<ReadFolder> {
    // A list of modules is an embedder's, or has one for the transformer and others that are looked for by the
    // caller.
    read_at(folder, None, instruction, options)
}

/// Shape and tokenizer of the transformer in a folder, whether it is by itself or the first of an embedder's modules.
///
/// # Errors
/// As [`read_folder`].
pub(crate) fn read_transformer(folder: &dyn Folder, options: &LoadOptions) -> Result<ReadFolder> {
    let modules = read_modules(folder)?;
    read_at(folder, modules.as_deref(), InstructionSpan::Pooled, options)
}

/// Shape of the transformer in a folder, and its `config.json`.
///
/// # Errors
/// Configuration files that are missing or cannot be read.
pub(crate) fn read_transformer_shape(folder: &dyn Folder) -> Result<(Value, ModelConfig)> {
    let modules = read_modules(folder)?;
    let (_, raw, config) = read_shape(folder, modules.as_deref())?;
    Ok((raw, config))
}

fn read_at(
    folder: &dyn Folder,
    modules: Option<&[ModuleEntry]>,
    instruction: InstructionSpan,
    options: &LoadOptions,
) -> Result<ReadFolder> {
    let (root, raw, config) = read_shape(folder, modules)?;
    let (tokenizer, tokenizer_files) =
        read_tokenizer(folder, &root, &config, instruction, options)?;
    if tokenizer.id_bound() > config.vocab_size {
        let cause = format!(
            "has token ids up to {}, but the model has {} embeddings",
            tokenizer.id_bound().saturating_sub(1),
            config.vocab_size
        );
        return Err(bad(folder, "tokenizer.json", cause));
    }
    Ok(ReadFolder { config, raw, stem: inside(&root, "model"), tokenizer, tokenizer_files })
}

/// The class of a cross-encoder, whose files are else those of an embedder without a list of modules.
fn class_that_scores<'a>(modules: Option<&[ModuleEntry]>, raw: &'a Value) -> Option<&'a str> {
    if modules.is_some_and(|modules| modules.iter().any(|module| module.kind == LOGIT_SCORE)) {
        return Some(LOGIT_SCORE);
    }
    let class = raw["architectures"][0].as_str().unwrap_or_default();
    let pools =
        modules.is_some_and(|modules| modules.iter().any(|module| module.kind == "Pooling"));
    Some(class).filter(|class| !pools && class.ends_with("ForSequenceClassification"))
}

/// Whether a model is a language model that can be asked for an answer, yes or no: of Qwen3-Reranker's family, or of
/// bge-reranker-v2-gemma's.
pub(crate) fn answers(raw: &Value) -> bool {
    let class = raw["architectures"][0].as_str().unwrap_or_default();
    class.ends_with("ForCausalLM") && matches!(raw["model_type"].as_str(), Some("qwen3" | "gemma"))
}

/// Whether a language model without a list of modules says that it ranks. Qwen3-Reranker's configuration is that of every
/// Qwen3, and bge-reranker-v2-gemma's that of every Gemma: name and model card alone say it.
fn is_said_to_rank(
    folder: &dyn Folder,
    modules: Option<&[ModuleEntry]>,
    raw: &Value,
) -> Result<bool> {
    if modules.is_some() || !answers(raw) {
        return Ok(false);
    }
    let label = folder.label();
    let parts: Vec<&str> = label.split(['/', '\\']).filter(|part| !part.is_empty()).collect();
    let name = match parts[..] {
        // The Hub's cache.
        [.., name, "snapshots", _] => name,
        [.., name] => name,
        [] => "",
    };
    if name.to_lowercase().contains("rerank") {
        return Ok(true);
    }
    let card = read_text(folder, "README.md")?.unwrap_or_default();
    Ok(task_of_card(&String::from_utf8_lossy(&card)) == Some("text-ranking"))
}

/// The task in the settings that a model card begins with.
fn task_of_card(card: &str) -> Option<&str> {
    let mut lines = card.lines().map(str::trim_end);
    lines.next().filter(|line| *line == "---")?;
    let tag = lines
        .take_while(|line| *line != "---")
        .find_map(|line| line.strip_prefix("pipeline_tag:"))?;
    Some(tag.trim().trim_matches(['"', '\'']))
}

/// Whether a folder's model is a cross-encoder with a head for sequence classification, or a decoder that has LogitScore,
/// or says by its name or in its model card that it ranks.
///
/// # Errors
/// Files that cannot be read.
pub fn is_reranker(folder: &dyn Folder) -> Result<bool> {
    let modules = read_modules(folder)?;
    let raw = read_json(folder, "config.json")?.unwrap_or_default();
    Ok(class_that_scores(modules.as_deref(), &raw).is_some()
        || is_said_to_rank(folder, modules.as_deref(), &raw)?)
}

/// Refuses a decoder with a head for sequence classification: its scores are of texts in a form that no file says.
pub(crate) fn check_head(folder: &dyn Folder, config: &ModelConfig, raw: &Value) -> Result<()> {
    let class = raw["architectures"][0].as_str().unwrap_or_default();
    if !(config.family.is_decoder() && class.ends_with("ForSequenceClassification")) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{}: is a decoder with a head for sequence classification ({class}), which is not supported, neither to embed nor \
         to rank; name an embedder, a cross-encoder, or a decoder that ranks by its logits of yes and no",
        folder.label()
    )))
}

/// Refuses a reranker. One that only says that it ranks is a language model, of which a head that is asked for makes an
/// embedder.
fn check_embeds(
    folder: &dyn Folder,
    modules: Option<&[ModuleEntry]>,
    (config, raw): (&ModelConfig, &Value),
    options: &LoadOptions,
) -> Result<()> {
    if let Some(class) = class_that_scores(modules, raw) {
        check_head(folder, config, raw)?;
        return Err(Error::invalid(format!(
            "{}: is a reranker ({class}), which gives scores of pairs and no vectors; use `kiln rerank`",
            folder.label()
        )));
    }
    if options.pooling.is_none() && is_said_to_rank(folder, modules, raw)? {
        return Err(Error::invalid(format!(
            "{}: is a reranker by its name or model card, which gives scores of pairs and no vectors; use `kiln rerank`, or \
             make an embedder of it by --pooling last_token",
            folder.label()
        )));
    }
    Ok(())
}

/// Reads a model folder.
///
/// # Errors
/// Any file that is missing, unreadable, corrupt or does not fit the others.
pub fn load<B: Kernels>(
    folder: &dyn Folder,
    options: &LoadOptions,
    device: &B::Device,
) -> Result<Embedder<B>> {
    let manifest = Manifest::read(folder)?;
    if let Some(manifest) = &manifest {
        manifest.check_files(folder)?;
    }
    let modules = read_modules(folder)?;
    let (root, raw, mut config) = read_shape(folder, modules.as_deref())?;
    check_embeds(folder, modules.as_deref(), (&config, &raw), options)?;
    check_pooled(folder, modules.as_deref(), &raw)?;
    let (path, sentence) = read_sentence(folder, &root)?;
    let modalities = &sentence["modality_config"];
    if modalities["message"].is_object() && !modalities["text"].is_object() {
        let cause = "has texts put into a chat template, which is not done for embedders";
        return Err(bad(folder, &path, cause));
    }
    if let Some(attention) = options.attention {
        config = config.attending(attention)?;
    }
    let (own, instruction) = read_own_pooling(folder, modules.as_deref(), &raw)?;
    let (tokenizer, tokenizer_files) =
        read_tokenizer(folder, &root, &config, instruction, options)?;
    // What asks for the head that the folder has goes on with its weights.
    let asked = options.pooling.as_ref();
    asked.map_or(Ok(()), PoolingConfig::check)?;
    let is_own = |own: &PoolingConfig| {
        asked.is_none_or(|asked| asked.same_parameters(own, config.output_size()))
    };
    let another = asked.filter(|_| !is_own(&own));
    // With another head or mask, or texts cut shorter, the vectors of the self-test no longer hold.
    let mut same = another.is_none() && options.attention.is_none() && options.text.is_empty();
    let in_bf16 = manifest.as_ref().is_some_and(|manifest| manifest.weights == "bf16");
    let mut self_test = manifest.and_then(|manifest| manifest.self_test);
    if let (Some(kept), Some(limit)) = (&self_test, options.max_length) {
        for tokens in tokenizer.encode_all("", &kept.texts)? {
            same &= tokens.ids.len() < limit;
        }
    }
    self_test = self_test.filter(|_| same);
    let mut weights = Weights::open(folder, &inside(&root, "model"))?;
    // WebAssembly has no instructions for it; all of its builds compute in f32.
    let multiplies_bf16 =
        cfg!(not(target_arch = "wasm32")) && B::BLOCKS && B::PACKING == Packing::Host;
    let mut precision = options.precision;
    if precision == WeightPrecision::Kept && multiplies_bf16 && in_bf16 && self_test.is_some() {
        // The test judges the vectors.
        precision = WeightPrecision::Bf16;
    }
    let on_device = !B::HOST && B::supports_dtype(device, DType::BF16);
    if precision == WeightPrecision::Bf16 && !multiplies_bf16 && !on_device {
        return Err(Error::invalid(
            "this device does not multiply weights in bf16; leave them as they are, or take f32 or int8",
        ));
    }
    weights.give_in(precision);
    let backbone = read_backbone(&config, &mut weights, device)?;

    let pooling = Pooling::new(&own_pooling(&raw), &config, device);
    let mut model = EmbeddingModel::new(backbone, pooling, &config).with_normalize(false);
    // model2vec has no list of modules, and says it here.
    model.normalize = config.family == Family::Static && raw["normalize"] == true;
    model.normalize |= takes_last_token(&raw);
    let released = nv_embed_block(&raw);
    if let Some(block) = released.clone() {
        PoolingConfig::LatentAttention(block.clone())
            .check()
            .map_err(|e| bad(folder, &inside(&root, "config.json"), e))?;
        let head = Pooling::unfilled(&PoolingConfig::LatentAttention(block), &config, device);
        model.pooling = fill(
            head,
            &mut released_head(&mut weights, folder)?,
            &head_names(),
            HEAD_PREFIX,
            device,
        )?;
        model.normalize = true;
    }
    for module in modules.iter().flatten() {
        match module.kind.as_str() {
            "Transformer" | STATIC => {}
            "Pooling" if released.is_some() => mean_behind_latents(folder, &module.path)?,
            "Pooling" => {
                let (pooling, _) = read_pooling(folder, &module.path)?;
                let head = Pooling::unfilled(&pooling, &config, device);
                model.pooling = if is_own(&pooling) && head.block.is_some() {
                    let mut weights = Weights::open(folder, &inside(&module.path, "model"))?;
                    load_pooling(&pooling, &config, &mut weights, device)?
                } else {
                    head
                };
            }
            "Dense" => {
                let dense = Dense::unfilled(&read_dense(folder, &module.path)?, device);
                let mut weights = Weights::open(folder, &inside(&module.path, "model"))?;
                model.dense.push(fill(dense, &mut weights, &dense_names(), "", device)?);
            }
            "Normalize" => {
                let file = inside(&module.path, "config.json");
                if let Some(config) = read_json(folder, &file)? {
                    of_sentences(folder, &file, &config)?;
                }
                model.normalize = true;
            }
            // Other modules were refused when the list was read.
            _ => {}
        }
    }
    if let Some(pooling) = another {
        model.pooling = Pooling::new(pooling, &config, device);
    }
    check_widths(folder, &model.embedder_config())?;
    if let (Some(test), Some(least)) = (&mut self_test, least_cosine(options.precision)) {
        test.least_cosine = test.least_cosine.min(least);
    }
    let settings = read_json(folder, SETTINGS)?.unwrap_or_default();
    let similarity =
        Similarity::from_name(settings["similarity_fn_name"].as_str().unwrap_or_default());
    let truncate_dim = settings["truncate_dim"].as_u64().map(|n| n as usize);
    Embedder::new(model, tokenizer, device)?
        .with_tokenizer_files(tokenizer_files)
        .with_prompts(read_prompts(folder)?)
        .with_similarity(similarity)
        .with_self_test(self_test)
        .with_truncate_dim(truncate_dim)
        .map_err(|error| bad(folder, SETTINGS, error))
}

/// What sentence-transformers keeps of a model beside its modules.
const SETTINGS: &str = "config_sentence_transformers.json";

/// Lowest cosine that the self-test may ask of weights quantized at loading; other weights keep the
/// bound in the file.
fn least_cosine(precision: WeightPrecision) -> Option<f32> {
    let scheme = match precision {
        WeightPrecision::Rounded(scheme) => scheme,
        WeightPrecision::Bf16 => return Some(0.999),
        WeightPrecision::Kept | WeightPrecision::Full => return None,
    };
    Some(match scheme.number {
        Number::Int8 => 0.99,
        Number::Fp8E4M3 | Number::Fp8E5M2 => 0.95,
        Number::Int4 => 0.85,
    })
}

/// Each projection must be as wide as the output of the step before, and a head over all layers gets states of one
/// width.
fn check_widths(folder: &dyn Folder, model: &EmbedderConfig) -> Result<()> {
    let (hidden, output) = (model.config.hidden_size, model.config.output_size());
    if matches!(model.pooling, PoolingConfig::MultiLayerTrainable(_)) && hidden != output {
        return Err(Error::invalid(format!(
            "{}: its layers are {hidden} wide and its last states {output}, which {} pooling cannot compare",
            folder.label(),
            model.pooling.name()
        )));
    }
    let mut width = model.pooling.output_size(output);
    for dense in &model.dense {
        if dense.in_features != width {
            let cause =
                format!("a Dense module takes {} features, but gets {width}", dense.in_features);
            return Err(bad(folder, "modules.json", cause));
        }
        width = dense.out_features;
    }
    Ok(())
}

/// Whether a model's own code pools the last token and normalizes, which no module of its list says.
fn takes_last_token(config: &Value) -> bool {
    config["model_type"] == jina_embeddings_v5::MODEL_TYPE
}

/// The head without parameters of a model whose modules name none: a language model's last token, unless its attention is
/// not causal, and else the mean (sentence-transformers 6, `_load_default_modules`).
fn own_pooling(config: &Value) -> PoolingConfig {
    let class = config["architectures"][0].as_str().unwrap_or_default();
    let speaks = class.ends_with("ForCausalLM") && config["is_causal"] != false;
    match speaks || takes_last_token(config) {
        true => PoolingConfig::LastToken,
        false => PoolingConfig::Mean,
    }
}

/// The pooling that the files say, and which tokens of an instruction it leaves out.
fn read_own_pooling(
    folder: &dyn Folder,
    modules: Option<&[ModuleEntry]>,
    raw: &Value,
) -> Result<(PoolingConfig, InstructionSpan)> {
    let (mut pooling, mut instruction) = (own_pooling(raw), InstructionSpan::Pooled);
    if let Some(block) = nv_embed_block(raw) {
        pooling = PoolingConfig::LatentAttention(block);
        instruction = InstructionSpan::MaskedWithoutBos;
    } else {
        for module in modules.into_iter().flatten().filter(|module| module.kind == "Pooling") {
            let (found, include_prompt) = read_pooling(folder, &module.path)?;
            pooling = found;
            if !include_prompt {
                instruction = InstructionSpan::Masked;
            }
        }
    }
    Ok((pooling, read_instruction(folder)?.unwrap_or(instruction)))
}

/// The latent-attention settings in the `config.json` of NV-Embed's release.
fn nv_embed_block(config: &Value) -> Option<BlockConfig> {
    if config.get("model_type")?.as_str()? != nv_embed::MODEL_TYPE {
        return None;
    }
    let latent = config.get("latent_attention_config");
    let size = |key: &str, default: usize| {
        latent
            .and_then(|latent| latent.get(key))
            .and_then(Value::as_u64)
            .map_or(default, |n| n as usize)
    };
    Some(BlockConfig {
        latents: size("num_latents_value", 512),
        latent_size: None,
        heads: size("num_cross_heads", 8),
        head_dim: Some(size("cross_dim_head", 4096)),
        feed_forward: FeedForwardKind::Geglu,
        layer_std: 0.0,
    })
}

/// That the pooling behind NV-Embed's model, whose states its latent attention gives, is the mean with which Kiln's ends.
fn mean_behind_latents(folder: &dyn Folder, path: &str) -> Result<()> {
    match read_pooling(folder, path)? {
        (PoolingConfig::Mean, _) => Ok(()),
        (other, _) => Err(bad(
            folder,
            &inside(path, "config.json"),
            format!("pools by {}, and the latent attention of NV-Embed by the mean", other.name()),
        )),
    }
}

const HEAD_PREFIX: &str = "latent_attention_model.";

/// The same checkpoint opened again, so that the head's reader lists only its own tensors.
fn released_head(backbone: &mut Weights, folder: &dyn Folder) -> Result<Weights> {
    let mut weights = Weights::open(folder, "model")?;
    weights.retain(|name| name.starts_with(HEAD_PREFIX));
    if weights.tensors().is_empty() {
        return Err(Error::bad_file(
            backbone.label(),
            format!("has no tensor whose name starts with {HEAD_PREFIX}"),
            "use an NV-Embed checkpoint with its latent attention head",
        ));
    }
    Ok(weights)
}

/// A head with parameters, read under the names of NV-Embed's release.
///
/// # Errors
/// One error that lists every tensor that does not fit.
pub fn load_pooling<B: Kernels>(
    pooling: &PoolingConfig,
    model: &ModelConfig,
    weights: &mut Weights,
    device: &B::Device,
) -> Result<Pooling<B>> {
    fill(Pooling::unfilled(pooling, model, device), weights, &head_names(), "", device)
}

/// The head of a pooling module, and whether the prompt is pooled.
fn read_pooling(folder: &dyn Folder, path: &str) -> Result<(PoolingConfig, bool)> {
    let file = inside(path, "config.json");
    let config = read_json(folder, &file)?.ok_or_else(|| Error::MissingFile {
        folder: folder.label(),
        file: file.clone(),
        remedy: "modules.json lists it; copy the whole folder".into(),
    })?;
    let include_prompt = config.get("include_prompt").and_then(Value::as_bool).unwrap_or(true);
    if let Some(own) = config.get("kiln") {
        let pooling: PoolingConfig =
            serde_json::from_value(own.clone()).map_err(|e| bad(folder, &file, e))?;
        pooling.check().map_err(|e| bad(folder, &file, e))?;
        return Ok((pooling, include_prompt));
    }
    let mut result = Vec::new();
    if let Some(mode) = config.get("pooling_mode") {
        let modes = mode.as_array().map_or_else(|| vec![mode.clone()], Clone::clone);
        result.extend(modes.iter().filter_map(Value::as_str).map(String::from));
    } else if let Some(object) = config.as_object() {
        let set = object
            .iter()
            .filter(|(key, value)| key.starts_with("pooling_mode_") && **value == true);
        result.extend(set.map(|(key, _)| key.clone()));
    }
    let known =
        |result: &String| MODES.iter().find(|(flag, mode, _)| result == flag || result == mode);
    match result.as_slice() {
        [one] => match known(one) {
            Some((_, _, pooling)) => Ok((pooling.clone(), include_prompt)),
            None => Err(bad(folder, &file, format!("the pooling mode {one:?} is not supported"))),
        },
        [] => Err(bad(folder, &file, "no pooling mode is set")),
        several => Err(bad(
            folder,
            &file,
            format!("several pooling modes are set: {}", several.join(", ")),
        )),
    }
}

/// That a module takes sentences' vectors and gives them on, as sentence-transformers 6 may say otherwise.
fn of_sentences(folder: &dyn Folder, file: &str, config: &Value) -> Result<()> {
    const VECTOR: &str = "sentence_embedding";
    for key in ["module_input_name", "module_output_name"] {
        match config.get(key) {
            None | Some(Value::Null) => {}
            Some(Value::String(name)) if name == VECTOR => {}
            Some(other) => {
                return Err(bad(
                    folder,
                    file,
                    format!("{key} is {other}, and only {VECTOR:?} is supported"),
                ));
            }
        }
    }
    Ok(())
}

/// The sizes of a projection's module.
pub(crate) fn read_dense(folder: &dyn Folder, path: &str) -> Result<DenseConfig> {
    let file = inside(path, "config.json");
    let value = read_json(folder, &file)?.ok_or_else(|| bad(folder, &file, "is missing"))?;
    let size = |key: &str| {
        let size =
            value.get(key).and_then(Value::as_u64).filter(|size| (1..1 << 24).contains(size));
        size.map(|size| size as usize)
            .ok_or_else(|| bad(folder, &file, format!("{key} is missing or no size")))
    };
    // sentence-transformers 6 has them; without them the vectors would be others.
    if value["use_residual"] == true {
        return Err(bad(folder, &file, "use_residual is true, which is not supported"));
    }
    of_sentences(folder, &file, &value)?;
    let class = value.get("activation_function").and_then(Value::as_str).unwrap_or("Tanh");
    Ok(DenseConfig {
        in_features: size("in_features")?,
        out_features: size("out_features")?,
        bias: value.get("bias").and_then(Value::as_bool).unwrap_or(true),
        activation: match class.rsplit('.').next().unwrap_or_default() {
            "Identity" => DenseActivation::Identity,
            "Tanh" => DenseActivation::Tanh,
            "ReLU" => DenseActivation::Relu,
            "GELU" => DenseActivation::Gelu,
            other => {
                return Err(bad(
                    folder,
                    &file,
                    format!("the activation {other:?} is not supported"),
                ));
            }
        },
    })
}

fn read_tokenizer(
    folder: &dyn Folder,
    root: &str,
    config: &ModelConfig,
    instruction: InstructionSpan,
    options: &LoadOptions,
) -> Result<(Tokenizer, Files)> {
    let mut files = Files::default();
    for name in TOKENIZER_FILES {
        // Multi-module folders may keep the tokenizer at the top.
        let bytes = match read_text(folder, &inside(root, name))? {
            Some(bytes) => Some(bytes),
            None => read_text(folder, name)?,
        };
        if let Some(bytes) = bytes {
            files.0.insert(name.into(), bytes.into());
        }
    }
    let table = config.family == Family::Static;
    let json = files.0.get("tokenizer.json").ok_or_else(|| Error::MissingFile {
        folder: folder.label(),
        file: inside(root, "tokenizer.json"),
        remedy: "save the model with its fast tokenizer".into(),
    })?;
    // The rows of a table are averaged without special tokens.
    let bare = if table { Some(without_template(folder, root, json)?) } else { None };
    let table_length = bare.as_ref().and_then(|(_, length)| *length);
    let json = bare.as_ref().map_or(json, |(json, _)| json);
    let mut names: Value = match files.0.get("tokenizer_config.json") {
        Some(text) => serde_json::from_slice(text)
            .map_err(|e| bad(folder, "tokenizer_config.json", format!("not valid JSON: {e}")))?,
        None => json!({}),
    };
    let (path, sentence) = read_sentence(folder, root)?;
    let of_tokenizer = ["tokenizer_args", "processor_kwargs"];
    let says_length = of_tokenizer.iter().any(|key| sentence[key]["model_max_length"].is_number());
    overlay(&mut names, &sentence, &of_tokenizer);
    let call_length = read_text_calls(&sentence).map_err(|cause| bad(folder, &path, cause))?;
    let rebuilt = as_its_class_has_it(json, &names, config)
        .map_err(|error| bad(folder, &inside(root, "tokenizer.json"), error))?;
    let json = rebuilt.as_ref().unwrap_or(json);
    let flag = |value: &Value, key: &str| value.get(key).and_then(Value::as_bool).unwrap_or(false);
    let length = |value: &Value, key: &str| {
        // transformers writes 10^30 for tokenizers without a limit.
        value.get(key).and_then(Value::as_u64).map_or(usize::MAX, |length| length as usize)
    };
    let keys = read_json(folder, &inside(root, "config.json"))?.unwrap_or_default();
    let is_listed = folder.open("modules.json").is_ok_and(|file| file.is_some());
    let drops = keys[DROPS_UNKNOWN] == true || (keys["model_type"] == "model2vec" && !is_listed);
    // NV-Embed's own code puts EOS behind its texts where this says so; its tokenizer does not.
    let closes = keys["model_type"] == nv_embed::MODEL_TYPE && keys["add_eos"] == true;
    let max_length = match sentence.get("max_seq_length").and_then(Value::as_u64) {
        // A table says nothing of it in its tokenizer's settings, and sentence-transformers takes the tokenizer's own.
        None if table => table_length.filter(|_| is_listed).unwrap_or(usize::MAX),
        Some(length) if !says_length => length as usize,
        _ => length(&names, "model_max_length"),
    };
    let max_length = max_length.min(call_length.unwrap_or(usize::MAX));
    let text = &options.text;
    // transformers' Llama tokenizers add what these ask for; where they do not, the template rules.
    let adds = |key: &str| (config.family.adds_tokens() && flag(&names, key)).then_some(true);
    let tokenizer_config = TokenizerConfig {
        max_length: options.max_length.unwrap_or(max_length).min(config.max_positions),
        padding_side: text.padding_side.unwrap_or(match names.get("padding_side") {
            Some(side) if side == "left" => PaddingSide::Left,
            _ => PaddingSide::Right,
        }),
        add_bos: text.add_bos.or(adds("add_bos_token")),
        add_eos: text.add_eos.or(adds("add_eos_token")).or(closes.then_some(true)),
        text_suffix: text.text_suffix.clone().unwrap_or_default(),
        lower_case: flag(&sentence, "do_lower_case"),
        // As model2vec does it; sentence-transformers averages them with the others.
        drop_unknown: table && drops,
        instruction: text.instruction.unwrap_or(instruction),
    };
    let tokenizer =
        Tokenizer::new(json, &names, tokenizer_config).map_err(|error| match error {
            Error::BadFile { file, cause, remedy } => {
                Error::BadFile { file: folder.file_label(&inside(root, &file)), cause, remedy }
            }
            other => other,
        })?;
    if text.changes_files() || closes {
        let names = template_names(names, tokenizer.config().padding_side);
        files.0.insert("tokenizer.json".into(), tokenizer.to_json()?.into());
        files.0.insert("tokenizer_config.json".into(), format!("{names:#}\n").into());
    }
    Ok((tokenizer, files))
}

/// Tokenizers that transformers builds anew by their settings, whatever `tokenizer.json` has.
const REBUILT: [&str; 6] = [
    "BertTokenizer",
    "BertTokenizerFast",
    "DistilBertTokenizer",
    "DistilBertTokenizerFast",
    "MPNetTokenizer",
    "MPNetTokenizerFast",
];

/// A `tokenizer.json` with the normalizer that the tokenizer's class makes of its settings, where that is another.
fn as_its_class_has_it(
    json: &Bytes,
    names: &Value,
    config: &ModelConfig,
) -> std::result::Result<Option<Bytes>, serde_json::Error> {
    // What holds where nothing is said; accents go with capitals then.
    const SETTINGS: [(&str, &str, Value); 3] = [
        ("lowercase", "do_lower_case", Value::Bool(true)),
        ("strip_accents", "strip_accents", Value::Null),
        ("handle_chinese_chars", "tokenize_chinese_chars", Value::Bool(true)),
    ];
    // A table is read by the tokenizers crate itself.
    let known = config.family != Family::Static
        && names["tokenizer_class"].as_str().is_some_and(|class| REBUILT.contains(&class));
    if !known {
        return Ok(None);
    }
    let mut file: Value = serde_json::from_slice(json)?;
    if file["normalizer"]["type"] != "BertNormalizer" {
        return Ok(None);
    }
    let normalizer = &mut file["normalizer"];
    let mut changes = false;
    for (own, setting, usual) in SETTINGS {
        let wanted = if names[setting].is_boolean() { names[setting].clone() } else { usual };
        changes |= normalizer[own] != wanted;
        normalizer[own] = wanted;
    }
    Ok(if changes { Some(serde_json::to_vec(&file)?.into()) } else { None })
}

/// A `tokenizer.json` without its template and its own limit, and that limit.
fn without_template(
    folder: &dyn Folder,
    root: &str,
    json: &Bytes,
) -> Result<(Bytes, Option<usize>)> {
    let path = inside(root, "tokenizer.json");
    let mut file: Value = serde_json::from_slice(json)
        .map_err(|error| bad(folder, &path, format!("not valid JSON: {error}")))?;
    let length = file["truncation"]["max_length"].as_u64().map(|length| length as usize);
    if let Some(file) = file.as_object_mut() {
        file.remove("post_processor");
        file.remove("truncation");
    }
    let bytes = serde_json::to_vec(&file).map_err(Error::invalid)?;
    Ok((bytes.into(), length))
}

/// `tokenizer_config.json` for a `tokenizer.json` whose own template rules: of no class that makes
/// another from settings.
fn template_names(mut names: Value, side: PaddingSide) -> Value {
    if let Some(object) = names.as_object_mut() {
        object.remove("add_bos_token");
        object.remove("add_eos_token");
        object.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
        object.insert("padding_side".into(), json!(side));
    }
    names
}

/// Which instruction tokens are pooled, where it is neither all nor none ([`INSTRUCTION`]).
fn read_instruction(folder: &dyn Folder) -> Result<Option<InstructionSpan>> {
    let file = "config_sentence_transformers.json";
    let value = read_json(folder, file)?.unwrap_or_default();
    let kept = value.get(INSTRUCTION).cloned();
    kept.map(serde_json::from_value).transpose().map_err(|error| bad(folder, file, error))
}

/// The function that a cross-encoder of sentence-transformers 6 makes of its scores, by its Python path; older ones say
/// it in their `config.json`.
pub(crate) fn read_activation(folder: &dyn Folder) -> Result<Option<String>> {
    let value = read_json(folder, "config_sentence_transformers.json")?.unwrap_or_default();
    Ok(value["activation_fn"].as_str().map(String::from))
}

pub(crate) fn read_prompts(folder: &dyn Folder) -> Result<Prompts> {
    let file = "config_sentence_transformers.json";
    let value = read_json(folder, file)?.unwrap_or_default();
    let mut by_name = BTreeMap::new();
    if let Some(object) = value.get("prompts").and_then(Value::as_object) {
        for (name, text) in object {
            let text = text
                .as_str()
                .ok_or_else(|| bad(folder, file, format!("the prompt {name} is no text")))?;
            by_name.insert(name.clone(), text.into());
        }
    }
    let default = value.get("default_prompt_name").and_then(Value::as_str).map(String::from);
    let format = match value.get(INSTRUCTION_FORMAT) {
        None | Some(Value::Null) => None,
        Some(Value::String(format)) => Some(format.clone()),
        Some(_) => return Err(bad(folder, file, format!("{INSTRUCTION_FORMAT} is no text"))),
    };
    Prompts::new(by_name, default)
        .and_then(|prompts| prompts.with_instruction_format(format))
        .map_err(|error| bad(folder, file, error))
}
