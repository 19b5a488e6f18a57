//! Models in GGUF, llama.cpp's format: their weights, under our names and in our numbers.
//!
//! Q8_0 is int8 in blocks of 32 and Q4_0 is int4 in blocks of 32, each with scales in half precision:
//! they are taken over number by number. What has no such twin (Q4_K, Q6_K and the like) is unpacked
//! and rounded again. Tokenizer, prompts and pooling head are read from the folder that the model was
//! made from: GGUF keeps the first in a form of its own and the last as a number, if at all.

mod blocks;
mod header;
mod names;
mod numbers;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use kiln_embed::checkpoint::{
    Files, Folder, LoadOptions, ReadSeek, SelfTest, StoredTensor, load, read_embedder_config, save,
    write_tensors,
};
use serde::Serialize;

use self::header::{ARCHITECTURE, Header, POOLING, TensorInfo};
use self::names::{OF_OTHER_TASKS, fits, our_name};
use self::numbers::{Packed, convert};
use super::StoragePlan;
use crate::device::Cpu;
use crate::interrupt;
use crate::terminal::Terminal;

/// What became of the tensors that were kept in one format.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ImportLine {
    /// The format in the GGUF file.
    pub gguf: String,
    /// How they are kept now.
    pub storage: String,
    /// How many there are.
    pub tensors: usize,
    /// Numbers in them.
    pub numbers: usize,
    /// Largest share of a tensor's square that was lost on the way.
    pub lost: f64,
}

/// A model that was read from GGUF.
pub struct ImportedModel {
    /// Its files.
    pub files: Files,
    /// The vectors that the unpacked weights give.
    pub reference: SelfTest,
    /// What became of the tensors.
    pub lines: Vec<ImportLine>,
}

/// Reads the weights of a GGUF file into the model of a folder, whose own weights are not looked at.
/// `plan` says how matrices are kept that are neither Q8_0 nor Q4_0.
///
/// # Errors
/// A file that is no GGUF, cut short, of another architecture than the folder, or with tensors that
/// do not fit it.
pub fn import_gguf(
    file: &Path,
    base: &dyn Folder,
    stem: &str,
    plan: &StoragePlan,
    terminal: Terminal,
) -> Result<ImportedModel> {
    let label = file.display().to_string();
    let config = read_embedder_config(base)?.config;
    let mut reader = crate::text::open(file)?;
    let length = reader.metadata().with_context(|| label.clone())?.len();
    let header = Header::read(&mut reader, length).with_context(|| label.clone())?;
    let architecture = header.text(ARCHITECTURE).unwrap_or_default();
    if !fits(architecture, config.family) {
        bail!(
            "{label}: holds a model of the architecture {architecture:?}, and {} one of {:?}; name the folder that \
             the GGUF was made from (bert, llama, qwen2 and qwen3 can be read)",
            base.label(),
            config.family.model_type()
        );
    }

    let mut tensors: BTreeMap<String, StoredTensor> = BTreeMap::new();
    let mut full: Vec<(String, StoredTensor)> = Vec::new();
    let mut lines: BTreeMap<(String, String), ImportLine> = BTreeMap::new();
    let bar = terminal.progress(header.tensors.len() as u64, "tensors");
    for info in &header.tensors {
        let theirs = &info.name;
        if interrupt::asked() {
            return Err(kiln_embed::Error::Cancelled.into());
        }
        bar.inc(1);
        let Some(name) = our_name(theirs, config.family.is_decoder()) else {
            if OF_OTHER_TASKS.iter().any(|other| theirs.starts_with(other)) {
                continue;
            }
            bail!("{label}: has a tensor {theirs}, which no {architecture} of Kiln's has");
        };
        let place = || format!("{label}: {theirs}");
        let packed = read_tensor(info, &mut reader).with_context(place)?;
        let result = convert(&packed, &name, architecture, &config, plan).with_context(place)?;
        let kind = info.kind.name.to_string();
        let line = lines.entry((kind.clone(), result.storage.clone())).or_insert(ImportLine {
            gguf: kind,
            storage: result.storage,
            tensors: 0,
            numbers: 0,
            lost: 0.0,
        });
        line.tensors += 1;
        line.numbers += info.shape.iter().product::<usize>();
        line.lost = line.lost.max(result.lost);
        full.push((name.clone(), result.full));
        tensors.insert(name, result.kept);
    }
    bar.finish_and_clear();

    // The model with all that the file says, and then its files with the tensors as they are kept.
    let weights = write_tensors(&full, &[("format", "pt")])?;
    drop(full);
    let overlay = Overlay { base, stem, weights: weights.into() };
    let embedder = load::<Cpu>(&overlay, &LoadOptions::default(), &Default::default())
        .with_context(|| format!("{label}, in the place of the weights of {}", base.label()))?;
    let reference = SelfTest::of(&embedder, 0.0)?;
    if reference.vectors.iter().flatten().any(|value| !value.is_finite()) {
        bail!("{label}: its weights give vectors that are not finite; download it again");
    }
    pooling_agrees(&header, architecture, embedder.model().pooling().config().name(), terminal);
    let mut files = save(&embedder)?;
    let tensors: Vec<(String, StoredTensor)> = tensors.into_iter().collect();
    let weights = write_tensors(&tensors, &[("format", "pt")])?;
    files.0.insert("model.safetensors".into(), weights.into());
    Ok(ImportedModel { files, reference, lines: lines.into_values().collect() })
}

/// The files of a folder with other weights.
struct Overlay<'a> {
    base: &'a dyn Folder,
    stem: &'a str,
    weights: Bytes,
}

impl Folder for Overlay<'_> {
    fn label(&self) -> String {
        self.base.label()
    }

    fn open(&self, path: &str) -> std::io::Result<Option<(Box<dyn ReadSeek>, u64)>> {
        if path == format!("{}.safetensors", self.stem) {
            let length = self.weights.len() as u64;
            return Ok(Some((Box::new(std::io::Cursor::new(self.weights.clone())), length)));
        }
        // An index and a manifest speak of the weights that are not looked at.
        let hidden = path == kiln_embed::checkpoint::MANIFEST || path.ends_with(".index.json");
        if hidden { Ok(None) } else { self.base.open(path) }
    }
}

/// The bytes of a tensor, which lies inside the file.
fn read_tensor(info: &TensorInfo, file: &mut File) -> Result<Packed> {
    file.seek(SeekFrom::Start(info.start))?;
    let mut data = vec![0; info.bytes];
    file.read_exact(&mut data)?;
    Ok(Packed { kind: info.kind, shape: info.shape.clone(), data })
}

/// Says so where the file names another pooling head than the folder.
fn pooling_agrees(header: &Header, architecture: &str, pooling: &str, terminal: Terminal) {
    let named = match header.number(&format!("{architecture}{POOLING}")) {
        Some(1) => "mean",
        Some(2) => "cls",
        Some(3) => "last_token",
        _ => return,
    };
    if named != pooling {
        terminal.note(format!(
            "the GGUF file says {named} pooling and the folder {pooling}; the folder's is used"
        ));
    }
}
