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

    /// The bytes of a file, mapped from disk, so that they take memory only where they are read;
    /// `None` where mapping is not possible.
    fn map(&self, _path: &str) -> Option<Bytes> {
        None
    }

    /// The file's name for error messages.
    fn file_label(&self, path: &str) -> String {
        format!("{}/{path}", self.label())
    }
}

/// Whether a path stays inside its folder on every system, and is short and plain enough to print.
pub fn stays_inside(path: &str) -> bool {
    let part = |part: &str| !part.is_empty() && part != "." && part != "..";
    let odd = |c: char| c == '\\' || c == ':' || c.is_control();
    path.len() <= 1024 && !path.contains(odd) && path.split('/').all(part)
}

/// Files in memory, by path; clones share the bytes.
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
/// Unreadable, or larger than any configuration file.
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
pub use directory::Directory;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use directory::map_file;

#[cfg(not(target_arch = "wasm32"))]
mod directory {
    use std::fs;
    use std::io::ErrorKind;
    use std::path::PathBuf;

    use bytes::Bytes;
    use memmap2::Mmap;

    use super::{Folder, ReadSeek};
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

    /// The bytes of a file, mapped into memory: the system reads a page when it is used and may drop it
    /// at any time. Whoever rewrites the file must put a new one in its place, as Kiln does
    /// (`checkpoint::write_directory`): bytes written in place change here too, and a file cut
    /// short ends the process.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(crate) fn map_file(file: &fs::File) -> std::io::Result<Bytes> {
        // SAFETY: the mapping lives as long as the bytes, is never written, and holds plain bytes,
        // for which all values are valid. That nobody changes the file in place is the caller's
        // duty, as stated above; no operating system can guarantee it.
        #[expect(unsafe_code, reason = "files are mapped by a call that is unsafe")]
        let map = unsafe { Mmap::map(file) }?;
        Ok(Bytes::from_owner(map))
    }
}
