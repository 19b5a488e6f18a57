//! What can be wrong with a PyTorch file.

use std::io::SeekFrom;

use crate::Error;
use crate::checkpoint::header::REMEDY;
use crate::folder::ReadSeek;

/// Why a file cannot be read; the file's name is not known here.
#[derive(Debug)]
pub(super) enum Fault {
    Io(std::io::Error),
    /// Truncated or corrupt.
    Broken(String),
    /// Something that only PyTorch itself can load.
    Foreign(String),
}

pub(super) type Outcome<T> = std::result::Result<T, Fault>;

impl Fault {
    pub(super) fn named(self, label: &str) -> Error {
        match self {
            Fault::Io(cause) => Error::Io { file: label.into(), cause },
            Fault::Broken(cause) => Error::bad_file(label, cause, REMEDY),
            Fault::Foreign(cause) => Error::bad_file(
                label,
                cause,
                "convert it to safetensors where it is trusted (transformers: save_pretrained)",
            ),
        }
    }
}

pub(super) fn broken<T>(cause: impl Into<String>) -> Outcome<T> {
    Err(Fault::Broken(cause.into()))
}

pub(super) fn foreign<T>(cause: impl Into<String>) -> Outcome<T> {
    Err(Fault::Foreign(cause.into()))
}

/// Bytes of a file; that it has so many was checked before.
pub(super) fn bytes_at(reader: &mut dyn ReadSeek, at: u64, count: usize) -> Outcome<Vec<u8>> {
    let mut bytes = vec![0; count];
    reader.seek(SeekFrom::Start(at)).map_err(Fault::Io)?;
    reader.read_exact(&mut bytes).map_err(Fault::Io)?;
    Ok(bytes)
}

/// A stranger's text, short and plain enough to print.
pub(super) fn shown(text: &str) -> String {
    const LONGEST: usize = 100;
    let mut shown: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push_str("...");
    }
    shown
}
