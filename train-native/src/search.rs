//! Exact search over rows that come in blocks, remembering the texts of the best only.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use kiln_embed::embedder::Similarity;
use kiln_embed::index::{TopK, dot};
use serde::Serialize;

use crate::vectors::VectorRow;

/// One hit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SearchHit {
    /// Row of the corpus, from 0.
    pub row: usize,
    /// Similarity with the query (the cosine, or the model's inner product), or a reranker's score.
    pub score: f32,
    /// Similarity with the query, where the score is a reranker's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub similarity: Option<f32>,
    /// Id of the text, if it has one.
    pub id: Option<String>,
    /// The text; empty where the index does not keep it.
    pub text: String,
}

/// A running search.
pub struct Search {
    top: TopK,
    similarity: Similarity,
    /// Id and text of the rows that are among the best so far.
    kept: HashMap<usize, (Option<String>, String)>,
}

impl Search {
    /// A search for the `k` best rows of each query by cosine or, where that is how vectors are meant to be compared, by
    /// their inner product.
    ///
    /// # Errors
    /// Queries of different widths, or none.
    pub fn new(mut queries: Vec<Vec<f32>>, k: usize, similarity: Similarity) -> Result<Self> {
        if similarity.normalizes() {
            queries.iter_mut().for_each(|query| normalize(query));
        }
        Ok(Self { top: TopK::new(&queries, k)?, similarity, kept: HashMap::new() })
    }

    /// Looks at the next rows.
    ///
    /// # Errors
    /// A row of another width than the queries.
    pub fn push(&mut self, rows: Vec<VectorRow>) -> Result<()> {
        let first = self.top.rows();
        let mut vectors = Vec::with_capacity(rows.len());
        let mut texts = Vec::with_capacity(rows.len());
        for mut row in rows {
            if self.similarity.normalizes() {
                normalize(&mut row.vector);
            }
            vectors.push(row.vector);
            texts.push((row.id, row.text));
        }
        self.top.push(&vectors)?;
        let best: HashSet<usize> = self.top.best_rows().collect();
        self.kept.retain(|row, _| best.contains(row));
        for (i, text) in texts.into_iter().enumerate() {
            if best.contains(&(first + i)) {
                self.kept.insert(first + i, text);
            }
        }
        Ok(())
    }

    /// The hits of each query, best first.
    pub fn finish(self) -> Vec<Vec<SearchHit>> {
        let Self { top, kept, .. } = self;
        let with_text = |hit: kiln_embed::index::Hit| {
            let (id, text) = kept.get(&hit.row).cloned().unwrap_or_default();
            SearchHit { row: hit.row, score: hit.score, similarity: None, id, text }
        };
        top.finish().into_iter().map(|hits| hits.into_iter().map(with_text).collect()).collect()
    }
}

/// Divides a vector by its norm; a zero vector stays zero.
pub fn normalize(vector: &mut [f32]) {
    let norm = dot(vector, vector).sqrt();
    if norm > 0.0 {
        vector.iter_mut().for_each(|value| *value /= norm);
    }
}
