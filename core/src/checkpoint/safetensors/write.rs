//! Writes tensors, converting each to bytes only when it is written.

use std::borrow::Cow;
use std::collections::BTreeMap;

use half::{bf16, f16};
use safetensors::tensor::{Dtype, View};

use super::{QUANTIZED, SCALES, code_type};
use crate::quant::{Quantized, Scheme};
use crate::{Error, Result};

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq)]
pub enum StoredTensor {
    /// Shape and values, stored in 32 bits.
    Full(Vec<usize>, Vec<f32>),
    /// Shape and values, narrowed to 16 bits.
    Half(Vec<usize>, Vec<f32>),
    /// Shape and values, narrowed to 16 bits with the exponent of 32.
    Bf16(Vec<usize>, Vec<f32>),
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

/// A safetensors file of tensors that may be quantized, by name. Codes are stored under the
/// tensor's own name, scales under `{name}.scales`, and the metadata's entry `kiln.quantized` says
/// how to read them.
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
            StoredTensor::Bf16(shape, values) => add(name.clone(), Numbers::Bf16(values), shape)?,
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
    let json = serde_json::to_string(&schemes).map_err(Error::invalid)?;
    let quantized = (!schemes.is_empty()).then_some((QUANTIZED, json.as_str()));
    let metadata: Vec<(&str, &str)> = metadata.iter().copied().chain(quantized).collect();
    write(all, &metadata)
}

/// Numbers in their stored form.
pub(super) enum Numbers<'a> {
    Wide(&'a [f32]),
    Half(&'a [f32]),
    Bf16(&'a [f32]),
    Codes(Dtype, &'a [u8]),
}

/// A tensor whose bytes are made when they are written, so that only one tensor at a time is in
/// memory twice.
pub(super) struct Writable<'a> {
    numbers: Numbers<'a>,
    shape: Vec<usize>,
}

impl<'a> Writable<'a> {
    pub(super) fn new(numbers: Numbers<'a>, shape: Vec<usize>) -> Result<Self> {
        let count = match numbers {
            Numbers::Wide(values) | Numbers::Half(values) | Numbers::Bf16(values) => values.len(),
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
            Numbers::Bf16(_) => Dtype::BF16,
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
            Numbers::Bf16(values) => {
                values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect()
            }
            Numbers::Codes(_, codes) => Cow::Borrowed(codes),
        }
    }

    fn data_len(&self) -> usize {
        match self.numbers {
            Numbers::Wide(values) => 4 * values.len(),
            Numbers::Half(values) | Numbers::Bf16(values) => 2 * values.len(),
            Numbers::Codes(_, codes) => codes.len(),
        }
    }
}

/// A file of tensors; equal tensors give equal bytes.
pub(super) fn write(
    tensors: Vec<(String, Writable<'_>)>,
    metadata: &[(&str, &str)],
) -> Result<Vec<u8>> {
    let entries: BTreeMap<&str, &str> = metadata.iter().copied().collect();
    let owned = entries.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let mut bytes = safetensors::serialize(tensors, Some(owned)).map_err(Error::invalid)?;
    // The crate writes metadata in a hash map's order, which changes from run to run; this is the
    // same text in a fixed order.
    let sorted = serde_json::to_vec(&entries).map_err(Error::invalid)?;
    const BEFORE: &[u8] = b"{\"__metadata__\":";
    if let Some((before, place)) = bytes[8..].split_at_mut_checked(BEFORE.len())
        && before == BEFORE
        && place.len() > sorted.len()
        && place[sorted.len() - 1] == b'}'
    {
        place[..sorted.len()].copy_from_slice(&sorted);
    }
    Ok(bytes)
}
