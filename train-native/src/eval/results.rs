//! Results on disk: mteb's files (one JSON a task, which mteb loads), what a bootstrap needs beside
//! them, and the tables of people.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use kiln_metrics::{ScoreParts, checked};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::task::{Task, TaskKind, TaskOutcome};
use crate::report::Page;
use crate::text::{open, read_small};
use crate::vectors::write_atomically;

/// Folder of what bootstraps need, beside mteb's files.
const PARTS: &str = "parts";

/// One task's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskResult {
    /// The task as it was evaluated.
    pub task: Task,
    /// The split that was read.
    pub split: String,
    /// A number for the task's files, where they lie here ([`TaskSource::sum`](super::source::TaskSource::sum)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Prompts of queries (or only texts) and documents.
    pub prompts: [String; 2],
    /// All scores; `None` where one is not defined (equal values everywhere have no correlation).
    pub scores: BTreeMap<String, Option<f64>>,
    /// Seconds that it took.
    pub seconds: f64,
    /// What the main score is made of.
    pub parts: ScoreParts,
}

impl TaskResult {
    /// The result of an outcome.
    ///
    /// # Errors
    /// A score outside its measure's range, or a part that is no number.
    pub fn new(
        task: &Task,
        prompts: [String; 2],
        outcome: TaskOutcome,
        seconds: f64,
    ) -> Result<Self> {
        let TaskOutcome { scores, parts, split } = outcome;
        let scores = scores.into_iter().map(|(name, score)| {
            let score = checked(&task.name, &name, score)?;
            Ok((name, score))
        });
        let scores = scores.collect::<Result<_>>()?;
        if !parts.finite() {
            bail!("{}: a query, text or pair has a score that is no number", task.name);
        }
        Ok(Self { task: task.clone(), split, data: None, prompts, scores, seconds, parts })
    }

    /// A result that was kept, which holds what [`TaskResult::new`] lets through.
    fn of_json(bytes: &[u8]) -> Result<Self> {
        let kept: Self = serde_json::from_slice(bytes)?;
        for (name, score) in &kept.scores {
            checked(&kept.task.name, name, score.unwrap_or(0.0))?;
        }
        Ok(kept)
    }

    /// Whether it is known to be of other files than those of a number.
    pub(super) fn is_of_other_data(&self, data: Option<&str>) -> bool {
        matches!((self.data.as_deref(), data), (Some(own), Some(other)) if own != other)
    }

    /// The score that counts.
    pub fn main_score(&self) -> Option<f64> {
        self.scores.get(self.task.main_score()).copied().flatten()
    }

    /// mteb's `TaskResult`.
    pub fn to_mteb(&self) -> Value {
        let mut scores: Map<String, Value> =
            self.scores.iter().map(|(name, score)| (name.clone(), json!(score))).collect();
        scores.insert("main_score".into(), json!(self.main_score()));
        scores.insert("hf_subset".into(), json!(self.task.subset));
        scores.insert("languages".into(), json!(["eng-Latn"]));
        json!({
            "task_name": self.task.name,
            "dataset_revision": self.task.revision.as_deref().unwrap_or("local"),
            "mteb_version": null,
            "scores": { &self.split: [scores] },
            "evaluation_time": self.seconds,
            "kg_co2_emissions": null,
        })
    }

    /// As printed for one task: `main_score` beside everything else.
    pub fn to_json(&self) -> Value {
        json!({
            "task": self.task.name,
            "type": self.task.kind.mteb_name(),
            "split": self.split,
            "main_score": self.main_score(),
            "main_score_name": self.task.main_score(),
            "scores": self.scores,
            "prompts": self.prompts,
            "seconds": self.seconds,
        })
    }
}

/// The results of one model under one set of options.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelResults {
    /// The model's name.
    pub model: String,
    /// Its revision: a number for its files, and what was changed.
    pub revision: String,
    /// Results by task, in the suite's order.
    pub tasks: Vec<TaskResult>,
}

/// Where results of a model are kept: `OUTPUT/MODEL/REVISION`, as mteb has it.
pub fn results_folder(output: &Path, model: &str, revision: &str) -> PathBuf {
    output.join(model.replace(['/', '\\'], "__")).join(revision)
}

/// Keeps a result: first what only we read, then mteb's file, by which a run is resumed.
///
/// # Errors
/// A disk that cannot be written.
pub fn write_result(folder: &Path, result: &TaskResult) -> Result<()> {
    let parts = folder.join(PARTS);
    std::fs::create_dir_all(&parts).with_context(|| parts.display().to_string())?;
    let name = format!("{}.json", file_name(&result.task.name));
    write_atomically(&parts.join(&name), &serde_json::to_vec(result)?)?;
    write_atomically(&folder.join(&name), &serde_json::to_vec_pretty(&result.to_mteb())?)
}

fn file_name(task: &str) -> String {
    task.replace(|c: char| !c.is_alphanumeric() && !"-_.".contains(c), "_")
}

/// A kept file, whose size is that of its parts: a few numbers a query, text or pair.
fn read_kept(path: &Path) -> Result<Vec<u8>> {
    const MOST: u64 = 1 << 30;
    let label = || path.display().to_string();
    let mut bytes = Vec::new();
    open(path)?.take(MOST + 1).read_to_end(&mut bytes).with_context(label)?;
    if bytes.len() as u64 > MOST {
        bail!("{}: is larger than any result; remove it", label());
    }
    Ok(bytes)
}

/// The kept result of a task, where it is there and the task, its prompts and its files were the same.
pub fn read_result(
    folder: &Path,
    task: &Task,
    prompts: &[String; 2],
    data: Option<&str>,
) -> Option<TaskResult> {
    let name = format!("{}.json", file_name(&task.name));
    if !folder.join(&name).is_file() {
        return None;
    }
    let bytes = read_kept(&folder.join(PARTS).join(name)).ok()?;
    let result = TaskResult::of_json(&bytes).ok()?;
    let same = result.task == *task && result.prompts == *prompts;
    (same && !result.is_of_other_data(data)).then_some(result)
}

/// `model_meta.json`, which mteb asks for.
///
/// # Errors
/// A disk that cannot be written.
pub fn write_meta(folder: &Path, model: &str, revision: &str, more: Value) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let meta = json!({ "name": model, "revision": revision, "framework": ["Kiln"], "kiln": more });
    write_atomically(&folder.join("model_meta.json"), &serde_json::to_vec_pretty(&meta)?)
}

/// All results of a folder that [`write_result`] filled, or of the one such folder below it.
///
/// # Errors
/// No results, several models, or files that cannot be read.
pub fn read_results(folder: &Path) -> Result<ModelResults> {
    let label = || folder.display().to_string();
    let mut i = folder.to_path_buf();
    while !i.join(PARTS).is_dir() {
        let below: Vec<PathBuf> = std::fs::read_dir(&i)
            .with_context(label)?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
            .collect();
        match &below[..] {
            [one] => i.clone_from(one),
            [] => bail!("{}: holds no results of `eval`", label()),
            several => {
                let names: Vec<String> =
                    several.iter().map(|path| path.display().to_string()).collect();
                bail!("{}: holds several; name one of {}", label(), names.join(", "))
            }
        }
    }
    let mut tasks = Vec::new();
    for entry in std::fs::read_dir(i.join(PARTS)).with_context(label)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            let place = || path.display().to_string();
            let bytes = read_kept(&path)?;
            let kept = TaskResult::of_json(&bytes).with_context(place)?;
            if let Some(same) =
                tasks.iter().find(|other: &&TaskResult| other.task.name == kept.task.name)
            {
                bail!(
                    "{}: the task {} is in another file too; remove one",
                    place(),
                    same.task.name
                );
            }
            tasks.push(kept);
        }
    }
    tasks.sort_by(|a, b| (a.task.kind, &a.task.name).cmp(&(b.task.kind, &b.task.name)));
    let meta: Value = read_small(&i.join("model_meta.json"))
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    let text = |name: &str| meta[name].as_str().unwrap_or_default().to_string();
    let model = match text("name") {
        name if name.is_empty() => i.display().to_string(),
        name => name,
    };
    Ok(ModelResults { model, revision: text("revision"), tasks })
}

/// A row of the tables: a task, or a group of parts as one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SummaryLine {
    /// Task or group.
    pub name: String,
    /// Kind.
    pub kind: TaskKind,
    /// Name of the score.
    pub metric: String,
    /// Score; `None` where it is not defined.
    pub score: Option<f64>,
}

/// Tables of some results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SuiteSummary {
    /// Rows by kind and name.
    pub lines: Vec<SummaryLine>,
    /// Mean of each kind's tasks that have a score.
    pub by_type: BTreeMap<&'static str, f64>,
    /// Mean over tasks.
    pub mean_by_task: Option<f64>,
    /// Mean over kinds.
    pub mean_by_type: Option<f64>,
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

impl SuiteSummary {
    /// Averages as mteb's leaderboard has them: over tasks, and over the kinds' averages; the parts
    /// of a group count as one task.
    pub fn of(results: &[TaskResult]) -> Self {
        let mut lines: Vec<SummaryLine> = Vec::new();
        let mut groups = BTreeSet::new();
        for result in results {
            let metric = result.task.main_score().to_string();
            let kind = result.task.kind;
            let Some(group) = &result.task.group else {
                let name = result.task.name.clone();
                lines.push(SummaryLine { name, kind, metric, score: result.main_score() });
                continue;
            };
            if groups.insert(group) {
                let parts = results.iter().filter(|other| other.task.group.as_ref() == Some(group));
                let scores: Vec<Option<f64>> = parts.map(TaskResult::main_score).collect();
                let all: Option<Vec<f64>> = scores.into_iter().collect();
                let score = all.and_then(|all| mean(all.into_iter()));
                lines.push(SummaryLine { name: group.clone(), kind, metric, score });
            }
        }
        lines.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        let kinds: BTreeSet<TaskKind> = lines.iter().map(|line| line.kind).collect();
        let of_kind = |kind: TaskKind| {
            let scores = lines.iter().filter(|line| line.kind == kind);
            Some((kind.mteb_name(), mean(scores.filter_map(|line| line.score))?))
        };
        let by_type: BTreeMap<_, _> = kinds.into_iter().filter_map(of_kind).collect();
        Self {
            mean_by_task: mean(lines.iter().filter_map(|line| line.score)),
            mean_by_type: mean(by_type.values().copied()),
            lines,
            by_type,
        }
    }

    /// Rows of cells: kind, task, measure, score in points of 100.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let points = |score: Option<f64>| {
            score.map_or("not defined".into(), |score| format!("{:.2}", 100.0 * score))
        };
        let mut rows = vec![["type", "task", "measure", "score"].map(String::from).to_vec()];
        for (i, line) in self.lines.iter().enumerate() {
            let kind = line.kind.to_string();
            rows.push(vec![
                kind.clone(),
                line.name.clone(),
                line.metric.clone(),
                points(line.score),
            ]);
            let last = self.lines.get(i + 1).is_none_or(|next| next.kind != line.kind);
            if last && let Some(score) = self.by_type.get(line.kind.mteb_name()) {
                rows.push(vec![kind, "mean".into(), String::new(), points(Some(*score))]);
            }
        }
        let means = [("mean by task", self.mean_by_task), ("mean by type", self.mean_by_type)];
        for (name, score) in means {
            rows.push(vec!["all".into(), name.into(), String::new(), points(score)]);
        }
        rows
    }
}

/// Rows of cells as text, columns aligned; the last one to the right.
pub fn plain_table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let number =
        |cell: &str| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+');
    let mut text = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let right =
                rows.iter().skip(1).any(|row| row.get(column).is_some_and(|cell| number(cell)));
            text += &match right {
                true => format!("{cell:>width$}  ", width = widths[column]),
                false => format!("{cell:<width$}  ", width = widths[column]),
            };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// Rows of cells as Markdown.
pub fn markdown_table(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (i, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
        text += &format!("| {} |\n", cells.join(" | "));
        if i == 0 {
            text += &format!("|{}\n", "---|".repeat(row.len()));
        }
    }
    text
}

/// Writes the tables as Markdown and as a page.
///
/// # Errors
/// A disk that cannot be written.
pub fn write_tables(folder: &Path, results: &ModelResults, left_out: &[Vec<String>]) -> Result<()> {
    let rows = SuiteSummary::of(&results.tasks).rows();
    let title = format!("{} ({})", results.model, results.revision);
    let mut text = format!("# {title}\n\n{}", markdown_table(&rows));
    let mut page = Page::new(&title);
    page.heading("Scores").paragraph("In points of 100, by mteb's definitions.").table(&rows);
    if left_out.len() > 1 {
        text += &format!("\nNot evaluated:\n\n{}", markdown_table(left_out));
        page.heading("Not evaluated").table(left_out);
    }
    page.heading("All scores");
    for result in &results.tasks {
        let mut rows = vec![vec!["measure".to_string(), result.task.name.clone()]];
        rows.extend(result.scores.iter().map(|(name, score)| {
            vec![name.clone(), score.map_or("not defined".into(), |score| format!("{score:.5}"))]
        }));
        page.details(&result.task.name, &rows);
    }
    write_atomically(&folder.join("report.md"), text.as_bytes())?;
    write_atomically(&folder.join("report.html"), page.to_html().as_bytes())
}
