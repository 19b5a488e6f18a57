//! Evaluation: how well vectors, or words, find the right passages.

mod bm25;
mod retrieval;

pub use bm25::bm25_rankings;
pub use retrieval::{dense_rankings, ndcg};
