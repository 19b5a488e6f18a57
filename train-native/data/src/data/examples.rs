//! Where a sampler takes its examples from: a set on disk, or one in memory.

use anyhow::{Result, bail};
use rand::Rng as _;
use rand_chacha::ChaCha8Rng;

use super::known::Gathering;
use super::{Example, KnownPositives, text_key};
use crate::recipe::DataSource;

/// A set of examples that batches are drawn from.
pub trait Examples {
    /// Number of examples.
    fn count(&self) -> usize;

    /// An example by its number, less the negatives that answer its query by another row.
    ///
    /// # Errors
    /// It cannot be read.
    fn example(&self, i: usize) -> Result<Example>;

    /// The recipe's entry.
    fn source(&self) -> &DataSource;

    /// What the rows say about which texts answer which queries.
    fn known(&self) -> &KnownPositives;

    /// Highest level of a negative.
    fn levels(&self) -> usize;

    /// Whether its documents are names of labels, each of which stands in many of its examples.
    fn documents_repeat(&self) -> bool {
        false
    }

    /// A text that stands in where a query has too few negatives.
    ///
    /// # Errors
    /// It cannot be read.
    fn stand_in(&self, rng: &mut ChaCha8Rng) -> Result<Option<String>>;
}

/// A set of examples in memory, cleaned as one from a file is.
#[derive(Debug, Default)]
pub struct MemorySet {
    examples: Vec<Example>,
    source: DataSource,
    known: KnownPositives,
    levels: usize,
}

impl MemorySet {
    /// A set of examples, in their order.
    ///
    /// # Errors
    /// No example whose positive is another text than its query.
    pub fn new(examples: impl IntoIterator<Item = Example>, source: DataSource) -> Result<Self> {
        let mut set = Self { source, ..Self::default() };
        let mut gathering = Gathering::default();
        for mut example in examples {
            example.drop_own_positives();
            if example.pos.is_empty() {
                continue;
            }
            gathering.add(&example.query, &example.pos);
            example.drop_equal_negatives();
            set.examples.push(example);
        }
        if set.examples.is_empty() {
            bail!("no example has a positive other than its query");
        }
        set.known = gathering.finish();
        let levels = |example: &Example| (0..example.neg.len()).map(|i| example.level(i)).max();
        set.levels = set.examples.iter().filter_map(levels).max().unwrap_or(0);
        Ok(set)
    }
}

impl Examples for MemorySet {
    fn count(&self) -> usize {
        self.examples.len()
    }

    fn example(&self, i: usize) -> Result<Example> {
        let mut example = self.examples[i].clone();
        self.known.drop_positives(&mut example);
        Ok(example)
    }

    fn source(&self) -> &DataSource {
        &self.source
    }

    fn known(&self) -> &KnownPositives {
        &self.known
    }

    fn levels(&self) -> usize {
        self.levels
    }

    fn stand_in(&self, rng: &mut ChaCha8Rng) -> Result<Option<String>> {
        let drawn = rng.random_range(0..self.examples.len());
        Ok(self.examples[drawn].pos.first().cloned())
    }
}

impl KnownPositives {
    /// Removes the negatives that answer the query by another row, and says how many there were.
    pub(super) fn drop_positives(&self, example: &mut Example) -> usize {
        if example.neg.is_empty() || self.is_empty() {
            return 0;
        }
        let positives = self.several(text_key(&example.query));
        match positives.is_empty() {
            true => 0,
            false => example.retain_negatives(|text| !positives.contains(&text_key(text))),
        }
    }
}
