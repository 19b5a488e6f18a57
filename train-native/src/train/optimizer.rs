//! The optimizer of a stage, and its state on disk.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::train::Optimizer;

use crate::recipe::{Recipe, Stage};

/// Where a checkpoint keeps the state of the decayed and of the undecayed group.
const FILES: [&str; 2] = ["optimizer-decayed.bin", "optimizer-undecayed.bin"];

/// A new optimizer, as a stage asks for it.
pub(super) fn optimizer_of<B: TrainingBackend>(stage: &Stage) -> Optimizer<B> {
    Optimizer::new(stage.optimizer, stage.weight_decay)
}

/// The state, as files of a checkpoint.
pub(super) fn save<B: TrainingBackend>(
    optimizer: &Optimizer<B>,
) -> Result<[(&'static str, Vec<u8>); 2]> {
    let [decayed, undecayed] = optimizer.state()?;
    Ok([(FILES[0], decayed), (FILES[1], undecayed)])
}

/// The optimizer that a run had when a checkpoint of the given stage was written. `Checkpoint` has compared
/// the files' sums and the recipe before.
///
/// # Errors
/// A file that is missing, or that the decoder refuses.
pub(super) fn load<B: TrainingBackend>(
    folder: &Path,
    recipe: &Recipe,
    stage: usize,
    device: &B::Device,
) -> Result<Optimizer<B>> {
    // A stage that keeps the optimizer of the one before keeps its weight decay too.
    let keeps = |stage: usize| stage > 0 && recipe.stages[stage].keep_optimizer;
    let started = (0..=stage).rev().find(|&stage| !keeps(stage)).unwrap_or(stage);
    let mut optimizer = optimizer_of(&recipe.stages[started]);
    for (group, name) in FILES.into_iter().enumerate() {
        let path = folder.join(name);
        let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
        optimizer.restore(group, bytes, device).map_err(|error| {
            anyhow!(
                "{}: no state of {}: {error}; remove {} to go on from the checkpoint before",
                path.display(),
                recipe.stages[stage].optimizer.name(),
                folder.display()
            )
        })?;
    }
    Ok(optimizer)
}
