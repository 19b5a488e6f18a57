//! Clustering: mini-batch k-means with as many clusters as labels.
//!
//! Rows that hold a list of texts are mteb's older task: each row is clustered by itself. A flat
//! list of labelled texts is its newer one: ten samples with repetition are clustered. A task that
//! names its number of documents is a newer one too (mteb's `.v2`), and its rows make one list.

use std::collections::{BTreeMap, HashSet};

use anyhow::{Result, bail};
use kiln_metrics::{
    PythonRandom, ScoreParts, adjusted_mutual_information, mini_batch_kmeans, v_measure,
};
use rayon::prelude::*;
use serde_json::Value;

use super::{Evaluation, label_numbers, matrix, read_rows, split_of, text, texts};
use crate::eval::source::TaskSource;
use crate::eval::task::{Task, TaskOutcome};

/// mteb's seed.
const SEED: u32 = 42;
/// Rows of a batch: in the older task, and in the newer.
const BATCH: [usize; 2] = [500, 512];
/// Texts of a sample in the newer task.
const SAMPLE: usize = 16_384;

enum Rows {
    /// Texts and labels of each set.
    Set(Vec<String>, Vec<String>),
    /// A text with its labels from coarse to fine.
    Text(String, Vec<String>),
}

pub(super) fn evaluate(
    task: &Task,
    source: &TaskSource,
    evaluation: &Evaluation<'_>,
) -> Result<TaskOutcome> {
    let (split, files) = split_of(task, source)?;
    let rows = read_rows(&files, &[], |fields| {
        let labels = |name| match fields.get(name) {
            Some(Value::Array(values)) => Some(
                values
                    .iter()
                    .map(|value| value.as_str().map_or_else(|| value.to_string(), String::from))
                    .collect::<Vec<_>>(),
            ),
            _ => None,
        };
        if fields.get("sentences").is_some_and(Value::is_array) {
            let (texts, Some(labels)) = (texts(fields, "sentences")?, labels("labels")) else {
                bail!("no list \"labels\"");
            };
            if texts.len() != labels.len() || texts.is_empty() {
                bail!("{} texts and {} labels", texts.len(), labels.len());
            }
            return Ok(Rows::Set(texts, labels));
        }
        let levels = match labels("labels").or_else(|| labels("label")) {
            Some(levels) => levels,
            None => vec![text(fields, &["label", "labels"])?],
        };
        Ok(Rows::Text(text(fields, &["text", "sentence", "sentences"])?, levels))
    })?;
    let mut sets = Vec::new();
    let (mut flat, mut levels) = (Vec::new(), Vec::new());
    for row in rows {
        match row {
            Rows::Set(texts, labels) if task.documents.is_some() => {
                flat.extend(texts);
                levels.extend(labels.into_iter().map(|label| vec![label]));
            }
            Rows::Set(texts, labels) => sets.push((texts, labels)),
            Rows::Text(text, labels) => {
                flat.push(text);
                levels.push(labels);
            }
        }
    }
    match (sets.is_empty(), flat.is_empty()) {
        (false, true) => given_sets(&sets, evaluation, split),
        (true, false) => sampled(task, flat, levels, evaluation, split),
        _ => bail!("{}: some rows are lists of texts and some single texts", source.label()),
    }
}

fn clusters(
    vectors: &[Vec<f32>],
    rows: &[usize],
    labels: &[usize],
    batch: usize,
) -> Result<Vec<usize>> {
    let count = labels.iter().collect::<HashSet<_>>().len();
    let chosen: Vec<&Vec<f32>> = rows.iter().map(|&row| &vectors[row]).collect();
    let rows = matrix(chosen.into_iter(), |value| value)?;
    Ok(mini_batch_kmeans(rows.view(), count, batch, SEED))
}

fn numbers(labels: &[String]) -> Vec<usize> {
    label_numbers(&labels.iter().map(String::as_str).collect::<Vec<_>>())
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn outcome(name: &str, values: Vec<f64>, split: String) -> TaskOutcome {
    let middle = mean(&values);
    let spread = values.iter().map(|value| (value - middle).powi(2)).sum::<f64>();
    let scores = BTreeMap::from([
        (name.to_string(), middle),
        (format!("{name}_std"), (spread / values.len() as f64).sqrt()),
    ]);
    TaskOutcome { scores, parts: ScoreParts::Mean { values }, split }
}

fn given_sets(
    sets: &[(Vec<String>, Vec<String>)],
    evaluation: &Evaluation<'_>,
    split: String,
) -> Result<TaskOutcome> {
    let mut values = Vec::new();
    for (texts, labels) in sets {
        let labels = numbers(labels);
        if labels.iter().collect::<HashSet<_>>().len() < 2 {
            values.push(1.0);
            continue;
        }
        let vectors = evaluation.encoder.encode(texts, &evaluation.prompts[0])?;
        let all: Vec<usize> = (0..texts.len()).collect();
        values.push(v_measure(&labels, &clusters(&vectors, &all, &labels, BATCH[0])?));
    }
    Ok(outcome("v_measure", values, split))
}

fn sampled(
    task: &Task,
    mut texts: Vec<String>,
    mut levels: Vec<Vec<String>>,
    evaluation: &Evaluation<'_>,
    split: String,
) -> Result<TaskOutcome> {
    let mut random = PythonRandom::new(SEED);
    if let Some(documents) = task.documents {
        let drawn = random.sample(texts.len(), documents.min(texts.len()));
        texts = drawn.iter().map(|&row| texts[row].clone()).collect();
        levels = drawn.iter().map(|&row| levels[row].clone()).collect();
    }
    let vectors = evaluation.encoder.encode(&texts, &evaluation.prompts[0])?;
    let (mut values, mut adjusted) = (Vec::new(), Vec::new());
    let mut whole = Vec::new();
    for level in 0..levels.iter().map(Vec::len).max().unwrap_or(0) {
        let rows: Vec<usize> = (0..texts.len()).filter(|&row| levels[row].len() > level).collect();
        let names: Vec<String> = rows.iter().map(|&row| levels[row][level].clone()).collect();
        let labels = numbers(&names);
        let count = labels.iter().collect::<HashSet<_>>().len();
        let samples: Vec<Vec<usize>> =
            (0..task.experiments).map(|_| random.choices(rows.len(), SAMPLE)).collect();
        let found: Vec<(f64, f64)> = samples
            .par_iter()
            .map(|sample| {
                let chosen: Vec<&Vec<f32>> = sample.iter().map(|&i| &vectors[rows[i]]).collect();
                let points = matrix(chosen.into_iter(), |value| value)?;
                let found = mini_batch_kmeans(points.view(), count, BATCH[1], SEED);
                let truth: Vec<usize> = sample.iter().map(|&i| labels[i]).collect();
                Ok((v_measure(&truth, &found), adjusted_mutual_information(&truth, &found)))
            })
            .collect::<Result<_>>()?;
        values.extend(found.iter().map(|one| one.0));
        adjusted.extend(found.iter().map(|one| one.1));
        whole.push(v_measure(&labels, &clusters(&vectors, &rows, &labels, BATCH[0])?));
    }
    let mut outcome = outcome("v_measure", values, split);
    outcome.scores.insert("ami".into(), mean(&adjusted));
    // The whole list clustered once, as the older task does with a set.
    outcome.scores.insert("v_measure_whole".into(), mean(&whole));
    Ok(outcome)
}
