//! Products of matrices in bf16, with sums in f32. No crate serves: gemm has no bf16, and Burn's CPU
//! backend converts both operands of every product, value by value.
//!
//! A word holds two numbers that follow each other along the inner dimension, which is what the
//! instructions of x86-64 (`vdpbf16ps`, `tdpbf16ps`) take; elsewhere a shift makes f32 of them. [`Bf16Rows`] lie row by
//! row, [`Bf16Matrix`] in strips of 64 columns, so that the innermost loop reads a strip from front to end.
//! A product takes rows by panels, or, for the gradient of a weight, panels by panels: there the inner
//! dimension is that of the tokens, and neither operand is transposed.

#![expect(
    unsafe_code,
    reason = "SIMD loads and stores take pointers, and memory is written exactly once; each with its proof"
)]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use std::mem::MaybeUninit;

use aligned_vec::{AVec, ConstAlign, avec};

use super::product::written;
use crate::parallel::{cores, each_part};
use crate::{Error, Result};

/// Columns of a panel.
const PANEL: usize = 64;
/// Columns of a vector; panels are whole vectors wide.
const LANES: usize = 16;
/// Rows that one core works on at a time, such that they stay in its L2 cache: a multiple of all tiles'
/// heights and of a panel.
const PART: usize = 192;

type Words = AVec<u32, ConstAlign<64>>;

/// A matrix `[rows, inner]`, rounded.
#[derive(Debug)]
pub(crate) struct Bf16Rows {
    words: Vec<u32>,
    rows: usize,
    pairs: usize,
}

/// A matrix `[inner, columns]`, rounded.
#[derive(Debug, Clone, PartialEq)]
pub struct Bf16Matrix {
    words: Words,
    inner: usize,
    columns: usize,
    pairs: usize,
}

/// To bf16, to nearest, ties to even; NaN stays NaN.
#[inline(always)]
fn round(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if x.is_nan() { bits >> 16 | 0x40 } else { rounded }
}

impl Bf16Rows {
    /// Rounds `[rows, inner]`.
    pub(crate) fn round(values: &[f32], inner: usize) -> Self {
        let (rows, pairs) = (values.len() / inner.max(1), inner.div_ceil(2));
        let write = |words: &mut [MaybeUninit<u32>]| {
            each_part(words, PART * pairs.max(1), |number, words| {
                let values = &values[number * PART * inner..][..words.len() / pairs * inner];
                if inner.is_multiple_of(2) {
                    round_pairs(values, words);
                } else {
                    for (row, words) in values.chunks(inner).zip(words.chunks_exact_mut(pairs)) {
                        round_pairs(row, words);
                    }
                }
            });
        };
        // SAFETY: the parts are all words, and each pair of values, or a row's last value, writes one.
        let words = unsafe { written(rows * pairs, write) };
        Self { words, rows, pairs }
    }
}

/// Words of values that follow each other, all of them; a last one alone is paired with zero.
#[multiversion::multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl",
    "x86_64+avx2+fma"
))]
fn round_pairs(values: &[f32], words: &mut [MaybeUninit<u32>]) {
    let (pairs, rest) = values.as_chunks::<2>();
    assert!(words.len() == values.len().div_ceil(2), "a word holds two values");
    for (pair, word) in pairs.iter().zip(&mut *words) {
        word.write(round(pair[0]) | round(pair[1]) << 16);
    }
    if let ([last], Some(word)) = (rest, words.last_mut()) {
        word.write(round(*last));
    }
}

/// Words of two rows, one above the other.
#[multiversion::multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl",
    "x86_64+avx2+fma"
))]
fn round_two(upper: &[f32], lower: &[f32], words: &mut [u32]) {
    for ((upper, lower), word) in upper.iter().zip(lower).zip(words) {
        *word = round(*upper) | round(*lower) << 16;
    }
}

impl Bf16Matrix {
    /// Words of a row of a panel.
    fn width(columns: usize, panel: usize) -> usize {
        (columns - panel * PANEL).min(PANEL).next_multiple_of(LANES)
    }

    /// `[inner, columns]`.
    pub fn shape(&self) -> [usize; 2] {
        [self.inner, self.columns]
    }

    /// The numbers `[inner, columns]`, row after row.
    pub fn weights(&self) -> Vec<f32> {
        let mut weights = vec![0.0; self.inner * self.columns];
        for (k, row) in weights.chunks_exact_mut(self.columns.max(1)).enumerate() {
            for (column, value) in row.iter_mut().enumerate() {
                let (panel, width) = (column / PANEL, Self::width(self.columns, column / PANEL));
                let place = panel * self.pairs * PANEL + k / 2 * width + column % PANEL;
                let word = self.words[place];
                *value = f32::from_bits(if k % 2 == 0 { word << 16 } else { word & 0xffff_0000 });
            }
        }
        weights
    }

    /// Rounds `[inner, columns]`.
    pub(crate) fn pack(values: &[f32], columns: usize) -> Self {
        let inner = values.len() / columns.max(1);
        let zeros = [0.0; PANEL];
        Self::fill([inner, columns], |k, first, words| {
            let row = |k: usize| &values[k * columns + first..(k + 1) * columns];
            let lower = if 2 * k + 1 < inner { row(2 * k + 1) } else { &zeros };
            round_two(row(2 * k), lower, words);
        })
    }

    /// Rounds the transpose `[inner, columns]` of values `[columns, inner]`.
    pub(crate) fn pack_transposed(values: &[f32], columns: usize) -> Self {
        let inner = values.len() / columns.max(1);
        Self::fill([inner, columns], |k, first, words| {
            for (column, word) in (first..columns).zip(words) {
                let at = &values[column * inner + 2 * k..(column + 1) * inner];
                *word = round(at[0]) | at.get(1).map_or(0, |lower| round(*lower) << 16);
            }
        })
    }

    /// A matrix whose words `row` writes: those of a pair of rows, from a column on.
    fn fill(
        [inner, columns]: [usize; 2],
        row: impl Fn(usize, usize, &mut [u32]) + Send + Sync,
    ) -> Self {
        let pairs = inner.div_ceil(2);
        let mut words: Words = avec![[64]| 0; pairs * columns.next_multiple_of(LANES)];
        each_part(&mut words, (pairs * PANEL).max(1), |panel, words| {
            let width = Self::width(columns, panel);
            for (k, words) in words.chunks_exact_mut(width).enumerate() {
                row(k, panel * PANEL, words);
            }
        });
        Self { words, inner, columns, pairs }
    }

    /// `[rows, inner]` to `[rows, columns]`, with the bias added.
    ///
    /// # Errors
    /// Rows or a bias of another width.
    pub fn product(&self, x: &[f32], bias: Option<&[f32]>) -> Result<Vec<f32>> {
        if self.inner == 0 || !x.len().is_multiple_of(self.inner) {
            let (count, width) = (x.len(), self.inner);
            return Err(Error::invalid(format!("{count} activations are no rows of {width}")));
        }
        if bias.is_some_and(|bias| bias.len() != self.columns) {
            return Err(Error::invalid("the bias has another width than the outputs"));
        }
        let rows = Bf16Rows::round(x, self.inner);
        Ok(product(&[(Left::Rows(&rows), self)], bias))
    }
}

/// The instruction set used for products in bf16 on this CPU.
pub fn bf16_instructions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if amx::is_available() {
            return "AMX";
        }
        if avx512::is_available() {
            return "AVX-512 BF16";
        }
    }
    "f32's, after a shift"
}

/// The left operand of a product.
#[derive(Clone, Copy)]
pub(crate) enum Left<'a> {
    /// `[rows, inner]`.
    Rows(&'a Bf16Rows),
    /// `[inner, rows]`, to be read as its transpose.
    Transposed(&'a Bf16Matrix),
}

/// What a tile reads of a left operand.
#[derive(Clone, Copy)]
struct View<'a> {
    /// From the tile's first word on.
    words: &'a [u32],
    /// Words from a row to the next, and from a pair to the next.
    steps: [usize; 2],
}

impl<'a> Left<'a> {
    fn rows(self) -> usize {
        match self {
            Self::Rows(rows) => rows.rows,
            Self::Transposed(panels) => panels.columns,
        }
    }

    fn pairs(self) -> usize {
        match self {
            Self::Rows(rows) => rows.pairs,
            Self::Transposed(panels) => panels.pairs,
        }
    }

    /// From a row on; rows of a panel's transpose end with the panel.
    fn view(self, row: usize) -> View<'a> {
        match self {
            Self::Rows(Bf16Rows { words, pairs, .. }) => {
                View { words: &words[row * pairs..], steps: [*pairs, 1] }
            }
            Self::Transposed(Bf16Matrix { words, columns, pairs, .. }) => {
                let (panel, row) = (row / PANEL, row % PANEL);
                let words = &words[panel * pairs * PANEL + row..];
                View { words, steps: [1, Bf16Matrix::width(*columns, panel)] }
            }
        }
    }
}

/// The sum of the products of all terms, and of the bias in each row: `[rows, columns]`.
///
/// # Panics
/// Where the shapes do not match.
pub(crate) fn product(terms: &[(Left<'_>, &Bf16Matrix)], bias: Option<&[f32]>) -> Vec<f32> {
    let Some((left, right)) = terms.first() else { return Vec::new() };
    let count = left.rows() * right.columns;
    // SAFETY: tiles cover the whole result, and without `add` write each number.
    unsafe { written(count, |to| each_row(terms, bias, to, false)) }
}

/// Adds the products of all terms to `to` `[rows, columns]`.
///
/// # Panics
/// Where the shapes do not match.
pub(crate) fn add_product(terms: &[(Left<'_>, &Bf16Matrix)], to: &mut [f32]) {
    if !terms.is_empty() {
        // SAFETY: the same numbers, which stay initialised: none is ever written that is not.
        let to = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast(), to.len()) };
        each_row(terms, None, to, true);
    }
}

/// Rows of which a part is a multiple where there are few: a tile's of the version in use, or those of two.
fn few() -> usize {
    #[cfg(target_arch = "x86_64")]
    if amx::is_available() {
        return super::tiles::TILE;
    }
    12
}

/// Parts of rows, each by one core. With `add`, the result has been written before.
fn each_row(
    terms: &[(Left<'_>, &Bf16Matrix)],
    bias: Option<&[f32]>,
    to: &mut [MaybeUninit<f32>],
    add: bool,
) {
    let (rows, columns) = (terms[0].0.rows(), terms[0].1.columns);
    assert!(
        to.len() == rows * columns
            && bias.is_none_or(|bias| bias.len() == columns)
            && terms.iter().all(|(left, right)| left.rows() == rows
                && right.columns == columns
                && left.pairs() == right.pairs),
        "operands of a product do not match"
    );
    if columns == 0 {
        return;
    }
    let mut part = PART;
    if rows < cores() * PART {
        part = rows.div_ceil(cores()).next_multiple_of(few());
    }
    each_part(to, part * columns, |number, to| {
        #[cfg(target_arch = "x86_64")]
        {
            if amx::is_available() {
                // SAFETY: `is_available` has just said so.
                return unsafe { amx::part(terms, bias, number * part, to, add) };
            }
            if avx512::is_available() {
                // SAFETY: the CPU has the instructions, as was asked just before.
                return unsafe { avx512::part(terms, bias, number * part, to, add) };
            }
        }
        portable::part(terms, bias, number * part, to, add);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbers(count: usize, seed: f32) -> Vec<f32> {
        (0..count).map(|i| ((i as f32 + seed) * 0.737).sin()).collect()
    }

    fn rounded(x: f32) -> f64 {
        f64::from(half::bf16::from_f32(x))
    }

    #[test]
    fn rounding_is_that_of_half() {
        let odd = [f32::NAN, f32::INFINITY, -f32::INFINITY, 0.0, -0.0, 3.4e38, 1e-40, 1.003_906_3];
        for x in numbers(1000, 0.3).into_iter().chain(odd) {
            let expected = half::bf16::from_f32(x);
            let actual = half::bf16::from_bits(round(x) as u16);
            assert!(actual == expected || actual.is_nan() && expected.is_nan(), "{x}");
        }
    }

    proptest! {
        #[test]
        fn every_shape_is_the_sum_that_it_stands_for(
            rows in 1usize..450, inner in 1usize..40, more in 0usize..20, columns in 1usize..200,
            by_columns in prop::bool::ANY, add in prop::bool::ANY, seed in 0f32..100.0,
        ) {
            let terms: Vec<_> = [inner, more].into_iter().filter(|inner| *inner > 0).map(|inner| {
                (inner, numbers(rows * inner, seed), numbers(inner * columns, seed + 0.5))
            }).collect();
            let transposed = |values: &[f32], width: usize| -> Vec<f32> {
                (0..values.len()).map(|i| values[i % (values.len() / width) * width + i / (values.len() / width)]).collect()
            };
            let lefts: Vec<_> = terms.iter().map(|(inner, x, _)| {
                (Bf16Rows::round(x, *inner), Bf16Matrix::pack(&transposed(x, *inner), rows))
            }).collect();
            let rights: Vec<_> = terms.iter().map(|(_, _, y)| match by_columns {
                true => Bf16Matrix::pack_transposed(&transposed(y, columns), columns),
                false => Bf16Matrix::pack(y, columns),
            }).collect();
            let operands: Vec<_> = lefts.iter().zip(&rights).map(|((rows, panels), right)| {
                (if by_columns { Left::Transposed(panels) } else { Left::Rows(rows) }, right)
            }).collect();
            let bias = numbers(columns, seed + 0.7);
            let (bias, mut parts) = match add {
                true => (None, vec![vec![0.5f32; rows * columns]; 2]),
                false => (Some(bias.as_slice()), vec![product(&operands, Some(&bias)), vec![7.0; rows * columns]]),
            };
            if add {
                add_product(&operands, &mut parts[0]);
            }
            let mut to: Vec<_> = parts[1].iter().map(|value| MaybeUninit::new(*value)).collect();
            portable::part(&operands, bias, 0, &mut to, add);
            // SAFETY: all were initialised before.
            parts[1] = to.into_iter().map(|value| unsafe { value.assume_init() }).collect();
            for to in parts {
                for (i, actual) in to.into_iter().enumerate() {
                    let (row, column) = (i / columns, i % columns);
                    let exact: f64 = terms.iter().map(|(inner, x, y)| (0..*inner).map(|k| {
                        rounded(x[row * inner + k]) * rounded(y[k * columns + column])
                    }).sum::<f64>()).sum();
                    let exact = exact + bias.map_or(0.5, |bias| f64::from(bias[column]));
                    prop_assert!((f64::from(actual) - exact).abs() < 1e-5, "[{row}, {column}] {actual} {exact}");
                }
            }
        }
    }
}
