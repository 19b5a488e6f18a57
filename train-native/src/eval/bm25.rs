//! BM25 rankings by the `bm25` crate: the baseline that matches words.

use bm25::{Language, SearchEngineBuilder};

/// The `k` best corpus rows of each query, with English stemming and stop words, k1 0.9, b 0.4.
pub fn bm25_rankings(queries: &[String], corpus: &[String], k: usize) -> Vec<Vec<usize>> {
    let engine =
        SearchEngineBuilder::<u32>::with_corpus(Language::English, corpus).k1(0.9).b(0.4).build();
    let row = |hit: bm25::SearchResult<u32>| hit.document.id as usize;
    queries.iter().map(|query| engine.search(query, k).into_iter().map(row).collect()).collect()
}
