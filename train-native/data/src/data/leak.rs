//! Keeps evaluation texts out of the training data: exact matches, and near ones by BM25.

use std::collections::HashSet;

use super::text_hash;
use crate::text::{Columns, TextFile};
use anyhow::Result;
use bm25::{DefaultTokenizer, Embedder, EmbedderBuilder, Embedding, Language, Scorer};

/// An index of evaluation texts.
pub struct LeakFilter {
    exact: HashSet<u128>,
    near: Option<Near>,
}

/// BM25 over the evaluation texts, with the score that each gives itself.
struct Near {
    embedder: Embedder,
    scorer: Scorer<u32>,
    own: Vec<f32>,
    threshold: f32,
}

impl LeakFilter {
    /// An index of texts. With a threshold, a text leaks too where its BM25 score for an
    /// evaluation text reaches that share of the score that the evaluation text gives itself.
    pub fn new(texts: impl IntoIterator<Item = String>, threshold: Option<f32>) -> Self {
        let mut exact = HashSet::new();
        let mut all = Vec::new();
        for text in texts {
            if exact.insert(text_hash(&text)) && threshold.is_some() {
                all.push(text);
            }
        }
        Self { exact, near: threshold.map(|threshold| Near::new(&all, threshold)) }
    }

    /// An index of the texts of files: all text fields of JSON lines, CSV and Parquet, or lines.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn of_files(paths: &[String], threshold: Option<f32>) -> Result<Self> {
        let mut texts = Vec::new();
        for path in paths {
            let file = TextFile::open(path, Columns::required(&[]))?;
            if file.format() == crate::text::Format::Lines {
                for record in file.records()? {
                    texts.push(record?.joined());
                }
                continue;
            }
            for object in file.objects()? {
                for (name, value) in object?.fields {
                    if matches!(name.as_str(), "_id" | "id" | "title") {
                        continue;
                    }
                    match value {
                        serde_json::Value::String(text) => texts.push(text),
                        serde_json::Value::Array(all) => {
                            texts.extend(
                                all.iter().filter_map(|one| Some(one.as_str()?.to_string())),
                            );
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(Self::new(texts.into_iter().filter(|text| !text.trim().is_empty()), threshold))
    }

    /// Number of distinct evaluation texts.
    pub fn len(&self) -> usize {
        self.exact.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty()
    }

    /// Whether a text is an evaluation text, or near to one.
    pub fn leaks(&self, text: &str) -> bool {
        self.exact.contains(&text_hash(text))
            || self.near.as_ref().is_some_and(|near| near.leaks(text))
    }
}

impl Near {
    fn new(texts: &[String], threshold: f32) -> Self {
        // Words as they are: near is what repeats a text, not what means the same. Without stop words,
        // which would make every text a candidate.
        let tokenizer =
            DefaultTokenizer::builder().language_mode(Language::English).stemming(false).build();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let embedder: Embedder =
            EmbedderBuilder::with_tokenizer_and_fit_to_corpus(tokenizer, &texts).build();
        let mut near = Self { embedder, scorer: Scorer::new(), own: Vec::new(), threshold };
        for (id, text) in (0..).zip(&texts) {
            near.scorer.upsert(&id, near.embedder.embed(text));
        }
        // Once all texts are in, because how rare a word is decides what it is worth.
        let own = |(id, text): (u32, &&str)| near.scorer.score(&id, &near.query(text));
        near.own = (0..).zip(&texts).map(|one| own(one).unwrap_or(0.0)).collect();
        near
    }

    /// The words of a text, each once.
    fn query(&self, text: &str) -> Embedding {
        let mut seen = HashSet::new();
        let mut words = self.embedder.embed(text);
        words.0.retain(|word| seen.insert(word.index));
        words
    }

    fn leaks(&self, text: &str) -> bool {
        // The best first; another may reach a larger share of its own score.
        self.scorer.matches(&self.query(text)).iter().any(|hit| {
            let own = self.own.get(hit.id as usize).copied().unwrap_or(0.0);
            own > 0.0 && hit.score >= self.threshold * own
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: [&str; 3] = [
        "How do I reset the password of my account?",
        "The river floods the lower streets every spring.",
        "A violinist from a small town wins the prize.",
    ];

    #[test]
    fn exact_and_near_texts_leak() {
        let texts = || TEXTS.map(String::from);
        let exact = LeakFilter::new(texts(), None);
        assert!(exact.leaks(TEXTS[0]));
        assert!(exact.leaks(" how do i reset the password of my account? "), "case and space");
        assert!(!exact.leaks("the password of my account, how do I reset"));

        let near = LeakFilter::new(texts(), Some(0.8));
        assert!(near.leaks("the password of my account, how do I reset"));
        assert!(!near.leaks("the password is wrong"));
        assert!(!near.leaks("granite walls") && !near.leaks(""));
    }
}
