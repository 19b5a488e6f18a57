//! Models in GGUF, llama.cpp's format: their weights, under our names and in our numbers.
//!
//! Q8_0 is int8 in blocks of 32 and Q4_0 is int4 in blocks of 32, each with scales in half precision:
//! they are taken over number by number. What has no such twin (Q4_K, Q6_K and the like) is unpacked
//! and rounded again. Tokenizer, prompts and pooling head are read from the folder that the model was
//! made from: GGUF keeps the first in a form of its own and the last as a number, if at all.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use candle_core::Device;
use candle_core::quantized::gguf_file::{Content, TensorInfo};
use candle_core::quantized::{GgmlDType, QTensor};
use kiln_core::checkpoint::{
    Files, Folder, LoadOptions, ReadSeek, SelfTest, StoredTensor, load, read_architecture, save,
    write_tensors,
};
use kiln_core::config::{Architecture, Family, ModelConfig};
use kiln_core::quant::{Quantized, Scheme};
use serde::Serialize;

use super::StoragePlan;
use super::linear_algebra::weight_error;
use super::plan::{stored, values};
use crate::device::Cpu;
use crate::interrupt;
use crate::terminal::Terminal;

/// Numbers of a block of Q8_0 and Q4_0.
const BLOCK: usize = 32;

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
    let (config, _) = read_architecture(base)?;
    let mut reader = BufReader::new(File::open(file).with_context(|| label.clone())?);
    let length = reader.get_ref().metadata().with_context(|| label.clone())?.len();
    check_header(&mut reader, length).with_context(|| label.clone())?;
    let content = Content::read(&mut reader)
        .map_err(|error| anyhow::anyhow!("{label}: not GGUF, or cut short: {}", plain(&error)))?;
    let architecture = text(&content, "general.architecture").unwrap_or_default();
    if !fits(&architecture, config.family) {
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
    let mut infos: Vec<(&String, &TensorInfo)> = content.tensor_infos.iter().collect();
    infos.sort_by_key(|(_, info)| info.offset);
    let bar = terminal.progress(infos.len() as u64, "tensors");
    for (theirs, info) in infos {
        if interrupt::asked() {
            return Err(kiln_core::Error::Cancelled.into());
        }
        bar.inc(1);
        let Some(name) = our_name(theirs, config.family.is_decoder()) else {
            if OF_OTHER_TASKS.iter().any(|other| theirs.starts_with(other)) {
                continue;
            }
            bail!("{label}: has a tensor {theirs}, which no {architecture} of Kiln's has");
        };
        let read = read_tensor(&content, info, &mut reader, length);
        let packed = read.with_context(|| format!("{label}: {theirs}"))?;
        let found = convert(&packed, &name, &architecture, &config, plan)
            .with_context(|| format!("{label}: {theirs}"))?;
        let kind = format!("{:?}", packed.dtype());
        let line = lines.entry((kind.clone(), found.storage.clone())).or_insert(ImportLine {
            gguf: kind,
            storage: found.storage,
            tensors: 0,
            numbers: 0,
            lost: 0.0,
        });
        line.tensors += 1;
        line.numbers += packed.shape().elem_count();
        line.lost = line.lost.max(found.lost);
        full.push((name.clone(), found.full));
        tensors.insert(name, found.kept);
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
    pooling_agrees(&content, &architecture, embedder.model.pooling.config().name(), terminal);
    let mut files = save(&embedder)?;
    let tensors: Vec<(String, StoredTensor)> = tensors.into_iter().collect();
    let weights = write_tensors(&tensors, &[("format", "pt")])?;
    files.0.insert("model.safetensors".into(), weights.into());
    Ok(ImportedModel { files, reference, lines: lines.into_values().collect() })
}

/// Compares the lengths that a header promises with the file's own: Candle believes them, and sets
/// memory aside.
fn check_header(reader: &mut BufReader<File>, length: u64) -> Result<()> {
    let mut magic = [0; 4];
    let short = || format!("cut short: its header does not end in its {length} bytes");
    reader.read_exact(&mut magic).with_context(short)?;
    if &magic != b"GGUF" {
        bail!("is not GGUF");
    }
    let version = number(reader, 4).with_context(short)?;
    if !(2..=3).contains(&version) {
        bail!("is GGUF of version {version}; versions 2 and 3 can be read (convert it again)");
    }
    let tensors = number(reader, 8).with_context(short)?;
    let entries = number(reader, 8).with_context(short)?;
    let mut walk = || -> std::io::Result<()> {
        for _ in 0..entries {
            skip(reader, 8, length)?;
            let kind = number(reader, 4)?;
            skip(reader, kind, length)?;
        }
        for _ in 0..tensors {
            skip(reader, 8, length)?;
            let dimensions = number(reader, 4)?;
            // And its type and place.
            jump(reader, dimensions.saturating_mul(8).saturating_add(12), length)?;
        }
        Ok(())
    };
    walk().with_context(short)?;
    reader.seek(SeekFrom::Start(0))?;
    Ok(())
}

/// Passes over a value of one of GGUF's types.
fn skip(reader: &mut BufReader<File>, kind: u64, length: u64) -> std::io::Result<()> {
    let size = |kind| match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    };
    match (kind, size(kind)) {
        (_, Some(bytes)) => jump(reader, bytes, length),
        (8, _) => {
            let bytes = number(reader, 8)?;
            jump(reader, bytes, length)
        }
        (9, _) => {
            let (kind, count) = (number(reader, 4)?, number(reader, 8)?);
            match size(kind) {
                Some(bytes) => jump(reader, count.saturating_mul(bytes), length),
                None if kind == 8 => (0..count).try_for_each(|_| skip(reader, kind, length)),
                None => Err(std::io::ErrorKind::InvalidData.into()),
            }
        }
        _ => Err(std::io::ErrorKind::InvalidData.into()),
    }
}

fn jump(reader: &mut BufReader<File>, bytes: u64, length: u64) -> std::io::Result<()> {
    let at = reader.stream_position()?;
    match i64::try_from(bytes) {
        Ok(by) if bytes <= length.saturating_sub(at) => reader.seek_relative(by),
        _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A whole number of so many bytes.
fn number(reader: &mut BufReader<File>, bytes: usize) -> std::io::Result<u64> {
    let mut all = [0; 8];
    reader.read_exact(&mut all[..bytes])?;
    Ok(u64::from_le_bytes(all))
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
        let hidden = path == kiln_core::checkpoint::MANIFEST || path.ends_with(".index.json");
        if hidden { Ok(None) } else { self.base.open(path) }
    }
}

/// Candle's error without the backtrace that it may carry.
fn plain(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_string()
}

fn text(content: &Content, key: &str) -> Option<String> {
    content.metadata.get(key).and_then(|value| value.to_string().ok()).cloned()
}

/// Whether llama.cpp's architecture is that of a family.
fn fits(architecture: &str, family: Family) -> bool {
    match family {
        Family::Bert | Family::Roberta | Family::XlmRoberta => architecture == "bert",
        Family::Llama | Family::Mistral => architecture == "llama",
        Family::Qwen2 => architecture == "qwen2",
        Family::Qwen3 => architecture == "qwen3",
    }
}

/// Tensors of heads for other tasks, and of tables that we compute.
const OF_OTHER_TASKS: [&str; 3] = ["output.weight", "rope_freqs", "cls"];

/// llama.cpp's names and ours.
type Names = [(&'static str, &'static str)];

const ENCODER: &Names = &[
    ("token_embd", "embeddings.word_embeddings"),
    ("position_embd", "embeddings.position_embeddings"),
    ("token_types", "embeddings.token_type_embeddings"),
    ("token_embd_norm", "embeddings.LayerNorm"),
];
const ENCODER_BLOCK: &Names = &[
    ("attn_q", "attention.self.query"),
    ("attn_k", "attention.self.key"),
    ("attn_v", "attention.self.value"),
    ("attn_output", "attention.output.dense"),
    ("attn_output_norm", "attention.output.LayerNorm"),
    ("ffn_up", "intermediate.dense"),
    ("ffn_down", "output.dense"),
    ("layer_output_norm", "output.LayerNorm"),
];
const DECODER: &Names = &[("token_embd", "embed_tokens"), ("output_norm", "norm")];
const DECODER_BLOCK: &Names = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// transformers' name of one of llama.cpp's tensors.
fn our_name(theirs: &str, decoder: bool) -> Option<String> {
    let (stem, kind) = theirs.rsplit_once('.')?;
    let (outside, blocks, layers) = match decoder {
        false => (ENCODER, ENCODER_BLOCK, "encoder.layer"),
        true => (DECODER, DECODER_BLOCK, "layers"),
    };
    let find = |table: &Names, stem: &str| {
        table.iter().find(|(theirs, _)| *theirs == stem).map(|(_, ours)| *ours)
    };
    match stem.strip_prefix("blk.") {
        None => Some(format!("{}.{kind}", find(outside, stem)?)),
        Some(rest) => {
            let (layer, stem) = rest.split_once('.')?;
            let layer: usize = layer.parse().ok()?;
            Some(format!("{layers}.{layer}.{}.{kind}", find(blocks, stem)?))
        }
    }
}

/// Reads a tensor that lies inside the file.
fn read_tensor(
    content: &Content,
    info: &TensorInfo,
    reader: &mut BufReader<File>,
    length: u64,
) -> Result<QTensor> {
    let dims = info.shape.dims();
    let numbers = dims.iter().try_fold(1usize, |count, dim| count.checked_mul(*dim));
    let bytes = numbers.map(|numbers| {
        (numbers / info.ggml_dtype.block_size()) as u128 * info.ggml_dtype.type_size() as u128
    });
    let start = u128::from(content.tensor_data_offset) + u128::from(info.offset);
    match bytes {
        Some(bytes) if start + bytes <= u128::from(length) => {}
        _ => bail!("cut short: it would end behind the file's {length} bytes; download it again"),
    }
    info.read(reader, content.tensor_data_offset, &Device::Cpu)
        .map_err(|error| anyhow::anyhow!("{}", plain(&error)))
}

/// A tensor with all that the file says, and as it is kept.
struct Converted {
    full: StoredTensor,
    kept: StoredTensor,
    storage: String,
    lost: f64,
}

fn convert(
    packed: &QTensor,
    name: &str,
    architecture: &str,
    config: &ModelConfig,
    plan: &StoragePlan,
) -> Result<Converted> {
    let bad = |error: candle_core::Error| anyhow::anyhow!("{}", plain(&error));
    let mut shape = packed.shape().dims().to_vec();
    let order = halves_apart(name, &shape, architecture, config);
    let twin = match *shape.as_slice() {
        [rows, columns] if name.ends_with("weight") => {
            let data = packed.data().map_err(bad)?;
            same_numbers(packed.dtype(), &data, [rows, columns], order.as_deref())?
        }
        _ => None,
    };
    if let Some(matrix) = twin {
        let storage = matrix.scheme().to_string();
        let full = StoredTensor::Full(shape, matrix.values());
        return Ok(Converted { full, kept: StoredTensor::Quantized(matrix), storage, lost: 0.0 });
    }
    let unpacked = packed.dequantize(&Device::Cpu).and_then(|tensor| tensor.flatten_all());
    let mut found: Vec<f32> = unpacked.and_then(|tensor| tensor.to_vec1()).map_err(bad)?;
    if let Some(at) = found.iter().position(|value| !value.is_finite()) {
        bail!("its number {at} is {}; download the file again", found[at]);
    }
    if let Some(order) = &order {
        let columns = found.len() / order.len().max(1);
        found = order
            .iter()
            .flat_map(|row| found[row * columns..][..columns].iter().copied())
            .collect();
    }
    // llama.cpp drops the rows that no position of RoBERTa uses.
    if let (Architecture::Encoder(encoder), [rows, columns]) =
        (&config.architecture, shape.as_mut_slice())
        && name == "embeddings.position_embeddings.weight"
        && *rows + encoder.position_offset == encoder.position_rows
    {
        found.splice(0..0, std::iter::repeat_n(0.0, encoder.position_offset * *columns));
        *rows = encoder.position_rows;
    }
    let storage = match packed.dtype() {
        // What the file's maker left whole stays whole.
        GgmlDType::F32 => super::Storage::F32,
        _ => plan.of(name, &shape)?,
    };
    let kept = stored(storage, &shape, &found)?;
    let lost = weight_error(&found, &values(&kept));
    let storage = match &kept {
        StoredTensor::Full(..) => "f32".to_string(),
        StoredTensor::Half(..) => "f16".to_string(),
        StoredTensor::Quantized(matrix) => matrix.scheme().to_string(),
    };
    Ok(Converted { full: StoredTensor::Full(shape, found), kept, storage, lost })
}

/// The same numbers in our order, where ours can be the same: Q8_0 and Q4_0, of which a block is a
/// scale in half precision and 32 codes. `order` says which row comes where.
fn same_numbers(
    kind: GgmlDType,
    data: &[u8],
    [rows, columns]: [usize; 2],
    order: Option<&[usize]>,
) -> Result<Option<Quantized>> {
    if !matches!(kind, GgmlDType::Q8_0 | GgmlDType::Q4_0) || !columns.is_multiple_of(BLOCK) {
        return Ok(None);
    }
    let size = kind.type_size();
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for row in 0..rows {
        let row = order.map_or(row, |order| order[row]);
        let blocks = &data[row * (columns / BLOCK) * size..][..columns / BLOCK * size];
        for block in blocks.chunks_exact(size) {
            scales.push(half::f16::from_le_bytes([block[0], block[1]]).to_f32());
            let numbers = &block[2..];
            if kind == GgmlDType::Q8_0 {
                codes.extend_from_slice(numbers);
                continue;
            }
            // The first sixteen numbers are in the lower halves, the others in the upper ones.
            let code = |at: usize| match at < BLOCK / 2 {
                true => numbers[at] & 15,
                false => numbers[at - BLOCK / 2] >> 4,
            };
            codes.extend((0..BLOCK / 2).map(|pair| code(2 * pair) | code(2 * pair + 1) << 4));
        }
    }
    let scheme: Scheme = match kind {
        // Ours go from -127, so that they can be negated.
        GgmlDType::Q8_0 if codes.contains(&0x80) => return Ok(None),
        GgmlDType::Q8_0 => "int8:32".parse()?,
        _ => "int4:32".parse()?,
    };
    Ok(Some(Quantized::from_parts(scheme, [rows, columns], codes, scales)?))
}

/// llama.cpp turns neighbouring dimensions of a head with each other where transformers turns its
/// halves, and has put the rows of Llama's queries and keys in that order: which of its rows is ours.
fn halves_apart(
    name: &str,
    shape: &[usize],
    architecture: &str,
    config: &ModelConfig,
) -> Option<Vec<usize>> {
    let turned = name.contains(".q_proj.") || name.contains(".k_proj.");
    let rows = *shape.first()?;
    let width = config.head_dim;
    let has_halves = width > 0 && width.is_multiple_of(2) && rows.is_multiple_of(width);
    if architecture != "llama" || !turned || !has_halves {
        return None;
    }
    let row = |at: usize| {
        let (head, inside) = (at / width, at % width);
        let (half, pair) = (inside / (width / 2), inside % (width / 2));
        head * width + 2 * pair + half
    };
    Some((0..rows).map(row).collect())
}

/// Says so where the file names another pooling head than the folder.
fn pooling_agrees(content: &Content, architecture: &str, pooling: &str, terminal: Terminal) {
    let key = format!("{architecture}.pooling_type");
    let said = content.metadata.get(&key).and_then(|value| value.to_u32().ok());
    let named = match said {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_llama_cpp() {
        let encoder = |name| our_name(name, false);
        let decoder = |name| our_name(name, true);
        assert_eq!(encoder("token_embd.weight").unwrap(), "embeddings.word_embeddings.weight");
        assert_eq!(
            encoder("blk.3.ffn_up.bias").unwrap(),
            "encoder.layer.3.intermediate.dense.bias"
        );
        assert_eq!(decoder("blk.11.attn_q.weight").unwrap(), "layers.11.self_attn.q_proj.weight");
        assert_eq!(decoder("output_norm.weight").unwrap(), "norm.weight");
        for wrong in ["blk.x.attn_q.weight", "blk.1.ffn_gate_exps.weight", "attn_q", "blk.1.weight"]
        {
            assert_eq!(decoder(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn four_bit_numbers_are_put_in_our_order() {
        let mut block = half::f16::from_f32(-0.5).to_le_bytes().to_vec();
        block.extend((0..16u8).map(|at| at | (15 - at) << 4));
        let matrix = same_numbers(GgmlDType::Q4_0, &block, [1, 32], None).unwrap().unwrap();
        let expected: Vec<f32> =
            (0..16).chain((0..16).rev()).map(|code| (code as f32 - 8.0) * -0.5).collect();
        assert_eq!(matrix.values(), expected);
    }
}
