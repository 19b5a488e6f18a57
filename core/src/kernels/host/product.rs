//! Products of f32 matrices on one core: the gemm crate's natively, our own in WebAssembly. There,
//! gemm's tiles need more registers than engines have, and gemm does not use relaxed SIMD's fused
//! multiply-add; ours is 1.2 times as fast without it and 1.6 times with it.

#![expect(unsafe_code, reason = "products and SIMD loads take pointers; each with its proof")]

#[cfg(not(target_arch = "wasm32"))]
use crate::quant::product::written;

/// A matrix in a slice: element `[r, c]` is `values[r * row + c * column]`.
#[derive(Clone, Copy)]
pub(super) struct Strided<'a> {
    pub(super) values: &'a [f32],
    pub(super) row: usize,
    pub(super) column: usize,
}

impl<'a> Strided<'a> {
    /// A row-major matrix of the given width.
    pub(super) fn rows(values: &'a [f32], width: usize) -> Self {
        Self { values, row: width, column: 1 }
    }

    /// Whether a matrix of a shape lies inside the slice.
    pub(super) fn holds(&self, rows: usize, columns: usize) -> bool {
        rows == 0
            || columns == 0
            || (rows - 1) * self.row + (columns - 1) * self.column < self.values.len()
    }
}

/// `to[r * stride + c] = scale * sum over k of x[r, k] y[k, c], + bias[c]` for matrices `[rows, inner]`
/// and `[inner, columns]`.
///
/// # Panics
/// Where a matrix or the bias does not lie inside its slice.
pub(super) fn product(
    x: Strided<'_>,
    y: Strided<'_>,
    [rows, inner, columns]: [usize; 3],
    scale: f32,
    bias: Option<&[f32]>,
    to: &mut [f32],
    stride: usize,
) {
    assert!(
        x.holds(rows, inner)
            && y.holds(inner, columns)
            && (rows == 0 || columns == 0 || (rows - 1) * stride + columns <= to.len())
            && columns <= stride
            && bias.is_none_or(|bias| bias.len() >= columns),
        "a matrix of the product does not lie inside its slice"
    );
    #[cfg(target_arch = "wasm32")]
    tiles::product(x, y, [rows, inner, columns], scale, bias, to, stride);
    #[cfg(not(target_arch = "wasm32"))]
    {
        // SAFETY: all elements of the three matrices lie inside their slices (asserted above).
        unsafe {
            gemm_into(x, y, [rows, inner, columns], scale, false, to.as_mut_ptr(), stride, 1)
        };
        if let Some(bias) = bias {
            for to in to.chunks_mut(stride.max(1)).take(rows) {
                to.iter_mut().zip(&bias[..columns]).for_each(|(to, bias)| *to += bias);
            }
        }
    }
}

/// As [`product`] on some cores, added to `to`.
///
/// # Panics
/// Where a matrix does not lie inside its slice.
#[cfg(any(not(target_arch = "wasm32"), feature = "autodiff"))]
pub(super) fn add_product(
    cores: usize,
    x: Strided<'_>,
    y: Strided<'_>,
    shape: [usize; 3],
    to: &mut [f32],
) {
    #[cfg(not(target_arch = "wasm32"))]
    if shape[0] != 1 {
        assert_inside(x, y, shape, to.len());
        // SAFETY: all elements of the three matrices lie inside their slices (asserted above); those of
        // the destination have been written.
        unsafe { gemm_into(x, y, shape, 1.0, true, to.as_mut_ptr(), shape[2], cores) };
        return;
    }
    // A single row has the bits that it has beside others in new_product alone.
    let result = new_product(cores, x, y, shape);
    to[..result.len()].iter_mut().zip(result).for_each(|(to, value)| *to += value);
}

/// As [`product`] on some cores, in memory that is not zeroed first.
///
/// # Panics
/// Where a matrix does not lie inside its slice.
#[cfg(not(target_arch = "wasm32"))]
pub(super) fn new_product(
    cores: usize,
    x: Strided<'_>,
    y: Strided<'_>,
    shape: [usize; 3],
) -> Vec<f32> {
    let [rows, inner, columns] = shape;
    if rows == 1 {
        // gemm adds the terms of a single row in another order: so a row twice, and its bits are those
        // that it has beside others.
        let twice = Strided { row: 0, ..x };
        let mut result = new_product(cores, twice, y, [2, inner, columns]);
        result.truncate(columns);
        return result;
    }
    assert_inside(x, y, shape, rows * columns);
    // SAFETY: gemm writes all of the result; see `add_product`.
    unsafe {
        written(rows * columns, |to| {
            gemm_into(x, y, shape, 1.0, false, to.as_mut_ptr().cast(), columns, cores);
        })
    }
}

#[cfg(not(target_arch = "wasm32"))]
fn assert_inside(x: Strided<'_>, y: Strided<'_>, [rows, inner, columns]: [usize; 3], room: usize) {
    assert!(
        x.holds(rows, inner) && y.holds(inner, columns) && rows * columns <= room,
        "a matrix of the product does not lie inside its slice"
    );
}

/// As [`product`] on some cores, in memory of its own.
///
/// # Panics
/// Where a matrix does not lie inside its slice.
#[cfg(all(target_arch = "wasm32", feature = "autodiff"))]
pub(super) fn new_product(
    _cores: usize,
    x: Strided<'_>,
    y: Strided<'_>,
    shape: [usize; 3],
) -> Vec<f32> {
    let [rows, _, columns] = shape;
    let mut result = vec![0.0; rows * columns];
    product(x, y, shape, 1.0, None, &mut result, columns);
    result
}

/// # Safety
/// All elements of the three matrices lie inside their memory, and the destination, which overlaps
/// neither of the others, may be written; with `add`, it has been written before.
#[cfg(not(target_arch = "wasm32"))]
#[expect(clippy::too_many_arguments, reason = "a product has three matrices")]
unsafe fn gemm_into(
    x: Strided<'_>,
    y: Strided<'_>,
    [rows, inner, columns]: [usize; 3],
    scale: f32,
    add: bool,
    to: *mut f32,
    stride: usize,
    cores: usize,
) {
    // SAFETY: the caller's promise; without `add` gemm writes all of the destination, zeros where there is
    // no inner dimension, and reads nothing of it.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            to,
            1,
            stride as isize,
            add,
            x.values.as_ptr(),
            x.column as isize,
            x.row as isize,
            y.values.as_ptr(),
            y.column as isize,
            y.row as isize,
            if add { 1.0 } else { 0.0 },
            scale,
            false,
            false,
            false,
            if cores > 1 { gemm::Parallelism::Rayon(cores) } else { gemm::Parallelism::None },
        );
    }
}

/// The product in WebAssembly's 128-bit SIMD: both matrices are copied into strips as high or wide as a
/// tile, so that the innermost loop reads them from front to end.
#[cfg(target_arch = "wasm32")]
mod tiles {
    use std::arch::wasm32::{
        f32x4_mul, f32x4_splat, v128, v128_load, v128_load32_splat, v128_store,
    };

    use super::Strided;
    use crate::parallel::{cores, each_part};

    /// Rows of a tile. Two by sixteen is what x86-64's registers hold: eight sums, four numbers of `y`
    /// and one of `x`.
    const TILE_ROWS: usize = 2;
    /// Vectors of four that a tile is wide.
    const VECTORS: usize = 4;
    const TILE_COLUMNS: usize = 4 * VECTORS;
    /// Values of `x` packed into strips at once; they stay in the L2 cache.
    const L2_ELEMENTS: usize = 1 << 16;
    /// Multiplications that justify another core.
    const MIN_WORK_PER_CORE: usize = 1 << 20;

    pub(super) fn product(
        x: Strided<'_>,
        y: Strided<'_>,
        [rows, inner, columns]: [usize; 3],
        scale: f32,
        bias: Option<&[f32]>,
        to: &mut [f32],
        stride: usize,
    ) {
        if rows == 0 || columns == 0 {
            return;
        }
        let cores = if rows * inner * columns < MIN_WORK_PER_CORE { 1 } else { cores() };
        let mut wide = vec![[0.0f32; TILE_COLUMNS]; columns.div_ceil(TILE_COLUMNS) * inner];
        let part = (columns.div_ceil(TILE_COLUMNS).div_ceil(cores) * inner).max(1);
        each_part(&mut wide, part, |number, wide| {
            let first = number * part / inner.max(1) * TILE_COLUMNS;
            for (number, strip) in wide.chunks_exact_mut(inner.max(1)).enumerate() {
                let first = first + number * TILE_COLUMNS;
                let width = TILE_COLUMNS.min(columns - first);
                for (k, strip) in strip.iter_mut().enumerate() {
                    let from = &y.values[k * y.row + first * y.column..];
                    match (y.column, from.first_chunk()) {
                        // A copy of unknown length would be a call.
                        (1, Some(from)) if width == TILE_COLUMNS => *strip = *from,
                        (1, _) => strip[..width].copy_from_slice(&from[..width]),
                        (apart, _) => {
                            let from = from.iter().step_by(apart);
                            for (to, from) in strip[..width].iter_mut().zip(from) {
                                *to = *from;
                            }
                        }
                    }
                }
            }
        });
        let most = (L2_ELEMENTS / inner.max(1) / TILE_ROWS).max(1) * TILE_ROWS;
        let part = rows.div_ceil(cores).next_multiple_of(TILE_ROWS).min(most);
        let end = (rows * stride).min(to.len());
        each_part(&mut to[..end], part * stride, |number, to| {
            let first = number * part;
            let rows = part.min(rows - first);
            let mut high = vec![[0.0f32; TILE_ROWS]; rows.div_ceil(TILE_ROWS) * inner];
            for (number, strip) in high.chunks_exact_mut(inner.max(1)).enumerate() {
                for i in 0..TILE_ROWS.min(rows - number * TILE_ROWS) {
                    let from = &x.values[(first + number * TILE_ROWS + i) * x.row..];
                    for (strip, from) in strip.iter_mut().zip(from.iter().step_by(x.column)) {
                        strip[i] = *from;
                    }
                }
            }
            for left in (0..columns).step_by(TILE_COLUMNS) {
                let wide = &wide[left / TILE_COLUMNS * inner..][..inner];
                let width = TILE_COLUMNS.min(columns - left);
                for number in 0..rows.div_ceil(TILE_ROWS) {
                    let sums = tile(&high[number * inner..][..inner], wide, scale);
                    let top = number * TILE_ROWS;
                    for (i, sums) in sums.iter().enumerate().take(rows - top) {
                        let to = &mut to[(top + i) * stride + left..][..width];
                        match <&mut [f32; TILE_COLUMNS]>::try_from(&mut *to) {
                            Ok(to) => *to = *sums,
                            Err(_) => to.copy_from_slice(&sums[..width]),
                        }
                        if let Some(bias) = bias {
                            to.iter_mut().zip(&bias[left..]).for_each(|(to, bias)| *to += bias);
                        }
                    }
                }
            }
        });
    }

    /// Two rows by sixteen columns.
    #[inline(always)]
    fn tile(
        high: &[[f32; TILE_ROWS]],
        wide: &[[f32; TILE_COLUMNS]],
        scale: f32,
    ) -> [[f32; TILE_COLUMNS]; TILE_ROWS] {
        let mut sums = [[f32x4_splat(0.0); VECTORS]; TILE_ROWS];
        for (high, wide) in high.iter().zip(wide) {
            let y: [v128; VECTORS] = std::array::from_fn(|i| {
                // SAFETY: four numbers from `4 at` on lie inside the sixteen; loads ask for no alignment.
                unsafe { v128_load(wide.as_ptr().add(4 * i).cast()) }
            });
            for (x, sums) in high.iter().zip(&mut sums) {
                // SAFETY: it reads the one number that it is given.
                let x = unsafe { v128_load32_splat(std::ptr::from_ref(x).cast()) };
                for (sum, y) in sums.iter_mut().zip(y) {
                    *sum = multiply_add(x, y, *sum);
                }
            }
        }
        let scale = f32x4_splat(scale);
        let mut numbers = [[0.0; TILE_COLUMNS]; TILE_ROWS];
        for (numbers, sums) in numbers.iter_mut().zip(sums) {
            for (numbers, sum) in numbers.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
                // SAFETY: a vector is as large as the four numbers; stores ask for no alignment.
                unsafe { v128_store(numbers.as_mut_ptr().cast(), f32x4_mul(sum, scale)) };
            }
        }
        numbers
    }

    /// `a b + c`; with relaxed SIMD the CPU chooses whether it rounds once or twice.
    #[inline(always)]
    fn multiply_add(a: v128, b: v128, c: v128) -> v128 {
        #[cfg(target_feature = "relaxed-simd")]
        return std::arch::wasm32::f32x4_relaxed_madd(a, b, c);
        #[cfg(not(target_feature = "relaxed-simd"))]
        std::arch::wasm32::f32x4_add(f32x4_mul(a, b), c)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    pub(in super::super) fn numbers(count: usize, seed: f32) -> Vec<f32> {
        (0..count).map(|i| ((i as f32 + seed) * 0.737).sin()).collect()
    }

    /// That a result is half of the product, plus a bias; its rows `stride` apart, and 7 between them.
    pub(in super::super) fn assert_product(
        x: Strided<'_>,
        y: Strided<'_>,
        [rows, inner, columns]: [usize; 3],
        bias: Option<&[f32]>,
        result: &[f32],
        stride: usize,
    ) -> Result<(), TestCaseError> {
        for row in 0..rows {
            for column in 0..stride {
                let result = result[row * stride + column];
                if column >= columns {
                    // The gaps between rows belong to others.
                    prop_assert_eq!(result, 7.0);
                    continue;
                }
                let term = |k: usize| {
                    let y = y.values[k * y.row + column * y.column];
                    f64::from(x.values[row * x.row + k * x.column]) * f64::from(y)
                };
                let exact: f64 = (0..inner).map(term).sum();
                let exact = exact * 0.5 + bias.map_or(0.0, |bias| f64::from(bias[column]));
                prop_assert!(
                    (f64::from(result) - exact).abs() < 1e-5,
                    "[{}, {}] {} {}",
                    row,
                    column,
                    result,
                    exact
                );
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn every_shape_is_the_sum_that_it_stands_for(
            rows in 0usize..9, inner in 0usize..40, columns in 0usize..50,
            turned in prop::bool::ANY, biased in prop::bool::ANY, gap in 0usize..3, seed in 0f32..100.0,
        ) {
            let x = numbers(rows * (inner + gap), seed);
            let y = numbers(inner * columns, seed + 0.5);
            let bias = numbers(columns, seed + 0.7);
            let bias = biased.then_some(bias.as_slice());
            let x = Strided { values: &x, row: inner + gap, column: 1 };
            let y = match turned {
                true => Strided { values: &y, row: 1, column: inner },
                false => Strided::rows(&y, columns),
            };
            let stride = columns + gap;
            let mut result = vec![7.0; rows * stride];
            product(x, y, [rows, inner, columns], 0.5, bias, &mut result, stride);
            assert_product(x, y, [rows, inner, columns], bias, &result, stride)?;
        }

        #[test]
        fn nan_and_the_largest_numbers_stay_in_their_rows(inner in 1usize..20, i in 0usize..20) {
            let mut x = numbers(3 * inner, 1.0);
            x[inner + i % inner] = f32::NAN;
            x[2 * inner] = 3e38;
            let y = vec![1.0; inner * 5];
            let mut result = vec![0.0; 15];
            product(Strided::rows(&x, inner), Strided::rows(&y, 5), [3, inner, 5], 1.0, None, &mut result, 5);
            prop_assert!(result[..5].iter().all(|y| y.is_finite()));
            prop_assert!(result[5..10].iter().all(|y| y.is_nan()));
            prop_assert!(result[10..].iter().all(|y| *y > 2e38));
        }
    }

    #[test]
    #[cfg(not(target_arch = "wasm32"))]
    #[should_panic(expected = "does not lie inside")]
    fn what_lies_outside_is_refused() {
        product(
            Strided::rows(&[0.0; 5], 3),
            Strided::rows(&[0.0; 6], 2),
            [2, 3, 2],
            1.0,
            None,
            &mut [0.0; 4],
            2,
        );
    }
}
