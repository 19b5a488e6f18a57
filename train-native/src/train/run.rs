//! The training loop.

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use burn::module::AutodiffModule;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{AdamW, AdamWConfig, GradientsAccumulator, GradientsParams, Optimizer};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{ElementConversion as _, Tensor};
use kiln_core::embedder::{Embedder, EmbeddingModel};
use kiln_core::loss::info_nce;
use kiln_core::model::ModelInput;
use kiln_core::pooling::l2_normalize;

use super::gradients::{Groups, clip_norm, set_trainable};
use super::{Checkpoint, Point, Position, Telemetry};
use crate::data::{Batch, Example, Sampler};
use crate::interrupt;
use crate::recipe::{Recipe, Stage};
use crate::terminal::{Terminal, thousands};

/// What to train on, and where to keep the state.
pub struct Plan<'a> {
    /// The recipe.
    pub recipe: &'a Recipe,
    /// Examples of each stage.
    pub examples: &'a [Vec<Example>],
    /// Folder of the checkpoint.
    pub checkpoint: &'a Path,
    /// Steps between checkpoints; one is written at the end of a stage and at Ctrl-C anyway.
    pub checkpoint_every: usize,
    /// The state to go on from, as [`Checkpoint::find`] found it.
    pub resume: Option<Checkpoint>,
    /// What the user sees.
    pub terminal: Terminal,
}

/// How a run ended.
pub struct Outcome<B: AutodiffBackend> {
    /// The trained model, adapters merged.
    pub embedder: Embedder<B::InnerBackend>,
    /// Every step.
    pub telemetry: Telemetry,
    /// True where Ctrl-C ended it early; the checkpoint then holds its state.
    pub interrupted: bool,
}

type Adam<B> = OptimizerAdaptor<AdamW, EmbeddingModel<B>, B>;

/// Two optimizers: parameters that decay, and norms, biases and latents, which do not.
fn optimizers<B: AutodiffBackend>(stage: &Stage) -> [Adam<B>; 2] {
    let adam = AdamWConfig::new().with_epsilon(1e-8);
    [
        adam.clone().with_weight_decay(stage.weight_decay as f32).init(),
        adam.with_weight_decay(0.0).init(),
    ]
}

/// Trains an embedder through all stages of a recipe; `after_stage` sees the model after each.
///
/// # Errors
/// A loss that is not a number, or a checkpoint that cannot be written.
pub fn train<B: AutodiffBackend>(
    embedder: Embedder<B::InnerBackend>,
    mut plan: Plan<'_>,
    mut after_stage: impl FnMut(&Embedder<B::InnerBackend>, &Stage) -> Result<()>,
) -> Result<Outcome<B>> {
    let device = embedder.device.clone();
    let lora = plan.recipe.model.lora.as_ref();
    let Embedder { model, tokenizer, prompts, tokenizer_files, .. } = embedder;
    let mut model: EmbeddingModel<B> = EmbeddingModel::from_inner(model);
    if let Some(lora) = lora {
        let (backbone, adapters) = model.backbone.with_lora(lora, &device)?;
        model.backbone = backbone;
        plan.terminal.note(format!("{adapters} LoRA adapters of rank {}", lora.rank));
    }
    model = set_trainable::<B, _>(model, lora.is_some());
    let mut restored = None;
    let mut state = match plan.resume.take() {
        Some(state) => {
            let at = state.position.stage.min(plan.recipe.stages.len() - 1);
            let fresh = optimizers::<B>(&plan.recipe.stages[at]);
            let (loaded, optimizers) = Checkpoint::load(plan.checkpoint, model, fresh, &device)?;
            model = set_trainable::<B, _>(loaded, lora.is_some());
            // The optimizer starts anew with each stage.
            restored = (state.position.step > 0).then_some(optimizers);
            state
        }
        None => Checkpoint {
            recipe: plan.recipe.clone(),
            position: Position::default(),
            telemetry: Telemetry::default(),
        },
    };
    let groups = Groups::of::<B, _>(&model);
    plan.terminal.note(format!(
        "{} parameters train, {} are frozen",
        thousands(groups.trained),
        thousands(groups.frozen)
    ));
    // The model as an embedder for evaluation and saving, adapters merged.
    let finished = |model: &EmbeddingModel<B>| -> Result<Embedder<B::InnerBackend>> {
        let mut inner = model.valid();
        inner.backbone = inner.backbone.merge_lora();
        let mut embedder = Embedder::new(inner, tokenizer.clone(), &device)?;
        (embedder.prompts, embedder.tokenizer_files) = (prompts.clone(), tokenizer_files.clone());
        Ok(embedder)
    };
    let query_prompt = prompts.by_name.get("query").map_or("", String::as_str);
    let document_prompt = prompts.by_name.get("document").map_or("", String::as_str);
    let encode =
        |model: &EmbeddingModel<B>, prompt: &str, texts: &[String]| -> Result<Tensor<B, 2>> {
            let tokens = tokenizer.encode_all(prompt, texts)?;
            let batch = tokenizer.pad(&tokens.iter().collect::<Vec<_>>());
            Ok(l2_normalize(model.forward(&ModelInput::new(&batch, &device))?.0))
        };

    for (number, stage) in plan.recipe.stages.iter().enumerate().skip(state.position.stage) {
        let mut optimizers = restored.take().unwrap_or_else(|| optimizers::<B>(stage));
        let mut sampler =
            Sampler::new(&plan.examples[number], plan.recipe.seed.wrapping_add(number as u64));
        let first = state.position.step;
        for step in 0..first {
            (0..stage.accumulation).for_each(|_| drop(sampler.next(stage, step)));
        }
        let bar = plan.terminal.progress(stage.steps as u64, &stage.name);
        bar.set_position(first as u64);
        for step in first..stage.steps {
            let start = Instant::now();
            let (mut loss, mut texts) = (0.0, 0);
            let mut gradients = GradientsAccumulator::new();
            for _ in 0..stage.accumulation {
                let batch = sampler.next(stage, step);
                let queries = encode(&model, query_prompt, &batch.queries)?;
                let documents = encode(&model, document_prompt, &batch.documents)?;
                let part = info_nce(queries, documents, &same_texts(&batch), &stage.loss)
                    .div_scalar(stage.accumulation as f64);
                loss += part.clone().into_scalar().elem::<f64>();
                texts += batch.queries.len() + batch.documents.len();
                gradients
                    .accumulate::<B>(&model, GradientsParams::from_grads(part.backward(), &model));
            }
            let mut gradients = gradients.grads();
            let grad_norm = clip_norm::<B, _>(&model, &mut gradients, stage.clip_norm);
            if !(loss.is_finite() && grad_norm.is_finite()) {
                bail!(
                    "stage {:?}, step {}: the loss is {loss} and the gradient's norm {grad_norm}; lower lr or check the data",
                    stage.name,
                    step + 1
                );
            }
            let lr = stage.learning_rate(step);
            let (decayed, undecayed) = groups.split::<B, _>(&model, gradients);
            model = optimizers[0].step(lr, model, decayed);
            model = optimizers[1].step(lr, model, undecayed);

            let seconds = start.elapsed().as_secs_f64();
            state.telemetry.points.push(Point {
                stage: number,
                step: step + 1,
                loss,
                lr,
                grad_norm,
                seconds,
                texts,
            });
            state.position = Position { stage: number, step: step + 1 };
            bar.set_prefix(format!("loss {loss:.4}"));
            bar.inc(1);
            let last = step + 1 == stage.steps;
            if last {
                state.position = Position { stage: number + 1, step: 0 };
            }
            let interrupted = interrupt::asked();
            if last || interrupted || (step + 1) % plan.checkpoint_every == 0 {
                state.save::<B, _, _>(plan.checkpoint, &model, [&optimizers[0], &optimizers[1]])?;
            }
            if interrupted {
                bar.abandon();
                return Ok(Outcome {
                    embedder: finished(&model)?,
                    telemetry: state.telemetry,
                    interrupted,
                });
            }
        }
        bar.finish_and_clear();
        state.position = Position { stage: number + 1, step: 0 };
        after_stage(&finished(&model)?, stage)?;
    }
    Ok(Outcome { embedder: finished(&model)?, telemetry: state.telemetry, interrupted: false })
}

/// A number for each document; equal texts have equal numbers.
fn same_texts(batch: &Batch) -> Vec<usize> {
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    batch
        .documents
        .iter()
        .map(|text| {
            let next = numbers.len();
            *numbers.entry(text).or_insert(next)
        })
        .collect()
}
