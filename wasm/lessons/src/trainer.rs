//! The trainer: adapters on a model, taught step by step, so that who calls can show how far it is, and stop.

use anyhow::{Context as _, Result, bail};
use burn::module::AutodiffModule;
use burn::tensor::FloatDType;
use burn::tensor::backend::AutodiffBackend;
use kiln_data::data::{Example, MemorySet, ModelPrompts, Sampler, SamplerState, mixed};
use kiln_data::recipe::{Curriculum, DataSource, Stage};
use kiln_embed::checkpoint::{Files, load_adapters, save_adapters};
use kiln_embed::embedder::{EmbedOptions, Embedder, EmbeddingModel, Parts, Prompt, Prompts};
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::loss::info_nce;
use kiln_embed::model::{Backbone, LoraConfig};
use kiln_embed::tokenizer::Tokenizer;
use kiln_embed::train::{
    BatchGradients, BatchPass, ChunkRunner, Optimizer, SavedParameters, TrainModel, Trains, chunks,
    clip_norm, encode, put_parameters, set_trainable,
};
use serde::{Deserialize, Serialize};

use crate::check::{Check, Score};
use crate::lessons::{Lessons, Split};
use crate::state::{Kept, State};

/// What is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct AdapterSettings {
    /// Rank of the adapters.
    pub rank: usize,
    /// Their update is scaled by `alpha / rank`.
    pub alpha: f64,
    /// Which projections get one, as PEFT's `target_modules`.
    pub targets: Vec<String>,
    /// Seed of what is drawn: the adapters, what is held back, the batches.
    pub seed: u64,
}

impl Default for AdapterSettings {
    fn default() -> Self {
        Self { rank: 8, alpha: 16.0, targets: vec!["all-linear".into()], seed: 1 }
    }
}

impl AdapterSettings {
    fn lora(&self) -> Result<LoraConfig> {
        if self.rank == 0 || self.rank > 256 {
            bail!("rank is {}; adapters have a rank between 1 and 256", self.rank);
        }
        if !(self.alpha.is_finite() && self.alpha > 0.0) {
            bail!("alpha is {}; it has to be above 0", self.alpha);
        }
        Ok(LoraConfig {
            rank: self.rank,
            alpha: self.alpha,
            dropout: 0.0,
            targets: self.targets.clone(),
        })
    }
}

/// How it is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Plan {
    /// Steps, each over one batch.
    pub steps: usize,
    /// Lessons in a batch.
    pub batch_size: usize,
    /// Highest learning rate; it rises over a tenth of the steps and falls linearly to zero.
    pub learning_rate: f64,
    /// Temperature of InfoNCE.
    pub temperature: f64,
    /// Negatives of each lesson's own in a batch, of those that it has.
    pub hard_negatives: usize,
    /// Share of the lessons that is held back, to see whether the model has become better.
    pub hold_back: f64,
    /// Steps between looks at the lessons that are held back; a quarter of all where 0.
    pub check_every: usize,
    /// Looks without a gain after which training stops.
    pub patience: usize,
    /// Texts at most among which the answers of held-back lessons are to be found.
    pub check_texts: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            steps: 60,
            batch_size: 16,
            learning_rate: 5e-4,
            temperature: 0.05,
            hard_negatives: 1,
            hold_back: 0.2,
            check_every: 0,
            patience: 2,
            check_texts: 96,
        }
    }
}

impl Plan {
    /// The stage of a recipe that trains so.
    ///
    /// # Errors
    /// Values that make no sense, by name.
    pub fn stage(&self) -> Result<Stage> {
        let whole = [("steps", self.steps), ("batchSize", self.batch_size)];
        for (name, value) in whole {
            if value == 0 || value > 100_000 {
                bail!("{name} is {value}; it has to be between 1 and 100000");
            }
        }
        if self.batch_size < 2 {
            bail!("batchSize is 1; with 2 or more, lessons are told apart from one another");
        }
        for (name, value) in
            [("learningRate", self.learning_rate), ("temperature", self.temperature)]
        {
            if !(value.is_finite() && value > 0.0) {
                bail!("{name} is {value}; it has to be above 0");
            }
        }
        if !(0.0..0.9).contains(&self.hold_back) {
            bail!("holdBack is {}; it is a share between 0 and 0.9", self.hold_back);
        }
        let mut stage: Stage = serde_json::from_value(serde_json::json!({
            "name": "lessons",
            "data": [],
            "steps": self.steps,
            "batch_size": self.batch_size,
            "lr": self.learning_rate,
            "warmup": self.steps / 10,
            "hard_negatives": self.hard_negatives,
            "loss": { "temperature": self.temperature },
        }))?;
        stage.curriculum = Curriculum::Sampled;
        Ok(stage)
    }

    fn check_every(&self) -> usize {
        match self.check_every {
            0 => self.steps.div_ceil(4),
            every => every,
        }
    }
}

/// What a call of [`Trainer::step`] did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Point {
    /// Steps that are done.
    pub step: usize,
    /// Steps in all.
    pub steps: usize,
    /// The batch's loss; none where the model was only asked.
    pub loss: Option<f64>,
    /// How well the held-back lessons' answers are found now, where that was looked at.
    pub score: Option<Score>,
    /// Where the run is.
    pub phase: Phase,
}

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It goes on.
    Training,
    /// All steps are done, or there was no gain any more.
    Done,
}

/// What became of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// Lessons that were taught.
    pub taught: usize,
    /// Lessons that were held back.
    pub held_back: usize,
    /// Steps that were done.
    pub steps: usize,
    /// The step whose adapters these are.
    pub best_step: usize,
    /// How well held-back lessons were answered before.
    pub before: Option<Score>,
    /// How well they are answered by these adapters; where they are not kept, by the last ones.
    pub after: Option<Score>,
    /// Whether the adapters are kept: not where none of the run answers held-back lessons better than before.
    pub kept: bool,
}

/// What is taught, and how far it is.
pub(crate) struct Run<B: AutodiffBackend> {
    pub plan: Plan,
    stage: Stage,
    split: Split,
    sets: [MemorySet; 1],
    check: Check,
    pub sampler: Option<SamplerState>,
    optimizer: Optimizer<B>,
    pub progress: Progress,
    /// The adapters before the first step.
    start: TrainModel<B>,
    /// The best adapters so far, where they are compared.
    best: Option<TrainModel<B>>,
}

/// How far a run is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps that are done.
    pub step: usize,
    /// The score before the first step.
    pub before: Option<Score>,
    /// The best score since, and after which step.
    pub best: Option<(usize, Score)>,
    /// The last score.
    pub last: Option<Score>,
    /// Looks since then.
    pub without_gain: usize,
    /// Whether it is over.
    pub done: bool,
}

/// Adapters on a model, and what they are taught.
pub struct Trainer<B: AutodiffBackend> {
    tokenizer: Tokenizer,
    prompts: Prompts,
    device: B::Device,
    settings: AdapterSettings,
    lora: LoraConfig,
    train_model: TrainModel<B>,
    run: Option<Run<B>>,
}

impl<B: TrainingBackend> Trainer<B> {
    /// Fresh adapters on a model, whose own weights stay as they are, packed ones packed.
    ///
    /// # Errors
    /// Settings that make no sense, or name no projection.
    pub fn new(embedder: Embedder<B::InnerBackend>, settings: AdapterSettings) -> Result<Self> {
        let lora = settings.lora()?;
        let Parts { model, tokenizer, prompts, device, .. } = embedder.into_parts();
        if model.backbone().layers() == 0 {
            bail!("a table of tokens has no projections that could learn; teach a transformer");
        }
        let model = EmbeddingModel::<B>::from_inner(model.map_backbone(Backbone::merge_lora));
        // The draws of the first stage of a recipe with this seed.
        B::seed(&device, mixed(&[settings.seed, 0]));
        let train_model = trainable(model.with_lora(&lora, &device)?);
        Ok(Self { tokenizer, prompts, device, settings, lora, train_model, run: None })
    }

    /// Goes on from adapters that were trained before.
    ///
    /// # Errors
    /// Files that are no adapters of this model.
    pub fn adapters(&mut self, files: &Files) -> Result<()> {
        let model = self.train_model.model.valid();
        let (config, backbone) = (model.config().clone(), model.backbone().clone());
        let (backbone, lora) = load_adapters(backbone, &config, files, &self.device)?;
        let model = EmbeddingModel::<B>::from_inner(model.map_backbone(|_| backbone));
        self.train_model = trainable(model);
        self.lora = LoraConfig { dropout: 0.0, ..lora };
        self.run = None;
        Ok(())
    }

    /// Begins to teach. `others` are texts among which answers are to be found when held-back lessons are asked.
    ///
    /// # Errors
    /// Lessons or a plan that make no sense.
    pub fn begin(&mut self, lessons: Vec<Example>, others: &[String], plan: Plan) -> Result<()> {
        let split = Lessons::new(lessons)?.split(plan.hold_back, self.settings.seed);
        let texts = split.taught.iter().flat_map(|lesson| lesson.pos.iter().chain(&lesson.neg));
        let check = Check::new(&split.held_back, texts.chain(others), plan.check_texts);
        self.begin_with(split, check, plan)
    }

    fn begin_with(&mut self, split: Split, check: Check, plan: Plan) -> Result<()> {
        let stage = plan.stage()?;
        if let [alone] = &split.taught[..]
            && (alone.neg.is_empty() || plan.hard_negatives == 0)
        {
            bail!(
                "one lesson without a wrong answer has nothing to be told apart from; add another"
            );
        }
        let set = MemorySet::new(split.taught.iter().cloned(), DataSource::default())?;
        self.run = Some(Run {
            optimizer: Optimizer::new(stage.optimizer, stage.weight_decay),
            plan,
            stage,
            split,
            sets: [set],
            check,
            sampler: None,
            progress: Progress::default(),
            start: self.train_model.clone(),
            best: None,
        });
        Ok(())
    }

    /// Lessons that are taught, and that are held back.
    pub fn counts(&self) -> (usize, usize) {
        let split = self.run.as_ref().map(|run| &run.split);
        split.map_or((0, 0), |split| (split.taught.len(), split.held_back.len()))
    }

    /// Ends the run after fewer steps than planned; the learning rate falls to zero by then.
    pub fn shorten(&mut self, steps: usize) {
        if let Some(run) = &mut self.run {
            let steps = steps.max(run.progress.step + 1).min(run.plan.steps);
            (run.plan.steps, run.stage.steps) = (steps, steps);
        }
    }

    /// Takes a step, and looks at the held-back lessons where it is time to; before the first step it only looks.
    ///
    /// # Errors
    /// Nothing was begun, or a loss that is not a number.
    pub fn step(&mut self) -> Result<Point> {
        let mut run = self.run.take().context("nothing is taught yet; begin with lessons")?;
        let result = self.step_of(&mut run);
        self.run = Some(run);
        result
    }

    fn step_of(&mut self, run: &mut Run<B>) -> Result<Point> {
        let point = |run: &Run<B>, loss, score| Point {
            step: run.progress.step,
            steps: run.plan.steps,
            loss,
            score,
            phase: if run.progress.done { Phase::Done } else { Phase::Training },
        };
        if run.progress.done {
            return Ok(point(run, None, None));
        }
        if run.progress.before.is_none() && !run.check.is_empty() {
            run.progress.before = Some(self.score(&run.check, run.plan.temperature)?);
            return Ok(point(run, None, run.progress.before));
        }
        let loss = self.learn(run)?;
        run.progress.step += 1;
        let last = run.progress.step >= run.plan.steps;
        let mut score = None;
        if !run.check.is_empty()
            && (last || run.progress.step.is_multiple_of(run.plan.check_every()))
        {
            let now = self.score(&run.check, run.plan.temperature)?;
            let best = run.progress.best.map(|(_, best)| best).or(run.progress.before);
            if best.is_none_or(|best| now.is_better_than(best)) {
                run.progress.best = Some((run.progress.step, now));
                run.progress.without_gain = 0;
                run.best = Some(self.train_model.clone());
            } else {
                run.progress.without_gain += 1;
            }
            score = Some(now);
            run.progress.last = score;
        }
        run.progress.done = last || run.progress.without_gain >= run.plan.patience.max(1);
        Ok(point(run, Some(loss), score))
    }

    /// One batch: loss, gradients, and a step of the optimizer.
    fn learn(&mut self, run: &mut Run<B>) -> Result<f64> {
        let (seed, step) = (self.settings.seed, run.progress.step);
        let prompts = ["query", "document"].map(|name| self.prompt(name));
        let prompts = ModelPrompts::new([&prompts[0], &prompts[1]], None);
        let mut sampler = Sampler::new(&run.sets, &run.stage, mixed(&[seed, 0]), prompts);
        if let Some(state) = run.sampler.take() {
            sampler.restore(state);
        }
        let batch = sampler.next(step)?;
        run.sampler = Some(sampler.state().clone());

        let tokens = encode(&self.tokenizer, &batch.prompted())?;
        // The memory of a page is small: of several chunks each one's graph is dropped, and made again.
        let mut runner = ChunkRunner::new::<B>(None, true, false, FloatDType::F32);
        let chunks =
            chunks(&self.tokenizer, &tokens, runner.chunk, mixed(&[seed, 0, step as u64, 0]));
        let share: Vec<usize> = (0..chunks.len()).collect();
        runner.cached = chunks.len() > 1;
        let pass = BatchPass {
            train_model: &self.train_model,
            runner: &runner,
            chunks: &chunks,
            share: &share,
            states: None,
            scale: 1.0,
            device: &self.device,
        };
        let queries = batch.queries.len();
        let documents = batch.documents.len();
        let BatchGradients { loss, mut gradients, .. } = pass.run::<kiln_embed::Error>(
            |vectors| Ok(burn::tensor::Tensor::cat(vectors, 0)),
            |all| {
                let asked = all.clone().narrow(0, 0, queries);
                let answers = all.narrow(0, queries, documents);
                Ok(info_nce(asked, answers, &batch.candidates, &run.stage.loss))
            },
        )?;
        let norm = clip_norm::<B, _>(&self.train_model, &mut gradients, run.stage.clip_norm);
        if !(loss.is_finite() && norm.is_finite()) {
            bail!("the loss of step {} is not a number; lower learningRate", step + 1);
        }
        let rate = run.stage.learning_rate(step);
        self.train_model = run.optimizer.step(rate, self.train_model.clone(), gradients);
        Ok(loss)
    }

    /// Ends the run with its best adapters, or, where they answer held-back lessons worse than the model without
    /// them, with those of before the run.
    ///
    /// # Errors
    /// Nothing was begun.
    pub fn finish(&mut self) -> Result<Outcome> {
        let run = self.run.take().context("nothing is taught yet; begin with lessons")?;
        let Progress { step, before, best, last, .. } = run.progress;
        let kept = step > 0 && (run.check.is_empty() || run.best.is_some());
        match run.best {
            Some(best) => self.train_model = best,
            None if kept => {}
            None => self.train_model = run.start,
        }
        Ok(Outcome {
            taught: run.split.taught.len(),
            held_back: run.split.held_back.len(),
            steps: step,
            best_step: best.map_or(step, |(step, _)| step),
            before,
            after: best.map_or(last, |(_, score)| Some(score)),
            kept,
        })
    }

    /// How well held-back lessons are answered.
    fn score(&self, check: &Check, temperature: f64) -> Result<Score> {
        let queries = self.embed(&check.queries, "query")?;
        let texts = self.embed(&check.texts, "document")?;
        Ok(check.score(&queries, &texts, temperature))
    }

    /// Vectors of texts by the model with its adapters as they are now, each of norm 1, behind the prompt of that name
    /// (`query`, `document`), where the model has it.
    ///
    /// # Errors
    /// Vectors with NaN.
    pub fn embed(&self, texts: &[String], prompt: &str) -> Result<Vec<Vec<f32>>> {
        let model = self.train_model.model.valid();
        let embedder =
            Embedder::<B::InnerBackend>::new(model, self.tokenizer.clone(), &self.device)?;
        let prompt = Prompt::Text(self.prompt(prompt));
        let options = EmbedOptions { normalize: Some(true), ..EmbedOptions::with_prompt(prompt) };
        Ok(embedder.embed_with(texts, &options, |_| std::ops::ControlFlow::Continue(()))?)
    }

    fn prompt(&self, name: &str) -> String {
        self.prompts.by_name().get(name).cloned().unwrap_or_default()
    }

    /// The adapters as PEFT's two files; `base` names the model that they adapt.
    ///
    /// # Errors
    /// Values that cannot be read back.
    pub fn adapter(&self, base: &str) -> Result<Files> {
        let model = self.train_model.model.valid();
        Ok(save_adapters(model.backbone(), model.config(), &self.lora, base)?)
    }

    /// All that is needed to go on from here, as files.
    ///
    /// # Errors
    /// Nothing was begun, or values that cannot be read back.
    pub fn state(&self) -> Result<Files> {
        let run = self.run.as_ref().context("nothing is taught yet; begin with lessons")?;
        let now = SavedParameters::of(&self.train_model, false)?;
        let best = match &run.best {
            Some(best) => Some(SavedParameters::of(best, false)?),
            None => None,
        };
        let state = State {
            settings: self.settings.clone(),
            plan: run.plan.clone(),
            taught: run.split.taught.clone(),
            held_back: run.split.held_back.clone(),
            texts: run.check.texts.clone(),
            sampler: run.sampler.clone(),
            progress: run.progress.clone(),
            ids: now.ids.clone(),
        };
        state.to_files(now, best, run.optimizer.state()?)
    }

    /// Goes on from a state of a trainer of the same model.
    ///
    /// # Errors
    /// Files that are no such state.
    pub fn restore(&mut self, files: &Files) -> Result<()> {
        let Kept { state, now, best, optimizer } = State::from_files(files)?;
        if state.settings != self.settings {
            bail!("the state is of a trainer with other settings; make one with those");
        }
        let split = Split { taught: state.taught, held_back: state.held_back };
        let check = Check::new(&split.held_back, state.texts.iter(), state.plan.check_texts);
        self.begin_with(split, check, state.plan)?;
        let put =
            |weights| put_parameters(self.train_model.clone(), &state.ids, weights, &self.device);
        let (now, best) = (now.map(put).transpose()?, best.map(put).transpose()?);
        let run = self.run.as_mut().context("nothing was begun")?;
        for (group, bytes) in optimizer.into_iter().enumerate() {
            run.optimizer.restore(group, bytes, &self.device)?;
        }
        (run.sampler, run.progress, run.best) = (state.sampler, state.progress, best);
        self.train_model = now.context("the state has no parameters")?;
        Ok(())
    }
}

/// A model whose adapters alone learn.
fn trainable<B: TrainingBackend>(model: EmbeddingModel<B>) -> TrainModel<B> {
    let train_model =
        TrainModel { model, lm_head: None, projections: Vec::new(), score_head: None };
    set_trainable::<B, _>(train_model, Trains::AdaptersAlone)
}
