//! Texts to vectors for the tasks: prompts, a cache on disk, a progress bar.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use kiln_embed::checkpoint::{FORMAT_VERSION, LoadOptions};
use kiln_embed::embedder::{EmbedOptions, Prompt, Similarity};
use kiln_embed::quant::WeightPrecision;
use redb::{Database, ReadableDatabase as _, TableDefinition};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::embedding::{BLOCK, TextModel};
use crate::hub::ADAPTER;
use crate::terminal::Terminal;

/// Turns texts into vectors; what a task needs of a model.
pub trait TextEncoder {
    /// A vector a text, in the texts' order, all divided by their norm where the model does so.
    ///
    /// # Errors
    /// Whatever hinders the model; [`kiln_embed::Error::Cancelled`] after Ctrl-C.
    fn encode(&self, texts: &[String], prompt_text: &str) -> Result<Vec<Vec<f32>>>;

    /// The model's own prompt for a task: by the first of some names that it has, else its
    /// default.
    fn own_prompt(&self, names: &[&str]) -> String;

    /// How an instruction becomes the prompt of a query (`{instruction}` stands for it), where that is known.
    fn instruction_format(&self) -> Option<String> {
        None
    }

    /// How its vectors are meant to be compared.
    fn similarity(&self) -> Similarity {
        Similarity::Cosine
    }
}

/// A model, with the vectors that it has made before.
pub struct ModelEncoder {
    pub(crate) model: Arc<dyn TextModel>,
    pub(crate) options: EmbedOptions,
    instruction_format: Option<String>,
    cache: Option<Cache>,
    pub(crate) terminal: Terminal,
}

impl ModelEncoder {
    /// A model that embeds under some options.
    pub fn new(
        model: Arc<dyn TextModel>,
        options: EmbedOptions,
        cache: Option<Cache>,
        terminal: Terminal,
    ) -> Self {
        let instruction_format = model.prompts().instruction_format().map(String::from);
        Self { model, options, instruction_format, cache, terminal }
    }

    /// The same with how an instruction becomes the prompt of a query; as the model says where absent.
    pub fn with_instruction_format(self, format: Option<String>) -> Self {
        let instruction_format = format.or_else(|| self.instruction_format.clone());
        Self { instruction_format, ..self }
    }
}

impl TextEncoder for ModelEncoder {
    fn encode(&self, texts: &[String], prompt_text: &str) -> Result<Vec<Vec<f32>>> {
        let options =
            EmbedOptions { prompt: Prompt::Text(prompt_text.into()), ..self.options.clone() };
        let mut vectors: Vec<Vec<f32>> = vec![Vec::new(); texts.len()];
        let keys: Vec<u128> = texts.iter().map(|text| key(prompt_text, text)).collect();
        // Each text once, and none that is kept.
        let mut rows_of: HashMap<u128, Vec<usize>> = HashMap::new();
        let mut missing = Vec::new();
        let kept = self.cache.as_ref().map(|cache| cache.get(&keys)).transpose()?;
        for (row, &key) in keys.iter().enumerate() {
            if let Some(vector) = kept.as_ref().and_then(|kept| kept[row].clone()) {
                vectors[row] = vector;
                continue;
            }
            let rows = rows_of.entry(key).or_default();
            if rows.is_empty() {
                missing.push(row);
            }
            rows.push(row);
        }
        if missing.is_empty() {
            return Ok(vectors);
        }
        let bar = self.terminal.progress(missing.len() as u64, "embedding");
        let mut before = 0;
        // In blocks, so that what was done is kept when the run is cut short.
        for block in missing.chunks(BLOCK) {
            let block_texts: Vec<&str> = block.iter().map(|&row| texts[row].as_str()).collect();
            let made = self.model.embed(&block_texts, &options, |progress| {
                bar.set_position((before + progress.texts) as u64);
            })?;
            before += block.len();
            if let Some(cache) = &self.cache {
                cache.put(block.iter().map(|&row| keys[row]).zip(&made))?;
            }
            for (&row, vector) in block.iter().zip(made) {
                for &same in &rows_of[&keys[row]] {
                    vectors[same].clone_from(&vector);
                }
            }
        }
        bar.finish_and_clear();
        Ok(vectors)
    }

    fn own_prompt(&self, names: &[&str]) -> String {
        let prompts = self.model.prompts();
        prompts.text(&prompts.first_of(names)).unwrap_or_default().to_string()
    }

    fn instruction_format(&self) -> Option<String> {
        self.instruction_format.clone()
    }

    fn similarity(&self) -> Similarity {
        self.model.similarity()
    }
}

/// The key of a text behind a prompt.
pub(crate) fn key(prompt_text: &str, text: &str) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(&(prompt_text.len() as u64).to_le_bytes());
    hash.update(prompt_text.as_bytes());
    hash.update(text.as_bytes());
    hash.digest128()
}

/// Vectors on disk, one file a model; clones share it.
#[derive(Clone)]
pub struct Cache {
    database: Arc<Database>,
    path: PathBuf,
}

const VECTORS: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("vectors");

impl Cache {
    /// The folder where vectors are kept if no other is named.
    pub fn default_folder() -> Option<PathBuf> {
        Some(dirs::cache_dir()?.join("kiln").join("embeddings"))
    }

    /// The vectors of a model. `None`, with a note, where another process has them open or the
    /// file cannot be used: a cache that is not there must not end a run.
    pub fn open(folder: &Path, model: &str, terminal: Terminal) -> Option<Self> {
        let path = folder.join(format!("{model}.redb"));
        let open = || -> Result<Database> {
            std::fs::create_dir_all(folder)?;
            let database = Database::create(&path)?;
            let write = database.begin_write()?;
            write.open_table(VECTORS)?;
            write.commit()?;
            Ok(database)
        };
        match open() {
            Ok(database) => Some(Self { database: Arc::new(database), path }),
            Err(error) => {
                terminal.note(format!(
                    "no cache of vectors: {}: {error:#}; everything is embedded anew",
                    path.display()
                ));
                None
            }
        }
    }

    /// Vectors by key, those that are kept.
    ///
    /// # Errors
    /// A damaged file.
    pub(crate) fn get(&self, keys: &[u128]) -> Result<Vec<Option<Vec<f32>>>> {
        let read = || -> Result<_> {
            let table = self.database.begin_read()?.open_table(VECTORS)?;
            keys.iter()
                .map(|key| {
                    Ok(table.get(key)?.map(|bytes| {
                        let (values, _) = bytes.value().as_chunks::<4>();
                        values.iter().map(|value| f32::from_le_bytes(*value)).collect()
                    }))
                })
                .collect()
        };
        read().with_context(|| format!("{}: remove this cache, it is damaged", self.path.display()))
    }

    /// Keeps vectors.
    ///
    /// # Errors
    /// A full disk.
    pub(crate) fn put<'a>(
        &self,
        vectors: impl Iterator<Item = (u128, &'a Vec<f32>)>,
    ) -> Result<()> {
        let write = || -> Result<()> {
            let transaction = self.database.begin_write()?;
            {
                let mut table = transaction.open_table(VECTORS)?;
                for (key, vector) in vectors {
                    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                    table.insert(key, bytes.as_slice())?;
                }
            }
            Ok(transaction.commit()?)
        };
        write().with_context(|| {
            format!("{}: cannot keep vectors; free space, or use --no-cache", self.path.display())
        })
    }
}

/// A number of 32 hexadecimal digits for what a model's vectors depend on: the files of its folders,
/// and what of its settings was changed.
///
/// # Errors
/// Files that cannot be read.
pub fn fingerprint(
    folders: &[PathBuf],
    overrides: &LoadOptions,
    dimensions: Option<usize>,
) -> Result<String> {
    let mut hash = Xxh3::new();
    for folder in folders {
        hash_files(folder, &mut hash)?;
    }
    hash.update(format!("{overrides:?} {dimensions:?}").as_bytes());
    if overrides.precision != WeightPrecision::Kept {
        // Vectors of another way of rounding are other vectors.
        hash.update(format!(" {FORMAT_VERSION}").as_bytes());
    }
    Ok(format!("{:032x}", hash.digest128()))
}

/// Names and contents of a model's files, but for those of adapters in subfolders, which are no part of it and come and go.
fn hash_files(folder: &Path, hash: &mut Xxh3) -> Result<()> {
    let mut files = Vec::new();
    let mut open = Vec::new();
    // A .kiln file is a model by itself.
    let single = folder.is_file();
    if single { &mut files } else { &mut open }.push(folder.to_path_buf());
    while let Some(place) = open.pop() {
        for entry in std::fs::read_dir(&place).with_context(|| place.display().to_string())? {
            let path = entry?.path();
            // The Hub's cache holds links to files.
            let data = std::fs::metadata(&path).with_context(|| path.display().to_string())?;
            if data.is_dir() {
                if !path.join(ADAPTER).exists() {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|ending| {
                ["json", "safetensors", "txt", "model", "bin"].iter().any(|known| ending == *known)
            }) {
                files.push(path);
            }
        }
    }
    files.sort();
    for path in files {
        let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
        let bytes = crate::text::open(&path)?;
        let mut content = Xxh3::new();
        std::io::copy(&mut { bytes }, &mut content).with_context(|| path.display().to_string())?;
        hash.update(format!("{name}\0{:032x}\n", content.digest128()).as_bytes());
    }
    Ok(())
}

/// A short number for a text, as part of a name.
pub fn short_hash(text: &str) -> String {
    format!("{:08x}", xxh3_128(text.as_bytes()) as u32)
}
