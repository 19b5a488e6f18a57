//! The test that an exported model carries: texts, and the vectors that it gave for them.
//!
//! Whoever loads the model computes the vectors again and compares, so that a device that computes
//! wrongly is an error and never a wrong vector.

use burn::tensor::read_sync;
use serde::{Deserialize, Serialize};

use super::{EmbedOptions, Embedder, Prompt, go_on};
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
    /// As [`Embedder::embed_async_with`].
    pub fn of<B: Kernels>(embedder: &Embedder<B>, least_cosine: f32) -> Result<Self> {
        let texts: Vec<String> = SELF_TEST_TEXTS.iter().map(|text| text.to_string()).collect();
        let vectors = read_sync(Self::vectors(embedder, &texts))?;
        Ok(Self { texts, vectors, least_cosine })
    }

    /// Vectors without a prompt.
    async fn vectors<B: Kernels>(
        embedder: &Embedder<B>,
        texts: &[String],
    ) -> Result<Vec<Vec<f32>>> {
        embedder.embed_async_with(texts, &EmbedOptions::with_prompt(Prompt::None), go_on).await
    }

    /// The lowest cosine between the stored vectors and those of a model.
    ///
    /// # Errors
    /// As [`Embedder::embed_async_with`].
    pub async fn run<B: Kernels>(&self, embedder: &Embedder<B>) -> Result<f32> {
        Ok(self.least(&Self::vectors(embedder, &self.texts).await?))
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

impl<B: Kernels> Embedder<B> {
    /// Compares the vectors that an exported model carries with those that it gives here; a model
    /// without such a test passes. `load` and `load_with` have done so; after
    /// [`checkpoint::load`](crate::checkpoint::load) it is to be called once.
    ///
    /// # Errors
    /// A device or a precision at which the model computes wrongly.
    pub fn verify(&self) -> Result<()> {
        read_sync(self.verify_async())
    }

    /// As [`Embedder::verify`], for devices that cannot be waited for (WebGPU in a page).
    ///
    /// # Errors
    /// As [`Embedder::verify`].
    pub async fn verify_async(&self) -> Result<()> {
        let place = if B::HOST { "the CPU" } else { "this GPU" };
        match &self.self_test {
            Some(test) => test.judge(test.run(self).await?, place),
            None => Ok(()),
        }
    }
}
