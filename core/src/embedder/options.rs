//! What to embed with: prompt, size of the vectors and of the batches.

use super::Prompt;
use crate::kernels::Kernels;

/// What to embed with; the default is what the model says of itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EmbedOptions {
    /// What stands before each text.
    pub prompt: Prompt,
    /// Keep only the first dimensions (Matryoshka), before vectors are divided by their norm.
    pub dimensions: Option<usize>,
    /// Whether vectors are divided by their norm; `None`: as the model does.
    pub normalize: Option<bool>,
    /// Most tokens in a batch, padding included; `None`: what suits the device.
    pub batch_tokens: Option<usize>,
}

impl EmbedOptions {
    /// The defaults with a prompt.
    pub fn with_prompt(prompt: Prompt) -> Self {
        Self { prompt, ..Self::default() }
    }

    /// Most tokens in a batch on a backend, on the CPU one that so many cores work on together. What a layer
    /// makes of it is to stay in their caches; a GPU wants to be filled.
    pub fn batch_tokens<B: Kernels>(&self, cores: usize) -> usize {
        self.batch_tokens.unwrap_or(if B::HOST { 256 * cores } else { 4096 })
    }
}
