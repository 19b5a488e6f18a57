//! Vectors in one byte or one bit a dimension, and search among them.
//!
//! A row in int8 is the vector times `127 / max |x|`, rounded, with that scale beside it. A row in
//! bits is the signs (1 where `x > 0`), as `numpy.packbits` and sentence-transformers'
//! `quantize_embeddings` have them. Bits are compared by Hamming distance; the best of them can be
//! scored again against the query's own numbers (Yamada et al., arXiv:2106.00882).

use std::collections::BinaryHeap;

use multiversion::multiversion;

use super::{Hit, dot};
use crate::{Error, Result};

/// How a vector is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Four bytes a dimension.
    F32,
    /// One byte a dimension, and four bytes for the scale.
    Int8,
    /// One bit a dimension; the best are scored again with the query's own numbers.
    Binary,
    /// One bit a dimension to find candidates, and int8 to score them again.
    BinaryInt8,
}

impl Precision {
    /// All of them.
    pub const ALL: [Precision; 4] = [Self::F32, Self::Int8, Self::Binary, Self::BinaryInt8];

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

    /// Bytes of a vector.
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
const INDEX_VERSION: u32 = 1;
const HEADER: usize = 24;
/// Dimensions of a vector in a file, at most.
const LARGEST_WIDTH: u32 = 1 << 20;

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

/// Vectors of length 1 in memory, and exact search among what is kept of them.
#[derive(Debug, Clone)]
pub struct CompactIndex {
    dim: usize,
    precision: Precision,
    rows: usize,
    floats: Vec<f32>,
    bytes: Bytes,
    bits: Bits,
}

/// The vector in int8, and what one step is worth.
fn to_bytes(vector: &[f32]) -> (impl Iterator<Item = i8>, f32) {
    let largest = vector.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let scale = if largest > 0.0 { largest / 127.0 } else { 1.0 };
    (vector.iter().map(move |x| (x / scale).round() as i8), scale)
}

/// The signs, the first dimension in the lowest bit.
fn to_bits(vector: &[f32]) -> impl Iterator<Item = u64> {
    vector.chunks(64).map(|chunk| {
        let bit = |(at, x): (usize, &f32)| u64::from(*x > 0.0) << at;
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

/// The k best of some scored rows.
fn best(k: usize, scored: impl Iterator<Item = Hit>) -> Vec<Hit> {
    let mut heap = BinaryHeap::with_capacity(k + 1);
    for hit in scored {
        if heap.len() < k {
            heap.push(hit);
        } else if let Some(mut worst) = heap.peek_mut()
            && hit < *worst
        {
            *worst = hit;
        }
    }
    heap.into_sorted_vec()
}

impl CompactIndex {
    /// An index without rows.
    ///
    /// # Errors
    /// A width of 0.
    pub fn new(dim: usize, precision: Precision) -> Result<Self> {
        if dim == 0 {
            return Err(Error::invalid("an index needs vectors of one dimension at least"));
        }
        let (floats, bytes, bits) = Default::default();
        Ok(Self { dim, precision, rows: 0, floats, bytes, bits })
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

    fn check(&self, vector: &[f32], what: &str) -> Result<()> {
        if vector.len() != self.dim {
            return Err(Error::invalid(format!(
                "{what} has {} dimensions, the index has {}",
                vector.len(),
                self.dim
            )));
        }
        match vector.iter().all(|x| x.is_finite()) {
            true => Ok(()),
            false => Err(Error::invalid(format!("{what} has numbers that are not finite"))),
        }
    }

    /// Adds a row.
    ///
    /// # Errors
    /// A row of another width, or with numbers that are not finite.
    pub fn push(&mut self, vector: &[f32]) -> Result<()> {
        self.check(vector, "a row")?;
        if self.precision == Precision::F32 {
            self.floats.extend_from_slice(vector);
        }
        if matches!(self.precision, Precision::Int8 | Precision::BinaryInt8) {
            let (values, scale) = to_bytes(vector);
            self.bytes.values.extend(values);
            self.bytes.scales.push(scale);
        }
        if matches!(self.precision, Precision::Binary | Precision::BinaryInt8) {
            self.bits.words.extend(to_bits(vector));
        }
        self.rows += 1;
        Ok(())
    }

    /// Takes a row out; the last row takes its place.
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

    /// The vector of a row, as exact as it is kept; of the binary form its signs, divided by the
    /// root of the width so that its length is 1.
    ///
    /// # Errors
    /// No such row.
    pub fn vector(&self, row: usize) -> Result<Vec<f32>> {
        if row >= self.rows {
            return Err(Error::invalid(format!("no row {row} in an index of {} rows", self.rows)));
        }
        let numbers = row * self.dim..(row + 1) * self.dim;
        Ok(match self.precision {
            Precision::F32 => self.floats[numbers].to_vec(),
            Precision::Int8 | Precision::BinaryInt8 => {
                let scale = self.bytes.scales[row];
                self.bytes.values[numbers].iter().map(|&value| f32::from(value) * scale).collect()
            }
            Precision::Binary => {
                let words = &self.bits.words[row * self.dim.div_ceil(64)..];
                let one = 1.0 / (self.dim as f32).sqrt();
                let bit = |at: usize| if words[at / 64] >> (at % 64) & 1 == 1 { one } else { -one };
                (0..self.dim).map(bit).collect()
            }
        })
    }

    /// The index as bytes, for [`CompactIndex::from_bytes`]: a header of 24 bytes (`KIDX`, version,
    /// precision, width as u32, rows as u64), then numbers, int8 values, their scales, and words of
    /// bits, as far as the precision has them; all little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.bytes());
        bytes.extend(MAGIC);
        bytes.extend(INDEX_VERSION.to_le_bytes());
        bytes.extend((self.precision as u32).to_le_bytes());
        bytes.extend((self.dim as u32).to_le_bytes());
        bytes.extend((self.rows as u64).to_le_bytes());
        bytes.extend(self.floats.iter().flat_map(|value| value.to_le_bytes()));
        bytes.extend(self.bytes.values.iter().flat_map(|value| value.to_le_bytes()));
        bytes.extend(self.bytes.scales.iter().flat_map(|value| value.to_le_bytes()));
        bytes.extend(self.bits.words.iter().flat_map(|value| value.to_le_bytes()));
        bytes
    }

    /// Reads what [`CompactIndex::to_bytes`] wrote.
    ///
    /// # Errors
    /// Bytes that are no index, of a later version, cut short, or with numbers that no row can have.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let wrong = |what: &str| Error::bad_file("the index", what, "build the index again");
        let (header, mut rest) =
            bytes.split_at_checked(HEADER).ok_or_else(|| wrong("is too short for an index"))?;
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&header[at..at + 4]);
            u32::from_le_bytes(word)
        };
        if header[..4] != MAGIC {
            return Err(wrong("does not begin as an index does"));
        }
        if word(4) != INDEX_VERSION {
            return Err(wrong(&format!("has version {}, and {INDEX_VERSION} is known", word(4))));
        }
        let precision = [Precision::F32, Precision::Int8, Precision::Binary, Precision::BinaryInt8]
            .into_iter()
            .find(|&precision| precision as u32 == word(8))
            .ok_or_else(|| wrong(&format!("has unknown precision {}", word(8))))?;
        if word(12) > LARGEST_WIDTH {
            return Err(wrong(&format!("says that its vectors have {} dimensions", word(12))));
        }
        let mut index = Self::new(word(12) as usize, precision)?;
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
        if precision == Precision::F32 {
            index.floats = floats(take(index.rows * index.dim * 4));
        }
        if matches!(precision, Precision::Int8 | Precision::BinaryInt8) {
            index.bytes.values =
                take(index.rows * index.dim).iter().map(|&byte| byte as i8).collect();
            index.bytes.scales = floats(take(index.rows * 4));
        }
        if matches!(precision, Precision::Binary | Precision::BinaryInt8) {
            let words = take(index.rows * index.dim.div_ceil(64) * 8).as_chunks::<8>().0;
            index.bits.words = words.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        }
        let numbers = index.floats.iter().chain(&index.bytes.scales);
        match numbers.copied().all(f32::is_finite) {
            true => Ok(index),
            false => Err(wrong("has numbers that are not finite")),
        }
    }

    /// The k rows with the largest inner products, best first. `rescore` times k candidates of the
    /// binary forms are scored again: by the query's numbers against the signs (divided by the
    /// root of the width, so that it is near a cosine), or against the int8 rows.
    ///
    /// # Errors
    /// A query of another width, or with numbers that are not finite.
    pub fn search(&self, query: &[f32], k: usize, rescore: usize) -> Result<Vec<Hit>> {
        self.check(query, "the query")?;
        Ok(match self.precision {
            Precision::F32 => {
                let rows = self.floats.chunks_exact(self.dim).enumerate();
                best(k, rows.map(|(row, vector)| Hit { row, score: dot(query, vector) }))
            }
            Precision::Int8 => self.by_bytes(query, 0..self.rows, k),
            Precision::Binary => {
                let root = (self.dim as f32).sqrt();
                let signed = |hit: Hit| Hit { score: self.signed(query, hit.row) / root, ..hit };
                best(k, self.by_bits(query, k * rescore.max(1)).into_iter().map(signed))
            }
            Precision::BinaryInt8 => {
                let rows = self.by_bits(query, k * rescore.max(1));
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
                let signed = |(at, x): (usize, &f32)| if word >> at & 1 == 1 { *x } else { -*x };
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

    fn index(rows: &[Vec<f32>], precision: Precision) -> CompactIndex {
        let mut index = CompactIndex::new(rows[0].len(), precision).unwrap();
        rows.iter().for_each(|row| index.push(row).unwrap());
        index
    }

    proptest! {
        #[test]
        fn bytes_are_near_and_ranked(rows in vectors(30, 37), query in vectors(1, 37), k in 0usize..9) {
            let hits = index(&rows, Precision::Int8).search(&query[0], k, 1).unwrap();
            prop_assert_eq!(hits.len(), k);
            prop_assert!(hits.is_sorted_by(|a, b| a.score >= b.score));
            for hit in hits {
                // Half a step a dimension on each side.
                prop_assert!((hit.score - dot(&rows[hit.row], &query[0])).abs() < 37.0 / 127.0);
            }
        }

        #[test]
        fn bits_are_signs(rows in vectors(20, 70), query in vectors(1, 70)) {
            let index = index(&rows, Precision::Binary);
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
                Just(Precision::F32), Just(Precision::Int8), Just(Precision::Binary), Just(Precision::BinaryInt8)
            ],
        ) {
            let mut index = index(&rows, precision);
            index.swap_remove(gone).unwrap();
            let mut left = rows.clone();
            left.swap_remove(gone);
            let expected = self::index(&left, precision).search(&query[0], 6, 6).unwrap();
            let bytes = index.to_bytes();
            prop_assert_eq!(bytes.len(), HEADER + index.bytes());
            let read = CompactIndex::from_bytes(&bytes).unwrap();
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
                prop_assert!(CompactIndex::from_bytes(&bytes[..cut]).is_err());
            }
            for (at, byte) in [(0, 0), (4, 9), (8, 77), (12, 0), (16, 200), (23, 255)] {
                let mut damaged = bytes.clone();
                damaged[at] = byte;
                prop_assert!(CompactIndex::from_bytes(&damaged).is_err());
            }
        }

        #[test]
        fn all_candidates_rescored_are_int8s_hits(rows in vectors(12, 9), query in vectors(1, 9)) {
            let both = index(&rows, Precision::BinaryInt8).search(&query[0], 3, 4).unwrap();
            prop_assert_eq!(both, index(&rows, Precision::Int8).search(&query[0], 3, 1).unwrap());
        }
    }

    #[test]
    fn extreme_bytes_do_not_overflow() {
        let row = vec![-1.0f32; 5000];
        let hits = index(std::slice::from_ref(&row), Precision::Int8).search(&row, 1, 1).unwrap();
        assert!((hits[0].score - 5000.0).abs() < 1e-2, "{hits:?}");
        // A zero vector has scale 1 and no likeness.
        let zero = index(&[vec![0.0; 8]], Precision::Int8);
        assert_eq!(zero.search(&[1.0; 8], 1, 1).unwrap()[0].score, 0.0);
    }

    #[test]
    fn wrong_vectors_are_refused() {
        assert!(CompactIndex::new(0, Precision::F32).is_err());
        let mut index = index(&[vec![1.0, 0.0]], Precision::Int8);
        assert!(index.push(&[1.0]).is_err());
        assert!(index.push(&[f32::NAN, 0.0]).is_err());
        assert!(index.search(&[1.0, 2.0, 3.0], 1, 1).is_err());
        assert_eq!((index.len(), index.bytes()), (1, 6));
        assert!(Precision::from_name("int7").unwrap_err().to_string().contains("binary+int8"));
    }
}
