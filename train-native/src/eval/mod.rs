//! Evaluation: how well vectors, or words, find the right passages.

mod bm25;
mod correlation;
mod retrieval;
mod sets;

pub use bm25::bm25_rankings;
pub use correlation::spearman;
pub use retrieval::{dense_rankings, ndcg};
pub use sets::Measured;
