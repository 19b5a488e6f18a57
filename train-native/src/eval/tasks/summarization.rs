//! Summarization: whether summaries that are like the human ones are those that people score high
//! (SummEval's way: the best likeness over the human summaries, correlated a document at a time).

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use kiln_embed::index::{cosine, dot};
use kiln_metrics::{ScoreParts, pearson, spearman};
use serde_json::Value;

use super::{Evaluation, read_rows, split_of, texts};
use crate::eval::source::TaskSource;
use crate::eval::task::{Task, TaskOutcome};

/// Human summaries, machine summaries, and people's scores of those.
type Document = (Vec<String>, Vec<String>, Vec<f64>);

pub(super) fn evaluate(
    task: &Task,
    source: &TaskSource,
    evaluation: &Evaluation<'_>,
) -> Result<TaskOutcome> {
    let (split, files) = split_of(task, source)?;
    let documents: Vec<Document> = read_rows(&files, &[], |fields| {
        let list = fields.get("relevance").or_else(|| fields.get("scores"));
        let scores: Option<Vec<f64>> = list
            .and_then(Value::as_array)
            .and_then(|scores| scores.iter().map(Value::as_f64).collect());
        let Some(scores) = scores else { bail!("no list of numbers \"relevance\"") };
        let (human, machine) =
            (texts(fields, "human_summaries")?, texts(fields, "machine_summaries")?);
        if machine.len() != scores.len() || human.is_empty() {
            bail!(
                "{} human summaries, {} by machines, {} scores",
                human.len(),
                machine.len(),
                scores.len()
            );
        }
        Ok((human, machine, scores))
    })?;
    let gather = |of: fn(&Document) -> &Vec<String>| -> Result<Vec<Vec<Vec<f32>>>> {
        let all: Vec<String> = documents.iter().flat_map(|one| of(one).clone()).collect();
        let mut vectors = evaluation.encoder.encode(&all, &evaluation.prompts[0])?.into_iter();
        Ok(documents.iter().map(|one| vectors.by_ref().take(of(one).len()).collect()).collect())
    };
    let (human, machine) = (gather(|one| &one.0)?, gather(|one| &one.1)?);
    let mut values: [Vec<f64>; 4] = Default::default();
    for ((human, machine), (_, _, gold)) in human.iter().zip(&machine).zip(&documents) {
        let best = |of: fn(&[f32], &[f32]) -> f32| -> Vec<f64> {
            let likest = |summary: &Vec<f32>| {
                human
                    .iter()
                    .map(|one| f64::from(of(summary, one)))
                    .fold(f64::NEG_INFINITY, f64::max)
            };
            machine.iter().map(likest).collect()
        };
        let (cosines, dots) = (best(cosine), best(dot));
        let constant = |values: &[f64]| values.windows(2).all(|pair| pair[0] == pair[1]);
        // A document whose summaries are all alike says nothing.
        if constant(gold) || constant(&cosines) || constant(&dots) {
            continue;
        }
        values[0].push(spearman(gold, &cosines));
        values[1].push(pearson(gold, &cosines));
        values[2].push(spearman(gold, &dots));
        values[3].push(pearson(gold, &dots));
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let names = ["cosine_spearman", "cosine_pearson", "dot_spearman", "dot_pearson"];
    let mut scores: BTreeMap<String, f64> =
        names.iter().zip(&values).map(|(name, values)| (name.to_string(), mean(values))).collect();
    scores.insert("spearman".into(), mean(&values[0]));
    scores.insert("pearson".into(), mean(&values[1]));
    let [values, ..] = values;
    Ok(TaskOutcome { scores, parts: ScoreParts::Mean { values }, split })
}
