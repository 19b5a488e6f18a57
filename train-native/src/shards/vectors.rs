//! Files of vectors, one or many: what `kiln embed` left.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::entry::Entry;
use super::manifest::{Done, Settings};
use super::place::{Place, is_address};
use super::{OWN, split};
use crate::terminal::{Terminal, thousands};
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
    /// those of other kinds, are none of a folder's. Of an output of `kiln embed` those are left out that no line says to be
    /// whole, which is said.
    ///
    /// # Errors
    /// No file of vectors, vectors of two kinds, a folder that cannot be read, a store that cannot be reached.
    pub fn find(input: &str, terminal: Terminal) -> Result<Self> {
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
        let entries = place.list()?;
        let wanted = entries.iter().filter(|entry| is_wanted(&entry.name));
        let mut files: Vec<&Entry> = wanted.collect();
        if files.is_empty() {
            bail!("{input}: has no file of vectors (.npy, .jsonl, .parquet or .safetensors)");
        }
        let name = format!("{OWN}/settings.json");
        let settings = place.read(&name)?.map(|bytes| {
            serde_json::from_slice(&bytes)
                .with_context(|| format!("{}: is not what kiln embed writes", place.label(&name)))
        });
        let settings: Option<Settings> = settings.transpose()?;
        let mut left_out = Vec::new();
        if let Some(settings) = &settings {
            let whole = whole(&place, &entries)?;
            let (sum, mut of_others) = (settings.sum(), None);
            files.retain(|entry| {
                let done = whole.get(&entry.name).filter(|done| done.output_bytes == entry.bytes);
                let Some(done) = done else {
                    left_out.push(entry.name.clone());
                    return false;
                };
                if done.settings != sum {
                    of_others.get_or_insert(entry.name.clone());
                }
                true
            });
            if let Some(name) = of_others {
                bail!(
                    "{}: its vectors are of another kind than {OWN}/settings.json says; run kiln embed once more, or \
                     move it away",
                    place.label(&name)
                );
            }
            if files.is_empty() {
                bail!(
                    "{input}: no file of vectors is whole by what kiln embed noted; run it once more"
                );
            }
        }
        if let Some(first) = left_out.first() {
            terminal.note(format!(
                "{input}: {} of {} files are left out, of which kiln embed does not say that they are whole ({first})",
                thousands(left_out.len()),
                thousands(left_out.len() + files.len())
            ));
        }
        let names = files.iter().map(|entry| entry.name.clone()).collect();
        Ok(Self { settings, place, names })
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

/// What an output's files were made of, by their names.
fn whole(place: &Place, entries: &[Entry]) -> Result<HashMap<String, Done>> {
    let mut whole = HashMap::new();
    let own = entries.iter().map(|entry| entry.name.as_str());
    let is_line = |name: &&str| {
        let own = name.strip_prefix(OWN).and_then(|name| name.strip_prefix('/'));
        own.is_some_and(|own| own != "settings.json" && own.ends_with(".json"))
    };
    for name in own.filter(is_line) {
        let Some(bytes) = place.read(name)? else { continue };
        // A line that cannot be read says nothing of its file.
        if let Ok(done) = serde_json::from_slice::<Done>(&bytes) {
            whole.insert(done.output.clone(), done);
        }
    }
    Ok(whole)
}
