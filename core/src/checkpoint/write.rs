//! Writes folders. What is already at the target may be a user's work, so only what Kiln wrote is
//! ever replaced; and a power cut or a kill leaves the old folder or the new one, never a mixture.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::manifest::{FileSum, MANIFEST, Manifest};
use crate::folder::{Directory, Files, read_text};
use crate::{Error, Result};

/// The file in which Kiln lists what it wrote to a folder. An exported model has [`MANIFEST`] in
/// its place.
pub const SUMS: &str = ".kiln-sums.json";

const WRITTEN_BY: &str = concat!("kiln ", env!("CARGO_PKG_VERSION"));

/// What may be at a target already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Nothing, or an empty folder.
    Refuse,
    /// A folder of which Kiln wrote every file and nobody changed any; it is replaced.
    ReplaceOurs,
}

/// Lengths and sums of the files of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    written_by: String,
    /// Every other file, by its path.
    pub files: BTreeMap<String, FileSum>,
}

impl Sums {
    /// The sums of files about to be written.
    fn of(files: &Files) -> Self {
        Self {
            written_by: WRITTEN_BY.into(),
            files: files.0.iter().map(|(path, bytes)| (path.clone(), FileSum::of(bytes))).collect(),
        }
    }

    /// The list in a folder of what Kiln wrote there; `None` where there is none.
    ///
    /// # Errors
    /// A list that cannot be read.
    pub fn read(folder: &Directory) -> Result<Option<Self>> {
        let label = super::Folder::file_label(folder, SUMS);
        let bad = |cause: String| Error::bad_file(&label, cause, "write the folder again");
        match read_text(folder, SUMS)? {
            Some(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| bad(format!("is damaged: {error}"))),
            None => Ok(Manifest::read(folder)?
                .map(|manifest| Self { written_by: manifest.written_by, files: manifest.files })),
        }
    }

    /// Compares every file of the list with the folder's.
    ///
    /// # Errors
    /// A file that is missing, cut short or changed.
    pub fn check(&self, folder: &Directory, list: &str, remedy: &str) -> Result<()> {
        self.files.iter().try_for_each(|(path, sum)| sum.check(folder, path, list, remedy))
    }
}

/// Before a folder is replaced, files longer than this are recognised as ours by their length
/// alone.
const SUMMED: u64 = 1 << 26;

/// Whether a folder may be written at `path`; call it before long work.
///
/// # Errors
/// Something there may not be replaced; the error names it.
pub fn check_target(path: &Path, existing: Existing) -> Result<()> {
    target(path, existing).map(drop)
}

/// Where the folder will be written, and whether one is there now.
fn target(path: &Path, existing: Existing) -> Result<(PathBuf, bool)> {
    let label = path.display().to_string();
    let refuse = |cause: String, remedy: &str| Err(Error::bad_file(&label, cause, remedy));
    let io = |cause| Error::Io { file: label.clone(), cause };
    // A link is kept, and its target written.
    let path = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return if path.file_name().is_some() {
                Ok((path.to_path_buf(), false))
            } else {
                refuse("names no folder".into(), "name the folder that is to be written")
            };
        }
        Err(cause) => return Err(io(cause)),
        Ok(_) => path.canonicalize().map_err(io)?,
    };
    if !path.is_dir() {
        return refuse("is a file".into(), "name a folder");
    }
    let mut names = names_below(&path).map_err(io)?;
    // Temporary folders inside a mounted folder, in use or left behind.
    let own = temporary(&path.file_name().unwrap_or_default().to_string_lossy());
    names.retain(|name| !name.starts_with(&own));
    let Some(first) = names.first() else { return Ok((path, true)) };
    const ELSEWHERE: &str = "choose another folder, or move it away";
    let folder = Directory::new(&path)?;
    let ours = Sums::read(&folder).ok().flatten();
    let Some(ours) = ours else {
        return refuse(format!("holds {first}, which Kiln did not write"), ELSEWHERE);
    };
    for name in &names {
        // A kill right after the folder was put in place leaves the lock.
        if [SUMS, MANIFEST, LOCK].contains(&name.as_str()) {
            continue;
        }
        let Some(sum) = ours.files.get(name) else {
            return refuse(format!("holds {name}, which Kiln did not write"), ELSEWHERE);
        };
        let same = match fs::symlink_metadata(path.join(name)).map_err(io)?.len() {
            length if length > SUMMED => length == sum.bytes,
            _ => sum.check(&folder, name, SUMS, "").is_ok(),
        };
        if !same {
            return refuse(
                format!("holds {name}, which was changed since Kiln wrote it"),
                ELSEWHERE,
            );
        }
    }
    match existing {
        Existing::Refuse => refuse(
            "holds what Kiln wrote before".into(),
            "add --overwrite to replace it, or choose another folder",
        ),
        Existing::ReplaceOurs => Ok((path, true)),
    }
}

/// All files below a folder, links among them, with `/` between the parts; and folders that are empty.
fn names_below(root: &Path) -> std::io::Result<Vec<String>> {
    let (mut names, mut open) = (Vec::new(), vec![String::new()]);
    while let Some(folder) = open.pop() {
        let mut empty = !folder.is_empty();
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            empty = false;
            let name = entry.file_name().to_string_lossy().into_owned();
            let name = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            match entry.file_type()?.is_dir() {
                true => open.push(name),
                false => names.push(name),
            }
        }
        if empty {
            names.push(folder);
        }
    }
    names.sort();
    Ok(names)
}

/// Prefix of the names of temporary folders: being written, or about to be removed.
fn temporary(name: &str) -> String {
    format!(".{name}.kiln-")
}

/// The file whose lock says that a temporary folder belongs to a living process.
const LOCK: &str = ".kiln-lock";

/// Writes all files as a [`NewDirectory`] to `path`.
///
/// # Errors
/// Something there may not be replaced, or the file system fails; `path` is then unchanged.
pub fn write_directory(path: &Path, files: &Files, existing: Existing) -> Result<()> {
    let new = NewDirectory::create(path, existing)?;
    files.0.iter().try_for_each(|(name, bytes)| new.write(name, bytes))?;
    new.place(&Sums::of(files))
}

/// A folder that is written beside its place, gets a list of its files ([`SUMS`]) and moves there once the disk has them,
/// so that a full disk, a killed process or a power cut never leaves a half-written folder behind. Dropped before, it is
/// gone, and what was at the place is unchanged.
#[derive(Debug)]
pub struct NewDirectory {
    path: PathBuf,
    existing: Existing,
    /// Whether there is a folder at the path, and whether that is a mount point, which stays.
    exists: bool,
    mounted: bool,
    /// The folder that it is written in, and its own until it moves.
    place: PathBuf,
    partial: PathBuf,
    /// Held as long as this process lives.
    _lock: Option<File>,
}

impl NewDirectory {
    /// Begins to write the folder `path`. What killed processes left beside it is removed.
    ///
    /// # Errors
    /// Something there may not be replaced, or the file system fails.
    pub fn create(path: &Path, existing: Existing) -> Result<Self> {
        let parent_of = |path: &Path| match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        // Leftovers of others do no harm.
        let _ = sweep(&parent_of(path));
        let (path, exists) = target(path, existing)?;
        let parent = parent_of(&path);
        fs::create_dir_all(&parent).map_err(io(&parent))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mounted = exists && is_mounted(&path, &parent);
        let place = if mounted { path.clone() } else { parent };
        if mounted {
            let _ = sweep(&place);
        }
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let partial = place.join(format!("{}{}-{number}", temporary(&name), std::process::id()));
        fs::create_dir(&partial).map_err(io(&partial))?;
        let mut new = Self { path, existing, exists, mounted, place, partial, _lock: None };
        let lock = File::create(new.file(LOCK)).map_err(io(&new.partial))?;
        // On a file system without locks nothing is swept either.
        let _ = lock.try_lock();
        new._lock = Some(lock);
        Ok(new)
    }

    /// Where one of its files is to be written.
    pub fn file(&self, name: &str) -> PathBuf {
        self.partial.join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let target = self.file(name);
        let parent = target.parent().unwrap_or(&self.partial);
        fs::create_dir_all(parent).map_err(io(parent))?;
        let mut file = File::create_new(&target).map_err(io(&target))?;
        file.write_all(bytes).map_err(io(&target))
    }

    /// Moves the folder to its place, with all files that are in it.
    ///
    /// # Errors
    /// Something came there meanwhile that may not be replaced, or the file system fails.
    pub fn put(mut self) -> Result<()> {
        (self.path, self.exists) = target(&self.path, self.existing)?;
        let mut files = BTreeMap::new();
        for name in self.names()? {
            let path = self.file(&name);
            let sum = File::open(&path).and_then(FileSum::read).map_err(io(&path))?;
            files.insert(name, sum);
        }
        self.place(&Sums { written_by: WRITTEN_BY.into(), files })
    }

    /// Its files but the lock.
    fn names(&self) -> Result<Vec<String>> {
        let mut names = names_below(&self.partial).map_err(io(&self.partial))?;
        names.retain(|name| name != LOCK);
        Ok(names)
    }

    fn place(self, sums: &Sums) -> Result<()> {
        if !sums.files.contains_key(MANIFEST) {
            self.write(SUMS, &serde_json::to_vec(sums).map_err(Error::invalid)?)?;
        }
        // Synced together at the end: the first wait covers most of the others.
        for name in self.names()? {
            let path = self.file(&name);
            let file = File::options().write(true).open(&path);
            file.and_then(|file| file.sync_all()).map_err(io(&path))?;
        }
        sync_folders(&self.partial).map_err(io(&self.partial))?;
        let put = if self.mounted { put_inside } else { put };
        put(&self.partial, &self.path, self.exists).map_err(io(&self.path))?;
        sync(&self.place).map_err(io(&self.place))?;
        let _ = fs::remove_file(self.path.join(LOCK));
        Ok(())
    }
}

impl Drop for NewDirectory {
    fn drop(&mut self) {
        // The replaced folder, or an unfinished one; what went wrong has been said.
        let _ = fs::remove_dir_all(&self.partial);
    }
}

/// The error of a path.
fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let file = path.display().to_string();
    move |cause| Error::Io { file, cause }
}

/// Moves a folder to a path, exchanging it with the one that is there, if any.
fn put(partial: &Path, path: &Path, exists: bool) -> std::io::Result<()> {
    if !exists {
        return fs::rename(partial, path);
    }
    // Exchanged in one step, so that one of them is there at every moment.
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        match renameat_with(CWD, partial, CWD, path, RenameFlags::EXCHANGE) {
            Ok(()) => return Ok(()),
            // This file system cannot exchange.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut old = partial.as_os_str().to_os_string();
    old.push("-old");
    let old = PathBuf::from(old);
    fs::rename(path, &old)?;
    if let Err(error) = fs::rename(partial, path) {
        fs::rename(&old, path)?;
        return Err(error);
    }
    fs::remove_dir_all(&old)
}

/// Whether a folder is a mount point, as in containers: it cannot be renamed.
fn is_mounted(path: &Path, parent: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let device = |path: &Path| fs::metadata(path).map(|data| data.dev()).ok();
        device(path) != device(parent)
    }
    #[cfg(not(unix))]
    {
        let _ = (path, parent);
        false
    }
}

/// Moves files from a temporary folder into its parent, replacing what is there, the list last. A
/// power cut in between leaves a folder without a list, which is refused and never overwritten.
fn put_inside(partial: &Path, path: &Path, _: bool) -> std::io::Result<()> {
    let ours = Directory::new(path).ok().and_then(|folder| Sums::read(&folder).ok().flatten());
    for list in [SUMS, MANIFEST] {
        match fs::remove_file(path.join(list)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    for name in ours.iter().flat_map(|ours| ours.files.keys()) {
        let file = path.join(name);
        let _ = fs::remove_file(&file);
        // Folders that have become empty.
        for folder in file.ancestors().skip(1).take_while(|folder| *folder != path) {
            let _ = fs::remove_dir(folder);
        }
    }
    let mut entries: Vec<_> = fs::read_dir(partial)?.collect::<std::io::Result<_>>()?;
    entries.sort_by_key(|entry| [SUMS, MANIFEST].iter().any(|list| entry.file_name() == *list));
    entries.iter().try_for_each(|entry| fs::rename(entry.path(), path.join(entry.file_name())))
}

/// Syncs a folder's entries to disk.
fn sync(folder: &Path) -> std::io::Result<()> {
    // Only Unix can open folders.
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

fn sync_folders(root: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_folders(&entry.path())?;
        }
    }
    sync(root)
}

/// Removes temporary folders that killed processes left beside a target: those whose lock nobody
/// holds. A folder that was moved away for a replacement that never came is put back.
fn sweep(place: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        let name = file.strip_prefix('.').and_then(|file| file.rsplit_once(".kiln-"));
        let Some((name, _)) = name.filter(|_| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        else {
            continue;
        };
        let (stale, path) = (entry.path(), place.join(name));
        if file.ends_with("-old") {
            match path.exists() {
                true => fs::remove_dir_all(&stale)?,
                false => fs::rename(&stale, path)?,
            }
            continue;
        }
        // One without a lock was exchanged, or has just been created.
        let free = match File::open(stale.join(LOCK)) {
            Ok(lock) => lock.try_lock().is_ok(),
            Err(_) => stale.join(SUMS).exists() || stale.join(MANIFEST).exists(),
        };
        if free {
            fs::remove_dir_all(&stale)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(text: &str) -> Files {
        let file = |name: &str| (name.to_string(), text.as_bytes().to_vec().into());
        Files([file("config.json"), file("1_Pooling/config.json")].into())
    }

    fn names(folder: &Path) -> Vec<String> {
        names_below(folder).unwrap()
    }

    fn refusal(path: &Path, existing: Existing) -> String {
        let before = path.exists().then(|| names(path));
        let error = write_directory(path, &files("new"), existing).unwrap_err().to_string();
        assert_eq!(path.exists().then(|| names(path)), before, "{error}");
        error
    }

    #[test]
    fn only_what_we_wrote_is_replaced() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model");
        for existing in [Existing::Refuse, Existing::ReplaceOurs] {
            let _ = fs::remove_dir_all(&path);
            // An empty folder is as good as none.
            fs::create_dir(&path).unwrap();
            write_directory(&path, &files("one"), existing).unwrap();
        }
        assert!(refusal(&path, Existing::Refuse).contains("--overwrite"));
        fs::write(path.join(LOCK), "").unwrap();
        write_directory(&path, &files("two"), Existing::ReplaceOurs).unwrap();
        assert_eq!(fs::read(path.join("config.json")).unwrap(), b"two");
        assert_eq!(names(&path), [SUMS, "1_Pooling/config.json", "config.json"]);
        assert_eq!(names(place.path()).len(), 3, "{:?}", names(place.path()));

        for foreign in ["notes.txt", "1_Pooling/notes.txt", "empty/"] {
            match foreign.strip_suffix('/') {
                Some(folder) => fs::create_dir(path.join(folder)).unwrap(),
                None => fs::write(path.join(foreign), "mine").unwrap(),
            }
            let foreign = foreign.trim_end_matches('/');
            let error = refusal(&path, Existing::ReplaceOurs);
            assert!(error.contains(foreign) && error.contains("did not write"), "{error}");
            let _ = fs::remove_file(path.join(foreign));
            let _ = fs::remove_dir(path.join(foreign));
        }
        fs::write(path.join("config.json"), "my own settings").unwrap();
        assert!(refusal(&path, Existing::ReplaceOurs).contains("changed"));
        fs::remove_file(path.join(SUMS)).unwrap();
        assert!(refusal(&path, Existing::ReplaceOurs).contains("did not write"));
        let file = place.path().join("file");
        fs::write(&file, "mine").unwrap();
        let error = write_directory(&file, &files("new"), Existing::ReplaceOurs).unwrap_err();
        assert!(error.to_string().contains("is a file"), "{error}");
        assert_eq!(fs::read(&file).unwrap(), b"mine");
        assert!(write_directory(Path::new("/"), &files("new"), Existing::ReplaceOurs).is_err());
    }

    #[test]
    #[cfg(unix)]
    fn links_stay_and_what_they_lead_to_is_written() {
        let place = tempfile::tempdir().unwrap();
        let (real, link) = (place.path().join("real"), place.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        write_directory(&link, &files("one"), Existing::Refuse).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(real.join("config.json")).unwrap(), b"one");
        fs::write(real.join("mine"), "mine").unwrap();
        assert!(refusal(&link, Existing::ReplaceOurs).contains("mine"));
        let dangling = place.path().join("dangling");
        std::os::unix::fs::symlink(place.path().join("nowhere"), &dangling).unwrap();
        assert!(write_directory(&dangling, &files("one"), Existing::ReplaceOurs).is_err());
        // A link inside is not ours.
        fs::remove_file(real.join("mine")).unwrap();
        std::os::unix::fs::symlink("/etc", real.join("out")).unwrap();
        assert!(refusal(&real, Existing::ReplaceOurs).contains("out"));
    }

    #[test]
    fn what_killed_processes_left_is_swept() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model");
        let stale = place.path().join(".model.kiln-1-0");
        fs::create_dir(&stale).unwrap();
        fs::write(stale.join(LOCK), "").unwrap();
        let living = place.path().join(".model.kiln-2-0");
        fs::create_dir(&living).unwrap();
        let lock = File::create(living.join(LOCK)).unwrap();
        lock.lock().unwrap();
        let other = place.path().join(".other.kiln-1-0");
        fs::create_dir(&other).unwrap();
        fs::write(other.join(LOCK), "").unwrap();
        write_directory(&path, &files("one"), Existing::Refuse).unwrap();
        assert!(!stale.exists() && living.exists() && !other.exists());
        // Killed between two renames: the old folder comes back.
        fs::rename(&path, place.path().join(".model.kiln-9-0-old")).unwrap();
        write_directory(&path, &files("two"), Existing::ReplaceOurs).unwrap();
        assert_eq!(fs::read(path.join("config.json")).unwrap(), b"two");
    }
}
