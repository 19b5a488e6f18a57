//! Training: one readable loop ([`train`]), whatever the recipe.

mod among_gpus;
mod build;
mod checkpoint;
mod contrastive;
mod device_group;
mod distillation;
mod dry_run;
mod event_file;
mod fit;
mod hosts;
mod in_process;
mod inputs;
mod job;
mod memory;
mod mntp;
mod model_card;
mod optimizer;
mod passes;
mod plan;
mod reconstruction;
mod report;
mod rerank;
mod run;
mod scale;
mod setup;
mod sharding;
mod sweep;
mod telemetry;
#[cfg(test)]
mod tests;
mod trained;
mod transport;
mod word_vectors;

use anyhow::Result;
use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::reranker::PairInput;
use kiln_embed::tokenizer::Tokenizer;
use kiln_embed::train::{ChunkRunner, Late};

use crate::data::Batch;
use crate::recipe::{Objective, Stage};

pub use build::{
    base_model, base_reranker, new_config, new_encoder_config, new_encoder_value, new_model,
    new_reranker, own_lm_head, train_tokenizer,
};
pub use checkpoint::{Best, Checkpoint, Position, SetSum};
pub use device_group::DeviceGroup;
pub use dry_run::{DryRun, DryStage, Memory, MemoryPlace, RankMemory};
pub(crate) use fit::RUN_FILES;
pub use fit::{Fit, Resume, RunArtifacts, build, fit, resumed};
pub use hosts::{Hosts, SharedCheckpoint};
pub use inputs::Inputs;
pub use job::TrainJob;
pub use kiln_embed::train::{ParameterInfo, TrainModel, parameters};
pub use model_card::ModelCard;
pub use plan::{Silent, TrainObserver, TrainOutcome, TrainPlan};
pub use report::{curves, training_page};
pub use run::{CHECKPOINTS, train};
pub use sweep::{SetScores, StepScores, SweepRun, VariantScores, sweep, sweep_table};
pub use telemetry::{Point, Telemetry};
pub use trained::{Trained, TrainedShape};

/// What an objective computes with.
struct StepContext<'a, B: AutodiffBackend> {
    tokenizer: &'a Tokenizer,
    /// How a cross-encoder reads a pair.
    input: &'a PairInput,
    runner: ChunkRunner,
    device: &'a B::Device,
    group: &'a DeviceGroup<B>,
    /// What the stage learns from a teacher.
    teacher: Option<&'a distillation::Teacher<B>>,
    /// Factor of the loss; gradients are divided by it again.
    scale: f64,
}

/// What an objective gives for one batch.
struct BatchLoss<B: AutodiffBackend> {
    loss: Late<B::InnerBackend>,
    gradients: GradientsParams,
    texts: usize,
    tokens: usize,
}

/// Loss and gradients of a batch, by the stage's objective.
fn objective<B: TrainingBackend>(
    train_model: &TrainModel<B>,
    batch: &Batch,
    stage: &Stage,
    context: &StepContext<'_, B>,
    seed: u64,
) -> Result<BatchLoss<B>> {
    match stage.objective {
        Objective::Contrastive | Objective::Distillation | Objective::Similarity => {
            contrastive::contrastive(train_model, batch, stage, context, seed)
        }
        Objective::Reconstruction => {
            let settings = stage.reconstruction.unwrap_or_default();
            reconstruction::reconstruction(train_model, batch, &settings, context, seed)
        }
        Objective::Rerank => {
            let settings = stage.rerank.unwrap_or_default();
            rerank::rerank(train_model, batch, &settings, context, seed)
        }
        Objective::Mntp => {
            let settings = stage.mntp.clone().unwrap_or_default();
            mntp::mntp(train_model, batch, &settings, context, seed)
        }
    }
}
