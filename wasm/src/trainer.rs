//! Lessons for a model, in a build of its own: adapters that are taught step by step, so that a worker can listen
//! in between.

use burn::backend::{Autodiff, Flex};
use kiln_embed::checkpoint::{AdapterBase, Files, Folder, KilnFile, LoadOptions};
use kiln_embed::embedder::Embedder;
use kiln_lessons::{AdapterKind, AdapterSettings, Found, Mine, TeachingPlan, mined};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use wasm_bindgen::prelude::*;

use crate::device::{precision, unread};
use crate::model::{ModelFiles, fingerprint};
use crate::promise::now_or_promise;

/// Adapters on a model, and what they are taught.
#[wasm_bindgen]
pub struct Trainer {
    trainer: kiln_lessons::Trainer<Autodiff<Flex>>,
    /// The sum of the model's manifest.
    fingerprint: Option<String>,
    /// What matrices are computed with.
    weights: String,
}

/// What JavaScript gives as a lesson.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Lesson {
    query: String,
    positives: Vec<String>,
    negatives: Vec<String>,
    /// What a search found for it, where negatives are mined.
    #[serde(default)]
    found: Found,
}

#[wasm_bindgen]
impl Trainer {
    /// Fresh adapters on a model, read from its files; `settings` are `AdapterSettings` as JSON, `weights` is what
    /// matrices are computed with.
    ///
    /// # Errors
    /// What is wrong with the files or the settings, in one line.
    #[wasm_bindgen(js_name = fromFiles)]
    pub fn from_files(
        files: ModelFiles,
        weights: String,
        settings: String,
    ) -> Result<JsValue, JsValue> {
        now_or_promise(async move { Self::open(files.folder(), &weights, &settings).await })
    }

    /// As [`Trainer::from_files`], from the bytes of a `.kiln` file.
    ///
    /// # Errors
    /// What is wrong with the file or the settings, in one line.
    #[wasm_bindgen(js_name = fromKiln)]
    pub fn from_kiln(
        bytes: Vec<u8>,
        weights: String,
        settings: String,
    ) -> Result<JsValue, JsValue> {
        let file = KilnFile::from_bytes("model.kiln", bytes).map_err(JsError::from)?;
        now_or_promise(async move { Self::open(&file, &weights, &settings).await })
    }

    async fn open(folder: &dyn Folder, weights: &str, settings: &str) -> Result<Self, JsValue> {
        let settings: AdapterSettings = parsed(settings)?;
        let embedder = read(folder, weights).await?;
        // The files are not to blame, and need not be fetched once more.
        let wrong =
            |error: anyhow::Error| JsValue::from(js_sys::RangeError::new(&format!("{error:#}")));
        let trainer = kiln_lessons::Trainer::new(embedder, settings).map_err(wrong)?;
        Ok(Self { trainer, fingerprint: fingerprint(folder)?, weights: weights.into() })
    }

    /// What tells the model from others, and its precision from others of the same.
    fn base(&self) -> Option<String> {
        self.fingerprint.as_ref().map(|sum| format!("{sum} {}", self.weights))
    }

    /// What is trained: `lora` or `adapter`.
    #[wasm_bindgen(getter)]
    pub fn kind(&self) -> String {
        if self.trainer.kind() == AdapterKind::Adapter { "adapter" } else { "lora" }.into()
    }

    /// Trains an adapter of vectors from now on, in place of LoRA; what was begun is left.
    ///
    /// # Errors
    /// None that a model causes.
    #[wasm_bindgen(js_name = useVectorAdapter)]
    pub fn use_vector_adapter(&mut self) -> Result<(), JsError> {
        self.trainer.use_vector_adapter().map_err(one_line)
    }

    /// Goes on from adapters that were trained before: PEFT's two files, or those of an adapter of vectors.
    ///
    /// # Errors
    /// Files that are no adapters of this model.
    pub fn adapters(&mut self, files: &ModelFiles) -> Result<(), JsError> {
        self.trainer.adapters(files.files(), self.fingerprint.as_deref()).map_err(one_line)
    }

    /// Begins to teach; `lessons`, `plan` and `mine`, which says how negatives are taken from what a search found, are
    /// JSON, `others` texts among which answers are to be found when held-back lessons are asked. Gives how many
    /// lessons are taught, how many held back, and how many negatives were mined.
    ///
    /// # Errors
    /// Lessons or a plan that make no sense, in one line.
    pub fn begin(
        &mut self,
        lessons: &str,
        others: Vec<String>,
        plan: &str,
        mine: Option<String>,
    ) -> Result<Vec<usize>, JsError> {
        let lessons: Vec<Lesson> = parsed(lessons)?;
        let lessons = lessons.into_iter().map(|Lesson { query, positives, negatives, found }| {
            let (pos, neg) = (positives, negatives);
            (kiln_data::data::Example { query, pos, neg, ..Default::default() }, found)
        });
        let (lessons, kept) = match mine {
            None => (lessons.map(|(lesson, _)| lesson).collect(), 0),
            Some(mine) => {
                let (lessons, dropped) = mined(lessons.collect(), &parsed::<Mine>(&mine)?);
                (lessons, dropped.kept)
            }
        };
        let plan: TeachingPlan = parsed(plan)?;
        self.trainer.begin(lessons, &others, plan).map_err(one_line)?;
        let (taught, held_back) = self.trainer.counts();
        Ok(vec![taught, held_back, kept])
    }

    /// Takes a step, or looks at held-back lessons; gives a `Point` as JSON.
    ///
    /// # Errors
    /// Nothing was begun, or a loss that is not a number.
    pub fn step(&mut self) -> Result<String, JsError> {
        json(&self.trainer.step().map_err(one_line)?)
    }

    /// Ends the run after so many steps, as many as planned at most; at once where they are done.
    #[wasm_bindgen(js_name = setSteps)]
    pub fn set_steps(&mut self, steps: usize) {
        self.trainer.set_steps(steps);
    }

    /// Ends the run; gives an `Outcome` as JSON.
    ///
    /// # Errors
    /// Nothing was begun.
    pub fn finish(&mut self) -> Result<String, JsError> {
        json(&self.trainer.finish().map_err(one_line)?)
    }

    /// The adapters as two files, PEFT's or those of an adapter of vectors; `base` names the model that they adapt.
    ///
    /// # Errors
    /// Values that cannot be read back.
    pub fn adapter(&self, base: String) -> Result<ModelFiles, JsError> {
        let base = AdapterBase { name: Some(base), fingerprint: self.fingerprint.clone() };
        Ok(self.trainer.adapter(&base).map_err(one_line)?.into())
    }

    /// All that is needed to go on from here.
    ///
    /// # Errors
    /// Nothing was begun.
    pub fn state(&self) -> Result<ModelFiles, JsError> {
        Ok(self.trainer.state(self.base().as_deref()).map_err(one_line)?.into())
    }

    /// Goes on from a state; gives the counts of lessons as [`Trainer::begin`].
    ///
    /// # Errors
    /// Files that are no state of this trainer's.
    pub fn restore(&mut self, files: &ModelFiles) -> Result<Vec<usize>, JsError> {
        let base = self.base();
        self.trainer.restore(files.files(), base.as_deref()).map_err(one_line)?;
        let (taught, held_back) = self.trainer.counts();
        Ok(vec![taught, held_back])
    }
}

async fn read(folder: &dyn Folder, weights: &str) -> Result<Embedder<Flex>, JsValue> {
    let options = LoadOptions { precision: precision(weights)?, ..LoadOptions::default() };
    let device = Default::default();
    let embedder = Embedder::<Flex>::load_with_async(folder, &options, &device).await;
    embedder.map_err(|error| unread(folder, error, false))
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
