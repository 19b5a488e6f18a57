//! Correlation, as scipy computes it.

/// Pearson's correlation. NaN where all values of a side are equal, or there are fewer than two.
pub fn pearson(a: &[f64], b: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let (mut product, mut left, mut right) = (0.0, 0.0, 0.0);
    for (x, y) in a.iter().zip(b) {
        let (x, y) = (x - mean_a, y - mean_b);
        product += x * y;
        left += x * x;
        right += y * y;
    }
    let constant = |values: &[f64]| values.windows(2).all(|pair| pair[0] == pair[1]);
    if a.len() < 2 || constant(a) || constant(b) {
        return f64::NAN;
    }
    (product / (left.sqrt() * right.sqrt())).clamp(-1.0, 1.0)
}

/// Spearman's correlation: Pearson's correlation of the ranks, ties at their mean rank.
pub fn spearman(a: &[f64], b: &[f64]) -> f64 {
    pearson(&ranks(a), &ranks(b))
}

/// Ranks from 1, ties at their mean rank.
pub fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    while start < order.len() {
        let tied =
            order[start..].iter().take_while(|&&i| values[i] == values[order[start]]).count();
        // A NaN equals nothing, itself included.
        let tied = tied.max(1);
        let rank = start as f64 + (tied as f64 + 1.0) / 2.0;
        order[start..start + tied].iter().for_each(|&i| ranks[i] = rank);
        start += tied;
    }
    ranks
}
