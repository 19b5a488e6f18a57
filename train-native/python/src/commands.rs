//! What is a command of `kiln`, called from Python.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use anyhow::Result;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use train_native::cli;
use train_native::data::OnBadRow;
use train_native::interrupt;
use train_native::recipe::{Recipe, shipped};
use train_native::train::{Point, Resume, RunArtifacts, TrainJob};

use crate::embedder::{device_choice, terminal};
use crate::errors::KilnError;
use crate::job::run;

/// How to stop a command, and what it prints, is one thing in a process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn turn() -> PyResult<MutexGuard<'static, ()>> {
    let turn = match ONE_AT_A_TIME.try_lock() {
        Ok(turn) => turn,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => {
            return Err(KilnError::new_err(
                "a training, evaluation or compression is running in this process already; wait for it, or start \
                 another process",
            ));
        }
    };
    interrupt::forget();
    Ok(turn)
}

/// Runs a command and returns what it prints with `--json`.
#[pyfunction]
pub(crate) fn call(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<String> {
    let _turn = turn()?;
    let work = |alive: std::sync::mpsc::Sender<()>| {
        let result = cli::call(arguments);
        drop(alive);
        result
    };
    run(py, work, |_, ()| Ok(()), interrupt::ask)
}

/// Trains by a recipe (`resume`: `no`, `yes` or `auto`); `on_step` is called after each step with a dictionary of its
/// numbers. An exception of `on_step`, or Ctrl-C, ends the training behind a checkpoint.
#[pyfunction]
#[pyo3(signature = (recipe, output, changes, data_dir, device, resume, overwrite, checkpoint_every, keep,
    save_every, skip_bad_rows, progress, on_step))]
pub(crate) fn train<'py>(
    py: Python<'py>,
    recipe: &str,
    output: PathBuf,
    changes: Vec<String>,
    data_dir: Option<PathBuf>,
    device: &str,
    resume: &str,
    overwrite: bool,
    checkpoint_every: usize,
    keep: usize,
    save_every: usize,
    skip_bad_rows: bool,
    progress: bool,
    on_step: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let choice = device_choice(device)?;
    let resume = match resume {
        "auto" => Resume::IfThere,
        "yes" => Resume::Yes,
        _ => Resume::No,
    };
    let _turn = turn()?;
    let terminal = terminal(progress);
    let work = |points: std::sync::mpsc::Sender<(Point, usize)>| -> Result<RunArtifacts> {
        let folder = match &data_dir {
            Some(folder) => folder.clone(),
            None if shipped(recipe).is_some() => PathBuf::new(),
            None => Path::new(recipe).parent().unwrap_or(Path::new("")).to_path_buf(),
        };
        let recipe = Recipe::read(recipe, &changes)?;
        let steps: usize = recipe.stages.iter().map(|stage| stage.steps).sum();
        let points = Mutex::new(points);
        let on_step = |point: &Point| {
            let points = points.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            // Who listens is there as long as this thread.
            let _ = points.send((point.clone(), steps));
        };
        let job = TrainJob {
            recipe: &recipe,
            folder: &folder,
            output: &output,
            device: choice,
            devices: &[],
            on_bad_row: if skip_bad_rows { OnBadRow::Skip } else { OnBadRow::Stop },
            checkpoint_every,
            keep,
            save_every,
            resume,
            overwrite,
            terminal,
            on_step: Some(&on_step),
        };
        job.run()
    };
    let total = AtomicUsize::new(0);
    let each = |py: Python<'_>, (point, steps): (Point, usize)| {
        total.store(steps, Ordering::Relaxed);
        let Some(on_step) = &on_step else { return Ok(()) };
        let numbers = numbers(py, &point)?;
        numbers.set_item("total_steps", steps)?;
        on_step.call1(py, (numbers,)).map(drop)
    };
    let RunArtifacts { model, adapter, best, report, points, written } =
        run(py, work, each, interrupt::ask)?;
    let found = PyDict::new(py);
    found.set_item("model", model)?;
    found.set_item("adapter", adapter)?;
    let (folder, best) = best.unzip();
    found.set_item("best", folder)?;
    found.set_item("best_step", best.as_ref().map(|best| best.step))?;
    found.set_item("best_score", best.as_ref().map(|best| best.score))?;
    found.set_item("report", report)?;
    found.set_item("written", written)?;
    // A run that had ended takes no step.
    let total = total.into_inner().max(points.len());
    let step = |point: &Point| {
        let numbers = numbers(py, point)?;
        numbers.set_item("total_steps", total)?;
        Ok(numbers)
    };
    let points: PyResult<Vec<_>> = points.iter().map(step).collect();
    found.set_item("steps", points?)?;
    Ok(found)
}

fn numbers<'py>(py: Python<'py>, point: &Point) -> PyResult<Bound<'py, PyDict>> {
    let numbers = PyDict::new(py);
    numbers.set_item("stage", point.stage)?;
    numbers.set_item("step", point.step)?;
    numbers.set_item("loss", point.loss)?;
    numbers.set_item("lr", point.lr)?;
    numbers.set_item("grad_norm", point.grad_norm)?;
    numbers.set_item("seconds", point.seconds)?;
    numbers.set_item("texts", point.texts)?;
    numbers.set_item("tokens", point.tokens)?;
    let scores = PyDict::new(py);
    for (name, score) in &point.scores {
        scores.set_item(name, score)?;
    }
    numbers.set_item("scores", scores)?;
    Ok(numbers)
}
