//! Exact search on all cores: the best corpus rows of many queries, block by block.

use kiln_embed::index::{Hit, TopK};
use rayon::prelude::*;

/// Queries that one core looks after at a time.
const QUERIES: usize = 32;

/// As [`TopK`], with the queries spread over the cores.
pub struct ParallelTopK(Vec<TopK>);

impl ParallelTopK {
    /// A search for the `k` nearest rows of each query.
    ///
    /// # Errors
    /// Queries of different widths.
    pub fn new(queries: &[Vec<f32>], k: usize) -> kiln_embed::Result<Self> {
        queries.chunks(QUERIES).map(|some| TopK::new(some, k)).collect::<Result<_, _>>().map(Self)
    }

    /// Looks at the next rows of the corpus.
    ///
    /// # Errors
    /// Rows of another width.
    pub fn push(&mut self, rows: &[Vec<f32>]) -> kiln_embed::Result<()> {
        self.0.par_iter_mut().try_for_each(|some| some.push(rows))
    }

    /// The hits of each query, best first.
    pub fn finish(self) -> Vec<Vec<Hit>> {
        self.0.into_par_iter().flat_map_iter(TopK::finish).collect()
    }
}
