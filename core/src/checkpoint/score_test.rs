//! The test that an exported cross-encoder carries: pairs, and the scores that it gave them, as
//! [`SelfTest`](super::SelfTest) is an embedder's.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Pairs, and the scores that the model gave them before its weights were rounded;
/// [`Reranker::score_test`](crate::reranker::Reranker::score_test) makes one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScoreTest {
    /// Queries and texts.
    pub pairs: Vec<(String, String)>,
    /// A score each, before the activation.
    pub scores: Vec<f32>,
    /// By how much a score may differ.
    pub most_apart: f32,
}

impl ScoreTest {
    /// Compares a difference from [`Reranker::apart`](crate::reranker::Reranker::apart) with the largest acceptable one.
    ///
    /// # Errors
    /// It is larger; the error names the device.
    pub fn judge(&self, apart: f32, device: &str) -> Result<()> {
        if apart <= self.most_apart {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the reranker fails the test that it carries: on {device} a score is {apart:.4} away from the right one, \
             where {:.4} is the most; use another device (--device cpu), or export the model again",
            self.most_apart
        )))
    }
}
