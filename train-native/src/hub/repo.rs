//! A repository of the Hub at a revision: what it has, and its files in the cache.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use kiln_embed::checkpoint::stays_inside;
use reqwest::{Method, Url};
use serde_json::Value;

use super::cache::Cache;
use super::client::{Client, Failure, Patience};
use super::download::{Wanted, download};
use super::names::{Commit, check, parts, shown};
use super::settings::{Settings, offline};
use crate::terminal::Terminal;
use crate::text::names_below;

/// The largest file that is not weights in a model; Kiln reads no larger ones.
const LARGEST_TEXT: u64 = 1 << 28;
/// How much of a list is read.
const MOST_PAGES: usize = 1000;
const MOST_FILES: usize = 200_000;

/// What a repository holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Model,
    DataSet,
}

impl Kind {
    /// As addresses and folders call it.
    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::DataSet => "datasets",
        }
    }
}

/// Names and lengths of a revision's files; a length is not always said.
type Listing = BTreeMap<String, Option<u64>>;

#[derive(Clone)]
pub(super) struct Repo {
    pub(super) client: Arc<Client>,
    pub(super) terminal: Terminal,
    pub(super) id: String,
    pub(super) revision: String,
    kind: Kind,
    cache: Cache,
    offline: Cell<bool>,
    /// The commit that everything is read from once it is known, so that a change in between does
    /// not mix two versions.
    commit: OnceCell<Commit>,
    listing: OnceCell<Listing>,
}

impl Repo {
    pub(super) fn new(
        kind: Kind,
        id: &str,
        revision: Option<&str>,
        terminal: Terminal,
    ) -> Result<Self> {
        let [owner, name, own] = parts(id)
            .with_context(|| format!("{id}: not a Hub id (owner/name or owner/name@revision)"))?;
        let revision = revision.unwrap_or(own).to_string();
        if !stays_inside(&revision) {
            bail!("{revision:?}: not a revision (a branch, a tag or a commit)");
        }
        let settings = Settings::read()?;
        let cache = Cache::new(&settings.cache, kind.plural(), owner, name);
        Ok(Self {
            client: Arc::new(Client::new(settings, terminal)?),
            terminal,
            id: format!("{owner}/{name}"),
            revision,
            kind,
            cache,
            offline: Cell::new(offline()),
            commit: OnceCell::new(),
            listing: OnceCell::new(),
        })
    }

    /// The same repository at another revision.
    pub(super) fn at(&self, revision: &str) -> Self {
        let (revision, commit, listing) = (revision.to_string(), OnceCell::new(), OnceCell::new());
        Self { revision, commit, listing, ..self.clone() }
    }

    pub(super) fn is_offline(&self) -> bool {
        self.offline.get()
    }

    /// Id and revision, for messages.
    pub(super) fn label(&self) -> String {
        format!("{}@{}", self.id, self.revision)
    }

    /// An address of the Hub's interface for this repository.
    pub(super) fn api<'a>(&'a self, more: &[&'a str]) -> Result<Url, Failure> {
        let owner_and_name = self.id.split('/');
        let parts = ["api", self.kind.plural()].into_iter().chain(owner_and_name);
        self.client.url(parts.chain(more.iter().copied()))
    }

    /// What is wrong where the Hub knows no such repository or revision; `None` where it says
    /// something else.
    pub(super) fn not_there(&self, failure: &Failure) -> Option<anyhow::Error> {
        let Failure::Status { status, code, message, .. } = failure else { return None };
        let said = if message.is_empty() { String::new() } else { format!(" ({message})") };
        match (status.as_u16(), code.as_str()) {
            (_, "RevisionNotFound") => {
                Some(anyhow::anyhow!("{}: revision {:?} not found{said}", self.id, self.revision))
            }
            (_, "RepoNotFound") | (401, _) => Some(anyhow::anyhow!(
                "{}: not found on the Hub, or private{said}; check the name, and set HF_TOKEN if it is private",
                self.id
            )),
            (403, _) | (_, "GatedRepo") => Some(anyhow::anyhow!(
                "{}: the Hub does not let you read it{said}; accept its terms on its page, and set HF_TOKEN",
                self.id
            )),
            _ => None,
        }
    }

    /// Goes on with the cache alone where the Hub cannot be reached.
    fn without_network(&self, failure: &Failure) {
        self.terminal.note(format!("the Hub cannot be reached, trying its cache: {failure}"));
        self.offline.set(true);
    }

    /// Asks the Hub for the repository.
    pub(super) fn greet(&self) -> Result<()> {
        if self.is_offline() {
            return Ok(());
        }
        let mut url = self.api(&["revision", &self.revision])?;
        url.set_query(Some("blobs=true"));
        let call = self.client.call(Method::GET, url);
        match self.client.retry(&self.id, Patience::SHORT, || self.client.json(&call)) {
            Ok((info, _)) => self.learn(&info),
            Err(Failure::Cancelled) => Err(Failure::Cancelled.into()),
            Err(failure) if failure.is_transient() => {
                self.without_network(&failure);
                Ok(())
            }
            Err(failure) => match self.not_there(&failure) {
                Some(error) => Err(error),
                // A mirror may have the files alone; what is wrong shows at the first of them.
                None => Ok(()),
            },
        }
    }

    /// Takes in the commit and the list of files.
    fn learn(&self, info: &Value) -> Result<()> {
        if let Some(sha) = info["sha"].as_str() {
            let commit = Commit::parse(sha);
            let bad = || {
                format!("{}: the Hub names {:?} as its commit, which is none", self.id, shown(sha))
            };
            self.at_commit(commit.with_context(bad)?)?;
        }
        if let Some(files) = info["siblings"].as_array().filter(|files| files.len() < MOST_FILES) {
            let file = |file: &Value| {
                let length = file["lfs"]["size"].as_u64().or_else(|| file["size"].as_u64());
                Some((file["rfilename"].as_str()?.to_string(), length))
            };
            let _ = self.listing.set(files.iter().filter_map(file).collect());
        }
        Ok(())
    }

    /// From now on, this commit.
    fn at_commit(&self, commit: Commit) -> Result<()> {
        let kept = self.commit.get_or_init(|| commit.clone());
        if *kept != commit {
            bail!(
                "{}: the Hub answers for the commit {} where {} was asked for; run the command again",
                self.label(),
                commit.as_str(),
                kept.as_str()
            );
        }
        Ok(())
    }

    /// Names of all files; without a network those that the cache has.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        if !self.is_offline() {
            match self.list() {
                Ok(files) => {
                    let names = files.keys().cloned().collect();
                    let _ = self.listing.set(files);
                    return Ok(names);
                }
                Err(Failure::Cancelled) => return Err(Failure::Cancelled.into()),
                Err(failure) if failure.is_transient() => self.without_network(&failure),
                Err(failure) => {
                    let error = self.not_there(&failure).unwrap_or_else(|| failure.into());
                    return Err(error.context(self.label()));
                }
            }
        }
        let commit = self.cache.commit(&self.revision)?;
        let folder = commit.map(|commit| self.cache.snapshot(&commit)).transpose()?.flatten();
        names_below(&folder.with_context(|| {
            let why =
                "there is no network, or HF_HUB_OFFLINE is set, and the cache does not have it";
            format!("{}: {why}", self.label())
        })?)
    }

    fn list(&self) -> Result<Listing, Failure> {
        let mut url = self.api(&["tree", &self.revision])?;
        url.set_query(Some("recursive=true"));
        let (mut next, mut files, mut odd) = (Some(url), Listing::new(), Vec::new());
        for _ in 0..MOST_PAGES {
            let Some(url) = next else { break };
            let call = self.client.call(Method::GET, url);
            let (page, following) =
                self.client.retry(&self.id, Patience::SHORT, || self.client.json(&call))?;
            let entries = page.as_array();
            let entries =
                entries.ok_or_else(|| Failure::Broken("the list of files is none".into()))?;
            for entry in entries.iter().filter(|entry| entry["type"] == "file") {
                match entry["path"].as_str() {
                    Some(path) if stays_inside(path) => {
                        files.insert(path.into(), entry["size"].as_u64());
                    }
                    path => odd.push(shown(path.unwrap_or_default())),
                }
            }
            if files.len() + odd.len() > MOST_FILES {
                return Err(Failure::Broken(format!("it has more than {MOST_FILES} files")));
            }
            next = following;
        }
        if next.is_some() {
            return Err(Failure::Broken(format!("its list has more than {MOST_PAGES} pages")));
        }
        if let Some(first) = odd.first() {
            let line =
                format!("{}: files whose names are no paths are passed over ({first:?})", self.id);
            self.terminal.note(line);
        }
        Ok(files)
    }

    /// A file from the cache, downloaded if need be; `None` where the repository lacks it.
    pub(super) fn get(&self, name: &str) -> Result<Option<PathBuf>> {
        check(name)?;
        if self.is_offline() {
            let commit = match self.commit.get() {
                Some(commit) => Some(commit.clone()),
                None => self.cache.commit(&self.revision)?,
            };
            let result = commit.map(|commit| self.cache.find(&commit, name)).transpose()?;
            return Ok(result.flatten().map(|(path, _)| path));
        }
        let listed = self.listing.get().map(|files| files.get(name));
        let expected = match listed {
            Some(None) => return Ok(None),
            Some(Some(length)) => *length,
            None => None,
        };
        if let Some(commit) = self.commit.get()
            && let Some((path, length)) = self.cache.find(commit, name)?
            && expected.map_or(length > 0, |expected| length == expected)
        {
            self.cache.set_commit(&self.revision, commit)?;
            return Ok(Some(path));
        }
        self.fetch(name).with_context(|| name.to_string())
    }

    /// Downloads a file unless the cache has its content.
    fn fetch(&self, name: &str) -> Result<Option<PathBuf>> {
        let revision = self.commit.get().map_or(self.revision.as_str(), Commit::as_str);
        let prefix = (self.kind == Kind::DataSet).then_some("datasets");
        let repo = prefix.into_iter().chain(self.id.split('/')).chain(["resolve", revision]);
        let url = self.client.url(repo.chain(name.split('/')))?;
        let head = self.client.retry(name, Patience::LONG, || self.client.head(url.clone()));
        let head = match head {
            Ok(head) => head,
            Err(failure) => {
                if let Some(error) = self.not_there(&failure) {
                    return Err(error);
                }
                let absent = matches!(&failure, Failure::Status { status, .. } if *status == 404);
                return if absent { Ok(None) } else { Err(failure.into()) };
            }
        };
        if let Some(commit) = head.commit {
            self.at_commit(commit)?;
        }
        let commit = self.commit.get().context(
            "the answer names no commit (X-Repo-Commit); HF_ENDPOINT or a proxy leads to no Hub",
        )?;
        let is_text =
            self.kind == Kind::Model && !name.ends_with(".safetensors") && !name.ends_with(".bin");
        if let Some(size) = head.size.filter(|size| is_text && *size > LARGEST_TEXT) {
            bail!(
                "the Hub announces {size} bytes, too many for this file; do not use this repository"
            );
        }
        let wanted = Wanted { name, url, tag: head.tag, size: head.size };
        let bar = self.terminal.bytes(name);
        let lock = self.cache.lock(&wanted.tag, name, self.terminal)?;
        let done = download(&self.client, &self.cache, &wanted, &bar);
        bar.finish_and_clear();
        done?;
        let path = self.cache.link(&wanted.tag, commit, name)?;
        drop(lock);
        self.cache.set_commit(&self.revision, commit)?;
        Ok(Some(path))
    }
}
