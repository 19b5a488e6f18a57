//! The training loop: whatever the recipe, draw a batch, its loss and gradients, sum, clip, step,
//! report, evaluate, save.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use burn::optim::{GradientsParams, Optimizer as _};
use burn::tensor::backend::AutodiffBackend;
use kiln_embed::checkpoint::{Files, save_adapters};
use kiln_embed::embedder::Embedder;
use kiln_embed::kernels::TrainingBackend;

use super::chunks::ChunkRunner;
use super::contrastive::contrastive;
use super::device_group::{DeviceGroup, copied};
use super::distillation::Teachers;
use super::gradients::{DecayGroups, add, clip_norm};
use super::reconstruction::reconstruction;
use super::scale::LossScale;
use super::setup::{EmbedderParts, enter_stage, optimizers, start};
use super::telemetry::Live;
use super::train_model::{TrainModel, parameters};
use super::{Best, Checkpoint, Part, Point, Position, StepContext, Telemetry};
use crate::data::{Batch, DataSet, Sampler, mixed};
use crate::eval::EvalSet;
use crate::interrupt;
use crate::recipe::{ComputeDtype, Objective, Recipe, Stage};
use crate::terminal::{Terminal, thousands};

/// What to train on, and where to keep the state.
#[derive(Clone)]
pub struct TrainPlan<'a> {
    /// The recipe.
    pub recipe: &'a Recipe,
    /// Data sets of each stage.
    pub sets: &'a [Vec<DataSet>],
    /// Sets to evaluate on, as the recipe says.
    pub measured: &'a [EvalSet],
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
pub trait TrainObserver<B: AutodiffBackend> {
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
impl<B: TrainingBackend> TrainObserver<B> for Silent {}

/// Trains an embedder through all stages of a recipe, on one device or on several together.
///
/// # Errors
/// A loss that is not a number, a checkpoint that cannot be written, or the observer's own.
pub fn train<B: TrainingBackend>(
    embedder: Embedder<B::InnerBackend>,
    plan: TrainPlan<'_>,
    devices: &[B::Device],
    observer: &mut impl TrainObserver<B>,
) -> Result<Outcome<B>> {
    let own = [embedder.device().clone()];
    let devices = if devices.is_empty() { &own } else { devices };
    let (parts, train_model) = start::<B>(embedder);
    if devices.len() == 1 {
        return rank(DeviceGroup::single(), parts, train_model, &plan, observer);
    }
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..devices.len())
            .map(|i| {
                let parts = EmbedderParts { device: devices[i].clone(), ..parts.clone() };
                let train_model = copied::<B, _>(&train_model, &devices[i]);
                let plan =
                    TrainPlan { terminal: Terminal { json: false, quiet: true }, ..plan.clone() };
                scope.spawn(move || {
                    let group = DeviceGroup::join(i, devices.len(), &parts.device)?;
                    rank::<B>(group, parts, train_model, &plan, &mut Silent).map(drop)
                })
            })
            .collect();
        let group = DeviceGroup::join(0, devices.len(), &parts.device)?;
        let outcome = rank(group, parts, train_model, &plan, observer);
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
    group: DeviceGroup<B>,
    parts: EmbedderParts<B>,
    mut train_model: TrainModel<B>,
    plan: &TrainPlan<'_>,
    observer: &mut impl TrainObserver<B>,
) -> Result<Outcome<B>> {
    let recipe = plan.recipe;
    let device = parts.device.clone();
    let is_main = group.is_main();
    let output = plan.output.filter(|_| is_main);
    let mut state = Checkpoint::new(recipe);
    let mut restored = None;
    let mut teachers = Teachers::new(recipe, &parts, plan.terminal);
    if let Some((result, folder)) = &plan.resume {
        state = result.clone();
        let teacher = teachers.of(state.stage, train_model.model.backbone().layers())?;
        train_model = enter_stage(train_model, recipe, state.stage, teacher, &device)?;
        train_model = state.load(folder, train_model, &device)?;
        train_model = enter_stage(train_model, recipe, state.stage, teacher, &device)?;
        let fresh = optimizers::<B>(&recipe.stages[state.stage]);
        restored = Some(Checkpoint::load_optimizers(folder, fresh, &device)?);
    }
    let mut telemetry = match output {
        Some(folder) => Telemetry::in_folder(folder, state.steps)?,
        None => Telemetry::in_memory(),
    };
    let mut scale = LossScale::new(recipe.compute.precision == ComputeDtype::F16, state.loss_scale);
    let runner = ChunkRunner::of::<B>(&recipe.compute);

    for number in state.position.stage..recipe.stages.len() {
        let stage = &recipe.stages[number];
        let first = state.position.step;
        let teacher = teachers.of(number, train_model.model.backbone().layers())?;
        train_model = enter_stage(train_model, recipe, number, teacher, &device)?;
        if let Some(teacher) = teacher {
            teacher.prepare(&train_model.model, &plan.sets[number], stage)?;
        }
        let kept = restored.take().filter(|_| first > 0 || stage.keep_optimizer);
        let mut optimizers = kept.unwrap_or_else(|| optimizers::<B>(stage));
        state.stage = number;
        let groups = DecayGroups::of::<B, _>(&train_model);
        let mut sampler = Sampler::new(
            &plan.sets[number],
            stage,
            mixed(&[recipe.seed, number as u64]),
            parts.prompts(),
        );
        if let Some(i) = state.sampler.take().filter(|_| first > 0) {
            sampler.restore(i);
        }
        describe(plan, &train_model, stage);
        let mut live = Live::new(plan.terminal, &stage.name, stage.steps, first);

        for step in first..stage.steps {
            let begun = Instant::now();
            let place = StepContext {
                tokenizer: &parts.tokenizer,
                runner,
                device: &device,
                group: &group,
                teacher,
                scale: scale.value(),
            };
            let mut point = Point { stage: number, step: step + 1, ..Point::default() };
            let mut gradients = GradientsParams::new();
            let mut batches = Vec::new();
            for part in 0..stage.accumulation {
                let batch = sampler.next(step)?;
                let seed = mixed(&[recipe.seed, number as u64, step as u64, part as u64]);
                let result = objective(&train_model, &batch, stage, &place, seed)?;
                add::<B, _>(
                    &train_model,
                    &mut gradients,
                    result.gradients,
                    stage.accumulation as f64,
                );
                point.loss += result.loss / stage.accumulation as f64;
                point.texts += result.texts;
                point.tokens += result.tokens;
                batches.push(batch.ids);
            }
            let mut gradients = group.sum_gradients(&train_model, gradients)?;
            point.grad_norm = clip_norm::<B, _>(&train_model, &mut gradients, stage.clip_norm);
            point.lr = stage.learning_rate(step);
            if point.loss.is_finite() && point.grad_norm.is_finite() {
                let [decayed, undecayed] = groups.split::<B, _>(&train_model, gradients);
                train_model = optimizers[0].step(point.lr, train_model, decayed);
                train_model = optimizers[1].step(point.lr, train_model, undecayed);
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
                    let embedder = parts.embedder(&train_model)?;
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
                    state.save(
                        &folder,
                        plan.keep,
                        &train_model,
                        [&optimizers[0], &optimizers[1]],
                    )?;
                }
                Ok(interrupted)
            };
            let concluded = if is_main { conclude() } else { Ok(false) };
            let stop = f64::from(!matches!(concluded, Ok(false)));
            if group.sum_number(stop, &device)? > 0.0 {
                live.finish();
                concluded?;
                return parts.outcome(train_model, plan, telemetry, state.best, true);
            }
        }
        live.finish();
        if is_main {
            observer.after_stage(&parts.embedder(&train_model)?, stage)?;
        }
        state.position = Position { stage: number + 1, step: 0 };
        restored = Some(optimizers);
    }
    parts.outcome(train_model, plan, telemetry, state.best, false)
}

/// Where a run keeps its checkpoints inside its folder.
pub const CHECKPOINTS: &str = "checkpoints";

fn objective<B: TrainingBackend>(
    train_model: &TrainModel<B>,
    batch: &Batch,
    stage: &Stage,
    place: &StepContext<'_, B>,
    seed: u64,
) -> Result<Part> {
    match stage.objective {
        Objective::Contrastive | Objective::Distillation => {
            contrastive(train_model, batch, stage, place, seed)
        }
        Objective::Reconstruction => {
            let settings = stage.reconstruction.unwrap_or_default();
            reconstruction(train_model, batch, &settings, place, seed)
        }
    }
}

fn describe<B: TrainingBackend>(plan: &TrainPlan<'_>, train_model: &TrainModel<B>, stage: &Stage) {
    let all = parameters(train_model);
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

fn evaluate<B: kiln_embed::kernels::Kernels>(
    plan: &TrainPlan<'_>,
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
    plan: &TrainPlan<'_>,
    batches: &[Vec<(usize, usize)>],
    output: Option<&Path>,
) -> anyhow::Error {
    let mut place = String::new();
    if let Some(folder) = output {
        let sets = &plan.sets[point.stage];
        let examples: Vec<serde_json::Value> = batches
            .iter()
            .flatten()
            .map(|&(set, i)| {
                let example = sets[set].get(i).ok();
                serde_json::json!({"source": sets[set].name, "number": i, "example": example})
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

impl<B: TrainingBackend> EmbedderParts<B> {
    fn outcome(
        &self,
        train_model: TrainModel<B>,
        plan: &TrainPlan<'_>,
        telemetry: Telemetry,
        best: Option<Best>,
        interrupted: bool,
    ) -> Result<Outcome<B>> {
        let recipe = plan.recipe;
        let pristine = !recipe.stages.iter().any(|stage| stage.full);
        let adapters = match (&recipe.model.lora, &recipe.model.base) {
            (Some(lora), Some(base)) if pristine => {
                let inner = burn::module::AutodiffModule::valid(&train_model.model);
                Some(save_adapters(inner.backbone(), inner.config(), lora, base)?)
            }
            _ => None,
        };
        let embedder = self.embedder(&train_model)?;
        Ok(Outcome { embedder, adapters, points: telemetry.points, best, interrupted })
    }
}
