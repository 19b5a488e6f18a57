//! Where files are: a folder, or what an object store has behind a prefix (s3, gs, az, http).

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context as _, Result, bail};

use super::entry::{Entry, Span, file_name};
#[cfg(feature = "object-store")]
use super::remote::Remote;
use crate::text::{names_below, regular};
use crate::vectors::{write_atomically, write_new};

/// A folder, or a prefix of an object store.
pub(super) enum Place {
    Folder(PathBuf),
    #[cfg(feature = "object-store")]
    Store(Remote),
}

/// Whether something names an object store and no path.
pub fn is_address(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|letter| letter.is_ascii_alphanumeric())
    })
}

impl Place {
    /// The folder or prefix that something names.
    ///
    /// # Errors
    /// An address that is none, or of a kind that is not known.
    pub(super) fn open(address: &str) -> Result<Self> {
        if !is_address(address) {
            return Ok(Self::Folder(address.into()));
        }
        #[cfg(feature = "object-store")]
        return Remote::open(address).map(Self::Store);
        #[cfg(not(feature = "object-store"))]
        bail!(
            "{address}: this kiln was built without object stores; build it with --features object-store, or name a \
             folder"
        );
    }

    fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(folder) => Some(folder),
            #[cfg(feature = "object-store")]
            Self::Store(_) => None,
        }
    }

    /// Whether it takes files of any size.
    pub(super) fn takes_large_files(&self) -> bool {
        match self {
            Self::Folder(_) => true,
            #[cfg(feature = "object-store")]
            Self::Store(store) => store.takes_parts(),
        }
    }

    /// Where a file is, for messages.
    pub(super) fn label(&self, name: &str) -> String {
        match self {
            Self::Folder(folder) => folder.join(name).display().to_string(),
            #[cfg(feature = "object-store")]
            Self::Store(store) => store.label(name),
        }
    }

    /// Files by their names, of those that are wanted; of others nothing is asked but the name.
    ///
    /// # Errors
    /// A folder that cannot be read, something wanted that is no file, a store that cannot be reached.
    pub(super) fn list(&self, span: Span<'_>, wanted: impl Fn(&str) -> bool) -> Result<Vec<Entry>> {
        let mut entries = match self {
            Self::Folder(folder) => {
                let names = names_of(folder, span)?;
                let entries = names.into_iter().filter(|name| wanted(name));
                let entries = entries.map(|name| entry_of(folder, name));
                entries.filter_map(Result::transpose).collect::<Result<Vec<Entry>>>()?
            }
            #[cfg(feature = "object-store")]
            Self::Store(store) => {
                let mut entries = store.list(span)?;
                entries.retain(|entry| wanted(&entry.name));
                entries
            }
        };
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// One file, if it is there.
    ///
    /// # Errors
    /// Something that is no file, a store that cannot be reached.
    pub(super) fn entry(&self, name: &str) -> Result<Option<Entry>> {
        match self {
            Self::Folder(folder) => entry_of(folder, name.into()),
            #[cfg(feature = "object-store")]
            Self::Store(store) => store.entry(name),
        }
    }

    /// A small file, if it is there.
    ///
    /// # Errors
    /// One that cannot be read.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match self {
            Self::Folder(folder) => match std::fs::read(folder.join(name)) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error).with_context(|| self.label(name)),
            },
            #[cfg(feature = "object-store")]
            Self::Store(store) => store.read(name),
        }
    }

    /// Writes a small file, whole or not at all.
    ///
    /// # Errors
    /// A place that cannot be written.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Folder(_) => write_atomically(&self.target(name, Path::new(""))?, bytes),
            #[cfg(feature = "object-store")]
            Self::Store(store) => store.write(name, bytes),
        }
    }

    /// Writes a small file where there is none; one that is there stays.
    ///
    /// # Errors
    /// A place that cannot be written.
    pub(super) fn write_new(&self, name: &str, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Folder(_) => write_new(&self.target(name, Path::new(""))?, bytes).map(drop),
            #[cfg(feature = "object-store")]
            Self::Store(store) => store.write_new(name, bytes),
        }
    }

    /// Removes a file.
    ///
    /// # Errors
    /// One that cannot be removed.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        match self {
            Self::Folder(folder) => {
                std::fs::remove_file(folder.join(name)).with_context(|| self.label(name))
            }
            #[cfg(feature = "object-store")]
            Self::Store(store) => store.remove(name),
        }
    }

    /// The path of a file's content: its own, or that of a copy in `scratch`.
    ///
    /// # Errors
    /// A file that cannot be read, a store that cannot be reached, a disk that is full.
    pub(super) fn fetch(&self, name: &str, scratch: &Path) -> Result<PathBuf> {
        match self {
            Self::Folder(folder) => {
                let _ = scratch;
                Ok(folder.join(name))
            }
            #[cfg(feature = "object-store")]
            Self::Store(store) => store.fetch(name, scratch),
        }
    }

    /// The path to write a file's content to, which [`Place::put`] then puts in its place: its own, where it is
    /// written whole or not at all, or one in `scratch`.
    ///
    /// # Errors
    /// A folder that cannot be made.
    pub(super) fn target(&self, name: &str, scratch: &Path) -> Result<PathBuf> {
        let path = match self.folder() {
            Some(folder) => folder.join(name),
            None => scratch.join(file_name(name)),
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        Ok(path)
    }

    /// Puts what was written to [`Place::target`] in its place, whole or not at all.
    ///
    /// # Errors
    /// A store that cannot be reached or does not let this be written.
    pub(super) fn put(&self, name: &str, written: &Path) -> Result<()> {
        match self {
            Self::Folder(_) => {
                let _ = (name, written);
                Ok(())
            }
            #[cfg(feature = "object-store")]
            Self::Store(store) => store.put(name, written),
        }
    }

    /// Whether this is the other place, or lies inside it.
    pub(super) fn is_inside(&self, other: &Place) -> bool {
        match (self, other) {
            (Self::Folder(own), Self::Folder(other)) => {
                let real = |path: &PathBuf| {
                    std::fs::canonicalize(path).or_else(|_| std::path::absolute(path))
                };
                matches!((real(own), real(other)), (Ok(own), Ok(other)) if own.starts_with(&other))
            }
            #[cfg(feature = "object-store")]
            (Self::Store(own), Self::Store(other)) => own.is_inside(other),
            #[cfg(feature = "object-store")]
            _ => false,
        }
    }
}

/// Names of a folder's files, with `/` between the parts.
fn names_of(folder: &Path, span: Span<'_>) -> Result<Vec<String>> {
    let label = || folder.display().to_string();
    let data = std::fs::metadata(folder).with_context(label)?;
    if !data.is_dir() {
        bail!("{}: is no folder", folder.display());
    }
    match span {
        Span::All => names_below(folder),
        Span::Here => {
            let mut names = Vec::new();
            for entry in std::fs::read_dir(folder).with_context(label)? {
                let entry = entry.with_context(label)?;
                if !entry.file_type().with_context(label)?.is_dir() {
                    names.extend(entry.file_name().to_str().map(String::from));
                }
            }
            Ok(names)
        }
        Span::Below(name) => {
            let below = folder.join(name);
            if !below.is_dir() {
                return Ok(Vec::new());
            }
            let names = names_below(&below)?.into_iter();
            Ok(names.map(|file| format!("{name}/{file}")).collect())
        }
    }
}

/// What is known of a folder's file, unless it has gone meanwhile; a link to a folder is none of its files.
fn entry_of(folder: &Path, name: String) -> Result<Option<Entry>> {
    let path = folder.join(&name);
    match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        _ if path.is_dir() => return Ok(None),
        _ => {}
    }
    let data = regular(&path)?;
    let changed = data.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let version = changed.map_or(String::new(), |time| time.as_nanos().to_string());
    Ok(Some(Entry { name, bytes: data.len(), version }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_paths() {
        for address in ["s3://bucket/docs", "gs://b/", "https://host/x"] {
            assert!(is_address(address), "{address}");
        }
        for path in ["docs", "/a/b", "C:\\docs", "a://", "://x", "a b://c"] {
            assert_eq!(is_address(path), path == "a://", "{path}");
        }
    }

    #[test]
    fn a_folder_lists_reads_and_writes() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::open(folder.path().to_str().unwrap()).unwrap();
        place.write("b/two.txt", b"two").unwrap();
        place.write("a.txt", b"one").unwrap();
        let all = |_: &str| true;
        let entries = place.list(Span::All, all).unwrap();
        assert_eq!(
            entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(),
            ["a.txt", "b/two.txt"]
        );
        assert_eq!(entries[1].bytes, 3);
        assert_eq!(place.list(Span::Here, all).unwrap(), entries[..1]);
        assert_eq!(place.list(Span::Below("b"), all).unwrap(), entries[1..]);
        assert_eq!(place.list(Span::Below("none"), all).unwrap(), []);
        assert_eq!(place.entry("b/two.txt").unwrap().as_ref(), entries.last());
        assert!(place.entry("none").unwrap().is_none());
        assert_eq!(place.read("b/two.txt").unwrap().unwrap(), b"two");
        assert!(place.read("none").unwrap().is_none());
        place.write_new("a.txt", b"other").unwrap();
        place.write_new("c.txt", b"three").unwrap();
        assert_eq!(place.read("a.txt").unwrap().unwrap(), b"one");
        assert_eq!(place.read("c.txt").unwrap().unwrap(), b"three");
        place.remove("c.txt").unwrap();
        assert!(place.read("c.txt").unwrap().is_none() && place.remove("c.txt").is_err());
        let below = Place::Folder(folder.path().join("b"));
        assert!(below.is_inside(&place) && !place.is_inside(&below) && place.is_inside(&place));
        assert!(Place::Folder(folder.path().join("a.txt")).list(Span::All, all).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn what_is_not_wanted_may_be_anything() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("a.txt"), "one").unwrap();
        std::fs::create_dir(at("b")).unwrap();
        for (to, link) in [("b", "link"), ("nowhere", "lost.txt"), ("/dev/null", "null.txt")] {
            symlink(to, at(link)).unwrap();
        }
        let place = Place::Folder(folder.path().into());
        for span in [Span::Here, Span::All] {
            let entries = place.list(span, |name| !name.ends_with("l.txt") && name != "lost.txt");
            assert_eq!(entries.unwrap().len(), 1);
            for (wanted, error) in [("lost.txt", "lost.txt"), ("null.txt", "is a device")] {
                let found = place.list(span, |name| name == wanted).unwrap_err();
                assert!(format!("{found:#}").contains(error), "{found:#}");
            }
        }
    }
}
