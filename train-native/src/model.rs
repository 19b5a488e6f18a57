//! Finds a model (a folder, or a Hub id with its cache), and loads it on a device.

mod shapes;
mod task_adapter;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use kiln_embed::checkpoint::{
    self, Directory, FileSum, Folder, LoadOptions, MANIFEST, ReadSeek, Weights, is_vector_adapter,
    load_adapted, load_vector_adapter, read_embedder_config, read_text, save, stays_inside,
    task_names,
};
use kiln_embed::config::AttentionMode;
use kiln_embed::embedder::{Embedder, EmbedderConfig, Prompts, Similarity};
use kiln_embed::kernels::Kernels;
use kiln_embed::model::Backbone;
use kiln_embed::pooling::{DenseConfig, PoolingConfig};
use kiln_embed::quant::WeightPrecision;
use kiln_embed::reranker::{RerankerShape, read_reranker_shape, reranker_shape};
use kiln_embed::tokenizer::Tokenizer;
use serde_json::Value;

use crate::device::Device;
use crate::embedding::TextModel;
use crate::hub::{ADAPTER, HubModel, is_id, is_snapshot};
use crate::terminal::Terminal;
use crate::text::read_small;
use crate::with_backend;

/// Opens what [`resolve`] found: a folder, or a `.kiln` file.
///
/// # Errors
/// Unreadable, or a file that is no model.
pub fn open_folder(path: &Path) -> Result<Box<dyn Folder>> {
    checkpoint::open_folder(path).map_err(|error| match path.extension() {
        Some(ending) if ending == "kiln" => anyhow!(error),
        _ if path.is_dir() => anyhow!(error),
        _ => anyhow!("{error} (a model is a folder, a .kiln file, or a Hub id)"),
    })
}

/// Refuses a model whose weights, or those of the base that its adapters belong to, are quantized
/// already.
///
/// # Errors
/// It is quantized, or its weights cannot be read.
pub fn must_be_full(name: &str, terminal: Terminal) -> Result<()> {
    // Adapters have no weights of their own, and their base comes last.
    let Some(path) = folders(name, terminal)?.pop() else { return Ok(()) };
    let folder = open_folder(&path)?;
    let weights = Weights::open(folder.as_ref(), weights_stem(folder.as_ref())?)?;
    if weights.tensors().values().any(|tensor| tensor.scheme.is_some()) {
        bail!("{}: is quantized already; use the model that it was made from", path.display());
    }
    Ok(())
}

/// Where a folder keeps the weights of its backbone, without the ending.
///
/// # Errors
/// An unreadable folder.
pub fn weights_stem(folder: &dyn Folder) -> Result<&'static str> {
    for (file, stem) in [
        ("0_Transformer/config.json", "0_Transformer/model"),
        ("0_StaticEmbedding/tokenizer.json", "0_StaticEmbedding/model"),
    ] {
        if folder.open(file)?.is_some() {
            return Ok(stem);
        }
    }
    Ok("model")
}

/// The folder (or `.kiln` file) of a model: the path itself where it is one, else a Hub id
/// (`owner/name` or `owner/name@revision`), downloaded into the Hub's cache. Of `MODEL#ADAPTER` it is the adapter's.
///
/// # Errors
/// Neither a folder nor a model that the Hub has; a model without that adapter.
pub fn resolve(name: &str, terminal: Terminal) -> Result<PathBuf> {
    Ok(locate(name, terminal)?.folder)
}

/// As [`resolve`], with the name that loads the same model again, and asks no server.
///
/// # Errors
/// As [`resolve`].
pub fn locate(name: &str, terminal: Terminal) -> Result<LocatedModel> {
    find(name, terminal, HubModel::fetch)
}

/// As [`resolve`], without the weights where the model is on the Hub.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_without_weights(name: &str, terminal: Terminal) -> Result<PathBuf> {
    Ok(find(name, terminal, HubModel::fetch_without_weights)?.folder)
}

/// Where a model's files are.
pub struct LocatedModel {
    /// Its folder or `.kiln` file; of adapters theirs.
    pub folder: PathBuf,
    /// Of `MODEL#ADAPTER` the folder of MODEL, which the adapter belongs to whatever it says.
    model: Option<PathBuf>,
    /// And ADAPTER.
    adapter: Option<String>,
}

impl LocatedModel {
    /// The name of what was found: its path, or `MODEL#ADAPTER` with MODEL's.
    pub fn name(&self) -> String {
        match (&self.model, &self.adapter) {
            (Some(model), Some(adapter)) => format!("{}#{adapter}", model.display()),
            _ => self.folder.display().to_string(),
        }
    }

    /// The base model of adapters, by a name that loads it; `None` where this is a model.
    ///
    /// # Errors
    /// An adapter that names none, or names what its folder must not.
    pub fn base(&self) -> Result<Option<String>> {
        match &self.model {
            Some(model) => Ok(Some(model.display().to_string())),
            None => base_of(&self.folder),
        }
    }
}

fn find(
    name: &str,
    terminal: Terminal,
    fetch: impl FnOnce(&HubModel) -> Result<PathBuf>,
) -> Result<LocatedModel> {
    if Path::new(name).exists() {
        return Ok(LocatedModel { folder: name.into(), model: None, adapter: None });
    }
    let (model, adapter) = match name.rsplit_once('#') {
        Some((model, adapter)) => (model, Some(adapter)),
        None => (name, None),
    };
    let (folder, hub) = if Path::new(model).exists() {
        (PathBuf::from(model), None)
    } else if is_id(model) {
        let hub = HubModel::new(model, terminal)?;
        let folder = fetch(&hub).map_err(|error| match error.is::<kiln_embed::Error>() {
            true => error.context(model.to_string()),
            false => {
                error.context(format!("{model}: no such folder here, and the Hub did not give it"))
            }
        })?;
        (folder, Some(hub))
    } else {
        bail!(
            "{model}: no such folder, and not a Hub id (owner/name); name the folder that holds the model"
        );
    };
    let Some(adapter) = adapter else {
        return Ok(LocatedModel { folder, model: None, adapter: None });
    };
    let own = match task_adapter::of(&folder, adapter)? {
        Some(own) => own,
        None => adapter_of(&folder, hub.as_ref(), model, adapter)?,
    };
    // PEFT keeps several adapters below the first one's folder, which is no model.
    let is_model = base_of(&folder)?.is_none();
    let model = is_model.then_some(folder);
    Ok(LocatedModel { folder: own, model, adapter: Some(adapter.to_string()) })
}

/// A name without its punctuation, which folders and prompts have differently.
fn plain(name: &str) -> String {
    name.replace(['.', '-'], "_")
}

/// The prompts of a model with an adapter. Where its configuration names that one as a task's, the prompt by the same name is
/// the default, as in the code that such models bring (jina-embeddings-v3's `encode(texts, task)`).
fn with_adapter(prompts: Prompts, adapter: Option<&str>, model: &dyn Folder) -> Result<Prompts> {
    let Some(adapter) = adapter.filter(|_| prompts.default_name().is_none()) else {
        return Ok(prompts);
    };
    let own = task_adapter::named(&task_names(model)?, adapter);
    Ok(match own.filter(|task| prompts.by_name().contains_key(task)) {
        Some(task) => prompts.with_default(&task)?,
        None => prompts,
    })
}

/// The model's part of `MODEL#ADAPTER`.
fn without_adapter(name: &str) -> &str {
    match name.rsplit_once('#') {
        Some((model, _)) if !Path::new(name).exists() => model,
        _ => name,
    }
}

/// The folder of one of several adapters that lie in a model's folder, or in its repository on the Hub:
/// `retrieval.query` is also found as `retrieval_query`, and either below `adapters/`.
fn adapter_of(
    folder: &Path,
    hub: Option<&HubModel>,
    model: &str,
    adapter: &str,
) -> Result<PathBuf> {
    if adapter.is_empty() || !stays_inside(adapter) {
        bail!("{model}: {adapter:?} is no adapter's name");
    }
    for name in [adapter, &plain(adapter)] {
        for place in [name.to_string(), format!("adapters/{name}")] {
            let is_there = match hub {
                Some(hub) => hub.fetch_adapter(&place).with_context(|| {
                    format!("{model}: the Hub did not give its adapter {adapter:?}")
                })?,
                None => folder.join(&place).join(ADAPTER).is_file(),
            };
            if is_there {
                return Ok(folder.join(place));
            }
        }
    }
    let mut names = match hub {
        Some(hub) => hub.adapters()?,
        None => adapters_in(folder),
    };
    if let Ok(files) = open_folder(folder) {
        names.extend(task_names(files.as_ref())?);
    }
    // A folder's and a configuration's may be one.
    names.sort_by_key(|name| plain(name));
    names.dedup_by_key(|name| plain(name));
    let known = match names.is_empty() {
        true => "there is none".to_string(),
        false => format!("there are {}", names.join(", ")),
    };
    bail!("{model}: has no adapter {adapter:?}; {known}")
}

/// The names of adapters in a model's folder.
fn adapters_in(folder: &Path) -> Vec<String> {
    let entries = [folder.to_path_buf(), folder.join("adapters")].into_iter();
    let entries = entries.flat_map(std::fs::read_dir).flatten().flatten();
    let adapters = entries.filter(|entry| entry.path().join(ADAPTER).is_file());
    adapters.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The folders that a model is read from: its own and, where that is one of adapters, then that of the base model.
///
/// # Errors
/// As [`resolve`].
pub fn folders(name: &str, terminal: Terminal) -> Result<Vec<PathBuf>> {
    let found = locate(name, terminal)?;
    let base = found.base()?.map(|base| resolve(&base, terminal)).transpose()?;
    Ok([found.folder].into_iter().chain(base).collect())
}

/// Whether a folder has a model's configuration and weights.
fn is_whole(folder: &Path) -> bool {
    let weights = [
        "model.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
    ];
    folder.join("config.json").exists() && weights.iter().any(|file| folder.join(file).exists())
}

/// The base model that a folder of LoRA adapters, or of an adapter of vectors, names; `None` where the folder is a
/// model. LLM2Vec's folders have a copy of the base's config.json beside the adapters, and no weights.
fn base_of(folder: &Path) -> Result<Option<String>> {
    let path = folder.join(ADAPTER);
    if !folder.is_dir() {
        return Ok(None);
    }
    if !path.exists() {
        let files = Directory::new(folder)?;
        if !is_vector_adapter(&files) {
            return Ok(None);
        }
        let (_, base) = load_vector_adapter(&files)?;
        let path = folder.join("config.json");
        let name = base.name.filter(|name| !name.is_empty()).ok_or_else(|| {
            anyhow!(
                "{}: is one module, and names no model that it belongs to; set base_model_name_or_path",
                path.display()
            )
        })?;
        return trusted(folder, &path, name).map(Some);
    }
    if is_whole(folder) {
        return Ok(None);
    }
    let label = || path.display().to_string();
    let config: serde_json::Value =
        serde_json::from_str(&read_small(&path)?).with_context(label)?;
    let base = config["base_model_name_or_path"].as_str().filter(|name| !name.is_empty());
    let base = base.ok_or_else(|| {
        anyhow!("{}: names no base model; set base_model_name_or_path", path.display())
    })?;
    trusted(folder, &path, base.to_string()).map(Some)
}

/// The base model that a folder names, unless a stranger's adapters would have this machine's files opened.
fn trusted(folder: &Path, path: &Path, base: String) -> Result<String> {
    let real = folder.canonicalize().with_context(|| folder.display().to_string())?;
    // A snapshot has adapters in subfolders, too.
    let is_strange = folder.ancestors().chain(real.ancestors()).any(is_snapshot);
    if is_strange && (!is_id(&base) || Path::new(&base).exists()) {
        bail!(
            "{}: names the base model {base:?}, which is no Hub id (owner/name) or is a folder here; \
             copy the adapters, and set base_model_name_or_path yourself",
            path.display()
        );
    }
    Ok(base)
}

/// The tokenizer and the prompts of a model, read without its weights; those of the base model where it is
/// one of LoRA adapters.
///
/// # Errors
/// As [`resolve`], and whatever is wrong with the model's files.
pub fn load_tokenizer(name: &str, terminal: Terminal) -> Result<(Tokenizer, Prompts)> {
    let model = without_adapter(name);
    let adapter = name[model.len()..].strip_prefix('#');
    let base = find(model, terminal, HubModel::fetch_configuration)?.base()?;
    let folder = resolve_without_weights(base.as_deref().unwrap_or(model), terminal)?;
    let files = open_folder(&folder)?;
    let (tokenizer, prompts) = checkpoint::load_tokenizer(files.as_ref(), &LoadOptions::default())?;
    Ok((tokenizer, with_adapter(prompts, adapter, files.as_ref())?))
}

/// Loads a model by folder or Hub id on a device. A folder of LoRA adapters, as PEFT writes them, is
/// its base model with the adapters merged.
///
/// Quantized tables may stay in the model's file, which is mapped: whoever cuts that file short while it is
/// used ends the process. What runs for long uses [`load_resident`].
///
/// # Errors
/// As [`resolve`], and whatever is wrong with the model's files.
pub fn load(
    name: &str,
    options: &LoadOptions,
    device: &Device,
    terminal: Terminal,
) -> Result<Arc<dyn TextModel>> {
    load_on(name, options, device, terminal, open_folder)
}

/// As [`load`], all of it read into memory: its files may be changed or removed afterwards.
///
/// # Errors
/// As [`load`].
pub fn load_resident(
    name: &str,
    options: &LoadOptions,
    device: &Device,
    terminal: Terminal,
) -> Result<Arc<dyn TextModel>> {
    load_on(name, options, device, terminal, open_to_read)
}

fn load_on(
    name: &str,
    options: &LoadOptions,
    device: &Device,
    terminal: Terminal,
    open: Opener,
) -> Result<Arc<dyn TextModel>> {
    Ok(with_backend!(device, B, handle => {
        Arc::new(load_from::<B>(name, options, &handle, terminal, open)?)
    }))
}

/// As [`load`], with the type of its backend: for training and compression, which change a model.
///
/// # Errors
/// As [`load`].
pub fn load_embedder<B: Kernels>(
    name: &str,
    options: &LoadOptions,
    device: &B::Device,
    terminal: Terminal,
) -> Result<Embedder<B>> {
    load_from(name, options, device, terminal, open_folder)
}

/// As [`load_embedder`], to be trained: the prompts are those of the model's files, and none is an adapter's, as rows are
/// trained behind what the recipe says.
///
/// # Errors
/// As [`load`].
pub fn load_to_train<B: Kernels>(
    name: &str,
    options: &LoadOptions,
    device: &B::Device,
    terminal: Terminal,
) -> Result<Embedder<B>> {
    let embedder = load_embedder(name, options, device, terminal)?;
    let model = without_adapter(name);
    if model == name {
        return Ok(embedder);
    }
    let (_, prompts) = load_tokenizer(model, terminal)?;
    Ok(embedder.with_prompts(prompts))
}

/// As [`load_resident`], with the type of its backend.
///
/// # Errors
/// As [`load`].
pub fn load_into_memory<B: Kernels>(
    name: &str,
    options: &LoadOptions,
    device: &B::Device,
    terminal: Terminal,
) -> Result<Embedder<B>> {
    load_from(name, options, device, terminal, open_to_read)
}

type Opener = fn(&Path) -> Result<Box<dyn Folder>>;

/// As [`open_folder`], with files that are read, never mapped.
pub(crate) fn open_to_read(path: &Path) -> Result<Box<dyn Folder>> {
    Ok(Box::new(ToRead(open_folder(path)?)))
}

/// A folder whose files are read, never mapped.
struct ToRead(Box<dyn Folder>);

impl Folder for ToRead {
    fn label(&self) -> String {
        self.0.label()
    }

    fn open(&self, path: &str) -> std::io::Result<Option<(Box<dyn ReadSeek>, u64)>> {
        self.0.open(path)
    }

    fn file_label(&self, path: &str) -> String {
        self.0.file_label(path)
    }
}

fn load_from<B: Kernels>(
    name: &str,
    options: &LoadOptions,
    device: &B::Device,
    terminal: Terminal,
    open: Opener,
) -> Result<Embedder<B>> {
    let found = locate(name, terminal)?;
    let base = found.base()?;
    let LocatedModel { folder: path, adapter, .. } = found;
    let Some(base) = base else {
        let folder = open(&path)?;
        let embedder = checkpoint::load(folder.as_ref(), options, device)?;
        embedder.verify().with_context(|| path.display().to_string())?;
        advise_of_tasks(name, folder.as_ref(), terminal)?;
        if path.join(ADAPTER).exists() {
            terminal.note(format!(
                "warning: {name}: has adapters ({ADAPTER}) beside weights of its own, which are read without them; if they are \
                 not in the weights yet, move them into a folder below, and name it by --adapter"
            ));
        }
        advise(name, &embedder, folder.as_ref(), options, terminal)?;
        return Ok(embedder);
    };
    let base = resolve(&base, terminal)
        .with_context(|| format!("the base model of the adapters in {}", path.display()))?;
    let base = open(&base)?;
    let full = LoadOptions { precision: WeightPrecision::Full, ..options.clone() };
    let embedder: Embedder<B> = checkpoint::load(base.as_ref(), &full, device)?;
    let folder = Directory::new(&path)?;
    if !path.join(ADAPTER).exists() {
        advise_of_base(name, &folder, base.as_ref(), terminal)?;
    }
    let embedder = embedder.map_model(|model| {
        let adapted = load_adapted(model, &folder, None, device)?;
        Ok(adapted.map_backbone(Backbone::merge_lora))
    })?;
    let prompts = with_adapter(embedder.prompts().clone(), adapter.as_deref(), base.as_ref())?;
    let embedder = embedder.with_prompts(prompts);
    advise(name, &embedder, base.as_ref(), options, terminal)?;
    match options.precision {
        // Rounded once the adapters are in.
        WeightPrecision::Rounded(_) | WeightPrecision::Bf16 => {
            Ok(checkpoint::load(&save(&embedder)?, options, device)?)
        }
        WeightPrecision::Kept | WeightPrecision::Full => Ok(embedder),
    }
}

/// Says where an adapter of vectors was taught on another model than its base. That may be the same one with weights of
/// another precision, so it is used all the same.
fn advise_of_base(
    name: &str,
    adapter: &Directory,
    base: &dyn Folder,
    terminal: Terminal,
) -> Result<()> {
    let (_, taught_on) = load_vector_adapter(adapter)?;
    let sum = read_text(base, MANIFEST)?.map(|text| FileSum::of(&text).sha256);
    if taught_on.fingerprint.zip(sum).is_some_and(|(taught_on, sum)| taught_on != sum) {
        terminal.note(format!(
            "warning: {name}: was taught on another model than {}, or on other weights of it (kiln.json is another); \
             if it is another model, name the right one in base_model_name_or_path",
            base.label()
        ));
    }
    Ok(())
}

/// Says where a model whose own code takes one of its adapters for every text is computed without.
fn advise_of_tasks(name: &str, folder: &dyn Folder, terminal: Terminal) -> Result<()> {
    let Some(text) = read_text(folder, "config.json")? else { return Ok(()) };
    let config: Value = serde_json::from_slice(&text)?;
    let tasks = config["task_names"].as_array().into_iter().flatten();
    let tasks: Vec<&str> = tasks.filter_map(Value::as_str).collect();
    if config["model_type"] == "jina_embeddings_v5" && !tasks.is_empty() {
        terminal.note(format!(
            "warning: {name}: its own code makes no vectors without one of its adapters ({}), and these are the base's alone; \
             add --adapter {}",
            tasks.join(", "),
            tasks[0]
        ));
    }
    Ok(())
}

/// Parts of the names of decoders that attend in both directions in their own code, which their
/// config.json does not say.
const BIDIRECTIONAL: [&str; 3] = ["gte-qwen2", "gritlm", "llm2vec"];

/// The class of its own code by which a decoder's config.json has it read, where that file does not say whether
/// attention is causal.
fn own_class(folder: &dyn Folder) -> Result<Option<String>> {
    let Some(text) = read_text(folder, "config.json")? else { return Ok(None) };
    let config: Value = serde_json::from_slice(&text)?;
    let says =
        ["is_causal", "use_bidirectional_attention"].iter().any(|key| config[key].is_boolean());
    // Qwen3 of jina-embeddings-v5, which is causal.
    let known = config["model_type"] == "jina_embeddings_v5";
    let class = config["auto_map"]["AutoModel"].as_str().filter(|_| !says && !known);
    Ok(class.map(str::to_string))
}

/// Names what is probably not meant about a model of that name, whose configuration stands in `folder`, and the setting
/// that changes it.
fn advise<B: Kernels>(
    name: &str,
    embedder: &Embedder<B>,
    folder: &dyn Folder,
    options: &LoadOptions,
    terminal: Terminal,
) -> Result<()> {
    let model = embedder.model();
    if *model.pooling().config() == PoolingConfig::LastToken
        && embedder.tokenizer().suffix().is_empty()
    {
        terminal.note(format!(
            "warning: {name}: pools the last token, and its tokenizer puts none after a text, so that the text's own last \
             token is pooled; --add-eos true (model.add_eos = true in a recipe) puts EOS there"
        ));
    }
    let of_tokenizer = embedder.tokenizer_files().0.get("tokenizer_config.json");
    let of_tokenizer = of_tokenizer.and_then(|text| serde_json::from_slice::<Value>(text).ok());
    if of_tokenizer.is_some_and(|settings| settings["truncation_side"] == "left") {
        terminal.note(format!(
            "warning: {name}: its tokenizer_config.json has long texts lose their beginning (truncation_side); Kiln keeps the \
             beginning, and texts of more than {} tokens lose their end",
            embedder.tokenizer().config().max_length
        ));
    }
    let similarity = embedder.similarity();
    if similarity.normalizes() && similarity != Similarity::Cosine {
        terminal.note(format!(
            "warning: {name}: its vectors are meant to be compared by their {} distance (similarity_fn_name); Kiln ranks by \
             the cosine",
            similarity.name()
        ));
    }
    let causal = model.config().family.is_decoder() && model.attention() == AttentionMode::Causal;
    if options.attention.is_some() || !causal {
        return Ok(());
    }
    let known = name.to_lowercase();
    if BIDIRECTIONAL.iter().any(|part| known.contains(part)) {
        terminal.note(format!(
            "warning: {name}: models of this name attend in both directions, which its config.json does not say; \
             --attention bidirectional (model.attention in a recipe) does so"
        ));
    } else if let Some(class) = own_class(folder)? {
        terminal.note(format!(
            "warning: {name}: config.json has it computed by code of its own ({class}), which Kiln does not run, and does \
             not say whether attention is causal, as it is here; if that code attends in both directions, add \
             --attention bidirectional (model.attention in a recipe), and --attention causal if it does not"
        ));
    }
    Ok(())
}

/// Shape of a model, from its configuration files alone. No server is asked for those that shipped
/// recipes start from.
///
/// # Errors
/// As [`resolve`], and configuration files that cannot be read.
pub fn embedder_config(name: &str, terminal: Terminal) -> Result<EmbedderConfig> {
    if !Path::new(name).exists()
        && let Some(shape) = shapes::shipped_shape(name)?
    {
        terminal
            .note(format!("{name}: its shape is the one that Kiln brings; nothing was downloaded"));
        return Ok(shape);
    }
    let found = find(name, terminal, HubModel::fetch_configuration)?;
    let Some(base) = found.base()? else {
        return Ok(read_embedder_config(open_folder(&found.folder)?.as_ref())?);
    };
    let base = find(&base, terminal, HubModel::fetch_configuration)?.folder;
    let mut shape = read_embedder_config(open_folder(&base)?.as_ref())?;
    let files = Directory::new(found.folder)?;
    if is_vector_adapter(&files) {
        let (adapter, _) = load_vector_adapter(&files)?;
        shape.dense.push(DenseConfig::of_adapter(&adapter));
    }
    Ok(shape)
}

/// Shape of the cross-encoder that training makes of a model, from its configuration files alone. No server is asked
/// for those that shipped recipes start from.
///
/// # Errors
/// As [`embedder_config`]; a model of which no cross-encoder is trained.
pub fn reranker_config(name: &str, terminal: Terminal) -> Result<RerankerShape> {
    if !Path::new(name).exists()
        && let Some(shape) = shapes::shipped_shape(name)?
    {
        terminal
            .note(format!("{name}: its shape is the one that Kiln brings; nothing was downloaded"));
        return Ok(reranker_shape(&shape.config, &shape.config.to_value())?);
    }
    let found = find(name, terminal, HubModel::fetch_configuration)?;
    if let Some(base) = found.base()? {
        bail!(
            "{name}: is adapters of {base}, of which no cross-encoder is trained; merge them, or start from {base}"
        );
    }
    Ok(read_reranker_shape(open_folder(&found.folder)?.as_ref())?)
}

/// A model's name for folders and tables: the Hub id, or the folder's last part; of the folders
/// that a training run leaves (`RUN/model`, `RUN/best`) the last two.
pub fn model_name(model: &str) -> String {
    if let Some((whole, adapter)) = model.rsplit_once('#')
        && !Path::new(model).exists()
    {
        return format!("{}#{adapter}", model_name(whole));
    }
    let Ok(path) = Path::new(model).canonicalize() else {
        return model.split('@').next().unwrap_or(model).into();
    };
    let part = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
    let last = part(&path).unwrap_or_else(|| model.into());
    match path.parent().and_then(part) {
        Some(run) if ["model", "best"].contains(&last.as_str()) => format!("{run}/{last}"),
        _ => last,
    }
}
