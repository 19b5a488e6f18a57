//! The test that an exported model carries: texts, and the vectors that it gave for them.
//!
//! Whoever loads the model computes the vectors again and compares, so that a device that computes
//! wrongly is an error and never a wrong vector.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::{EmbedOptions, Embedder};
use crate::index::cosine;
use crate::kernels::Kernels;
use crate::{Error, Result};

/// Texts that every exported model is tested with: short, long, other scripts, code.
const SELF_TEST_TEXTS: [&str; 4] = [
    "How do I open a bank account?",
    "The lighthouse keeper counted the ships that passed before dawn, wrote their names into a book, \
     and went to sleep when the fog had lifted.",
    "fn main() { println!(\"{}\", 6 * 7); }",
    "Ein Löffel Honig, 蜂蜜一匙, une cuillère de miel",
];

/// Texts, and the vectors that the model gave before its weights were rounded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SelfTest {
    /// The texts.
    pub texts: Vec<String>,
    /// A vector each, without a prompt.
    pub vectors: Vec<Vec<f32>>,
    /// Lowest acceptable cosine to them.
    pub least_cosine: f32,
}

impl SelfTest {
    /// The test of a model from its own vectors, on its present device and at its present
    /// precision.
    ///
    /// # Errors
    /// As [`Embedder::embed`].
    pub fn of<B: Kernels>(embedder: &Embedder<B>, least_cosine: f32) -> Result<Self> {
        let texts: Vec<String> = SELF_TEST_TEXTS.iter().map(|text| text.to_string()).collect();
        let vectors = embedder.embed(&texts, &Self::options(), |_| ControlFlow::Continue(()))?;
        Ok(Self { texts, vectors, least_cosine })
    }

    fn options() -> EmbedOptions {
        EmbedOptions { prompt: Some(String::new()), ..EmbedOptions::default() }
    }

    /// The lowest cosine between the stored vectors and those of a model.
    ///
    /// # Errors
    /// As [`Embedder::embed_async`].
    pub async fn run<B: Kernels>(&self, embedder: &Embedder<B>) -> Result<f32> {
        let go_on = |_| ControlFlow::Continue(());
        let result = embedder.embed_async(&self.texts, &Self::options(), go_on).await?;
        Ok(self.least(&result))
    }

    fn least(&self, result: &[Vec<f32>]) -> f32 {
        let cosines = self.vectors.iter().zip(result).map(|(kept, result)| match kept.len() {
            length if length == result.len() => cosine(kept, result),
            _ => f32::NAN,
        });
        // NaN stays NaN, and is below every threshold.
        cosines.fold(1.0, |least, cosine| if cosine >= least { least } else { cosine })
    }

    /// Compares a cosine from [`SelfTest::run`] with the lowest acceptable one.
    ///
    /// # Errors
    /// It is lower; the error names the device.
    pub fn judge(&self, least: f32, device: &str) -> Result<()> {
        if least >= self.least_cosine {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the model fails the test that it carries: on {device} its vectors have a cosine of {least:.4} \
             to the right ones, where {:.4} is the least; use another device (--device cpu), or \
             export the model again",
            self.least_cosine
        )))
    }
}
