//! Rank correlation.

/// Spearman's correlation: Pearson's correlation of the ranks, ties at their mean rank. 0 where
/// all values of a side are equal.
pub fn spearman(a: &[f64], b: &[f64]) -> f64 {
    let (a, b) = (ranks(a), ranks(b));
    let mean = (a.len() as f64 + 1.0) / 2.0;
    let (mut product, mut left, mut right) = (0.0, 0.0, 0.0);
    for (x, y) in a.iter().zip(&b) {
        let (x, y) = (x - mean, y - mean);
        product += x * y;
        left += x * x;
        right += y * y;
    }
    if left > 0.0 && right > 0.0 { product / (left * right).sqrt() } else { 0.0 }
}

/// Ranks from 1, ties at their mean rank.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    while start < order.len() {
        let tied =
            order[start..].iter().take_while(|&&at| values[at] == values[order[start]]).count();
        let rank = start as f64 + (tied as f64 + 1.0) / 2.0;
        order[start..start + tied].iter().for_each(|&at| ranks[at] = rank);
        start += tied;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_scipy() {
        // scipy.stats.spearmanr([1, 2, 2, 4, 5.5], [3, 1, 4, 4, 9]) = 0.7631578947368421
        let rho = spearman(&[1.0, 2.0, 2.0, 4.0, 5.5], &[3.0, 1.0, 4.0, 4.0, 9.0]);
        assert!((rho - 0.763_157_894_736_842_1).abs() < 1e-12, "{rho}");
        assert!((spearman(&[1.0, 2.0, 3.0], &[9.0, 4.0, 1.0]) + 1.0).abs() < 1e-12);
        assert_eq!(spearman(&[1.0, 1.0], &[1.0, 2.0]), 0.0);
    }
}
