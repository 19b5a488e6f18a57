//! Vectors by the model that is taught, and how well held-back lessons are answered by them.

use std::ops::ControlFlow;

use anyhow::{Context as _, Result, anyhow};
use burn::module::AutodiffModule;
use kiln_embed::embedder::{EmbedOptions, Embedder, EmbeddingModel, Prompt};
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::pooling::l2_normalize;

use super::Trainer;
use crate::check::{Check, Score};
use crate::settings::AdapterKind;

impl<B: TrainingBackend> Trainer<B> {
    /// How well held-back lessons are answered.
    pub(super) fn score(&self, check: &Check, temperature: f64) -> Result<Score> {
        let vectors = |texts: &[String], prompt: &str| match self.settings.kind {
            AdapterKind::Adapter => self.adapted(texts, prompt),
            AdapterKind::Lora | AdapterKind::Auto => self.embed(texts, prompt),
        };
        let (queries, texts) =
            (vectors(&check.queries, "query")?, vectors(&check.texts, "document")?);
        Ok(check.score(&queries, &texts, temperature))
    }

    /// Vectors of texts by the model with its adapters as they are now, each of norm 1, behind the prompt of that name
    /// (`query`, `document`), where the model has it.
    ///
    /// # Errors
    /// Vectors with NaN.
    pub fn embed(&self, texts: &[String], prompt: &str) -> Result<Vec<Vec<f32>>> {
        let prompt = Prompt::Text(self.prompt(prompt));
        self.embed_by(self.train_model.model.valid(), texts, prompt)
    }

    /// The same of texts whose vectors are known, by the adapter of vectors.
    fn adapted(&self, texts: &[String], prompt: &str) -> Result<Vec<Vec<f32>>> {
        let model = self.train_model.model.valid();
        let adapter = model.dense().last().context("the model has no adapter of vectors")?;
        let prompt = self.prompt(prompt);
        let keys: Vec<(&str, &str)> = texts.iter().map(|text| (&prompt[..], &text[..])).collect();
        let vectors = l2_normalize(adapter.forward(self.known.tensor(&keys, &self.device)?));
        let [_, width] = vectors.dims();
        let values = vectors.into_data().into_vec::<f32>();
        let values =
            values.map_err(|error| anyhow!("the vectors cannot be read back: {error:?}"))?;
        Ok(values.chunks(width.max(1)).map(<[f32]>::to_vec).collect())
    }

    /// Vectors of texts by a model, each of norm 1.
    pub(super) fn embed_by(
        &self,
        model: EmbeddingModel<B::InnerBackend>,
        texts: &[String],
        prompt: Prompt,
    ) -> Result<Vec<Vec<f32>>> {
        let embedder =
            Embedder::<B::InnerBackend>::new(model, self.tokenizer.clone(), &self.device)?;
        let options = EmbedOptions { normalize: Some(true), ..EmbedOptions::with_prompt(prompt) };
        Ok(embedder.embed_with(texts, &options, |_| ControlFlow::Continue(()))?)
    }

    /// The prompt of a name; empty where the model has none of it.
    pub(super) fn prompt(&self, name: &str) -> String {
        self.prompts.by_name().get(name).cloned().unwrap_or_default()
    }
}
