//! Keeps evaluation texts out of the training data: exact matches, and near ones by BM25.

use std::collections::HashSet;

use anyhow::{Context as _, Result};
use tantivy::collector::TopDocs;
use tantivy::query::{BooleanQuery, Occur, Query, TermQuery};
use tantivy::schema::{Field, IndexRecordOption, Schema, TEXT};
use tantivy::tokenizer::TextAnalyzer;
use tantivy::{Index, IndexWriter, Searcher, TantivyDocument, Term, doc};

use super::text_hash;
use crate::text::{Columns, TextFile};

/// Memory that tantivy may take while it indexes the evaluation texts.
const INDEX_BYTES: usize = 50_000_000;

/// An index of evaluation texts.
pub struct LeakFilter {
    exact: HashSet<u128>,
    near: Option<Near>,
}

struct Near {
    searcher: Searcher,
    body: Field,
    own: Field,
    analyzer: TextAnalyzer,
    threshold: f32,
}

impl LeakFilter {
    /// An index of texts. With a threshold, a text leaks too where its BM25 score for an
    /// evaluation text reaches that share of the score that the evaluation text gives itself.
    ///
    /// # Errors
    /// What tantivy refuses.
    pub fn new(texts: impl IntoIterator<Item = String>, threshold: Option<f32>) -> Result<Self> {
        let mut schema = Schema::builder();
        let body = schema.add_text_field("body", TEXT);
        let own = schema.add_f64_field("own", tantivy::schema::STORED);
        let index = Index::create_in_ram(schema.build());
        let mut exact = HashSet::new();
        let mut all = Vec::new();
        for text in texts {
            if exact.insert(text_hash(&text)) && threshold.is_some() {
                all.push(text);
            }
        }
        let Some(threshold) = threshold else {
            return Ok(Self { exact, near: None });
        };
        // Twice: scores need the whole collection's statistics, and the documents their own score.
        let write = |scores: &[f32]| -> Result<Searcher> {
            let mut writer: IndexWriter = index.writer_with_num_threads(1, INDEX_BYTES)?;
            writer.delete_all_documents()?;
            for (i, text) in all.iter().enumerate() {
                let score = f64::from(scores.get(i).copied().unwrap_or(0.0));
                writer.add_document(doc!(body => text.as_str(), own => score))?;
            }
            writer.commit()?;
            Ok(index.reader()?.searcher())
        };
        let analyzer = index.tokenizer_for_field(body)?;
        let near = Near { searcher: write(&[])?, body, own, analyzer, threshold };
        let scores: Vec<f32> = all
            .iter()
            .map(|text| Ok(near.best(text)?.map_or(0.0, |(score, _)| score)))
            .collect::<Result<_>>()?;
        let searcher = write(&scores)?;
        Ok(Self { exact, near: Some(Near { searcher, ..near }) })
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
        Self::new(texts.into_iter().filter(|text| !text.trim().is_empty()), threshold)
            .context("the leak filter")
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
    ///
    /// # Errors
    /// What tantivy refuses.
    pub fn leaks(&self, text: &str) -> Result<bool> {
        if self.exact.contains(&text_hash(text)) {
            return Ok(true);
        }
        match &self.near {
            Some(near) => near.leaks(text),
            None => Ok(false),
        }
    }
}

impl Near {
    /// The best evaluation text for a text: its score, and the score that it gives itself.
    fn best(&self, text: &str) -> Result<Option<(f32, f32)>> {
        let mut analyzer = self.analyzer.clone();
        let mut tokens = analyzer.token_stream(text);
        let mut terms: Vec<(Occur, Box<dyn Query>)> = Vec::new();
        let mut seen = HashSet::new();
        while let Some(token) = tokens.next() {
            if seen.insert(token.text.clone()) {
                let term = Term::from_field_text(self.body, &token.text);
                let query = TermQuery::new(term, IndexRecordOption::WithFreqs);
                terms.push((Occur::Should, Box::new(query)));
            }
        }
        if terms.is_empty() {
            return Ok(None);
        }
        let top = TopDocs::with_limit(1).order_by_score();
        let result = self.searcher.search(&BooleanQuery::new(terms), &top)?;
        let Some((score, address)) = result.into_iter().next() else {
            return Ok(None);
        };
        let document: TantivyDocument = self.searcher.doc(address)?;
        let own = document.get_first(self.own).and_then(|value| {
            use tantivy::schema::Value as _;
            value.as_f64()
        });
        Ok(Some((score, own.unwrap_or(0.0) as f32)))
    }

    fn leaks(&self, text: &str) -> Result<bool> {
        Ok(self.best(text)?.is_some_and(|(score, own)| own > 0.0 && score >= self.threshold * own))
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
        let exact = LeakFilter::new(texts(), None).unwrap();
        assert!(exact.leaks(TEXTS[0]).unwrap());
        assert!(
            exact.leaks(" how do i reset the password of my account? ").unwrap(),
            "case and space"
        );
        assert!(!exact.leaks("the password of my account, how do I reset").unwrap());

        let near = LeakFilter::new(texts(), Some(0.8)).unwrap();
        assert!(near.leaks("the password of my account, how do I reset").unwrap());
        assert!(!near.leaks("the password is wrong").unwrap());
        assert!(!near.leaks("granite walls").unwrap() && !near.leaks("").unwrap());
    }
}
