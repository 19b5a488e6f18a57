//! Search by words (BM25), for comparison: the `bm25` crate with English stems and stop words.

use std::ops::Range;

use bm25::{
    DefaultTokenizer, Document, Language, SearchEngine, SearchEngineBuilder, Tokenizer as _,
};
use unicode_segmentation::UnicodeSegmentation as _;

use crate::kiln::{Hit, Passage};

/// Passages by their words.
pub(crate) struct Words {
    engine: SearchEngine<u32>,
    tokenizer: DefaultTokenizer,
}

impl Words {
    /// As Lucene's settings for short texts: k1 0.9, b 0.4.
    pub(crate) fn new(passages: &[(u32, Passage)]) -> Self {
        let documents = passages.iter().map(|(id, passage)| Document {
            id: *id,
            contents: format!("{} {}", passage.title, passage.text),
        });
        let engine = SearchEngineBuilder::with_documents(Language::English, documents)
            .k1(0.9)
            .b(0.4)
            .build();
        Self { engine, tokenizer: DefaultTokenizer::new(Language::English) }
    }

    /// The k best passages with a word of the query; of equal scores the earlier one comes first.
    pub(crate) fn search(&self, query: &str, k: usize) -> Vec<Hit> {
        let mut hits: Vec<Hit> = self
            .engine
            .search(query, None)
            .into_iter()
            .map(|found| Hit { id: found.document.id, score: found.score })
            .collect();
        hits.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.id.cmp(&b.id)));
        hits.truncate(k);
        hits
    }

    /// Where words of the query stand in a text.
    pub(crate) fn matches(&self, query: &str, text: &str) -> Vec<Range<usize>> {
        let asked = self.tokenizer.tokenize(query);
        text.unicode_word_indices()
            .filter(|(_, word)| {
                self.tokenizer.tokenize(word).iter().any(|stem| asked.contains(stem))
            })
            .map(|(at, word)| at..at + word.len())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_by_their_stems_and_marked() {
        let passage = |title: &str, text: &str| Passage {
            title: title.into(),
            text: text.into(),
            source: String::new(),
        };
        let all = [
            (3, passage("Boats", "A boat and the sea")),
            (5, passage("Bread", "The baker bakes")),
            (9, passage("Boats", "A boat and the sea")),
        ];
        let words = Words::new(&all);
        let ids = |query: &str, k| -> Vec<u32> {
            words.search(query, k).iter().map(|hit| hit.id).collect()
        };
        assert_eq!(ids("boating", 5), [3, 9]);
        assert_eq!(ids("boating", 1), [3]);
        assert_eq!(ids("baking the bread", 5), [5]);
        assert!(ids("the of and", 5).is_empty() && ids("", 5).is_empty());
        assert_eq!(words.matches("baking", "The baker bakes"), vec![10..15]);
    }
}
