//! The product on any CPU: each number becomes an f32 by a shift.

use std::mem::MaybeUninit;

use multiversion::multiversion;

use super::{Bf16Matrix, LANES, Left, PANEL, each_tile};

/// Rows of a tile; with 16 columns its sums fill half of AVX2's registers.
const TILE: usize = 4;

/// Writes or, where they have been written before, adds rows from `first` on: `[rows, columns]`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn part(
    terms: &[(Left<'_>, &Bf16Matrix)],
    bias: Option<&[f32]>,
    first: usize,
    to: &mut [MaybeUninit<f32>],
    add: bool,
) {
    let columns = terms[0].1.columns;
    let rows = to.len() / columns;
    each_tile(terms, [first, rows, columns], TILE, |row, height, panel| {
        for left in (panel * PANEL..columns.min((panel + 1) * PANEL)).step_by(LANES) {
            let mut sums = [[0.0f32; LANES]; TILE];
            for (x, y) in terms {
                let (x, width) = (x.view(row), Bf16Matrix::width(columns, panel));
                let panel = &y.words[panel * PANEL * y.pairs + left % PANEL..];
                for k in 0..y.pairs {
                    let panel = &panel[k * width..][..LANES];
                    for (i, sums) in sums.iter_mut().enumerate().take(height) {
                        let x = x.words[i * x.steps[0] + k * x.steps[1]];
                        let (low, high) = (lower(x), upper(x));
                        for (sum, y) in sums.iter_mut().zip(panel) {
                            *sum += low * lower(*y) + high * upper(*y);
                        }
                    }
                }
            }
            let width = LANES.min(columns - left);
            for (i, sums) in sums.iter().enumerate().take(height) {
                let to = &mut to[(row - first + i) * columns + left..][..width];
                for (column, (to, sum)) in to.iter_mut().zip(sums).enumerate() {
                    // SAFETY: with `add`, the result has been written before.
                    let before = if add { unsafe { to.assume_init() } } else { 0.0 };
                    let bias = bias.map_or(0.0, |bias| bias[left + column]);
                    *to = MaybeUninit::new(sum + before + bias);
                }
            }
        }
    });
}

#[inline(always)]
fn lower(word: u32) -> f32 {
    f32::from_bits(word << 16)
}

#[inline(always)]
fn upper(word: u32) -> f32 {
    f32::from_bits(word & 0xffff_0000)
}
