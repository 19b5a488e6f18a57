//! Hard negatives: a teacher's nearest texts, filtered by [`kiln_data::data::negatives`] so that few of them are answers.

mod candidates;
mod corpus;
mod granularity;
mod rerank;

pub use candidates::{
    Asking, Scored, data_hash, read_scores, search, teacher_prompts, write_scores,
};
pub use corpus::corpus;
pub use granularity::{Granularity, Level, granularity};
pub use kiln_data::data::negatives::{
    Candidate, Dropped, Filters, Keep, Negative, Pick, Query, filter,
};
pub use rerank::rerank;
