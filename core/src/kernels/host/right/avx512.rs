//! The tiles by AVX-512.

use std::arch::x86_64::*;

use super::Strided;

/// Numbers in a vector.
const LANES: usize = 16;
/// Columns of a tile.
const WIDE: usize = 2 * LANES;
/// Rows of a tile. With 32 columns, their sums and two vectors of the strip fill 18 of the 32 registers, and
/// twice as many sums are under way as the units for multiplication can hold.
const TALL: usize = 8;

/// A row of a strip.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line([f32; WIDE]);

/// Whether the CPU has the instructions.
pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
}

/// A matrix `[inner, columns]` in strips.
///
/// # Panics
/// Where it does not lie inside its slice.
#[target_feature(enable = "avx512f")]
pub(super) fn strips(matrix: Strided<'_>, [inner, columns]: [usize; 2]) -> Vec<Line> {
    let mut strips = vec![Line([0.0; WIDE]); columns.div_ceil(WIDE) * inner];
    for (number, strip) in strips.chunks_exact_mut(inner.max(1)).enumerate() {
        let first = number * WIDE;
        let width = WIDE.min(columns - first);
        if matrix.column == 1 {
            for (k, line) in strip.iter_mut().enumerate() {
                let from = &matrix.values[k * matrix.row + first..];
                match from.first_chunk() {
                    // A copy of unknown length would be a call.
                    Some(from) if width == WIDE => line.0 = *from,
                    _ => line.0[..width].copy_from_slice(&from[..width]),
                }
            }
        } else {
            assert!(matrix.row == 1, "neither rows nor columns lie side by side");
            for half in (0..width).step_by(LANES) {
                for (block, lines) in strip.chunks_mut(LANES).enumerate() {
                    let (top, count) = (block * LANES, lines.len());
                    let lanes = u16::MAX >> (LANES - count);
                    let rows = std::array::from_fn(|i| match half + i < width {
                        true => {
                            let from = (first + half + i) * matrix.column + top;
                            let from = &matrix.values[from..][..count];
                            // SAFETY: as many numbers are read as there are.
                            unsafe { _mm512_maskz_loadu_ps(lanes, from.as_ptr()) }
                        }
                        false => _mm512_setzero_ps(),
                    });
                    for (line, row) in lines.iter_mut().zip(turned(rows)) {
                        let to = &mut line.0[half..half + LANES];
                        // SAFETY: it is a vector's room.
                        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), row) };
                    }
                }
            }
        }
    }
    strips
}

/// Sixteen rows of sixteen numbers as columns: pairs of numbers, then fours, then whole quarters of a
/// vector change places.
#[inline]
#[target_feature(enable = "avx512f")]
fn turned(rows: [__m512; LANES]) -> [__m512; LANES] {
    let mut fours = rows;
    for (fours, rows) in fours.as_chunks_mut::<4>().0.iter_mut().zip(rows.as_chunks::<4>().0) {
        let low = [_mm512_unpacklo_ps(rows[0], rows[1]), _mm512_unpacklo_ps(rows[2], rows[3])];
        let high = [_mm512_unpackhi_ps(rows[0], rows[1]), _mm512_unpackhi_ps(rows[2], rows[3])];
        let [low, high] = [low, high].map(|of| of.map(|x| _mm512_castps_pd(x)));
        *fours = [
            _mm512_unpacklo_pd(low[0], low[1]),
            _mm512_unpackhi_pd(low[0], low[1]),
            _mm512_unpacklo_pd(high[0], high[1]),
            _mm512_unpackhi_pd(high[0], high[1]),
        ]
        .map(|x| _mm512_castpd_ps(x));
    }
    let mut columns = rows;
    for i in 0..4 {
        // Quarters 0 and 2 of two vectors, or 1 and 3.
        let even = |a, b| _mm512_shuffle_f32x4::<0x88>(a, b);
        let odd = |a, b| _mm512_shuffle_f32x4::<0xdd>(a, b);
        let [a, b, c, d] = [fours[i], fours[4 + i], fours[8 + i], fours[12 + i]];
        columns[i] = even(even(a, b), even(c, d));
        columns[4 + i] = even(odd(a, b), odd(c, d));
        columns[8 + i] = odd(even(a, b), even(c, d));
        columns[12 + i] = odd(odd(a, b), odd(c, d));
    }
    columns
}

/// See [`Right::product`](super::Right::product), whose assertions it relies on.
#[target_feature(enable = "avx512f")]
pub(super) fn product(
    x: Strided<'_>,
    strips: &[Line],
    [rows, inner, columns]: [usize; 3],
    scale: f32,
    to: &mut [f32],
    stride: usize,
) {
    if inner == 0 {
        return to.chunks_mut(stride.max(1)).take(rows).for_each(|row| row[..columns].fill(0.0));
    }
    for (number, strip) in strips.chunks_exact(inner).enumerate() {
        let left = number * WIDE;
        let mut row = 0;
        while row < rows {
            let x = Strided { values: &x.values[row * x.row..], ..x };
            let to = &mut to[row * stride + left..];
            let width = WIDE.min(columns - left);
            row += match rows - row {
                TALL.. => tile::<TALL>(x, strip, scale, to, stride, width),
                4.. => tile::<4>(x, strip, scale, to, stride, width),
                2.. => tile::<2>(x, strip, scale, to, stride, width),
                _ => tile::<1>(x, strip, scale, to, stride, width),
            };
        }
    }
}

/// Some rows with the columns of a strip, of which `width` are written; gives the number of rows.
#[inline]
#[target_feature(enable = "avx512f")]
fn tile<const ROWS: usize>(
    x: Strided<'_>,
    strip: &[Line],
    scale: f32,
    to: &mut [f32],
    stride: usize,
    width: usize,
) -> usize {
    let x: [&[f32]; ROWS] = std::array::from_fn(|i| &x.values[i * x.row..][..strip.len()]);
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    for (k, line) in strip.iter().enumerate() {
        // SAFETY: a line is two vectors.
        let [low, high] = unsafe {
            [_mm512_loadu_ps(line.0.as_ptr()), _mm512_loadu_ps(line.0.as_ptr().add(LANES))]
        };
        for (x, sums) in x.iter().zip(&mut sums) {
            // SAFETY: each row is as long as the strip.
            let x = _mm512_set1_ps(unsafe { *x.get_unchecked(k) });
            sums[0] = _mm512_fmadd_ps(x, low, sums[0]);
            sums[1] = _mm512_fmadd_ps(x, high, sums[1]);
        }
    }
    let scale = _mm512_set1_ps(scale);
    for (i, sums) in sums.iter().enumerate() {
        let to = &mut to[i * stride..][..width];
        for (to, sum) in to.chunks_mut(LANES).zip(sums) {
            let mask = u16::MAX >> (LANES - to.len());
            // SAFETY: as many numbers are written as the chunk has.
            unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), mask, _mm512_mul_ps(*sum, scale)) };
        }
    }
    ROWS
}
