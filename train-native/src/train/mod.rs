//! Training: one readable loop ([`train`]), whatever the recipe.

mod build;
mod checkpoint;
mod chunks;
mod contrastive;
mod distillation;
mod dry_run;
mod event_file;
mod fit;
mod gradients;
mod inputs;
mod peers;
mod reconstruction;
mod run;
mod scale;
mod setup;
mod sweep;
mod telemetry;
#[cfg(test)]
mod tests;
mod trainee;
mod word_vectors;

use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use kiln_core::kernels::TrainingBackend;
use kiln_core::tokenizer::Tokenizer;

pub use build::{base_model, new_config, new_model, train_tokenizer};
pub use checkpoint::{Best, Checkpoint, Position};
pub use dry_run::{DryRun, DryStage, Memory};
pub(crate) use fit::RUN_FILES;
pub use fit::{Fit, Fitted, build, fit};
pub use inputs::Inputs;
pub use peers::Peers;
pub use run::{CHECKPOINTS, Observer, Outcome, Plan, Silent, train};
pub use sweep::{SetScores, SweepRun, VariantScores, sweep, sweep_table};
pub use telemetry::{Point, Telemetry};
pub use trainee::{ParameterInfo, Trainee, parameters};

/// What an objective computes with.
struct Workplace<'a, B: AutodiffBackend> {
    tokenizer: &'a Tokenizer,
    passes: chunks::Passes,
    device: &'a B::Device,
    peers: &'a Peers<B>,
    /// What the stage learns from a teacher.
    lesson: Option<&'a distillation::Lesson<B>>,
    scale: f64,
}

impl<B: TrainingBackend> Workplace<'_, B> {
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
