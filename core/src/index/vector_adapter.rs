//! A linear map of vectors of norm 1 into another space: what a residual adapter does to a vector, without a backend.

use std::fmt::Display;

use super::{Index, IndexPrecision, check_length, dot};
use crate::{Error, Result};

/// `v' = W v / |W v|`, with `W = 1 + s (A B)^T` as it was trained: a low-rank step beside the vector itself, zero at
/// first (LoRA, arXiv:2106.09685), behind an embedder that stays as it is, the same for queries and documents
/// (Search-Adaptor, arXiv:2310.08750). Linear and without a bias, it gives the same whether vectors are divided by
/// their norm before it or not, so it is a `Dense` module of sentence-transformers before `Normalize`, too.
#[derive(Debug, Clone, PartialEq)]
pub struct VectorAdapter {
    width: usize,
    weights: Vec<f32>,
}

impl VectorAdapter {
    /// A map of vectors of a width by its weights `[out, in]`, row by row.
    ///
    /// # Errors
    /// Weights of another number than the width's square, or that are not finite.
    pub fn new(width: usize, weights: Vec<f32>) -> Result<Self> {
        if width == 0 || width.checked_mul(width) != Some(weights.len()) {
            return Err(Error::invalid(format!(
                "an adapter of vectors of {width} dimensions has {} weights",
                weights.len()
            )));
        }
        if weights.iter().any(|weight| !weight.is_finite()) {
            return Err(Error::invalid("an adapter of vectors has weights that are not finite"));
        }
        Ok(Self { width, weights })
    }

    /// The map that changes nothing.
    pub fn identity(width: usize) -> Self {
        let one = |i: usize| if i / width == i % width { 1.0 } else { 0.0 };
        Self { width, weights: (0..width * width).map(one).collect() }
    }

    /// Numbers of a vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The weights `[out, in]`, row by row.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// A vector in the other space, of norm 1; `what` names it in the error.
    ///
    /// # Errors
    /// A vector of another width, or one that has no direction, before or after.
    pub fn apply(&self, vector: &[f32], what: impl Display) -> Result<Vec<f32>> {
        if vector.len() != self.width {
            return Err(Error::invalid(format!(
                "{what} has {} dimensions, the adapter is for {}",
                vector.len(),
                self.width
            )));
        }
        let mut mapped: Vec<f32> =
            self.weights.chunks_exact(self.width).map(|row| dot(row, vector)).collect();
        check_length(&mapped, format_args!("{what}, adapted,"))?;
        let norm = dot(&mapped, &mapped).sqrt();
        mapped.iter_mut().for_each(|value| *value /= norm);
        Ok(mapped)
    }
}

impl Index {
    /// The index with all its vectors in the adapter's space, in the same precision: of `f32` exactly, of int8 rows
    /// rounded a second time.
    ///
    /// # Errors
    /// Vectors of another width than the adapter's; the precision `binary`, which keeps signs alone.
    pub fn adapted(&self, adapter: &VectorAdapter) -> Result<Self> {
        if self.precision() == IndexPrecision::Binary {
            return Err(Error::invalid(
                "an index in binary keeps the signs of its vectors alone, which do not say where an adapter moves them; \
                 embed its texts again, or keep them in binary+int8",
            ));
        }
        if self.dimensions() != adapter.width {
            return Err(Error::invalid(format!(
                "the index has vectors of {} dimensions, the adapter is for {}",
                self.dimensions(),
                adapter.width
            )));
        }
        let mut adapted = Self::new(self.dimensions(), self.precision())?;
        for row in 0..self.len() {
            let vector = adapter.apply(&self.vector(row)?, format_args!("row {row}"))?;
            adapted.push(&vector)?;
        }
        Ok(adapted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::cosine;

    /// A turn and a stretch of the plane.
    fn adapter() -> VectorAdapter {
        VectorAdapter::new(2, vec![1.0, 0.5, -0.25, 2.0]).unwrap()
    }

    #[test]
    fn the_map_is_the_product_divided_by_its_norm() {
        let mapped = adapter().apply(&[0.6, 0.8], "it").unwrap();
        let [x, y] = [0.6 + 0.4, -0.15 + 1.6f32];
        let norm = (x * x + y * y).sqrt();
        assert!((mapped[0] - x / norm).abs() < 1e-6 && (mapped[1] - y / norm).abs() < 1e-6);
        // Whatever the norm before.
        let longer = adapter().apply(&[6.0, 8.0], "it").unwrap();
        assert!((cosine(&mapped, &longer) - 1.0).abs() < 1e-6);
        assert_eq!(VectorAdapter::identity(2).apply(&[0.6, 0.8], "it").unwrap(), [0.6, 0.8]);
    }

    #[test]
    fn an_index_is_mapped_row_by_row() {
        let rows = [[1.0, 0.0], [0.6, 0.8], [-0.8, 0.6]];
        for precision in [IndexPrecision::F32, IndexPrecision::Int8, IndexPrecision::BinaryInt8] {
            let mut index = Index::new(2, precision).unwrap();
            rows.iter().for_each(|row| index.push(row).unwrap());
            let adapted = index.adapted(&adapter()).unwrap();
            assert_eq!((adapted.len(), adapted.precision()), (3, precision));
            for (row, vector) in rows.iter().enumerate() {
                let expected = adapter().apply(vector, "it").unwrap();
                let least = if precision == IndexPrecision::F32 { 1.0 - 1e-6 } else { 0.9999 };
                assert!(cosine(&adapted.vector(row).unwrap(), &expected) >= least, "{precision:?}");
            }
        }
    }

    #[test]
    fn what_cannot_be_mapped_is_said() {
        let said = |result: Result<Index>| result.unwrap_err().to_string();
        let binary = Index::new(2, IndexPrecision::Binary).unwrap();
        assert!(said(binary.adapted(&adapter())).contains("signs of its vectors alone"));
        let wide = Index::new(3, IndexPrecision::F32).unwrap();
        assert!(said(wide.adapted(&adapter())).contains("of 3 dimensions, the adapter is for 2"));
        let mut flat = Index::new(2, IndexPrecision::F32).unwrap();
        flat.push(&[0.0, 1.0]).unwrap();
        let zero = VectorAdapter::new(2, vec![1.0, 0.0, 1.0, 0.0]).unwrap();
        assert!(said(flat.adapted(&zero)).contains("row 0, adapted, has length 0"));
        assert!(VectorAdapter::new(2, vec![1.0; 3]).is_err());
        assert!(VectorAdapter::new(1, vec![f32::NAN]).is_err());
        assert!(adapter().apply(&[1.0], "it").is_err());
    }
}
