//! Finds a model by its name: a folder, a `.kiln` file, a Hub id, or one with an adapter of its own.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use kiln_embed::checkpoint::{
    Directory, is_vector_adapter, load_vector_adapter, stays_inside, task_names,
};

use super::task_adapter::plain;
use super::{open_folder, task_adapter};
use crate::hub::{ADAPTER, HubModel, is_id, is_snapshot};
use crate::terminal::Terminal;
use crate::text::read_small;

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
    pub(super) adapter: Option<String>,
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

pub(super) fn find(
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

/// The model's part of `MODEL#ADAPTER`.
pub fn without_adapter(name: &str) -> &str {
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
