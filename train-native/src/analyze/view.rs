//! A model as the analyses see it.

use anyhow::Result;
use kiln_embed::pooling::{LayerState, PoolingConfig};

pub use crate::embedding::{LayerStates, TextView};
use crate::eval::{ModelEncoder, TextEncoder};

/// A model that can be looked into.
pub trait View: TextEncoder {
    /// Its pooling head.
    fn pooling(&self) -> PoolingConfig;

    /// Number of states that [`View::layer_states`] gives of a text: the layers and the embeddings.
    fn states(&self) -> usize;

    /// States of all layers of each text.
    ///
    /// # Errors
    /// Texts that cannot be embedded; [`kiln_embed::Error::Cancelled`] after Ctrl-C.
    fn layer_states(
        &self,
        texts: &[String],
        prompt_text: &str,
        state: LayerState,
    ) -> Result<Vec<LayerStates>>;

    /// One text, token by token.
    ///
    /// # Errors
    /// A text that cannot be embedded.
    fn look(&self, text: &str, prompt_text: &str) -> Result<TextView>;
}

impl View for ModelEncoder {
    fn pooling(&self) -> PoolingConfig {
        self.model.shape().pooling
    }

    fn states(&self) -> usize {
        self.model.shape().config.num_layers + 1
    }

    fn layer_states(
        &self,
        texts: &[String],
        prompt_text: &str,
        state: LayerState,
    ) -> Result<Vec<LayerStates>> {
        let bar = self.terminal.progress(texts.len() as u64, "layers");
        let result =
            self.model.layer_states(texts, prompt_text, &self.options, state, &mut |progress| {
                bar.set_position(progress.texts as u64);
            })?;
        bar.finish_and_clear();
        Ok(result)
    }

    fn look(&self, text: &str, prompt_text: &str) -> Result<TextView> {
        Ok(self.model.look(text, prompt_text, &self.options)?)
    }
}
