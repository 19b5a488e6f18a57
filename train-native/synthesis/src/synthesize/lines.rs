//! Files of rows.

use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;
use tempfile::NamedTempFile;

/// A file of JSON lines that is there when it is whole.
pub(super) struct Lines(BufWriter<NamedTempFile>);

impl Lines {
    pub(super) fn new(folder: &Path) -> Result<Self> {
        let file = NamedTempFile::new_in(folder).with_context(|| folder.display().to_string())?;
        Ok(Self(BufWriter::new(file)))
    }

    pub(super) fn push(&mut self, line: &impl Serialize) -> Result<()> {
        serde_json::to_writer(&mut self.0, line)?;
        Ok(self.0.write_all(b"\n")?)
    }

    pub(super) fn finish(self, path: &Path) -> Result<()> {
        let label = || path.display().to_string();
        let file = self.0.into_inner().map_err(|error| error.into_error()).with_context(label)?;
        file.as_file().sync_all().with_context(label)?;
        file.persist(path).map_err(|error| error.error).with_context(label)?;
        Ok(())
    }
}
