//! Where the files of a model are: a directory, a Hub snapshot, or bytes in a page.

use std::collections::BTreeMap;
use std::io::{Cursor, Read, Seek};

use bytes::Bytes;

use crate::{Error, Result};

/// A reader that can seek.
pub trait ReadSeek: Read + Seek + Send {}
impl<T: Read + Seek + Send> ReadSeek for T {}

/// A set of named files.
pub trait Folder {
    /// Name for error messages.
    fn label(&self) -> String;

    /// Opens a file by its path inside the folder: a reader and the length in bytes, or `None`
    /// where there is no such file.
    fn open(&self, path: &str) -> std::io::Result<Option<(Box<dyn ReadSeek>, u64)>>;

    /// The bytes of a file, mapped from disk, so that they cost memory only where they are used; `None` where
    /// they cannot be.
    fn map(&self, _path: &str) -> Option<Bytes> {
        None
    }

    /// The file's name for error messages.
    fn file_label(&self, path: &str) -> String {
        format!("{}/{path}", self.label())
    }
}

/// Whether a path stays inside the folder that it is meant for, on every system, and is short
/// and plain enough to be shown.
pub fn stays_inside(path: &str) -> bool {
    let part = |part: &str| !part.is_empty() && part != "." && part != "..";
    let odd = |c: char| c == '\\' || c == ':' || c.is_control();
    path.len() <= 1024 && !path.contains(odd) && path.split('/').all(part)
}

/// Files held in memory, by path; their copies share the bytes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Files(pub BTreeMap<String, Bytes>);

impl Folder for Files {
    fn label(&self) -> String {
        "model".into()
    }

    fn open(&self, path: &str) -> std::io::Result<Option<(Box<dyn ReadSeek>, u64)>> {
        Ok(self.0.get(path).map(|bytes| {
            let reader: Box<dyn ReadSeek> = Box::new(Cursor::new(bytes.clone()));
            (reader, bytes.len() as u64)
        }))
    }
}

/// Largest configuration or tokenizer file that is read; the largest published tokenizers
/// have some 35 MB.
const LARGEST_TEXT: u64 = 1 << 28;

/// Reads a whole small file; `None` where there is none.
///
/// # Errors
/// Unreadable, or larger than any configuration file is.
pub fn read_text(folder: &dyn Folder, path: &str) -> Result<Option<Vec<u8>>> {
    let io = |cause| Error::Io { file: folder.file_label(path), cause };
    let Some((mut reader, length)) = folder.open(path).map_err(io)? else {
        return Ok(None);
    };
    if length > LARGEST_TEXT {
        return Err(Error::bad_file(
            folder.file_label(path),
            format!("{length} bytes is too large for this file"),
            "check that the model folder is the right one",
        ));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    reader.read_to_end(&mut bytes).map_err(io)?;
    Ok(Some(bytes))
}

#[cfg(not(target_arch = "wasm32"))]
pub(super) use directory::map_file;
#[cfg(not(target_arch = "wasm32"))]
pub use directory::{Directory, open_folder};

#[cfg(not(target_arch = "wasm32"))]
mod directory {
    use std::fs;
    use std::io::ErrorKind;
    use std::path::{Path, PathBuf};

    use bytes::Bytes;
    use memmap2::Mmap;

    use super::{Folder, ReadSeek};
    use crate::checkpoint::KilnFile;
    use crate::{Error, Result};

    /// A directory on disk.
    #[derive(Debug, Clone)]
    pub struct Directory(PathBuf);

    impl Directory {
        /// A directory that must exist.
        ///
        /// # Errors
        /// Missing, unreadable, or not a directory.
        pub fn new(path: impl Into<PathBuf>) -> Result<Self> {
            let path = path.into();
            let label = path.display().to_string();
            match fs::metadata(&path) {
                Ok(data) if data.is_dir() => Ok(Self(path)),
                Ok(_) => {
                    Err(Error::bad_file(label, "is a file", "name the folder that holds the model"))
                }
                Err(cause) => Err(Error::Io { file: label, cause }),
            }
        }
    }

    /// Opens a model on disk: a directory or, where the path is no directory, a `.kiln` file.
    ///
    /// # Errors
    /// Missing, unreadable, or a file that is no model.
    pub fn open_folder(path: &Path) -> Result<Box<dyn Folder>> {
        Ok(match path.is_dir() {
            true => Box::new(Directory::new(path)?),
            false => Box::new(KilnFile::on_disk(path)?),
        })
    }

    impl Folder for Directory {
        fn label(&self) -> String {
            self.0.display().to_string()
        }

        fn open(&self, path: &str) -> std::io::Result<Option<(Box<dyn ReadSeek>, u64)>> {
            match fs::File::open(self.0.join(path)) {
                Ok(file) => {
                    let length = file.metadata()?.len();
                    Ok(Some((Box::new(file), length)))
                }
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        }

        fn map(&self, path: &str) -> Option<Bytes> {
            fs::File::open(self.0.join(path)).and_then(|file| map_file(&file)).ok()
        }
    }

    /// The bytes of a file, mapped into memory: pages are read from disk when they are used, and may be
    /// given back at any time. Who writes the file anew has to put another one in its place, as Kiln does
    /// ([`write_directory`](crate::checkpoint::write_directory)): what is overwritten changes here too, and what is cut off ends the process.
    ///
    /// # Errors
    /// The file system's.
    pub(in crate::checkpoint) fn map_file(file: &fs::File) -> std::io::Result<Bytes> {
        // SAFETY: the mapping lives as long as the bytes, is never written, and holds plain bytes, for which
        // all values are valid. That nobody else changes the file in place is asked of the caller above, as
        // everyone who maps files asks it; no operating system can be made to promise it.
        #[expect(unsafe_code, reason = "files are mapped by a call that is unsafe")]
        let map = unsafe { Mmap::map(file) }?;
        Ok(Bytes::from_owner(map))
    }
}
