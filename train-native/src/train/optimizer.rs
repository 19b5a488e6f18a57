//! The optimizer of a stage, and its state on disk: in one part, or in one of each device that has a share of it.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use burn::module::ParamId;
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::train::Optimizer;

use super::device_group::DeviceGroup;
use crate::recipe::{Recipe, Stage};

/// A device's state of the decayed and of the undecayed group.
pub(super) type State = [Vec<u8>; 2];

/// Where a checkpoint keeps a part of the decayed and of the undecayed group's state.
fn files(part: usize) -> [String; 2] {
    ["decayed", "undecayed"].map(|group| match part {
        0 => format!("optimizer-{group}.bin"),
        _ => format!("optimizer-{group}-{part}.bin"),
    })
}

/// A new optimizer, as a stage asks for it.
pub(super) fn optimizer_of<B: TrainingBackend>(stage: &Stage) -> Optimizer<B> {
    Optimizer::new(stage.optimizer, stage.weight_decay)
}

/// A new optimizer for what the one of a stage knows: a stage that keeps the optimizer of the one before keeps its weight
/// decay too.
fn optimizer_in<B: TrainingBackend>(recipe: &Recipe, stage: usize) -> Optimizer<B> {
    let keeps = |stage: usize| stage > 0 && recipe.stages[stage].keep_optimizer;
    let started = (0..=stage).rev().find(|&stage| !keeps(stage)).unwrap_or(stage);
    optimizer_of(&recipe.stages[started])
}

/// The optimizer that a stage keeps, with what all devices together know of the parameters that `keep` chooses: where they
/// share it out, a parameter may be another device's than in the stage before, which trained others.
///
/// # Errors
/// A device that has gone away, or what the encoder and the decoder refuse.
pub(super) fn shared_anew<B: TrainingBackend>(
    optimizer: &Optimizer<B>,
    group: &DeviceGroup<B>,
    (recipe, stage): (&Recipe, usize),
    keep: impl Fn(ParamId) -> bool,
    device: &B::Device,
) -> Result<Optimizer<B>> {
    let mut anew = optimizer_in(recipe, stage);
    for (number, own) in optimizer.state()?.into_iter().enumerate() {
        for bytes in group.all_gather_bytes(own)? {
            anew.restore(number, bytes, &keep, device)?;
        }
    }
    Ok(anew)
}

/// The state that the main device writes, there: its own, or, where it is shared out and all devices come here, that of
/// each.
///
/// # Errors
/// A device that has gone away, or what the encoder refuses.
pub(super) fn states<B: TrainingBackend>(
    optimizer: &Optimizer<B>,
    group: &DeviceGroup<B>,
    sharded: bool,
) -> Result<Vec<State>> {
    if !sharded && !group.is_main() {
        return Ok(Vec::new());
    }
    let [decayed, undecayed] = optimizer.state()?;
    if !sharded {
        return Ok(vec![[decayed, undecayed]]);
    }
    let all = group.gather_bytes(decayed)?.into_iter().zip(group.gather_bytes(undecayed)?);
    Ok(all.map(|(decayed, undecayed)| [decayed, undecayed]).collect())
}

/// The state, as files of a checkpoint.
pub(super) fn to_files(states: Vec<State>) -> impl Iterator<Item = (String, Vec<u8>)> {
    states.into_iter().enumerate().flat_map(|(part, state)| files(part).into_iter().zip(state))
}

/// The optimizer that a run had when a checkpoint of the given stage was written, in so many parts: what it knows of the
/// parameters that `keep` chooses. `Checkpoint` has compared the files' sums and the recipe before.
///
/// # Errors
/// A file that is missing, or that the decoder refuses.
pub(super) fn load<B: TrainingBackend>(
    folder: &Path,
    recipe: &Recipe,
    stage: usize,
    parts: usize,
    keep: impl Fn(ParamId) -> bool,
    device: &B::Device,
) -> Result<Optimizer<B>> {
    let mut optimizer = optimizer_in(recipe, stage);
    let names = (0..parts).flat_map(|part| files(part).into_iter().enumerate());
    for (group, name) in names {
        let path = folder.join(name);
        let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
        optimizer.restore(group, bytes, &keep, device).map_err(|error| {
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
