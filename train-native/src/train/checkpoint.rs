//! A run's state on disk: enough to go on from the same step with the same numbers.
//!
//! `checkpoints/00000120/` holds the parameters (only those that can differ from the base model),
//! the optimizer, and `state.json`: the recipe, the position, where the sampler is, and the loss
//! scale. Dropout needs no state, because its masks follow from the step's number.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use kiln_embed::checkpoint::{
    Directory, Existing, Files, SUMS, Sums, Weights, write_directory, write_safetensors,
};
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::train::{SavedParameters, TrainModel, put_parameters};
use serde::{Deserialize, Serialize};

use super::optimizer;
use crate::data::SamplerState;
use crate::recipe::{Recipe, Stage};
use crate::terminal::Terminal;

/// Where a run is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Stage, from 0.
    pub stage: usize,
    /// Steps of the stage that are done.
    pub step: usize,
}

/// The best score so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Step of the whole run, from 1.
    pub step: usize,
    /// Its score on the set that chooses.
    pub score: f64,
}

/// What a checkpoint says besides the parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The recipe, which must be the same to go on.
    pub recipe: Recipe,
    /// Where the run is.
    pub position: Position,
    /// Steps of all stages that are done.
    pub steps: usize,
    /// The stage whose trained parameters and optimizer these are.
    pub stage: usize,
    /// Where the stage's sampler is.
    pub sampler: Option<SamplerState>,
    /// Factor of the loss in f16 training, and good steps since it changed.
    pub loss_scale: (f64, usize),
    /// The best score so far.
    pub best: Option<Best>,
    /// Ids of the saved parameters by their paths.
    pub parameters: BTreeMap<String, String>,
    /// Parts of the optimizer's state: one of each device where they shared it out.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub optimizer_parts: usize,
}

fn one() -> usize {
    1
}

fn is_one(parts: &usize) -> bool {
    *parts == 1
}

const STATE: &str = "state.json";
const PARAMETERS: &str = "parameters";

/// What stands behind the name of a checkpoint that was found damaged.
const DAMAGED: &str = "damaged";

/// Checkpoints of a folder, the oldest first.
fn all(folder: &Path) -> Vec<PathBuf> {
    let mut checkpoints: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.bytes().all(|byte| byte.is_ascii_digit()) && path.join(STATE).is_file()
        })
        .collect();
    checkpoints.sort();
    checkpoints
}

impl Checkpoint {
    /// The state before the first step.
    pub(super) fn new(recipe: &Recipe) -> Self {
        Self {
            recipe: recipe.clone(),
            position: Position::default(),
            steps: 0,
            stage: 0,
            sampler: None,
            loss_scale: super::scale::START,
            best: None,
            parameters: BTreeMap::new(),
            optimizer_parts: 1,
        }
    }

    /// Writes a new checkpoint, atomically, and removes all but the newest `keep`.
    pub(super) fn save<B: TrainingBackend>(
        &mut self,
        folder: &Path,
        keep: usize,
        train_model: &TrainModel<B>,
        optimizer: Vec<optimizer::State>,
    ) -> Result<()> {
        let everything = holds_all_weights(&self.recipe, self.stage);
        let SavedParameters { tensors, ids } = SavedParameters::of(train_model, everything)?;
        self.parameters = ids;
        self.optimizer_parts = optimizer.len();
        let mut files = Files::default();
        files.0.insert(STATE.into(), serde_json::to_vec(self)?.into());
        files.0.insert(
            format!("{PARAMETERS}.safetensors"),
            write_safetensors(&tensors, &[("format", "kiln")])?.into(),
        );
        for (name, bytes) in optimizer::to_files(optimizer) {
            files.0.insert(name, bytes.into());
        }
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let checkpoint = folder.join(format!("{:08}", self.steps));
        write_directory(&checkpoint, &files, Existing::ReplaceOurs)
            .context("the checkpoint could not be written; the one before it is untouched")?;
        let known = all(folder);
        for old in &known[..known.len().saturating_sub(keep.max(1))] {
            std::fs::remove_dir_all(old).with_context(|| old.display().to_string())?;
        }
        Ok(())
    }

    /// Removes the checkpoints of a folder, and the folder where nothing else is in it.
    ///
    /// # Errors
    /// The file system's.
    pub fn remove_all(folder: &Path) -> std::io::Result<()> {
        all(folder).into_iter().try_for_each(std::fs::remove_dir_all)?;
        std::fs::remove_dir(folder)
    }

    /// The newest checkpoint of a folder that is as it was written, and its path; `None` where there is
    /// none. Damaged ones are put aside, with a note.
    ///
    /// # Errors
    /// A checkpoint of another recipe or another optimizer, or none but damaged ones.
    pub fn find(
        folder: &Path,
        recipe: &Recipe,
        terminal: Terminal,
    ) -> Result<Option<(Self, PathBuf)>> {
        let mut damaged = None;
        for newest in all(folder).into_iter().rev() {
            match Self::read(&newest) {
                Ok(checkpoint) if checkpoint.recipe == *recipe => {
                    return Ok(Some((checkpoint, newest)));
                }
                Ok(other) => bail!(
                    "{}: was written by another recipe{}; choose another --output or remove it",
                    newest.display(),
                    other_optimizer(&other.recipe, recipe)
                ),
                Err(error) => {
                    let aside = newest.with_extension(DAMAGED);
                    terminal.note(format!(
                        "{error:#}: the checkpoint is damaged, and is kept as {}; trying the one before",
                        aside.display()
                    ));
                    std::fs::rename(&newest, &aside)
                        .with_context(|| newest.display().to_string())?;
                    damaged = Some(error);
                }
            }
        }
        match damaged {
            None => Ok(None),
            Some(error) => Err(error.context(format!(
                "{}: holds no checkpoint that is whole; start anew in another --output",
                folder.display()
            ))),
        }
    }

    /// Reads a checkpoint's state, after a look at whether all of its files are as they were written.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let directory = Directory::new(folder)?;
        match Sums::read(&directory)? {
            Some(sums) => sums.check(&directory, SUMS, "it cannot be gone on from")?,
            None => bail!("{}: has no list of sums ({SUMS})", folder.display()),
        }
        let path = folder.join(STATE);
        let label = || path.display().to_string();
        let text = std::fs::read(&path).with_context(label)?;
        serde_json::from_slice(&text).with_context(|| format!("{}: not a state", label()))
    }

    /// Puts the saved parameters into a model of the same structure.
    pub(super) fn load<B: TrainingBackend>(
        &self,
        folder: &Path,
        train_model: TrainModel<B>,
        device: &B::Device,
    ) -> Result<TrainModel<B>> {
        let weights = Weights::open(&Directory::new(folder)?, PARAMETERS)?;
        put_parameters(train_model, &self.parameters, weights, device).with_context(|| {
            format!(
                "{}: a damaged checkpoint; remove it to go on from the one before",
                folder.display()
            )
        })
    }
}

/// What to say of the first stage whose optimizer is not the one that it was trained with.
fn other_optimizer(saved: &Recipe, asked: &Recipe) -> String {
    let mut stages = saved.stages.iter().zip(&asked.stages);
    match stages.find(|(saved, asked)| saved.optimizer != asked.optimizer) {
        Some((saved, asked)) => format!(
            ": stage {:?} with optimizer = {:?}, not {:?}",
            saved.name,
            saved.optimizer.name(),
            asked.optimizer.name()
        ),
        None => String::new(),
    }
}

/// Whether weights beyond the trained ones can differ from the base model's.
fn holds_all_weights(recipe: &Recipe, stage: usize) -> bool {
    recipe.model.new.is_some()
        || recipe.model.lora.is_none()
        || recipe.stages[..=stage.min(recipe.stages.len() - 1)].iter().any(changes_base)
}

/// Whether a stage leaves other weights in the base model than it found there.
pub(super) fn changes_base(stage: &Stage) -> bool {
    stage.full || stage.merge_lora
}
