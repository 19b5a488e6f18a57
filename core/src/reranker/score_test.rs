//! What a cross-encoder is tested with when it is exported, and by when it is loaded.

use super::Reranker;
use crate::Result;
use crate::checkpoint::ScoreTest;
use crate::embedder::go_on;
use crate::kernels::Kernels;

/// Pairs that every exported cross-encoder is tested with: an answer, another text, another script, code, nothing.
const PAIRS: [[&str; 2]; 6] = [
    [
        "how do I open a bank account",
        "Bring a passport to any branch; an account is opened at once.",
    ],
    ["how do I open a bank account", "The lighthouse keeper counted the ships that passed."],
    ["wie lange kocht ein Ei", "Ein Ei ist nach sieben Minuten wachsweich. 蜂蜜一匙"],
    ["print a number", "fn main() { println!(\"{}\", 6 * 7); }"],
    ["a", "b"],
    ["ships that pass before dawn", ""],
];

impl<B: Kernels> Reranker<B> {
    /// A test of the cross-encoder from its own scores, on its present device and at its present precision.
    ///
    /// # Errors
    /// As [`Reranker::logits_with`].
    pub fn score_test(&self) -> Result<ScoreTest> {
        let pairs = PAIRS.map(|[query, text]| (query.to_string(), text.to_string())).to_vec();
        let scores = self.logits_with(&pairs, None, go_on)?;
        Ok(ScoreTest { pairs, scores, most_apart: 0.0 })
    }

    /// The largest difference between a test's scores and those that the cross-encoder gives.
    ///
    /// # Errors
    /// As [`Reranker::logits_with`].
    pub fn apart(&self, test: &ScoreTest) -> Result<f32> {
        let scores = self.logits_with(&test.pairs, None, go_on)?;
        let apart = test.scores.iter().zip(&scores).map(|(kept, score)| (kept - score).abs());
        Ok(apart.fold(0.0, f32::max))
    }

    /// Compares the scores that an exported cross-encoder carries with those that it gives here; one without such a
    /// test passes. To be called once after [`Reranker::load_with`].
    ///
    /// # Errors
    /// A device or a precision at which it computes wrongly.
    pub fn verify(&self) -> Result<()> {
        let place = if B::HOST { "the CPU" } else { "this GPU" };
        match &self.score_test {
            Some(test) => test.judge(self.apart(test)?, place),
            None => Ok(()),
        }
    }
}
