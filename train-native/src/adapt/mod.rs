//! From a folder of documents to an embedder for them: what stands between the commands that do the work.
//!
//! `passages, refined rows -> Questions (train, dev, test by document) -> recipe -> (commands) -> Adapted -> report, card`

mod questions;
mod recipe;
mod report;

pub use questions::{Questions, SOURCES, texts_of_corpus};
pub use recipe::{Tuning, recipe};
pub use report::{Adapted, StepTaken, Verdict, card, page, quoted};

/// Filters of `adapt` that need no language model.
pub const FILTERS: &str = include_str!("filters.toml");
/// Filters that ask the language model whether a passage answers its question.
pub const JUDGES: &str = include_str!("judges.toml");
