//! A loaded model, and the runs of texts through it.

use std::rc::Rc;

use burn::backend::Flex;
use kiln_core::checkpoint::{Files, Folder, KilnFile, LoadOptions, Manifest, load};
use kiln_core::embedder::{EmbedOptions, Embedder, Plan, Progress};
use serde_json::json;
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
pub struct Model {
    embedder: Rc<Embedder<Flex>>,
    /// How its matrices are kept, where its manifest says so.
    weights: Option<String>,
}

#[wasm_bindgen]
impl Model {
    /// Reads a model from its files, and checks itself against the vectors that it carries.
    ///
    /// # Errors
    /// What is wrong with the files, in one line.
    #[wasm_bindgen(js_name = fromFiles)]
    pub fn from_files(files: ModelFiles) -> Result<Model, JsError> {
        Self::open(&files.0)
    }

    /// Reads a model from the bytes of a `.kiln` file, as [`Model::from_files`].
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
        let weights = Manifest::read(folder)?.map(|manifest| manifest.weights);
        Ok(Self { embedder: Rc::new(embedder), weights })
    }

    /// What the model is, as JSON: see `ModelInfo` in index.d.ts.
    pub fn info(&self) -> String {
        let Embedder { model, tokenizer, prompts, .. } = self.embedder.as_ref();
        json!({
            "dimensions": model.dimensions(),
            "maxLength": tokenizer.config().max_length,
            "hiddenSize": model.config.hidden_size,
            "layers": model.config.num_layers,
            "vocabularySize": model.config.vocab_size,
            "pooling": model.pooling.config().name(),
            "normalized": model.normalize,
            "prompts": prompts.by_name,
            "defaultPrompt": prompts.default,
            "weights": self.weights,
        })
        .to_string()
    }

    /// Begins to embed texts; `prompt_text` stands for a named prompt.
    ///
    /// # Errors
    /// An unknown prompt, or more dimensions than the model has.
    pub fn begin(
        &self,
        texts: Vec<String>,
        prompt: Option<String>,
        prompt_text: Option<String>,
        dimensions: Option<usize>,
        normalize: Option<bool>,
        batch_tokens: Option<usize>,
    ) -> Result<Job, JsError> {
        let usual = EmbedOptions::default();
        let options = EmbedOptions {
            prompt_name: prompt,
            prompt: prompt_text,
            dimensions,
            normalize,
            batch_tokens: batch_tokens.unwrap_or(usual.batch_tokens),
        };
        let plan = self.embedder.plan(&texts, &options)?;
        let width = self.embedder.dimensions(&options);
        Ok(Job {
            embedder: self.embedder.clone(),
            vectors: vec![0.0; texts.len() * width],
            done: Progress { texts: 0, total: texts.len(), tokens: 0 },
            next: 0,
            plan,
            options,
            width,
        })
    }

    /// Why a text gets its vector, as JSON: see `Explanation` in index.d.ts. Offsets count UTF-16
    /// units, as strings do in JavaScript.
    ///
    /// # Errors
    /// An unknown prompt.
    pub fn explain(&self, text: &str, prompt: Option<String>) -> Result<String, JsError> {
        let options = EmbedOptions { prompt_name: prompt, ..Default::default() };
        let why = self.embedder.explain(text, &options)?;
        let unit = |byte: usize| text[..byte].encode_utf16().count();
        let tokens: Vec<_> = why
            .tokens
            .iter()
            .zip(&why.offsets)
            .map(|(token, &(start, end))| {
                json!({ "token": token, "start": unit(start), "end": unit(end) })
            })
            .collect();
        let value = json!({
            "tokens": tokens, "weights": why.token_weights, "latents": why.latents, "layers": why.layers,
        });
        Ok(value.to_string())
    }

    /// Number of tokens that the model reads of a text, special ones included.
    ///
    /// # Errors
    /// A text that the tokenizer cannot read.
    #[wasm_bindgen(js_name = countTokens)]
    pub fn count_tokens(&self, text: &str) -> Result<usize, JsError> {
        Ok(self.embedder.tokenizer.encode("", text)?.ids.len())
    }
}

/// A run of texts through a model, batch by batch, so that a worker can listen in between.
#[wasm_bindgen]
pub struct Job {
    embedder: Rc<Embedder<Flex>>,
    plan: Plan,
    options: EmbedOptions,
    /// Batches done.
    next: usize,
    done: Progress,
    width: usize,
    vectors: Vec<f32>,
}

#[wasm_bindgen]
impl Job {
    /// Computes the next batch; whether there are more.
    ///
    /// # Errors
    /// Vectors with NaN.
    pub fn step(&mut self) -> Result<bool, JsError> {
        let Some(rows) = self.plan.batches().get(self.next) else {
            return Ok(false);
        };
        let batch = self.embedder.tokenizer.pad(&self.plan.rows(rows));
        let vectors = self.embedder.batch_vectors(&batch, rows, &self.options)?;
        for (&row, vector) in rows.iter().zip(vectors) {
            self.vectors[row * self.width..][..self.width].copy_from_slice(&vector);
        }
        self.done.add(&batch);
        self.next += 1;
        Ok(self.next < self.plan.batches().len())
    }

    /// Texts done.
    #[wasm_bindgen(getter)]
    pub fn texts(&self) -> usize {
        self.done.texts
    }

    /// Tokens done, padding not counted.
    #[wasm_bindgen(getter)]
    pub fn tokens(&self) -> usize {
        self.done.tokens
    }

    /// The vectors of all texts, one after another; the job is over.
    pub fn finish(self) -> Vec<f32> {
        self.vectors
    }
}
