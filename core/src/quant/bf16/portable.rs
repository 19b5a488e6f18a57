//! The product on CPUs without instructions for bf16: numbers become f32 by a shift, a part at a time, and
//! the gemm crate multiplies those.

use std::mem::MaybeUninit;

use super::{Bf16Matrix, Left, PANEL};

/// Columns that are made f32 at once; with the rows of a part they stay in the L2 cache.
const COLUMNS: usize = 4 * PANEL;

/// Writes or, where they have been written before, adds rows from `first` on: `[rows, columns]`.
pub(super) fn part(
    terms: &[(Left<'_>, &Bf16Matrix)],
    bias: Option<&[f32]>,
    first: usize,
    to: &mut [MaybeUninit<f32>],
    add: bool,
) {
    let columns = terms[0].1.columns;
    let rows = to.len() / columns;
    if rows == 1 {
        // gemm adds the terms of a single row in another order: so a row twice, and its bits are those that
        // it has beside others.
        let mut twice = [&*to, &*to].concat();
        add_terms(terms, [first, first], &mut twice, add);
        to.copy_from_slice(&twice[..columns]);
    } else {
        add_terms(terms, [first, first + rows - 1], to, add);
    }
    if let Some(bias) = bias {
        for row in to.chunks_exact_mut(columns) {
            for (to, bias) in row.iter_mut().zip(bias) {
                // SAFETY: the products have written all of the row.
                *to = MaybeUninit::new(unsafe { to.assume_init() } + bias);
            }
        }
    }
}

/// Writes or adds the rows from the first to the last, or, where they are the same, that one as often as
/// there is room for.
fn add_terms(
    terms: &[(Left<'_>, &Bf16Matrix)],
    [first, last]: [usize; 2],
    to: &mut [MaybeUninit<f32>],
    add: bool,
) {
    let columns = terms[0].1.columns;
    let rows = to.len() / columns;
    for (number, (left, right)) in terms.iter().enumerate() {
        let inner = 2 * right.pairs;
        let x = left_numbers(*left, (0..rows).map(|row| last.min(first + row)));
        for start in (0..columns).step_by(COLUMNS) {
            let width = COLUMNS.min(columns - start);
            let y = right_numbers(right, start, width);
            assert!(x.len() == rows * inner && y.len() == inner * width);
            let add = add || number > 0;
            // SAFETY: the operands have the lengths that were just asserted, and `to` has `rows` rows of
            // `columns`, of which `width` are written from `start` on. They are read only where they have
            // been written: before, as the caller says with `add`, or by the first term.
            unsafe {
                gemm::gemm(
                    rows,
                    width,
                    inner,
                    to.as_mut_ptr().add(start).cast::<f32>(),
                    1,
                    columns as isize,
                    add,
                    x.as_ptr(),
                    1,
                    inner as isize,
                    y.as_ptr(),
                    1,
                    width as isize,
                    if add { 1.0 } else { 0.0 },
                    1.0,
                    false,
                    false,
                    false,
                    gemm::Parallelism::None,
                );
            }
        }
    }
}

/// Some rows of a left operand: `[rows, inner]`.
fn left_numbers(left: Left<'_>, rows: impl ExactSizeIterator<Item = usize>) -> Vec<f32> {
    let pairs = left.pairs();
    let mut numbers = Vec::with_capacity(rows.len() * 2 * pairs);
    for row in rows {
        let view = left.view(row);
        let words = view.words.iter().step_by(view.steps[1]).take(pairs);
        numbers.extend(words.flat_map(|word| [lower(*word), upper(*word)]));
    }
    numbers
}

/// Some columns of a matrix, from the first of a panel on: `[inner, columns]`.
fn right_numbers(right: &Bf16Matrix, start: usize, columns: usize) -> Vec<f32> {
    let mut numbers = vec![0.0; 2 * right.pairs * columns];
    for panel in start / PANEL..(start + columns).div_ceil(PANEL) {
        let width = Bf16Matrix::width(right.columns, panel);
        let from = &right.words[panel * PANEL * right.pairs..][..right.pairs * width];
        let place = panel * PANEL - start;
        let count = PANEL.min(columns - place);
        for (k, words) in from.chunks_exact(width.max(1)).enumerate() {
            for (half, number) in [lower as fn(u32) -> f32, upper].into_iter().enumerate() {
                let to = &mut numbers[(2 * k + half) * columns + place..][..count];
                to.iter_mut().zip(words).for_each(|(to, word)| *to = number(*word));
            }
        }
    }
    numbers
}

#[inline(always)]
fn lower(word: u32) -> f32 {
    f32::from_bits(word << 16)
}

#[inline(always)]
fn upper(word: u32) -> f32 {
    f32::from_bits(word & 0xffff_0000)
}
