//! Classification metrics, as scikit-learn defines them.

use std::collections::{BTreeMap, BTreeSet};

/// Accuracy, and F1, precision and recall averaged over the labels plainly (macro) and by their
/// number (weighted). What would divide by zero counts as 0.
pub fn classification_scores(truth: &[usize], predicted: &[usize]) -> BTreeMap<String, f64> {
    let labels: BTreeSet<usize> = truth.iter().chain(predicted).copied().collect();
    let right = truth.iter().zip(predicted).filter(|(a, b)| a == b).count();
    let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
    let mut sums = [[0.0; 2]; 3];
    for &label in &labels {
        let count = |test: &dyn Fn(usize, usize) -> bool| {
            truth.iter().zip(predicted).filter(|&(&a, &b)| test(a, b)).count() as f64
        };
        let both = count(&|a, b| a == label && b == label);
        let actual = count(&|a, _| a == label);
        let precision = ratio(both, count(&|_, b| b == label));
        let recall = ratio(both, actual);
        let f1 = ratio(2.0 * precision * recall, precision + recall);
        for (sum, value) in sums.iter_mut().zip([f1, precision, recall]) {
            sum[0] += value / labels.len() as f64;
            sum[1] += value * actual / truth.len() as f64;
        }
    }
    let mut scores = BTreeMap::from([("accuracy".into(), ratio(right as f64, truth.len() as f64))]);
    for (name, [plain, weighted]) in ["f1", "precision", "recall"].iter().zip(sums) {
        scores.insert(name.to_string(), plain);
        scores.insert(format!("{name}_weighted"), weighted);
    }
    scores
}

/// Average precision: the sum over thresholds of the gain in recall times the precision; equal
/// scores are one threshold. 0 without positives.
pub fn average_precision(scores: &[f64], positive: &[bool]) -> f64 {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let all = positive.iter().filter(|&&positive| positive).count() as f64;
    let (mut seen, mut hits, mut sum) = (0.0, 0.0, 0.0);
    let mut rest = &order[..];
    while let Some(&first) = rest.first() {
        let tied = rest.iter().take_while(|&&i| scores[i] == scores[first]).count().max(1);
        let new = rest[..tied].iter().filter(|&&i| positive[i]).count() as f64;
        seen += tied as f64;
        hits += new;
        sum += new * hits / seen;
        rest = &rest[tied..];
    }
    if all > 0.0 { sum / all } else { 0.0 }
}
