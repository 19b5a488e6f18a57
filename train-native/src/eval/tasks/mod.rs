//! One file a kind of task: its data, and its score.

mod classification;
mod clustering;
mod pair;
mod ranked;
mod sts;
mod summarization;

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value};

use super::encoder::TextEncoder;
use super::run_files::RunFiles;
use super::source::TaskSource;
use super::task::{Task, TaskKind, TaskOutcome};
use crate::data::qrels_splits;
use crate::reranking::PairModel;
use crate::search::normalize;
use crate::terminal::Terminal;
use crate::text::TextFile;

pub(crate) use classification::read as labelled_texts;
pub(crate) use ranked::lists;
pub use ranked::{RankedTask, ranking_scores};

/// Splits in the order in which they are looked for.
pub(crate) const SPLITS: [&str; 3] = ["test", "dev", "validation"];

/// The split that a BEIR folder is judged by: the first of the usual ones, or else the first that is there.
///
/// # Errors
/// No judgements.
pub fn judged_split(folder: &Path) -> Result<String> {
    let there = qrels_splits(folder);
    let usual = SPLITS.iter().find(|split| there.iter().any(|one| one == *split));
    usual.map(|split| split.to_string()).or_else(|| there.first().cloned()).with_context(|| {
        format!("{}: has no judgements in qrels/; it is no BEIR folder", folder.display())
    })
}

/// What evaluates a task: the encoder, its prompts for queries and documents.
pub struct Evaluation<'a> {
    /// The model.
    pub encoder: &'a dyn TextEncoder,
    /// Prompts of queries (or only texts) and of documents.
    pub prompts: [String; 2],
    /// Changes a retrieval set before it is searched (the light set).
    pub reduce: &'a dyn Fn(RankedTask) -> Result<RankedTask>,
    /// Where what retrieval tasks find is written, if anywhere.
    pub run_files: Option<&'a RunFiles>,
    /// Ranks candidates, and the best of a corpus, anew.
    pub reranker: Option<Reranking<'a>>,
    /// What the user sees.
    pub terminal: Terminal,
}

/// A cross-encoder in retrieval and reranking tasks.
#[derive(Clone, Copy)]
pub struct Reranking<'a> {
    /// The cross-encoder.
    pub model: &'a dyn PairModel,
    /// How many of what a query finds in a corpus it ranks anew.
    pub candidates: usize,
    /// Most tokens in a batch.
    pub batch_tokens: Option<usize>,
}

/// Reads a task's data and evaluates it.
///
/// # Errors
/// Data that is not what the kind needs, or that cannot be read.
pub fn evaluate(
    task: &Task,
    source: &TaskSource,
    evaluation: &Evaluation<'_>,
) -> Result<TaskOutcome> {
    match task.kind {
        TaskKind::Classification => classification::evaluate(task, source, evaluation),
        TaskKind::Clustering => clustering::evaluate(task, source, evaluation),
        TaskKind::PairClassification => pair::evaluate(task, source, evaluation),
        TaskKind::Reranking | TaskKind::Retrieval => ranked::evaluate(task, source, evaluation),
        TaskKind::Sts => sts::evaluate(task, source, evaluation),
        TaskKind::Summarization => summarization::evaluate(task, source, evaluation),
    }
}

impl Evaluation<'_> {
    /// Vectors whose inner product ranks: of length 1, unless the model says much by their length.
    pub(crate) fn to_rank(&self, texts: &[String], prompt: usize) -> Result<Vec<Vec<f32>>> {
        let mut vectors = self.encoder.encode(texts, &self.prompts[prompt])?;
        if self.encoder.similarity().normalizes() {
            vectors.iter_mut().for_each(|vector| normalize(vector));
        }
        Ok(vectors)
    }
}

/// The files of the task's split, and its name.
pub(crate) fn split_of(task: &Task, source: &TaskSource) -> Result<(String, Vec<TextFile>)> {
    match &task.split {
        Some(split) => source.first_split(&task.subset, &[split]),
        None => source.first_split(&task.subset, &SPLITS),
    }
}

/// The rows of some files by `read`; an error names file and line. Rows that are columns (one row
/// of lists, as mteb's older data sets are) are taken apart.
pub(crate) fn read_rows<T>(
    files: &[TextFile],
    columns: &[&str],
    mut read: impl FnMut(&Map<String, Value>) -> Result<T>,
) -> Result<Vec<T>> {
    let mut rows = Vec::new();
    for file in files {
        for object in file.objects()? {
            let object = object?;
            let place = || format!("{}:{}", file.label, object.number);
            for fields in transposed(object.fields, columns) {
                rows.push(read(&fields).with_context(place)?);
            }
        }
    }
    if rows.is_empty() {
        let labels: Vec<&str> = files.iter().map(|file| file.label.as_str()).collect();
        bail!("{}: no rows", labels.join(", "));
    }
    Ok(rows)
}

/// A row whose named columns are all lists is as many rows.
fn transposed(fields: Map<String, Value>, columns: &[&str]) -> Vec<Map<String, Value>> {
    let lists: Option<Vec<(&str, &Vec<Value>)>> = columns
        .iter()
        .filter_map(|name| fields.get(*name).map(|value| (*name, value)))
        .map(|(name, value)| Some((name, value.as_array()?)))
        .collect();
    match lists {
        Some(lists) if !lists.is_empty() => {
            let count = lists.iter().map(|(_, list)| list.len()).min().unwrap_or(0);
            let row = |i: usize| {
                lists.iter().map(|(name, list)| (name.to_string(), list[i].clone())).collect()
            };
            (0..count).map(row).collect()
        }
        _ => vec![fields],
    }
}

/// The text of the first of some fields.
pub(crate) fn text(fields: &Map<String, Value>, names: &[&str]) -> Result<String> {
    match names.iter().find_map(|name| fields.get(*name)) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        Some(Value::Bool(value)) => Ok(value.to_string()),
        Some(_) => bail!("the field {:?} is not a text", names[0]),
        None => {
            let known = fields.keys().cloned().collect::<Vec<_>>().join(", ");
            bail!("no field {}; there are {known}", names.join(" or "))
        }
    }
}

/// The number of the first of some fields.
pub(crate) fn number(fields: &Map<String, Value>, names: &[&str]) -> Result<f64> {
    let written = text(fields, names)?;
    match written.trim().parse() {
        Ok(number) if f64::is_finite(number) => Ok(number),
        _ => bail!("the field {:?} is {written:?}, not a number", names[0]),
    }
}

/// The texts of a list.
pub(crate) fn texts(fields: &Map<String, Value>, name: &str) -> Result<Vec<String>> {
    let list = fields.get(name).and_then(Value::as_array);
    let list = list.with_context(|| format!("no list {name:?}"))?;
    let text = |value: &Value| value.as_str().map(String::from);
    let found: Option<Vec<String>> = list.iter().map(text).collect();
    found.with_context(|| format!("the list {name:?} holds what is no text"))
}

/// Numbers of labels: as numbers where all are, else by their letters.
pub(crate) fn label_numbers(labels: &[&str]) -> Vec<usize> {
    let mut kinds: Vec<&str> = labels.to_vec();
    match kinds.iter().map(|kind| kind.parse::<f64>()).collect::<Result<Vec<_>, _>>() {
        Ok(_) => kinds.sort_by(|a, b| {
            let number = |text: &str| text.parse::<f64>().unwrap_or(f64::NAN);
            number(a).total_cmp(&number(b))
        }),
        Err(_) => kinds.sort_unstable(),
    }
    kinds.dedup();
    let index: std::collections::HashMap<&str, usize> =
        kinds.iter().enumerate().map(|(i, kind)| (*kind, i)).collect();
    labels.iter().map(|label| index[label]).collect()
}

/// `[rows, dim]` of vectors.
pub(crate) fn matrix<'a, T: Copy + 'a>(
    vectors: impl ExactSizeIterator<Item = &'a Vec<f32>>,
    convert: impl Fn(f32) -> T,
) -> Result<ndarray::Array2<T>> {
    let rows = vectors.len();
    let values: Vec<T> = vectors.flatten().map(|&value| convert(value)).collect();
    let dim = values.len() / rows.max(1);
    Ok(ndarray::Array2::from_shape_vec((rows, dim), values)?)
}
