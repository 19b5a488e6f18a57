//! A loaded model, and the runs of texts through it.

use std::cell::RefCell;
use std::rc::Rc;

use kiln_embed::Progress;
use kiln_embed::checkpoint::{
    FileSum, Files, Folder, KilnFile, MANIFEST, Manifest, adapted_fingerprint, read_text,
};
use kiln_embed::embedder::{EmbedOptions, EmbedRun, Prompt};
use kiln_embed::explanation::TextExplanation;
use kiln_embed::quant::{Scheme, WeightPrecision};
use serde_json::json;
use wasm_bindgen::prelude::*;

use crate::device::{Loaded, on_either, precision};
use crate::promise::now_or_promise;

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
        self.0.0.insert(path, bytes.into());
    }

    /// The paths of all files.
    pub fn names(&self) -> Vec<String> {
        self.0.0.keys().cloned().collect()
    }

    /// The bytes of a file; none where there is no such file.
    pub fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        self.0.0.get(path).map(|bytes| bytes.to_vec())
    }
}

impl ModelFiles {
    pub(crate) fn folder(&self) -> &dyn Folder {
        &self.0
    }

    pub(crate) fn files(&self) -> &Files {
        &self.0
    }

    #[cfg(feature = "train")]
    pub(crate) fn of(files: Files) -> Self {
        Self(files)
    }
}

/// The sum of a model's manifest, which has the sums of its files.
pub(crate) fn fingerprint(folder: &dyn Folder) -> Result<Option<String>, JsError> {
    Ok(read_text(folder, MANIFEST)?.map(|text| FileSum::of(&text).sha256))
}

/// A loaded model.
#[wasm_bindgen]
pub struct Model {
    loaded: Rc<Loaded>,
    /// What its matrices are computed with, or kept in where the manifest says so.
    weights: Option<String>,
    /// The sum of its manifest, which has the sums of its files.
    fingerprint: Option<String>,
}

#[wasm_bindgen]
impl Model {
    /// Reads a model from its files, and checks itself against the vectors that it carries;
    /// `device` is `cpu` or, in builds that have it, `webgpu`; `weights` is what matrices are computed with: `kept`
    /// (as in the files), `f32`, or a scheme as `int8`.
    ///
    /// # Errors
    /// What is wrong with the files, or with the device, in one line.
    #[wasm_bindgen(js_name = fromFiles)]
    pub fn from_files(
        files: ModelFiles,
        device: String,
        weights: String,
    ) -> Result<JsValue, JsValue> {
        now_or_promise(async move { Self::open(&files.0, &device, &weights).await })
    }

    /// Reads a model from the bytes of a `.kiln` file, as [`Model::from_files`].
    ///
    /// # Errors
    /// What is wrong with the file, or with the device, in one line.
    #[wasm_bindgen(js_name = fromKiln)]
    pub fn from_kiln(bytes: Vec<u8>, device: String, weights: String) -> Result<JsValue, JsValue> {
        let file = KilnFile::from_bytes("model.kiln", bytes).map_err(JsError::from)?;
        now_or_promise(async move { Self::open(&file, &device, &weights).await })
    }

    async fn open(folder: &dyn Folder, device: &str, weights: &str) -> Result<Model, JsValue> {
        let precision = precision(weights)?;
        let kept = Manifest::read(folder).map_err(JsError::from)?.map(|manifest| manifest.weights);
        let weights = match (precision, kept.as_ref().and_then(|kept| kept.parse::<Scheme>().ok()))
        {
            (WeightPrecision::Kept, _) => kept,
            // It stays as it is.
            (WeightPrecision::Rounded(asked), Some(had)) if asked.gains_nothing_on(had) => kept,
            (asked, _) => Some(asked.to_string()),
        };
        let fingerprint = fingerprint(folder)?;
        let loaded = Rc::new(Loaded::open(folder, device, precision).await?);
        Ok(Self { loaded, weights, fingerprint })
    }

    /// The same model with adapters, PEFT's two files or those of an adapter of vectors, beside its weights, which both
    /// share.
    ///
    /// # Errors
    /// Files that are no adapters of this model, in one line.
    #[wasm_bindgen(js_name = withAdapter)]
    pub fn with_adapter(&self, files: &ModelFiles) -> Result<Model, JsError> {
        let loaded = Rc::new(self.loaded.with_adapter(&files.0, self.fingerprint.as_deref())?);
        let own = self.fingerprint.as_deref();
        let fingerprint = own.and_then(|own| adapted_fingerprint(own, &files.0));
        Ok(Self { loaded, weights: self.weights.clone(), fingerprint })
    }

    /// What the model is, as JSON: see `ModelInfo` in index.d.ts.
    pub fn info(&self) -> String {
        on_either!(self.loaded.as_ref(), embedder => json!({
            "dimensions": embedder.dimensions(&EmbedOptions::default()),
            "maxLength": embedder.tokenizer().config().max_length,
            "hiddenSize": embedder.model().config().hidden_size,
            "layers": embedder.model().config().num_layers,
            "vocabularySize": embedder.model().config().vocab_size,
            "pooling": embedder.model().pooling().config().name(),
            "normalized": embedder.normalizes(&EmbedOptions::default()),
            "prompts": embedder.prompts().by_name(),
            "defaultPrompt": embedder.prompts().default_name(),
            "weights": self.weights,
            "fingerprint": self.fingerprint,
        }))
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
        let options = EmbedOptions {
            prompt: Prompt::from_options(prompt.as_deref(), prompt_text.as_deref()),
            dimensions,
            normalize,
            batch_tokens,
        };
        let run = on_either!(self.loaded.as_ref(), embedder => embedder.begin(&texts, &options)?);
        Ok(Job { loaded: self.loaded.clone(), run: Rc::new(RefCell::new(Some(run))) })
    }

    /// Why a text gets its vector, as JSON: see `Explanation` in index.d.ts. Offsets count UTF-16
    /// units, as strings do in JavaScript.
    ///
    /// # Errors
    /// An unknown prompt.
    pub fn explain(&self, text: String, prompt: Option<String>) -> Result<JsValue, JsValue> {
        now_or_promise(explained(self.loaded.clone(), text, prompt))
    }

    /// A text through every pooling head that has no parameters: see `Lens` in index.d.ts.
    ///
    /// # Errors
    /// An unknown prompt.
    pub fn lens(&self, text: String, prompt: Option<String>) -> Result<JsValue, JsValue> {
        now_or_promise(through_lens(self.loaded.clone(), text, prompt))
    }

    /// Number of tokens that the model reads of a text, special ones included.
    ///
    /// # Errors
    /// A text that the tokenizer cannot read.
    #[wasm_bindgen(js_name = countTokens)]
    pub fn count_tokens(&self, text: &str) -> Result<usize, JsError> {
        let tokens = on_either!(self.loaded.as_ref(), embedder => {
            embedder.tokenizer().encode("", text)?
        });
        Ok(tokens.ids.len())
    }
}

async fn explained(
    loaded: Rc<Loaded>,
    text: String,
    prompt: Option<String>,
) -> Result<String, JsError> {
    let options = EmbedOptions::with_prompt(Prompt::from_options(prompt.as_deref(), None));
    let why = on_either!(loaded.as_ref(), embedder => {
        embedder.explain_async(&text, &options).await?
    });
    Ok(explanation(&text, &why).to_string())
}

async fn through_lens(
    loaded: Rc<Loaded>,
    text: String,
    prompt: Option<String>,
) -> Result<TextLens, JsError> {
    let options = EmbedOptions::with_prompt(Prompt::from_options(prompt.as_deref(), None));
    let lens = on_either!(loaded.as_ref(), embedder => {
        embedder.lens_async(&text, &options).await?
    });
    let heads: Vec<_> = lens
        .heads
        .iter()
        .map(|head| json!({ "name": head.name, "weights": head.weights, "cosine": head.cosine }))
        .collect();
    let summary = json!({
        "own": explanation(&text, &lens.own), "heads": heads, "layers": lens.layers,
        "attentionHeads": lens.attention_heads,
    });
    Ok(TextLens { summary: summary.to_string(), attention: lens.attention, states: lens.states })
}

/// Why a text gets its vector, as `Explanation` in index.d.ts.
fn explanation(text: &str, why: &TextExplanation) -> serde_json::Value {
    let unit = |byte: usize| text[..byte].encode_utf16().count();
    let tokens: Vec<_> = why
        .tokens
        .iter()
        .zip(&why.offsets)
        .map(|(token, &(start, end))| {
            json!({ "token": token, "start": unit(start), "end": unit(end) })
        })
        .collect();
    json!({ "tokens": tokens, "weights": why.token_weights, "latents": why.latents, "layers": why.layers })
}

/// What a lens shows.
#[wasm_bindgen]
pub struct TextLens {
    summary: String,
    attention: Vec<f32>,
    states: Vec<f32>,
}

#[wasm_bindgen]
impl TextLens {
    /// Everything but the large tables, as JSON.
    pub fn summary(&self) -> String {
        self.summary.clone()
    }

    /// Attention weights of the last layer, `[head][query][key]` one after another.
    pub fn attention(&self) -> Vec<f32> {
        self.attention.clone()
    }

    /// States of the last layer, token by token, each divided by its norm.
    pub fn states(&self) -> Vec<f32> {
        self.states.clone()
    }
}

/// A run of texts through a model, batch by batch, so that a worker can listen in between.
#[wasm_bindgen]
pub struct Job {
    loaded: Rc<Loaded>,
    /// None while a step is computed.
    run: Rc<RefCell<Option<EmbedRun>>>,
}

#[wasm_bindgen]
impl Job {
    /// Computes the next batch; whether there are more.
    ///
    /// # Errors
    /// Vectors with NaN.
    pub fn step(&self) -> Result<JsValue, JsValue> {
        now_or_promise(stepped(self.loaded.clone(), self.run.clone()))
    }

    /// Texts done.
    #[wasm_bindgen(getter)]
    pub fn texts(&self) -> usize {
        self.progress().texts
    }

    /// Tokens done, padding not counted.
    #[wasm_bindgen(getter)]
    pub fn tokens(&self) -> usize {
        self.progress().tokens
    }

    /// The vectors of all texts, one after another; the job is over.
    pub fn finish(self) -> Vec<f32> {
        self.run.take().map(EmbedRun::into_flat).unwrap_or_default()
    }
}

impl Job {
    fn progress(&self) -> Progress {
        self.run.borrow().as_ref().map(EmbedRun::progress).unwrap_or_default()
    }
}

async fn stepped(loaded: Rc<Loaded>, of: Rc<RefCell<Option<EmbedRun>>>) -> Result<bool, JsError> {
    let run = of.take();
    let mut run = run.ok_or_else(|| JsError::new("the step before is still computed"))?;
    let result = on_either!(loaded.as_ref(), embedder => run.step(embedder).await);
    let more = !run.is_done();
    *of.borrow_mut() = Some(run);
    result?;
    Ok(more)
}
