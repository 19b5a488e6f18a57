//! Reads the header of a file.

use std::collections::{BTreeMap, BTreeSet};

use safetensors::tensor::Metadata;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::QUANTIZED;
use crate::checkpoint::header::{Entry, LARGEST_HEADER, REMEDY};
use crate::folder::ReadSeek;
use crate::quant::Scheme;
use crate::{Error, Result};

/// Schemes of quantized tensors, by name.
type Schemes = BTreeMap<String, Scheme>;

/// The tensors of a file, and how some of them are quantized.
pub(in crate::checkpoint) fn read_header(
    label: &str,
    reader: &mut dyn ReadSeek,
    length: u64,
) -> Result<(Vec<Entry>, Schemes)> {
    let io = |cause| Error::Io { file: label.to_string(), cause };
    let bad = |cause: String| Error::bad_file(label, cause, REMEDY);
    let mut size = [0; 8];
    if length < 8 {
        return Err(bad(format!("truncated: {length} bytes, too short for a safetensors header")));
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
    let schemes: Schemes =
        match metadata.metadata().as_ref().and_then(|entries| entries.get(QUANTIZED)) {
            Some(text) => serde_json::from_str(text)
                .map_err(|e| bad(format!("its entry {QUANTIZED} cannot be read: {e}")))?,
            None => BTreeMap::new(),
        };
    let data = length - 8 - header;
    let mut entries = Vec::new();
    for (name, info) in metadata.tensors() {
        let (start, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        if start > end || end > data {
            return Err(bad(format!("truncated: the tensor {name} ends at byte {end} of {data}")));
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
        entries.push(Entry {
            name: name.clone(),
            dtype: info.dtype,
            shape: info.shape.clone(),
            strides: None,
            bytes: 8 + header + start..8 + header + end,
        });
    }
    Ok((entries, schemes))
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
