//! An index's folder: written beside its place and then put there, and its files' sums.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::{DESCRIPTION, Description, GRAPH, OFFSETS, TEXTS};

/// Length and CRC-32C of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileSum {
    bytes: u64,
    crc32c: u32,
}

impl FileSum {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn of(path: &Path) -> Result<Self> {
        let context = || path.display().to_string();
        let mut file = File::open(path).with_context(context)?;
        let mut own = Self { bytes: 0, crc32c: 0 };
        let mut part = vec![0; 1 << 20];
        loop {
            match file.read(&mut part).with_context(context)? {
                0 => return Ok(own),
                count => {
                    own.crc32c = crc32c::crc32c_append(own.crc32c, &part[..count]);
                    own.bytes += count as u64;
                }
            }
        }
    }

    /// Compares a file with what was written.
    pub(super) fn check(&self, path: &Path) -> Result<()> {
        let there = fs::metadata(path).with_context(|| path.display().to_string())?.len();
        if there != self.bytes {
            bail!(
                "{}: has {there} bytes instead of {}: it is cut or replaced; build the index again",
                path.display(),
                self.bytes
            );
        }
        if Self::of(path)? != *self {
            bail!(
                "{}: is damaged: its sum is another than was written; build the index again",
                path.display()
            );
        }
        Ok(())
    }
}

const TEMPORARY: &str = ".kiln-index-";
/// Locked as long as somebody writes the folder.
const LOCK: &str = ".kiln-lock";

/// A folder that is not in its place yet; dropped, it is gone.
pub(super) struct NewFolder {
    own: TempDir,
    target: PathBuf,
    lock: File,
}

/// Removes what killed processes left.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(TEMPORARY);
        let is_free =
            || File::open(entry.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok());
        if is_ours && is_free() {
            // One that cannot be removed is untidy only.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl NewFolder {
    /// # Errors
    /// Something is at the target that may not be replaced.
    pub(super) fn create(target: &Path, overwrite: bool) -> Result<Self> {
        may_be_written(target, overwrite)?;
        let target = std::path::absolute(target).with_context(|| target.display().to_string())?;
        let parent =
            target.parent().with_context(|| format!("{}: names no folder", target.display()))?;
        let context = || parent.display().to_string();
        fs::create_dir_all(parent).with_context(context)?;
        sweep(parent);
        let own =
            tempfile::Builder::new().prefix(TEMPORARY).tempdir_in(parent).with_context(context)?;
        let lock = File::create(own.path().join(LOCK)).with_context(context)?;
        lock.lock().with_context(context)?;
        Ok(Self { own, target, lock })
    }

    /// Where a file of it is now.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.own.path().join(name)
    }

    /// Puts it in its place, and what was there away.
    pub(super) fn put(self) -> Result<()> {
        let context = || self.target.display().to_string();
        for name in [GRAPH, DESCRIPTION] {
            File::open(self.path(name)).and_then(|file| file.sync_all()).with_context(context)?;
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            // A temporary folder is its owner's alone.
            fs::set_permissions(self.own.path(), fs::Permissions::from_mode(0o755))
                .with_context(context)?;
        }
        drop(self.lock);
        fs::remove_file(self.own.path().join(LOCK)).with_context(context)?;
        let old = self.own.path().with_extension("old");
        let replaces = self.target.exists();
        if replaces {
            // Looked at again: building takes a while.
            may_be_written(&self.target, true)?;
            fs::rename(&self.target, &old).with_context(context)?;
        }
        if let Err(error) = fs::rename(self.own.path(), &self.target) {
            if replaces {
                // As it was.
                let _ = fs::rename(&old, &self.target);
            }
            return Err(error).with_context(context);
        }
        if replaces {
            let _ = fs::remove_dir_all(old);
        }
        // It has moved.
        let _ = self.own.keep();
        Ok(())
    }
}

/// Nothing there, an empty folder, or an index that may be replaced.
fn may_be_written(target: &Path, overwrite: bool) -> Result<()> {
    let label = target.display();
    if target.symlink_metadata().is_err() {
        return Ok(());
    }
    if !target.is_dir() {
        bail!("{label}: is a file; an index is a folder: name another");
    }
    let context = || label.to_string();
    let names = fs::read_dir(target)
        .with_context(context)?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<Result<Vec<_>>>()?;
    let ours = [DESCRIPTION, GRAPH, TEXTS, OFFSETS];
    if let Some(other) = names.iter().find(|name| !ours.iter().any(|own| name.as_os_str() == *own))
    {
        bail!(
            "{label}: holds {}, which is none of an index's files; name another folder",
            other.to_string_lossy()
        );
    }
    if names.is_empty() {
        return Ok(());
    }
    Description::read(target)?;
    match overwrite {
        true => Ok(()),
        false => {
            bail!("{label}: holds an index; add --overwrite to replace it, or name another folder")
        }
    }
}
