//! The tensors of a checkpoint, single or sharded, read one by one by name.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Seek as _, SeekFrom};

use ::safetensors::tensor::Dtype;
use bytes::Bytes;
use half::{bf16, f16};
use serde_json::Value;

use super::header::{Entry, LARGEST_HEADER, REMEDY};
use super::safetensors::{SCALES, code_type};
use super::{pytorch, safetensors};
use crate::folder::{Folder, ReadSeek, read_text, stays_inside};
use crate::model::families::Stacked;
use crate::quant::{Quantized, Scheme, WeightPrecision};
use crate::{Error, Result};

/// What git has in the place of a large file until it is fetched.
const POINTER: &[u8] = b"version https://git-lfs.github.com/";

/// How torch's parametrizations name a weight, and the adapters beside it that a module's own code adds to it.
const ORIGINAL: &str = ".parametrizations.weight.original";
/// Of a stack `[tasks, ..]` of first matrices.
pub(super) const STACKED_A: &str = ".parametrizations.weight.0.lora_A";
/// Of a stack `[tasks, ..]` of second ones.
pub(super) const STACKED_B: &str = ".parametrizations.weight.0.lora_B";

/// Shape and type of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Element type, by safetensors' name.
    pub dtype: Dtype,
    /// Scheme of a quantized tensor, whose shape is then that of its numbers.
    pub scheme: Option<Scheme>,
    /// Where the scales are, and their type.
    scales: Option<(Span, Dtype)>,
    /// From one element to the next along each dimension, where that is not row-major.
    strides: Option<Vec<usize>>,
    span: Span,
}

/// Where the bytes of a tensor are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    file: usize,
    start: u64,
    end: u64,
}

struct File {
    label: String,
    reader: Box<dyn ReadSeek>,
    /// The same bytes, where they are mapped.
    mapped: Option<Bytes>,
}

/// The tensors of a checkpoint, by name.
pub struct Weights {
    files: Vec<File>,
    tensors: BTreeMap<String, TensorInfo>,
    used: BTreeSet<String>,
    precision: WeightPrecision,
}

impl Weights {
    /// Opens `{stem}.safetensors`, or the shards that `{stem}.safetensors.index.json` lists. Where
    /// neither is there, `pytorch_model.bin` (or its shards) stands for the stem `model`, and
    /// `adapter_model.bin` for `adapter_model`. A weight that stands beside adapters for tasks
    /// (`task_adapter`) has its plain name, and so has a norm whose weight is called gamma.
    ///
    /// # Errors
    /// None of them exists, a file is truncated or corrupt, or a PyTorch file holds more than
    /// tensors.
    pub fn open(folder: &dyn Folder, stem: &str) -> Result<Self> {
        let mut weights = Self {
            files: Vec::new(),
            tensors: BTreeMap::new(),
            used: BTreeSet::new(),
            precision: WeightPrecision::Kept,
        };
        let (parent, name) = stem.split_at(stem.rfind('/').map_or(0, |slash| slash + 1));
        let pytorch = match name {
            "model" => Some("pytorch_model.bin"),
            "adapter_model" => Some("adapter_model.bin"),
            _ => None,
        };
        for file in [format!("{name}.safetensors")].into_iter().chain(pytorch.map(String::from)) {
            if weights.add_shards(folder, parent, &file)?
                || weights.add(folder, &format!("{parent}{file}"))?
            {
                weights.name_originals();
                weights.name_norms();
                return Ok(weights);
            }
        }
        Err(Error::MissingFile {
            folder: folder.label(),
            file: format!("{stem}.safetensors"),
            remedy: "name a folder that holds a saved model".into(),
        })
    }

    /// Adds the files that a file's index lists; false where there is no index.
    fn add_shards(&mut self, folder: &dyn Folder, parent: &str, file: &str) -> Result<bool> {
        let index = format!("{parent}{file}.index.json");
        let Some(text) = read_text(folder, &index)? else {
            return Ok(false);
        };
        let bad = |cause: String| Error::bad_file(folder.file_label(&index), cause, REMEDY);
        if text.len() as u64 > LARGEST_HEADER {
            return Err(bad(format!(
                "has {} bytes, more than the {LARGEST_HEADER} that are read",
                text.len()
            )));
        }
        let value: Value =
            serde_json::from_slice(&text).map_err(|e| bad(format!("not valid JSON: {e}")))?;
        let map = value
            .get("weight_map")
            .and_then(Value::as_object)
            .ok_or_else(|| bad("the key weight_map is missing".into()))?;
        if map.is_empty() {
            return Err(bad("its weight_map names no tensor".into()));
        }
        let mut shards = BTreeSet::new();
        for (tensor, shard) in map {
            let shard =
                shard.as_str().ok_or_else(|| bad(format!("the shard of {tensor} is no string")))?;
            // Shards must be in the index's own folder; other names could reach any file.
            if shard.contains('/') || !stays_inside(shard) {
                return Err(bad(format!("the shard of {tensor} is {shard:?}, outside the folder")));
            }
            shards.insert(shard);
        }
        // Sorted by file.
        let shards: Vec<&str> = shards.into_iter().collect();
        for shard in &shards {
            if !self.add(folder, &format!("{parent}{shard}"))? {
                return Err(bad(format!("the shard {parent}{shard} is not there")));
            }
        }
        for (tensor, shard) in map {
            match self.tensors.get(tensor).map(|info| shards[info.span.file]) {
                Some(result) if shard == result => {}
                Some(result) => {
                    return Err(bad(format!("the tensor {tensor} is in {result}, not in {shard}")));
                }
                None => return Err(bad(format!("the tensor {tensor} is in no shard"))),
            }
        }
        Ok(true)
    }

    /// Gives a weight beside which are adapters alone its plain name. Another parametrization would make other weights of
    /// it, so that its name stays.
    fn name_originals(&mut self) {
        let originals = self.tensors.keys().filter_map(|name| name.strip_suffix(ORIGINAL));
        let modules: Vec<String> = originals.map(String::from).collect();
        for module in modules {
            let plain = format!("{module}.weight");
            let parameters = format!("{module}.parametrizations.weight.");
            let own = [ORIGINAL, STACKED_A, STACKED_B].map(|end| format!("{module}{end}"));
            let beside: Vec<&String> = self
                .tensors
                .range(parameters.clone()..)
                .map(|(name, _)| name)
                .take_while(|name| name.starts_with(&parameters))
                .collect();
            if beside.len() == own.len()
                && own.iter().all(|name| beside.contains(&name))
                && !self.tensors.contains_key(&plain)
                && let Some(info) = self.tensors.remove(&own[0])
            {
                self.tensors.insert(plain, info);
            }
        }
    }

    /// Gives norms that are named as in TensorFlow, as in bert-base-uncased, the names that all others have.
    fn name_norms(&mut self) {
        for (old, new) in
            [("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")]
        {
            let found = self.tensors.keys().filter_map(|name| name.strip_suffix(old));
            let modules: Vec<String> = found.map(String::from).collect();
            for module in modules {
                let name = format!("{module}{new}");
                if !self.tensors.contains_key(&name)
                    && let Some(info) = self.tensors.remove(&format!("{module}{old}"))
                {
                    self.tensors.insert(name, info);
                }
            }
        }
    }

    /// Adds one file; false where there is none.
    fn add(&mut self, folder: &dyn Folder, path: &str) -> Result<bool> {
        let label = folder.file_label(path);
        let io = |cause| Error::Io { file: label.clone(), cause };
        let bad = |cause: String| Error::bad_file(label.clone(), cause, REMEDY);
        let Some((mut reader, length)) = folder.open(path).map_err(io)? else {
            return Ok(false);
        };
        refuse_pointer(&label, reader.as_mut(), length)?;
        let (entries, schemes) = match path.ends_with(".bin") {
            true => (pytorch::read_header(&label, reader.as_mut(), length)?, BTreeMap::new()),
            false => safetensors::read_header(&label, reader.as_mut(), length)?,
        };
        for Entry { name, dtype, shape, strides, bytes } in entries {
            let span = Span { file: self.files.len(), start: bytes.start, end: bytes.end };
            let tensor = TensorInfo { shape, dtype, scheme: None, scales: None, strides, span };
            if self.tensors.contains_key(&name) {
                return Err(bad(format!("the tensor {name} is in two shards")));
            }
            self.tensors.insert(name, tensor);
        }
        let mapped = if schemes.is_empty() { None } else { folder.map(path) };
        for (name, scheme) in schemes {
            self.mark_quantized(&name, scheme).map_err(bad)?;
        }
        self.files.push(File { label, reader, mapped });
        Ok(true)
    }

    /// Joins the codes and scales of a quantized tensor under its name.
    fn mark_quantized(&mut self, name: &str, scheme: Scheme) -> std::result::Result<(), String> {
        let scales = self.tensors.remove(&format!("{name}{SCALES}"));
        let (Some(info), Some(scales)) = (self.tensors.get_mut(name), scales) else {
            return Err(format!("the quantized tensor {name} or its scales are not there"));
        };
        let [rows, stored] = info.shape[..] else {
            return Err(format!("the quantized tensor {name} has the shape {:?}", info.shape));
        };
        let columns = stored * 8 / scheme.number.bits();
        let block = scheme.block_in(columns);
        let fits = scheme.check(columns).is_ok()
            && info.dtype == code_type(scheme.number)
            && scales.shape == [rows, columns / block.max(1)];
        if !fits {
            return Err(format!(
                "the tensor {name} ({:?} {:?}, scales {:?}) is not {scheme}",
                info.dtype, info.shape, scales.shape
            ));
        }
        info.shape = vec![rows, columns];
        info.scheme = Some(scheme);
        info.scales = Some((scales.span, scales.dtype));
        Ok(())
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// Names that [`Weights::read`] was never asked for.
    pub fn unused(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().filter(|name| !self.used.contains(*name)).map(String::as_str)
    }

    /// Gives a tensor that has several matrices, if it is there, of that shape and without them beside it, in parts under
    /// their own names.
    pub(crate) fn take_apart(&mut self, whole: &Stacked, prefix: &str) {
        let name = format!("{prefix}{}", whole.name);
        let named = |part: &String| self.tensors.contains_key(&format!("{prefix}{part}"));
        let apart = whole.parts.iter().any(named);
        let fits = |info: &TensorInfo| !apart && info.shape == whole.shape && info.scheme.is_none();
        let (Some(info), [rows, width]) =
            (self.tensors.get(&name).filter(|info| fits(info)).cloned(), whole.shape)
        else {
            return;
        };
        self.tensors.remove(&name);
        let rows = rows / whole.parts.len().max(1);
        let [down, across] = match info.strides.as_deref() {
            Some(&[down, across]) => [down, across],
            _ => [width, 1],
        };
        let bytes = (rows * down * info.dtype.bitsize() / 8) as u64;
        for (number, part) in whole.parts.iter().enumerate() {
            let start = info.span.start + number as u64 * bytes;
            // Without strides the bytes are those of the part alone.
            let end = if info.strides.is_none() { start + bytes } else { info.span.end };
            let (shape, strides) = match whole.turned {
                true => (vec![width, rows], Some(vec![across, down])),
                false => (vec![rows, width], info.strides.is_some().then(|| vec![down, across])),
            };
            let span = Span { start, end, ..info.span };
            self.tensors.insert(
                format!("{prefix}{part}"),
                TensorInfo { shape, strides, span, ..info.clone() },
            );
        }
    }

    /// Keeps only the tensors whose name passes a test.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.tensors.retain(|name, _| keep(name));
    }

    /// File name for error messages.
    pub fn label(&self) -> String {
        self.files.first().map_or(String::new(), |file| file.label.clone())
    }

    /// Whether the file has all matrices in bf16.
    pub fn are_bf16(&self) -> bool {
        let mut matrices = self.tensors.values().filter(|info| info.shape.len() == 2);
        matrices.all(|info| info.dtype == Dtype::BF16 && info.scheme.is_none())
    }

    /// From now on returns matrices in another precision than the file's.
    pub fn give_in(&mut self, precision: WeightPrecision) {
        self.precision = precision;
    }

    /// What [`Weights::give_in`] was asked for.
    pub(crate) fn precision(&self) -> WeightPrecision {
        self.precision
    }

    /// Scheme in which [`Weights::read_quantized`] returns a matrix; `None` where it does not.
    pub fn scheme(&self, name: &str) -> Option<Scheme> {
        let info = self.tensors.get(name)?;
        let [_, inputs] = *info.shape.as_slice() else { return None };
        self.precision.of(info.scheme, inputs)
    }

    /// Values of a tensor as f32, row-major; `None` where there is no such tensor.
    ///
    /// # Errors
    /// Unreadable, or not of a floating-point type.
    pub fn read(&mut self, name: &str) -> Result<Option<Vec<f32>>> {
        match self.read_quantized(name)? {
            Some(quantized) => Ok(Some(quantized.values())),
            None => self.values(name),
        }
    }

    /// As [`Weights::read`], of a tensor that may hold integers: a table of numbers that mean themselves, not
    /// codes of weights.
    ///
    /// # Errors
    /// As [`Weights::read`].
    pub(crate) fn read_numbers(&mut self, name: &str) -> Result<Option<Vec<f32>>> {
        let info = self.tensors.get(name).filter(|info| info.scheme.is_none()).cloned();
        let Some(TensorInfo { dtype: dtype @ (Dtype::I64 | Dtype::I8), span, .. }) = info else {
            return self.read(name);
        };
        self.used.insert(name.to_string());
        let bytes = self.bytes(span)?;
        Ok(Some(match dtype {
            Dtype::I8 => bytes.iter().map(|&byte| f32::from(byte as i8)).collect(),
            _ => bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as f32).collect(),
        }))
    }

    /// A quantized tensor, as stored or as [`Weights::give_in`] asks; `None` where there is no such
    /// tensor, or where [`Weights::scheme`] says that it is not quantized.
    ///
    /// # Errors
    /// Unreadable, damaged, or with numbers that are not finite.
    pub fn read_quantized(&mut self, name: &str) -> Result<Option<Quantized>> {
        self.quantized(name, false)
    }

    /// As [`Weights::read_quantized`], for a table that stays packed, so that its codes can stay in
    /// the mapped file, if there is one.
    ///
    /// # Errors
    /// As [`Weights::read_quantized`].
    pub fn map_quantized(&mut self, name: &str) -> Result<Option<Quantized>> {
        self.quantized(name, true)
    }

    fn quantized(&mut self, name: &str, mapped: bool) -> Result<Option<Quantized>> {
        let (Some(scheme), Some(info)) = (self.scheme(name), self.tensors.get(name)) else {
            return Ok(None);
        };
        if info.scheme == Some(scheme) {
            return self.kept(name, mapped);
        }
        let (shape, file) = (info.shape.clone(), info.span.file);
        let Some(values) = self.values(name)? else { return Ok(None) };
        let rounded = Quantized::round(&values, [shape[0], shape[1]], scheme);
        rounded.map(Some).map_err(|error| self.bad_tensor(name, file, &error))
    }

    /// The values in the file, whatever [`Weights::give_in`] asks for.
    pub(crate) fn values(&mut self, name: &str) -> Result<Option<Vec<f32>>> {
        if let Some(quantized) = self.kept(name, false)? {
            return Ok(Some(quantized.values()));
        }
        let Some(info) = self.tensors.get(name).cloned() else {
            return Ok(None);
        };
        self.used.insert(name.to_string());
        let mut bytes = self.bytes(info.span)?;
        if let Some(strides) = &info.strides {
            bytes = pytorch::gather(&bytes, info.dtype.bitsize() / 8, &info.shape, strides);
        }
        self.decoded(name, info.dtype, info.span.file, &bytes).map(Some)
    }

    /// One row of a matrix, from the values in the file, whatever [`Weights::give_in`] asks for; `None` where there is no
    /// such row. Of the others nothing is read, unless they are quantized or not row by row.
    pub(crate) fn row(&mut self, name: &str, row: usize) -> Result<Option<Vec<f32>>> {
        let Some(info) = self.tensors.get(name).cloned() else { return Ok(None) };
        let [_, width] = *info.shape.as_slice() else { return Ok(None) };
        if info.scheme.is_some() || info.strides.is_some() {
            let values = self.values(name)?.unwrap_or_default();
            return Ok(values.chunks_exact(width.max(1)).nth(row).map(<[f32]>::to_vec));
        }
        self.used.insert(name.to_string());
        let bytes = (width * info.dtype.bitsize() / 8) as u64;
        let start = info.span.start + row as u64 * bytes;
        let span = Span { start, end: start + bytes, ..info.span };
        if span.end > info.span.end {
            return Ok(None);
        }
        let bytes = self.bytes(span)?;
        self.decoded(name, info.dtype, span.file, &bytes).map(Some)
    }

    /// A quantized tensor as stored; `None` where the file has it in floating point.
    fn kept(&mut self, name: &str, mapped: bool) -> Result<Option<Quantized>> {
        let Some(TensorInfo { shape, scheme: Some(scheme), scales: Some(scales), span, .. }) =
            self.tensors.get(name).cloned()
        else {
            return Ok(None);
        };
        self.used.insert(name.to_string());
        let range = span.start as usize..span.end as usize;
        let codes: Bytes = match &self.files[span.file].mapped {
            Some(file) if mapped && range.end <= file.len() => file.slice(range),
            _ => self.bytes(span)?.into(),
        };
        let (place, dtype) = scales;
        let bytes = self.bytes(place)?;
        let scales = self.decoded(&format!("{name}{SCALES}"), dtype, place.file, &bytes)?;
        let quantized = Quantized::from_parts(scheme, [shape[0], shape[1]], codes, scales);
        quantized.map(Some).map_err(|error| self.bad_tensor(name, span.file, &error))
    }

    fn bad_tensor(&self, name: &str, file: usize, error: &Error) -> Error {
        let label = self.files[file].label.clone();
        Error::bad_file(label, format!("the tensor {name}: {error}"), REMEDY)
    }

    fn bytes(&mut self, span: Span) -> Result<Vec<u8>> {
        let file = &mut self.files[span.file];
        let io = |cause| Error::Io { file: file.label.clone(), cause };
        file.reader.seek(SeekFrom::Start(span.start)).map_err(io)?;
        let mut bytes = vec![0; (span.end - span.start) as usize];
        file.reader.read_exact(&mut bytes).map_err(io)?;
        Ok(bytes)
    }

    fn decoded(&self, name: &str, dtype: Dtype, file: usize, bytes: &[u8]) -> Result<Vec<f32>> {
        decode(dtype, bytes).ok_or_else(|| {
            Error::bad_file(
                self.files[file].label.clone(),
                format!("the tensor {name} is {dtype:?}"),
                "Kiln reads F32, F16, BF16 and F64 weights, and those that it quantized itself",
            )
        })
    }
}

/// Refuses what git left in the place of a file.
fn refuse_pointer(label: &str, reader: &mut dyn ReadSeek, length: u64) -> Result<()> {
    let io = |cause| Error::Io { file: label.to_string(), cause };
    let mut start = vec![0; length.min(POINTER.len() as u64) as usize];
    reader.read_exact(&mut start).map_err(io)?;
    reader.rewind().map_err(io)?;
    match start == POINTER {
        true => {
            Err(Error::bad_file(label, "is a Git LFS pointer, not the file", "run git lfs pull"))
        }
        false => Ok(()),
    }
}

/// Little-endian numbers as f32, with the integer types that fixtures use.
fn decode(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f32>> {
    fn all<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> f32) -> Vec<f32> {
        bytes.as_chunks::<N>().0.iter().map(|chunk| f(*chunk)).collect()
    }
    Some(match dtype {
        Dtype::F32 => all(bytes, f32::from_le_bytes),
        Dtype::F16 => all(bytes, |b| f16::from_le_bytes(b).to_f32()),
        Dtype::BF16 => all(bytes, |b| bf16::from_le_bytes(b).to_f32()),
        Dtype::F64 => all(bytes, |b| f64::from_le_bytes(b) as f32),
        Dtype::I32 => all(bytes, |b| i32::from_le_bytes(b) as f32),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Files, StoredTensor, write_safetensors, write_tensors};

    #[test]
    fn norms_that_are_named_as_in_tensorflow_are_found() {
        let tensor = |name: &str, value: f32| (format!("bert.{name}"), vec![2], vec![value; 2]);
        let tensors =
            [tensor("LayerNorm.gamma", 1.0), tensor("LayerNorm.beta", 2.0), tensor("gamma", 3.0)];
        let bytes = write_safetensors(&tensors, &[]).unwrap();
        let files = Files([("model.safetensors".to_string(), bytes.into())].into());
        let mut weights = Weights::open(&files, "model").unwrap();
        for (name, value) in [("LayerNorm.weight", 1.0), ("LayerNorm.bias", 2.0), ("gamma", 3.0)] {
            assert_eq!(weights.read(&format!("bert.{name}")).unwrap().unwrap(), [value; 2]);
        }
    }

    #[test]
    fn a_row_is_the_files_own_whatever_is_asked_for() {
        let values: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7).sin()).collect();
        let whole = [("w".to_string(), vec![4, 16], values.clone())];
        let bytes = write_safetensors(&whole, &[]).unwrap();
        let files = Files([("model.safetensors".to_string(), bytes.into())].into());
        let mut weights = Weights::open(&files, "model").unwrap();
        weights.give_in(WeightPrecision::Rounded("int4:16".parse().unwrap()));
        assert_ne!(weights.read("w").unwrap().unwrap(), values);
        for row in 0..4 {
            assert_eq!(weights.row("w", row).unwrap().unwrap(), values[row * 16..][..16]);
        }
        assert_eq!(weights.row("w", 4).unwrap(), None);
        assert_eq!(weights.row("v", 0).unwrap(), None);

        let matrix = Quantized::round(&values, [4, 16], "int8:16".parse().unwrap()).unwrap();
        let rounded = matrix.values();
        let tensors = [("w".to_string(), StoredTensor::Quantized(matrix))];
        let bytes = write_tensors(&tensors, &[]).unwrap();
        let files = Files([("model.safetensors".to_string(), bytes.into())].into());
        let mut weights = Weights::open(&files, "model").unwrap();
        assert_eq!(weights.row("w", 3).unwrap().unwrap(), rounded[48..]);
        assert_eq!(weights.row("w", 4).unwrap(), None);
    }

    #[test]
    fn half_precision_is_widened() {
        let numbers = [1.0f32, -0.5, 65504.0, 6e-8];
        let bytes: Vec<u8> = numbers.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        assert_eq!(decode(Dtype::F16, &bytes).unwrap()[..3], numbers[..3]);
        let bytes: Vec<u8> =
            numbers.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
        assert_eq!(decode(Dtype::BF16, &bytes).unwrap()[..2], numbers[..2]);
    }
}
