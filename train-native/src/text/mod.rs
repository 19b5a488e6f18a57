//! Texts in files: one reader for each format, chosen by the file's name.

mod reader;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

pub use reader::{Columns, Format, Object, Record, Stream, TextFile, Unreadable};

/// Names of all files below a folder, with `/` between the parts.
///
/// # Errors
/// A folder that cannot be read.
pub fn names_below(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(at) = open.pop() {
        let place = folder.join(&at);
        for entry in std::fs::read_dir(&place).with_context(|| place.display().to_string())? {
            let entry = entry?;
            let name = at.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                open.push(name);
            } else if let Some(name) = name.to_str() {
                names.push(name.replace(std::path::MAIN_SEPARATOR, "/"));
            }
        }
    }
    Ok(names)
}
