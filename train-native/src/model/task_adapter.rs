//! One of the adapters for tasks that are in a model's own file (jina-embeddings-v3), as a folder of PEFT's like others:
//! it is made in the user's cache.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use kiln_embed::Error;
use kiln_embed::checkpoint::{
    FileSum, Files, Weights, has_task_adapters, stays_inside, task_adapter, task_names,
};

use super::{open_folder, weights_stem};

/// The folder of a model's adapter of that name; `None` where the model's own file has none. Where its weights were not
/// fetched it is the model's own, for those who ask nothing of them.
///
/// # Errors
/// A file that cannot be read; no place for the folder.
pub(super) fn of(folder: &Path, adapter: &str) -> Result<Option<PathBuf>> {
    let files = open_folder(folder)?;
    let Some(task) = named(&task_names(files.as_ref())?, adapter) else { return Ok(None) };
    match Weights::open(files.as_ref(), weights_stem(files.as_ref())?) {
        Ok(weights) if has_task_adapters(&weights) => {}
        // Those of the release for transformers are in folders.
        Ok(_) => return Ok(None),
        Err(Error::MissingFile { .. }) => return Ok(Some(folder.to_path_buf())),
        Err(error) => return Err(error.into()),
    }
    let adapter = task_adapter(files.as_ref(), &task)?;
    let cache = dirs::cache_dir().context("this user has no folder for caches")?;
    let parent = cache.join("kiln").join("adapters");
    // A name of a file's own is no path.
    let sum = sum(&task, &adapter);
    let place = parent.join(&sum[..32]);
    kept(&adapter, &parent, &place).with_context(|| {
        format!(
            "{}: no place for the adapter {task:?} of {}; make room in the user's cache, or on Linux have XDG_CACHE_HOME \
             name another",
            place.display(),
            folder.display()
        )
    })?;
    Ok(Some(place))
}

/// The task of that name, or of the only one that differs in punctuation alone.
pub(super) fn named(tasks: &[String], name: &str) -> Option<String> {
    let alike: Vec<&String> = tasks.iter().filter(|task| plain(task) == plain(name)).collect();
    let exact = alike.iter().find(|task| **task == name);
    let only = || alike.first().filter(|_| alike.len() == 1);
    exact.or_else(only).map(|task| task.to_string()).filter(|task| stays_inside(task))
}

/// Has the files in a folder, whatever was there: another process may make the same one at the same time.
fn kept(files: &Files, parent: &Path, place: &Path) -> Result<()> {
    let is_whole = || {
        let same = |(name, bytes): (&String, &bytes::Bytes)| {
            std::fs::read(place.join(name)).is_ok_and(|found| found == bytes[..])
        };
        files.0.iter().all(same)
    };
    if is_whole() {
        return Ok(());
    }
    std::fs::create_dir_all(parent)?;
    let new = tempfile::tempdir_in(parent)?;
    for (name, bytes) in &files.0 {
        std::fs::write(new.path().join(name), bytes)?;
    }
    if place.exists() && !is_whole() {
        std::fs::remove_dir_all(place)?;
    }
    match std::fs::rename(new.path(), place) {
        Err(_) if is_whole() => Ok(()),
        result => Ok(result?),
    }
}

fn sum(task: &str, files: &Files) -> String {
    let sums: String = files.0.values().map(|bytes| FileSum::of(bytes).sha256).collect();
    FileSum::of(format!("{task}\0{sums}").as_bytes()).sha256
}

/// A name without its punctuation, which folders and prompts have differently.
pub(super) fn plain(name: &str) -> String {
    name.replace(['.', '-'], "_")
}
