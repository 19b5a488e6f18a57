//! The product by AVX-512 with BF16.

use std::arch::x86_64::*;
use std::mem::{MaybeUninit, transmute};

use super::{Bf16Matrix, LANES, Left, PANEL, View};

/// Whether the CPU has the instructions.
pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512bf16")
}

/// As [`super::portable::part`].
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) fn part(
    terms: &[(Left<'_>, &Bf16Matrix)],
    bias: Option<&[f32]>,
    first: usize,
    to: &mut [MaybeUninit<f32>],
    add: bool,
) {
    let columns = terms[0].1.columns;
    let rows = to.len() / columns;
    each_tile(terms, [first, rows, columns], |row, height, panel| {
        let place = (row - first) * columns + panel * PANEL;
        let tile = Tile { terms, bias, row, panel, columns, place, add };
        match Bf16Matrix::width(columns, panel) / LANES {
            1 => tile.of::<8, 1>(height, to),
            2 => tile.of::<8, 2>(height, to),
            3 => tile.of::<8, 3>(height, to),
            _ => tile.of::<6, 4>(height, to),
        }
    });
}

struct Tile<'a> {
    terms: &'a [(Left<'a>, &'a Bf16Matrix)],
    bias: Option<&'a [f32]>,
    row: usize,
    panel: usize,
    columns: usize,
    /// Of its first number in the result.
    place: usize,
    add: bool,
}

/// What a tile reads of a term.
#[derive(Clone, Copy)]
struct Term<'a> {
    left: View<'a>,
    panel: &'a [u32],
    pairs: usize,
}

impl Tile<'_> {
    /// `TALL` rows at a time, and what is left. Six rows by four vectors are 24 sums, which with the vectors and a number of
    /// the left operand fill all but three of the registers; more rows by fewer vectors read more numbers for each product,
    /// by more addresses than there are registers for.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn of<const TALL: usize, const VECTORS: usize>(
        &self,
        height: usize,
        to: &mut [MaybeUninit<f32>],
    ) {
        let mut row = 0;
        while row < height {
            row += match height - row {
                left if left >= TALL => self.sum::<TALL, VECTORS>(row, to),
                4.. => self.sum::<4, VECTORS>(row, to),
                2.. => self.sum::<2, VECTORS>(row, to),
                _ => self.sum::<1, VECTORS>(row, to),
            };
        }
    }

    /// `ROWS` rows, from one of the tile's on, by `VECTORS` times 16 columns; gives `ROWS`.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn sum<const ROWS: usize, const VECTORS: usize>(
        &self,
        row: usize,
        to: &mut [MaybeUninit<f32>],
    ) -> usize {
        let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
        for (left, right) in self.terms {
            let width = VECTORS * LANES;
            let panel = &right.words[self.panel * right.pairs * PANEL..][..right.pairs * width];
            let term = Term { left: left.view(self.row + row), panel, pairs: right.pairs };
            let [of_rows, of_pairs] = term.left.steps;
            assert!(
                term.pairs == 0
                    || (ROWS - 1) * of_rows + (term.pairs - 1) * of_pairs < term.left.words.len()
            );
            let (x, y) = (term.left.words.as_ptr(), term.panel.as_ptr());
            for k in 0..term.pairs {
                let y: [__m512bh; VECTORS] = std::array::from_fn(|i| {
                    // SAFETY: the panel has `pairs` rows of `VECTORS` vectors, as was sliced above; any
                    // bits are numbers.
                    unsafe { transmute(_mm512_loadu_si512(y.add(k * width + i * LANES).cast())) }
                });
                for (i, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: the last word read, that of the last row and the last pair, lies inside
                    // the slice (asserted above); any bits are numbers.
                    let x: __m512bh = unsafe {
                        transmute(_mm512_set1_epi32(
                            x.add(i * of_rows + k * of_pairs).read().cast_signed(),
                        ))
                    };
                    for (sum, y) in sums.iter_mut().zip(y) {
                        *sum = _mm512_dpbf16_ps(*sum, x, y);
                    }
                }
            }
        }
        let left = self.panel * PANEL;
        for (i, sums) in sums.into_iter().enumerate() {
            let to = &mut to[self.place + (row + i) * self.columns..];
            for (side, sum) in sums.into_iter().enumerate() {
                let width = LANES.min(self.columns - left - side * LANES);
                let to = &mut to[side * LANES..][..width];
                let mask = (0xffff_u32 >> (LANES - width)) as __mmask16;
                // SAFETY: only the `width` numbers of the mask are read and written, all inside `to` and the
                // bias; with `add`, those of `to` have been written before.
                unsafe {
                    let mut sum = sum;
                    if self.add {
                        sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to.as_ptr().cast()));
                    }
                    if let Some(bias) = self.bias {
                        let bias = &bias[left + side * LANES..][..width];
                        sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, bias.as_ptr()));
                    }
                    _mm512_mask_storeu_ps(to.as_mut_ptr().cast(), mask, sum);
                }
            }
        }
        ROWS
    }
}

/// Calls `tile` with the row, the height and the panel of each run of rows; none crosses the end of a left operand's panel.
#[inline(always)]
fn each_tile(
    terms: &[(Left<'_>, &Bf16Matrix)],
    [first, rows, columns]: [usize; 3],
    mut tile: impl FnMut(usize, usize, usize),
) {
    let transposed = terms.iter().any(|(left, _)| matches!(left, Left::Transposed(_)));
    for panel in 0..columns.div_ceil(PANEL) {
        let mut row = first;
        while row < first + rows {
            let mut height = first + rows - row;
            if transposed {
                height = height.min(PANEL - row % PANEL);
            }
            tile(row, height, panel);
            row += height;
        }
    }
}
