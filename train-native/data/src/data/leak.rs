//! Keeps evaluation texts out of the training data: exact matches, and near ones by BM25.

use std::collections::{HashMap, HashSet};

use super::format::{Fields, LABELS, TITLED, joined, passage};
use super::text_hash;
use crate::recipe::LeakRule;
use crate::text::{Columns, TextFile};
use anyhow::Result;
use bm25::{DefaultTokenizer, Embedder, EmbedderBuilder, Language, TokenEmbedding};
use serde_json::Value;

/// An index of evaluation texts.
pub struct LeakFilter {
    exact: HashSet<u128>,
    near: Option<Near>,
}

/// BM25 over the evaluation texts, with the score that each gives itself.
struct Near {
    embedder: Embedder,
    /// Which texts have a word, and what it adds to their scores.
    postings: HashMap<u32, Vec<(usize, f32)>>,
    own: Vec<f32>,
}

impl LeakFilter {
    /// An index of texts, with `near` also for [`LeakRule::Bm25`]. English stop words count for nothing
    /// there; a text that has one other word leaks only as it is.
    pub fn new(texts: impl IntoIterator<Item = String>, near: bool) -> Self {
        let mut exact = HashSet::new();
        let mut all = Vec::new();
        for text in texts {
            if exact.insert(text_hash(&text)) && near {
                all.push(text);
            }
        }
        Self { exact, near: near.then(|| Near::new(&all)) }
    }

    /// An index of the texts of files: all text fields of JSON lines, CSV and Parquet, or lines. What stands below a title
    /// counts with it too, as training reads it; the title itself where it is a text of its own (a labelled row's, a
    /// paper's). Labels are no texts.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn of_files(paths: &[String], near: bool) -> Result<Self> {
        Self::of_files_joined(paths, &[], near)
    }

    /// As [`Self::of_files`], and also what each of some lists of columns makes of a row, as a source's
    /// [`fields`](crate::recipe::DataSource::fields) does.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn of_files_joined(paths: &[String], columns: &[Vec<String>], near: bool) -> Result<Self> {
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
                texts_of(&object?.fields, columns, &mut texts);
            }
        }
        Ok(Self::new(texts.into_iter().filter(|text| !text.trim().is_empty()), near))
    }

    /// Number of distinct evaluation texts.
    pub fn len(&self) -> usize {
        self.exact.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty()
    }

    /// Whether a text is an evaluation text, or nearer to one than a rule allows. Without the index
    /// of near texts [`LeakRule::Bm25`] is [`LeakRule::Exact`].
    pub fn leaks(&self, text: &str, rule: LeakRule) -> bool {
        match (rule, &self.near) {
            (LeakRule::None, _) => false,
            (LeakRule::Bm25(share), Some(near)) => self.is_one(text) || near.leaks(text, share),
            (LeakRule::Exact | LeakRule::Bm25(_), _) => self.is_one(text),
        }
    }

    fn is_one(&self, text: &str) -> bool {
        self.exact.contains(&text_hash(text))
    }
}

/// The texts of a row of evaluation data, in the forms that training would read them in.
fn texts_of(fields: &Fields, columns: &[Vec<String>], texts: &mut Vec<String>) {
    // Training refuses columns that hold no text.
    texts.extend(columns.iter().filter_map(|names| joined(fields, names).ok()));
    let is_label = |name: &str| LABELS.contains(&name);
    let title = fields.get("title").and_then(Value::as_str).map(str::trim);
    let title = title.filter(|title| !title.is_empty());
    let alone = fields.contains_key("abstract") || fields.keys().any(|name| is_label(name));
    texts.extend(title.filter(|_| alone).map(String::from));
    for (name, value) in fields {
        let name = name.as_str();
        if matches!(name, "_id" | "id" | "title") || is_label(name) {
            continue;
        }
        let values = match value {
            Value::Array(all) => all.as_slice(),
            one => std::slice::from_ref(one),
        };
        for value in values {
            // A passage with a title of its own, and what it says.
            let own =
                [passage(value), value.get("text").and_then(|text| Some(text.as_str()?.into()))];
            for text in own.into_iter().flatten() {
                let both = title.filter(|_| TITLED.contains(&name));
                texts.extend(both.map(|title| format!("{title} {text}")));
                texts.push(text);
            }
        }
    }
}

impl Near {
    fn new(texts: &[String]) -> Self {
        // Words as they are: near is what repeats a text, not what means the same. Without stop words,
        // which would make every text a candidate.
        let tokenizer =
            DefaultTokenizer::builder().language_mode(Language::English).stemming(false).build();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let embedder: Embedder =
            EmbedderBuilder::with_tokenizer_and_fit_to_corpus(tokenizer, &texts).build();
        let mut near = Self { embedder, postings: HashMap::new(), own: vec![0.0; texts.len()] };
        let mut words = vec![0; texts.len()];
        for (row, text) in texts.iter().enumerate() {
            for word in near.words(text) {
                near.postings.entry(word.index).or_default().push((row, word.value));
                words[row] += 1;
            }
        }
        // Once all texts are in, because how rare a word is decides what it is worth.
        for posting in near.postings.values_mut() {
            let (with, all) = (posting.len() as f32, texts.len() as f32);
            let rarity = ((all - with + 0.5) / (with + 0.5)).ln_1p();
            for (row, value) in posting {
                *value *= rarity;
                near.own[*row] += *value;
            }
        }
        // Whatever has the one word of a text repeats all of it, and says nothing like it.
        for (own, words) in near.own.iter_mut().zip(words) {
            if words < 2 {
                *own = f32::INFINITY;
            }
        }
        near
    }

    /// The words of a text, each once.
    fn words(&self, text: &str) -> Vec<TokenEmbedding> {
        let mut seen = HashSet::new();
        let mut words = self.embedder.embed(text).0;
        words.retain(|word| seen.insert(word.index));
        words
    }

    fn leaks(&self, text: &str, share: f32) -> bool {
        let mut scores: HashMap<usize, f32> = HashMap::new();
        let words = self.words(text);
        let postings = words.iter().filter_map(|word| self.postings.get(&word.index)).flatten();
        for (row, value) in postings {
            *scores.entry(*row).or_default() += value;
        }
        // Sums of the same words in another order differ in the last bits.
        let share = share * (1.0 - 1e-5);
        scores.into_iter().any(|(row, score)| score >= share * self.own[row])
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
    fn rows_leak_in_the_forms_that_training_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.jsonl");
        let rows = [
            r#"{"title": "Sails", "abstract": "Sails are hoisted.", "label": "ships"}"#,
            r#"{"_id": "1", "title": "Paris", "text": "The city floods."}"#,
            r#"{"query": "who hoists", "positive_passages": [{"docid": "7", "title": "Crew", "text": "The crew hoists."}]}"#,
            r#"{"sentences": ["one line", "another"], "labels": ["1", "2"]}"#,
        ];
        std::fs::write(&path, rows.join("\n")).unwrap();
        let filter = LeakFilter::of_files(&[path.to_string_lossy().into_owned()], false).unwrap();
        for (text, leaks) in [
            ("Sails Sails are hoisted.", true),
            ("Sails are hoisted.", true),
            ("Sails", true),
            ("ships", false),
            ("Paris The city floods.", true),
            ("The city floods.", true),
            // What an article is called is a question of many.
            ("Paris", false),
            ("who hoists", true),
            ("Crew The crew hoists.", true),
            ("The crew hoists.", true),
            ("one line", true),
            ("2", false),
        ] {
            assert_eq!(filter.leaks(text, LeakRule::Exact), leaks, "{text}");
        }
    }

    #[test]
    fn rows_leak_in_the_columns_that_a_source_joins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.jsonl");
        std::fs::write(&path, r#"{"headline": "Storm", "body": "Roofs fly.", "year": 7}"#).unwrap();
        let paths = [path.to_string_lossy().into_owned()];
        let columns = [["headline", "body"], ["body", "year"]];
        let columns: [Vec<String>; 2] = columns.map(|all| all.map(String::from).into());
        let filter = LeakFilter::of_files_joined(&paths, &columns, false).unwrap();
        for text in ["Storm Roofs fly.", "Storm", "Roofs fly."] {
            assert!(filter.leaks(text, LeakRule::Exact), "{text}");
        }
        assert!(!filter.leaks("Roofs fly. Storm", LeakRule::Exact));
        let alone = LeakFilter::of_files(&paths, false).unwrap();
        assert!(!alone.leaks("Storm Roofs fly.", LeakRule::Exact));
    }

    #[test]
    fn exact_and_near_texts_leak() {
        let texts = || TEXTS.map(String::from);
        let exact = LeakFilter::new(texts(), false);
        let leaks = |text: &str| exact.leaks(text, LeakRule::Exact);
        assert!(leaks(TEXTS[0]));
        assert!(leaks(" how do i reset the password of my account? "), "case and space");
        assert!(!leaks("the password of my account, how do I reset"));

        let both = LeakFilter::new(texts(), true);
        let leaks = |text: &str| both.leaks(text, LeakRule::Bm25(0.8));
        assert!(leaks(TEXTS[0]) && leaks("the password of my account, how do I reset"));
        assert!(!leaks("the password is wrong"));
        assert!(!leaks("granite walls") && !leaks(""));
        // The same index by other rules.
        assert!(both.leaks("the password is wrong", LeakRule::Bm25(0.2)));
        assert!(!both.leaks("the password of my account, how do I reset", LeakRule::Exact));
        assert!(!both.leaks(TEXTS[0], LeakRule::None));

        let one_word = LeakFilter::new(["What is photosynthesis?".into()], true);
        assert!(one_word.leaks("what is photosynthesis?", LeakRule::Bm25(0.8)));
        assert!(!one_word.leaks("photosynthesis feeds the kal lily", LeakRule::Bm25(0.8)));
    }
}
