//! Whether two models differ: in a kind of task by Wilcoxon's signed-rank test over its tasks, in a task
//! by a paired bootstrap over its parts.

use std::collections::{BTreeMap, HashMap};

use rayon::prelude::*;
use serde::Serialize;
use statrs::distribution::{ContinuousCDF as _, Normal};

use crate::correlation::ranks;
use crate::parts::ScoreParts;
use crate::random::NumpyRandom;

/// Largest number of differences whose distribution is counted out.
const EXACT: usize = 25;
/// Draws of the bootstrap.
const DRAWS: usize = 2000;
const SEED: u32 = 42;

/// A signed-rank test.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Wilcoxon {
    /// Differences that are not zero.
    pub differences: usize,
    /// The smaller of the sums of positive and of negative ranks.
    pub statistic: f64,
    /// Two-sided p.
    pub p: f64,
    /// Whether p was counted out rather than approximated.
    pub exact: bool,
}

/// Wilcoxon's signed-rank test of differences; zeros are left out. Exact for up to 25 different
/// sizes, else by the normal distribution with a correction for ties, as scipy does.
pub fn wilcoxon(differences: &[f64]) -> Wilcoxon {
    let kept: Vec<f64> =
        differences.iter().copied().filter(|difference| *difference != 0.0).collect();
    let count = kept.len();
    let sizes: Vec<f64> = kept.iter().map(|difference| difference.abs()).collect();
    let ranks = ranks(&sizes);
    let positive: f64 =
        kept.iter().zip(&ranks).filter(|(size, _)| **size > 0.0).map(|(_, rank)| rank).sum();
    let total = (count * (count + 1)) as f64 / 2.0;
    let statistic = positive.min(total - positive);
    let mut ties: BTreeMap<u64, f64> = BTreeMap::new();
    ranks.iter().for_each(|rank| *ties.entry(rank.to_bits()).or_default() += 1.0);
    let tied = ties.values().any(|&times| times > 1.0);
    if count == 0 {
        return Wilcoxon { differences: 0, statistic: 0.0, p: 1.0, exact: true };
    }
    if count <= EXACT && !tied {
        // How many of the 2^n choices of signs give each sum.
        let mut ways = vec![0.0f64; total as usize + 1];
        ways[0] = 1.0;
        for rank in 1..=count {
            for sum in (rank..ways.len()).rev() {
                ways[sum] += ways[sum - rank];
            }
        }
        let at_most: f64 = ways[..=statistic as usize].iter().sum();
        let p = (2.0 * at_most / 2f64.powi(count as i32)).min(1.0);
        return Wilcoxon { differences: count, statistic, p, exact: true };
    }
    let n = count as f64;
    let correction: f64 = ties.values().map(|times| times.powi(3) - times).sum();
    let deviation = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0 - correction / 48.0).sqrt();
    let z = (statistic - total / 2.0) / deviation;
    let p = (2.0 * Normal::standard().cdf(z)).min(1.0);
    Wilcoxon { differences: count, statistic, p, exact: false }
}

/// A difference with what a bootstrap says of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// Lower end of the middle 95 % of draws.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Twice the share of draws on the rarer side of zero.
    pub p: f64,
}

/// Draws a task's parts again and again, the same for both models, and looks at the difference; each
/// model is its parts and the score that it got. `None` where the two were not evaluated on the same
/// parts, or where the parts do not make up the score (a suite may name another one).
pub fn paired_bootstrap(a: (&ScoreParts, f64), b: (&ScoreParts, f64)) -> Option<Interval> {
    let count = a.0.len();
    bootstrap(a, b, count, &|draw| draw.integers(count, count))
}

/// As [`paired_bootstrap`], but draws clusters with all of their parts: parts of one cluster, such as the questions
/// about one document, are alike, and drawn one by one they would make chance look smaller than it is. `clusters`
/// has the cluster of each part.
pub fn clustered_bootstrap(
    a: (&ScoreParts, f64),
    b: (&ScoreParts, f64),
    clusters: &[usize],
) -> Option<Interval> {
    let mut places: HashMap<usize, usize> = HashMap::new();
    let mut parts: Vec<Vec<usize>> = Vec::new();
    for (part, cluster) in clusters.iter().enumerate() {
        let place = *places.entry(*cluster).or_insert(parts.len());
        if place == parts.len() {
            parts.push(Vec::new());
        }
        parts[place].push(part);
    }
    let count = parts.len();
    if clusters.len() != a.0.len() {
        return None;
    }
    let whole = |draw: &mut NumpyRandom| {
        draw.integers(count, count).into_iter().flat_map(|place| parts[place].clone()).collect()
    };
    bootstrap(a, b, count, &whole)
}

/// What `draw` draws again and again, of so many parts or clusters of them.
fn bootstrap(
    a: (&ScoreParts, f64),
    b: (&ScoreParts, f64),
    count: usize,
    draw: &(dyn Fn(&mut NumpyRandom) -> Vec<usize> + Sync),
) -> Option<Interval> {
    if count < 2 || a.0.len() != b.0.len() {
        return None;
    }
    let all: Vec<usize> = (0..a.0.len()).collect();
    let make_up = |(parts, score): (&ScoreParts, f64)| (parts.score(&all) - score).abs() < 1e-6;
    if !make_up(a) || !make_up(b) {
        return None;
    }
    let mut differences: Vec<f64> = (0..DRAWS as u32)
        .into_par_iter()
        .map(|number| {
            let rows = draw(&mut NumpyRandom::new(SEED + number));
            b.0.score(&rows) - a.0.score(&rows)
        })
        .filter(|difference| difference.is_finite())
        .collect();
    if differences.len() < DRAWS / 2 {
        return None;
    }
    differences.sort_by(f64::total_cmp);
    let at = |share: f64| differences[((differences.len() - 1) as f64 * share).round() as usize];
    let share = |test: fn(&f64) -> bool| {
        differences.iter().filter(|difference| test(difference)).count() as f64
            / differences.len() as f64
    };
    let p = (2.0 * share(|d| *d <= 0.0).min(share(|d| *d >= 0.0))).min(1.0);
    Some(Interval { low: at(0.025), high: at(0.975), p })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn means(values: &[f64]) -> ScoreParts {
        ScoreParts::Mean { values: values.to_vec() }
    }

    #[test]
    fn clusters_are_drawn_whole() {
        // Three parts of one cluster are one better, and the one of the other as good. Two clusters are drawn: twice
        // the first (1), both (3 of 4), or twice the second (0), the last in a quarter of the draws.
        let (a, b) = (means(&[0.0; 4]), means(&[1.0, 0.0, 1.0, 1.0]));
        let found = clustered_bootstrap((&a, 0.0), (&b, 0.75), &[7, 3, 7, 7]).unwrap();
        assert_eq!((found.low, found.high), (0.0, 1.0));
        assert!((found.p - 0.5).abs() < 0.05, "{found:?}");
        // One by one they look far surer.
        let single = paired_bootstrap((&a, 0.0), (&b, 0.75)).unwrap();
        assert!(single.low >= 0.25 && single.p < 0.1, "{single:?}");
    }

    #[test]
    fn clusters_of_one_part_are_its_draws() {
        let (a, b) = (means(&[0.1, 0.5, 0.3]), means(&[0.4, 0.2, 0.9]));
        let (a, b) = ((&a, 0.3), (&b, 0.5));
        assert_eq!(clustered_bootstrap(a, b, &[5, 1, 2]), paired_bootstrap(a, b));
        assert_eq!(clustered_bootstrap(a, b, &[5, 5, 5]), None);
        assert_eq!(clustered_bootstrap(a, b, &[1, 2]), None);
    }
}
