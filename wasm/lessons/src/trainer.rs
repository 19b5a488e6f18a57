//! The trainer: adapters on a model, taught step by step, so that who calls can show how far it is, and stop.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use burn::module::AutodiffModule;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{FloatDType, Tensor};
use kiln_data::data::{Batch, Example, MemorySet, ModelPrompts, Sampler, SamplerState, mixed};
use kiln_data::recipe::{DataSource, Stage};
use kiln_embed::checkpoint::{
    AdapterBase, Files, adapts_tables, is_vector_adapter, load_adapters, load_vector_adapter,
    lora_base, save_adapters, save_vector_adapter,
};
use kiln_embed::embedder::{
    EmbedOptions, Embedder, EmbedderParts, EmbeddingModel, Prompt, Prompts,
};
use kiln_embed::index::VectorAdapter;
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::loss::info_nce;
use kiln_embed::model::{Backbone, LoraConfig};
use kiln_embed::pooling::{Dense, l2_normalize};
use kiln_embed::tokenizer::Tokenizer;
use kiln_embed::train::{
    BatchGradients, BatchPass, ChunkRunner, Optimizer, SavedParameters, TrainModel, Trains, chunks,
    clip_norm, encode, projection_pass, put_parameters, set_trainable,
};
use serde::{Deserialize, Serialize};

use crate::check::{Check, Score};
use crate::known::KnownVectors;
use crate::lessons::{Lessons, Split};
use crate::settings::{AdapterKind, AdapterSettings, TeachingPlan, most_kept, warmup};
use crate::state::{Kept, State};

/// Texts that are embedded in one call of [`Trainer::step`], before the first step of an adapter of vectors.
const EMBEDDED: usize = 16;

/// What a call of [`Trainer::step`] did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Point {
    /// Steps that are done.
    pub step: usize,
    /// Steps in all.
    pub steps: usize,
    /// As many as were planned, which [`Trainer::set_steps`] does not go beyond.
    pub most: usize,
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
    /// Texts are embedded, of an adapter of vectors.
    Embedding,
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
    pub plan: TeachingPlan,
    /// Steps as they were planned.
    most: usize,
    stage: Stage,
    split: Split,
    sets: [MemorySet; 1],
    check: Check,
    pub sampler: Option<SamplerState>,
    optimizer: Optimizer<B>,
    pub progress: Progress,
    /// The adapters before the first step.
    start: Box<TrainModel<B>>,
    /// The best adapters so far, where they are compared.
    best: Option<Box<TrainModel<B>>>,
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
    /// After which step that was looked at.
    pub looked: usize,
    /// Looks since the best score.
    pub without_gain: usize,
    /// Whether it is over.
    pub done: bool,
}

/// Adapters on a model, and what they are taught.
pub struct Trainer<B: AutodiffBackend> {
    tokenizer: Tokenizer,
    prompts: Prompts,
    device: B::Device,
    /// As it was asked for.
    asked: AdapterKind,
    /// With all that the kind leaves open.
    settings: AdapterSettings,
    /// The low-rank part that trains: by the settings, or as in the adapters that were begun with.
    lora: LoraConfig,
    /// The model without adapters. Models lie on the heap: several of them would fill a thread's stack in an unoptimised
    /// build.
    base: Box<EmbeddingModel<B>>,
    /// What the adapter of vectors was before the low-rank part that trains.
    first: Option<VectorAdapter>,
    /// Vectors of `base`.
    known: KnownVectors,
    train_model: Box<TrainModel<B>>,
    run: Option<Run<B>>,
}

impl<B: TrainingBackend> Trainer<B> {
    /// Fresh adapters on a model, whose own weights stay as they are, packed ones packed.
    ///
    /// # Errors
    /// Settings that make no sense, or name no projection.
    pub fn new(embedder: Embedder<B::InnerBackend>, settings: AdapterSettings) -> Result<Self> {
        let lora = settings.lora()?;
        let EmbedderParts { model, tokenizer, prompts, device, .. } = embedder.into_parts();
        let base =
            Box::new(EmbeddingModel::<B>::from_inner(model.map_backbone(Backbone::merge_lora)));
        let mut trainer = Self {
            tokenizer,
            prompts,
            device,
            asked: settings.kind,
            settings: settings.resolved(settings.kind.of(base.config())),
            lora: lora.clone(),
            train_model: trainable(*base.clone()),
            base,
            first: None,
            known: KnownVectors::default(),
            run: None,
        };
        trainer.begin_kind(trainer.settings.kind, lora, None)?;
        Ok(trainer)
    }

    /// What is trained: LoRA, or an adapter of vectors.
    pub fn kind(&self) -> AdapterKind {
        self.settings.kind
    }

    /// Trains an adapter of vectors from now on, in place of LoRA. What was begun is left.
    ///
    /// # Errors
    /// None that a model causes.
    pub fn use_vector_adapter(&mut self) -> Result<()> {
        self.begin_kind(AdapterKind::Adapter, self.settings.lora()?, None)
    }

    /// Fresh adapters of a kind, on the base and, of an adapter of vectors, on `first`.
    fn begin_kind(
        &mut self,
        kind: AdapterKind,
        lora: LoraConfig,
        first: Option<VectorAdapter>,
    ) -> Result<()> {
        let model = *self.base.clone();
        // One at a time: a backend's seed is that of all threads.
        static DRAWING: Mutex<()> = Mutex::new(());
        let _drawing = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
        // The draws of the first stage of a recipe with this seed.
        B::seed(&self.device, mixed(&[self.settings.seed, 0]));
        let (model, first) = match kind {
            AdapterKind::Adapter => {
                let width = model.dimensions();
                let first = first.unwrap_or_else(|| VectorAdapter::identity(width));
                let dense = Dense::of_adapter(&first, &self.device)?;
                (model.with_dense(dense.with_low_rank(&lora, &self.device)), Some(first))
            }
            AdapterKind::Lora | AdapterKind::Auto => {
                if model.backbone().layers() == 0 {
                    bail!(
                        "a table of tokens has no projections that could learn; teach an adapter of its vectors"
                    );
                }
                (model.with_lora(&lora, &self.device)?, None)
            }
        };
        self.set_adapters(kind, lora, first, model);
        Ok(())
    }

    /// Trains these adapters of a model from now on; what was begun is left.
    fn set_adapters(
        &mut self,
        kind: AdapterKind,
        lora: LoraConfig,
        first: Option<VectorAdapter>,
        model: EmbeddingModel<B>,
    ) {
        self.leave_run();
        self.settings = self.settings.resolved(kind);
        (self.lora, self.first) = (lora, first);
        self.train_model = trainable(model);
    }

    /// Leaves a run that was not finished: the adapters are those of before it.
    fn leave_run(&mut self) {
        if let Some(run) = self.run.take() {
            self.train_model = run.start;
            self.known.forget_waiting();
        }
    }

    /// Goes on from adapters that were trained before, of the kind that is trained; where that was left open, of
    /// either. `fingerprint` is the SHA-256 of the model's manifest, where it has one.
    ///
    /// # Errors
    /// Files that are no adapters of this model.
    pub fn adapters(&mut self, files: &Files, fingerprint: Option<&str>) -> Result<()> {
        let kind = if is_vector_adapter(files) { AdapterKind::Adapter } else { AdapterKind::Lora };
        if kind != self.settings.kind && self.asked != AdapterKind::Auto {
            bail!("these adapters are of the other kind; make a trainer of kind \"auto\"");
        }
        if kind == AdapterKind::Adapter {
            let (adapter, base) = load_vector_adapter(files)?;
            base.check(&adapter, self.base.dimensions(), fingerprint)?;
            return self.begin_kind(kind, self.settings.lora()?, Some(adapter));
        }
        lora_base(files)?.check_model(fingerprint)?;
        if adapts_tables(files)? {
            bail!(
                "these adapters change the model's tables of tokens too, which are not taught further; merge them into the \
                 model with kiln export, and teach that"
            );
        }
        let model = self.base.valid();
        let (config, backbone) = (model.config().clone(), model.backbone().clone());
        let (backbone, lora) = load_adapters(backbone, &config, files, &self.device)?;
        let model = EmbeddingModel::<B>::from_inner(model.map_backbone(|_| backbone));
        self.set_adapters(kind, LoraConfig { dropout: 0.0, ..lora }, None, model);
        Ok(())
    }

    /// Begins to teach; a run that was not finished is left. `others` are texts among which answers are to be found when
    /// held-back lessons are asked, before other lessons' texts.
    ///
    /// # Errors
    /// Lessons or a plan that make no sense.
    pub fn begin(
        &mut self,
        lessons: Vec<Example>,
        others: &[String],
        plan: TeachingPlan,
    ) -> Result<()> {
        let split = Lessons::new(lessons)?.split(plan.hold_back, self.settings.seed);
        let texts = split.taught.iter().flat_map(|lesson| lesson.pos.iter().chain(&lesson.neg));
        let check = Check::new(&split.held_back, others.iter().chain(texts), plan.check_texts);
        self.begin_with(split, check, plan)
    }

    fn begin_with(&mut self, split: Split, check: Check, plan: TeachingPlan) -> Result<()> {
        let plan = plan.resolved(self.settings.kind);
        let stage = plan.stage()?;
        if let [alone] = &split.taught[..]
            && (alone.neg.is_empty() || plan.hard_negatives == 0)
        {
            bail!(
                "one lesson without a wrong answer has nothing to be told apart from; add another"
            );
        }
        let set = MemorySet::new(split.taught.iter().cloned(), DataSource::default())?;
        self.leave_run();
        if self.settings.kind == AdapterKind::Adapter {
            self.want(&split, &check);
        }
        self.run = Some(Run {
            optimizer: Optimizer::new(stage.optimizer, stage.weight_decay),
            most: plan.steps(),
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

    /// Asks for the vectors of all texts of a run.
    fn want(&mut self, split: &Split, check: &Check) {
        let [query, document] = ["query", "document"].map(|name| self.prompt(name));
        let queries = split.taught.iter().map(|lesson| &lesson.query).chain(&check.queries);
        queries.for_each(|text| self.known.want(&query, text));
        let texts = split.taught.iter().flat_map(|lesson| lesson.pos.iter().chain(&lesson.neg));
        texts.chain(&check.texts).for_each(|text| self.known.want(&document, text));
    }

    /// Lessons that are taught, and that are held back.
    pub fn counts(&self) -> (usize, usize) {
        let split = self.run.as_ref().map(|run| &run.split);
        split.map_or((0, 0), |split| (split.taught.len(), split.held_back.len()))
    }

    /// Ends the run after so many steps, as many as planned at most; the learning rate falls to zero by then. Where so
    /// many are done no other is taken.
    pub fn set_steps(&mut self, steps: usize) {
        if let Some(run) = &mut self.run {
            let steps = steps.min(run.most).max(run.progress.step);
            (run.plan.steps, run.stage.steps) = (Some(steps), steps);
            run.stage.warmup = warmup(steps);
        }
    }

    /// Takes a step, and looks at the held-back lessons where it is time to; before the first step it only looks, and
    /// before that, of an adapter of vectors, it embeds some of the texts.
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
        let waiting = self.known.is_waiting() && self.settings.kind == AdapterKind::Adapter;
        let point = |run: &Run<B>, loss, score| Point {
            step: run.progress.step,
            steps: run.plan.steps(),
            most: run.most,
            loss,
            score,
            phase: match (run.progress.done, waiting) {
                (true, _) => Phase::Done,
                (false, true) => Phase::Embedding,
                (false, false) => Phase::Training,
            },
        };
        if run.progress.done {
            return Ok(point(run, None, None));
        }
        if waiting {
            self.embed_some()?;
            return Ok(point(run, None, None));
        }
        if run.progress.before.is_none() && !run.check.is_empty() {
            run.progress.before = Some(self.score(&run.check, run.plan.temperature)?);
            return Ok(point(run, None, run.progress.before));
        }
        // The run may have been shortened to what is done.
        let mut loss = None;
        if run.progress.step < run.plan.steps() {
            loss = Some(self.learn(run)?);
            run.progress.step += 1;
        }
        let step = run.progress.step;
        let last = step >= run.plan.steps();
        let since = step - run.progress.looked;
        let mut score = None;
        if !run.check.is_empty() && since > 0 && (last || since >= run.plan.check_every()) {
            let now = self.score(&run.check, run.plan.temperature)?;
            run.progress.looked = step;
            let best = run.progress.best.map(|(_, best)| best).or(run.progress.before);
            if best.is_none_or(|best| now.is_better_than(best)) {
                run.progress.best = Some((step, now));
                run.progress.without_gain = 0;
                run.best = Some(self.train_model.clone());
            } else {
                run.progress.without_gain += 1;
            }
            score = Some(now);
            run.progress.last = score;
        }
        run.progress.done = last || run.progress.without_gain >= run.plan.patience.max(1);
        Ok(point(run, loss, score))
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

        let queries = batch.queries.len();
        let documents = batch.documents.len();
        let loss = |all: Tensor<B, 2>| {
            let asked = all.clone().narrow(0, 0, queries);
            let answers = all.narrow(0, queries, documents);
            Ok(info_nce(asked, answers, &batch.candidates, &run.stage.loss))
        };
        let BatchGradients { loss, mut gradients, .. } = match self.settings.kind {
            AdapterKind::Adapter => {
                let vectors = self.known.tensor(&batch.prompted(), &self.device)?;
                projection_pass::<B, kiln_embed::Error>(&self.train_model, vectors, loss)?
            }
            AdapterKind::Lora | AdapterKind::Auto => self.pass(step, &batch, loss)?,
        };
        let norm = clip_norm::<B, _>(&*self.train_model, &mut gradients, run.stage.clip_norm);
        if !(loss.is_finite() && norm.is_finite()) {
            bail!("the loss of step {} is not a number; lower learningRate", step + 1);
        }
        let rate = run.stage.learning_rate(step);
        let stepped = run.optimizer.step(rate, *self.train_model.clone(), gradients);
        *self.train_model = stepped;
        Ok(loss)
    }

    /// Loss and gradients of a batch by a pass through the model.
    fn pass(
        &self,
        step: usize,
        batch: &Batch,
        loss: impl FnOnce(Tensor<B, 2>) -> kiln_embed::Result<Tensor<B, 1>>,
    ) -> Result<BatchGradients> {
        let seed = mixed(&[self.settings.seed, 0, step as u64, 0]);
        let tokens = encode(&self.tokenizer, &batch.prompted())?;
        let mut runner = ChunkRunner::new::<B>(None, true, false, FloatDType::F32);
        let chunks = chunks(&self.tokenizer, &tokens, runner.chunk, seed);
        let share: Vec<usize> = (0..chunks.len()).collect();
        // The memory of a page is small: of a large batch each chunk's graph is dropped, and made again.
        let length: usize = tokens.iter().map(|tokens| tokens.ids.len()).sum();
        runner.cached = chunks.len() > 1 && length > most_kept(self.base.config());
        let pass = BatchPass {
            train_model: &self.train_model,
            runner: &runner,
            chunks: &chunks,
            share: &share,
            states: None,
            scale: 1.0,
            device: &self.device,
        };
        Ok(pass.run::<kiln_embed::Error>(|vectors| Ok(Tensor::cat(vectors, 0)), loss)?)
    }

    /// Embeds some of the texts that wait for their vectors, by the model without adapters.
    fn embed_some(&mut self) -> Result<()> {
        if let Some((prompt, texts)) = self.known.next(EMBEDDED) {
            let vectors = self.embed_by(self.base.valid(), &texts, Prompt::Text(prompt.clone()))?;
            self.known.put(&prompt, texts, &vectors);
        }
        Ok(())
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
        let vectors = |texts: &[String], prompt: &str| match self.settings.kind {
            AdapterKind::Adapter => self.adapted(texts, prompt),
            AdapterKind::Lora | AdapterKind::Auto => self.embed(texts, prompt),
        };
        let (queries, texts) =
            (vectors(&check.queries, "query")?, vectors(&check.texts, "document")?);
        Ok(check.score(&queries, &texts, temperature))
    }

    /// Vectors of texts by the model with its adapters as they are now, each of norm 1, behind the prompt of that name
    /// (`query`, `document`), where the model has it.
    ///
    /// # Errors
    /// Vectors with NaN.
    pub fn embed(&self, texts: &[String], prompt: &str) -> Result<Vec<Vec<f32>>> {
        let prompt = Prompt::Text(self.prompt(prompt));
        self.embed_by(self.train_model.model.valid(), texts, prompt)
    }

    /// The same of texts whose vectors are known, by the adapter of vectors.
    fn adapted(&self, texts: &[String], prompt: &str) -> Result<Vec<Vec<f32>>> {
        let model = self.train_model.model.valid();
        let adapter = model.dense().last().context("the model has no adapter of vectors")?;
        let prompt = self.prompt(prompt);
        let keys: Vec<(&str, &str)> = texts.iter().map(|text| (&prompt[..], &text[..])).collect();
        let vectors = l2_normalize(adapter.forward(self.known.tensor(&keys, &self.device)?));
        let [_, width] = vectors.dims();
        let values = vectors.into_data().into_vec::<f32>();
        let values = values
            .map_err(|error| anyhow::anyhow!("the vectors cannot be read back: {error:?}"))?;
        Ok(values.chunks(width.max(1)).map(<[f32]>::to_vec).collect())
    }

    fn embed_by(
        &self,
        model: EmbeddingModel<B::InnerBackend>,
        texts: &[String],
        prompt: Prompt,
    ) -> Result<Vec<Vec<f32>>> {
        let embedder =
            Embedder::<B::InnerBackend>::new(model, self.tokenizer.clone(), &self.device)?;
        let options = EmbedOptions { normalize: Some(true), ..EmbedOptions::with_prompt(prompt) };
        Ok(embedder.embed_with(texts, &options, |_| std::ops::ControlFlow::Continue(()))?)
    }

    fn prompt(&self, name: &str) -> String {
        self.prompts.by_name().get(name).cloned().unwrap_or_default()
    }

    /// The adapters as two files, PEFT's or those of an adapter of vectors; `base` says of which model they are.
    ///
    /// # Errors
    /// Values that cannot be read back.
    pub fn adapter(&self, base: &AdapterBase) -> Result<Files> {
        let model = self.train_model.model.valid();
        if self.settings.kind == AdapterKind::Adapter {
            let adapter = model.dense().last().context("the model has no adapter of vectors")?;
            return Ok(save_vector_adapter(&adapter.to_adapter()?, base)?);
        }
        Ok(save_adapters(model.backbone(), model.config(), &self.lora, base)?)
    }

    /// All that is needed to go on from here, as files. `base` is what tells the model, in its precision, from others.
    ///
    /// # Errors
    /// Nothing was begun, or values that cannot be read back.
    pub fn state(&self, base: Option<&str>) -> Result<Files> {
        let run = self.run.as_ref().context("nothing is taught yet; begin with lessons")?;
        let saved = |model: &TrainModel<B>| SavedParameters::of(model, false);
        let (now, start) = (saved(&self.train_model)?, saved(&run.start)?);
        let best = run.best.as_deref().map(saved).transpose()?;
        let state = State {
            base: base.map(String::from),
            settings: self.settings.clone(),
            lora: self.lora.clone(),
            plan: run.plan.clone(),
            most: run.most,
            taught: run.split.taught.clone(),
            held_back: run.split.held_back.clone(),
            texts: run.check.texts.clone(),
            sampler: run.sampler.clone(),
            progress: run.progress.clone(),
            ids: now.ids.clone(),
        };
        state.to_files([Some(now), Some(start), best], self.first.as_ref(), run.optimizer.state()?)
    }

    /// Goes on from a state of a trainer of the same model, by what `base` says of it.
    ///
    /// # Errors
    /// Files that are no such state, or one of another model.
    pub fn restore(&mut self, files: &Files, base: Option<&str>) -> Result<()> {
        let Kept { state, parameters, first, optimizer } = State::from_files(files)?;
        if state.base.as_deref().zip(base).is_some_and(|(own, other)| own != other) {
            bail!(
                "the state is of another model, or of other weights of it; begin anew with this one"
            );
        }
        let kind = state.settings.kind.of(self.base.config());
        let other = state.settings.resolved(kind) != self.settings.resolved(kind);
        if other || (kind != self.settings.kind && self.asked != AdapterKind::Auto) {
            bail!("the state is of a trainer with other settings; make one with those");
        }
        self.begin_kind(kind, state.lora, first)?;
        let split = Split { taught: state.taught, held_back: state.held_back };
        let check = Check::new(&split.held_back, state.texts.iter(), state.plan.check_texts);
        self.begin_with(split, check, state.plan)?;
        let put = |weights| {
            let model = *self.train_model.clone();
            put_parameters(model, &state.ids, weights, &self.device).map(Box::new)
        };
        let [now, start, best] = parameters.map(|weights| weights.map(put).transpose());
        let missing = "the state lacks some parameters";
        let (now, start) = (now?.context(missing)?, start?.context(missing)?);
        let run = self.run.as_mut().context("nothing was begun")?;
        for (group, bytes) in optimizer.into_iter().enumerate() {
            run.optimizer.restore(group, bytes, |_| true, &self.device)?;
        }
        (run.sampler, run.progress, run.most) = (state.sampler, state.progress, state.most);
        (run.start, run.best) = (start, best?);
        self.train_model = now;
        Ok(())
    }
}

/// A model whose adapters alone learn.
fn trainable<B: TrainingBackend>(model: EmbeddingModel<B>) -> Box<TrainModel<B>> {
    let train_model =
        TrainModel { model, lm_head: None, projections: Vec::new(), score_head: None };
    Box::new(set_trainable::<B, _>(train_model, Trains::AdaptersAlone))
}
