//! A matrix on the right of several products: attention's keys and values, which every query of a head
//! meets. With AVX-512 it is laid out once for tiles of our own, as gemm would lay it out for each product;
//! elsewhere the products are those of [`product`].

#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "SIMD is called, and loads take pointers; each with its proof")
)]

#[cfg(target_arch = "x86_64")]
mod avx512;

use super::product::{Strided, product};

/// A matrix `[inner, columns]` that several are multiplied with.
pub(super) struct Right<'a> {
    matrix: Strided<'a>,
    inner: usize,
    columns: usize,
    /// The columns in strips as wide as a tile, row after row, the last one filled with zeros.
    #[cfg(target_arch = "x86_64")]
    strips: Option<Vec<avx512::Line>>,
}

impl<'a> Right<'a> {
    /// A matrix whose rows or columns lie side by side, laid out where the CPU has a kernel for it.
    ///
    /// # Panics
    /// Where it does not lie inside its slice, or is strided both ways.
    pub(super) fn new(matrix: Strided<'a>, [inner, columns]: [usize; 2]) -> Self {
        assert!(matrix.holds(inner, columns), "a matrix does not lie inside its slice");
        Self {
            matrix,
            inner,
            columns,
            #[cfg(target_arch = "x86_64")]
            strips: avx512::is_available().then(|| {
                // SAFETY: the CPU has the instructions.
                unsafe { avx512::strips(matrix, [inner, columns]) }
            }),
        }
    }

    /// `to[r * stride + c] = scale * sum over k of x[r, k] y[k, c]` on one core, for rows `[rows, inner]` whose numbers
    /// lie side by side.
    ///
    /// # Panics
    /// Where a matrix does not lie inside its slice.
    pub(super) fn product(
        &self,
        x: Strided<'_>,
        rows: usize,
        scale: f32,
        to: &mut [f32],
        stride: usize,
    ) {
        let shape = [rows, self.inner, self.columns];
        #[cfg(target_arch = "x86_64")]
        if let Some(strips) = &self.strips {
            let end = rows.saturating_sub(1) * stride + self.columns;
            assert!(
                x.column == 1
                    && x.holds(rows, self.inner)
                    && (rows == 0 || end <= to.len())
                    && self.columns <= stride,
                "a matrix of the product does not lie inside its slice"
            );
            // SAFETY: the strips are there where the CPU has the instructions alone.
            unsafe { avx512::product(x, strips, shape, scale, to, stride) };
            return;
        }
        product(x, self.matrix, shape, scale, None, to, stride);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::host::product::tests::{assert_product, numbers};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_shape_is_the_sum_that_it_stands_for(
            rows in 0usize..20, inner in 0usize..70, columns in 0usize..80, turned in prop::bool::ANY,
            gap in 0usize..3, seed in 0f32..100.0,
        ) {
            let x = numbers(rows * (inner + gap), seed);
            let y = numbers(inner * columns, seed + 0.5);
            let x = Strided { values: &x, row: inner + gap, column: 1 };
            let y = match turned {
                true => Strided { values: &y, row: 1, column: inner },
                false => Strided::rows(&y, columns),
            };
            let stride = columns + gap;
            let mut result = vec![7.0; rows * stride];
            Right::new(y, [inner, columns]).product(x, rows, 0.5, &mut result, stride);
            assert_product(x, y, [rows, inner, columns], None, &result, stride)?;
        }
    }

    #[test]
    #[should_panic(expected = "does not lie inside")]
    fn what_lies_outside_is_refused() {
        let right = Right::new(Strided::rows(&[0.0; 6], 2), [3, 2]);
        right.product(Strided::rows(&[0.0; 5], 3), 2, 1.0, &mut [0.0; 4], 2);
    }
}
