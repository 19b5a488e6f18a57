//! The training loop, whatever the recipe: draw a batch, its loss and gradients; sum, clip, step;
//! evaluate, report, save.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail};
use burn::module::AutodiffModule as _;
use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use kiln_embed::checkpoint::{AdapterBase, save_adapters};
use kiln_embed::config::AttentionMode;
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::model::Backbone;
use kiln_embed::train::{
    ChunkRunner, Coming, Late, Optimizer, TrainModel, add, clip_norm, parameters,
};

use super::among_gpus::among_gpus;
use super::checkpoint::{SetSum, changes_base};
use super::device_group::{DeviceGroup, copied};
use super::distillation::{Teacher, Teachers};
use super::hosts::{fingerprint, lost, stopped};
use super::in_process;
use super::memory::KeptMemory;
use super::optimizer::{self, optimizer_of};
use super::plan::{Silent, TrainObserver, TrainOutcome, TrainPlan};
use super::scale::LossScale;
use super::setup::{
    ModelParts, advise_of_state, check_base, check_frozen, check_texts, chunk_runner, enter_stage,
    start,
};
use super::sharding::{self, Owners};
use super::telemetry::Live;
use super::{Best, Checkpoint, Point, Position, StepContext, Telemetry, Trained, objective};
use crate::data::{Batch, DataSet, ModelPrompts, Sampler, SamplerState, mixed};
use crate::eval::{EvalSet, MEAN, scores};
use crate::interrupt;
use crate::recipe::{ComputeDtype, Recipe, Stage};
use crate::terminal::{Terminal, counted, thousands};

/// Where a run keeps its checkpoints inside its folder.
pub const CHECKPOINTS: &str = "checkpoints";

/// What stays the same for a whole run, on one of its devices.
struct Run<'a, B: AutodiffBackend> {
    plan: &'a TrainPlan<'a>,
    parts: ModelParts<B>,
    group: DeviceGroup<B>,
    runner: ChunkRunner,
    /// Whether each device keeps the optimizer's state of its share of the parameters alone.
    sharded: bool,
    /// Where this device writes, if it does.
    output: Option<&'a Path>,
}

impl<B: TrainingBackend> Run<'_, B> {
    /// What the objective of a step computes with.
    fn context<'a>(&'a self, teacher: Option<&'a Teacher<B>>, scale: f64) -> StepContext<'a, B> {
        StepContext {
            tokenizer: &self.parts.tokenizer,
            input: &self.parts.input,
            runner: self.runner,
            device: &self.parts.device,
            group: &self.group,
            teacher,
            scale,
        }
    }
}

/// What the steps of a run change.
struct RunState<B: AutodiffBackend> {
    train_model: TrainModel<B>,
    optimizer: Optimizer<B>,
    loss_scale: LossScale,
    /// Where the run is, and the best score so far.
    checkpoint: Checkpoint,
    telemetry: Telemetry,
    /// Steps of the run whose state a checkpoint holds.
    saved: usize,
    /// Whether Ctrl-C ended the run.
    interrupted: bool,
    /// The device whose process was asked to stop, where there are several.
    stopped_by: Option<String>,
}

/// The stage that is running.
struct RunningStage<'a, B: AutodiffBackend> {
    number: usize,
    stage: &'a Stage,
    teacher: Option<&'a Teacher<B>>,
    sampler: Sampler<'a, DataSet>,
    live: Live,
    /// Whether it has been said that batches are smaller than asked.
    said_small: bool,
    /// The last step, while nobody has read its numbers.
    unread: Option<Taken>,
    /// When the numbers of the step before it were there.
    read: Instant,
}

/// A step that was taken, and its numbers, which its device may still compute.
struct Taken {
    /// Without loss, norm and seconds.
    point: Point,
    loss: Coming,
    norm: Coming,
    begun: Instant,
    examples: Vec<(usize, usize)>,
}

impl<B: AutodiffBackend> RunningStage<'_, B> {
    /// Says, once, that a step has a smaller batch than asked.
    fn note_small(&mut self, batches: &[Batch], step: usize) {
        let asked = self.stage.batch_size;
        let small = batches.iter().map(|batch| batch.queries.len()).find(|count| *count < asked);
        if let Some(count) = small.filter(|_| !self.said_small) {
            self.said_small = true;
            self.live.note(format!(
                "stage {}: step {} has a batch of {}, not of {asked}: no text stands twice in a batch, and \
                 the data have too few that differ",
                self.stage.name,
                step + 1,
                counted(count, "query", "queries")
            ));
        }
    }
}

// -------------------------------------------------------------------------------------- the loop

/// All stages, on one device.
fn run<B: TrainingBackend>(
    group: DeviceGroup<B>,
    parts: ModelParts<B>,
    train_model: TrainModel<B>,
    plan: &TrainPlan<'_>,
    observer: &mut impl TrainObserver<B>,
    late: bool,
) -> Result<TrainOutcome<B>> {
    let mut runner = chunk_runner::<B>(&plan.recipe.compute);
    // A table of tokens has no block to compute again.
    runner.blocks &= train_model.backbone().layers() > 0;
    // Several devices tell one another their numbers, and the scale of an f16 loss depends on them.
    runner.late = late && group.is_single() && plan.recipe.compute.precision != ComputeDtype::F16;
    let output = plan.output.filter(|_| group.is_main());
    let sharded = plan.recipe.compute.shard_optimizer && !group.is_single();
    let run = Run { plan, parts, group, runner, sharded, output };
    let mut teachers = Teachers::new(plan.recipe, &run.parts, plan.terminal);
    let mut state = resume(&run, train_model, &mut teachers)?;
    for number in state.checkpoint.position.stage..plan.recipe.stages.len() {
        state = run_stage(&run, state, number, &mut teachers, observer)?;
        if state.interrupted {
            break;
        }
    }
    outcome(&run, state)
}

/// The state of a checkpoint, or that before the first step.
fn resume<B: TrainingBackend>(
    run: &Run<'_, B>,
    mut train_model: TrainModel<B>,
    teachers: &mut Teachers<'_, B>,
) -> Result<RunState<B>> {
    let (recipe, device) = (run.plan.recipe, &run.parts.device);
    let mut checkpoint = Checkpoint::new(recipe);
    let mut optimizer = optimizer_of(&recipe.stages[0]);
    if let Some((saved, folder)) = &run.plan.resume {
        checkpoint = saved.clone();
        let teacher = teachers.of(saved.stage, train_model.backbone().layers())?;
        train_model = enter_stage(train_model, recipe, saved.stage, teacher, device)?;
        train_model = saved.load(folder, train_model, device)?;
        train_model = enter_stage(train_model, recipe, saved.stage, teacher, device)?;
        let owners = run.sharded.then(|| Owners::new(&train_model, &run.group));
        let keep = |id| owners.as_ref().is_none_or(|owners| owners.own(id));
        let parts = saved.optimizer_parts;
        optimizer = optimizer::load(folder, recipe, saved.stage, parts, keep, device)?;
    }
    checkpoint.data = Some(SetSum::all(run.plan.sets));
    let telemetry = match run.output {
        Some(folder) => Telemetry::in_folder(folder, checkpoint.steps)?,
        None => Telemetry::in_memory(),
    };
    let scales = recipe.compute.precision == ComputeDtype::F16;
    let loss_scale = LossScale::new(scales, checkpoint.loss_scale);
    let saved = checkpoint.steps;
    Ok(RunState {
        train_model,
        optimizer,
        loss_scale,
        checkpoint,
        telemetry,
        saved,
        interrupted: false,
        stopped_by: None,
    })
}

/// A stage, from its first step or from where a checkpoint left it.
fn run_stage<B: TrainingBackend>(
    run: &Run<'_, B>,
    mut state: RunState<B>,
    number: usize,
    teachers: &mut Teachers<'_, B>,
    observer: &mut impl TrainObserver<B>,
) -> Result<RunState<B>> {
    let Run { plan, parts, .. } = run;
    let (recipe, stage, sets) = (plan.recipe, &plan.recipe.stages[number], &plan.sets[number]);
    let first_step = state.checkpoint.position.step;
    // What is loaded, drawn and embedded takes each device its own time.
    let busy = run.group.busy();
    let teacher = teachers.of(number, state.train_model.backbone().layers())?;
    if first_step == 0 && stage.merge_lora {
        // Not of a copy, which would hold every weight that has been merged already.
        let model = state.train_model.model.map_backbone(Backbone::merge_lora);
        state.train_model = TrainModel { model, ..state.train_model };
    }
    state.train_model = enter_stage(state.train_model, recipe, number, teacher, &parts.device)?;
    if let Some(teacher) = teacher {
        teacher.prepare(&state.train_model.model, sets, stage)?;
    }
    drop(busy);
    let saved = state.saved;
    let told = |error| told(run, saved, error);
    state.train_model = run.group.align(state.train_model, false).map_err(told)?;
    if run.sharded {
        state.train_model = run.group.same_ids(state.train_model).map_err(told)?;
    }
    if first_step == 0 && !stage.keep_optimizer {
        state.optimizer = optimizer_of(stage);
    } else if first_step == 0 && run.sharded {
        let owners = Owners::new(&state.train_model, &run.group);
        let (own, device) = (|id| owners.own(id), &parts.device);
        let place = (recipe, number);
        let anew = optimizer::shared_anew(&state.optimizer, &run.group, place, own, device);
        state.optimizer = anew.map_err(told)?;
    }
    if first_step == 0 && number > 0 {
        give_back::<B>(&parts.device)?;
    }
    let seed = mixed(&[recipe.seed, number as u64]);
    let prompts = ModelPrompts::new(parts.prompts(), parts.prompts.instruction_format());
    let mut sampler = Sampler::new(sets, stage, seed, prompts);
    if let Some(saved) = state.checkpoint.sampler.take().filter(|_| first_step > 0) {
        sampler.restore(saved);
    }
    state.checkpoint.stage = number;
    describe(plan.terminal, stage, &state.train_model);
    let live = Live::new(plan.terminal, &stage.name, stage.steps, first_step);
    let (said_small, unread, read) = (false, None, Instant::now());
    let mut running =
        RunningStage { number, stage, teacher, sampler, live, said_small, unread, read };
    for step in first_step..stage.steps {
        let taken;
        (state, taken) = train_step(run, state, &mut running, step, observer)?;
        match after_step(run, &mut state, &mut running, taken, observer) {
            Ok(false) => {}
            Ok(true) => {
                state.interrupted = true;
                return Ok(state);
            }
            Err(error) => {
                let here = Some(running.sampler.state().clone());
                return Err(ended(run, &mut state, here, error));
            }
        }
    }
    running.live.finish();
    if run.group.is_main() {
        let _busy = run.group.busy();
        observer.after_stage(&parts.trained(&state.train_model)?, stage)?;
    }
    state.checkpoint.position = Position { stage: number + 1, step: 0 };
    Ok(state)
}

/// Gives back the memory that the stages before have freed and a device keeps for more of the same sizes: weights before
/// they were merged, the optimizer's states, what is kept for the way back.
fn give_back<B: TrainingBackend>(device: &B::Device) -> Result<()> {
    // What is still to be computed holds on to what it is computed from.
    B::sync(device).map_err(|error| anyhow!("the device: {error:?}"))?;
    B::memory_cleanup(device);
    Ok(())
}

/// One step, on all devices: forward, backward, optimizer.
fn train_step<B: TrainingBackend>(
    run: &Run<'_, B>,
    mut state: RunState<B>,
    running: &mut RunningStage<'_, B>,
    step: usize,
    observer: &mut impl TrainObserver<B>,
) -> Result<(RunState<B>, Taken)> {
    // Where its batches begin, for a checkpoint if a device is lost in the middle of it.
    let begins = (!run.group.is_single()).then(|| running.sampler.state().clone());
    match gradients_of(run, &state, running, step) {
        Ok((gradients, point)) => optimizer_step(run, state, running, gradients, point),
        Err(error) => {
            // Where the step before was no number, that is why.
            let error = catch_up(run, &mut state, running, observer).err().unwrap_or(error);
            Err(ended(run, &mut state, begins, error))
        }
    }
}

/// A step's loss and gradients, and the examples that they are of.
struct StepGradients<B: AutodiffBackend> {
    loss: Late<B::InnerBackend>,
    gradients: GradientsParams,
    examples: Vec<(usize, usize)>,
    begun: Instant,
}

/// The gradients of a step's batches, summed over batches and devices.
fn gradients_of<B: TrainingBackend>(
    run: &Run<'_, B>,
    state: &RunState<B>,
    running: &mut RunningStage<'_, B>,
    step: usize,
) -> Result<(StepGradients<B>, Point)> {
    let begun = Instant::now();
    let RunningStage { number, stage, ref mut sampler, .. } = *running;
    let context = run.context(running.teacher, state.loss_scale.value());
    let count = stage.accumulation as f64;
    let mut point = Point { stage: number, step: step + 1, ..Point::default() };
    let batches =
        (0..stage.accumulation).map(|_| sampler.next(step)).collect::<Result<Vec<_>>>()?;
    running.note_small(&batches, step);
    check_batches(run, &batches, &point)?;
    let (mut loss, mut gradients) = (Late::Known(0.0), GradientsParams::new());
    let mut examples = Vec::new();
    for (part, batch) in batches.into_iter().enumerate() {
        let seed = mixed(&[run.plan.recipe.seed, number as u64, step as u64, part as u64]);
        let result = objective(&state.train_model, &batch, stage, &context, seed)?;
        add::<B, _>(&state.train_model, &mut gradients, result.gradients, count);
        loss = loss.plus(result.loss.over(count));
        point.texts += result.texts;
        point.tokens += result.tokens;
        examples.extend(batch.ids);
    }
    let gradients = run.group.sum_gradients(&state.train_model, gradients)?;
    Ok((StepGradients { loss, gradients, examples, begun }, point))
}

/// Refuses to train on where a device has drawn other batches than the first: its files are others.
fn check_batches<B: TrainingBackend>(
    run: &Run<'_, B>,
    batches: &[Batch],
    point: &Point,
) -> Result<()> {
    if run.group.is_single() {
        return Ok(());
    }
    let all = run.group.all_gather_bytes(fingerprint(batches).to_le_bytes().to_vec())?;
    match all.iter().position(|other| *other != all[0]) {
        None => Ok(()),
        Some(rank) => bail!(
            "{} reads other data than {}: the batches of step {} differ; give all hosts the same files",
            run.group.name(rank),
            run.group.name(0),
            point.step
        ),
    }
}

/// The gradients, clipped, are given to the optimizer. Where the loss is scaled, a step that overflows
/// only lowers the scale. What its device has not computed yet is looked at when it is read ([`known`]).
fn optimizer_step<B: TrainingBackend>(
    run: &Run<'_, B>,
    mut state: RunState<B>,
    running: &RunningStage<'_, B>,
    StepGradients { loss, mut gradients, examples, begun }: StepGradients<B>,
    mut point: Point,
) -> Result<(RunState<B>, Taken)> {
    let (stage, late) = (running.stage, run.runner.late);
    let norm = clip_norm::<B, _>(&state.train_model, &mut gradients, stage.clip_norm, late);
    point.lr = stage.learning_rate(point.step - 1);
    if loss.may_be_finite() && norm.may_be_finite() {
        let RunState { train_model, ref mut optimizer, .. } = state;
        state.train_model = match run.sharded {
            false => optimizer.step(point.lr, train_model, gradients),
            true => {
                let device = &run.parts.device;
                sharding::step(&run.group, optimizer, point.lr, train_model, gradients, device)
                    .map_err(|error| told(run, state.saved, error))?
            }
        };
        state.loss_scale.good();
    } else if !state.loss_scale.bad() {
        (point.loss, point.grad_norm) = (loss.read()?, norm.read()?);
        return Err(not_a_number(run, stage, &point, &examples));
    }
    let (loss, norm) = (loss.coming(), norm.coming());
    Ok((state, Taken { point, loss, norm, begun, examples }))
}

/// The whole point of a step, once its device has computed its numbers: it took the time since it began, or since the
/// numbers of the one before were there.
///
/// # Errors
/// Numbers that are none, which is known only now: the weights are none either, and nobody has been given them.
fn known<B: TrainingBackend>(
    run: &Run<'_, B>,
    running: &mut RunningStage<'_, B>,
    Taken { mut point, loss, norm, begun, examples }: Taken,
) -> Result<Point> {
    (point.loss, point.grad_norm) = (loss.read()?, norm.read()?);
    let now = Instant::now();
    point.seconds = now.duration_since(begun.max(running.read)).as_secs_f64();
    running.read = now;
    if run.runner.late && !(point.loss.is_finite() && point.grad_norm.is_finite()) {
        return Err(not_a_number(run, running.stage, &point, &examples));
    }
    Ok(point)
}

/// Reports the step whose numbers nobody has read, if there is one.
fn catch_up<B: TrainingBackend>(
    run: &Run<'_, B>,
    state: &mut RunState<B>,
    running: &mut RunningStage<'_, B>,
    observer: &mut impl TrainObserver<B>,
) -> Result<()> {
    let Some(taken) = running.unread.take() else {
        return Ok(());
    };
    let point = known(run, running, taken)?;
    report(state, running, point, observer)
}

/// Tells everybody of a step.
fn report<B: TrainingBackend>(
    state: &mut RunState<B>,
    running: &mut RunningStage<'_, B>,
    point: Point,
    observer: &mut impl TrainObserver<B>,
) -> Result<()> {
    running.live.step(&point);
    observer.step(&point);
    state.telemetry.push(point)
}

/// Whether a step's numbers are waited for: its model is evaluated or kept, or the stage or the run ends with it.
fn is_waited_for<B: TrainingBackend>(
    run: &Run<'_, B>,
    state: &RunState<B>,
    stage: &Stage,
    point: &Point,
) -> bool {
    let plan = run.plan;
    let evaluates = plan.recipe.eval.as_ref().map_or(0, |eval| eval.every);
    is_due(evaluates, point, stage)
        || is_due(plan.checkpoint_every, point, stage)
        || due_of_run(plan.save_every, state.checkpoint.steps)
        || interrupt::asked()
}

/// What a run ends with: where a device was lost, the main one first saves the state of the last whole step, from
/// where its batches began.
fn ended<B: TrainingBackend>(
    run: &Run<'_, B>,
    state: &mut RunState<B>,
    sampler: Option<SamplerState>,
    error: anyhow::Error,
) -> anyhow::Error {
    // A part of what a shared optimizer knew is lost with its device.
    let fresh = state.checkpoint.steps > state.saved && !run.sharded && lost(&error).is_some();
    if let (true, Some(folder), Some(sampler)) = (fresh, run.output, sampler)
        && let Err(failure) = optimizer::states(&state.optimizer, &run.group, run.sharded)
            .and_then(|states| save(run, state, states, sampler, folder))
    {
        return error.context(format!("the state could not be saved ({failure:#})"));
    }
    told(run, state.saved, error)
}

/// An error with what there is to go on from, where it is that a device was lost.
fn told<B: TrainingBackend>(run: &Run<'_, B>, saved: usize, error: anyhow::Error) -> anyhow::Error {
    match lost(&error) {
        Some(line) => stopped(line, run.output.map(|folder| (saved, folder))),
        None => error,
    }
}

/// What a checkpoint keeps of the optimizer, on the device that writes it. All devices come here, and go on with the
/// parameters that are saved.
fn to_save<B: TrainingBackend>(
    run: &Run<'_, B>,
    state: &mut RunState<B>,
) -> Result<Vec<optimizer::State>> {
    if !run.group.is_single() {
        state.train_model = run.group.align(state.train_model.clone(), true)?;
    }
    optimizer::states(&state.optimizer, &run.group, run.sharded)
}

/// Writes a checkpoint.
fn save<B: TrainingBackend>(
    run: &Run<'_, B>,
    state: &mut RunState<B>,
    optimizer: Vec<optimizer::State>,
    sampler: SamplerState,
    folder: &Path,
) -> Result<()> {
    let RunState { train_model, loss_scale, checkpoint, saved, .. } = state;
    checkpoint.sampler = Some(sampler);
    checkpoint.loss_scale = loss_scale.state();
    checkpoint.save(&folder.join(CHECKPOINTS), run.plan.keep, train_model, optimizer)?;
    *saved = checkpoint.steps;
    Ok(())
}

/// What follows a step: the main device evaluates, reports and saves; or, where nothing rests on the step's numbers and its
/// device may still compute them, reports the step before. Whether the run stops here.
fn after_step<B: TrainingBackend>(
    run: &Run<'_, B>,
    state: &mut RunState<B>,
    running: &mut RunningStage<'_, B>,
    taken: Taken,
    observer: &mut impl TrainObserver<B>,
) -> Result<bool> {
    let step = taken.point.step;
    state.checkpoint.steps += 1;
    state.checkpoint.position = match step < running.stage.steps {
        true => Position { stage: running.number, step },
        false => Position { stage: running.number + 1, step: 0 },
    };
    catch_up(run, state, running, observer)?;
    if run.runner.late && !is_waited_for(run, state, running.stage, &taken.point) {
        running.unread = Some(taken);
        return Ok(false);
    }
    let point = known(run, running, taken)?;
    let saves =
        run.plan.output.is_some() && is_due(run.plan.checkpoint_every, &point, running.stage);
    let optimizer = match saves.then(|| to_save(run, state)).transpose() {
        Ok(optimizer) => optimizer,
        Err(error) => {
            state.telemetry.push(point)?;
            return Err(error);
        }
    };
    let concluded = match run.group.is_main() {
        true => conclude(run, state, running, point, optimizer, observer),
        false => Ok(false),
    };
    // All stop together, after Ctrl-C or its like on any of them and after a failure.
    let stops = !matches!(concluded, Ok(false));
    let saves = run.output.is_some() && concluded.is_ok() && state.checkpoint.steps > state.saved;
    let own = [stops, interrupt::asked(), saves].map(u8::from);
    let all = run.group.all_gather_bytes(own.to_vec())?;
    let says = |flag: usize| all.iter().position(|flags| flags.get(flag) == Some(&1));
    let asked = says(1).filter(|_| !run.group.is_single());
    if says(0).is_none() && asked.is_none() {
        return concluded;
    }
    running.live.finish();
    let hosts = run.plan.hosts.as_ref();
    state.stopped_by = asked.filter(|_| hosts.is_some()).map(|rank| run.group.name(rank));
    if says(2).is_some() {
        let optimizer = to_save(run, state)?;
        if let Some(folder) = run.output {
            let _busy = run.group.busy();
            save(run, state, optimizer, running.sampler.state().clone(), folder)?;
        }
    }
    run.group.barrier()?;
    concluded.map(|_| true)
}

// --------------------------------------------------------------------------- evaluate, report, save

/// Evaluates and saves (`optimizer`) where it is time to, and reports. Whether Ctrl-C was pressed.
fn conclude<B: TrainingBackend>(
    run: &Run<'_, B>,
    state: &mut RunState<B>,
    running: &mut RunningStage<'_, B>,
    mut point: Point,
    optimizer: Option<Vec<optimizer::State>>,
    observer: &mut impl TrainObserver<B>,
) -> Result<bool> {
    let Run { plan, parts, .. } = run;
    let every = plan.recipe.eval.as_ref().map_or(0, |eval| eval.every);
    let evaluates = is_due(every, &point, running.stage);
    // The others wait meanwhile.
    let _busy = run.group.busy();
    if evaluates && !plan.measured.is_empty() {
        let model = parts.trained(&state.train_model)?;
        let note = |set: &EvalSet, score: f64| {
            let EvalSet { name, metric, .. } = set;
            running.live.note(format!("step {}: {name} {metric} {score:.4}", point.step));
        };
        // Where a device is lost this is broken off, and the step stands without scores.
        let also = run.group.ends().map(interrupt::also);
        match scores(plan.measured, model.measured(), plan.terminal, note) {
            Ok(scores) => point.scores = scores,
            Err(error) => {
                state.telemetry.push(point)?;
                return Err(error);
            }
        }
        drop(also);
        if improved(plan.recipe, &mut state.checkpoint, &point) {
            observer.best(&model, &point)?;
        }
    }
    if due_of_run(plan.save_every, state.checkpoint.steps) {
        observer.at_step(&parts.trained(&state.train_model)?, state.checkpoint.steps, &point)?;
    }
    report(state, running, point, observer)?;
    if let (Some(folder), Some(optimizer)) = (run.output, optimizer) {
        save(run, state, optimizer, running.sampler.state().clone(), folder)?;
    }
    Ok(interrupt::asked())
}

/// Whether something is due after a step of a stage: every so many, 0 is never, and at the stage's end.
fn is_due(every: usize, point: &Point, stage: &Stage) -> bool {
    point.step == stage.steps || (every > 0 && point.step.is_multiple_of(every))
}

/// Whether a step of the whole run, from 1, is one of every so many; 0 is never.
fn due_of_run(every: usize, step: usize) -> bool {
    every > 0 && step.is_multiple_of(every)
}

/// Whether a step's score on the set that chooses is the best so far, which is then noted.
fn improved(recipe: &Recipe, checkpoint: &mut Checkpoint, point: &Point) -> bool {
    let eval = recipe.eval.as_ref();
    let usual = eval.filter(|eval| eval.sets.is_empty()).map(|_| MEAN);
    let chooses = eval.and_then(|eval| eval.best.as_deref()).or(usual);
    let score = match chooses {
        Some(name) => point.scores.iter().find(|(set, _)| set == name),
        None => point.scores.first(),
    };
    let Some((_, score)) = score else {
        return false;
    };
    let better = checkpoint.best.as_ref().is_none_or(|best| *score > best.score);
    if better {
        checkpoint.best = Some(Best { step: checkpoint.steps, score: *score });
    }
    better
}

/// Says what a stage is about to do.
fn describe<B: TrainingBackend>(terminal: Terminal, stage: &Stage, train_model: &TrainModel<B>) {
    let parameters = parameters(train_model);
    let count = |trains: bool| -> usize {
        let counted = parameters.iter().filter(|parameter| parameter.trains == trains);
        counted.map(|parameter| parameter.size).sum()
    };
    let frozen = match train_model.backbone().is_packed() {
        true => "the packed weights of the base".to_string(),
        false => thousands(count(false)),
    };
    terminal.note(format!(
        "stage {}: {} of {}; {} parameters train, {frozen} are frozen",
        stage.name,
        counted(stage.steps, "step", "steps"),
        counted(stage.batch_size * stage.accumulation, "query", "queries"),
        thousands(count(true)),
    ));
}

/// The error of a step that is not a number; which examples it had is kept in a file.
fn not_a_number<B: TrainingBackend>(
    run: &Run<'_, B>,
    stage: &Stage,
    point: &Point,
    examples: &[(usize, usize)],
) -> anyhow::Error {
    let mut kept = String::new();
    if let Some(folder) = run.output {
        let sets = &run.plan.sets[point.stage];
        let examples: Vec<serde_json::Value> = examples
            .iter()
            .map(|&(set, i)| {
                let example = sets[set].get(i).ok();
                serde_json::json!({"source": sets[set].name, "number": i, "example": example})
            })
            .collect();
        let path = folder.join("bad-batch.json");
        let bytes = serde_json::to_vec_pretty(&examples).unwrap_or_default();
        if crate::vectors::write_atomically(&path, &bytes).is_ok() {
            kept = format!("; its examples are in {}", path.display());
        }
    }
    anyhow!(
        "stage {:?}, step {}: the loss is {} and the gradient's norm {}; lower lr or check the data{kept}",
        stage.name,
        point.step,
        point.loss,
        point.grad_norm
    )
}

/// What a run leaves in memory when it ends.
fn outcome<B: TrainingBackend>(run: &Run<'_, B>, state: RunState<B>) -> Result<TrainOutcome<B>> {
    let recipe = run.plan.recipe;
    let pristine = !recipe.stages.iter().any(changes_base);
    let adapters = match (&recipe.model.lora, &recipe.model.base) {
        // PEFT's files of a cross-encoder would need its head, too; no command reads adapters of a decoder that ranks.
        (Some(lora), Some(base)) if pristine && !recipe.reranks() => {
            let model = state.train_model.model.valid();
            let base = AdapterBase { name: Some(base.clone()), fingerprint: None };
            Some(save_adapters(model.backbone(), model.config(), lora, &base)?)
        }
        _ => None,
    };
    Ok(TrainOutcome {
        model: run.parts.trained(&state.train_model)?,
        adapters,
        points: state.telemetry.points,
        best: state.checkpoint.best,
        interrupted: state.interrupted,
        stopped_by: state.stopped_by,
    })
}

// -------------------------------------------------------------------------------------- the devices

/// Trains a model through all stages of a recipe: on one device, on several together, or as one of several processes.
///
/// # Errors
/// A loss that is not a number, a checkpoint of other data or one that cannot be written, or the observer's own.
pub fn train<B: TrainingBackend>(
    model: impl Into<Trained<B::InnerBackend>>,
    plan: TrainPlan<'_>,
    devices: &[B::Device],
    observer: &mut impl TrainObserver<B>,
) -> Result<TrainOutcome<B>> {
    train_with(model, plan, devices, observer, !B::HOST)
}

/// As [`train`]; where `late` and there is one device, a step's numbers are read while the next one is computed.
pub(super) fn train_with<B: TrainingBackend>(
    model: impl Into<Trained<B::InnerBackend>>,
    plan: TrainPlan<'_>,
    devices: &[B::Device],
    observer: &mut impl TrainObserver<B>,
    late: bool,
) -> Result<TrainOutcome<B>> {
    let _kept = KeptMemory::new();
    let (parts, train_model) = start::<B>(model, plan.lm_head.clone());
    let own = [parts.device.clone()];
    let devices = if devices.is_empty() { &own } else { devices };
    let layers = train_model.backbone().layers();
    let causal = train_model.model.attention() == AttentionMode::Causal;
    check_texts(&parts, plan.recipe, plan.sets, layers, causal)?;
    check_frozen(&train_model, &plan.recipe.model)?;
    advise_of_state(&parts, train_model.model.pooling().config(), plan.recipe, plan.terminal);
    if let Some((saved, _)) = &plan.resume {
        saved.check_data(plan.sets)?;
    }
    if let Some(hosts) = &plan.hosts {
        let format = plan.recipe.compute.gradients;
        let by = hosts.transport();
        check_base::<B::InnerBackend>(&by, &plan.recipe.model, plan.terminal)?;
        let way = among_gpus::<B::InnerBackend>(by, &parts.device, format, plan.terminal)?;
        return run(DeviceGroup::over(way), parts, train_model, &plan, observer, late);
    }
    if devices.len() == 1 {
        return run(DeviceGroup::single(), parts, train_model, &plan, observer, late);
    }
    let format = plan.recipe.compute.gradients;
    let mut ways = in_process::devices(devices.len()).into_iter();
    let first = ways.next().context("no device to train on")?;
    std::thread::scope(|scope| {
        let others = ways
            .zip(&devices[1..])
            .map(|(way, device)| {
                let parts = ModelParts { device: device.clone(), ..parts.clone() };
                let train_model = copied::<B, _>(&train_model, device);
                let plan =
                    TrainPlan { terminal: Terminal { json: false, quiet: true }, ..plan.clone() };
                // As much as the main thread has: training has deep frames in builds that are not optimised.
                let thread = std::thread::Builder::new().stack_size(1 << 23);
                thread.spawn_scoped(scope, move || {
                    let way = among_gpus::<B::InnerBackend>(way, device, format, plan.terminal)?;
                    let group = DeviceGroup::over(way);
                    run::<B>(group, parts, train_model, &plan, &mut Silent, late).map(drop)
                })
            })
            .collect::<std::io::Result<Vec<_>>>()
            .context("no thread can be started for a device")?;
        let way = among_gpus::<B::InnerBackend>(first, &devices[0], format, plan.terminal);
        let group = way.map(DeviceGroup::over);
        let mut outcome =
            group.and_then(|group| run(group, parts, train_model, &plan, observer, late));
        for other in others {
            let error = match other.join() {
                Ok(Err(error)) => error,
                Ok(Ok(())) => continue,
                Err(_) => anyhow!("it ended in the middle"),
            };
            // The device that ended first knows why; the others say that it did.
            if outcome.as_ref().err().is_none_or(|first| first.is::<in_process::Stopped>())
                && !error.is::<in_process::Stopped>()
            {
                outcome = Err(error.context("on another device"));
            }
        }
        outcome
    })
}
