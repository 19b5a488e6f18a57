//! What is taught, and how far it is.

use burn::tensor::backend::AutodiffBackend;
use kiln_data::data::{MemorySet, SamplerState};
use kiln_data::recipe::Stage;
use kiln_embed::train::{Optimizer, TrainModel};

use crate::check::Check;
use crate::lessons::Split;
use crate::progress::Progress;
use crate::settings::TeachingPlan;

/// A run that was begun.
pub(super) struct Run<B: AutodiffBackend> {
    pub(super) plan: TeachingPlan,
    /// Steps as they were planned.
    pub(super) most: usize,
    pub(super) stage: Stage,
    pub(super) split: Split,
    pub(super) sets: [MemorySet; 1],
    pub(super) check: Check,
    pub(super) sampler: Option<SamplerState>,
    pub(super) optimizer: Optimizer<B>,
    pub(super) progress: Progress,
    /// The adapters before the first step.
    pub(super) start: Box<TrainModel<B>>,
    /// The best adapters so far, where they are compared.
    pub(super) best: Option<Box<TrainModel<B>>>,
}
