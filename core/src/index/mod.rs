//! Exact top-k search by inner product: [`TopK`] over rows that come in blocks, [`CompactIndex`] over
//! rows that are kept in few bytes.

mod compact;

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::{Error, Result};

pub use compact::{CompactIndex, Precision};

/// One found row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit {
    /// Row of the corpus.
    pub row: usize,
    /// Inner product with the query; the cosine where both are normalised.
    pub score: f32,
}

impl Eq for Hit {}

impl Ord for Hit {
    /// The worst hit is the greatest, so that a heap gives it up first; of equal scores the
    /// later row is the worse.
    fn cmp(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then(self.row.cmp(&other.row))
    }
}

impl PartialOrd for Hit {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The k best rows seen so far for each query; rows come in blocks, so that a corpus may be
/// larger than memory.
#[derive(Debug, Clone)]
pub struct TopK {
    k: usize,
    dim: usize,
    queries: Vec<f32>,
    best: Vec<BinaryHeap<Hit>>,
    rows: usize,
}

impl TopK {
    /// A search for queries of one width.
    ///
    /// # Errors
    /// Queries of different widths, or none.
    pub fn new(queries: &[Vec<f32>], k: usize) -> Result<Self> {
        let dim = queries.first().map_or(0, Vec::len);
        if dim == 0 || queries.iter().any(|query| query.len() != dim) {
            return Err(Error::invalid("queries must be vectors of one width"));
        }
        Ok(Self {
            k,
            dim,
            queries: queries.concat(),
            best: vec![BinaryHeap::with_capacity(k + 1); queries.len()],
            rows: 0,
        })
    }

    /// Rows seen so far.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Rows that are among the best of some query so far, in no order and possibly repeated.
    pub fn best_rows(&self) -> impl Iterator<Item = usize> {
        self.best.iter().flatten().map(|hit| hit.row)
    }

    /// Looks at the next rows of the corpus.
    ///
    /// # Errors
    /// A row of another width.
    pub fn push(&mut self, rows: &[Vec<f32>]) -> Result<()> {
        for row in rows {
            if row.len() != self.dim {
                return Err(Error::invalid(format!(
                    "row {} has {} dimensions, the queries have {}",
                    self.rows,
                    row.len(),
                    self.dim
                )));
            }
            for (query, best) in self.queries.chunks_exact(self.dim).zip(&mut self.best) {
                let hit = Hit { row: self.rows, score: dot(query, row) };
                if best.len() < self.k {
                    best.push(hit);
                } else if let Some(mut worst) = best.peek_mut()
                    && hit < *worst
                {
                    *worst = hit;
                }
            }
            self.rows += 1;
        }
        Ok(())
    }

    /// The hits of each query, best first.
    pub fn finish(self) -> Vec<Vec<Hit>> {
        self.best.into_iter().map(BinaryHeap::into_sorted_vec).collect()
    }
}

/// Inner product; eight partial sums, so that the compiler can use SIMD.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_chunks, a_rest) = a.as_chunks::<8>();
    let (b_chunks, b_rest) = b.as_chunks::<8>();
    let mut sums = [0.0f32; 8];
    for (x, y) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..8 {
            sums[lane] += x[lane] * y[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f32>() + rest
}

/// Cosine of two vectors; 0 where one of them is zero.
pub fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    if norms > 0.0 { dot(a, b) / norms } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_sorting_everything(
            rows in proptest::collection::vec(proptest::collection::vec(-2i8..3, 5), 0..40),
            query in proptest::collection::vec(-2i8..3, 5), k in 0usize..12, block in 1usize..7,
        ) {
            let float = |row: &Vec<i8>| row.iter().map(|&x| f32::from(x)).collect::<Vec<_>>();
            let rows: Vec<Vec<f32>> = rows.iter().map(float).collect();
            let query = float(&query);
            let mut search = TopK::new(std::slice::from_ref(&query), k).unwrap();
            for block in rows.chunks(block) {
                search.push(block).unwrap();
            }
            // Rust's empty sum is -0, which is below 0 in the order of all floats.
            let product = |row: &Vec<f32>| row.iter().zip(&query).map(|(x, y)| x * y).sum::<f32>() + 0.0;
            let mut all: Vec<(usize, f32)> = rows.iter().map(product).enumerate().collect();
            all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            all.truncate(k);
            let found: Vec<(usize, f32)> =
                search.finish().remove(0).into_iter().map(|hit| (hit.row, hit.score)).collect();
            prop_assert_eq!(found, all);
        }
    }

    #[test]
    fn widths_must_agree() {
        assert!(TopK::new(&[], 3).is_err());
        let mut search = TopK::new(&[vec![1.0, 0.0]], 3).unwrap();
        assert!(search.push(&[vec![1.0]]).is_err());
    }
}
