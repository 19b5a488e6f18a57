//! Hard negatives: a teacher's nearest texts, filtered so that few of them are answers.

mod candidates;
mod filter;
mod granularity;

pub use candidates::{Candidate, Query, Scored, data_hash, read_scores, search, write_scores};
pub use filter::{Dropped, Filters, Pick, filter};
pub use granularity::{Granularity, Level, granularity};
