//! Training: one readable loop ([`train`]), whatever the recipe.

mod build;
mod checkpoint;
mod chunks;
mod contrastive;
mod device_group;
mod distillation;
mod dry_run;
mod event_file;
mod fit;
mod gradients;
mod inputs;
mod model_card;
mod reconstruction;
mod report;
mod run;
mod scale;
mod setup;
mod sweep;
mod telemetry;
#[cfg(test)]
mod tests;
mod train_model;
mod word_vectors;

use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::tokenizer::Tokenizer;

pub use build::{base_model, new_config, new_model, train_tokenizer};
pub use checkpoint::{Best, Checkpoint, Position};
pub use device_group::DeviceGroup;
pub use dry_run::{DryRun, DryStage, Memory};
pub(crate) use fit::RUN_FILES;
pub use fit::{Fit, RunArtifacts, build, fit};
pub use inputs::Inputs;
pub use model_card::ModelCard;
pub use report::{curves, training_page};
pub use run::{CHECKPOINTS, Outcome, Silent, TrainObserver, TrainPlan, train};
pub use sweep::{SetScores, SweepRun, VariantScores, sweep, sweep_table};
pub use telemetry::{Point, Telemetry};
pub use train_model::{ParameterInfo, TrainModel, parameters};

/// What an objective computes with.
struct StepContext<'a, B: AutodiffBackend> {
    tokenizer: &'a Tokenizer,
    runner: chunks::ChunkRunner,
    device: &'a B::Device,
    group: &'a DeviceGroup<B>,
    /// What the stage learns from a teacher.
    teacher: Option<&'a distillation::Teacher<B>>,
    scale: f64,
}

impl<B: TrainingBackend> StepContext<'_, B> {
    /// Factor of the loss; gradients are divided by it again.
    fn scale(&self) -> f64 {
        self.scale
    }
}

/// What an objective finds for one batch.
struct Part {
    loss: f64,
    gradients: GradientsParams,
    texts: usize,
    tokens: usize,
}
