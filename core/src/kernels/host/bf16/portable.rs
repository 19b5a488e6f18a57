//! The product on any CPU: each number becomes an f32 by a shift.

use multiversion::multiversion;

use super::{LANES, Left, PANEL, Panels, each_tile};

/// Rows of a tile; with 16 columns its sums fill half of AVX2's registers.
const TILE: usize = 4;

/// Writes or adds rows from `first` on: `[rows, columns]`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn part(
    terms: &[(Left<'_>, &Panels)],
    first: usize,
    to: &mut [f32],
    columns: usize,
    add: bool,
) {
    let rows = to.len() / columns;
    each_tile(
        terms,
        [first, rows, columns],
        |_| TILE,
        |row, height, panel| {
            for left in (panel * PANEL..columns.min((panel + 1) * PANEL)).step_by(LANES) {
                let mut sums = [[0.0f32; LANES]; TILE];
                for (x, y) in terms {
                    let (x, width) = (x.view(row), Panels::width(columns, panel));
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
                    for (to, sum) in to.iter_mut().zip(sums) {
                        *to = if add { *to + sum } else { *sum };
                    }
                }
            }
        },
    );
}

#[inline(always)]
fn lower(word: u32) -> f32 {
    f32::from_bits(word << 16)
}

#[inline(always)]
fn upper(word: u32) -> f32 {
    f32::from_bits(word & 0xffff_0000)
}
