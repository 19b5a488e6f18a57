//! Texts in files: one reader for each format, chosen by the file's name.
//!
//! A byte-order mark is no part of a text, and what is held in memory at once is bounded
//! ([`most_bytes`]), however small the file is that it comes from.

mod csv;
mod json;
mod limit;
mod lines;
mod open;
pub(crate) mod parquet;
mod reader;
mod spool;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

pub use json::object;
pub use limit::{DEFAULT_MOST_BYTES, most_bytes, set_most_bytes};
pub use lines::numbered;
pub(crate) use open::behind_mark;
pub use open::{apart, is_missing, open, read_small, regular};
pub(crate) use reader::short;
pub use reader::{Columns, Format, Object, Record, TextFile};

/// Items that are read one after another, each of which may fail.
pub type Stream<T> = Box<dyn Iterator<Item = Result<T>>>;

/// The error of a file whose rest cannot be read, as against a row that is wrong; no row follows.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {cause}")]
pub struct Unreadable {
    place: String,
    cause: String,
}

impl Unreadable {
    fn of(place: impl std::fmt::Display, cause: impl std::fmt::Display) -> Self {
        Self { place: place.to_string(), cause: cause.to_string() }
    }

    fn error(place: impl std::fmt::Display, cause: impl std::fmt::Display) -> anyhow::Error {
        Self::of(place, cause).into()
    }

    fn damaged(place: impl std::fmt::Display, cause: impl std::fmt::Display) -> anyhow::Error {
        Self::error(place, format!("{cause}; the file is cut off or damaged"))
    }
}

/// The error of bytes that cannot be read, or the one that a reader between has put into it.
fn unreadable(place: impl std::fmt::Display, error: std::io::Error) -> anyhow::Error {
    match error.downcast::<Unreadable>() {
        Ok(own) => own.into(),
        Err(error) => Unreadable::damaged(place, error),
    }
}

/// The items up to the first [`Unreadable`] error, which is the last.
fn until_unreadable<T>(items: impl Iterator<Item = Result<T>>) -> impl Iterator<Item = Result<T>> {
    let mut over = false;
    items.take_while(move |item| {
        let before = over;
        over |= matches!(item, Err(error) if error.is::<Unreadable>());
        !before
    })
}

/// Names of all files below a folder, with `/` between the parts.
///
/// # Errors
/// A folder that cannot be read.
pub fn names_below(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(i) = open.pop() {
        let place = folder.join(&i);
        for entry in std::fs::read_dir(&place).with_context(|| place.display().to_string())? {
            let entry = entry?;
            let name = i.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                open.push(name);
            } else if let Some(name) = name.to_str() {
                names.push(name.replace(std::path::MAIN_SEPARATOR, "/"));
            }
        }
    }
    Ok(names)
}
