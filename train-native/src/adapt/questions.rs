//! Which questions are trained on, and which are kept back, by the document that they are about.

use std::collections::{BTreeMap, HashMap, HashSet};
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
/// What a row is called whose query and positive stand in one passage.
const QUESTION: &str = "question";
/// Where the documents came from, and under which licences.
pub const SOURCES: &str = "sources.jsonl";
/// Letters of an origin's name.
const LETTERS: usize = 80;

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
    pub licences: BTreeMap<String, usize>,
    /// Documents that name none.
    pub without_licence: usize,
    /// Hosts that the documents say they came from, each with its number of documents.
    #[serde(default)]
    pub origins: BTreeMap<String, usize>,
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
    /// Writes `train.jsonl`, `train-corpus.jsonl`, `sources.jsonl`, and the BEIR folders `dev` and `test` into a
    /// folder.
    ///
    /// # Errors
    /// Files that cannot be read or written, or a part without a question.
    pub fn split(rows: &Path, passages: &Path, folder: &Path, titles: bool) -> Result<Self> {
        let mut done = Self::default();
        let mut train = NewFile::create(&folder.join("train.jsonl"))?;
        let (mut dev, mut test, mut answers) = (Vec::new(), Vec::new(), HashMap::new());
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
                if let (Some(QUESTION), Some(source)) = (text("type").as_deref(), text("source")) {
                    answers.entry(source).or_insert_with(Vec::new).extend(positives(&fields));
                }
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
        write_mined_corpus(passages, folder, titles, &answers)?;
        write_set(&folder.join("dev"), "dev", &dev)?;
        write_set(&folder.join("test"), "test", &test)?;
        Ok(done)
    }

    /// The corpora of dev and test, and what is said of the documents.
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
        let mut sources = NewFile::create(&folder.join(SOURCES))?;
        let mut others = 0;
        let mut documents = HashSet::new();
        for passage in read_passages(passages)? {
            let passage = passage?;
            let document = document(&passage, titles);
            self.passages += 1;
            if documents.insert(passage.document.clone()) {
                sources.line(&json!({
                    "document": passage.document, "origin": passage.origin, "licence": passage.licence,
                }))?;
                self.know(&passage);
            }
            all.line(&document)?;
            let is_wanted = wanted.contains(passage.id.as_str());
            if is_wanted || others + wanted.len() < MOST_DEV_PASSAGES {
                others += usize::from(!is_wanted);
                few.line(&document)?;
            }
        }
        self.documents = documents.len();
        sources.finish()?;
        few.finish()?;
        all.finish()
    }

    /// Counts what a document says of itself.
    fn know(&mut self, passage: &Passage) {
        match &passage.licence {
            Some(licence) => *self.licences.entry(licence.clone()).or_default() += 1,
            None => self.without_licence += 1,
        }
        if let Some(origin) = &passage.origin {
            *self.origins.entry(host(origin)).or_default() += 1;
        }
    }
}

/// Writes what negatives are mined from: passages to train on, as what is tested is no negative either. A passage
/// that holds a question with its answer would be a negative of that question: its answers stand in its place.
fn write_mined_corpus(
    passages: &Path,
    folder: &Path,
    titles: bool,
    answers: &HashMap<String, Vec<String>>,
) -> Result<()> {
    let mut train = NewFile::create(&folder.join("train-corpus.jsonl"))?;
    for passage in read_passages(passages)? {
        let passage = passage?;
        match answers.get(&passage.id) {
            _ if passage.split != Split::Train => {}
            None => train.line(&document(&passage, titles))?,
            Some(answers) => {
                for (i, answer) in answers.iter().enumerate() {
                    let id = format!("{} answer {}", passage.id, i + 1);
                    train.line(&json!({"_id": id, "title": "", "text": answer}))?;
                }
            }
        }
    }
    train.finish()
}

/// The positives of a row.
fn positives(fields: &Map<String, Value>) -> Vec<String> {
    let list = fields.get("pos").and_then(Value::as_array).into_iter().flatten();
    list.filter_map(|text| text.as_str().map(String::from)).collect()
}

/// The host of an address, or another origin without what may be a secret: neither user nor query.
fn host(origin: &str) -> String {
    let (is_address, rest) = match origin.split_once("://") {
        Some((_, rest)) => (true, rest),
        None => (false, origin),
    };
    let ends: &[char] = if is_address { &['/', '?', '#', '\\'] } else { &['?', '#'] };
    let rest = rest.split(ends).next().unwrap_or_default();
    let name = rest.rsplit('@').next().unwrap_or_default().trim().to_lowercase();
    let name = if name.is_empty() { "unnamed".into() } else { name };
    name.chars().take(LETTERS).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_hosts_without_secrets() {
        for (origin, name) in [
            ("https://user:secret@Docs.Example.org:8080/a/b?key=secret#c", "docs.example.org:8080"),
            ("https://example.org?key=secret", "example.org"),
            ("Handbook, 3rd edition", "handbook, 3rd edition"),
            ("me@example.org?x", "example.org"),
            ("https://", "unnamed"),
        ] {
            assert_eq!(host(origin), name);
        }
        assert_eq!(host(&"ü".repeat(500)).chars().count(), LETTERS);
    }

    fn write(folder: &Path, name: &str, lines: &[Value]) -> std::path::PathBuf {
        let path = folder.join(name);
        let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
        std::fs::write(&path, lines.join("\n")).unwrap();
        path
    }

    #[test]
    fn a_passage_with_a_question_is_no_negative_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let passage = |n: usize, split: &str| {
            let origin = "https://example.org/x";
            json!({"_id": format!("d{n}#1"), "document": format!("d{n}"), "text": format!("text {n}"), "split": split, "origin": origin})
        };
        let row = |n: usize, kind: &str, split: &str| json!({"query": format!("query {n}"), "pos": [format!("answer {n}")], "type": kind, "source": format!("d{n}#1"), "split": split});
        let passages = [(1, "train"), (2, "train"), (3, "dev"), (4, "test")]
            .map(|(n, split)| passage(n, split));
        let passages = write(folder.path(), "passages.jsonl", &passages);
        let rows = [
            row(1, "question", "train"),
            row(2, "title", "train"),
            row(3, "title", "dev"),
            row(4, "title", "test"),
        ];
        let rows = write(folder.path(), "rows.jsonl", &rows);
        let done = Questions::split(&rows, &passages, folder.path(), false).unwrap();
        assert_eq!((done.documents, done.train, done.origins["example.org"]), (4, 2, 4));
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let corpus = read("train-corpus.jsonl");
        assert!(corpus.contains("answer 1") && corpus.contains("text 2"), "{corpus}");
        assert!(!corpus.contains("text 1") && !corpus.contains("text 3"), "{corpus}");
        assert_eq!(read(SOURCES).lines().count(), 4);
    }
}
