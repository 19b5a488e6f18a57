//! An LLM writes examples: tasks first, then examples of them; or queries for passages; or negatives for pairs.
//!
//! `Settings, Material -> SynthesisPlan -> llm::ask -> answers.jsonl -> rows.jsonl`: rows are derived from the answers that
//! the journal keeps, so the same seed and the same journal give the same rows, and nothing is asked twice.

mod draw;
mod kind;
mod material;
mod plan;
mod row;
mod run;
mod structure;

pub use kind::{ExampleKind, Shares};
pub use material::{Material, Passages};
pub use plan::{OtherQuestions, Settings};
pub use row::{Rejection, SkippedChecks, SynthesizedRow};
pub use run::{
    ANSWERS, DryRun, FILES, REJECTED, ROWS, SETTINGS, SUMMARY, Synthesis, SynthesisSummary,
};
pub use structure::{Structured, from_structure};
