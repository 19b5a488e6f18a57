//! Retrieval: rankings and their nDCG.

use std::collections::HashMap;

use kiln_core::index::TopK;

/// Normalised discounted cumulative gain at `k`, as trec_eval defines it: gain is the grade,
/// discount `1 / log2(rank + 1)`. A query without relevant documents scores 0.
pub fn ndcg(ranking: &[usize], grades: &HashMap<usize, f64>, k: usize) -> f64 {
    let discounted = |gains: &mut dyn Iterator<Item = f64>| -> f64 {
        gains.take(k).enumerate().map(|(rank, gain)| gain / (rank as f64 + 2.0).log2()).sum()
    };
    let mut ideal: Vec<f64> = grades.values().copied().filter(|grade| *grade > 0.0).collect();
    ideal.sort_by(|a, b| b.total_cmp(a));
    let best = discounted(&mut ideal.into_iter());
    let found = discounted(&mut ranking.iter().map(|row| grades.get(row).copied().unwrap_or(0.0)));
    if best > 0.0 { found / best } else { 0.0 }
}

/// The `k` nearest corpus rows of each query by inner product.
///
/// # Errors
/// Vectors of different widths.
pub fn dense_rankings(
    queries: &[Vec<f32>],
    corpus: &[Vec<f32>],
    k: usize,
) -> kiln_core::Result<Vec<Vec<usize>>> {
    let mut search = TopK::new(queries, k)?;
    search.push(corpus)?;
    Ok(search
        .finish()
        .into_iter()
        .map(|hits| hits.into_iter().map(|hit| hit.row).collect())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_trec_eval() {
        let grades: HashMap<usize, f64> = [(3, 1.0), (7, 2.0), (9, 0.0)].into();
        // (1/log2 3 + 2/log2 4) / (2/log2 2 + 1/log2 3) = (0.6309 + 1) / (2 + 0.6309)
        assert!((ndcg(&[9, 3, 7], &grades, 10) - 0.619_906).abs() < 1e-6);
        assert!((ndcg(&[7, 3], &grades, 10) - 1.0).abs() < 1e-12);
        assert_eq!(ndcg(&[1, 2], &grades, 10), 0.0);
        assert_eq!(ndcg(&[1, 2, 7], &grades, 2), 0.0);
        assert_eq!(ndcg(&[1], &HashMap::new(), 10), 0.0);
    }
}
