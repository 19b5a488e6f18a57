//! Two models beside each other: differences of tasks, whether a kind of task differs (Wilcoxon's
//! signed-rank test over its tasks), whether a task differs (paired bootstrap over its parts).

use std::collections::BTreeMap;

use rayon::prelude::*;
use serde::Serialize;
use statrs::distribution::{ContinuousCDF as _, Normal};

use super::metrics::ranks;
use super::random::NumpyRandom;
use super::results::{ModelResults, TaskResult};
use super::task::TaskKind;

/// Fewest tasks of a kind for a signed-rank test (Pooling and Attention, section 4: with four or
/// fewer no outcome can be significant at 0.05 on two sides).
const FEWEST: usize = 5;
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

/// Draws a task's parts again and again, the same for both models, and looks at the difference.
/// `None` where the two were not evaluated on the same parts, or where the parts do not make up
/// the main score (a suite may name another one).
pub fn paired_bootstrap(a: &TaskResult, b: &TaskResult) -> Option<Interval> {
    let count = a.parts.len();
    if count < 2 || count != b.parts.len() {
        return None;
    }
    let all: Vec<usize> = (0..count).collect();
    let is_sum_of_parts = |result: &TaskResult| {
        result.main_score().is_some_and(|score| (result.parts.score(&all) - score).abs() < 1e-6)
    };
    if !is_sum_of_parts(a) || !is_sum_of_parts(b) {
        return None;
    }
    let mut differences: Vec<f64> = (0..DRAWS as u32)
        .into_par_iter()
        .map(|draw| {
            let rows = NumpyRandom::new(SEED + draw).integers(count, count);
            b.parts.score(&rows) - a.parts.score(&rows)
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

/// A task in both models.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskDifference {
    /// Task.
    pub task: String,
    /// Kind.
    pub kind: TaskKind,
    /// Name of the score.
    pub metric: String,
    /// The first model's score.
    pub a: f64,
    /// The second's.
    pub b: f64,
    /// Second less first.
    pub difference: f64,
    /// The bootstrap over the task's parts.
    pub bootstrap: Option<Interval>,
}

/// A kind of task in both models.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KindDifference {
    /// Kind, or "all".
    pub kind: String,
    /// Tasks of the kind that both have.
    pub tasks: usize,
    /// Mean of the first model.
    pub a: f64,
    /// Mean of the second.
    pub b: f64,
    /// Second less first.
    pub difference: f64,
    /// Tasks that the second does better.
    pub wins: usize,
    /// The signed-rank test; refused for 4 or fewer tasks.
    pub wilcoxon: Option<Wilcoxon>,
}

/// Two models beside each other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The first model.
    pub a: String,
    /// The second.
    pub b: String,
    /// Tasks that both have.
    pub tasks: Vec<TaskDifference>,
    /// Kinds, and all tasks together.
    pub kinds: Vec<KindDifference>,
    /// Tasks that only one has, or whose score is not defined.
    pub left_out: Vec<String>,
}

impl Comparison {
    /// Compares what both models have.
    pub fn of(a: &ModelResults, b: &ModelResults) -> Self {
        let name = |results: &ModelResults| format!("{} ({})", results.model, results.revision);
        let mut tasks = Vec::new();
        let mut left_out = Vec::new();
        for ours in &a.tasks {
            let theirs = b.tasks.iter().find(|other| {
                other.task.name == ours.task.name && other.task.kind == ours.task.kind
            });
            let scores = theirs.and_then(|theirs| Some((ours.main_score()?, theirs.main_score()?)));
            let (Some(theirs), Some((score_a, score_b))) = (theirs, scores) else {
                left_out.push(ours.task.name.clone());
                continue;
            };
            tasks.push(TaskDifference {
                task: ours.task.name.clone(),
                kind: ours.task.kind,
                metric: ours.task.main_score().into(),
                a: score_a,
                b: score_b,
                difference: score_b - score_a,
                bootstrap: paired_bootstrap(ours, theirs),
            });
        }
        let only_b = b
            .tasks
            .iter()
            .filter(|theirs| !a.tasks.iter().any(|ours| ours.task.name == theirs.task.name));
        left_out.extend(only_b.map(|theirs| theirs.task.name.clone()));
        let kinds: std::collections::BTreeSet<TaskKind> =
            tasks.iter().map(|task| task.kind).collect();
        let summary = |name: String, tasks: Vec<&TaskDifference>| {
            let mean = |of: fn(&TaskDifference) -> f64| {
                tasks.iter().map(|task| of(task)).sum::<f64>() / tasks.len() as f64
            };
            let differences: Vec<f64> = tasks.iter().map(|task| task.difference).collect();
            KindDifference {
                kind: name,
                tasks: tasks.len(),
                a: mean(|task| task.a),
                b: mean(|task| task.b),
                difference: mean(|task| task.difference),
                wins: differences.iter().filter(|&&difference| difference > 0.0).count(),
                wilcoxon: (tasks.len() >= FEWEST).then(|| wilcoxon(&differences)),
            }
        };
        let mut rows: Vec<KindDifference> = kinds
            .into_iter()
            .map(|kind| {
                summary(kind.to_string(), tasks.iter().filter(|task| task.kind == kind).collect())
            })
            .collect();
        if !tasks.is_empty() {
            rows.push(summary("all".into(), tasks.iter().collect()));
        }
        Self { a: name(a), b: name(b), tasks, kinds: rows, left_out }
    }

    /// The tasks as rows of cells.
    pub fn task_rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![
            ["type", "task", "measure", "A", "B", "B - A", "95 % of draws", "p"]
                .map(String::from)
                .to_vec(),
        ];
        rows.extend(self.tasks.iter().map(|task| {
            let (range, p) = match task.bootstrap {
                Some(result) => (
                    format!("{:+.2} to {:+.2}", 100.0 * result.low, 100.0 * result.high),
                    format!("{:.3}", result.p),
                ),
                None => ("not drawn".into(), String::new()),
            };
            let points = |score: f64| format!("{:.2}", 100.0 * score);
            let kind = task.kind.to_string();
            let difference = format!("{:+.2}", 100.0 * task.difference);
            let metric = task.metric.clone();
            vec![
                kind,
                task.task.clone(),
                metric,
                points(task.a),
                points(task.b),
                difference,
                range,
                p,
            ]
        }));
        rows
    }

    /// The kinds as rows of cells: the papers' table of effects.
    pub fn kind_rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![
            ["type", "tasks", "A", "B", "B - A", "B better in", "signed-rank p"]
                .map(String::from)
                .to_vec(),
        ];
        rows.extend(self.kinds.iter().map(|kind| {
            let p = match kind.wilcoxon {
                Some(test) => {
                    let mark = if test.p < 0.05 { " *" } else { "" };
                    let how = if test.exact { "" } else { " (normal)" };
                    format!("{:.4}{mark}{how}", test.p)
                }
                None => format!("refused: {FEWEST} tasks are needed"),
            };
            vec![
                kind.kind.clone(),
                kind.tasks.to_string(),
                format!("{:.2}", 100.0 * kind.a),
                format!("{:.2}", 100.0 * kind.b),
                format!("{:+.2}", 100.0 * kind.difference),
                kind.wins.to_string(),
                p,
            ]
        }));
        rows
    }
}
