//! Uploads a folder in one commit: the Hub says which files are large, those go to where it keeps
//! such files (git-lfs, in parts where it wants parts), and the commit names them.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as Task, Poll};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use kiln_embed::checkpoint::SUMS;
use reqwest::header::{ACCEPT, HeaderValue};
use reqwest::{Method, Url};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::client::{Call, Client, Failure, Patience};
use super::download::blocks;
use super::names::{check, hexadecimal, shown};
use super::repo::Repo;
use crate::terminal::ProgressBar;
use crate::text::names_below;

/// How long the Hub may work on what was sent.
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);
/// How many files are asked about at once, as `huggingface_hub` does.
const AT_ONCE: usize = 256;
/// The largest file that goes into the commit itself.
const LARGEST_INLINE: u64 = 64 << 20;
const JSON: &str = "application/json";
const LFS: &str = "application/vnd.git-lfs+json";

/// A file of the folder.
struct Item {
    name: String,
    path: PathBuf,
    size: u64,
    /// The sum of one that is kept as a large file.
    large: Option<String>,
}

/// Makes the repository where it is not there, and uploads a folder. Returns the commit's address.
pub(super) fn push(repo: &Repo, folder: &Path, message: &str, private: bool) -> Result<String> {
    let mut items = items(folder)?;
    make(repo, private)
        .with_context(|| format!("{}: the repository could not be made", repo.id))?;
    let done = sort(repo, &mut items)
        .and_then(|()| send_large(repo, &items))
        .and_then(|()| commit(repo, &items, message));
    done.with_context(|| format!("{}: nothing was uploaded", repo.id))
}

/// The files of a folder, without what version control, caches and Kiln's own bookkeeping keep there.
fn items(folder: &Path) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    for name in names_below(folder)? {
        if name.split('/').any(|part| matches!(part, ".git" | ".cache" | SUMS)) {
            continue;
        }
        check(&name).with_context(|| folder.display().to_string())?;
        let path = folder.join(&name);
        let data = std::fs::metadata(&path).with_context(|| path.display().to_string())?;
        if !data.is_file() {
            bail!("{}: is no file; push a folder of files", path.display());
        }
        items.push(Item { name, path, size: data.len(), large: None });
    }
    items.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(items)
}

/// A refusal, and what to do about it.
fn explain(failure: Failure) -> anyhow::Error {
    let refused =
        matches!(&failure, Failure::Status { status, .. } if matches!(status.as_u16(), 401 | 403));
    let error = anyhow::Error::from(failure);
    if !refused {
        return error;
    }
    error.context(
        "the Hub refuses; set HF_TOKEN to a token with the right to write \
         (https://huggingface.co/settings/tokens)",
    )
}

/// Sends JSON, and reads the answer's.
fn ask(repo: &Repo, call: &Call, patience: Patience) -> Result<Value, Failure> {
    let call = call.clone().limit(TIMEOUT);
    repo.client.retry(&repo.id, patience, || repo.client.json(&call)).map(|(value, _)| value)
}

fn make(repo: &Repo, private: bool) -> Result<()> {
    let client = &repo.client;
    let (owner, name) = repo.id.split_once('/').unwrap_or_default();
    let mut body = json!({ "type": "model", "organization": owner, "name": name });
    // Otherwise as the owner's repositories are by default.
    if private {
        body["private"] = true.into();
    }
    let url = client.url(["api", "repos", "create"])?;
    match ask(repo, &client.post(url, JSON, serde_json::to_vec(&body)?), Patience::LONG) {
        Ok(_) => Ok(()),
        Err(Failure::Status { status, .. }) if status == 409 => Ok(()),
        Err(failure) => {
            // Who may not make repositories may still write to one that is there.
            let forbidden = matches!(&failure, Failure::Status { status, .. } if *status == 403);
            let call = client.call(Method::GET, repo.api(&[])?);
            match forbidden.then(|| client.json(&call)) {
                Some(Ok(_)) => Ok(()),
                _ => Err(explain(failure)),
            }
        }
    }
}

/// Asks which files are large, and leaves out those that the Hub wants left out.
fn sort(repo: &Repo, items: &mut Vec<Item>) -> Result<()> {
    let mut kept = Vec::new();
    while !items.is_empty() {
        let some: Vec<Item> = items.drain(..items.len().min(AT_ONCE)).collect();
        let files: Vec<Value> = some.iter().map(described).collect::<Result<_>>()?;
        let body = serde_json::to_vec(&json!({ "files": files }))?;
        let url = repo.api(&["preupload", &repo.revision])?;
        let answer =
            ask(repo, &repo.client.post(url, JSON, body), Patience::LONG).map_err(explain)?;
        for mut item in some {
            let said = answer["files"].as_array().into_iter().flatten();
            let said = said.into_iter().find(|file| file["path"] == item.name.as_str());
            let said = said.with_context(|| format!("the Hub says nothing of {}", item.name))?;
            if said["shouldIgnore"] == true {
                repo.terminal
                    .note(format!("{}: the repository's .gitignore leaves it out", item.name));
                continue;
            }
            // What is empty cannot be kept as a large file.
            if said["uploadMode"] == "lfs" && item.size > 0 {
                item.large = Some(sum(&item.path)?);
            } else if item.size > LARGEST_INLINE {
                bail!("{}: the Hub wants its {} bytes in the commit itself", item.name, item.size);
            }
            kept.push(item);
        }
    }
    *items = kept;
    Ok(())
}

/// What the Hub judges a file by.
fn described(item: &Item) -> Result<Value> {
    let mut sample = Vec::new();
    let label = || item.path.display().to_string();
    let file = File::open(&item.path).with_context(label)?;
    file.take(512).read_to_end(&mut sample).with_context(label)?;
    Ok(json!({ "path": item.name, "size": item.size, "sample": STANDARD.encode(sample) }))
}

fn sum(path: &Path) -> Result<String> {
    let label = || path.display().to_string();
    let mut sum = Sha256::new();
    let file = File::open(path).with_context(label)?;
    blocks(file, |block| sum.update(block)).with_context(label)?;
    Ok(hexadecimal(&sum.finalize()))
}

fn send_large(repo: &Repo, items: &[Item]) -> Result<()> {
    let large: Vec<(&Item, &str)> =
        items.iter().filter_map(|item| Some((item, item.large.as_deref()?))).collect();
    let bar = repo.terminal.bytes(&repo.id);
    bar.set_length(large.iter().map(|(item, _)| item.size).sum());
    for some in large.chunks(AT_ONCE) {
        let objects: Vec<Value> =
            some.iter().map(|(item, oid)| json!({ "oid": oid, "size": item.size })).collect();
        let body = json!({
            "operation": "upload",
            "transfers": ["basic", "multipart"],
            "objects": objects,
            "hash_algo": "sha256",
            "ref": { "name": repo.revision },
        });
        let (owner, name) = repo.id.split_once('/').unwrap_or_default();
        let git = format!("{name}.git");
        let url = repo.client.url([owner, git.as_str(), "info", "lfs", "objects", "batch"])?;
        let call = lfs(&repo.client, url, &body)?;
        let answer = ask(repo, &call, Patience::LONG).map_err(explain)?;
        for (item, oid) in some {
            let said = answer["objects"].as_array().into_iter().flatten();
            let said = said.into_iter().find(|object| object["oid"] == *oid);
            let said = said.with_context(|| format!("the Hub says nothing of {}", item.name))?;
            send_one(repo, item, oid, said, &bar).with_context(|| item.name.clone())?;
        }
    }
    bar.finish_and_clear();
    Ok(())
}

fn lfs(client: &Client, url: Url, body: &Value) -> Result<Call> {
    let call = client.post(url, LFS, serde_json::to_vec(body)?);
    Ok(call.header(ACCEPT, HeaderValue::from_static(LFS)))
}

/// An address that the Hub wants something sent to.
fn address(repo: &Repo, href: &Value) -> Result<Url> {
    let href = href.as_str().context("the Hub names no place for it")?;
    Ok(Client::follow(&repo.client.settings.endpoint, href)?)
}

/// Sends one large file as the Hub's answer says.
fn send_one(repo: &Repo, item: &Item, oid: &str, said: &Value, bar: &ProgressBar) -> Result<()> {
    if let Some(error) = said.get("error") {
        bail!(
            "the Hub refuses it: {}",
            shown(error["message"].as_str().unwrap_or("no reason given"))
        );
    }
    let upload = &said["actions"]["upload"];
    if upload.is_null() {
        // The Hub has it already.
        bar.inc(item.size);
        return Ok(());
    }
    let place = address(repo, &upload["href"])?;
    let header = &upload["header"];
    match header.get("chunk_size") {
        None => {
            send_part(repo, item, 0, item.size, &place, bar)?;
        }
        Some(size) => {
            let size =
                size.as_u64().or_else(|| size.as_str()?.parse().ok()).filter(|size| *size > 0);
            let size = size.context("the Hub wants parts of no size")?;
            let mut parts = Vec::new();
            for (i, from) in (0..item.size).step_by(usize::try_from(size)?).enumerate() {
                let part = i + 1;
                let place = header.as_object().into_iter().flatten();
                let place = place.into_iter().find(|(key, _)| key.parse() == Ok(part));
                let place = address(repo, place.map_or(&Value::Null, |(_, place)| place))?;
                let length = size.min(item.size - from);
                let tag = send_part(repo, item, from, length, &place, bar)?;
                let tag = tag.with_context(|| format!("part {part} was taken without an ETag"))?;
                parts.push(json!({ "partNumber": part, "etag": tag }));
            }
            let call = lfs(&repo.client, place, &json!({ "oid": oid, "parts": parts }))?;
            finish(repo, &call)?;
        }
    }
    let verify = &said["actions"]["verify"];
    if !verify.is_null() {
        let body = serde_json::to_vec(&json!({ "oid": oid, "size": item.size }))?;
        finish(repo, &repo.client.post(address(repo, &verify["href"])?, JSON, body))?;
    }
    Ok(())
}

/// Sends what ends an upload; what is answered says no more than that it did.
fn finish(repo: &Repo, call: &Call) -> Result<()> {
    let call = call.clone().limit(TIMEOUT);
    let sent = repo.client.retry(&repo.id, Patience::LONG, || repo.client.send(&call));
    sent.map(drop).map_err(explain)
}

/// Sends a part of a file, and says what the other side calls it.
fn send_part(
    repo: &Repo,
    item: &Item,
    from: u64,
    length: u64,
    place: &Url,
    bar: &ProgressBar,
) -> Result<Option<String>> {
    let client = &repo.client;
    let begin = bar.position();
    let response = client.retry(&item.name, Patience::LONG, || {
        bar.set_position(begin);
        let opened = File::open(&item.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(from))?;
            Ok(file)
        });
        let file =
            opened.map_err(|error| Failure::Broken(format!("{}: {error}", item.path.display())))?;
        let sent = Arc::new(AtomicU64::new(0));
        let part = Part { file, left: length, sent: sent.clone() };
        client.put(place, reqwest::Body::wrap(part), || {
            let sent = sent.load(Ordering::Relaxed);
            bar.set_position(begin + sent);
            sent
        })
    });
    let response = response.map_err(|failure| anyhow!(failure))?;
    bar.set_position(begin + length);
    let tag = response.headers().get("etag").and_then(|tag| tag.to_str().ok());
    Ok(tag.filter(|tag| tag.len() <= 256).map(String::from))
}

fn commit(repo: &Repo, items: &[Item], message: &str) -> Result<String> {
    let header = json!({ "key": "header", "value": { "summary": message, "description": "" } });
    let mut lines = format!("{header}\n");
    for item in items {
        let line = match &item.large {
            Some(oid) => json!({
                "key": "lfsFile",
                "value": { "path": item.name, "algo": "sha256", "oid": oid, "size": item.size },
            }),
            None => {
                let content = std::fs::read(&item.path);
                let content = content.with_context(|| item.path.display().to_string())?;
                let content = STANDARD.encode(content);
                let value = json!({ "path": item.name, "content": content, "encoding": "base64" });
                json!({ "key": "file", "value": value })
            }
        };
        lines.push_str(&format!("{line}\n"));
    }
    let url = repo.api(&["commit", &repo.revision])?;
    let call = repo.client.post(url, "application/x-ndjson", lines.into_bytes());
    // Were the answer lost, a second try would make a second commit.
    let answer = ask(repo, &call, Patience::ONCE).map_err(explain)?;
    let address = match answer["commitUrl"].as_str() {
        Some(address) => shown(address),
        None => {
            format!("{}/{}", repo.client.settings.endpoint.as_str().trim_end_matches('/'), repo.id)
        }
    };
    Ok(address)
}

/// A part of a file as a request's body.
struct Part {
    file: File,
    left: u64,
    sent: Arc<AtomicU64>,
}

impl Body for Part {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Task<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        const BLOCK: u64 = 1 << 17;
        let part = self.get_mut();
        if part.left == 0 {
            return Poll::Ready(None);
        }
        let mut block = vec![0; part.left.min(BLOCK) as usize];
        if let Err(error) = part.file.read_exact(&mut block) {
            part.left = 0;
            return Poll::Ready(Some(Err(error)));
        }
        part.left -= block.len() as u64;
        part.sent.fetch_add(block.len() as u64, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(block.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
