//! From rows to examples on disk: what an example loses on the way, and why some are left out.

use std::collections::HashSet;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use super::known::Gathering;
use super::leak::LeakFilter;
use super::store::StoreWriter;
use super::{Example, text_hash};
use crate::recipe::{DataSource, LeakRule};
use kiln_terminal::terminal::{Terminal, counted};

/// What to do with a row that cannot be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnBadRow {
    /// End with an error that names it.
    #[default]
    Stop,
    /// Leave it out and count it.
    Skip,
}

/// How data sets are opened.
pub struct Opening<'a> {
    /// Folder for relative paths.
    pub folder: &'a Path,
    /// Rows that cannot be read.
    pub on_bad_row: OnBadRow,
    /// Evaluation texts to keep out.
    pub leaks: Option<&'a LeakFilter>,
    /// How near to them a text may come, where the source has no rule of its own.
    pub leak: LeakRule,
    /// Drop repeated examples.
    pub deduplicate: bool,
    /// Whether texts without positives will do, as for distillation.
    pub texts_alone: bool,
    /// Whether pairs keep their scores, whatever these are, and need not be alike.
    pub scored: bool,
    /// Whether positives get the score 1 and negatives 0, whatever their rows say; pairs keep their own.
    pub binary: bool,
    /// Negatives that labelled texts are given.
    pub negatives: usize,
    /// Seed of conversions, of subsets and of made-up texts.
    pub seed: u64,
    /// What the user sees.
    pub terminal: Terminal,
}

/// What became of the rows of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Rows read.
    pub rows: usize,
    /// Rows that could not be read.
    pub bad_rows: usize,
    /// Scored pairs below the threshold.
    pub below_threshold: usize,
    /// Labelled texts whose label has no other text.
    pub lone_labels: usize,
    /// Rows without a text in the columns asked for.
    pub without_text: usize,
    /// Examples seen before.
    pub duplicates: usize,
    /// Rows with an evaluation text that is not a negative.
    pub leaks: usize,
    /// Negatives that are evaluation texts, which were removed.
    pub leaking_negatives: usize,
    /// Positives equal to their query, which were removed.
    pub own_positives: usize,
    /// Examples whose query was its own positive and had no other.
    pub without_positives: usize,
    /// Negatives equal to the query or one of its positives, those of other rows included, which were
    /// removed.
    pub equal_negatives: usize,
    /// Examples that `limit` and `ratio` leave out.
    pub not_drawn: usize,
    /// Examples without a negative.
    pub without_negatives: usize,
    /// Examples with scores of their positives.
    pub with_scores: usize,
    /// Examples with scores of their positives and negatives.
    pub with_margins: usize,
    /// Examples with a score below 1.
    pub with_low_scores: usize,
    /// Examples with a score below 0 or above 1.
    pub with_wide_scores: usize,
    /// Most negatives that an example has.
    pub most_negatives: usize,
    /// Examples that have a negative of each level, the hardest first ([`Example::level`]).
    pub levels: Vec<usize>,
    /// Examples to train on.
    pub examples: usize,
    /// The instruction of the most bytes that an example has of its own; a shorter one may have more tokens.
    #[serde(skip)]
    pub longest_instruction: Option<String>,
}

impl Counts {
    /// What was left out, in words; empty where nothing was.
    pub fn left_out(&self) -> String {
        let parts = [
            (self.bad_rows, ["bad row", "bad rows"]),
            (self.below_threshold, ["pair below the threshold", "pairs below the threshold"]),
            (self.lone_labels, ["text alone in its class", "texts alone in their class"]),
            (self.without_text, ["row without text", "rows without text"]),
            (self.duplicates, ["duplicate", "duplicates"]),
            (self.leaks, ["evaluation text", "evaluation texts"]),
            (
                self.leaking_negatives,
                ["negative that is an evaluation text", "negatives that are evaluation texts"],
            ),
            (self.own_positives, ["positive equal to its query", "positives equal to their query"]),
            (
                self.without_positives,
                [
                    "example with its query as its own positive",
                    "examples with their query as its own positive",
                ],
            ),
            (
                self.equal_negatives,
                ["negative equal to a positive", "negatives equal to a positive"],
            ),
            (
                self.not_drawn,
                ["example not drawn (limit, ratio)", "examples not drawn (limit, ratio)"],
            ),
        ];
        let said = parts.into_iter().filter(|(count, _)| *count > 0);
        said.map(|(count, [one, more])| counted(count, one, more)).collect::<Vec<_>>().join(", ")
    }

    /// Counts an example that is trained on.
    pub(super) fn add(&mut self, example: &Example) {
        self.examples += 1;
        if example.instruction.as_ref().map(String::len)
            > self.longest_instruction.as_ref().map(String::len)
        {
            self.longest_instruction = example.instruction.clone();
        }
        self.without_negatives += usize::from(example.neg.is_empty());
        let scored = !example.pos_scores.is_empty();
        self.with_scores += usize::from(scored);
        self.with_margins += usize::from(scored && !example.neg_scores.is_empty());
        let any = |is: fn(f32) -> bool| {
            usize::from(example.pos_scores.iter().chain(&example.neg_scores).any(|&one| is(one)))
        };
        self.with_low_scores += any(|score| score < 1.0);
        self.with_wide_scores += any(|score| !(0.0..=1.0).contains(&score));
        self.most_negatives = self.most_negatives.max(example.neg.len());
        let levels: HashSet<usize> = (0..example.neg.len()).map(|i| example.level(i)).collect();
        for level in levels {
            if self.levels.len() < level {
                self.levels.resize(level, 0);
            }
            self.levels[level - 1] += 1;
        }
    }

    /// Forgets the examples that were counted, but not what was left out.
    pub(super) fn start_over(&mut self) {
        (self.examples, self.without_negatives, self.most_negatives) = (0, 0, 0);
        (self.with_scores, self.with_margins) = (0, 0);
        (self.with_low_scores, self.with_wide_scores) = (0, 0);
        (self.longest_instruction, self.levels) = (None, Vec::new());
    }
}

/// Filters examples and puts them on disk.
pub(super) struct Intake<'a> {
    pub(super) opening: &'a Opening<'a>,
    rule: LeakRule,
    pub(super) writer: StoreWriter,
    seen: HashSet<u128>,
    pub(super) gathering: Gathering,
    pub(super) counts: Counts,
}

impl<'a> Intake<'a> {
    pub(super) fn new(source: &DataSource, opening: &'a Opening<'a>) -> Result<Self> {
        Ok(Self {
            opening,
            rule: source.leak.unwrap_or(opening.leak),
            writer: StoreWriter::new()?,
            seen: HashSet::new(),
            gathering: Gathering::default(),
            counts: Counts::default(),
        })
    }

    /// Whether a text may not be trained on.
    fn leaks(&self, text: &str) -> bool {
        self.opening.leaks.is_some_and(|leaks| leaks.leaks(text, self.rule))
    }

    /// Whether a row of these texts, which is no example yet, may not become one; counts it.
    pub(super) fn drops<'t>(&mut self, texts: impl IntoIterator<Item = &'t String>) -> bool {
        let leaks = texts.into_iter().any(|text| self.leaks(text));
        self.counts.leaks += usize::from(leaks);
        leaks
    }

    /// Takes an example of the file's own.
    pub(super) fn take(&mut self, example: Example) -> Result<()> {
        self.take_unless(example, true)
    }

    /// Takes an example made of texts that [`Self::drops`] has seen.
    pub(super) fn take_converted(&mut self, example: Example) -> Result<()> {
        self.take_unless(example, false)
    }

    /// Takes a pair, of which [`Self::drops`] has seen the texts, with its score: equal texts and those that are
    /// not alike are examples, too.
    pub(super) fn take_scored(
        &mut self,
        [first, second]: [String; 2],
        score: f32,
        instruction: Option<String>,
    ) -> Result<()> {
        let pair = Example::new(first, second, Vec::new());
        let example = Example { pos_scores: vec![score], instruction, ..pair };
        self.counts.add(&example);
        self.writer.push(&example)
    }

    fn take_unless(&mut self, mut example: Example, leaking: bool) -> Result<()> {
        // Texts for distillation have no positive from the start.
        if !example.pos.is_empty() {
            let own = example.drop_own_positives();
            if example.pos.is_empty() {
                self.counts.without_positives += 1;
                return Ok(());
            }
            self.counts.own_positives += own;
        }
        self.gathering.add(&example.query, &example.pos);
        if self.opening.deduplicate {
            let mut key = text_hash(&example.query);
            for positive in &example.pos {
                key = key.rotate_left(1) ^ text_hash(positive);
            }
            if !self.seen.insert(key) {
                self.counts.duplicates += 1;
                return Ok(());
            }
        }
        if leaking && self.drops([&example.query].into_iter().chain(&example.pos)) {
            return Ok(());
        }
        self.clean_negatives(&mut example, leaking);
        if self.opening.binary {
            example.pos_scores = vec![1.0; example.pos.len()];
            example.neg_scores = vec![0.0; example.neg.len()];
        }
        self.counts.add(&example);
        self.writer.push(&example)
    }

    /// Removes the negatives that answer the query or may not be trained on.
    fn clean_negatives(&mut self, example: &mut Example, leaking: bool) {
        self.counts.equal_negatives += example.drop_equal_negatives();
        if leaking {
            self.counts.leaking_negatives += example.retain_negatives(|text| !self.leaks(text));
        }
    }
}
