//! Loads a model on a device, wherever it is found, or reads what its files say of it.

mod advice;
mod locate;
mod shapes;
mod task_adapter;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use kiln_embed::checkpoint::{
    self, Directory, Folder, LoadOptions, ReadSeek, Weights, is_vector_adapter, load_adapted,
    load_vector_adapter, read_embedder_config, save, task_names,
};
use kiln_embed::embedder::{Embedder, EmbedderConfig, Prompts};
use kiln_embed::kernels::Kernels;
use kiln_embed::model::Backbone;
use kiln_embed::pooling::DenseConfig;
use kiln_embed::quant::WeightPrecision;
use kiln_embed::reranker::{RerankerShape, read_reranker_shape, reranker_shape};
use kiln_embed::tokenizer::Tokenizer;

pub use self::locate::{
    LocatedModel, folders, locate, resolve, resolve_without_weights, without_adapter,
};

use self::advice::{advise, advise_of_base, advise_of_tasks};
use self::locate::find;
use crate::device::Device;
use crate::embedding::TextModel;
use crate::hub::{ADAPTER, HubModel};
use crate::terminal::Terminal;
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
    // LLM2Vec's folders have their configuration, which names their code, beside the adapters.
    let is_beside = path.join(ADAPTER).exists() && path.join("config.json").exists();
    let configured: &dyn Folder = if is_beside { &folder } else { base.as_ref() };
    advise(name, &embedder, configured, options, terminal)?;
    match options.precision {
        // Rounded once the adapters are in.
        WeightPrecision::Rounded(_) | WeightPrecision::Bf16 => {
            Ok(checkpoint::load(&save(&embedder)?, options, device)?)
        }
        WeightPrecision::Kept | WeightPrecision::Full => Ok(embedder),
    }
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
