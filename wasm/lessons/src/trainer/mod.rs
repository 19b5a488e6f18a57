//! The trainer: adapters on a model, taught step by step, so that who calls can show how far it is, and stop.

mod files;
mod run;
mod steps;
mod vectors;

use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use burn::module::AutodiffModule;
use burn::tensor::backend::AutodiffBackend;
use kiln_data::data::{Example, MemorySet, mixed};
use kiln_data::recipe::DataSource;
use kiln_embed::embedder::{Embedder, EmbedderParts, EmbeddingModel, Prompts};
use kiln_embed::index::VectorAdapter;
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::model::{Backbone, LoraConfig};
use kiln_embed::pooling::Dense;
use kiln_embed::tokenizer::Tokenizer;
use kiln_embed::train::{Optimizer, TrainModel, Trains, set_trainable};

use self::run::Run;
use crate::check::Check;
use crate::known::KnownVectors;
use crate::lessons::{Lessons, Split};
use crate::progress::Progress;
use crate::settings::{AdapterKind, AdapterSettings, TeachingPlan, warmup};

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
        let resolved = plan.resolved(self.settings.kind);
        let stage = resolved.stage()?;
        // What is left open is settled by the first look at the lessons that are held back.
        let plan = if check.is_empty() { resolved } else { plan };
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
            most: stage.steps,
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
    /// many are done no other is taken. Said before the lessons that are held back were asked it settles their number,
    /// also where the words are new to the model.
    pub fn set_steps(&mut self, steps: usize) {
        if let Some(run) = &mut self.run {
            let steps = steps.min(run.most).max(run.progress.step);
            (run.plan.steps, run.stage.steps) = (Some(steps), steps);
            run.stage.warmup = warmup(steps);
        }
    }
}

/// A model whose adapters alone learn.
fn trainable<B: TrainingBackend>(model: EmbeddingModel<B>) -> Box<TrainModel<B>> {
    let train_model = TrainModel {
        model,
        lm_head: None,
        projections: Vec::new(),
        score_head: None,
        answer: None,
    };
    Box::new(set_trainable::<B, _>(train_model, Trains::AdaptersAlone))
}
