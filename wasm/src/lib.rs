//! Kiln in the page: the very models that are trained natively, on the CPU backend.

use burn::backend::Flex;
use kiln_core::checkpoint::{Files, Folder, KilnFile, LoadOptions, load};
use kiln_core::embedder::{EmbedOptions, Embedder};
use std::ops::ControlFlow;
use wasm_bindgen::prelude::*;

/// The files of a model, added one by one as they arrive.
#[wasm_bindgen]
#[derive(Default)]
pub struct ModelFiles(Files);

#[wasm_bindgen]
impl ModelFiles {
    /// No files yet.
    #[wasm_bindgen(constructor)]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file by its path inside the model folder, as `1_Pooling/config.json`.
    pub fn add(&mut self, path: String, bytes: Vec<u8>) {
        self.0.0.insert(path, bytes);
    }
}

/// A loaded model.
#[wasm_bindgen]
pub struct Model(Embedder<Flex>);

#[wasm_bindgen]
impl Model {
    /// Reads a model from its files.
    ///
    /// # Errors
    /// What is wrong with the files, in one line.
    #[wasm_bindgen(constructor)]
    pub fn new(files: &ModelFiles) -> Result<Model, JsError> {
        Self::open(&files.0)
    }

    /// Reads a model from the bytes of a `.kiln` file.
    ///
    /// # Errors
    /// What is wrong with the file, in one line.
    #[wasm_bindgen(js_name = fromKiln)]
    pub fn from_kiln(bytes: Vec<u8>) -> Result<Model, JsError> {
        Self::open(&KilnFile::from_bytes("model.kiln", bytes)?)
    }

    fn open(folder: &dyn Folder) -> Result<Model, JsError> {
        let embedder = load(folder, &LoadOptions::default(), &Default::default())?;
        embedder.verify()?;
        Ok(Self(embedder))
    }

    /// Width of the vectors.
    #[wasm_bindgen(getter)]
    pub fn dimensions(&self) -> usize {
        self.0.model.dimensions()
    }

    /// Vectors of texts, one after another: `texts.length * dimensions` numbers.
    ///
    /// # Errors
    /// An unknown prompt.
    pub fn embed(
        &self,
        texts: Vec<String>,
        prompt_name: Option<String>,
    ) -> Result<Vec<f32>, JsError> {
        let options = EmbedOptions { prompt_name, ..Default::default() };
        Ok(self.0.embed(&texts, &options, |_| ControlFlow::Continue(()))?.concat())
    }
}
