//! What a teacher says about queries and their passages.

use std::collections::HashMap;

use kiln_data::data::text_hash;

use super::row::hash_of;

/// What a passage is to its query. A text may be both, in two rows, and then has a rank as either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// An answer.
    Positive,
    /// None.
    Negative,
}

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

fn slot(role: Role, query: &str, passage: &str) -> u128 {
    hash_of([role as u128, text_hash(query), text_hash(passage)])
}

impl Ranks {
    /// No pairs yet, of a teacher that ranked so many texts and whose ranks are told apart up to a depth.
    pub fn new(teacher: String, depth: usize, corpus: usize) -> Self {
        Self { teacher, depth, corpus, ranks: HashMap::new() }
    }

    /// Adds a pair's.
    pub fn insert(&mut self, role: Role, query: &str, passage: &str, rank: Rank) {
        self.ranks.insert(slot(role, query, passage), (rank.score, rank.rank as u32));
    }

    /// A pair's. A query that is its own positive has none, nor has a negative that another row has as an
    /// answer to the query.
    pub fn of(&self, role: Role, query: &str, passage: &str) -> Option<Rank> {
        let (score, rank) = *self.ranks.get(&slot(role, query, passage))?;
        Some(Rank { score, rank: rank as usize })
    }

    /// Whether a place is farther than all that are told apart, and so any number.
    pub fn is_far(&self, rank: usize) -> bool {
        rank > self.depth
    }
}
