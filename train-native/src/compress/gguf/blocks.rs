//! GGUF's kinds of numbers: how many bytes hold a block, and which numbers they stand for.
//!
//! The layouts are ggml's (`ggml-common.h`, `ggml-quants.c`); tests compare every kind with
//! llama.cpp's own Python package, number by number.

use half::{bf16, f16};

/// One kind of numbers.
pub(super) struct Kind {
    /// As llama.cpp calls it.
    pub(super) name: &'static str,
    /// As a file names it.
    id: u32,
    /// Numbers in a block; a row of a tensor is made of whole blocks.
    pub(super) block: usize,
    /// Bytes of a block.
    pub(super) bytes: usize,
    /// Writes the numbers of one block.
    unpack: fn(&[u8], &mut [f32]),
}

/// The kinds that are read.
static KINDS: [Kind; 17] = [
    kind("F32", 0, 1, 4, f32_),
    kind("F16", 1, 1, 2, f16_),
    kind("Q4_0", 2, 32, 18, q4_0),
    kind("Q4_1", 3, 32, 20, q4_1),
    kind("Q5_0", 6, 32, 22, q5_0),
    kind("Q5_1", 7, 32, 24, q5_1),
    kind("Q8_0", 8, 32, 34, q8_0),
    kind("Q2_K", 10, 256, 84, q2_k),
    kind("Q3_K", 11, 256, 110, q3_k),
    kind("Q4_K", 12, 256, 144, q4_k),
    kind("Q5_K", 13, 256, 176, q5_k),
    kind("Q6_K", 14, 256, 210, q6_k),
    kind("Q8_K", 15, 256, 292, q8_k),
    kind("IQ4_NL", 20, 32, 18, iq4_nl),
    kind("IQ4_XS", 23, 256, 136, iq4_xs),
    kind("F64", 28, 1, 8, f64_),
    kind("BF16", 30, 1, 2, bf16_),
];

const fn kind(
    name: &'static str,
    id: u32,
    block: usize,
    bytes: usize,
    unpack: fn(&[u8], &mut [f32]),
) -> Kind {
    Kind { name, id, block, bytes, unpack }
}

/// Kinds that llama.cpp knows and that are not read, so that errors can name them.
const OTHERS: [(u32, &str); 17] = [
    (9, "Q8_1"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

impl Kind {
    /// The kind that a file names.
    pub(super) fn of(id: u32) -> Option<&'static Kind> {
        KINDS.iter().find(|kind| kind.id == id)
    }

    /// What to call a kind that is not read.
    pub(super) fn name_of(id: u32) -> String {
        match OTHERS.iter().find(|(other, _)| *other == id) {
            Some((_, name)) => name.to_string(),
            None => format!("of the unknown type {id}"),
        }
    }

    /// The names of all kinds that are read.
    pub(super) fn all() -> String {
        KINDS.each_ref().map(|kind| kind.name).join(", ")
    }

    /// The numbers of whole blocks.
    pub(super) fn unpack(&self, data: &[u8]) -> Vec<f32> {
        let blocks = data.chunks_exact(self.bytes);
        let mut numbers = vec![0.0; blocks.len() * self.block];
        for (block, out) in blocks.zip(numbers.chunks_exact_mut(self.block)) {
            (self.unpack)(block, out);
        }
        numbers
    }
}

fn fill(out: &mut [f32], numbers: impl Iterator<Item = f32>) {
    for (out, number) in out.iter_mut().zip(numbers) {
        *out = number;
    }
}

/// The number in half precision at a place.
fn half(block: &[u8], i: usize) -> f32 {
    f16::from_le_bytes([block[i], block[i + 1]]).to_f32()
}

fn signed(byte: u8) -> f32 {
    f32::from(byte as i8)
}

/// Codes of four bits: the lower halves of all bytes, then the upper ones.
fn halves(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().map(|byte| byte & 15).chain(bytes.iter().map(|byte| byte >> 4))
}

/// Of 256 codes of four bits the one at a place: `width` bytes hold twice as many codes, the lower
/// halves first.
fn four_bits(bytes: &[u8], i: usize, width: usize) -> u8 {
    bytes[i / (2 * width) * width + i % width] >> (i / width % 2 * 4) & 15
}

/// Of 256 codes of two bits the one at a place: 32 bytes hold 128 codes, the lowest bits first.
fn two_bits(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3
}

/// Of 256 bits in 32 bytes the one at a place, the lowest bits of all bytes first.
fn one_bit(bytes: &[u8], i: usize) -> u8 {
    bytes[i % 32] >> (i / 32) & 1
}

fn f32_(block: &[u8], out: &mut [f32]) {
    fill(out, block.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
}

fn f64_(block: &[u8], out: &mut [f32]) {
    fill(out, block.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes) as f32));
}

fn f16_(block: &[u8], out: &mut [f32]) {
    fill(out, block.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()));
}

fn bf16_(block: &[u8], out: &mut [f32]) {
    fill(out, block.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()));
}

/// A scale, 32 codes around 8.
fn q4_0(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    fill(out, halves(&block[2..]).map(|code| scale * (f32::from(code) - 8.0)));
}

/// A scale, the least number, 32 codes.
fn q4_1(block: &[u8], out: &mut [f32]) {
    let (scale, least) = (half(block, 0), half(block, 2));
    fill(out, halves(&block[4..]).map(|code| scale * f32::from(code) + least));
}

/// 32 codes of five bits: their highest bits in four bytes, then their other ones.
fn five_bits(bytes: &[u8]) -> impl Iterator<Item = u8> {
    let high = |i: usize| bytes[i / 8] >> (i % 8) & 1;
    halves(&bytes[4..]).enumerate().map(move |(i, low)| low | high(i) << 4)
}

/// A scale, 32 codes around 16.
fn q5_0(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    fill(out, five_bits(&block[2..]).map(|code| scale * (f32::from(code) - 16.0)));
}

/// A scale, the least number, 32 codes.
fn q5_1(block: &[u8], out: &mut [f32]) {
    let (scale, least) = (half(block, 0), half(block, 2));
    fill(out, five_bits(&block[4..]).map(|code| scale * f32::from(code) + least));
}

/// A scale, 32 whole numbers.
fn q8_0(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    fill(out, block[2..].iter().map(|&code| signed(code) * scale));
}

/// Of each 16 numbers a scale and a least number of four bits, 256 codes of two bits, and what both
/// are multiples of.
fn q2_k(block: &[u8], out: &mut [f32]) {
    let (scale, least) = (half(block, 80), half(block, 82));
    let (scales, codes) = block[..80].split_at(16);
    let number = |i: usize| {
        let both = scales[i / 16];
        let (by, less) = (scale * f32::from(both & 15), least * f32::from(both >> 4));
        by * f32::from(two_bits(codes, i)) - less
    };
    fill(out, (0..256).map(number));
}

/// The highest bits of 256 codes, their two lower bits, a scale of six bits of each 16, and what the
/// scales are multiples of.
fn q3_k(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 108);
    let (high, rest) = block.split_at(32);
    let (codes, scales) = rest.split_at(64);
    let number = |i: usize| {
        let group = i / 16;
        let low = scales[group % 8] >> (group / 8 * 4) & 15;
        let upper = scales[8 + group % 4] >> (group / 4 * 2) & 3;
        let by = scale * (f32::from(low | upper << 4) - 32.0);
        by * (f32::from(two_bits(codes, i) | one_bit(high, i) << 2) - 4.0)
    };
    fill(out, (0..256).map(number));
}

/// The scale and the least number, of six bits each, of 32 numbers of Q4_K and Q5_K.
fn scale_and_least(scales: &[u8], group: usize) -> (f32, f32) {
    let (scale, least) = match group {
        0..4 => (scales[group] & 63, scales[group + 4] & 63),
        _ => {
            let low = scales[group + 4];
            (low & 15 | scales[group - 4] >> 6 << 4, low >> 4 | scales[group] >> 6 << 4)
        }
    };
    (f32::from(scale), f32::from(least))
}

/// What scales and least numbers are multiples of, those of each 32 numbers, 256 codes of four bits.
fn q4_k(block: &[u8], out: &mut [f32]) {
    let (scale, least) = (half(block, 0), half(block, 2));
    let (scales, codes) = block[4..].split_at(12);
    let number = |i: usize| {
        let (by, less) = scale_and_least(scales, i / 32);
        scale * by * f32::from(four_bits(codes, i, 32)) - least * less
    };
    fill(out, (0..256).map(number));
}

/// As Q4_K, with the highest bits of 256 codes before the others.
fn q5_k(block: &[u8], out: &mut [f32]) {
    let (scale, least) = (half(block, 0), half(block, 2));
    let (scales, codes) = block[4..].split_at(12);
    let (high, codes) = codes.split_at(32);
    let number = |i: usize| {
        let (by, less) = scale_and_least(scales, i / 32);
        let code = four_bits(codes, i, 32) | one_bit(high, i) << 4;
        scale * by * f32::from(code) - least * less
    };
    fill(out, (0..256).map(number));
}

/// The four lower bits of 256 codes, their two upper bits, a scale of each 16, and what the scales are
/// multiples of.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 208);
    let (low, rest) = block.split_at(128);
    let (high, scales) = rest.split_at(64);
    let number = |i: usize| {
        let code = four_bits(low, i, 64) | two_bits(high, i) << 4;
        scale * signed(scales[i / 16]) * (f32::from(code) - 32.0)
    };
    fill(out, (0..256).map(number));
}

/// A scale in full precision, 256 whole numbers, and their sums, which products use.
fn q8_k(block: &[u8], out: &mut [f32]) {
    let scale = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    fill(out, block[4..260].iter().map(|&code| scale * signed(code)));
}

/// What the codes of IQ4_NL and IQ4_XS stand for: closer together where most weights are.
const UNEVEN: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn uneven(code: u8) -> f32 {
    f32::from(UNEVEN[usize::from(code & 15)])
}

/// A scale, 32 codes.
fn iq4_nl(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    fill(out, halves(&block[2..]).map(|code| scale * uneven(code)));
}

/// What the scales are multiples of; the upper two bits of the eight scales, and their lower four; 256
/// codes.
fn iq4_xs(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    let (low, codes) = block[4..].split_at(4);
    let number = |i: usize| {
        let group = i / 32;
        let upper = (high >> (2 * group) & 3) as u8;
        let by = f32::from(low[group / 2] >> (group % 2 * 4) & 15 | upper << 4) - 32.0;
        scale * by * uneven(four_bits(codes, i, 16))
    };
    fill(out, (0..256).map(number));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tests/fixtures/gguf.json`: blocks of every kind as llama.cpp's Python package unpacks them
    /// (`tests/reference/gguf_blocks.py`), the numbers by their bits.
    #[derive(serde::Deserialize)]
    struct Case {
        kind: String,
        id: u32,
        block: usize,
        data: String,
        bits: Vec<u32>,
    }

    #[test]
    fn every_kind_is_unpacked_as_llama_cpp_does_it() {
        let text = include_str!("../../../../tests/fixtures/gguf.json");
        let cases: Vec<Case> = serde_json::from_str(text).unwrap();
        assert_eq!(cases.len(), KINDS.len());
        for case in cases {
            let kind = Kind::of(case.id).unwrap();
            assert_eq!((kind.name, kind.block), (case.kind.as_str(), case.block));
            let digits: Vec<char> = case.data.chars().collect();
            let byte = |two: &[char]| u8::from_str_radix(&String::from_iter(two), 16).unwrap();
            let data: Vec<u8> = digits.chunks(2).map(byte).collect();
            let actual = kind.unpack(&data);
            assert_eq!(actual.len(), case.bits.len(), "{}", case.kind);
            for (i, (actual, bits)) in actual.iter().zip(case.bits).enumerate() {
                let expected = f32::from_bits(bits);
                assert!(*actual == expected, "{} at {i}: {actual}, {expected}", case.kind);
            }
        }
    }
}
