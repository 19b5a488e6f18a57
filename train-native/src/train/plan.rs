//! What a run is asked to do, what it tells its caller on the way, and how it ends.

use std::path::{Path, PathBuf};

use anyhow::Result;
use burn::tensor::TensorData;
use burn::tensor::backend::AutodiffBackend;
use kiln_embed::checkpoint::Files;
use kiln_embed::kernels::TrainingBackend;

use super::{Best, Checkpoint, Hosts, Point, Trained};
use crate::data::DataSet;
use crate::eval::EvalSet;
use crate::recipe::{Recipe, Stage};
use crate::terminal::Terminal;

/// What to train on, and where to keep the state.
#[derive(Clone)]
pub struct TrainPlan<'a> {
    /// The recipe.
    pub recipe: &'a Recipe,
    /// Data sets of each stage.
    pub sets: &'a [Vec<DataSet>],
    /// Sets to evaluate on, as the recipe says.
    pub measured: &'a [EvalSet],
    /// Folder for checkpoints and metrics; nothing is written where absent.
    pub output: Option<&'a Path>,
    /// The base model's own language-model head `[vocab, hidden]`, where a stage writes tokens with it.
    pub lm_head: Option<TensorData>,
    /// Steps between checkpoints; one is written at the end of a stage and at Ctrl-C anyway.
    pub checkpoint_every: usize,
    /// Checkpoints to keep.
    pub keep: usize,
    /// Steps of the run between models that are kept ([`TrainObserver::at_step`]); 0 keeps none.
    pub save_every: usize,
    /// The state to go on from, as [`Checkpoint::find`] found it.
    pub resume: Option<(Checkpoint, PathBuf)>,
    /// The processes that train together, of which this is one; its device is the first.
    pub hosts: Option<Hosts>,
    /// What the user sees.
    pub terminal: Terminal,
}

/// How a run ended.
pub struct TrainOutcome<B: AutodiffBackend> {
    /// The trained model, adapters merged.
    pub model: Trained<B::InnerBackend>,
    /// The adapters as PEFT keeps them, where the base model's weights stayed as they were.
    pub adapters: Option<Files>,
    /// Every step.
    pub points: Vec<Point>,
    /// The best score, where there is an evaluation set.
    pub best: Option<Best>,
    /// True where Ctrl-C ended it early; the checkpoint then holds its state.
    pub interrupted: bool,
    /// Which of several processes was asked to stop.
    pub stopped_by: Option<String>,
}

/// What the caller does between steps.
pub trait TrainObserver<B: AutodiffBackend> {
    /// After each stage, with the model as it is then.
    ///
    /// # Errors
    /// The caller's own; training stops.
    fn after_stage(&mut self, _: &Trained<B::InnerBackend>, _: &Stage) -> Result<()> {
        Ok(())
    }

    /// After every so many steps of the run, with the model as it is then.
    ///
    /// # Errors
    /// The caller's own; training stops.
    fn at_step(&mut self, _: &Trained<B::InnerBackend>, _: usize, _: &Point) -> Result<()> {
        Ok(())
    }

    /// After each step.
    fn step(&mut self, _: &Point) {}

    /// After an evaluation that is the best so far.
    ///
    /// # Errors
    /// The caller's own; training stops.
    fn best(&mut self, _: &Trained<B::InnerBackend>, _: &Point) -> Result<()> {
        Ok(())
    }
}

/// An observer that does nothing.
pub struct Silent;
impl<B: TrainingBackend> TrainObserver<B> for Silent {}
