//! Ids and texts of an index's rows, on disk: a line of JSON for each, and where it begins.

use std::fs::File;
use std::io::{BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::vectors::VectorRow;

/// What is kept of a row beside its vector.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct RowText {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// Writes rows one after the other.
pub(super) struct TextWriter {
    paths: [PathBuf; 2],
    lines: BufWriter<File>,
    offsets: BufWriter<File>,
    at: u64,
    /// Whether a row had anything to keep.
    some: bool,
}

impl TextWriter {
    pub(super) fn create(lines: PathBuf, offsets: PathBuf) -> Result<Self> {
        let create = |path: &Path| File::create(path).with_context(|| path.display().to_string());
        Ok(Self {
            lines: BufWriter::new(create(&lines)?),
            offsets: BufWriter::new(create(&offsets)?),
            paths: [lines, offsets],
            at: 0,
            some: false,
        })
    }

    pub(super) fn push(&mut self, row: VectorRow) -> Result<()> {
        let row = RowText { id: row.id, text: row.text };
        self.some |= row.id.is_some() || !row.text.is_empty();
        let mut line = serde_json::to_vec(&row)?;
        line.push(b'\n');
        self.offsets.write_all(&self.at.to_le_bytes()).context("the texts' offsets")?;
        self.lines.write_all(&line).context("the texts")?;
        self.at += line.len() as u64;
        Ok(())
    }

    /// Whether there is anything to keep; the files are gone where not.
    pub(super) fn finish(mut self) -> Result<bool> {
        self.offsets.write_all(&self.at.to_le_bytes()).context("the texts' offsets")?;
        for file in [self.lines, self.offsets] {
            file.into_inner()
                .map_err(|error| error.into_error())
                .context("the texts")?
                .sync_all()
                .context("the texts")?;
        }
        if !self.some {
            for path in &self.paths {
                std::fs::remove_file(path).with_context(|| path.display().to_string())?;
            }
        }
        Ok(self.some)
    }
}

/// Reads single rows.
pub(super) struct TextReader {
    label: String,
    files: Mutex<[File; 2]>,
}

impl TextReader {
    pub(super) fn open(lines: &Path, offsets: &Path) -> Result<Self> {
        let open = |path: &Path| File::open(path).with_context(|| path.display().to_string());
        Ok(Self {
            label: lines.display().to_string(),
            files: Mutex::new([open(lines)?, open(offsets)?]),
        })
    }

    pub(super) fn get(&self, row: usize) -> Result<RowText> {
        self.read(row).with_context(|| format!("{}: row {row}", self.label))
    }

    fn read(&self, row: usize) -> Result<RowText> {
        let mut files = self.files.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let [lines, offsets] = &mut *files;
        let mut ends = [0; 16];
        offsets.seek(SeekFrom::Start(row as u64 * 8))?;
        offsets.read_exact(&mut ends)?;
        let end = |at: usize| {
            ends[at..at + 8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let (start, end) = (end(0), end(8));
        let length = end.checked_sub(start).context("ends before it begins")?;
        lines.seek(SeekFrom::Start(start))?;
        let mut line = Vec::new();
        lines.take(length).read_to_end(&mut line)?;
        serde_json::from_slice(&line).context("is no line of an index")
    }
}
