//! The Hugging Face Hub: models and data sets come from it into its cache, and models go to it.
//!
//! `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN`, `HF_HUB_OFFLINE`, `HF_HUB_ETAG_TIMEOUT` and
//! `HF_HUB_DOWNLOAD_TIMEOUT` mean what they mean to `huggingface_hub`, and the cache is the same.
//!
//! A repository is a stranger's, and so may be the server. Whatever they name is checked before it
//! is asked for or becomes a path (`names`, `cache`); the token goes to the Hub's own address
//! alone, and every answer has a limit (`client`); what is downloaded is compared with the sum
//! that the Hub announced (`download`).

mod cache;
mod client;
mod download;
mod names;
mod repo;
mod settings;
mod upload;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use kiln_embed::checkpoint::TRANSFORMER_CONFIGS;
use kiln_embed::config::ModelConfig;
use serde_json::Value;

use self::repo::{Kind, Repo};
use crate::terminal::Terminal;

/// Files that a model may have beside its weights; those that are not there are passed over.
const OPTIONAL_FILES: [&str; 6] = [
    "chat_template.jinja",
    "config_sentence_transformers.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "README.md",
];

fn optional_files() -> impl Iterator<Item = &'static str> {
    OPTIONAL_FILES.into_iter().chain(TRANSFORMER_CONFIGS)
}

/// What a folder of LoRA adapters has instead of `config.json`.
pub const ADAPTER: &str = "adapter_config.json";

/// Whether a name can be a Hub id.
pub fn is_id(name: &str) -> bool {
    names::parts(name).is_some()
}

/// Whether a folder is one that the Hub's cache keeps a repository's files in.
pub fn is_snapshot(folder: &Path) -> bool {
    let part = |path: Option<&Path>| {
        path.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
    };
    names::Commit::parse(&part(Some(folder))).is_some()
        && part(folder.parent()) == "snapshots"
        && part(folder.parent().and_then(Path::parent)).starts_with("models--")
}

/// A model on the Hub: `owner/name` or `owner/name@revision`.
pub struct HubModel {
    repo: Repo,
}

impl HubModel {
    /// A model by its id. Nothing is asked of the network yet.
    ///
    /// # Errors
    /// Not an id, or an endpoint that is no address.
    pub fn new(id: &str, terminal: Terminal) -> Result<Self> {
        Ok(Self { repo: Repo::new(Kind::Model, id, None, terminal)? })
    }

    /// A file that the repository may lack, from the cache where it is there.
    fn optional(&self, file: &str) -> Result<Option<PathBuf>> {
        self.repo.get(file)
    }

    /// As [`HubModel::optional`], of a file that says something where it is there.
    fn unless_empty(&self, file: &str) -> Result<Option<PathBuf>> {
        let result = self.optional(file)?;
        if let Some(path) = &result {
            let data = std::fs::metadata(path).with_context(|| path.display().to_string())?;
            if data.len() == 0 {
                bail!(
                    "{}: is empty; remove it, and run the command again with a network",
                    path.display()
                );
            }
        }
        Ok(result)
    }

    fn required(&self, file: &str) -> Result<PathBuf> {
        self.unless_empty(file)?.with_context(|| match self.repo.is_offline() {
            true => format!("there is no network, or HF_HUB_OFFLINE is set, and the cache does not have its {file}"),
            false => format!("there is no {file} at revision {:?}", self.repo.revision),
        })
    }

    /// Downloads what the cache does not have yet, and says in which folder it all is.
    ///
    /// # Errors
    /// No such model, no network and no cached copy, or a file that is missing.
    pub fn fetch(&self) -> Result<PathBuf> {
        self.repo.greet()?;
        let Some(config) = self.unless_empty("config.json")? else {
            if let Some(adapter) = self.unless_empty(ADAPTER)? {
                self.required("adapter_model.safetensors")?;
                return folder_of(&adapter);
            }
            return match self.fetch_table()? {
                Some(folder) => Ok(folder),
                None => self.required("config.json"),
            };
        };
        readable(&config)?;
        self.fetch_all_but_weights()?;
        self.fetch_weights()?;
        folder_of(&config)
    }

    /// Downloads what the cache does not have yet of one of several adapters that lie in folders of their own; false where
    /// there is no such folder.
    ///
    /// # Errors
    /// No network and no cached copy, or adapters without weights.
    pub fn fetch_adapter(&self, folder: &str) -> Result<bool> {
        if self.unless_empty(&format!("{folder}/{ADAPTER}"))?.is_none() {
            return Ok(false);
        }
        self.required(&format!("{folder}/adapter_model.safetensors"))?;
        Ok(true)
    }

    /// The names of the adapters that lie in folders of their own, as [`HubModel::fetch_adapter`] finds them.
    ///
    /// # Errors
    /// As [`HubModel::fetch`].
    pub fn adapters(&self) -> Result<Vec<String>> {
        let names = self.repo.names()?;
        let folders = names.iter().filter_map(|name| name.strip_suffix(ADAPTER)?.strip_suffix('/'));
        let names = folders.map(|folder| folder.strip_prefix("adapters/").unwrap_or(folder));
        Ok(names.map(String::from).collect())
    }

    /// Downloads a static embedding of sentence-transformers, which has no config.json; `None` where the list of
    /// modules names none.
    fn fetch_table(&self) -> Result<Option<PathBuf>> {
        let Some(list) = self.unless_empty("modules.json")? else { return Ok(None) };
        if !std::fs::read_to_string(&list)?.contains("StaticEmbedding") {
            return Ok(None);
        }
        for file in optional_files() {
            self.optional(file)?;
        }
        // The table is in the first module's folder, which may be the model's own.
        let folders = self.module_paths()?;
        let inside = |file: &str| match folders.first() {
            Some(folder) if folder.contains("StaticEmbedding") => format!("{folder}/{file}"),
            _ => file.to_string(),
        };
        self.required(&inside("tokenizer.json"))?;
        if self.optional(&inside("model.safetensors"))?.is_none() {
            self.required(&inside("pytorch_model.bin"))?;
        }
        for folder in &folders {
            self.optional(&format!("{folder}/config.json"))?;
        }
        folder_of(&list).map(Some)
    }

    /// Downloads the backbone's weights: safetensors where there are any, adapters with a copy of the base's
    /// config.json as LLM2Vec has them, else PyTorch's own files.
    fn fetch_weights(&self) -> Result<()> {
        if self.fetch_whole_or_shards("model.safetensors")? {
            return Ok(());
        }
        if self.unless_empty(ADAPTER)?.is_some() {
            return self.required("adapter_model.safetensors").map(drop);
        }
        if self.fetch_whole_or_shards("pytorch_model.bin")? {
            return Ok(());
        }
        self.required("model.safetensors").map(drop)
    }

    /// Downloads a file of weights, or those that its index lists; false where there is neither.
    fn fetch_whole_or_shards(&self, file: &str) -> Result<bool> {
        let Some(index) = self.unless_empty(&format!("{file}.index.json"))? else {
            return Ok(self.unless_empty(file)?.is_some());
        };
        for shard in shards(&index)? {
            self.required(&shard)?;
        }
        Ok(true)
    }

    /// Downloads all but the backbone's weights.
    ///
    /// # Errors
    /// As [`HubModel::fetch`].
    pub fn fetch_without_weights(&self) -> Result<PathBuf> {
        self.repo.greet()?;
        let config = self.required("config.json")?;
        readable(&config)?;
        self.fetch_all_but_weights()?;
        folder_of(&config)
    }

    fn fetch_all_but_weights(&self) -> Result<()> {
        self.required("tokenizer.json")?;
        for file in optional_files() {
            self.optional(file)?;
        }
        if let Some(file) = self.named_template()? {
            self.optional(&file)?;
        }
        for path in self.module_paths()? {
            self.optional(&format!("{path}/config.json"))?;
            if self.optional(&format!("{path}/model.safetensors"))?.is_none() {
                self.optional(&format!("{path}/pytorch_model.bin"))?;
            }
        }
        Ok(())
    }

    /// The file of a chat template that a decoder's settings name.
    fn named_template(&self) -> Result<Option<String>> {
        let Some(file) = self.optional("sentence_bert_config.json")? else { return Ok(None) };
        let settings: Value = serde_json::from_slice(&std::fs::read(&file)?)
            .with_context(|| file.display().to_string())?;
        let name = settings["processing_kwargs"]["chat_template"]["chat_template"].as_str();
        let Some(name) = name.filter(|name| !name.contains('{') && *name != "default") else {
            return Ok(None);
        };
        let path = format!("additional_chat_templates/{name}.jinja");
        names::check(&path).with_context(|| file.display().to_string())?;
        Ok(Some(path))
    }

    /// Downloads the configuration files alone, without the weights.
    ///
    /// # Errors
    /// As [`HubModel::fetch`].
    pub fn fetch_configuration(&self) -> Result<PathBuf> {
        self.repo.greet()?;
        let config = match self.unless_empty("config.json")? {
            Some(config) => config,
            None => self.unless_empty(ADAPTER)?.map_or_else(|| self.required("config.json"), Ok)?,
        };
        for path in self.module_paths()? {
            self.optional(&format!("{path}/config.json"))?;
        }
        folder_of(&config)
    }

    /// Folders of the sentence-transformers modules that have one.
    fn module_paths(&self) -> Result<Vec<String>> {
        let Some(file) = self.optional("modules.json")? else {
            return Ok(Vec::new());
        };
        let label = || format!("{}: not a list of modules", file.display());
        let modules: Value = serde_json::from_slice(&std::fs::read(&file)?).with_context(label)?;
        let modules = modules.as_array().with_context(label)?;
        let paths = modules.iter().filter_map(|module| module["path"].as_str());
        let paths = paths.filter(|path| !path.is_empty() && *path != ".").map(|path| {
            names::check(path).with_context(|| file.display().to_string())?;
            Ok(path.to_string())
        });
        paths.collect()
    }

    /// Makes the repository where it is not there, and uploads a folder in one commit. Returns
    /// the commit's address.
    ///
    /// # Errors
    /// No token, a token without the right to write, or no network.
    pub fn push(&self, folder: &Path, message: &str, private: bool) -> Result<String> {
        if self.repo.is_offline() {
            bail!("HF_HUB_OFFLINE is set; unset it to upload");
        }
        upload::push(&self.repo, folder, message, private)
    }
}

/// A data set on the Hub: `owner/name` at a revision.
pub struct HubDataSet {
    repo: Repo,
}

impl HubDataSet {
    /// A data set by its id. Nothing is asked of the network yet.
    ///
    /// # Errors
    /// Not an id, or an endpoint that is no address.
    pub fn new(id: &str, revision: Option<&str>, terminal: Terminal) -> Result<Self> {
        Ok(Self { repo: Repo::new(Kind::DataSet, id, revision, terminal)? })
    }

    /// The branch on which the Hub keeps the data set as Parquet.
    pub fn converted(&self) -> Self {
        Self { repo: self.repo.at("refs/convert/parquet") }
    }

    /// Id and revision, for messages.
    pub fn label(&self) -> String {
        self.repo.label()
    }

    /// Names of all files; without a network those that the cache has.
    ///
    /// # Errors
    /// No such data set or revision, or no network and nothing in the cache.
    pub fn names(&self) -> Result<Vec<String>> {
        self.repo.names()
    }

    /// A file, from the cache where it is there.
    ///
    /// # Errors
    /// No such file, or no network.
    pub fn file(&self, name: &str) -> Result<PathBuf> {
        let result = self.repo.get(name).with_context(|| self.label())?;
        result.with_context(|| match self.repo.is_offline() {
            true => format!(
                "{}: there is no network, or HF_HUB_OFFLINE is set, and the cache does not have {name}",
                self.label()
            ),
            false => format!("{}: there is no file {name}", self.label()),
        })
    }
}

fn folder_of(file: &Path) -> Result<PathBuf> {
    file.parent().map(Path::to_path_buf).context("the Hub's cache has no folder for the model")
}

/// Refuses a model that cannot be read before anything of it comes but its `config.json`.
fn readable(config: &Path) -> Result<()> {
    let text = std::fs::read(config).with_context(|| config.display().to_string())?;
    let keys: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    match keys["model_type"].as_str() {
        // The shape of model2vec's is that of its table.
        None | Some("model2vec") => Ok(()),
        Some(_) => Ok(ModelConfig::from_value(&keys).map(drop)?),
    }
}

/// Weight files that an index names.
fn shards(index: &Path) -> Result<BTreeSet<String>> {
    let label = || format!("{}: not an index of weights", index.display());
    let value: serde_json::Value =
        serde_json::from_slice(&std::fs::read(index)?).with_context(label)?;
    let map = value["weight_map"].as_object().with_context(label)?;
    let shards: BTreeSet<String> =
        map.values().filter_map(|shard| shard.as_str().map(String::from)).collect();
    // All of them before the first is asked for.
    for shard in &shards {
        names::check(shard).with_context(|| index.display().to_string())?;
    }
    Ok(shards)
}
