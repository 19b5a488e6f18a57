//! Exact top-k search by inner product: [`TopK`] over rows that come in blocks, [`Index`]
//! over rows stored in few bytes, which a [`VectorAdapter`] moves into another space.

mod compact;
mod cosine;
mod vector_adapter;

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt::Display;

use crate::{Error, Result};

pub use compact::{Index, IndexPrecision, quantize_int8};
pub use cosine::cosine_int8;
pub use vector_adapter::VectorAdapter;

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
    /// The worst hit is the greatest, so that a heap drops it first; of equal scores the later row
    /// is worse.
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

/// Whether inner products with a vector are meaningful: its numbers are finite, and so is its
/// squared length, which is above 0; then no product of two such vectors is NaN or infinite
/// (Cauchy-Schwarz).
fn check_length(vector: &[f32], what: impl Display) -> Result<()> {
    let square = dot(vector, vector);
    let problem = if !vector.iter().all(|x| x.is_finite()) {
        "has numbers that are not finite"
    } else if !square.is_finite() {
        "has numbers too large for an inner product"
    } else if square > 0.0 {
        return Ok(());
    } else {
        "has length 0, so nothing is like it"
    };
    Err(Error::invalid(format!("{what} {problem}")))
}

/// Adds a hit to a heap of the k best, if it is one of them.
fn offer(best: &mut BinaryHeap<Hit>, k: usize, hit: Hit) {
    if best.len() < k {
        best.push(hit);
    } else if let Some(mut worst) = best.peek_mut()
        && hit < *worst
    {
        *worst = hit;
    }
}

impl TopK {
    /// A search for queries of one width.
    ///
    /// # Errors
    /// Queries of different widths, or none; one that is zero, or not finite.
    pub fn new(queries: &[Vec<f32>], k: usize) -> Result<Self> {
        let dim = queries.first().map_or(0, Vec::len);
        if dim == 0 || queries.iter().any(|query| query.len() != dim) {
            return Err(Error::invalid("queries must be vectors of one width"));
        }
        for (i, query) in queries.iter().enumerate() {
            check_length(query, format_args!("query {i}"))?;
        }
        Ok(Self {
            k,
            dim,
            queries: queries.concat(),
            // Nothing is reserved for k, which may be any number.
            best: vec![BinaryHeap::new(); queries.len()],
            rows: 0,
        })
    }

    /// Rows seen so far.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Rows among the best of any query so far, in no order and possibly repeated.
    pub fn best_rows(&self) -> impl Iterator<Item = usize> {
        self.best.iter().flatten().map(|hit| hit.row)
    }

    /// Offers the next rows of the corpus.
    ///
    /// # Errors
    /// A row of another width, or one that is zero, or not finite; the error says which.
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
            check_length(row, format_args!("row {}", self.rows))?;
            for (query, best) in self.queries.chunks_exact(self.dim).zip(&mut self.best) {
                offer(best, self.k, Hit { row: self.rows, score: dot(query, row) });
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

    /// Small numbers, not all of them 0.
    fn small() -> impl Strategy<Value = Vec<i8>> {
        let numbers = proptest::collection::vec(-2i8..3, 5);
        numbers.prop_filter("zero", |numbers| numbers.iter().any(|&x| x != 0))
    }

    proptest! {
        #[test]
        fn equals_sorting_everything(
            rows in proptest::collection::vec(small(), 0..40), query in small(),
            k in prop_oneof![0usize..12, Just(usize::MAX)], block in 1usize..7,
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

    #[test]
    fn vectors_without_a_length_are_refused_by_their_number() {
        let good = vec![1.0, 0.0];
        for (bad, why) in [
            (vec![0.0, 0.0], "length 0"),
            (vec![f32::NAN, 1.0], "not finite"),
            (vec![1.0, f32::INFINITY], "not finite"),
            (vec![f32::MAX, 1.0], "too large"),
        ] {
            let mut search = TopK::new(std::slice::from_ref(&good), 3).unwrap();
            let error = search.push(&[good.clone(), bad.clone()]).unwrap_err().to_string();
            assert!(error.contains("row 1") && error.contains(why), "{error}");
            let error = TopK::new(&[good.clone(), bad], 3).unwrap_err().to_string();
            assert!(error.contains("query 1") && error.contains(why), "{error}");
        }
    }
}
