//! A loaded cross-encoder, and the pairs that it scores. It computes on the CPU.

use std::rc::Rc;

use burn::backend::Flex;
use kiln_embed::checkpoint::{Folder, KilnFile, LoadOptions};
use kiln_embed::{Error, Reranker};
use serde_json::json;
use wasm_bindgen::prelude::*;

use crate::device::precision;
use crate::model::ModelFiles;
use crate::promise::now_or_promise;
use crate::wrongly_asked;

/// A loaded cross-encoder.
#[wasm_bindgen]
pub struct PairScorer(Rc<Reranker<Flex>>);

#[wasm_bindgen]
impl PairScorer {
    /// Reads a cross-encoder from its files; `weights` as for [`Model::from_files`](crate::Model::from_files).
    ///
    /// # Errors
    /// What is wrong with the files, in one line.
    #[wasm_bindgen(js_name = fromFiles)]
    pub fn from_files(files: ModelFiles, weights: &str) -> Result<PairScorer, JsValue> {
        Self::open(files.folder(), weights)
    }

    /// Reads a cross-encoder from the bytes of a `.kiln` file.
    ///
    /// # Errors
    /// What is wrong with the file, in one line.
    #[wasm_bindgen(js_name = fromKiln)]
    pub fn from_kiln(bytes: Vec<u8>, weights: &str) -> Result<PairScorer, JsValue> {
        let file = KilnFile::from_bytes("model.kiln", bytes).map_err(JsError::from)?;
        Self::open(&file, weights)
    }

    fn open(folder: &dyn Folder, weights: &str) -> Result<PairScorer, JsValue> {
        let options = LoadOptions { precision: precision(weights)?, ..LoadOptions::default() };
        let reranker = Reranker::<Flex>::load_with(folder, &options, &Default::default());
        let ranks = reranker.and_then(|reranker| reranker.check_ranks().map(|()| reranker));
        let reranker = ranks.map_err(|error| match error {
            // Whole, and no reranker.
            Error::Invalid(_) => wrongly_asked(&error),
            other => JsError::from(other).into(),
        })?;
        reranker.verify().map_err(JsError::from)?;
        Ok(Self(Rc::new(reranker)))
    }

    /// What the model is, as JSON: see `RerankerInfo` in index.d.ts.
    pub fn info(&self) -> String {
        let config = self.0.config();
        json!({
            "maxLength": self.0.tokenizer().config().max_length,
            "hiddenSize": config.hidden_size,
            "layers": config.num_layers,
            "vocabularySize": config.vocab_size,
            "activation": self.0.activation(),
        })
        .to_string()
    }

    /// The score of a pair before the activation, by which texts are ranked: a sigmoid's are equal where they are large.
    ///
    /// # Errors
    /// A text that the tokenizer cannot take, or a score that is not finite.
    pub fn logit(&self, query: String, text: String) -> Result<JsValue, JsValue> {
        let reranker = self.0.clone();
        now_or_promise(
            async move { reranker.logit_async(&query, &text).await.map_err(JsError::from) },
        )
    }

    /// What the model makes of a score.
    pub fn activated(&self, logit: f32) -> f32 {
        self.0.activation().of(logit)
    }
}
