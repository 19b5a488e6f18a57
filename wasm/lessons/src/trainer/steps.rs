//! Steps of a run, and its end.

use anyhow::{Context as _, Result, bail};
use burn::module::AutodiffModule;
use burn::tensor::{FloatDType, Tensor};
use kiln_data::data::{Batch, ModelPrompts, Sampler, mixed};
use kiln_embed::embedder::Prompt;
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::loss::info_nce;
use kiln_embed::train::{
    BatchGradients, BatchPass, ChunkRunner, chunks, clip_norm, encode, projection_pass,
};

use super::Trainer;
use super::run::Run;
use crate::progress::{Outcome, Phase, Point, Progress};
use crate::settings::{AdapterKind, most_kept};

/// Texts that are embedded in one call of [`Trainer::step`], before the first step of an adapter of vectors.
const EMBEDDED: usize = 16;

impl<B: TrainingBackend> Trainer<B> {
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
        let embeds = self.known.waiting() > 0 && self.settings.kind == AdapterKind::Adapter;
        let point = |run: &Run<B>, loss, score| Point {
            step: run.progress.step,
            steps: run.stage.steps,
            most: run.most,
            loss,
            score,
            phase: match (run.progress.done, embeds) {
                (true, _) => Phase::Done,
                (false, true) => Phase::Embedding,
                (false, false) => Phase::Training,
            },
            waiting: 0,
            new_words: run.progress.new_words,
        };
        if run.progress.done {
            return Ok(point(run, None, None));
        }
        if embeds {
            self.embed_some()?;
            return Ok(Point { waiting: self.known.waiting(), ..point(run, None, None) });
        }
        if run.progress.before.is_none() && !run.check.is_empty() {
            let before = self.score(&run.check, run.plan.temperature)?;
            run.settle(self.settings.kind, before)?;
            return Ok(point(run, None, run.progress.before));
        }
        // The run may have been shortened to what is done.
        let mut loss = None;
        if run.progress.step < run.stage.steps {
            loss = Some(self.learn(run)?);
            run.progress.step += 1;
        }
        let step = run.progress.step;
        let last = step >= run.stage.steps;
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
        run.progress.done = last || run.progress.without_gain >= run.plan.patience;
        Ok(point(run, loss, score))
    }

    /// One batch: loss, gradients, and a step of the optimizer.
    fn learn(&mut self, run: &mut Run<B>) -> Result<f64> {
        let (seed, step) = (self.settings.seed, run.progress.step);
        let prompts = ["query", "document"].map(|name| self.prompt(name));
        let format = self.prompts.instruction_format();
        let prompts = ModelPrompts::new([&prompts[0], &prompts[1]], format);
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
        let largest = run.stage.clip_norm;
        let norm = clip_norm::<B, _>(&*self.train_model, &mut gradients, largest, false);
        let (loss, norm) = (loss.read()?, norm.read()?);
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
    ) -> Result<BatchGradients<B>> {
        let seed = mixed(&[self.settings.seed, 0, step as u64, 0]);
        let tokens = encode(&self.tokenizer, &batch.prompted())?;
        let mut runner = ChunkRunner::new::<B>(None, true, false, FloatDType::F32);
        let chunks = chunks::<B>(&self.tokenizer, &tokens, runner.chunk, seed);
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
        let Progress { step, before, best, last, new_words, .. } = run.progress;
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
            new_words,
        })
    }
}
