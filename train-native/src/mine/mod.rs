//! Hard negatives: a teacher's nearest texts, filtered so that few of them are answers.

mod candidates;
mod corpus;
mod filter;
mod granularity;
mod rerank;

pub use candidates::{
    Asking, Candidate, Query, Scored, data_hash, read_scores, search, teacher_prompts, write_scores,
};
pub use corpus::corpus;
pub use filter::{Dropped, Filters, Keep, Negative, Pick, filter};
pub use granularity::{Granularity, Level, granularity};
pub use rerank::rerank;
