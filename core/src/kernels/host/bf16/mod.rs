//! Products of matrices in bf16, with sums in f32. No crate serves: gemm has no bf16, and Burn's CPU
//! backend converts both operands of every product, value by value.
//!
//! A word holds two numbers that follow each other along the inner dimension, which is what the
//! instructions of x86-64 (`vdpbf16ps`) take; elsewhere a shift makes f32 of them. [`Rows`] lie row by
//! row, [`Panels`] in strips of 64 columns, so that the innermost loop reads a strip from front to end.
//! A product takes rows by panels, or, for the gradient of a weight, panels by panels: there the inner
//! dimension is that of the tokens, and neither operand is transposed.

#![expect(unsafe_code, reason = "SIMD loads and stores take pointers; each with its proof")]

#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use aligned_vec::{AVec, ConstAlign, avec};

use crate::parallel::{cores, each_part};

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
pub(super) struct Rows {
    words: Words,
    rows: usize,
    pairs: usize,
}

/// A matrix `[inner, columns]`, rounded.
#[derive(Debug)]
pub(super) struct Panels {
    words: Words,
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

impl Rows {
    /// Rounds `[rows, inner]`.
    pub(super) fn round(values: &[f32], inner: usize) -> Self {
        let (rows, pairs) = (values.len() / inner.max(1), inner.div_ceil(2));
        let mut words: Words = avec![[64]| 0; rows * pairs];
        each_part(&mut words, PART * pairs.max(1), |number, words| {
            let values = &values[number * PART * inner..];
            if inner.is_multiple_of(2) {
                round_pairs(values, words);
            } else {
                for (row, words) in values.chunks(inner).zip(words.chunks_exact_mut(pairs)) {
                    round_pairs(row, words);
                }
            }
        });
        Self { words, rows, pairs }
    }
}

/// Words of values that follow each other; a last one alone is paired with zero.
#[multiversion::multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl",
    "x86_64+avx2+fma"
))]
fn round_pairs(values: &[f32], words: &mut [u32]) {
    let (pairs, rest) = values.as_chunks::<2>();
    for (pair, word) in pairs.iter().zip(&mut *words) {
        *word = round(pair[0]) | round(pair[1]) << 16;
    }
    if let ([last], Some(word)) = (rest, words.get_mut(pairs.len())) {
        *word = round(*last);
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

impl Panels {
    /// Words of a row of a panel.
    fn width(columns: usize, panel: usize) -> usize {
        (columns - panel * PANEL).min(PANEL).next_multiple_of(LANES)
    }

    /// Rounds `[inner, columns]`.
    pub(super) fn pack(values: &[f32], columns: usize) -> Self {
        let inner = values.len() / columns.max(1);
        let zeros = [0.0; PANEL];
        Self::fill([inner, columns], |k, first, words| {
            let row = |k: usize| &values[k * columns + first..(k + 1) * columns];
            let lower = if 2 * k + 1 < inner { row(2 * k + 1) } else { &zeros };
            round_two(row(2 * k), lower, words);
        })
    }

    /// Rounds the transpose `[inner, columns]` of values `[columns, inner]`.
    pub(super) fn pack_turned(values: &[f32], columns: usize) -> Self {
        let inner = values.len() / columns.max(1);
        Self::fill([inner, columns], |k, first, words| {
            for (column, word) in (first..columns).zip(words) {
                let at = &values[column * inner + 2 * k..(column + 1) * inner];
                *word = round(at[0]) | at.get(1).map_or(0, |lower| round(*lower) << 16);
            }
        })
    }

    /// Panels whose words `row` writes: those of a pair of rows, from a column on.
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
        Self { words, columns, pairs }
    }
}

/// The left operand of a product.
#[derive(Clone, Copy)]
pub(super) enum Left<'a> {
    /// `[rows, inner]`.
    Rows(&'a Rows),
    /// `[inner, rows]`, to be read as its transpose.
    Turned(&'a Panels),
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
            Self::Turned(panels) => panels.columns,
        }
    }

    fn pairs(self) -> usize {
        match self {
            Self::Rows(rows) => rows.pairs,
            Self::Turned(panels) => panels.pairs,
        }
    }

    /// From a row on; rows of a panel's transpose end with the panel.
    fn view(self, row: usize) -> View<'a> {
        match self {
            Self::Rows(Rows { words, pairs, .. }) => {
                View { words: &words[row * pairs..], steps: [*pairs, 1] }
            }
            Self::Turned(Panels { words, columns, pairs }) => {
                let (panel, row) = (row / PANEL, row % PANEL);
                let words = &words[panel * pairs * PANEL + row..];
                View { words, steps: [1, Panels::width(*columns, panel)] }
            }
        }
    }
}

/// Adds the products of all terms to `to`, or writes their sum there: `[rows, columns]`, row after row.
///
/// # Panics
/// Where the shapes do not match.
pub(super) fn product(terms: &[(Left<'_>, &Panels)], to: &mut [f32], add: bool) {
    let Some((left, right)) = terms.first() else { return };
    let (rows, columns) = (left.rows(), right.columns);
    assert!(
        to.len() == rows * columns
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
        part = rows.div_ceil(cores()).next_multiple_of(PANEL);
    }
    each_part(to, part * columns, |number, to| {
        #[cfg(target_arch = "x86_64")]
        if avx512::is_available() {
            // SAFETY: the CPU has the instructions, as was asked just before.
            return unsafe { avx512::part(terms, number * part, to, columns, add) };
        }
        portable::part(terms, number * part, to, columns, add);
    });
}

/// Calls `tile` with the row, the height (at most `most`) and the panel of each tile of some rows; no
/// tile crosses the end of a left operand's panel.
#[inline(always)]
fn each_tile(
    terms: &[(Left<'_>, &Panels)],
    [first, rows, columns]: [usize; 3],
    most: impl Fn(usize) -> usize,
    mut tile: impl FnMut(usize, usize, usize),
) {
    let turned = terms.iter().any(|(left, _)| matches!(left, Left::Turned(_)));
    for panel in 0..columns.div_ceil(PANEL) {
        let most = most(Panels::width(columns, panel) / LANES);
        let mut row = first;
        while row < first + rows {
            let mut height = most.min(first + rows - row);
            if turned {
                height = height.min(PANEL - row % PANEL);
            }
            tile(row, height, panel);
            row += height;
        }
    }
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
            rows in 1usize..150, inner in 1usize..40, more in 0usize..20, columns in 1usize..200,
            turned in prop::bool::ANY, add in prop::bool::ANY, seed in 0f32..100.0,
        ) {
            let terms: Vec<_> = [inner, more].into_iter().filter(|inner| *inner > 0).map(|inner| {
                (inner, numbers(rows * inner, seed), numbers(inner * columns, seed + 0.5))
            }).collect();
            let transposed = |values: &[f32], width: usize| -> Vec<f32> {
                (0..values.len()).map(|i| values[i % (values.len() / width) * width + i / (values.len() / width)]).collect()
            };
            let lefts: Vec<_> = terms.iter().map(|(inner, x, _)| {
                (Rows::round(x, *inner), Panels::pack(&transposed(x, *inner), rows))
            }).collect();
            let rights: Vec<_> = terms.iter().map(|(_, _, y)| match turned {
                true => Panels::pack_turned(&transposed(y, columns), columns),
                false => Panels::pack(y, columns),
            }).collect();
            let operands: Vec<_> = lefts.iter().zip(&rights).map(|((rows, panels), right)| {
                (if turned { Left::Turned(panels) } else { Left::Rows(rows) }, right)
            }).collect();
            let mut parts = vec![vec![0.5f32; rows * columns]; 2];
            product(&operands, &mut parts[0], add);
            portable::part(&operands, 0, &mut parts[1], columns, add);
            for to in parts {
                for (i, actual) in to.into_iter().enumerate() {
                    let (row, column) = (i / columns, i % columns);
                    let exact: f64 = terms.iter().map(|(inner, x, y)| (0..*inner).map(|k| {
                        rounded(x[row * inner + k]) * rounded(y[k * columns + column])
                    }).sum::<f64>()).sum();
                    let exact = exact + if add { 0.5 } else { 0.0 };
                    prop_assert!((f64::from(actual) - exact).abs() < 1e-5, "[{row}, {column}] {actual} {exact}");
                }
            }
        }
    }
}
