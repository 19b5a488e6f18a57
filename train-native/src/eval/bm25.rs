//! BM25 rankings by the `bm25` crate: the baseline that matches words.

use bm25::{Language, SearchEngineBuilder, SearchResult};

/// The `k` best corpus rows of each query, with English stemming and stop words, k1 0.9, b 0.4;
/// of equal scores the earlier row comes first.
pub fn bm25_rankings(queries: &[String], corpus: &[String], k: usize) -> Vec<Vec<usize>> {
    let engine =
        SearchEngineBuilder::<u32>::with_corpus(Language::English, corpus).k1(0.9).b(0.4).build();
    let ranking = |query: &String| {
        // All that match, because the engine cuts ties in no fixed order.
        let mut hits: Vec<SearchResult<u32>> = engine.search(query, None);
        hits.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.document.id.cmp(&b.document.id)));
        hits.into_iter().take(k).map(|hit| hit.document.id as usize).collect()
    };
    queries.iter().map(ranking).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_decide_and_ties_go_to_the_earlier_row() {
        let texts = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect::<Vec<_>>();
        let corpus =
            texts(&["a red boat", "a green house", "a red boat", "a boat house", "a red boat"]);
        let actual = bm25_rankings(&texts(&["red boats", "green", "moon"]), &corpus, 3);
        assert_eq!(actual[0], [0, 2, 4]);
        assert_eq!(actual[1], [1]);
        assert!(actual[2].is_empty());
    }
}
