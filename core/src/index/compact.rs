//! Vectors in one byte or one bit a dimension, and search among them.
//!
//! A row in int8 is the vector times `127 / max |x|`, rounded, with that scale beside it. A row in
//! bits is the signs (1 where `x > 0`), as `numpy.packbits` and sentence-transformers'
//! `quantize_embeddings` have them. Bits are compared by Hamming distance; the best of them can be
//! scored again against the query's own numbers (Yamada et al., arXiv:2106.00882).

use std::collections::BinaryHeap;
use std::fmt::Display;

use multiversion::multiversion;
use sha2::{Digest as _, Sha256};

use super::{Hit, check_length, dot, offer};
use crate::{Error, Result};

/// How a vector is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IndexPrecision {
    /// Four bytes a dimension.
    F32,
    /// One byte a dimension, and four bytes for the scale.
    Int8,
    /// One bit a dimension; the best are scored again with the query's own numbers.
    Binary,
    /// One bit a dimension to find candidates, and int8 to score them again.
    BinaryInt8,
}

impl IndexPrecision {
    /// All of them.
    pub const ALL: [IndexPrecision; 4] = [Self::F32, Self::Int8, Self::Binary, Self::BinaryInt8];

    /// Name on command lines and in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Int8 => "int8",
            Self::Binary => "binary",
            Self::BinaryInt8 => "binary+int8",
        }
    }

    /// The precision of a name.
    ///
    /// # Errors
    /// An unknown name; the error lists the known ones.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.into_iter().map(Self::name).collect();
            Error::invalid(format!("unknown precision {name:?}; known are {}", known.join(", ")))
        })
    }

    /// Bytes per vector.
    pub fn bytes(self, dim: usize) -> usize {
        let words = 8 * dim.div_ceil(64);
        match self {
            Self::F32 => 4 * dim,
            Self::Int8 => dim + 4,
            Self::Binary => words,
            Self::BinaryInt8 => words + dim + 4,
        }
    }
}

const MAGIC: [u8; 4] = *b"KIDX";
const INDEX_VERSION: u32 = 2;
/// Bytes of the header, the same in all versions.
const HEADER: usize = 24;
/// Bytes of the sum that follows it since version 2.
const SUM: usize = 32;
/// Most dimensions of a vector: the sum of so many products of bytes fits 32 bits.
const LARGEST_WIDTH: usize = 1 << 16;

/// Rows of one byte a dimension.
#[derive(Debug, Clone, Default)]
struct Bytes {
    values: Vec<i8>,
    scales: Vec<f32>,
}

/// Rows of one bit a dimension, in words of 64.
#[derive(Debug, Clone, Default)]
struct Bits {
    words: Vec<u64>,
}

/// Unit vectors in memory, in a compact form, and exact search over that form.
#[derive(Debug, Clone)]
pub struct Index {
    dim: usize,
    precision: IndexPrecision,
    rows: usize,
    floats: Vec<f32>,
    bytes: Bytes,
    bits: Bits,
}

/// The vector in int8 (`x * 127 / max |x|`, rounded), as an index keeps it, without its scale: of the length of both
/// vectors a cosine takes no account ([`cosine_int8`](super::cosine_int8)).
pub fn quantize_int8(vector: &[f32]) -> Vec<i8> {
    to_bytes(vector).0.collect()
}

/// The vector in int8, and its scale.
fn to_bytes(vector: &[f32]) -> (impl Iterator<Item = i8>, f32) {
    let largest = vector.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let scale = if largest > 0.0 { largest / 127.0 } else { 1.0 };
    (vector.iter().map(move |x| (x / scale).round() as i8), scale)
}

/// The signs, the first dimension in the lowest bit.
fn to_bits(vector: &[f32]) -> impl Iterator<Item = u64> {
    vector.chunks(64).map(|chunk| {
        let bit = |(i, x): (usize, &f32)| u64::from(*x > 0.0) << i;
        chunk.iter().enumerate().map(bit).sum()
    })
}

/// Inner product of bytes.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn dot_bytes(a: &[i8], b: &[i8]) -> i32 {
    a.iter().zip(b).map(|(x, y)| i32::from(i16::from(*x) * i16::from(*y))).sum()
}

/// Number of different bits.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx512vpopcntdq",
    "x86_64+popcnt"
))]
fn hamming(a: &[u64], b: &[u64]) -> u32 {
    a.iter().zip(b).map(|(x, y)| (x ^ y).count_ones()).sum()
}

/// SHA-256 of an index's header and rows.
fn sum(header: &[u8], rows: &[u8]) -> [u8; SUM] {
    Sha256::new().chain_update(header).chain_update(rows).finalize().into()
}

/// The k best of some scored rows.
fn best(k: usize, scored: impl Iterator<Item = Hit>) -> Vec<Hit> {
    // Nothing is reserved for k, which may be any number.
    let mut heap = BinaryHeap::new();
    scored.for_each(|hit| offer(&mut heap, k, hit));
    heap.into_sorted_vec()
}

impl Index {
    /// An index without rows.
    ///
    /// # Errors
    /// A width of 0, or of more dimensions than any model has.
    pub fn new(dim: usize, precision: IndexPrecision) -> Result<Self> {
        if !(1..=LARGEST_WIDTH).contains(&dim) {
            return Err(Error::invalid(format!(
                "an index takes vectors of 1 to {LARGEST_WIDTH} dimensions, not {dim}"
            )));
        }
        let (floats, bytes, bits) = Default::default();
        Ok(Self { dim, precision, rows: 0, floats, bytes, bits })
    }

    /// Numbers of a vector.
    pub fn dimensions(&self) -> usize {
        self.dim
    }

    /// How vectors are stored.
    pub fn precision(&self) -> IndexPrecision {
        self.precision
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Memory of the rows, in bytes.
    pub fn bytes(&self) -> usize {
        self.rows * self.precision.bytes(self.dim)
    }

    /// Checks that a vector can be a row or a query; `what` names it in the error.
    ///
    /// # Errors
    /// Another width, numbers that are not finite, or a vector of length 0.
    pub fn check(&self, vector: &[f32], what: impl Display) -> Result<()> {
        if vector.len() != self.dim {
            return Err(Error::invalid(format!(
                "{what} has {} dimensions, the index has {}",
                vector.len(),
                self.dim
            )));
        }
        check_length(vector, what)
    }

    /// Adds a row.
    ///
    /// # Errors
    /// As [`Index::check`]; the error has the row's number.
    pub fn push(&mut self, vector: &[f32]) -> Result<()> {
        self.check(vector, format_args!("row {}", self.rows))?;
        if self.precision == IndexPrecision::F32 {
            self.floats.extend_from_slice(vector);
        }
        if matches!(self.precision, IndexPrecision::Int8 | IndexPrecision::BinaryInt8) {
            let (values, scale) = to_bytes(vector);
            self.bytes.values.extend(values);
            self.bytes.scales.push(scale);
        }
        if matches!(self.precision, IndexPrecision::Binary | IndexPrecision::BinaryInt8) {
            self.bits.words.extend(to_bits(vector));
        }
        self.rows += 1;
        Ok(())
    }

    /// Removes a row; the last row takes its place.
    ///
    /// # Errors
    /// No such row.
    pub fn swap_remove(&mut self, row: usize) -> Result<()> {
        if row >= self.rows {
            return Err(Error::invalid(format!("no row {row} in an index of {} rows", self.rows)));
        }
        fn remove<T: Copy>(values: &mut Vec<T>, row: usize, width: usize) {
            if let Some(last) = values.len().checked_sub(width) {
                values.copy_within(last.., row * width);
                values.truncate(last);
            }
        }
        remove(&mut self.floats, row, self.dim);
        remove(&mut self.bytes.values, row, self.dim);
        remove(&mut self.bytes.scales, row, 1);
        remove(&mut self.bits.words, row, self.dim.div_ceil(64));
        self.rows -= 1;
        Ok(())
    }

    /// The vector of a row at its stored precision; in the binary form its signs divided by the
    /// root of the width, so that its length is 1.
    ///
    /// # Errors
    /// No such row.
    pub fn vector(&self, row: usize) -> Result<Vec<f32>> {
        if row >= self.rows {
            return Err(Error::invalid(format!("no row {row} in an index of {} rows", self.rows)));
        }
        let numbers = row * self.dim..(row + 1) * self.dim;
        Ok(match self.precision {
            IndexPrecision::F32 => self.floats[numbers].to_vec(),
            IndexPrecision::Int8 | IndexPrecision::BinaryInt8 => {
                let scale = self.bytes.scales[row];
                self.bytes.values[numbers].iter().map(|&value| f32::from(value) * scale).collect()
            }
            IndexPrecision::Binary => {
                let words = &self.bits.words[row * self.dim.div_ceil(64)..];
                let one = 1.0 / (self.dim as f32).sqrt();
                let bit = |i: usize| if words[i / 64] >> (i % 64) & 1 == 1 { one } else { -one };
                (0..self.dim).map(bit).collect()
            }
        })
    }

    /// The index as bytes, for [`Index::from_bytes`]: a header of 24 bytes (`KIDX`, version,
    /// precision, width as u32, rows as u64), the SHA-256 of the header and of what follows the
    /// sum, then numbers, int8 values, their scales, and words of bits, as the precision requires;
    /// all little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + SUM + self.bytes());
        bytes.extend(MAGIC);
        bytes.extend(INDEX_VERSION.to_le_bytes());
        bytes.extend((self.precision as u32).to_le_bytes());
        bytes.extend((self.dim as u32).to_le_bytes());
        bytes.extend((self.rows as u64).to_le_bytes());
        bytes.extend([0; SUM]);
        bytes.extend(self.floats.iter().flat_map(|value| value.to_le_bytes()));
        bytes.extend(self.bytes.values.iter().flat_map(|value| value.to_le_bytes()));
        bytes.extend(self.bytes.scales.iter().flat_map(|value| value.to_le_bytes()));
        bytes.extend(self.bits.words.iter().flat_map(|value| value.to_le_bytes()));
        let sum = sum(&bytes[..HEADER], &bytes[HEADER + SUM..]);
        bytes[HEADER..HEADER + SUM].copy_from_slice(&sum);
        bytes
    }

    /// Reads what [`Index::to_bytes`] wrote; version 1 had no sum.
    ///
    /// # Errors
    /// Bytes that are not an index, of a later version, cut short, damaged, or with rows that
    /// [`Index::push`] refuses.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let wrong = |what: &str| Error::bad_file("the index", what, "build the index again");
        let (header, mut rest) =
            bytes.split_at_checked(HEADER).ok_or_else(|| wrong("is too short for an index"))?;
        let word = |i: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&header[i..i + 4]);
            u32::from_le_bytes(word)
        };
        if header[..4] != MAGIC {
            return Err(wrong("does not begin as an index does"));
        }
        match word(4) {
            1 => {}
            INDEX_VERSION => {
                let (kept, after) =
                    rest.split_at_checked(SUM).ok_or_else(|| wrong("is too short for an index"))?;
                if sum(header, after)[..] != *kept {
                    return Err(wrong("is damaged: it is not what was written"));
                }
                rest = after;
            }
            later => {
                let known = format!("has version {later}, and {INDEX_VERSION} is the last known");
                return Err(wrong(&known));
            }
        }
        let precision = IndexPrecision::ALL
            .into_iter()
            .find(|&precision| precision as u32 == word(8))
            .ok_or_else(|| wrong(&format!("has unknown precision {}", word(8))))?;
        let mut index = Self::new(word(12) as usize, precision)
            .map_err(|_| wrong(&format!("says that its vectors have {} dimensions", word(12))))?;
        let rows = u64::from(word(16)) | u64::from(word(20)) << 32;
        let whole = usize::try_from(rows)
            .ok()
            .and_then(|rows| rows.checked_mul(precision.bytes(index.dim)));
        if whole != Some(rest.len()) {
            return Err(wrong(&format!("says {rows} rows and has {} bytes of them", rest.len())));
        }
        index.rows = rows as usize;
        let mut take = |count: usize| {
            let (taken, after) = rest.split_at(count);
            rest = after;
            taken
        };
        let floats = |bytes: &[u8]| -> Vec<f32> {
            bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        };
        if precision == IndexPrecision::F32 {
            index.floats = floats(take(index.rows * index.dim * 4));
        }
        if matches!(precision, IndexPrecision::Int8 | IndexPrecision::BinaryInt8) {
            index.bytes.values =
                take(index.rows * index.dim).iter().map(|&byte| byte as i8).collect();
            index.bytes.scales = floats(take(index.rows * 4));
        }
        if matches!(precision, IndexPrecision::Binary | IndexPrecision::BinaryInt8) {
            let words = take(index.rows * index.dim.div_ceil(64) * 8).as_chunks::<8>().0;
            index.bits.words = words.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        }
        match index.first_wrong_row() {
            None => Ok(index),
            Some(row) => Err(wrong(&format!("has a row {row} that no vector gives"))),
        }
    }

    /// The first row that no vector could have produced: not finite, too large, all 0, or with bits
    /// beyond the width.
    fn first_wrong_row(&self) -> Option<usize> {
        // Bits beyond the last dimension would count in every distance.
        let has_more_bits = |row: &[u64]| match (self.dim % 64, row.last()) {
            (used @ 1.., Some(last)) => last >> used != 0,
            _ => false,
        };
        let has_no_length = |(values, scale): (&[i8], &f32)| {
            let length = (dot_bytes(values, values) as f32).sqrt() * scale;
            !(*scale > 0.0 && length > 0.0 && length.is_finite())
        };
        let wrong = [
            self.floats.chunks_exact(self.dim).position(|row| check_length(row, "").is_err()),
            self.bytes
                .values
                .chunks_exact(self.dim)
                .zip(&self.bytes.scales)
                .position(has_no_length),
            self.bits.words.chunks_exact(self.dim.div_ceil(64)).position(has_more_bits),
        ];
        wrong.into_iter().flatten().min()
    }

    /// The k rows with the largest inner products, best first. `rescore` times k candidates of the
    /// binary forms are scored again: by the query's numbers against the signs (divided by the root
    /// of the width, which approximates a cosine), or against the int8 rows.
    ///
    /// # Errors
    /// As [`Index::check`].
    pub fn search(&self, query: &[f32], k: usize, rescore: usize) -> Result<Vec<Hit>> {
        self.check(query, "the query")?;
        let candidates = k.saturating_mul(rescore.max(1));
        Ok(match self.precision {
            IndexPrecision::F32 => {
                let rows = self.floats.chunks_exact(self.dim).enumerate();
                best(k, rows.map(|(row, vector)| Hit { row, score: dot(query, vector) }))
            }
            IndexPrecision::Int8 => self.by_bytes(query, 0..self.rows, k),
            IndexPrecision::Binary => {
                let root = (self.dim as f32).sqrt();
                let signed = |hit: Hit| Hit { score: self.signed(query, hit.row) / root, ..hit };
                best(k, self.by_bits(query, candidates).into_iter().map(signed))
            }
            IndexPrecision::BinaryInt8 => {
                let rows = self.by_bits(query, candidates);
                self.by_bytes(query, rows.into_iter().map(|hit| hit.row), k)
            }
        })
    }

    fn by_bytes(&self, query: &[f32], rows: impl Iterator<Item = usize>, k: usize) -> Vec<Hit> {
        let (values, scale) = to_bytes(query);
        let query: Vec<i8> = values.collect();
        best(
            k,
            rows.map(|row| {
                let bytes = &self.bytes.values[row * self.dim..][..self.dim];
                let sum = dot_bytes(&query, bytes) as f32;
                Hit { row, score: sum * scale * self.bytes.scales[row] }
            }),
        )
    }

    fn words(&self, row: usize) -> &[u64] {
        let words = self.dim.div_ceil(64);
        &self.bits.words[row * words..][..words]
    }

    fn by_bits(&self, query: &[f32], k: usize) -> Vec<Hit> {
        let query: Vec<u64> = to_bits(query).collect();
        let score = |row| Hit { row, score: -(hamming(&query, self.words(row)) as f32) };
        best(k, (0..self.rows).map(score))
    }

    /// Sum of the query's numbers, each with the row's sign.
    fn signed(&self, query: &[f32], row: usize) -> f32 {
        let words = query.chunks(64).zip(self.words(row));
        words
            .map(|(numbers, word)| {
                let signed = |(i, x): (usize, &f32)| if word >> i & 1 == 1 { *x } else { -*x };
                numbers.iter().enumerate().map(signed).sum::<f32>()
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vectors(rows: usize, dim: usize) -> impl Strategy<Value = Vec<Vec<f32>>> {
        proptest::collection::vec(proptest::collection::vec(-1.0f32..1.0, dim), rows)
    }

    fn index(rows: &[Vec<f32>], precision: IndexPrecision) -> Index {
        let mut index = Index::new(rows[0].len(), precision).unwrap();
        rows.iter().for_each(|row| index.push(row).unwrap());
        index
    }

    proptest! {
        #[test]
        fn bytes_are_near_and_ranked(rows in vectors(30, 37), query in vectors(1, 37), k in 0usize..9) {
            let hits = index(&rows, IndexPrecision::Int8).search(&query[0], k, 1).unwrap();
            prop_assert_eq!(hits.len(), k);
            prop_assert!(hits.is_sorted_by(|a, b| a.score >= b.score));
            for hit in hits {
                // Half a step a dimension on each side.
                prop_assert!((hit.score - dot(&rows[hit.row], &query[0])).abs() < 37.0 / 127.0);
            }
        }

        #[test]
        fn bits_are_signs(rows in vectors(20, 70), query in vectors(1, 70)) {
            let index = index(&rows, IndexPrecision::Binary);
            let differ = |row: &Vec<f32>| {
                row.iter().zip(&query[0]).filter(|(a, b)| (**a > 0.0) != (**b > 0.0)).count()
            };
            for hit in index.by_bits(&query[0], 20) {
                prop_assert_eq!(-hit.score as usize, differ(&rows[hit.row]));
            }
            // All rows scored again: the order is that of the signed sums.
            let signed = |row: &Vec<f32>| -> f32 {
                row.iter().zip(&query[0]).map(|(a, b)| if *a > 0.0 { *b } else { -*b }).sum()
            };
            let hits = index.search(&query[0], 4, 5).unwrap();
            let most = rows.iter().map(signed).fold(f32::MIN, f32::max);
            prop_assert!((hits[0].score * 70f32.sqrt() - most).abs() < 1e-4);
        }

        #[test]
        fn an_index_is_read_as_it_was_written(
            rows in vectors(7, 70), query in vectors(1, 70), gone in 0usize..7,
            precision in prop_oneof![
                Just(IndexPrecision::F32), Just(IndexPrecision::Int8), Just(IndexPrecision::Binary), Just(IndexPrecision::BinaryInt8)
            ],
        ) {
            let mut index = index(&rows, precision);
            index.swap_remove(gone).unwrap();
            let mut left = rows.clone();
            left.swap_remove(gone);
            let expected = self::index(&left, precision).search(&query[0], 6, 6).unwrap();
            let bytes = index.to_bytes();
            prop_assert_eq!(bytes.len(), HEADER + SUM + index.bytes());
            let read = Index::from_bytes(&bytes).unwrap();
            prop_assert_eq!(&read.search(&query[0], 6, 6).unwrap(), &expected);
            prop_assert_eq!(index.search(&query[0], 6, 6).unwrap(), expected.clone());
            for (row, vector) in left.iter().enumerate() {
                // The score of a row is what its kept vector gives, but that int8 rounds the query.
                let kept = index.vector(row).unwrap();
                let score = expected.iter().find(|hit| hit.row == row).unwrap().score;
                prop_assert!((dot(&kept, &query[0]) - score).abs() < 70.0 / 254.0 + 1e-3);
                prop_assert_eq!(kept.len(), vector.len());
            }
            prop_assert!(index.vector(6).is_err());
            for cut in [0, 3, HEADER, bytes.len() - 1] {
                prop_assert!(Index::from_bytes(&bytes[..cut]).is_err());
            }
            for i in (0..bytes.len()).step_by(13) {
                let mut damaged = bytes.clone();
                damaged[i] ^= 1;
                prop_assert!(Index::from_bytes(&damaged).is_err(), "{}", i);
            }
            // The first version, which has no sum.
            let mut first = bytes;
            first.drain(HEADER..HEADER + SUM);
            first[4] = 1;
            let read = Index::from_bytes(&first).unwrap();
            prop_assert_eq!(read.search(&query[0], 6, 6).unwrap(), expected);
            for (i, byte) in [(0, 0), (4, 9), (8, 77), (12, 0), (16, 200), (23, 255)] {
                let mut damaged = first.clone();
                damaged[i] = byte;
                prop_assert!(Index::from_bytes(&damaged).is_err());
            }
        }

        #[test]
        fn all_candidates_rescored_are_int8s_hits(rows in vectors(12, 9), query in vectors(1, 9)) {
            let both = index(&rows, IndexPrecision::BinaryInt8).search(&query[0], 3, 4).unwrap();
            prop_assert_eq!(both, index(&rows, IndexPrecision::Int8).search(&query[0], 3, 1).unwrap());
        }
    }

    #[test]
    fn extreme_bytes_do_not_overflow() {
        let row = vec![-1.0f32; 5000];
        let hits =
            index(std::slice::from_ref(&row), IndexPrecision::Int8).search(&row, 1, 1).unwrap();
        assert!((hits[0].score - 5000.0).abs() < 1e-2, "{hits:?}");
        // As wide as may be, and bytes that no vector gives.
        let widest = vec![1.0f32; LARGEST_WIDTH];
        let mut index = index(std::slice::from_ref(&widest), IndexPrecision::Int8);
        index.bytes.values.fill(i8::MIN);
        assert!(index.search(&widest, 1, 1).unwrap()[0].score < -60_000.0);
    }

    #[test]
    fn any_k_and_any_number_of_candidates_are_taken() {
        let rows = [vec![1.0, 0.5], vec![-1.0, 0.25], vec![0.5, 0.5]];
        for precision in IndexPrecision::ALL {
            let index = index(&rows, precision);
            for (k, rescore) in [(usize::MAX, usize::MAX), (1_000_000_000, 4), (2, usize::MAX)] {
                let hits = index.search(&[1.0, 0.75], k, rescore).unwrap();
                assert_eq!(hits.len(), k.min(3), "{precision:?} {k} {rescore}");
            }
            assert!(index.search(&[1.0, 0.75], 0, usize::MAX).unwrap().is_empty());
        }
    }

    /// An index of the first version, whose bytes have no sum.
    fn first_version(precision: IndexPrecision, dim: u32, rows: u64, bytes: &[u8]) -> Vec<u8> {
        let words = [1, precision as u32, dim].map(u32::to_le_bytes);
        [&MAGIC[..], &words.concat(), &rows.to_le_bytes(), bytes].concat()
    }

    #[test]
    fn rows_that_no_vector_has_are_refused_by_their_number() {
        let floats = |numbers: &[f32]| -> Vec<u8> {
            numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
        };
        let int8 = |second: [i8; 2], scale: f32| -> Vec<u8> {
            let values = [1, 1, second[0], second[1]].map(|byte: i8| byte as u8);
            [&values[..], &floats(&[1.0, scale])].concat()
        };
        let bits = |second: u64| [1u64.to_le_bytes(), second.to_le_bytes()].concat();
        for (precision, bytes) in [
            (IndexPrecision::F32, floats(&[1.0, 0.0, f32::NAN, 1.0])),
            (IndexPrecision::F32, floats(&[1.0, 0.0, f32::NEG_INFINITY, 1.0])),
            (IndexPrecision::F32, floats(&[1.0, 0.0, 0.0, 0.0])),
            (IndexPrecision::F32, floats(&[1.0, 0.0, f32::MAX, 0.0])),
            (IndexPrecision::Int8, int8([0, 0], 1.0)),
            (IndexPrecision::Int8, int8([1, 1], 0.0)),
            (IndexPrecision::Int8, int8([1, 1], -1.0)),
            (IndexPrecision::Int8, int8([1, 1], f32::NAN)),
            (IndexPrecision::Int8, int8([100, 100], f32::MAX)),
            (IndexPrecision::Binary, bits(4)),
        ] {
            let bytes = first_version(precision, 2, 2, &bytes);
            let error = Index::from_bytes(&bytes).unwrap_err().to_string();
            assert!(error.contains("row 1"), "{precision:?}: {error}");
        }
    }

    #[test]
    fn headers_whose_numbers_overflow_are_refused() {
        for (dim, rows) in [
            (1 << 16, u64::MAX),
            (1 << 16, 1 << 48),
            (1, u64::MAX),
            (u32::MAX, 1),
            ((1 << 16) + 1, 0),
            (4, u64::MAX / 4),
            (4, (1 << 32) / 16),
        ] {
            for precision in IndexPrecision::ALL {
                let bytes = first_version(precision, dim, rows, &[]);
                let error = Index::from_bytes(&bytes).unwrap_err().to_string();
                assert!(error.contains("rows") || error.contains("dimensions"), "{error}");
            }
        }
    }

    #[test]
    fn wrong_vectors_are_refused() {
        assert!(Index::new(0, IndexPrecision::F32).is_err());
        let mut index = index(&[vec![1.0, 0.0]], IndexPrecision::Int8);
        assert!(index.push(&[1.0]).is_err());
        assert!(Index::new(LARGEST_WIDTH + 1, IndexPrecision::Binary).is_err());
        for bad in [[f32::NAN, 0.0], [0.0, 0.0], [f32::INFINITY, 0.0], [f32::MAX, 0.0]] {
            let error = index.push(&bad).unwrap_err().to_string();
            assert!(error.starts_with("row 1 has"), "{error}");
            let error = index.search(&bad, 1, 1).unwrap_err().to_string();
            assert!(error.starts_with("the query has"), "{error}");
        }
        assert!(index.search(&[1.0, 2.0, 3.0], 1, 1).is_err());
        assert_eq!((index.len(), index.bytes()), (1, 6));
        assert!(IndexPrecision::from_name("int7").unwrap_err().to_string().contains("binary+int8"));
    }
}
