//! The Hugging Face Hub: models come from it into its cache, and go to it.
//!
//! `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN` and `HF_HUB_OFFLINE` mean what they mean to
//! `huggingface_hub`.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use hf_hub::progress::{DownloadEvent, Progress, ProgressEvent, ProgressHandler, UploadEvent};
use hf_hub::repository::{RepoTreeEntry, RepoTypeDataset, RepoTypeModel};
use hf_hub::{HFClientSync, HFError, HFRepositorySync};
use indicatif::ProgressBar;

use crate::terminal::Terminal;
use crate::text::names_below;

/// Files that a model may have beside its weights; those that are not there are passed over.
const OPTIONAL_FILES: [&str; 6] = [
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "README.md",
];

/// What a folder of LoRA adapters has instead of `config.json`.
pub const ADAPTER: &str = "adapter_config.json";

/// A model on the Hub: `owner/name` or `owner/name@revision`.
pub struct HubModel {
    repo: HFRepositorySync<RepoTypeModel>,
    revision: String,
    offline: Cell<bool>,
    terminal: Terminal,
}

/// Owner, name and revision of a Hub id; `None` where it is none.
fn parts(id: &str) -> Option<[&str; 3]> {
    let (id, revision) = id.split_once('@').unwrap_or((id, "main"));
    let (owner, name) = id.split_once('/')?;
    let word = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    (word(owner) && word(name)).then_some([owner, name, revision])
}

/// Whether the user wants no network.
fn offline() -> bool {
    std::env::var("HF_HUB_OFFLINE").is_ok_and(|value| !matches!(value.as_str(), "" | "0"))
}

/// Whether a name can be a Hub id.
pub fn is_id(name: &str) -> bool {
    parts(name).is_some()
}

impl HubModel {
    /// A model by its id. Nothing is asked of the network yet.
    ///
    /// # Errors
    /// Not an id, or an endpoint that is no address.
    pub fn new(id: &str, terminal: Terminal) -> Result<Self> {
        let [owner, name, revision] = parts(id)
            .with_context(|| format!("{id}: not a Hub id (owner/name or owner/name@revision)"))?;
        let client = HFClientSync::new().context("the Hub's settings (HF_ENDPOINT, HF_TOKEN)")?;
        let repo = client.model(owner, name);
        Ok(Self { repo, revision: revision.into(), offline: Cell::new(offline()), terminal })
    }

    /// Asks the Hub for the model, and goes on with the cache alone where the Hub cannot be
    /// reached.
    fn greet(&self) -> Result<()> {
        if self.offline.get() {
            return Ok(());
        }
        match self.repo.info().revision(self.revision.as_str()).send() {
            Err(error @ (HFError::RepoNotFound { .. } | HFError::RevisionNotFound { .. })) => {
                Err(error.into())
            }
            Err(HFError::Request { source, .. }) => {
                self.terminal
                    .note(format!("the Hub cannot be reached, trying its cache: {source}"));
                self.offline.set(true);
                Ok(())
            }
            // A mirror may have the files alone; what is wrong shows at the first of them.
            _ => Ok(()),
        }
    }

    /// A file that the repository may lack, from the cache where it is there.
    fn optional(&self, file: &str) -> Result<Option<PathBuf>> {
        let bar = Bar::progress(self.terminal, file);
        let found = self
            .repo
            .download_file()
            .filename(file)
            .revision(self.revision.as_str())
            .local_files_only(self.offline.get())
            .progress(bar)
            .send();
        match found {
            Ok(path) => Ok(Some(path)),
            Err(HFError::EntryNotFound { .. } | HFError::LocalEntryNotFound { .. }) => Ok(None),
            Err(error) => Err(error).with_context(|| file.to_string()),
        }
    }

    fn required(&self, file: &str) -> Result<PathBuf> {
        self.optional(file)?.with_context(|| match self.offline.get() {
            true => format!("there is no network, or HF_HUB_OFFLINE is set, and the cache does not have its {file}"),
            false => format!("there is no {file} at revision {:?}", self.revision),
        })
    }

    /// Downloads what the cache does not have yet, and says in which folder it all is.
    ///
    /// # Errors
    /// No such model, no network and no cached copy, or a file that is missing.
    pub fn fetch(&self) -> Result<PathBuf> {
        self.greet()?;
        let Some(config) = self.optional("config.json")? else {
            let Some(adapter) = self.optional(ADAPTER)? else {
                return self.required("config.json");
            };
            self.required("adapter_model.safetensors")?;
            return folder_of(&adapter);
        };
        self.fetch_all_but_weights()?;
        match self.optional("model.safetensors.index.json")? {
            Some(index) => {
                for shard in shards(&index)? {
                    self.required(&shard)?;
                }
            }
            None => {
                self.required("model.safetensors")?;
            }
        }
        folder_of(&config)
    }

    /// Downloads all but the backbone's weights.
    ///
    /// # Errors
    /// As [`HubModel::fetch`].
    pub fn fetch_without_weights(&self) -> Result<PathBuf> {
        self.greet()?;
        let config = self.required("config.json")?;
        self.fetch_all_but_weights()?;
        folder_of(&config)
    }

    fn fetch_all_but_weights(&self) -> Result<()> {
        self.required("tokenizer.json")?;
        for file in OPTIONAL_FILES {
            self.optional(file)?;
        }
        for path in self.module_paths()? {
            for file in ["config.json", "model.safetensors"] {
                self.optional(&format!("{path}/{file}"))?;
            }
        }
        Ok(())
    }

    /// Downloads the configuration files alone, without the weights.
    ///
    /// # Errors
    /// As [`HubModel::fetch`].
    pub fn fetch_configuration(&self) -> Result<PathBuf> {
        self.greet()?;
        let config = match self.optional("config.json")? {
            Some(config) => config,
            None => self.optional(ADAPTER)?.map_or_else(|| self.required("config.json"), Ok)?,
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
        let modules: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&file)?).with_context(label)?;
        let modules = modules.as_array().with_context(label)?;
        let paths = modules.iter().filter_map(|module| module["path"].as_str());
        Ok(paths.filter(|path| !path.is_empty()).map(String::from).collect())
    }

    /// Makes the repository where it is not there, and uploads a folder in one commit. Returns
    /// the commit's address.
    ///
    /// # Errors
    /// No token, a token without the right to write, or no network.
    pub fn push(&self, folder: &Path, message: &str, private: bool) -> Result<String> {
        if self.offline.get() {
            bail!("HF_HUB_OFFLINE is set; unset it to upload");
        }
        let login = "the Hub refuses; set HF_TOKEN to a token with the right to write \
                     (https://huggingface.co/settings/tokens)";
        let explain = |error: HFError| match error {
            HFError::AuthRequired { .. } | HFError::Forbidden { .. } => {
                anyhow::Error::new(error).context(login)
            }
            other => other.into(),
        };
        let id = self.repo.repo_path();
        let client = HFClientSync::new()?;
        client
            .create_repository()
            .repo_id(&id)
            .repo_type(RepoTypeModel)
            .private(private)
            .exist_ok(true)
            .send()
            .map_err(explain)
            .with_context(|| format!("{id}: the repository could not be made"))?;
        let commit = self
            .repo
            .upload_folder()
            .folder_path(folder)
            .revision(self.revision.as_str())
            .commit_message(message)
            .progress(Bar::progress(self.terminal, &id))
            .send()
            .map_err(explain)
            .with_context(|| format!("{id}: nothing was uploaded"))?;
        Ok(commit.commit_url.unwrap_or_else(|| format!("https://huggingface.co/{id}")))
    }
}

/// A data set on the Hub: `owner/name` at a revision.
pub struct HubDataSet {
    repo: HFRepositorySync<RepoTypeDataset>,
    revision: String,
    offline: Cell<bool>,
    terminal: Terminal,
}

impl HubDataSet {
    /// A data set by its id. Nothing is asked of the network yet.
    ///
    /// # Errors
    /// Not an id, or an endpoint that is no address.
    pub fn new(id: &str, revision: Option<&str>, terminal: Terminal) -> Result<Self> {
        let [owner, name, own] = parts(id)
            .with_context(|| format!("{id}: not a Hub id (owner/name or owner/name@revision)"))?;
        let client = HFClientSync::new().context("the Hub's settings (HF_ENDPOINT, HF_TOKEN)")?;
        let revision = revision.unwrap_or(own).to_string();
        let repo = client.dataset(owner, name);
        Ok(Self { repo, revision, offline: Cell::new(offline()), terminal })
    }

    /// The branch on which the Hub keeps the data set as Parquet.
    pub fn converted(&self) -> Self {
        Self {
            repo: self.repo.clone(),
            revision: "refs/convert/parquet".into(),
            offline: self.offline.clone(),
            terminal: self.terminal,
        }
    }

    /// Id and revision, for messages.
    pub fn label(&self) -> String {
        format!("{}@{}", self.repo.repo_path(), self.revision)
    }

    /// Names of all files; without a network those that the cache has.
    ///
    /// # Errors
    /// No such data set or revision, or no network and nothing in the cache.
    pub fn names(&self) -> Result<Vec<String>> {
        let revision = self.revision.as_str();
        if !self.offline.get() {
            match self.repo.list_tree().revision(revision).recursive(true).send() {
                Ok(entries) => {
                    let name = |entry| match entry {
                        RepoTreeEntry::File { path, .. } => Some(path),
                        RepoTreeEntry::Directory { .. } => None,
                    };
                    return Ok(entries.into_iter().filter_map(name).collect());
                }
                Err(HFError::Request { .. }) => self.offline.set(true),
                Err(error) => return Err(error).with_context(|| self.label()),
            }
        }
        let kept = self.repo.snapshot_download().revision(revision).local_files_only(true).send();
        let kept = kept.map_err(|_| {
            anyhow!(
                "{}: there is no network, or HF_HUB_OFFLINE is set, and the cache does not have it",
                self.label()
            )
        })?;
        names_below(&kept)
    }

    /// A file, from the cache where it is there.
    ///
    /// # Errors
    /// No such file, or no network.
    pub fn file(&self, name: &str) -> Result<PathBuf> {
        let bar = Bar::progress(self.terminal, name);
        let sent = self.repo.download_file().filename(name).revision(self.revision.as_str());
        sent.local_files_only(self.offline.get())
            .progress(bar)
            .send()
            .with_context(|| format!("{}: {name}", self.label()))
    }
}

fn folder_of(file: &Path) -> Result<PathBuf> {
    file.parent().map(Path::to_path_buf).context("the Hub's cache has no folder for the model")
}

/// Weight files that an index names.
fn shards(index: &Path) -> Result<BTreeSet<String>> {
    let label = || format!("{}: not an index of weights", index.display());
    let value: serde_json::Value =
        serde_json::from_slice(&std::fs::read(index)?).with_context(label)?;
    let map = value["weight_map"].as_object().with_context(label)?;
    Ok(map.values().filter_map(|shard| shard.as_str().map(String::from)).collect())
}

/// A transfer on the terminal.
struct Bar {
    bar: ProgressBar,
}

impl Bar {
    fn progress(terminal: Terminal, what: &str) -> Progress {
        Progress::new(Self { bar: terminal.bytes(what) })
    }
}

impl ProgressHandler for Bar {
    fn on_progress(&self, event: &ProgressEvent) {
        let (done, total) = match event {
            ProgressEvent::Download(DownloadEvent::Start { total_bytes, .. })
            | ProgressEvent::Upload(UploadEvent::Start { total_bytes, .. }) => (0, *total_bytes),
            ProgressEvent::Download(DownloadEvent::Progress { files }) => {
                let count =
                    |of: fn(&hf_hub::progress::FileProgress) -> u64| files.iter().map(of).sum();
                (count(|file| file.bytes_completed), count(|file| file.total_bytes))
            }
            ProgressEvent::Download(DownloadEvent::AggregateProgress {
                bytes_completed,
                total_bytes,
                ..
            })
            | ProgressEvent::Upload(UploadEvent::Progress {
                bytes_completed, total_bytes, ..
            }) => (*bytes_completed, *total_bytes),
            ProgressEvent::Download(DownloadEvent::Complete)
            | ProgressEvent::Upload(UploadEvent::Complete) => return self.bar.finish_and_clear(),
            ProgressEvent::Upload(UploadEvent::Committing) => return,
        };
        if total > 0 {
            self.bar.set_length(total);
        }
        self.bar.set_position(done);
    }
}
