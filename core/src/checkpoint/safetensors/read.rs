//! Reads tensors by name.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, SeekFrom};

use bytes::Bytes;
use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata};
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{QUANTIZED, SCALES, code_type};
use crate::folder::{Folder, ReadSeek, read_text, stays_inside};
use crate::quant::{Quantized, Scheme, WeightPrecision};
use crate::{Error, Result};

/// Largest header and shard index that are read: a hundred thousand tensors take 10 MB, and parsed
/// JSON takes many times its length in memory.
const LARGEST_HEADER: u64 = 1 << 24;
const REMEDY: &str = "download or copy the file again";

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
    /// Opens `{stem}.safetensors`, or the shards that `{stem}.safetensors.index.json` lists.
    ///
    /// # Errors
    /// Neither exists, or a file is truncated or corrupt.
    pub fn open(folder: &dyn Folder, stem: &str) -> Result<Self> {
        let mut weights = Self {
            files: Vec::new(),
            tensors: BTreeMap::new(),
            used: BTreeSet::new(),
            precision: WeightPrecision::Kept,
        };
        let index = format!("{stem}.safetensors.index.json");
        if let Some(text) = read_text(folder, &index)? {
            weights.open_shards(folder, stem, &index, &text)?;
        } else if !weights.add(folder, &format!("{stem}.safetensors"))? {
            let remedy = match folder.open("pytorch_model.bin") {
                Ok(Some(_)) => {
                    "convert pytorch_model.bin to safetensors (transformers: save_pretrained)"
                }
                _ => "name a folder that holds a saved model",
            };
            return Err(Error::MissingFile {
                folder: folder.label(),
                file: format!("{stem}.safetensors"),
                remedy: remedy.into(),
            });
        }
        Ok(weights)
    }

    fn open_shards(
        &mut self,
        folder: &dyn Folder,
        stem: &str,
        index: &str,
        text: &[u8],
    ) -> Result<()> {
        let bad = |cause: String| Error::bad_file(folder.file_label(index), cause, REMEDY);
        if text.len() as u64 > LARGEST_HEADER {
            return Err(bad(format!(
                "has {} bytes, more than the {LARGEST_HEADER} that are read",
                text.len()
            )));
        }
        let value: Value =
            serde_json::from_slice(text).map_err(|e| bad(format!("not valid JSON: {e}")))?;
        let map = value
            .get("weight_map")
            .and_then(Value::as_object)
            .ok_or_else(|| bad("the key weight_map is missing".into()))?;
        if map.is_empty() {
            return Err(bad("its weight_map names no tensor".into()));
        }
        let parent =
            stem.rsplit_once('/').map_or(String::new(), |(parent, _)| format!("{parent}/"));
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
        Ok(())
    }

    /// Adds one file; false where there is none.
    fn add(&mut self, folder: &dyn Folder, path: &str) -> Result<bool> {
        let label = folder.file_label(path);
        let io = |cause| Error::Io { file: label.clone(), cause };
        let bad = |cause: String| Error::bad_file(label.clone(), cause, REMEDY);
        let Some((mut reader, length)) = folder.open(path).map_err(io)? else {
            return Ok(false);
        };
        let mut size = [0; 8];
        if length < 8 {
            return Err(bad(format!(
                "truncated: {length} bytes, too short for a safetensors header"
            )));
        }
        reader.read_exact(&mut size).map_err(io)?;
        let header = u64::from_le_bytes(size);
        if header > length - 8 {
            return Err(bad(format!(
                "truncated or not safetensors: the header says {header} bytes, the file has {length}"
            )));
        }
        if header > LARGEST_HEADER {
            return Err(bad(format!(
                "its header has {header} bytes, more than the {LARGEST_HEADER} that are read"
            )));
        }
        let mut text = vec![0; header as usize];
        reader.read_exact(&mut text).map_err(io)?;
        let corrupt = |e| bad(format!("corrupt safetensors header: {e}"));
        let UniqueNames = serde_json::from_slice(&text).map_err(corrupt)?;
        let metadata: Metadata = serde_json::from_slice(&text).map_err(corrupt)?;
        let schemes: BTreeMap<String, Scheme> =
            match metadata.metadata().as_ref().and_then(|entries| entries.get(QUANTIZED)) {
                Some(text) => serde_json::from_str(text)
                    .map_err(|e| bad(format!("its entry {QUANTIZED} cannot be read: {e}")))?,
                None => BTreeMap::new(),
            };
        let data = length - 8 - header;
        for (name, info) in metadata.tensors() {
            let (start, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
            if start > end || end > data {
                return Err(bad(format!(
                    "truncated: the tensor {name} ends at byte {end} of {data}"
                )));
            }
            let bits = info
                .shape
                .iter()
                .try_fold(info.dtype.bitsize() as u64, |total, &n| total.checked_mul(n as u64));
            if bits != Some((end - start) * 8) {
                return Err(bad(format!(
                    "corrupt: the tensor {name} of shape {:?} has {} bytes",
                    info.shape,
                    end - start
                )));
            }
            let tensor = TensorInfo {
                shape: info.shape.clone(),
                dtype: info.dtype,
                scheme: None,
                scales: None,
                span: Span {
                    file: self.files.len(),
                    start: 8 + header + start,
                    end: 8 + header + end,
                },
            };
            if self.tensors.insert(name.clone(), tensor).is_some() {
                return Err(bad(format!("the tensor {name} is in two shards")));
            }
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

    /// Keeps only the tensors whose name passes a test.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.tensors.retain(|name, _| keep(name));
    }

    /// File name for error messages.
    pub fn label(&self) -> String {
        self.files.first().map_or(String::new(), |file| file.label.clone())
    }

    /// From now on returns matrices in another precision than the file's.
    pub fn give_in(&mut self, precision: WeightPrecision) {
        self.precision = precision;
    }

    /// What [`Weights::give_in`] was asked for.
    #[cfg(all(feature = "flex", not(target_arch = "wasm32")))]
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

    /// The values in the file.
    fn values(&mut self, name: &str) -> Result<Option<Vec<f32>>> {
        if let Some(quantized) = self.kept(name, false)? {
            return Ok(Some(quantized.values()));
        }
        let Some(info) = self.tensors.get(name).cloned() else {
            return Ok(None);
        };
        self.used.insert(name.to_string());
        let bytes = self.bytes(info.span)?;
        self.decoded(name, info.dtype, info.span.file, &bytes).map(Some)
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

/// A JSON object without duplicate keys, of which readers would take different ones.
struct UniqueNames;

impl<'de> Deserialize<'de> for UniqueNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueNames)
    }
}

impl<'de> Visitor<'de> for UniqueNames {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self, A::Error> {
        let mut names = BTreeSet::new();
        while let Some((name, IgnoredAny)) = map.next_entry::<String, _>()? {
            if let Some(twice) = names.replace(name) {
                return Err(A::Error::custom(format!("the entry {twice:?} is there twice")));
            }
        }
        Ok(self)
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
