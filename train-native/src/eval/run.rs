//! Runs the tasks of a suite, one after another, and keeps each result at once.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};
use serde::Serialize;

use super::encoder::TextEncoder;
use super::light::Light;
use super::results::{TaskResult, read_result, write_result};
use super::run_files::RunFiles;
use super::source::{Missing, TaskSource};
use super::task::{PromptChoice, Task, TaskKind};
use super::tasks::{Evaluation, RankedTask, Reranking, evaluate};
use crate::hub::HubDataSet;
use crate::interrupt;
use crate::terminal::Terminal;

/// How a suite is run.
pub struct EvalRun<'a> {
    /// The model.
    pub encoder: &'a dyn TextEncoder,
    /// Which prompts it gets.
    pub prompts: PromptChoice,
    /// Where paths of tasks begin.
    pub data: PathBuf,
    /// Where results are kept and found again; nowhere if `None`.
    pub folder: Option<PathBuf>,
    /// Evaluates again what is kept.
    pub again: bool,
    /// Makes retrieval sets light.
    pub light: Option<Light<'a>>,
    /// Ranks candidates, and the best of a corpus, anew.
    pub reranker: Option<Reranking<'a>>,
    /// Where what retrieval tasks find is written, if anywhere. Results kept from before find nothing.
    pub run_files: Option<RunFiles>,
    /// What the user sees.
    pub terminal: Terminal,
}

/// A task that gave no result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedTask {
    /// The task's name.
    pub task: String,
    /// Why.
    pub reason: String,
}

/// What a run gave.
#[derive(Debug, Clone, Default)]
pub struct SuiteRun {
    /// Results, in the suite's order.
    pub results: Vec<TaskResult>,
    /// Tasks whose data is not there.
    pub skipped: Vec<SkippedTask>,
    /// Tasks whose data is wrong.
    pub failed: Vec<SkippedTask>,
}

impl EvalRun<'_> {
    /// Runs all tasks. A task whose data is missing or wrong does not end the run.
    ///
    /// # Errors
    /// [`kiln_embed::Error::Cancelled`] after Ctrl-C, or a disk that cannot be written.
    pub fn all(&self, tasks: &[Task]) -> Result<SuiteRun> {
        let mut ran = SuiteRun::default();
        for (i, task) in tasks.iter().enumerate() {
            let place = format!("[{}/{}] {}", i + 1, tasks.len(), task.name);
            match self.one(task) {
                Ok((result, kept)) => {
                    let score = result.main_score();
                    let score = score.map_or("not defined".into(), |score| format!("{score:.4}"));
                    let how = match kept {
                        true => "kept from before".into(),
                        false => format!("{:.1} s", result.seconds),
                    };
                    let name = task.main_score();
                    self.terminal.note(format!("{place}: {name} {score} ({how})"));
                    ran.results.push(result);
                }
                Err(error) => {
                    let ends = error.downcast_ref::<kiln_embed::Error>();
                    if matches!(ends, Some(kiln_embed::Error::Cancelled)) || error.is::<NotKept>() {
                        return Err(error);
                    }
                    let reason = format!("{error:#}");
                    let missing = error.is::<Missing>();
                    let what = if missing { "skipped" } else { "failed" };
                    self.terminal.note(format!("{place}: {what}: {reason}"));
                    let left_out = SkippedTask { task: task.name.clone(), reason };
                    if missing { ran.skipped.push(left_out) } else { ran.failed.push(left_out) }
                }
            }
        }
        Ok(ran)
    }

    /// Runs one task, or gives its kept result.
    ///
    /// # Errors
    /// As [`evaluate`]; [`Missing`] where the data is not there.
    pub fn one(&self, task: &Task) -> Result<(TaskResult, bool)> {
        if interrupt::asked() {
            return Err(kiln_embed::Error::Cancelled.into());
        }
        let prompts = self.prompts.prompts(task, self.encoder)?;
        // Only what is kept has to know of which files it is.
        let local = self.folder.as_ref().and_then(|_| self.local(task));
        let data = local.map(|source| source.sum()).transpose()?;
        if let Some(folder) = &self.folder
            && !self.again
            && !self.writes_run(task)
            && let Some(kept) = read_result(folder, task, &prompts, data.as_deref())
        {
            return Ok((kept, true));
        }
        let source = self.source(task)?;
        let start = Instant::now();
        let reduce = |set: RankedTask| match &self.light {
            Some(light) => light.reduce(set),
            None => Ok(set),
        };
        let evaluation = Evaluation {
            encoder: self.encoder,
            prompts: prompts.clone(),
            reduce: &reduce,
            run_files: self.run_files.as_ref(),
            reranker: self.reranker,
            terminal: self.terminal,
        };
        let outcome = evaluate(task, &source, &evaluation)?;
        if !outcome.scores.contains_key(task.main_score()) {
            let known: Vec<&str> = outcome.scores.keys().map(String::as_str).collect();
            bail!("no score {:?}; there are {}", task.main_score(), known.join(", "));
        }
        let mut result = TaskResult::new(task, prompts, outcome, start.elapsed().as_secs_f64())?;
        result.data = data;
        if let Some(folder) = &self.folder {
            write_result(folder, &result).map_err(NotKept)?;
        }
        Ok((result, false))
    }

    /// Whether the task's run is wanted, for which it has to be searched again.
    fn writes_run(&self, task: &Task) -> bool {
        task.kind == TaskKind::Retrieval && self.run_files.is_some()
    }

    /// The task's files, where they lie here.
    fn local(&self, task: &Task) -> Option<TaskSource> {
        let path = self.data.join(task.path.as_ref()?);
        let is_it = task.hub.is_none() || path.exists();
        is_it.then(|| TaskSource::local(&path).ok()).flatten()
    }

    fn source(&self, task: &Task) -> Result<TaskSource> {
        let local = |path: &Path| TaskSource::local(&self.data.join(path));
        match (&task.path, &task.hub) {
            (Some(path), None) => local(path),
            (Some(path), Some(_)) if self.data.join(path).exists() => local(path),
            (_, Some(hub)) => {
                let repo = HubDataSet::new(hub, task.revision.as_deref(), self.terminal)?;
                TaskSource::hub(repo).map_err(|error| Missing(format!("{error:#}")).into())
            }
            (None, None) => bail!("the task {} names neither path nor hub", task.name),
        }
    }
}

/// A result that could not be written, which ends a run.
#[derive(Debug, thiserror::Error)]
#[error("the results cannot be kept: {0:#}")]
struct NotKept(anyhow::Error);
