//! Safetensors files, single or sharded, read tensor by tensor.
//!
//! The header is parsed and validated by the `safetensors` crate; what is added here is that
//! no size in the file is believed before it is compared with the file's real length, and that
//! one tensor at a time is in memory.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, SeekFrom};

use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata, View};
use serde_json::Value;

use super::folder::{Folder, ReadSeek, read_text};
use crate::quant::{Number, Quantized, Scheme};
use crate::{Error, Result};

/// Largest header that is read, as in the reference implementation.
const LARGEST_HEADER: u64 = 100_000_000;
const REMEDY: &str = "download or copy the file again";

/// Shape and type of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Element type as safetensors calls it.
    pub dtype: Dtype,
    /// How its numbers are kept, where they are quantized; the shape is then that of the numbers.
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

/// What stands behind the name of a quantized tensor in the name of its scales.
const SCALES: &str = ".scales";
/// The entry of a file's metadata that says how its tensors are quantized: a JSON object from
/// names to schemes.
const QUANTIZED: &str = "kiln.quantized";

struct File {
    label: String,
    reader: Box<dyn ReadSeek>,
}

/// The tensors of a checkpoint, by name.
pub struct Weights {
    files: Vec<File>,
    tensors: BTreeMap<String, TensorInfo>,
    used: BTreeSet<String>,
}

impl Weights {
    /// Opens `{stem}.safetensors`, or the shards that `{stem}.safetensors.index.json` lists.
    ///
    /// # Errors
    /// Neither is there, or a file is truncated or corrupt.
    pub fn open(folder: &dyn Folder, stem: &str) -> Result<Self> {
        let mut weights =
            Self { files: Vec::new(), tensors: BTreeMap::new(), used: BTreeSet::new() };
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
        let value: Value =
            serde_json::from_slice(text).map_err(|e| bad(format!("not valid JSON: {e}")))?;
        let map = value
            .get("weight_map")
            .and_then(Value::as_object)
            .ok_or_else(|| bad("the key weight_map is missing".into()))?;
        let mut shards = BTreeSet::new();
        for (tensor, shard) in map {
            let shard =
                shard.as_str().ok_or_else(|| bad(format!("the shard of {tensor} is no string")))?;
            // A shard lies in the index's own folder; anything else could name any file.
            if shard.contains(['/', '\\']) || shard.contains("..") {
                return Err(bad(format!("the shard of {tensor} is {shard:?}, outside the folder")));
            }
            let parent =
                stem.rsplit_once('/').map_or(String::new(), |(parent, _)| format!("{parent}/"));
            shards.insert(format!("{parent}{shard}"));
        }
        for shard in &shards {
            if !self.add(folder, shard)? {
                return Err(bad(format!("the shard {shard} is not there")));
            }
        }
        match map.keys().find(|tensor| !self.tensors.contains_key(*tensor)) {
            Some(tensor) => Err(bad(format!("the tensor {tensor} is in no shard"))),
            None => Ok(()),
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
        let mut size = [0; 8];
        if length < 8 {
            return Err(bad(format!(
                "truncated: {length} bytes, too short for a safetensors header"
            )));
        }
        reader.read_exact(&mut size).map_err(io)?;
        let header = u64::from_le_bytes(size);
        if header > LARGEST_HEADER || header > length - 8 {
            return Err(bad(format!(
                "truncated or not safetensors: the header says {header} bytes, the file has {length}"
            )));
        }
        let mut text = vec![0; header as usize];
        reader.read_exact(&mut text).map_err(io)?;
        let metadata: Metadata = serde_json::from_slice(&text)
            .map_err(|e| bad(format!("corrupt safetensors header: {e}")))?;
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
        for (name, scheme) in schemes {
            self.mark_quantized(&name, scheme).map_err(bad)?;
        }
        self.files.push(File { label, reader });
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

    /// Forgets all tensors but those that a name test keeps.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.tensors.retain(|name, _| keep(name));
    }

    /// File name for error messages.
    pub fn label(&self) -> String {
        self.files.first().map_or(String::new(), |file| file.label.clone())
    }

    /// Values of a tensor as f32, row-major; `None` where there is no such tensor.
    ///
    /// # Errors
    /// Unreadable, or not of a floating-point type.
    pub fn read(&mut self, name: &str) -> Result<Option<Vec<f32>>> {
        if let Some(quantized) = self.read_quantized(name)? {
            return Ok(Some(quantized.values()));
        }
        let Some(info) = self.tensors.get(name).cloned() else {
            return Ok(None);
        };
        self.used.insert(name.to_string());
        let bytes = self.bytes(info.span)?;
        self.decoded(name, info.dtype, info.span.file, &bytes).map(Some)
    }

    /// A quantized tensor as it is; `None` where there is no such tensor, or where it is not
    /// quantized.
    ///
    /// # Errors
    /// Unreadable, or damaged.
    pub fn read_quantized(&mut self, name: &str) -> Result<Option<Quantized>> {
        let Some(TensorInfo { shape, scheme: Some(scheme), scales: Some(scales), span, .. }) =
            self.tensors.get(name).cloned()
        else {
            return Ok(None);
        };
        self.used.insert(name.to_string());
        let codes = self.bytes(span)?;
        let (place, dtype) = scales;
        let bytes = self.bytes(place)?;
        let scales = self.decoded(&format!("{name}{SCALES}"), dtype, place.file, &bytes)?;
        let quantized = Quantized::from_parts(scheme, [shape[0], shape[1]], codes, scales);
        quantized.map(Some).map_err(|error| {
            let label = self.files[span.file].label.clone();
            Error::bad_file(label, format!("the tensor {name}: {error}"), REMEDY)
        })
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

/// Type under which codes are kept.
fn code_type(number: Number) -> Dtype {
    match number {
        Number::Int8 => Dtype::I8,
        // Two a byte.
        Number::Int4 => Dtype::U8,
        Number::Fp8E4M3 => Dtype::F8_E4M3,
        Number::Fp8E5M2 => Dtype::F8_E5M2,
    }
}

/// Little-endian numbers as f32; of the integers those that fixtures use.
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

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq)]
pub enum StoredTensor {
    /// Numbers of 32 bits: shape and values.
    Full(Vec<usize>, Vec<f32>),
    /// Numbers that are narrowed to 16 bits: shape and values.
    Half(Vec<usize>, Vec<f32>),
    /// A quantized matrix.
    Quantized(Quantized),
}

/// A safetensors file of f32 tensors: `(name, shape, values)`, with free-form metadata.
///
/// # Errors
/// A shape that does not fit its values.
pub fn write_safetensors(
    tensors: &[(String, Vec<usize>, Vec<f32>)],
    metadata: &[(&str, &str)],
) -> Result<Vec<u8>> {
    let tensors = tensors
        .iter()
        .map(|(name, shape, values)| {
            Ok((name.clone(), Writable::new(Numbers::Wide(values), shape.clone())?))
        })
        .collect::<Result<_>>()?;
    write(tensors, metadata)
}

/// A safetensors file of tensors that may be quantized, by name. Codes stand under the tensor's own
/// name, scales under `{name}.scales`, and the metadata's entry `kiln.quantized` says how to read them.
///
/// # Errors
/// A shape that does not fit its values.
pub fn write_tensors(
    tensors: &[(String, StoredTensor)],
    metadata: &[(&str, &str)],
) -> Result<Vec<u8>> {
    let mut all: Vec<(String, Writable<'_>)> = Vec::new();
    let mut schemes: BTreeMap<&str, Scheme> = BTreeMap::new();
    for (name, tensor) in tensors {
        let mut add = |name: String, numbers, shape: &[usize]| {
            Writable::new(numbers, shape.to_vec()).map(|tensor| all.push((name, tensor)))
        };
        match tensor {
            StoredTensor::Full(shape, values) => add(name.clone(), Numbers::Wide(values), shape)?,
            StoredTensor::Half(shape, values) => add(name.clone(), Numbers::Half(values), shape)?,
            StoredTensor::Quantized(matrix) => {
                let (scheme, [rows, columns]) = (matrix.scheme(), matrix.shape());
                schemes.insert(name, scheme);
                let stored = columns * scheme.number.bits() / 8;
                let codes = Numbers::Codes(code_type(scheme.number), matrix.codes());
                add(name.clone(), codes, &[rows, stored])?;
                let scales = match matrix.has_narrow_scales() {
                    true => Numbers::Half(matrix.scales()),
                    false => Numbers::Wide(matrix.scales()),
                };
                let shape = [rows, columns / scheme.block_in(columns)];
                add(format!("{name}{SCALES}"), scales, &shape)?;
            }
        }
    }
    let schemes = serde_json::to_string(&schemes).map_err(Error::invalid)?;
    let metadata: Vec<(&str, &str)> =
        metadata.iter().copied().chain([(QUANTIZED, schemes.as_str())]).collect();
    write(all, &metadata)
}

/// Numbers as a file is to have them.
enum Numbers<'a> {
    Wide(&'a [f32]),
    Half(&'a [f32]),
    Codes(Dtype, &'a [u8]),
}

/// A tensor whose bytes are made when they are written, so that one tensor at a time is there twice.
struct Writable<'a> {
    numbers: Numbers<'a>,
    shape: Vec<usize>,
}

impl<'a> Writable<'a> {
    fn new(numbers: Numbers<'a>, shape: Vec<usize>) -> Result<Self> {
        let count = match numbers {
            Numbers::Wide(values) | Numbers::Half(values) => values.len(),
            Numbers::Codes(_, codes) => codes.len(),
        };
        if count != shape.iter().product::<usize>() {
            return Err(Error::invalid(format!("{count} numbers are no tensor {shape:?}")));
        }
        Ok(Self { numbers, shape })
    }
}

impl View for Writable<'_> {
    fn dtype(&self) -> Dtype {
        match self.numbers {
            Numbers::Wide(_) => Dtype::F32,
            Numbers::Half(_) => Dtype::F16,
            Numbers::Codes(dtype, _) => dtype,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self.numbers {
            Numbers::Wide(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Numbers::Half(values) => {
                values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect()
            }
            Numbers::Codes(_, codes) => Cow::Borrowed(codes),
        }
    }

    fn data_len(&self) -> usize {
        match self.numbers {
            Numbers::Wide(values) => 4 * values.len(),
            Numbers::Half(values) => 2 * values.len(),
            Numbers::Codes(_, codes) => codes.len(),
        }
    }
}

fn write(tensors: Vec<(String, Writable<'_>)>, metadata: &[(&str, &str)]) -> Result<Vec<u8>> {
    let metadata =
        metadata.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    safetensors::serialize(tensors, Some(metadata)).map_err(Error::invalid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Files;
    use proptest::prelude::*;

    fn folder(bytes: Vec<u8>) -> Files {
        Files([("model.safetensors".to_string(), bytes.into())].into())
    }

    fn sample() -> Vec<u8> {
        let tensor = ("w".to_string(), vec![2, 2], vec![1.0, -2.0, 3.5, 0.0]);
        write_safetensors(&[tensor], &[("format", "pt")]).unwrap()
    }

    #[test]
    fn reads_what_it_wrote() {
        let mut weights = Weights::open(&folder(sample()), "model").unwrap();
        assert_eq!(weights.tensors()["w"].shape, [2, 2]);
        assert_eq!(weights.read("w").unwrap().unwrap(), [1.0, -2.0, 3.5, 0.0]);
        assert_eq!(weights.read("v").unwrap(), None);
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

    #[test]
    fn a_promised_terabyte_is_refused_before_it_is_allocated() {
        let mut bytes = 1_000_000_000_000u64.to_le_bytes().to_vec();
        bytes.extend(b"{}");
        let error = Weights::open(&folder(bytes), "model").err().unwrap().to_string();
        assert!(error.contains("1000000000000"), "{error}");

        let header =
            br#"{"w":{"dtype":"F32","shape":[1000000,1000000],"data_offsets":[0,4000000000000]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        assert!(Weights::open(&folder(bytes), "model").is_err());
    }

    #[test]
    fn quantized_tensors_are_read_back() {
        let weights: Vec<f32> = (0..256).map(|at| (at as f32 * 0.3).sin()).collect();
        for scheme in ["int8:32", "int4:64", "int4:channel", "fp8-e4m3", "fp8-e5m2:32"] {
            let matrix = Quantized::round(&weights, [4, 64], scheme.parse().unwrap()).unwrap();
            let tensors = [
                ("w".to_string(), StoredTensor::Quantized(matrix.clone())),
                ("b".to_string(), StoredTensor::Full(vec![2], vec![1.0, 2.0])),
                ("h".to_string(), StoredTensor::Half(vec![1], vec![0.5])),
            ];
            let bytes = write_tensors(&tensors, &[("format", "pt")]).unwrap();
            let mut read = Weights::open(&folder(bytes.clone()), "model").unwrap();
            assert_eq!(read.tensors().keys().collect::<Vec<_>>(), ["b", "h", "w"]);
            assert_eq!(read.tensors()["w"].shape, [4, 64]);
            assert_eq!(read.read("w").unwrap().unwrap(), matrix.values());
            assert_eq!(read.read_quantized("w").unwrap(), Some(matrix));
            assert_eq!(read.read_quantized("b").unwrap(), None);
            assert_eq!(read.read("h").unwrap().unwrap(), [0.5]);
        }
    }

    #[test]
    fn schemes_that_do_not_fit_their_tensors_are_refused() {
        let tensors = || {
            let codes = Writable::new(Numbers::Codes(Dtype::I8, &[1; 128]), vec![2, 64]).unwrap();
            let scales = Writable::new(Numbers::Half(&[0.0; 4]), vec![2, 2]).unwrap();
            vec![("w".to_string(), codes), ("w.scales".to_string(), scales)]
        };
        let open = |scheme: &str| {
            let bytes = write(tensors(), &[(QUANTIZED, scheme)]).unwrap();
            Weights::open(&folder(bytes), "model").map(drop)
        };
        open(r#"{"w":"int8:32"}"#).unwrap();
        for wrong in [
            r#"{"w":"int8:64"}"#,
            r#"{"w":"int4:32"}"#,
            r#"{"w":"fp8-e4m3:32"}"#,
            r#"{"w":"int3:32"}"#,
            r#"{"v":"int8:32"}"#,
            "no JSON",
        ] {
            let error = open(wrong).unwrap_err().to_string();
            assert!(error.starts_with("model/model.safetensors"), "{error}");
        }
    }

    #[test]
    fn every_truncation_is_an_error() {
        let whole = sample();
        for length in 0..whole.len() {
            let result = Weights::open(&folder(whole[..length].to_vec()), "model");
            assert!(result.is_err(), "{length} of {} bytes were accepted", whole.len());
        }
    }

    #[test]
    fn shards_stay_in_their_folder() {
        let index = br#"{"weight_map":{"w":"../../etc/passwd"}}"#.to_vec();
        let files = Files([("model.safetensors.index.json".to_string(), index.into())].into());
        assert!(
            Weights::open(&files, "model")
                .err()
                .unwrap()
                .to_string()
                .contains("outside the folder")
        );
    }

    proptest! {
        #[test]
        fn flipped_bytes_never_panic(at in 0usize..100, to in any::<u8>()) {
            let mut bytes = sample();
            let at = at % bytes.len();
            bytes[at] = to;
            if let Ok(mut weights) = Weights::open(&folder(bytes), "model") {
                let names: Vec<String> = weights.tensors().keys().cloned().collect();
                for name in names {
                    let _ = weights.read(&name);
                }
            }
        }

        #[test]
        fn any_header_never_panics(header in "\\PC{0,80}", data in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend(header.as_bytes());
            bytes.extend(data);
            let _ = Weights::open(&folder(bytes), "model");
        }

        #[test]
        fn any_index_never_panics(index in proptest::collection::vec(any::<u8>(), 0..80)) {
            let files = Files([("model.safetensors.index.json".to_string(), index.into())].into());
            prop_assert!(Weights::open(&files, "model").is_err());
        }
    }
}
