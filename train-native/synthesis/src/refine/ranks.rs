//! What a teacher says about queries and their passages.

use std::collections::HashMap;

use kiln_data::data::text_hash;

use super::row::hash_of;

/// A passage among a query's nearest texts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rank {
    /// The teacher's score.
    pub score: f32,
    /// Its place, from 1; one more than [`Ranks::depth`] where it is not among them.
    pub rank: usize,
}

/// The ranks of all pairs of a data set; 24 bytes a pair.
#[derive(Debug, Clone, Default)]
pub struct Ranks {
    /// Name of the teacher.
    pub teacher: String,
    /// The last place that is told apart.
    pub depth: usize,
    /// Texts that it ranked.
    pub corpus: usize,
    ranks: HashMap<u128, (f32, u32)>,
}

fn pair(query: &str, passage: &str) -> u128 {
    hash_of([text_hash(query), text_hash(passage)])
}

impl Ranks {
    /// No pairs yet, of a teacher that ranked so many texts and whose ranks are told apart up to a depth.
    pub fn new(teacher: String, depth: usize, corpus: usize) -> Self {
        Self { teacher, depth, corpus, ranks: HashMap::new() }
    }

    /// Adds a pair's.
    pub fn insert(&mut self, query: &str, passage: &str, rank: Rank) {
        self.ranks.insert(pair(query, passage), (rank.score, rank.rank as u32));
    }

    /// A pair's. A query that is its own positive has none, nor has a negative that another row has as an
    /// answer to the query.
    pub fn of(&self, query: &str, passage: &str) -> Option<Rank> {
        let (score, rank) = *self.ranks.get(&pair(query, passage))?;
        Some(Rank { score, rank: rank as usize })
    }
}
