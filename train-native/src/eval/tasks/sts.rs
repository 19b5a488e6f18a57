//! Semantic textual similarity: correlation of the vectors' likeness with people's scores.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use kiln_metrics::{ScoreParts, pearson, spearman};

use super::{Evaluation, number, read_rows, split_of, text};
use crate::data::{FIRST_TEXT, PAIR_SCORE, SECOND_TEXT};
use crate::eval::source::TaskSource;
use crate::eval::task::{Task, TaskOutcome};

/// Four likenesses of each pair, larger is more alike.
pub(super) struct Likeness {
    pub(super) cosine: Vec<f64>,
    pub(super) dot: Vec<f64>,
    pub(super) euclidean: Vec<f64>,
    pub(super) manhattan: Vec<f64>,
}

impl Likeness {
    pub(super) fn of(left: &[Vec<f32>], right: &[Vec<f32>]) -> Self {
        let sum = |of: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
            let pairs = left.iter().zip(right);
            let wide = |(a, b): (&f32, &f32)| of(f64::from(*a), f64::from(*b));
            pairs.map(|(a, b)| a.iter().zip(b).map(wide).sum()).collect()
        };
        let dot = sum(&|a, b| a * b);
        let squares = [sum(&|a, _| a * a), sum(&|_, b| b * b)];
        let norms = squares[0].iter().zip(&squares[1]).map(|(a, b)| (a * b).sqrt());
        let cosine =
            dot.iter().zip(norms).map(|(dot, norm)| if norm > 0.0 { dot / norm } else { 0.0 });
        Self {
            cosine: cosine.collect(),
            euclidean: sum(&|a, b| (a - b) * (a - b)).iter().map(|square| -square.sqrt()).collect(),
            manhattan: sum(&|a, b| (a - b).abs()).iter().map(|sum| -sum).collect(),
            dot,
        }
    }
}

/// Vectors of the left texts and of the right ones.
pub(super) fn both_sides(
    evaluation: &Evaluation<'_>,
    pairs: &[(String, String)],
) -> Result<[Vec<Vec<f32>>; 2]> {
    let left: Vec<String> = pairs.iter().map(|pair| pair.0.clone()).collect();
    let right: Vec<String> = pairs.iter().map(|pair| pair.1.clone()).collect();
    let [first, second] = &evaluation.prompts;
    Ok([evaluation.encoder.encode(&left, first)?, evaluation.encoder.encode(&right, second)?])
}

pub(super) fn evaluate(
    task: &Task,
    source: &TaskSource,
    evaluation: &Evaluation<'_>,
) -> Result<TaskOutcome> {
    let (split, files) = split_of(task, source)?;
    let columns = [&FIRST_TEXT[..], &SECOND_TEXT, &["score"]].concat();
    let rows = read_rows(&files, &columns, |fields| {
        let pair = (text(fields, &FIRST_TEXT)?, text(fields, &SECOND_TEXT)?);
        Ok((pair, number(fields, &PAIR_SCORE)?))
    })?;
    if rows.len() < 2 {
        bail!("{}: one pair has no correlation", source.label());
    }
    let (pairs, gold): (Vec<_>, Vec<f64>) = rows.into_iter().unzip();
    let [left, right] = both_sides(evaluation, &pairs)?;
    let likeness = Likeness::of(&left, &right);
    let mut scores = BTreeMap::new();
    let named = [
        ("cosine_", &likeness.cosine),
        ("euclidean_", &likeness.euclidean),
        ("manhattan_", &likeness.manhattan),
        // The model's own similarity, which is the cosine.
        ("", &likeness.cosine),
    ];
    for (name, found) in named {
        scores.insert(format!("{name}pearson"), pearson(&gold, found));
        scores.insert(format!("{name}spearman"), spearman(&gold, found));
    }
    Ok(TaskOutcome { scores, parts: ScoreParts::Spearman { found: likeness.cosine, gold }, split })
}
