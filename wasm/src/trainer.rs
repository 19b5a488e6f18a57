//! Lessons for a model, in a build of its own: adapters that are taught step by step, so that a worker can listen
//! in between.

use burn::backend::{Autodiff, Flex};
use kiln_embed::checkpoint::{Files, Folder, KilnFile, LoadOptions};
use kiln_embed::embedder::Embedder;
use kiln_embed::quant::WeightPrecision;
use kiln_lessons::{AdapterSettings, Plan};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use wasm_bindgen::prelude::*;

use crate::model::ModelFiles;

/// Adapters on a model, and what they are taught.
#[wasm_bindgen]
pub struct Trainer(kiln_lessons::Trainer<Autodiff<Flex>>);

/// What JavaScript gives as a lesson.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Lesson {
    query: String,
    positives: Vec<String>,
    negatives: Vec<String>,
}

#[wasm_bindgen]
impl Trainer {
    /// Fresh adapters on a model, read from its files; `settings` are `AdapterSettings` as JSON, `weights` is what
    /// matrices are computed with.
    ///
    /// # Errors
    /// What is wrong with the files or the settings, in one line.
    #[wasm_bindgen(js_name = fromFiles)]
    pub async fn from_files(
        files: ModelFiles,
        weights: String,
        settings: String,
    ) -> Result<Trainer, JsError> {
        Self::open(files.folder(), &weights, &settings).await
    }

    /// As [`Trainer::from_files`], from the bytes of a `.kiln` file.
    ///
    /// # Errors
    /// What is wrong with the file or the settings, in one line.
    #[wasm_bindgen(js_name = fromKiln)]
    pub async fn from_kiln(
        bytes: Vec<u8>,
        weights: String,
        settings: String,
    ) -> Result<Trainer, JsError> {
        Self::open(&KilnFile::from_bytes("model.kiln", bytes)?, &weights, &settings).await
    }

    async fn open(folder: &dyn Folder, weights: &str, settings: &str) -> Result<Self, JsError> {
        let precision: WeightPrecision = weights.parse()?;
        let settings: AdapterSettings = parsed(settings)?;
        let options = LoadOptions { precision, ..LoadOptions::default() };
        let device = Default::default();
        let embedder = Embedder::<Flex>::load_with_async(folder, &options, &device).await?;
        Ok(Self(kiln_lessons::Trainer::new(embedder, settings).map_err(one_line)?))
    }

    /// Goes on from adapters that were trained before: PEFT's two files.
    ///
    /// # Errors
    /// Files that are no adapters of this model.
    pub fn adapters(&mut self, files: &ModelFiles) -> Result<(), JsError> {
        self.0.adapters(files.files()).map_err(one_line)
    }

    /// Begins to teach; `lessons` and `plan` are JSON, `others` texts among which answers are to be found when
    /// held-back lessons are asked. Gives how many lessons are taught and how many held back.
    ///
    /// # Errors
    /// Lessons or a plan that make no sense, in one line.
    pub fn begin(
        &mut self,
        lessons: &str,
        others: Vec<String>,
        plan: &str,
    ) -> Result<Vec<usize>, JsError> {
        let lessons: Vec<Lesson> = parsed(lessons)?;
        let lessons = lessons.into_iter().map(|Lesson { query, positives, negatives }| {
            kiln_data::data::Example { query, pos: positives, neg: negatives, ..Default::default() }
        });
        let plan: Plan = parsed(plan)?;
        self.0.begin(lessons.collect(), &others, plan).map_err(one_line)?;
        let (taught, held_back) = self.0.counts();
        Ok(vec![taught, held_back])
    }

    /// Takes a step, or looks at held-back lessons; gives a `Point` as JSON.
    ///
    /// # Errors
    /// Nothing was begun, or a loss that is not a number.
    pub fn step(&mut self) -> Result<String, JsError> {
        json(&self.0.step().map_err(one_line)?)
    }

    /// Ends the run after fewer steps than planned.
    pub fn shorten(&mut self, steps: usize) {
        self.0.shorten(steps);
    }

    /// Ends the run; gives an `Outcome` as JSON.
    ///
    /// # Errors
    /// Nothing was begun.
    pub fn finish(&mut self) -> Result<String, JsError> {
        json(&self.0.finish().map_err(one_line)?)
    }

    /// The adapters as PEFT's two files; `base` names the model that they adapt.
    ///
    /// # Errors
    /// Values that cannot be read back.
    pub fn adapter(&self, base: &str) -> Result<ModelFiles, JsError> {
        Ok(self.0.adapter(base).map_err(one_line)?.into())
    }

    /// All that is needed to go on from here.
    ///
    /// # Errors
    /// Nothing was begun.
    pub fn state(&self) -> Result<ModelFiles, JsError> {
        Ok(self.0.state().map_err(one_line)?.into())
    }

    /// Goes on from a state; gives the counts of lessons as [`Trainer::begin`].
    ///
    /// # Errors
    /// Files that are no state of this trainer's.
    pub fn restore(&mut self, files: &ModelFiles) -> Result<Vec<usize>, JsError> {
        self.0.restore(files.files()).map_err(one_line)?;
        let (taught, held_back) = self.0.counts();
        Ok(vec![taught, held_back])
    }
}

impl From<Files> for ModelFiles {
    fn from(files: Files) -> Self {
        Self::of(files)
    }
}

fn parsed<T: DeserializeOwned>(text: &str) -> Result<T, JsError> {
    serde_json::from_str(text).map_err(|error| JsError::new(&error.to_string()))
}

fn json(value: &impl serde::Serialize) -> Result<String, JsError> {
    Ok(serde_json::to_string(value)?)
}

/// An error and its causes.
fn one_line(error: anyhow::Error) -> JsError {
    JsError::new(&format!("{error:#}"))
}
