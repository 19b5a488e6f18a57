//! Rankings of vectors that are in memory.

use std::collections::HashMap;

use crate::ranking::Ranking;
use crate::top_k::ParallelTopK;

/// nDCG at `k` of a ranking of rows under the grades of some of them, and of documents that no
/// ranking can hold.
pub fn ndcg(ranking: &[usize], grades: &HashMap<usize, f64>, absent: &[f64], k: usize) -> f64 {
    let retrieved = ranking.iter().map(|row| grades.get(row).copied()).collect();
    let judged = grades.values().chain(absent).copied().collect();
    Ranking { retrieved, judged, ..Ranking::default() }.ndcg(k)
}

/// The `k` nearest corpus rows of each query by inner product.
///
/// # Errors
/// Vectors of different widths.
pub fn dense_rankings(
    queries: &[Vec<f32>],
    corpus: &[Vec<f32>],
    k: usize,
) -> kiln_embed::Result<Vec<Vec<usize>>> {
    let mut search = ParallelTopK::new(queries, k)?;
    search.push(corpus)?;
    let rows = |hits: Vec<kiln_embed::index::Hit>| hits.into_iter().map(|hit| hit.row).collect();
    Ok(search.finish().into_iter().map(rows).collect())
}
