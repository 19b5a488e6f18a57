//! Files of vectors, one or many: what `kiln embed` left.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::entry::Span;
use super::manifest::{Done, Settings};
use super::place::{Place, is_address};
use super::{Named, OWN};
use crate::terminal::{Terminal, thousands};
use crate::text::regular;
use crate::vectors::{Block, VectorFormat, description, read_blocks};

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
        let named = Named::new(input)?;
        let place = Place::open(&named.base)?;
        let has_vectors = |name: &str| VectorFormat::of(Path::new(name)).is_ok();
        let mut files = named.list(&place, has_vectors)?;
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
            let whole = whole(&place)?;
            let (sum, mut of_others) = (settings.sum(), None);
            files.retain(|entry| {
                let lines = whole.get(&entry.name).into_iter().flatten();
                let mut fit = lines.filter(|done| done.output_bytes == entry.bytes).peekable();
                if fit.peek().is_none() {
                    left_out.push(entry.name.clone());
                    return false;
                }
                if fit.all(|done| done.settings != sum) {
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
        let settings = match settings {
            // A file by itself may say it.
            None if !is_address(input) && path.is_file() => {
                let text = description(path)?;
                let settings = text.map(|text| {
                    serde_json::from_str::<Settings>(&text).with_context(|| {
                        format!("{input}: its metadata is not what kiln embed writes")
                    })
                });
                settings.transpose()?
            }
            settings => settings,
        };
        let names = files.into_iter().map(|entry| entry.name).collect();
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

/// What an output's files were made of, by their names. A file has several lines where its input was once another.
fn whole(place: &Place) -> Result<HashMap<String, Vec<Done>>> {
    let mut whole: HashMap<String, Vec<Done>> = HashMap::new();
    let settings = format!("{OWN}/settings.json");
    let is_line = |name: &str| name != settings && name.ends_with(".json");
    for line in place.list(Span::Below(OWN), is_line)? {
        let Some(bytes) = place.read(&line.name)? else { continue };
        // A line that cannot be read says nothing of its file.
        if let Ok(done) = serde_json::from_slice::<Done>(&bytes) {
            whole.entry(done.output.clone()).or_default().push(done);
        }
    }
    Ok(whole)
}
