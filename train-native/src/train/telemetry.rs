//! What a run reports of each step: JSON lines, TensorBoard, and the terminal.

use std::fs::File;
use std::io::{BufReader, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Deserializer, Serialize};
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System};

use super::event_file::EventFile;
use crate::terminal::{ProgressBar, Terminal, counted};
use crate::text::{numbered, open};

/// One optimizer step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Stage, from 0.
    pub stage: usize,
    /// Step of the stage, from 1.
    pub step: usize,
    /// Mean loss of the step.
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    /// Learning rate.
    pub lr: f64,
    /// Norm of the gradient before clipping.
    #[serde(deserialize_with = "number")]
    pub grad_norm: f64,
    /// Seconds that the step took.
    pub seconds: f64,
    /// Texts in the step.
    pub texts: usize,
    /// Tokens in the step, padding not counted.
    pub tokens: usize,
    /// Scores by evaluation set, where the step was followed by an evaluation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scores: Vec<(String, f64)>,
}

/// A number that JSON may not have had: an f16 step that overflowed is written as null.
pub(super) fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// All steps so far, in memory and in `metrics.jsonl`.
pub struct Telemetry {
    /// The steps, in order.
    pub points: Vec<Point>,
    file: Option<File>,
    board: Option<EventFile>,
}

impl Telemetry {
    /// No step yet, and no file.
    pub fn in_memory() -> Self {
        Self { points: Vec::new(), file: None, board: None }
    }

    /// Writes to `metrics.jsonl` and `tensorboard/` of a folder; keeps the first `steps` lines that
    /// an earlier run wrote.
    ///
    /// # Errors
    /// A folder that cannot be written, or fewer lines than steps.
    pub fn in_folder(folder: &Path, steps: usize) -> Result<Self> {
        let path = folder.join("metrics.jsonl");
        let label = || path.display().to_string();
        let mut points: Vec<Point> = Vec::new();
        if steps > 0 {
            for line in numbered(BufReader::new(open(&path)?), label(), true).take(steps) {
                let (number, line) = line?;
                points.push(serde_json::from_str(&line).with_context(|| {
                    format!(
                        "{}:{number}: no step that a run wrote; put the run's own file back, or start anew in \
                         another --output",
                        label()
                    )
                })?);
            }
            if points.len() < steps {
                anyhow::bail!(
                    "{}: has {}, the checkpoint {steps}; put the run's own file back, or start anew in \
                     another --output",
                    label(),
                    counted(points.len(), "step", "steps")
                );
            }
        }
        let mut kept = String::new();
        for point in &points {
            kept.push_str(&serde_json::to_string(point)?);
            kept.push('\n');
        }
        crate::vectors::write_atomically(&path, kept.as_bytes())?;
        let file = File::options().append(true).open(&path).with_context(label)?;
        let board = EventFile::create(&folder.join("tensorboard"))?;
        Ok(Self { points, file: Some(file), board: Some(board) })
    }

    /// Adds a step.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn push(&mut self, point: Point) -> Result<()> {
        let step = self.points.len() + 1;
        if let Some(board) = &mut self.board {
            let mut numbers = vec![
                ("train/loss".into(), point.loss),
                ("train/lr".into(), point.lr),
                ("train/grad_norm".into(), point.grad_norm),
                ("train/tokens_per_second".into(), point.tokens as f64 / point.seconds.max(1e-9)),
            ];
            let scores = point.scores.iter();
            numbers.extend(scores.map(|(name, score)| (format!("eval/{name}"), *score)));
            board.scalars(step, numbers)?;
        }
        if let Some(file) = &mut self.file {
            let line = serde_json::to_string(&point)? + "\n";
            file.write_all(line.as_bytes()).context("metrics.jsonl cannot be written")?;
        }
        self.points.push(point);
        Ok(())
    }
}

/// A stage's progress, with the numbers of its last step.
pub(super) struct Live {
    bar: ProgressBar,
    terminal: Terminal,
    system: System,
}

impl Live {
    pub(super) fn new(terminal: Terminal, stage: &str, steps: usize, done: usize) -> Self {
        let bar = terminal.training(steps as u64, stage);
        bar.resume_at(done as u64);
        Self { bar, terminal, system: System::new() }
    }

    pub(super) fn step(&mut self, point: &Point) {
        let memory = self.memory() as f64 / 1e9;
        self.bar.set_prefix(format!(
            "loss {:.4}  lr {:.2e}  grad {:.3}  {:.0} tokens/s  {:.2} s/step  {memory:.1} GB",
            point.loss,
            point.lr,
            point.grad_norm,
            point.tokens as f64 / point.seconds.max(1e-9),
            point.seconds,
        ));
        self.bar.inc(1);
    }

    /// Bytes of memory that this process holds; 0 where the system does not say.
    fn memory(&mut self) -> u64 {
        let Ok(process) = sysinfo::get_current_pid() else {
            return 0;
        };
        let what = ProcessRefreshKind::nothing().with_memory().without_tasks();
        self.system.refresh_processes_specifics(ProcessesToUpdate::Some(&[process]), false, what);
        self.system.process(process).map_or(0, |process| process.memory())
    }

    /// Prints a line above the bar.
    pub(super) fn note(&self, line: String) {
        let terminal = self.terminal;
        self.bar.suspend(|| terminal.note(line));
    }

    pub(super) fn finish(&self) {
        self.bar.finish_with_line();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_overflowed_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut telemetry = Telemetry::in_folder(folder.path(), 0).unwrap();
        let overflowed =
            Point { step: 1, loss: f64::NAN, grad_norm: f64::INFINITY, ..Point::default() };
        let good = Point { step: 2, loss: 0.5, grad_norm: 2.0, ..Point::default() };
        telemetry.push(overflowed).unwrap();
        telemetry.push(good.clone()).unwrap();
        // Twice, as what is read is written again.
        for _ in 0..2 {
            let points = Telemetry::in_folder(folder.path(), 2).unwrap().points;
            assert!(points[0].loss.is_nan() && points[0].grad_norm.is_nan());
            assert_eq!((points[0].step, &points[1]), (1, &good));
        }
    }
}
