//! The Hub's cache on disk, laid out as `huggingface_hub` lays it out, so that both use what either
//! has downloaded:
//!
//! ```text
//! models--owner--name/blobs/ETAG                 contents
//! models--owner--name/snapshots/COMMIT/FILE      links to them
//! models--owner--name/refs/REVISION              the commit that a branch or tag was at
//! .locks/models--owner--name/ETAG.lock
//! blobs/XX/HASH                                  contents that `huggingface_hub` shares
//! ```
//!
//! Nothing outside is read or written: every part of a path is a name that [`super::names`] has
//! checked, no folder on the way may be a link, and links to files lead to contents.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};

use super::names::{Commit, Tag, check};
use crate::interrupt;
use crate::terminal::Terminal;

/// One repository's part of the cache.
#[derive(Clone)]
pub(super) struct Cache {
    root: PathBuf,
    locks: PathBuf,
    shared: PathBuf,
}

/// A failure of the file system at a path, and what to do about it.
pub(super) fn at(path: &Path) -> impl FnOnce(std::io::Error) -> anyhow::Error {
    let path = path.display().to_string();
    move |error| {
        let remedy = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "; make room, or set HF_HOME to another disk"
            }
            _ => "",
        };
        anyhow::anyhow!("{path}: {error}{remedy}")
    }
}

impl Cache {
    /// Of `models` or `datasets`.
    pub(super) fn new(cache: &Path, kind: &str, owner: &str, name: &str) -> Self {
        let folder = format!("{kind}--{owner}--{name}");
        let locks = cache.join(".locks").join(&folder);
        Self { root: cache.join(folder), locks, shared: cache.join("blobs") }
    }

    /// A folder of the repository, made where `make` says so; `None` where it is not there.
    fn folder(&self, below: &Path, make: bool) -> Result<Option<PathBuf>> {
        if make {
            fs::create_dir_all(&self.root).map_err(at(&self.root))?;
        }
        let mut path = self.root.clone();
        for part in below {
            path.push(part);
            let result = match fs::symlink_metadata(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    if !make {
                        return Ok(None);
                    }
                    // Another process may have been faster.
                    match fs::create_dir(&path) {
                        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                            return Err(at(&path)(error));
                        }
                        _ => fs::symlink_metadata(&path),
                    }
                }
                result => result,
            };
            if !result.map_err(at(&path))?.is_dir() {
                bail!(
                    "{}: is a link or a file where the Hub's cache has a folder; remove it",
                    path.display()
                );
            }
        }
        Ok(Some(path))
    }

    /// The folder of a snapshot that is there.
    pub(super) fn snapshot(&self, commit: &Commit) -> Result<Option<PathBuf>> {
        self.folder(&Path::new("snapshots").join(commit.as_str()), false)
    }

    /// The folder and the file's own name of a snapshot's file.
    fn place(&self, commit: &Commit, name: &str, make: bool) -> Result<Option<PathBuf>> {
        check(name)?;
        let below = Path::new("snapshots").join(commit.as_str()).join(name);
        let (Some(parent), Some(last)) = (below.parent(), below.file_name()) else {
            return Ok(None);
        };
        Ok(self.folder(parent, make)?.map(|folder| folder.join(last)))
    }

    /// The length of a file that is there, and in the cache, also where links lead to it.
    fn length(&self, path: &Path) -> Option<u64> {
        let target = fs::canonicalize(path).ok()?;
        let holds =
            |place: &Path| fs::canonicalize(place).is_ok_and(|place| target.starts_with(place));
        let data = fs::metadata(&target).ok()?;
        (data.is_file() && (holds(&self.root) || holds(&self.shared))).then_some(data.len())
    }

    /// A snapshot's file and its length, where it is there.
    pub(super) fn find(&self, commit: &Commit, name: &str) -> Result<Option<(PathBuf, u64)>> {
        let place = self.place(commit, name, false)?;
        Ok(place.and_then(|path| self.length(&path).map(|length| (path, length))))
    }

    /// The commit that a branch or tag was at when it was last asked for.
    pub(super) fn commit(&self, revision: &str) -> Result<Option<Commit>> {
        if let Some(commit) = Commit::parse(revision) {
            return Ok(Some(commit));
        }
        let Some(path) = self.reference(revision, false)? else { return Ok(None) };
        let Ok(file) = File::open(&path) else { return Ok(None) };
        let mut text = String::new();
        // More than this is no commit.
        let read = file.take(64).read_to_string(&mut text);
        Ok(read.ok().and_then(|_| Commit::parse(text.trim())))
    }

    /// Remembers the commit that a branch or tag is at.
    pub(super) fn set_commit(&self, revision: &str, commit: &Commit) -> Result<()> {
        if self.commit(revision)?.as_ref() == Some(commit) {
            return Ok(());
        }
        let Some(path) = self.reference(revision, true)? else { return Ok(()) };
        let mut new = path.clone().into_os_string();
        new.push(format!(".{}", std::process::id()));
        fs::write(&new, commit.as_str()).map_err(at(&path))?;
        fs::rename(&new, &path).map_err(at(&path))?;
        Ok(())
    }

    fn reference(&self, revision: &str, make: bool) -> Result<Option<PathBuf>> {
        check(revision)?;
        let below = Path::new("refs").join(revision);
        let (Some(parent), Some(last)) = (below.parent(), below.file_name()) else {
            return Ok(None);
        };
        Ok(self.folder(parent, make)?.map(|folder| folder.join(last)))
    }

    /// Where a blob is or comes to be; its folder is made.
    pub(super) fn blob(&self, tag: &Tag) -> Result<PathBuf> {
        let folder = self.folder(Path::new("blobs"), true)?;
        Ok(folder.unwrap_or_else(|| self.root.clone()).join(tag.as_str()))
    }

    /// The length of a blob that is there.
    pub(super) fn blob_length(&self, tag: &Tag) -> Result<Option<u64>> {
        Ok(self.length(&self.blob(tag)?))
    }

    /// Makes a snapshot's file a link to a blob, and says where it is.
    pub(super) fn link(&self, tag: &Tag, commit: &Commit, name: &str) -> Result<PathBuf> {
        let Some(path) = self.place(commit, name, true)? else { return self.blob(tag) };
        // From the file's folder up to the repository's.
        let up = "../".repeat(2 + name.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{}", tag.as_str()));
        if fs::read_link(&path).is_ok_and(|link| link == target) {
            return Ok(path);
        }
        let folder = path.parent().unwrap_or(&self.root);
        let beside = tempfile::Builder::new().prefix(".link-").tempdir_in(folder);
        let beside = beside.map_err(at(folder))?;
        let new = beside.path().join("new");
        let blob = self.blob(tag)?;
        // Where there are no symbolic links, the file itself is in both places.
        symbolic_link(&target, &new)
            .or_else(|_| fs::hard_link(&blob, &new))
            .or_else(|_| fs::copy(&blob, &new).map(drop))
            .and_then(|()| fs::rename(&new, &path))
            .map_err(at(&path))?;
        Ok(path)
    }

    /// Keeps other processes from writing the same blob, and waits for one that does. `None` where
    /// the file system has no locks: what is written is compared with its sum all the same.
    pub(super) fn lock(&self, tag: &Tag, name: &str, terminal: Terminal) -> Result<Option<File>> {
        fs::create_dir_all(&self.locks).map_err(at(&self.locks))?;
        let path = self.locks.join(format!("{}.lock", tag.as_str()));
        let mut options = File::options();
        let file =
            options.create(true).truncate(false).write(true).open(&path).map_err(at(&path))?;
        let mut said = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                Err(TryLockError::Error(_)) => return Ok(None),
                Err(TryLockError::WouldBlock) => {}
            }
            if interrupt::asked() {
                return Err(kiln_embed::Error::Cancelled.into());
            }
            if !std::mem::replace(&mut said, true) {
                terminal.note(format!("{name}: another process downloads it; waiting"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[cfg(unix)]
fn symbolic_link(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symbolic_link(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(any(unix, windows)))]
fn symbolic_link(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}
