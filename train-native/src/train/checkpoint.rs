//! A run's state on disk: enough to go on from the same step with the same numbers.
//!
//! `checkpoints/00000120/` holds the parameters (only those that can differ from the base model),
//! the optimizer, and `state.json`: the recipe, the position, where the sampler is, which data there
//! were, and the loss scale. Dropout needs no state, because its masks follow from the step's number.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use kiln_embed::checkpoint::{
    Directory, Existing, Files, SUMS, Sums, Weights, write_directory, write_safetensors,
};
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::train::{SavedParameters, TrainModel, put_parameters};
use serde::{Deserialize, Serialize};

use super::optimizer;
use crate::data::{DataSet, SamplerState};
use crate::recipe::{Recipe, Stage};
use crate::terminal::{Terminal, counted};

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

/// A data set as it was when a checkpoint was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetSum {
    /// Its name.
    pub name: String,
    /// How many examples it had.
    pub examples: usize,
    /// A number for their texts.
    pub sum: u64,
}

impl SetSum {
    /// Those of all stages.
    pub(super) fn all(sets: &[Vec<DataSet>]) -> Vec<Vec<Self>> {
        let of =
            |set: &DataSet| Self { name: set.name.clone(), examples: set.len(), sum: set.sum() };
        sets.iter().map(|stage| stage.iter().map(of).collect()).collect()
    }
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
    /// The data sets of each stage; older checkpoints do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Vec<Vec<SetSum>>>,
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
            data: None,
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
        match std::fs::remove_dir(folder) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
            done => done,
        }
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
                Ok(checkpoint) if checkpoint.recipe.comparable() == recipe.comparable() => {
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

    /// Refuses to go on with other data than the checkpoint was written with: a run of which a part has seen other
    /// texts is neither the old one nor a new one.
    pub(super) fn check_data(&self, sets: &[Vec<DataSet>]) -> Result<()> {
        let Some(data) = &self.data else {
            return Ok(());
        };
        let now = SetSum::all(sets);
        let left = data.iter().zip(&now).skip(self.position.stage);
        for (was, is) in left.flat_map(|(was, is)| was.iter().zip(is)) {
            if was != is {
                let how = match was.examples == is.examples {
                    true => "other texts".to_string(),
                    false => {
                        let before = counted(was.examples, "example", "examples");
                        format!("{before}, now {}", is.examples)
                    }
                };
                bail!(
                    "{}: the data have changed since the checkpoint was written ({how}); put them back as they were, \
                     or start anew in another --output",
                    is.name
                );
            }
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint() -> Checkpoint {
        let recipe = "name = 'r'\n[model]\nbase = 'b'\n[[stage]]\nname = 's'\ndata = ['x']\nsteps = 1\n\
                      batch_size = 2\nlr = 2.0411187626133958e-05\n";
        Checkpoint::new(&Recipe::parse(recipe).unwrap())
    }

    /// Or the run's own recipe would be another one.
    #[test]
    fn numbers_of_a_recipe_come_back_to_the_last_bit() {
        let saved = checkpoint();
        assert_eq!(saved.recipe.stages[0].lr, 2.0411187626133958e-05);
        let bytes = serde_json::to_vec(&saved).unwrap();
        assert_eq!(serde_json::from_slice::<Checkpoint>(&bytes).unwrap(), saved);
    }

    #[test]
    fn an_older_checkpoint_says_nothing_of_its_data() {
        let known = SetSum { name: "x".into(), examples: 3, sum: u64::MAX };
        let saved = Checkpoint { data: Some(vec![vec![known]]), ..checkpoint() };
        let mut state = serde_json::to_value(&saved).unwrap();
        assert_eq!(serde_json::from_value::<Checkpoint>(state.clone()).unwrap(), saved);
        state.as_object_mut().unwrap().remove("data").unwrap();
        let older = serde_json::from_value::<Checkpoint>(state).unwrap();
        assert_eq!(older.data, None);
        older.check_data(&[]).unwrap();
    }
}
