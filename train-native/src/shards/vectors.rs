//! Files of vectors, one or many: what `kiln embed` left.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::manifest::Settings;
use super::place::{Place, is_address};
use super::{OWN, split};
use crate::text::regular;
use crate::vectors::{Block, VectorFormat, read_blocks};

/// Files of vectors in a folder or an object store.
pub struct VectorFiles {
    place: Place,
    names: Vec<String>,
    settings: Option<Settings>,
}

impl VectorFiles {
    /// The files that something names: a file, a folder, a pattern, or any of them in an object store. Hidden files, and
    /// those of other kinds, are none of a folder's.
    ///
    /// # Errors
    /// No file of vectors, a folder that cannot be read, a store that cannot be reached.
    pub fn find(input: &str) -> Result<Self> {
        let path = Path::new(input);
        // What is called as a file of vectors is one, or refused by what it is.
        let is_file = VectorFormat::of(path).is_ok() || !path.is_dir();
        if !is_address(input) && path.exists() && is_file {
            regular(path)?;
        }
        let (base, pattern) = split(input)?;
        let place = Place::open(&base)?;
        let is_wanted = |name: &str| match &pattern {
            Some(pattern) => pattern.is_match(name),
            None => {
                let hidden = name.split('/').any(|part| part.starts_with(['.', '_']));
                !hidden && VectorFormat::of(Path::new(name)).is_ok()
            }
        };
        let entries = place.list()?.into_iter().filter(|entry| is_wanted(&entry.name));
        let names: Vec<String> = entries.map(|entry| entry.name).collect();
        if names.is_empty() {
            bail!("{input}: has no file of vectors (.npy, .jsonl, .parquet or .safetensors)");
        }
        let name = format!("{OWN}/settings.json");
        let settings = place.read(&name)?.map(|bytes| {
            serde_json::from_slice(&bytes)
                .with_context(|| format!("{}: is not what kiln embed writes", place.label(&name)))
        });
        Ok(Self { settings: settings.transpose()?, place, names })
    }

    /// What the vectors depend on beside their texts, where `kiln embed` wrote that.
    pub fn settings(&self) -> Option<&Settings> {
        self.settings.as_ref()
    }

    /// Whether a file may have texts beside its vectors.
    pub fn may_keep_texts(&self) -> bool {
        let bare = |name: &String| {
            matches!(
                VectorFormat::of(Path::new(name)),
                Ok(VectorFormat::Npy | VectorFormat::Safetensors)
            )
        };
        !self.names.iter().all(bare)
    }

    /// Reads all rows in blocks, file after file by their names. A store's files are copied here one at a time.
    ///
    /// # Errors
    /// A file that cannot be read, or what `each` returns.
    pub fn read(&self, size: usize, mut each: impl FnMut(Block) -> Result<()>) -> Result<()> {
        for name in &self.names {
            let scratch = tempfile::tempdir().context("a folder for what is on its way")?;
            let path = self.place.fetch(name, scratch.path())?;
            for block in read_blocks(&path, size)? {
                each(block?)?;
            }
        }
        Ok(())
    }
}
