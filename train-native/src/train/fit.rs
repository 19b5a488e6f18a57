//! A whole run: build the model, train it, and write what it leaves behind.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use burn::backend::Autodiff;
use kiln_embed::checkpoint::{Existing, check_target, write_directory};
use kiln_embed::kernels::Kernels;

use super::dry_run::warn_of_memory;
use super::word_vectors::start_from_words;
use super::{
    Best, CHECKPOINTS, Checkpoint, Hosts, Inputs, ModelCard, Point, TrainObserver, TrainOutcome,
    TrainPlan, Trained, base_model, base_reranker, new_model, new_reranker, own_lm_head, train,
    training_page,
};
use crate::device::{Device, handles};
use crate::output::claim;
use crate::recipe::Recipe;
use crate::terminal::Terminal;
use crate::vectors::write_atomically;
use crate::with_backend;

/// A run and where it goes.
pub struct Fit<'a> {
    /// The recipe.
    pub recipe: &'a Recipe,
    /// What it reads.
    pub inputs: &'a Inputs,
    /// Folder for everything that is written.
    pub output: &'a Path,
    /// Steps between checkpoints.
    pub checkpoint_every: usize,
    /// Checkpoints to keep.
    pub keep: usize,
    /// Steps between models that are kept in the folder's `steps/`; 0 keeps none.
    pub save_every: usize,
    /// The state to go on from.
    pub resume: Option<(Checkpoint, PathBuf)>,
    /// Whether models and checkpoints that another run has left in the folder are replaced.
    pub overwrite: bool,
    /// The processes that train together, of which this is one; the first writes.
    pub hosts: Option<Hosts>,
    /// What the user sees.
    pub terminal: Terminal,
    /// Told of each step.
    pub on_step: Option<&'a (dyn Fn(&Point) + Sync)>,
}

/// What a run left behind.
#[derive(Debug, Clone)]
pub struct RunArtifacts {
    /// Folder of the model.
    pub model: PathBuf,
    /// Folder of the adapters, where there are some.
    pub adapter: Option<PathBuf>,
    /// Folder of the best model, where there was an evaluation.
    pub best: Option<(PathBuf, Best)>,
    /// The report.
    pub report: PathBuf,
    /// Every step.
    pub points: Vec<Point>,
    /// Whether this process wrote it: of several the first does, at paths that the others need not reach.
    pub written: bool,
}

/// The model that a recipe starts from.
///
/// # Errors
/// Whatever is wrong with the base model or the new one's shape.
pub fn build<B: Kernels>(
    recipe: &Recipe,
    inputs: &Inputs,
    device: &B::Device,
    terminal: Terminal,
) -> Result<Trained<B>> {
    B::seed(device, recipe.seed);
    match (&recipe.model.base, &recipe.model.new) {
        (Some(base), _) if recipe.reranks() => {
            Ok(Trained::Reranker(base_reranker::<B>(base, recipe, device, terminal)?))
        }
        (Some(base), _) => Ok(base_model::<B>(base, recipe, device, terminal)?.into()),
        (None, Some(new)) => {
            let texts = inputs.texts()?;
            let words = texts.iter().map(String::as_str);
            if recipe.reranks() {
                return Ok(Trained::Reranker(new_reranker::<B>(new, recipe, words, device)?));
            }
            let mut embedder = new_model::<B>(new, &recipe.model, words, device)?;
            if let Some(teacher) = &new.word_vectors {
                start_from_words(&mut embedder, teacher, &texts, terminal)?;
            }
            Ok(embedder.into())
        }
        (None, None) => bail!("the model needs either base or new"),
    }
}

/// Writes each model that is the best so far.
struct Keep<'a> {
    fit: &'a Fit<'a>,
}

impl Keep<'_> {
    fn save<B: Kernels>(&self, folder: &str, model: &Trained<B>, point: &Point) -> Result<()> {
        let card = ModelCard {
            recipe: self.fit.recipe,
            inputs: self.fit.inputs,
            points: std::slice::from_ref(point),
        };
        save_model(&self.fit.output.join(folder), model, &card)
    }
}

impl<B: Kernels> TrainObserver<Autodiff<B>> for Keep<'_> {
    fn at_step(&mut self, model: &Trained<B>, step: usize, point: &Point) -> Result<()> {
        self.save(&format!("{STEPS}/{step:06}"), model, point)
    }

    fn step(&mut self, point: &Point) {
        if let Some(on_step) = self.fit.on_step {
            on_step(point);
        }
    }

    fn best(&mut self, model: &Trained<B>, point: &Point) -> Result<()> {
        self.save("best", model, point)
    }
}

/// Folder inside a run's in which `train --save-every` keeps a model of each step's number.
pub(crate) const STEPS: &str = "steps";

/// Files that a run writes into its folder.
pub(crate) const RUN_FILES: [&str; 4] =
    ["recipe.toml", "metrics.jsonl", "tensorboard", "report.html"];

/// Checks that everything can be written at the end, so that nothing is trained in vain.
fn prepare(fit: &Fit<'_>) -> Result<()> {
    let existing = match fit.overwrite || fit.resume.is_some() {
        true => Existing::ReplaceOurs,
        false => Existing::Refuse,
    };
    for name in ["model", "best", "adapter"] {
        check_target(&fit.output.join(name), existing)?;
    }
    let steps = fit.recipe.stages.iter().map(|stage| stage.steps).sum::<usize>();
    let every = if fit.save_every == 0 { usize::MAX } else { fit.save_every };
    for step in (every..=steps).step_by(every) {
        check_target(&fit.output.join(format!("{STEPS}/{step:06}")), existing)?;
    }
    let checkpoints = fit.output.join(CHECKPOINTS);
    if fit.overwrite && fit.resume.is_none() && checkpoints.exists() {
        Checkpoint::remove_all(&checkpoints)
            .with_context(|| format!("cannot remove {}", checkpoints.display()))?;
    }
    claim(fit.output, if fit.resume.is_some() { &[] } else { &RUN_FILES })
}

/// Whether a run goes on from what its folder holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// It begins, and the folder holds no checkpoint.
    No,
    /// It goes on from a checkpoint that has to be there.
    Yes,
    /// It goes on where there is a checkpoint, and begins otherwise: what a launcher starts again and again.
    IfThere,
}

/// The checkpoint that a run goes on from, where it is to `resume` what its folder holds.
///
/// # Errors
/// A folder that holds a checkpoint and is not to be resumed, or the other way round; a checkpoint of another
/// recipe.
pub fn resumed(
    output: &Path,
    recipe: &Recipe,
    resume: Resume,
    terminal: Terminal,
) -> Result<Option<(Checkpoint, PathBuf)>> {
    let found = Checkpoint::find(&output.join(CHECKPOINTS), recipe, terminal)?;
    match (&found, resume) {
        (Some(_), Resume::No) => bail!(
            "{}: holds a checkpoint; add --resume to go on from it, --overwrite to begin anew, or choose another --output",
            output.display()
        ),
        (None, Resume::Yes) => bail!("{}: holds no checkpoint to resume", output.display()),
        _ => Ok(found),
    }
}

/// Trains on one device or several of one kind, and writes model, adapters, recipe and report.
///
/// # Errors
/// As [`train`]; [`kiln_embed::Error::Cancelled`] after Ctrl-C, with the state saved.
pub fn fit(fit: &Fit<'_>, devices: &[Device]) -> Result<RunArtifacts> {
    let first = devices.first().unwrap_or(&Device::Cpu);
    with_backend!(first, B, _handle => fit_on::<B>(fit, &handles::<B>(devices)?))
}

fn fit_on<B: Kernels>(fit: &Fit<'_>, devices: &[B::Device]) -> Result<RunArtifacts> {
    let Fit { recipe, inputs, output, terminal, hosts, .. } = fit;
    let writes = hosts.as_ref().is_none_or(Hosts::is_main);
    // What is loaded and made here takes each process its own time.
    let busy = hosts.as_ref().map(Hosts::busy);
    if writes {
        prepare(fit)?;
    }
    let first = devices.first().cloned().unwrap_or_default();
    let start = build::<B>(recipe, inputs, &first, *terminal)?;
    if B::HOST {
        let ranks = hosts.as_ref().map_or(1, Hosts::world);
        warn_of_memory(recipe, &start.shape(), ranks, *terminal)?;
    }
    if writes {
        write_atomically(&output.join("recipe.toml"), toml::to_string(recipe)?.as_bytes())?;
    }
    let plan = TrainPlan {
        recipe,
        sets: &inputs.sets,
        measured: &inputs.measured,
        output: Some(output),
        lm_head: own_lm_head(recipe, *terminal)?,
        checkpoint_every: fit.checkpoint_every,
        keep: fit.keep,
        save_every: fit.save_every,
        resume: fit.resume.clone(),
        hosts: hosts.clone(),
        terminal: *terminal,
    };
    drop(busy);
    let outcome = train::<Autodiff<B>>(start, plan, devices, &mut Keep { fit })?;
    let TrainOutcome { model: trained, adapters, points, best, interrupted, stopped_by } = outcome;
    if interrupted {
        hosts.as_ref().map_or(Ok(()), Hosts::leave)?;
        terminal.note(format!("stopped; go on with --resume --output {}", output.display()));
        let cancelled = anyhow::Error::from(kiln_embed::Error::Cancelled);
        return Err(match stopped_by {
            Some(name) => cancelled.context(format!("{name} was asked to stop")),
            None => cancelled,
        });
    }
    let model = output.join("model");
    if !writes {
        hosts.as_ref().map_or(Ok(()), Hosts::leave)?;
        let (adapter, report) = (None, output.join("report.html"));
        return Ok(RunArtifacts { model, adapter, best: None, report, points, written: false });
    }
    let busy = hosts.as_ref().map(Hosts::busy);
    let card = ModelCard { recipe, inputs, points: &points };
    save_model(&model, &trained, &card)?;
    let adapter = match adapters {
        Some(files) => {
            let folder = output.join("adapter");
            write_directory(&folder, &files, Existing::ReplaceOurs)?;
            Some(folder)
        }
        None => None,
    };
    let report = output.join("report.html");
    let page = training_page(recipe, inputs, &points)?;
    write_atomically(&report, page.to_html().as_bytes())?;
    let best = best.map(|best| (output.join("best"), best));
    drop(busy);
    if let Err(error) = hosts.as_ref().map_or(Ok(()), Hosts::leave) {
        terminal.note(format!("{error:#}; all had been written before"));
    }
    Ok(RunArtifacts { model, adapter, best, report, points, written: true })
}

/// Writes a model folder with its card.
fn save_model<B: Kernels>(folder: &Path, model: &Trained<B>, card: &ModelCard<'_>) -> Result<()> {
    let mut files = model.files()?;
    files.0.insert("README.md".into(), card.to_markdown(model)?.into());
    Ok(write_directory(folder, &files, Existing::ReplaceOurs)?)
}
