//! Finds a model: a folder, or a Hub id with its cache.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use burn::tensor::backend::Backend;
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use kiln_core::checkpoint::{Directory, LoadOptions, load, read_architecture};
use kiln_core::config::ModelConfig;
use kiln_core::embedder::Embedder;
use kiln_core::pooling::PoolingConfig;

use crate::terminal::Terminal;

/// Files that a model may have beside its weights; those that are not there are passed over.
const OPTIONAL_FILES: [&str; 6] = [
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "README.md",
];

/// The folder of a model: the path itself where it is one, else a Hub id
/// (`owner/name` or `owner/name@revision`), downloaded into the Hub's cache.
///
/// # Errors
/// Neither a folder nor a model that the Hub has.
pub fn resolve(name: &str, terminal: Terminal) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.exists() {
        return Ok(path.to_path_buf());
    }
    let (id, revision) = name.split_once('@').unwrap_or((name, "main"));
    let parts: Vec<&str> = id.split('/').collect();
    let is_id = parts.len() == 2
        && parts.iter().all(|part| {
            !part.is_empty()
                && !part.starts_with('.')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        });
    if !is_id {
        bail!(
            "{name}: no such folder, and not a Hub id (owner/name); name the folder that holds the model"
        );
    }
    download(id, revision, terminal)
        .with_context(|| format!("{name}: no such folder here, and the Hub did not give it"))
}

fn download(id: &str, revision: &str, terminal: Terminal) -> Result<PathBuf> {
    let repo = Repo::with_revision(id.into(), RepoType::Model, revision.into());
    let cached = || -> Option<PathBuf> {
        let cache = Cache::from_env().repo(repo.clone());
        let weights = ["model.safetensors", "model.safetensors.index.json"];
        weights.iter().find_map(|file| cache.get(file))?;
        Some(cache.get("config.json")?.parent()?.to_path_buf())
    };
    if std::env::var("HF_HUB_OFFLINE").is_ok_and(|value| !matches!(value.as_str(), "" | "0")) {
        return cached().context("HF_HUB_OFFLINE is set, and the cache does not have it");
    }
    match fetch(&repo, terminal) {
        Err(error) => match cached() {
            Some(folder) => {
                terminal.note(format!("using the cached copy: {error:#}"));
                Ok(folder)
            }
            None => Err(error),
        },
        fetched => fetched,
    }
}

/// Downloads what the cache does not have yet.
fn fetch(repo: &Repo, terminal: Terminal) -> Result<PathBuf> {
    let repo = ApiBuilder::from_env().with_progress(!terminal.quiet).build()?.repo(repo.clone());
    let config = repo.get("config.json")?;
    repo.get("tokenizer.json")?;
    for file in OPTIONAL_FILES {
        optional(&repo, file)?;
    }
    for path in optional(&repo, "modules.json")?
        .map(|file| module_paths(&file))
        .transpose()?
        .unwrap_or_default()
    {
        for file in ["config.json", "model.safetensors"] {
            optional(&repo, &format!("{path}/{file}"))?;
        }
    }
    match optional(&repo, "model.safetensors.index.json")? {
        Some(index) => {
            let index: serde_json::Value = serde_json::from_slice(&std::fs::read(&index)?)
                .with_context(|| format!("{}: not valid JSON", index.display()))?;
            let map = index["weight_map"].as_object().context("the index has no weight_map")?;
            let shards: std::collections::BTreeSet<&str> =
                map.values().filter_map(|v| v.as_str()).collect();
            for shard in shards {
                repo.get(shard)?;
            }
        }
        None => {
            repo.get("model.safetensors")?;
        }
    }
    config.parent().map(Path::to_path_buf).context("the Hub's cache has no folder for the model")
}

/// Folders of the modules that have one.
fn module_paths(modules: &Path) -> Result<Vec<String>> {
    let label = || format!("{}: not a list of modules", modules.display());
    let modules: serde_json::Value =
        serde_json::from_slice(&std::fs::read(modules)?).with_context(label)?;
    let paths =
        modules.as_array().with_context(label)?.iter().filter_map(|module| module["path"].as_str());
    Ok(paths.filter(|path| !path.is_empty()).map(String::from).collect())
}

/// A file that the repository may lack.
fn optional(repo: &ApiRepo, file: &str) -> Result<Option<PathBuf>> {
    match repo.get(file) {
        Ok(path) => Ok(Some(path)),
        Err(ApiError::RequestError(error)) if error.to_string().contains("404") => Ok(None),
        Err(error) => Err(error).with_context(|| file.to_string()),
    }
}

/// Loads a model by folder or Hub id.
///
/// # Errors
/// As [`resolve`], and whatever is wrong with the model's files.
pub fn load_embedder<B: Backend>(
    name: &str,
    options: &LoadOptions,
    device: &B::Device,
    terminal: Terminal,
) -> Result<Embedder<B>> {
    let folder = Directory::new(resolve(name, terminal)?)?;
    Ok(load(&folder, options, device)?)
}

/// Shape and pooling head of a model, from its configuration files alone.
///
/// # Errors
/// As [`resolve`], and configuration files that cannot be read.
pub fn architecture(name: &str, terminal: Terminal) -> Result<(ModelConfig, PoolingConfig)> {
    let path = Path::new(name);
    let folder = match path.exists() || !name.contains('/') {
        true => resolve(name, terminal)?,
        false => configuration(name)
            .with_context(|| format!("{name}: no such folder here, and the Hub did not give it"))?,
    };
    Ok(read_architecture(&Directory::new(folder)?)?)
}

/// The configuration files of a Hub model, without its weights.
fn configuration(name: &str) -> Result<PathBuf> {
    let (id, revision) = name.split_once('@').unwrap_or((name, "main"));
    let repo = Repo::with_revision(id.into(), RepoType::Model, revision.into());
    let repo = ApiBuilder::from_env().with_progress(false).build()?.repo(repo);
    let config = repo.get("config.json")?;
    let modules = optional(&repo, "modules.json")?.map(|file| module_paths(&file)).transpose()?;
    for path in modules.unwrap_or_default() {
        optional(&repo, &format!("{path}/config.json"))?;
    }
    config.parent().map(Path::to_path_buf).context("the Hub's cache has no folder for the model")
}
