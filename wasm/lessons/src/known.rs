//! Vectors that the model gives as it was, each text's computed once.

use std::collections::{HashMap, HashSet, VecDeque};

use anyhow::{Context as _, Result};
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};

/// A prompt and a text.
type Key = (String, String);

/// Vectors of texts, and the texts that wait for theirs.
#[derive(Debug, Default)]
pub(crate) struct KnownVectors {
    rows: HashMap<Key, usize>,
    values: Vec<f32>,
    width: usize,
    waiting: VecDeque<Key>,
    asked: HashSet<Key>,
}

impl KnownVectors {
    /// Asks for the vector of a text behind a prompt.
    pub(crate) fn want(&mut self, prompt: &str, text: &str) {
        let key = (prompt.to_string(), text.to_string());
        if self.asked.insert(key.clone()) {
            self.waiting.push_back(key);
        }
    }

    /// Forgets what was asked for and has no vector yet.
    pub(crate) fn forget_waiting(&mut self) {
        self.waiting.clear();
        self.asked.retain(|key| self.rows.contains_key(key));
    }

    /// How many texts wait for their vectors.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The next texts of one prompt, so many at most.
    pub(crate) fn next(&mut self, most: usize) -> Option<(String, Vec<String>)> {
        let prompt = self.waiting.front()?.0.clone();
        let count =
            self.waiting.iter().take(most).take_while(|(other, _)| *other == prompt).count();
        let texts = self.waiting.drain(..count).map(|(_, text)| text).collect();
        Some((prompt, texts))
    }

    /// Takes the vectors of what [`KnownVectors::next`] gave.
    pub(crate) fn put(&mut self, prompt: &str, texts: Vec<String>, vectors: &[Vec<f32>]) {
        for (text, vector) in texts.into_iter().zip(vectors) {
            self.width = vector.len();
            self.rows.insert((prompt.to_string(), text), self.values.len() / vector.len().max(1));
            self.values.extend(vector);
        }
    }

    /// The vectors `[texts, dim]` of texts behind their prompts.
    ///
    /// # Errors
    /// A text that was not asked for.
    pub(crate) fn tensor<B: Backend>(
        &self,
        texts: &[(&str, &str)],
        device: &B::Device,
    ) -> Result<Tensor<B, 2>> {
        let mut values = Vec::with_capacity(texts.len() * self.width);
        for (prompt, text) in texts {
            let row = self.rows.get(&(prompt.to_string(), text.to_string()));
            let row = row.with_context(|| format!("no vector of {text:?} was computed"))?;
            values.extend_from_slice(&self.values[row * self.width..][..self.width]);
        }
        Ok(Tensor::from_data(TensorData::new(values, [texts.len(), self.width]), device))
    }
}
