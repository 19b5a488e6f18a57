//! A tensor's numbers: taken over where we have the same, else unpacked and rounded.

use anyhow::{Result, bail};
use kiln_embed::checkpoint::StoredTensor;
use kiln_embed::config::ModelConfig;
use kiln_embed::quant::{Quantized, Scheme};

use super::blocks::Kind;
use crate::compress::linear_algebra::weight_error;
use crate::compress::plan::{stored, values};
use crate::compress::{Storage, StoragePlan};

/// Numbers of a block of Q8_0 and Q4_0.
const BLOCK: usize = 32;

/// A tensor as the file keeps it.
pub(super) struct Packed {
    pub(super) kind: &'static Kind,
    /// Rows before columns.
    pub(super) shape: Vec<usize>,
    pub(super) data: Vec<u8>,
}

/// A tensor with all that the file says, and as it is kept.
pub(super) struct Converted {
    pub(super) full: StoredTensor,
    pub(super) kept: StoredTensor,
    pub(super) storage: String,
    pub(super) lost: f64,
}

/// A tensor under our name and in our numbers; `plan` says in which ones where the file's have no twin.
///
/// # Errors
/// Numbers that are not finite, or that cannot be kept as the plan says.
pub(super) fn convert(
    packed: &Packed,
    name: &str,
    architecture: &str,
    config: &ModelConfig,
    plan: &StoragePlan,
) -> Result<Converted> {
    let mut shape = packed.shape.clone();
    let order = halves_apart(name, &shape, architecture, config);
    let twin = match *shape.as_slice() {
        [rows, columns] if name.ends_with("weight") => {
            same_numbers(packed.kind, &packed.data, [rows, columns], order.as_deref())?
        }
        _ => None,
    };
    if let Some(matrix) = twin {
        let storage = matrix.scheme().to_string();
        let full = StoredTensor::Full(shape, matrix.values());
        return Ok(Converted { full, kept: StoredTensor::Quantized(matrix), storage, lost: 0.0 });
    }
    let mut result = packed.kind.unpack(&packed.data);
    if let Some(i) = result.iter().position(|value| !value.is_finite()) {
        bail!("its number {i} is {}; download the file again", result[i]);
    }
    if let Some(order) = &order {
        let columns = result.len() / order.len().max(1);
        result = order
            .iter()
            .flat_map(|row| result[row * columns..][..columns].iter().copied())
            .collect();
    }
    // llama.cpp drops the rows that no position of RoBERTa uses.
    let positions = config.encoder().ok().and_then(|encoder| encoder.positions);
    if let (Some(positions), [rows, columns]) = (positions, shape.as_mut_slice())
        && name == "embeddings.position_embeddings.weight"
        && *columns == config.hidden_size
        && positions.offset <= *rows
        && *rows + positions.offset == positions.rows
    {
        result.splice(0..0, std::iter::repeat_n(0.0, positions.offset * *columns));
        *rows = positions.rows;
    }
    let storage = match packed.kind.name {
        // What the file's maker left whole stays whole.
        "F32" => Storage::F32,
        _ => plan.of(name, &shape)?,
    };
    let kept = stored(storage, &shape, &result)?;
    let lost = weight_error(&result, &values(&kept));
    let storage = match &kept {
        StoredTensor::Full(..) => "f32".to_string(),
        StoredTensor::Half(..) => "f16".to_string(),
        StoredTensor::Bf16(..) => "bf16".to_string(),
        StoredTensor::Quantized(matrix) => matrix.scheme().to_string(),
    };
    Ok(Converted { full: StoredTensor::Full(shape, result), kept, storage, lost })
}

/// The same numbers in our order, where ours can be the same: Q8_0 and Q4_0, of which a block is a
/// scale in half precision and 32 codes. `order` says which row comes where.
fn same_numbers(
    kind: &Kind,
    data: &[u8],
    [rows, columns]: [usize; 2],
    order: Option<&[usize]>,
) -> Result<Option<Quantized>> {
    let eight_bits = match kind.name {
        "Q8_0" => true,
        "Q4_0" => false,
        _ => return Ok(None),
    };
    let size = kind.bytes;
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for row in 0..rows {
        let row = order.map_or(row, |order| order[row]);
        let blocks = &data[row * (columns / BLOCK) * size..][..columns / BLOCK * size];
        for block in blocks.chunks_exact(size) {
            scales.push(half::f16::from_le_bytes([block[0], block[1]]).to_f32());
            let numbers = &block[2..];
            if eight_bits {
                codes.extend_from_slice(numbers);
                continue;
            }
            // The first sixteen numbers are in the lower halves, the others in the upper ones.
            let code = |i: usize| match i < BLOCK / 2 {
                true => numbers[i] & 15,
                false => numbers[i - BLOCK / 2] >> 4,
            };
            codes.extend((0..BLOCK / 2).map(|pair| code(2 * pair) | code(2 * pair + 1) << 4));
        }
    }
    let scheme: Scheme = match eight_bits {
        // Ours go from -127, so that they can be negated.
        true if codes.contains(&0x80) => return Ok(None),
        true => "int8:32".parse()?,
        false => "int4:32".parse()?,
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
    let row = |i: usize| {
        let (head, inside) = (i / width, i % width);
        let (half, pair) = (inside / (width / 2), inside % (width / 2));
        head * width + 2 * pair + half
    };
    Some((0..rows).map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bit_numbers_are_put_in_our_order() {
        let mut block = half::f16::from_f32(-0.5).to_le_bytes().to_vec();
        block.extend((0..16u8).map(|i| i | (15 - i) << 4));
        let matrix = same_numbers(Kind::of(2).unwrap(), &block, [1, 32], None).unwrap().unwrap();
        let expected: Vec<f32> =
            (0..16).chain((0..16).rev()).map(|code| (code as f32 - 8.0) * -0.5).collect();
        assert_eq!(matrix.values(), expected);
    }
}
