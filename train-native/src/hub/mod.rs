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
use kiln_embed::checkpoint::{Directory, TRANSFORMER_CONFIGS, is_reranker, read_embedder_config};
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

/// What a repository holds.
#[derive(PartialEq, Eq)]
enum Content {
    Model,
    /// A static embedding.
    Table,
    /// LoRA adapters alone.
    Adapter,
}

/// Where a repository's files are.
struct Layout {
    /// Its folder in the cache.
    folder: PathBuf,
    /// The folder of the first module, which the transformer or the table is in, with a `/` at its end; empty where that
    /// is the repository's own.
    root: String,
    content: Content,
}

/// An entry of `modules.json`.
struct Module {
    kind: String,
    path: String,
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
    /// No such model, no network and no cached copy, a file that is missing, or a model that cannot be read.
    pub fn fetch(&self) -> Result<PathBuf> {
        self.repo.greet()?;
        let layout = self.layout()?;
        match layout.content {
            Content::Adapter => self.fetch_adapter_weights("")?,
            Content::Table => {
                self.fetch_all_but_weights(&layout)?;
                self.fetch_weights(&layout.root)?;
            }
            Content::Model => {
                self.fetch_all_but_weights(&layout)?;
                // Beside adapters it is their base's that is computed.
                if let Err(error) = readable_modules(&layout.folder)
                    && self.unless_empty(ADAPTER)?.is_none()
                {
                    return Err(error);
                }
                self.fetch_weights(&layout.root)?;
            }
        }
        Ok(layout.folder)
    }

    /// What the repository is, by the first files that say so; what cannot be read is refused by its `config.json`.
    fn layout(&self) -> Result<Layout> {
        const CONFIG: &str = "config.json";
        let at_top = self.unless_empty(CONFIG)?;
        let mut is_table = match &at_top {
            Some(config) => readable(config)?,
            None => false,
        };
        if at_top.is_none()
            && let Some(adapter) = self.unless_empty(ADAPTER)?
        {
            let (root, content) = (String::new(), Content::Adapter);
            return Ok(Layout { folder: folder_of(&adapter)?, root, content });
        }
        let list = self.unless_empty("modules.json")?;
        let modules = self.modules()?;
        if let Some(list) = &list {
            // One that names what is not supported is refused.
            is_reranker(&Directory::new(folder_of(list)?)?)?;
        }
        let root = match modules.first() {
            Some(first) if !first.path.is_empty() => format!("{}/", first.path),
            _ => String::new(),
        };
        is_table |= modules.first().is_some_and(|first| first.kind == "StaticEmbedding");
        let folder = match (at_top, list) {
            (Some(file), _) => folder_of(&file)?,
            (None, Some(file)) if is_table || !root.is_empty() => folder_of(&file)?,
            (None, _) => folder_of(&self.required(CONFIG)?)?,
        };
        if !is_table && !root.is_empty() {
            readable(&self.required(&format!("{root}{CONFIG}"))?)?;
        }
        let content = if is_table { Content::Table } else { Content::Model };
        Ok(Layout { folder, root, content })
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
        self.fetch_adapter_weights(&format!("{folder}/"))?;
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

    /// Downloads the weights of the adapters in a folder, whose name ends with a `/` where it is not the model's own.
    fn fetch_adapter_weights(&self, folder: &str) -> Result<()> {
        let file = format!("{folder}adapter_model.safetensors");
        if self.unless_empty(&file)?.is_none()
            && self.unless_empty(&format!("{folder}adapter_model.bin"))?.is_none()
        {
            self.required(&file)?;
        }
        Ok(())
    }

    /// Downloads the backbone's weights: safetensors where there are any, adapters with a copy of the base's
    /// config.json as LLM2Vec has them, else PyTorch's own files.
    fn fetch_weights(&self, root: &str) -> Result<()> {
        if self.fetch_whole_or_shards(root, "model.safetensors")? {
            return Ok(());
        }
        if self.unless_empty(ADAPTER)?.is_some() {
            return self.fetch_adapter_weights("");
        }
        if self.fetch_whole_or_shards(root, "pytorch_model.bin")? {
            return Ok(());
        }
        self.required(&format!("{root}model.safetensors")).map(drop)
    }

    /// Downloads a file of weights, or those that its index lists; false where there is neither.
    fn fetch_whole_or_shards(&self, root: &str, file: &str) -> Result<bool> {
        let Some(index) = self.unless_empty(&format!("{root}{file}.index.json"))? else {
            return Ok(self.unless_empty(&format!("{root}{file}"))?.is_some());
        };
        for shard in shards(&index)? {
            self.required(&format!("{root}{shard}"))?;
        }
        Ok(true)
    }

    /// Downloads all but the backbone's weights; of a table they come too, as they alone say its shape.
    ///
    /// # Errors
    /// As [`HubModel::fetch`].
    pub fn fetch_without_weights(&self) -> Result<PathBuf> {
        self.repo.greet()?;
        let layout = self.layout()?;
        if layout.content == Content::Adapter {
            self.required("config.json")?;
        }
        self.fetch_all_but_weights(&layout)?;
        if layout.content == Content::Table {
            self.fetch_weights(&layout.root)?;
        }
        Ok(layout.folder)
    }

    fn fetch_all_but_weights(&self, Layout { root, .. }: &Layout) -> Result<()> {
        // The tokenizer is in the first module's folder, or in the model's own.
        let is_inside =
            !root.is_empty() && self.unless_empty(&format!("{root}tokenizer.json"))?.is_some();
        if !is_inside {
            self.required("tokenizer.json")?;
        }
        let places = if root.is_empty() { vec![""] } else { vec![root.as_str(), ""] };
        for place in places {
            for file in optional_files() {
                self.optional(&format!("{place}{file}"))?;
            }
        }
        if let Some(file) = self.named_template()? {
            self.optional(&file)?;
        }
        for path in self.module_paths()? {
            self.optional(&format!("{path}/config.json"))?;
            // The first module's weights are the backbone's.
            if root.strip_suffix('/') != Some(path.as_str())
                && self.optional(&format!("{path}/model.safetensors"))?.is_none()
            {
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

    /// Downloads the configuration files alone, without the weights; of a table they come too, as they alone say its
    /// shape.
    ///
    /// # Errors
    /// As [`HubModel::fetch`].
    pub fn fetch_configuration(&self) -> Result<PathBuf> {
        self.repo.greet()?;
        let layout = self.layout()?;
        if layout.content == Content::Table {
            self.fetch_weights(&layout.root)?;
        }
        for path in self.module_paths()? {
            self.optional(&format!("{path}/config.json"))?;
        }
        Ok(layout.folder)
    }

    /// The sentence-transformers modules, by the last part of their class.
    fn modules(&self) -> Result<Vec<Module>> {
        let Some(file) = self.optional("modules.json")? else {
            return Ok(Vec::new());
        };
        let label = || format!("{}: not a list of modules", file.display());
        let modules: Value = serde_json::from_slice(&std::fs::read(&file)?).with_context(label)?;
        let modules = modules.as_array().with_context(label)?;
        let modules = modules.iter().map(|module| {
            let path = module["path"].as_str().filter(|path| *path != ".").unwrap_or_default();
            if !path.is_empty() {
                names::check(path).with_context(|| file.display().to_string())?;
            }
            let class = module["type"].as_str().unwrap_or_default();
            let kind = class.rsplit('.').next().unwrap_or_default();
            Ok(Module { kind: kind.into(), path: path.into() })
        });
        modules.collect()
    }

    /// Folders of the sentence-transformers modules that have one.
    fn module_paths(&self) -> Result<Vec<String>> {
        let paths = self.modules()?.into_iter().map(|module| module.path);
        Ok(paths.filter(|path| !path.is_empty()).collect())
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

/// Refuses a model that cannot be read before anything of it comes but its `config.json`; whether it is a table of model2vec.
fn readable(config: &Path) -> Result<bool> {
    let text = std::fs::read(config).with_context(|| config.display().to_string())?;
    let keys: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    match keys["model_type"].as_str() {
        None => Ok(false),
        // The shape of model2vec's is that of its table.
        Some("model2vec") => Ok(true),
        Some(_) => Ok(ModelConfig::from_value(&keys).map(|_| false)?),
    }
}

/// Refuses an embedder whose modules cannot be read before its weights come.
fn readable_modules(folder: &Path) -> Result<()> {
    let files = Directory::new(folder)?;
    if !is_reranker(&files)? {
        read_embedder_config(&files)?;
    }
    Ok(())
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
