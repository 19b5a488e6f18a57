//! Pair classification: how well a threshold on a similarity tells two kinds of pairs apart, by
//! mteb's definitions.

use std::collections::BTreeMap;

use super::classification::average_precision;

/// Accuracy at its best threshold, F1 at its best threshold with the precision and recall there,
/// and average precision. Larger scores mean more alike; a threshold never splits equal scores.
pub fn pair_scores(scores: &[f64], same: &[bool]) -> BTreeMap<&'static str, f64> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let total = same.iter().filter(|&&same| same).count() as f64;
    let mut negatives_left = scores.len() as f64 - total;
    let (mut accuracy, mut hits) = (0.0f64, 0.0);
    let (mut f1, mut precision, mut recall) = (0.0, 0.0, 0.0);
    for (i, pair) in order.windows(2).enumerate() {
        if same[pair[0]] {
            hits += 1.0;
        } else {
            negatives_left -= 1.0;
        }
        if scores[pair[0]] == scores[pair[1]] {
            continue;
        }
        accuracy = accuracy.max((hits + negatives_left) / scores.len() as f64);
        if hits > 0.0 {
            let (p, r) = (hits / (i as f64 + 1.0), hits / total);
            let both = 2.0 * p * r / (p + r);
            if both > f1 {
                (f1, precision, recall) = (both, p, r);
            }
        }
    }
    BTreeMap::from([
        ("accuracy", accuracy),
        ("f1", f1),
        ("precision", precision),
        ("recall", recall),
        ("ap", average_precision(scores, same)),
    ])
}
