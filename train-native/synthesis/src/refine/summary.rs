//! What a run came to.

use std::collections::BTreeMap;

use kiln_terminal::terminal::counted;
use serde::Serialize;

use super::tally::{FilterCounts, TypeCounts};
use crate::llm::{Spent, Stop};

/// What a run did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RefineSummary {
    /// Rows that came.
    pub rows: usize,
    /// Rows that could not be read and were left out.
    pub bad_rows: usize,
    /// What was wrong with the first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_bad_row: Option<String>,
    /// Rows that stay.
    pub kept: usize,
    /// Rows that went.
    pub dropped: usize,
    /// Each filter's counts, in order.
    pub filters: Vec<FilterCounts>,
    /// Each type's.
    pub types: BTreeMap<String, TypeCounts>,
    /// Filters that were left out, and why.
    pub left_out: Vec<SkippedFilter>,
    /// The teacher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teacher: Option<String>,
    /// What judges were asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judges: Option<Spent>,
}

impl RefineSummary {
    /// Filters that no row came to, as a line: their types, sources and splits may be misspelt.
    pub fn idle(&self) -> Option<String> {
        let idle = self.filters.iter().filter(|one| one.rows == 0);
        let names: Vec<&str> = idle.map(|one| one.name.as_str()).collect();
        (!names.is_empty()).then(|| {
            format!(
                "no row came to {}: the types, sources and splits that they name are those of no row, or of none \
                 that was left",
                names.join(", ")
            )
        })
    }

    /// What could not be read, as a line.
    pub fn unread(&self) -> Option<String> {
        let first = self.first_bad_row.as_ref()?;
        let bad = counted(self.bad_rows, "bad row", "bad rows");
        Some(format!("left out {bad}, the first: {first}"))
    }

    /// Why judges were not asked to the end.
    pub fn stopped(&self) -> Option<String> {
        match self.judges.as_ref()?.stopped.as_ref()? {
            Stop::Budget(what) => Some(what.clone()),
            Stop::Interrupted => Some("it was interrupted".into()),
        }
    }
}

/// A filter that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedFilter {
    /// The filter.
    pub name: String,
    /// Why.
    pub why: String,
}
