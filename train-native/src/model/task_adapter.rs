//! One of the adapters for tasks that are in a model's own file (jina-embeddings-v3), as a folder of PEFT's like others:
//! it is made once, in the user's cache.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use kiln_embed::checkpoint::{Existing, FileSum, Files, task_adapter, task_names, write_directory};

use super::{open_folder, plain, weights_stem};
use crate::hub::ADAPTER;

/// The folder of a model's adapter of that name; `None` where the model's own file has none. Where its weights were not
/// fetched it is the model's own.
///
/// # Errors
/// A file that cannot be read; no place for the folder.
pub(super) fn of(folder: &Path, adapter: &str) -> Result<Option<PathBuf>> {
    let files = open_folder(folder)?;
    let names = task_names(files.as_ref())?;
    let Some(task) = names.iter().find(|task| plain(task) == plain(adapter)) else {
        return Ok(None);
    };
    let stem = weights_stem(files.as_ref())?;
    let has =
        |ending: &str| Ok::<_, std::io::Error>(files.open(&format!("{stem}{ending}"))?.is_some());
    if !has(".safetensors")? && !has(".safetensors.index.json")? {
        return Ok(Some(folder.to_path_buf()));
    }
    let adapter = task_adapter(files.as_ref(), task)?;
    // Whatever is changed in the model, the adapter that is read is the one of these bytes.
    let place = dirs::cache_dir()
        .unwrap_or_else(std::env::temp_dir)
        .join("kiln/adapters")
        .join(&sum(&adapter)[..32])
        .join(plain(task));
    if !place.join(ADAPTER).exists() {
        std::fs::create_dir_all(place.parent().unwrap_or(&place))
            .map_err(anyhow::Error::new)
            .and_then(|()| Ok(write_directory(&place, &adapter, Existing::ReplaceOurs)?))
            .with_context(|| {
                format!(
                    "{}: no place for the adapter {task:?} of {}; set XDG_CACHE_HOME",
                    place.display(),
                    folder.display()
                )
            })?;
    }
    Ok(Some(place))
}

fn sum(files: &Files) -> String {
    let sums: String = files.0.values().map(|bytes| FileSum::of(bytes).sha256).collect();
    FileSum::of(sums.as_bytes()).sha256
}
