//! Which questions are trained on, and which are kept back, by the document that they are about.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use kiln_synthesis::documents::{Passage, Split, read_passages};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::text::{Columns, TextFile};
use crate::vectors::{NewFile, write_atomically};

/// Passages among which the questions of dev are looked for; each evaluation while training embeds them all.
const MOST_DEV_PASSAGES: usize = 1000;
/// Questions of dev.
const MOST_DEV_QUESTIONS: usize = 200;
/// What a row of documents that follow one another is called, which no one would ask.
const NEIGHBOURS: &str = "neighbours";

/// How many questions there are, and what they are about.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Questions {
    /// Documents.
    pub documents: usize,
    /// Passages.
    pub passages: usize,
    /// Examples to train on.
    pub train: usize,
    /// Questions to choose a checkpoint by.
    pub dev: usize,
    /// Questions to judge by.
    pub test: usize,
    /// Licences that the documents name, each with its number of documents.
    pub licences: std::collections::BTreeMap<String, usize>,
    /// Documents that name none.
    pub without_licence: usize,
}

/// Writes the corpus that is searched: passages with title and text, or without titles, where those are the
/// questions.
///
/// # Errors
/// Passages that cannot be read, or a folder that cannot be written.
pub fn texts_of_corpus(passages: &Path, output: &Path, titles: bool) -> Result<()> {
    let mut lines = NewFile::create(output)?;
    for passage in read_passages(passages)? {
        lines.line(&document(&passage?, titles))?;
    }
    lines.finish()
}

fn document(passage: &Passage, titles: bool) -> Value {
    let title = if titles { passage.title.as_str() } else { "" };
    json!({"_id": passage.id, "title": title, "text": passage.text})
}

/// A question for dev or test.
struct Question {
    text: String,
    passage: String,
}

impl Questions {
    /// Writes `train.jsonl`, `train-corpus.jsonl`, and the BEIR folders `dev` and `test` into a folder.
    ///
    /// # Errors
    /// Files that cannot be read or written, or a part without a question.
    pub fn split(rows: &Path, passages: &Path, folder: &Path, titles: bool) -> Result<Self> {
        let mut done = Self::default();
        let mut train = NewFile::create(&folder.join("train.jsonl"))?;
        let (mut dev, mut test) = (Vec::new(), Vec::new());
        let file = TextFile::open(&rows.to_string_lossy(), Columns::required(&[]))?;
        for object in file.objects()? {
            let object = object?;
            let place = || format!("{}:{}", rows.display(), object.number);
            let fields = object.fields;
            let text = |name: &str| fields.get(name).and_then(Value::as_str).map(String::from);
            let split: Split = fields
                .get("split")
                .cloned()
                .map(serde_json::from_value)
                .transpose()
                .with_context(place)?
                .unwrap_or_default();
            if split == Split::Train {
                train.line(&example(&fields))?;
                done.train += 1;
                continue;
            }
            if text("type").as_deref() == Some(NEIGHBOURS) {
                continue;
            }
            let (Some(query), Some(passage)) = (text("query"), text("source")) else {
                bail!("{}: has no query, or does not say of which passage it is (source)", place());
            };
            let kept = if split == Split::Dev { &mut dev } else { &mut test };
            kept.push(Question { text: query, passage });
        }
        for (name, count) in [
            ("train on", done.train),
            ("choose by (dev)", dev.len()),
            ("judge by (test)", test.len()),
        ] {
            if count == 0 {
                bail!(
                    "no question is left to {name}; more documents are needed, or other shares (--split), or milder \
                     filters"
                );
            }
        }
        dev.truncate(MOST_DEV_QUESTIONS);
        (done.dev, done.test) = (dev.len(), test.len());
        train.finish()?;
        done.corpora(passages, folder, titles, &dev)?;
        write_set(&folder.join("dev"), "dev", &dev)?;
        write_set(&folder.join("test"), "test", &test)?;
        Ok(done)
    }

    /// The corpora of training, dev and test.
    fn corpora(
        &mut self,
        passages: &Path,
        folder: &Path,
        titles: bool,
        dev: &[Question],
    ) -> Result<()> {
        for name in ["dev", "test"] {
            let qrels = folder.join(name).join("qrels");
            std::fs::create_dir_all(&qrels).with_context(|| qrels.display().to_string())?;
        }
        let wanted: HashSet<&str> = dev.iter().map(|question| question.passage.as_str()).collect();
        let mut few = NewFile::create(&folder.join("dev/corpus.jsonl"))?;
        let mut all = NewFile::create(&folder.join("test/corpus.jsonl"))?;
        let mut train = NewFile::create(&folder.join("train-corpus.jsonl"))?;
        let mut others = 0;
        let mut documents: HashMap<String, bool> = HashMap::new();
        for passage in read_passages(passages)? {
            let passage = passage?;
            let document = document(&passage, titles);
            self.passages += 1;
            if !documents.contains_key(&passage.document) {
                match &passage.licence {
                    Some(licence) => *self.licences.entry(licence.clone()).or_default() += 1,
                    None => self.without_licence += 1,
                }
                documents.insert(passage.document.clone(), true);
            }
            all.line(&document)?;
            let is_wanted = wanted.contains(passage.id.as_str());
            if is_wanted || others + wanted.len() < MOST_DEV_PASSAGES {
                others += usize::from(!is_wanted);
                few.line(&document)?;
            }
            // What is tested is no negative either.
            if passage.split == Split::Train {
                train.line(&document)?;
            }
        }
        self.documents = documents.len();
        few.finish()?;
        all.finish()?;
        train.finish()
    }
}

/// What training takes of a row. Instructions would become prompts that nobody writes who searches later.
fn example(fields: &Map<String, Value>) -> Value {
    let names = ["query", "pos", "neg", "negatives"];
    let kept =
        names.into_iter().filter_map(|name| Some((name.to_string(), fields.get(name)?.clone())));
    Value::Object(kept.collect())
}

/// Queries and judgements of a BEIR folder.
fn write_set(folder: &Path, split: &str, questions: &[Question]) -> Result<()> {
    let mut queries = NewFile::create(&folder.join("queries.jsonl"))?;
    let mut qrels = String::from("query-id\tcorpus-id\tscore\n");
    for (i, question) in questions.iter().enumerate() {
        queries.line(&json!({"_id": format!("q{i}"), "text": question.text}))?;
        // A tab in a document's name would be another column.
        if question.passage.contains(['\t', '\n', '\r']) {
            bail!(
                "{:?}: a document whose name holds a tab cannot be judged by; rename it",
                question.passage
            );
        }
        qrels += &format!("q{i}\t{}\t1\n", question.passage);
    }
    queries.finish()?;
    write_atomically(&folder.join("qrels").join(format!("{split}.tsv")), qrels.as_bytes())
}
