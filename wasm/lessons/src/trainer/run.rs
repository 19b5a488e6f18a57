//! What is taught, and how far it is.

use anyhow::Result;
use burn::tensor::backend::AutodiffBackend;
use kiln_data::data::{MemorySet, SamplerState};
use kiln_data::recipe::Stage;
use kiln_embed::train::{Optimizer, TrainModel};

use crate::check::{Check, Score};
use crate::lessons::Split;
use crate::progress::Progress;
use crate::settings::{AdapterKind, TeachingPlan};

/// A run that was begun.
pub(super) struct Run<B: AutodiffBackend> {
    /// As it was given until the lessons that are held back were asked, then with all that it left open.
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

impl<B: AutodiffBackend> Run<B> {
    /// Settles what the plan leaves open by how well the lessons that are held back are answered before the first step.
    pub(super) fn settle(&mut self, kind: AdapterKind, before: Score) -> Result<()> {
        self.progress.before = Some(before);
        self.progress.new_words = self.plan.is_open() && self.check.is_new_by(before);
        if !self.progress.new_words {
            self.plan = self.plan.resolved(kind);
            return Ok(());
        }
        self.plan = self.plan.of_new_words(kind);
        self.stage = self.plan.stage()?;
        self.most = self.stage.steps;
        Ok(())
    }
}
