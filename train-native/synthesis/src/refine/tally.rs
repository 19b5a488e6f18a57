//! What became of the rows: counts, samples of numbers, and examples.

use std::collections::BTreeMap;

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::row::RefineRow;

/// Numbers of each kind that histograms are drawn from.
const NUMBERS: usize = 20_000;
/// Examples of rows that were kept.
const KEPT: usize = 24;
/// Examples of what each filter dropped.
const DROPPED: usize = 8;
/// Types that are counted on their own.
const TYPES: usize = 40;
/// Letters of a text that are shown.
const SHOWN: usize = 400;
/// Positives and negatives that are shown.
const SHOWN_TEXTS: usize = 4;

/// What a filter did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FilterCounts {
    /// Its name.
    pub name: String,
    /// Rows that it looked at.
    pub rows: usize,
    /// Rows that it could not judge, which went on.
    pub unjudged: usize,
    /// Rows that it dropped.
    pub dropped: usize,
    /// Positives that it took out of rows that went on.
    pub positives: usize,
    /// Negatives that it took out of rows that went on.
    pub negatives: usize,
    /// Rows that it changed and kept otherwise.
    pub marked: usize,
}

/// Rows of a type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TypeCounts {
    /// That came.
    pub rows: usize,
    /// That stay.
    pub kept: usize,
}

/// A uniform sample of what is offered, in memory that does not grow.
#[derive(Debug, Clone)]
pub(super) struct Sample<T> {
    /// The sample.
    pub items: Vec<T>,
    most: usize,
    offered: usize,
}

impl<T> Sample<T> {
    fn new(most: usize) -> Self {
        Self { items: Vec::new(), most, offered: 0 }
    }

    fn offer(&mut self, rng: &mut ChaCha8Rng, item: impl FnOnce() -> T) {
        self.offered += 1;
        if self.items.len() < self.most {
            self.items.push(item());
            return;
        }
        let place = rng.random_range(0..self.offered);
        if let Some(slot) = self.items.get_mut(place) {
            *slot = item();
        }
    }
}

/// A row as it is shown.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shown {
    /// Its type and source.
    pub title: String,
    /// What each text is, and the text.
    pub texts: Vec<(&'static str, String)>,
    /// The filter that dropped it, and why.
    pub why: Option<String>,
}

/// What is measured of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Measure {
    /// The teacher's score of positives.
    PositiveScore,
    /// Of negatives.
    NegativeScore,
    /// The teacher's rank of positives.
    PositiveRank,
    /// Of negatives.
    NegativeRank,
    /// Judged relatedness of positives.
    PositiveRelatedness,
    /// Of negatives.
    NegativeRelatedness,
}

impl Measure {
    /// Its name on the page.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::PositiveScore => "teacher's score of positives",
            Self::NegativeScore => "teacher's score of negatives",
            Self::PositiveRank => "teacher's rank of positives",
            Self::NegativeRank => "teacher's rank of negatives",
            Self::PositiveRelatedness => "judged relatedness of positives",
            Self::NegativeRelatedness => "judged relatedness of negatives",
        }
    }
}

/// The counts of a run.
#[derive(Debug)]
pub(super) struct Tally {
    rng: ChaCha8Rng,
    /// Rows that came.
    pub rows: usize,
    /// Rows that could not be read, and what was wrong with the first.
    pub bad_rows: usize,
    pub first_bad: Option<anyhow::Error>,
    /// Rows that stay.
    pub kept: usize,
    /// Each filter's.
    pub filters: Vec<FilterCounts>,
    /// Each type's.
    pub types: BTreeMap<String, TypeCounts>,
    /// Numbers of rows that stay and of rows that went.
    pub measures: BTreeMap<Measure, [Sample<f64>; 2]>,
    /// Rows that stay.
    pub examples: Sample<Shown>,
    /// Rows that went, by filter.
    pub dropped: Vec<Sample<Shown>>,
}

impl Tally {
    /// Nothing yet.
    pub(super) fn new(names: impl Iterator<Item = String>, seed: u64) -> Self {
        let filters: Vec<FilterCounts> =
            names.map(|name| FilterCounts { name, ..FilterCounts::default() }).collect();
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            rows: 0,
            bad_rows: 0,
            first_bad: None,
            kept: 0,
            dropped: filters.iter().map(|_| Sample::new(DROPPED)).collect(),
            filters,
            types: BTreeMap::new(),
            measures: BTreeMap::new(),
            examples: Sample::new(KEPT),
        }
    }

    fn of_type(&mut self, row: &RefineRow) -> &mut TypeCounts {
        let name = row.kind.as_deref().unwrap_or("(no type)");
        let name = match self.types.contains_key(name) || self.types.len() < TYPES {
            true => name,
            false => "(others)",
        };
        self.types.entry(name.to_string()).or_default()
    }

    /// A row came.
    pub(super) fn came(&mut self, row: &RefineRow) {
        self.rows += 1;
        self.of_type(row).rows += 1;
    }

    /// A row could not be read.
    pub(super) fn bad(&mut self, error: anyhow::Error) {
        self.bad_rows += 1;
        self.first_bad.get_or_insert(error);
    }

    /// A row stays.
    pub(super) fn keep(&mut self, row: &RefineRow) {
        self.kept += 1;
        self.of_type(row).kept += 1;
        self.examples.offer(&mut self.rng, || shown(row, None));
    }

    /// A filter dropped a row.
    pub(super) fn drop(&mut self, filter: usize, row: &RefineRow, why: &str) {
        self.filters[filter].dropped += 1;
        let name = &self.filters[filter].name;
        self.dropped[filter]
            .offer(&mut self.rng, || shown(row, Some(format!("{name}: {}", short(why)))));
    }

    /// A number of a row that stays or went.
    pub(super) fn measure(&mut self, measure: Measure, stays: bool, number: f64) {
        let samples = self
            .measures
            .entry(measure)
            .or_insert_with(|| [Sample::new(NUMBERS), Sample::new(NUMBERS)]);
        samples[usize::from(!stays)].offer(&mut self.rng, || number);
    }
}

/// A text as far as it is shown.
pub(super) fn short(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{} ...", text[..end].trim_end()),
        None => text.into(),
    }
}

fn shown(row: &RefineRow, why: Option<String>) -> Shown {
    let mut texts = Vec::new();
    if let Some(instruction) = &row.instruction {
        texts.push(("task", short(instruction)));
    }
    texts.push(("query", short(&row.query)));
    for (what, all) in [("positive", &row.positives), ("negative", &row.negatives)] {
        let some = all.iter().take(SHOWN_TEXTS);
        texts.extend(some.map(|one| (what, short(&one.text))));
        if all.len() > SHOWN_TEXTS {
            texts.push((what, format!("and {} more", all.len() - SHOWN_TEXTS)));
        }
    }
    let title = match &row.kind {
        Some(kind) => format!("{}, {}", short(kind), short(&row.source)),
        None => short(&row.source),
    };
    Shown { title, texts, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refine::row::tests::row;
    use serde_json::json;

    #[test]
    fn a_sample_is_uniform_and_bounded() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut sample = Sample::new(1000);
        (0..100_000).for_each(|i| sample.offer(&mut rng, || f64::from(i)));
        let mean = sample.items.iter().sum::<f64>() / 1000.0;
        assert!(sample.items.len() == 1000 && (mean - 50_000.0).abs() < 4000.0, "{mean}");
    }

    #[test]
    fn long_texts_and_many_types_are_shortened() {
        let mut tally = Tally::new(["length".to_string()].into_iter(), 1);
        for i in 0..100 {
            let row = row(
                json!({"query": "ü".repeat(500), "pos": ["p"], "neg": vec!["n"; 9], "type": format!("t{i}")}),
            );
            tally.came(&row);
            tally.drop(0, &row, "why");
        }
        assert_eq!((tally.types.len(), tally.types["(others)"].rows), (TYPES + 1, 100 - TYPES));
        assert_eq!((tally.filters[0].dropped, tally.dropped[0].items.len()), (100, DROPPED));
        let first = &tally.dropped[0].items[0];
        assert_eq!(first.texts[0].1, format!("{} ...", "ü".repeat(SHOWN)));
        assert_eq!(first.texts.last().unwrap().1, "and 5 more");
        assert_eq!(first.why.as_deref(), Some("length: why"));
    }
}
