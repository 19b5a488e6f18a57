//! The training loop: whatever the recipe, draw a batch, its loss and gradients, sum, clip, step,
//! report, evaluate, save.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use burn::optim::{GradientsParams, Optimizer as _};
use burn::tensor::backend::AutodiffBackend;
use kiln_core::checkpoint::{Files, save_adapters};
use kiln_core::embedder::Embedder;
use kiln_core::kernels::TrainingBackend;

use super::chunks::Passes;
use super::contrastive::contrastive;
use super::distillation::Lessons;
use super::gradients::{DecayGroups, add, clip_norm};
use super::peers::{Peers, copied};
use super::reconstruction::reconstruction;
use super::scale::LossScale;
use super::setup::{Tools, enter_stage, optimizers, start};
use super::telemetry::Live;
use super::trainee::{Trainee, parameters};
use super::{Best, Checkpoint, Part, Point, Position, Telemetry, Workplace};
use crate::data::{Batch, DataSet, Sampler, mixed};
use crate::eval::Measured;
use crate::interrupt;
use crate::recipe::{Objective, Precision, Recipe, Stage};
use crate::terminal::{Terminal, thousands};

/// What to train on, and where to keep the state.
#[derive(Clone)]
pub struct Plan<'a> {
    /// The recipe.
    pub recipe: &'a Recipe,
    /// Data sets of each stage.
    pub sets: &'a [Vec<DataSet>],
    /// Sets to evaluate on, as the recipe says.
    pub measured: &'a [Measured],
    /// Folder for checkpoints and metrics; nothing is written where absent.
    pub output: Option<&'a Path>,
    /// Steps between checkpoints; one is written at the end of a stage and at Ctrl-C anyway.
    pub checkpoint_every: usize,
    /// Checkpoints to keep.
    pub keep: usize,
    /// The state to go on from, as [`Checkpoint::find`] found it.
    pub resume: Option<(Checkpoint, PathBuf)>,
    /// What the user sees.
    pub terminal: Terminal,
}

/// How a run ended.
pub struct Outcome<B: AutodiffBackend> {
    /// The trained model, adapters merged.
    pub embedder: Embedder<B::InnerBackend>,
    /// The adapters as PEFT keeps them, where the base model's weights stayed as they were.
    pub adapters: Option<Files>,
    /// Every step.
    pub points: Vec<Point>,
    /// The best score, where there is an evaluation set.
    pub best: Option<Best>,
    /// True where Ctrl-C ended it early; the checkpoint then holds its state.
    pub interrupted: bool,
}

/// What the caller does between steps.
pub trait Observer<B: AutodiffBackend> {
    /// After each stage, with the model as it is then.
    ///
    /// # Errors
    /// The caller's own; training stops.
    fn after_stage(&mut self, _: &Embedder<B::InnerBackend>, _: &Stage) -> Result<()> {
        Ok(())
    }

    /// After an evaluation that is the best so far.
    ///
    /// # Errors
    /// The caller's own; training stops.
    fn best(&mut self, _: &Embedder<B::InnerBackend>, _: &Point) -> Result<()> {
        Ok(())
    }
}

/// An observer that does nothing.
pub struct Silent;
impl<B: TrainingBackend> Observer<B> for Silent {}

/// Trains an embedder through all stages of a recipe, on one device or on several together.
///
/// # Errors
/// A loss that is not a number, a checkpoint that cannot be written, or the observer's own.
pub fn train<B: TrainingBackend>(
    embedder: Embedder<B::InnerBackend>,
    plan: Plan<'_>,
    devices: &[B::Device],
    observer: &mut impl Observer<B>,
) -> Result<Outcome<B>> {
    let own = [embedder.device.clone()];
    let devices = if devices.is_empty() { &own } else { devices };
    let (tools, trainee) = start::<B>(embedder);
    if devices.len() == 1 {
        return rank(Peers::single(), tools, trainee, &plan, observer);
    }
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..devices.len())
            .map(|at| {
                let tools = Tools { device: devices[at].clone(), ..tools.clone() };
                let trainee = copied::<B, _>(&trainee, &devices[at]);
                let plan = Plan { terminal: Terminal { json: false, quiet: true }, ..plan.clone() };
                scope.spawn(move || {
                    let peers = Peers::join(at, devices.len(), &tools.device)?;
                    rank::<B>(peers, tools, trainee, &plan, &mut Silent).map(drop)
                })
            })
            .collect();
        let peers = Peers::join(0, devices.len(), &tools.device)?;
        let outcome = rank(peers, tools, trainee, &plan, observer);
        for other in others {
            match other.join() {
                Ok(result) if outcome.is_ok() => result.context("on another device")?,
                Ok(_) => {}
                Err(_) => bail!("training failed on another device"),
            }
        }
        outcome
    })
}

/// The loop of one device.
fn rank<B: TrainingBackend>(
    peers: Peers<B>,
    tools: Tools<B>,
    mut trainee: Trainee<B>,
    plan: &Plan<'_>,
    observer: &mut impl Observer<B>,
) -> Result<Outcome<B>> {
    let recipe = plan.recipe;
    let device = tools.device.clone();
    let leads = peers.leads();
    let output = plan.output.filter(|_| leads);
    let mut state = Checkpoint::new(recipe);
    let mut restored = None;
    let mut lessons = Lessons::new(recipe, &tools, plan.terminal);
    if let Some((found, folder)) = &plan.resume {
        state = found.clone();
        let lesson = lessons.of(state.stage, trainee.model.backbone.layers())?;
        trainee = enter_stage(trainee, recipe, state.stage, lesson, &device)?;
        trainee = state.load(folder, trainee, &device)?;
        trainee = enter_stage(trainee, recipe, state.stage, lesson, &device)?;
        let fresh = optimizers::<B>(&recipe.stages[state.stage]);
        restored = Some(Checkpoint::load_optimizers(folder, fresh, &device)?);
    }
    let mut telemetry = match output {
        Some(folder) => Telemetry::in_folder(folder, state.steps)?,
        None => Telemetry::in_memory(),
    };
    let mut scale = LossScale::new(recipe.compute.precision == Precision::F16, state.loss_scale);
    let passes = Passes::of::<B>(&recipe.compute, &device);

    for number in state.position.stage..recipe.stages.len() {
        let stage = &recipe.stages[number];
        let first = state.position.step;
        let lesson = lessons.of(number, trainee.model.backbone.layers())?;
        trainee = enter_stage(trainee, recipe, number, lesson, &device)?;
        if let Some(lesson) = lesson {
            lesson.prepare(&trainee.model, &plan.sets[number], stage)?;
        }
        let kept = restored.take().filter(|_| first > 0 || stage.keep_optimizer);
        let mut optimizers = kept.unwrap_or_else(|| optimizers::<B>(stage));
        state.stage = number;
        let groups = DecayGroups::of::<B, _>(&trainee);
        let mut sampler = Sampler::new(
            &plan.sets[number],
            stage,
            mixed(&[recipe.seed, number as u64]),
            tools.prompts(),
        );
        if let Some(at) = state.sampler.take().filter(|_| first > 0) {
            sampler.restore(at);
        }
        describe(plan, &trainee, stage);
        let mut live = Live::new(plan.terminal, &stage.name, stage.steps, first);

        for step in first..stage.steps {
            let begun = Instant::now();
            let place = Workplace {
                tokenizer: &tools.tokenizer,
                passes,
                device: &device,
                peers: &peers,
                lesson,
                scale: scale.value(),
            };
            let mut point = Point { stage: number, step: step + 1, ..Point::default() };
            let mut gradients = GradientsParams::new();
            let mut batches = Vec::new();
            for part in 0..stage.accumulation {
                let batch = sampler.next(step)?;
                let seed = mixed(&[recipe.seed, number as u64, step as u64, part as u64]);
                let found = objective(&trainee, &batch, stage, &place, seed)?;
                add::<B, _>(&trainee, &mut gradients, found.gradients, stage.accumulation as f64);
                point.loss += found.loss / stage.accumulation as f64;
                point.texts += found.texts;
                point.tokens += found.tokens;
                batches.push(batch.ids);
            }
            let mut gradients = peers.sum_gradients(&trainee, gradients)?;
            point.grad_norm = clip_norm::<B, _>(&trainee, &mut gradients, stage.clip_norm);
            point.lr = stage.learning_rate(step);
            if point.loss.is_finite() && point.grad_norm.is_finite() {
                let [decayed, undecayed] = groups.split::<B, _>(&trainee, gradients);
                trainee = optimizers[0].step(point.lr, trainee, decayed);
                trainee = optimizers[1].step(point.lr, trainee, undecayed);
                scale.good();
            } else if !scale.bad() {
                return Err(not_a_number(&point, stage, plan, &batches, output));
            }
            point.seconds = begun.elapsed().as_secs_f64();

            state.steps += 1;
            state.position = Position { stage: number, step: step + 1 };
            let last = step + 1 == stage.steps;
            if last {
                state.position = Position { stage: number + 1, step: 0 };
            }
            // What only the leading device does, and a failure of which the others must hear.
            let mut conclude = || -> Result<bool> {
                let due = |every: usize| every > 0 && (step + 1) % every == 0;
                let eval = recipe.eval.as_ref();
                if !plan.measured.is_empty() && (last || due(eval.map_or(0, |eval| eval.every))) {
                    let embedder = tools.embedder(&trainee)?;
                    evaluate(plan, &embedder, &mut point, &live)?;
                    if improved(recipe, &mut state, &point) {
                        observer.best(&embedder, &point)?;
                    }
                }
                live.step(&point);
                telemetry.push(point.clone())?;
                let interrupted = interrupt::asked();
                if let Some(folder) = output
                    && (last || interrupted || due(plan.checkpoint_every))
                {
                    (state.sampler, state.loss_scale) =
                        (Some(sampler.state().clone()), scale.state());
                    let folder = folder.join(CHECKPOINTS);
                    state.save(&folder, plan.keep, &trainee, [&optimizers[0], &optimizers[1]])?;
                }
                Ok(interrupted)
            };
            let concluded = if leads { conclude() } else { Ok(false) };
            let stop = f64::from(!matches!(concluded, Ok(false)));
            if peers.sum_number(stop, &device)? > 0.0 {
                live.finish();
                concluded?;
                return tools.outcome(trainee, plan, telemetry, state.best, true);
            }
        }
        live.finish();
        if leads {
            observer.after_stage(&tools.embedder(&trainee)?, stage)?;
        }
        state.position = Position { stage: number + 1, step: 0 };
        restored = Some(optimizers);
    }
    tools.outcome(trainee, plan, telemetry, state.best, false)
}

/// Where a run keeps its checkpoints inside its folder.
pub const CHECKPOINTS: &str = "checkpoints";

fn objective<B: TrainingBackend>(
    trainee: &Trainee<B>,
    batch: &Batch,
    stage: &Stage,
    place: &Workplace<'_, B>,
    seed: u64,
) -> Result<Part> {
    match stage.objective {
        Objective::Contrastive | Objective::Distillation => {
            contrastive(trainee, batch, stage, place, seed)
        }
        Objective::Reconstruction => {
            let settings = stage.reconstruction.unwrap_or_default();
            reconstruction(trainee, batch, &settings, place, seed)
        }
    }
}

fn describe<B: TrainingBackend>(plan: &Plan<'_>, trainee: &Trainee<B>, stage: &Stage) {
    let all = parameters(trainee);
    let count = |trains: bool| -> usize {
        all.iter().filter(|one| one.trains == trains).map(|one| one.size).sum()
    };
    plan.terminal.note(format!(
        "stage {}: {} steps of {} queries; {} parameters train, {} are frozen",
        stage.name,
        thousands(stage.steps),
        thousands(stage.batch_size * stage.accumulation),
        thousands(count(true)),
        thousands(count(false)),
    ));
}

fn evaluate<B: kiln_core::kernels::Kernels>(
    plan: &Plan<'_>,
    embedder: &Embedder<B>,
    point: &mut Point,
    live: &Live,
) -> Result<()> {
    for set in plan.measured {
        let score = set.score(embedder, plan.terminal)?;
        live.note(format!("step {}: {} {} {score:.4}", point.step, set.name, set.metric));
        point.scores.push((set.name.clone(), score));
    }
    Ok(())
}

/// Whether a step's score on the set that chooses is the best so far, which is then noted.
fn improved(recipe: &Recipe, state: &mut Checkpoint, point: &Point) -> bool {
    let chooses = recipe.eval.as_ref().and_then(|eval| eval.best.as_ref());
    let score = match chooses {
        Some(name) => point.scores.iter().find(|(set, _)| set == name),
        None => point.scores.first(),
    };
    let Some((_, score)) = score else {
        return false;
    };
    let better = state.best.as_ref().is_none_or(|best| *score > best.score);
    if better {
        state.best = Some(Best { step: state.steps, score: *score });
    }
    better
}

/// The error of a step that is not a number; which examples it had is kept in a file.
fn not_a_number(
    point: &Point,
    stage: &Stage,
    plan: &Plan<'_>,
    batches: &[Vec<(usize, usize)>],
    output: Option<&Path>,
) -> anyhow::Error {
    let mut place = String::new();
    if let Some(folder) = output {
        let sets = &plan.sets[point.stage];
        let examples: Vec<serde_json::Value> = batches
            .iter()
            .flatten()
            .map(|&(set, at)| {
                let example = sets[set].get(at).ok();
                serde_json::json!({"source": sets[set].name, "number": at, "example": example})
            })
            .collect();
        let path = folder.join("bad-batch.json");
        let bytes = serde_json::to_vec_pretty(&examples).unwrap_or_default();
        if crate::vectors::write_atomically(&path, &bytes).is_ok() {
            place = format!("; its examples are in {}", path.display());
        }
    }
    anyhow::anyhow!(
        "stage {:?}, step {}: the loss is {} and the gradient's norm {}; lower lr or check the data{place}",
        stage.name,
        point.step,
        point.loss,
        point.grad_norm
    )
}

impl<B: TrainingBackend> Tools<B> {
    fn outcome(
        &self,
        trainee: Trainee<B>,
        plan: &Plan<'_>,
        telemetry: Telemetry,
        best: Option<Best>,
        interrupted: bool,
    ) -> Result<Outcome<B>> {
        let recipe = plan.recipe;
        let pristine = !recipe.stages.iter().any(|stage| stage.full);
        let adapters = match (&recipe.model.lora, &recipe.model.base) {
            (Some(lora), Some(base)) if pristine => {
                let inner = burn::module::AutodiffModule::valid(&trainee.model);
                Some(save_adapters(&inner.backbone, &inner.config, lora, base)?)
            }
            _ => None,
        };
        let embedder = self.embedder(&trainee)?;
        Ok(Outcome { embedder, adapters, points: telemetry.points, best, interrupted })
    }
}
