//! Cleans training data: filters of which each looks at the rows of some types and sources.
//!
//! `files -> RefineRow -> filters (alone, a teacher's ranks, judges) -> kept.jsonl, dropped.jsonl, report.html`.
//! Rows keep every field that they came with; what a filter does not change stays as it was.

mod config;
mod judge;
mod page;
mod ranks;
mod row;
mod run;
mod sieve;
mod summary;
mod tally;

pub use config::{FilterKind, Filters, KINDS, SHIPPED};
pub use judge::{Judge, Models};
pub use ranks::{Rank, Ranks, Role};
pub use row::{Passage, RefineRow, lines, open};
pub use run::{FILES, Refine, refine};
pub use summary::RefineSummary;
