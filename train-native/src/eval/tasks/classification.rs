//! Classification: logistic regression on a few texts of each label, several times.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context as _, Result, bail};
use kiln_metrics::{
    NumpyRandom, ScoreParts, average_precision, classification_scores, fit_predict,
};
use rayon::prelude::*;

use super::{Evaluation, label_numbers, matrix, read_rows, split_of, text};
use crate::eval::source::TaskSource;
use crate::eval::task::{Task, TaskOutcome};
use crate::terminal::counted;
use crate::text::TextFile;

/// mteb's seed.
const SEED: u32 = 42;
/// Parts of a cross-validation, where there is one split only.
const FOLDS: usize = 5;

/// Training and test rows of one experiment.
struct Experiment {
    train: Vec<usize>,
    test: Vec<usize>,
}

/// Texts with their labels.
///
/// # Errors
/// Rows that lack either.
pub(crate) fn read(files: &[TextFile]) -> Result<Vec<(String, String)>> {
    read_rows(files, &[], |fields| {
        let label = text(fields, &["label", "labels", "label_text"])?;
        Ok((text(fields, &["text", "sentence", "sentences"])?, label))
    })
}

pub(super) fn evaluate(
    task: &Task,
    source: &TaskSource,
    evaluation: &Evaluation<'_>,
) -> Result<TaskOutcome> {
    let (split, test_files) = split_of(task, source)?;
    let test = read(&test_files)?;
    let train_files = match source {
        TaskSource::File(_) => Vec::new(),
        _ => source.split(&task.subset, "train")?,
    };
    let train = if train_files.is_empty() { Vec::new() } else { read(&train_files)? };
    let labels: Vec<&str> = train.iter().chain(&test).map(|(_, label)| label.as_str()).collect();
    let classes = label_numbers(&labels);
    let experiments = match train.is_empty() {
        true => folds(&classes, task.samples_per_label)?,
        false => undersampled(&classes[..train.len()], task, test.len()),
    };
    // Only what some experiment needs is embedded.
    let all: Vec<&String> = train.iter().chain(&test).map(|(text, _)| text).collect();
    let mut rows: Vec<usize> =
        experiments.iter().flat_map(|one| one.train.iter().chain(&one.test)).copied().collect();
    rows.sort_unstable();
    rows.dedup();
    let needed: Vec<String> = rows.iter().map(|&row| all[row].clone()).collect();
    let vectors = evaluation.encoder.encode(&needed, &evaluation.prompts[0])?;
    let index: HashMap<usize, usize> = rows.iter().enumerate().map(|(i, row)| (*row, i)).collect();
    let pick = |rows: &[usize]| {
        matrix(
            rows.iter().map(|row| &vectors[index[row]]).collect::<Vec<_>>().into_iter(),
            f64::from,
        )
    };
    let found: Vec<Vec<usize>> = experiments
        .par_iter()
        .map(|one| {
            let truth = one.train.iter().map(|&row| classes[row]).collect();
            fit_predict(pick(&one.train)?, truth, &pick(&one.test)?)
        })
        .collect::<Result<_>>()
        .with_context(|| source.label())?;

    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    let mut right: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
    for (one, found) in experiments.iter().zip(&found) {
        let truth: Vec<usize> = one.test.iter().map(|&row| classes[row]).collect();
        let mut scores = classification_scores(&truth, found);
        let mut kinds = truth.clone();
        kinds.sort_unstable();
        kinds.dedup();
        if let [_, positive] = kinds[..] {
            let as_score: Vec<f64> = found.iter().map(|&class| class as f64).collect();
            let is_positive: Vec<bool> = truth.iter().map(|&class| class == positive).collect();
            let ap = average_precision(&as_score, &is_positive);
            scores.insert("ap".into(), ap);
            scores.insert("ap_weighted".into(), ap);
        }
        for (name, value) in scores {
            *sums.entry(name).or_default() += value / experiments.len() as f64;
        }
        for ((&row, truth), found) in one.test.iter().zip(truth).zip(found) {
            let (hits, times) = right.entry(row).or_default();
            *hits += f64::from(truth == *found);
            *times += 1.0;
        }
    }
    let values = right.values().map(|(hits, times)| hits / times).collect();
    Ok(TaskOutcome { scores: sums, parts: ScoreParts::Mean { values }, split })
}

/// mteb's draws: the list of rows is shuffled on from one experiment to the next, always with the
/// same seed, and the first rows of each label are taken.
fn undersampled(train: &[usize], task: &Task, test: usize) -> Vec<Experiment> {
    let mut order: Vec<usize> = (0..train.len()).collect();
    (0..task.experiments.max(1))
        .map(|_| Experiment {
            train: first_of_each(&mut order, train, task.samples_per_label),
            test: (train.len()..train.len() + test).collect(),
        })
        .collect()
}

fn first_of_each(order: &mut [usize], classes: &[usize], count: usize) -> Vec<usize> {
    NumpyRandom::new(SEED).shuffle(order);
    let mut taken: HashMap<usize, usize> = HashMap::new();
    let mut take = |row: &usize| {
        let taken = taken.entry(classes[*row]).or_default();
        *taken += 1;
        *taken <= count
    };
    order.iter().copied().filter(|row| take(row)).collect()
}

/// mteb's cross-validation: scikit-learn's shuffled folds, and few texts of each label from the
/// rest.
fn folds(classes: &[usize], count: usize) -> Result<Vec<Experiment>> {
    if classes.len() < FOLDS {
        bail!(
            "{} too few for {FOLDS} folds; name a folder with train and test",
            counted(classes.len(), "labelled text is", "labelled texts are")
        );
    }
    let mut shuffled: Vec<usize> = (0..classes.len()).collect();
    NumpyRandom::new(SEED).shuffle(&mut shuffled);
    let mut start = 0;
    let mut order: Vec<usize> = Vec::new();
    Ok((0..FOLDS)
        .map(|fold| {
            let size = classes.len() / FOLDS + usize::from(fold < classes.len() % FOLDS);
            let mut test = shuffled[start..start + size].to_vec();
            start += size;
            test.sort_unstable();
            let rest: Vec<usize> =
                (0..classes.len()).filter(|row| test.binary_search(row).is_err()).collect();
            if order.len() != rest.len() {
                order = (0..rest.len()).collect();
            }
            let of_rest: Vec<usize> = rest.iter().map(|&row| classes[row]).collect();
            let chosen = first_of_each(&mut order, &of_rest, count);
            Experiment { train: chosen.into_iter().map(|i| rest[i]).collect(), test }
        })
        .collect())
}
