//! Pair classification.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use kiln_metrics::{ScoreParts, pair_scores};

use super::sts::{Likeness, both_sides};
use super::{Evaluation, number, read_rows, split_of, text};
use crate::data::{FIRST_TEXT, SECOND_TEXT};
use crate::eval::source::TaskSource;
use crate::eval::task::{Task, TaskOutcome};

pub(super) fn evaluate(
    task: &Task,
    source: &TaskSource,
    evaluation: &Evaluation<'_>,
) -> Result<TaskOutcome> {
    let (split, files) = split_of(task, source)?;
    let columns = [&FIRST_TEXT[..], &SECOND_TEXT, &["labels", "label"]].concat();
    let rows = read_rows(&files, &columns, |fields| {
        let pair = (text(fields, &FIRST_TEXT)?, text(fields, &SECOND_TEXT)?);
        match number(fields, &["label", "labels", "score"])? {
            0.0 => Ok((pair, false)),
            1.0 => Ok((pair, true)),
            other => bail!("the label is {other}, neither 0 nor 1"),
        }
    })?;
    let (pairs, positive): (Vec<_>, Vec<bool>) = rows.into_iter().unzip();
    let [left, right] = both_sides(evaluation, &pairs)?;
    let Likeness { cosine, dot, euclidean, manhattan } = Likeness::of(&left, &right);
    let mut scores: BTreeMap<String, f64> = BTreeMap::new();
    let named = [
        ("similarity", &cosine),
        ("cosine", &cosine),
        ("dot", &dot),
        ("euclidean", &euclidean),
        ("manhattan", &manhattan),
    ];
    for (name, result) in named {
        for (metric, value) in pair_scores(result, &positive) {
            scores.insert(format!("{name}_{metric}"), value);
            let best = scores.entry(format!("max_{metric}")).or_insert(value);
            *best = best.max(value);
        }
    }
    let scores_of = vec![cosine, dot, euclidean, manhattan];
    Ok(TaskOutcome {
        scores,
        parts: ScoreParts::AveragePrecision { scores: scores_of, positive },
        split,
    })
}
