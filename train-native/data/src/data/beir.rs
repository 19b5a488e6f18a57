//! BEIR folders: `corpus.jsonl`, `queries.jsonl`, `qrels/SPLIT.tsv`.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

use super::store::{Store, StoreWriter};
use crate::text::{Columns, Object, TextFile, short};
use kiln_terminal::terminal::{Terminal, counted};

/// Largest size of a grade; sums of such grades are still exact.
pub const MOST_GRADE: f64 = 1e9;

/// A retrieval set: the corpus stays on disk, queries and judgements are in memory.
#[derive(Debug)]
pub struct BeirFolder {
    /// Texts of the corpus, title first.
    pub corpus: Store,
    /// Ids of the corpus.
    pub corpus_ids: Vec<String>,
    /// Ids of the queries.
    pub query_ids: Vec<String>,
    /// Queries that have a judgement in the split.
    pub queries: Vec<String>,
    /// Judged corpus rows of each query with their grades.
    pub relevant: Vec<HashMap<usize, f64>>,
    /// Grades of judged documents that the corpus lacks, query by query. As with trec_eval they are
    /// relevant and never found; a query may have no others.
    pub absent: Vec<Vec<f64>>,
    /// Corpus rows to rank for each query, where not the whole corpus is.
    pub candidates: Option<Vec<Vec<usize>>>,
}

/// The files that a [`BeirFolder`] is read from.
#[derive(Debug, Clone, Default)]
pub struct BeirFiles {
    /// `_id`, `title`, `text`.
    pub corpus: Vec<TextFile>,
    /// `_id`, `text`.
    pub queries: Vec<TextFile>,
    /// `query-id`, `corpus-id`, `score`.
    pub qrels: Vec<TextFile>,
    /// `query-id`, `corpus-ids`: what to rank for each query; none where all of the corpus is.
    pub top_ranked: Vec<TextFile>,
}

/// A file of the folder, plain or compressed.
fn beside(folder: &Path, name: &str) -> Result<PathBuf> {
    ["", ".gz", ".zst"]
        .iter()
        .map(|packing| folder.join(format!("{name}{packing}")))
        .find(|path| path.is_file())
        .with_context(|| {
            format!(
                "{}: no {name} there (also .gz, .zst); a BEIR folder has corpus.jsonl, queries.jsonl and qrels/",
                folder.display()
            )
        })
}

/// Names of the splits that a folder has judgements for, sorted.
pub fn qrels_splits(folder: &Path) -> Vec<String> {
    let mut splits: Vec<String> = std::fs::read_dir(folder.join("qrels"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.split('.').next()?.to_string()))
        .collect();
    splits.sort();
    splits
}

/// The judgements of a split.
///
/// # Errors
/// No such split; the error lists those that are there.
pub fn qrels_file(folder: &Path, split: &str) -> Result<PathBuf> {
    beside(folder, &format!("qrels/{split}.tsv")).map_err(|error| {
        let splits = qrels_splits(folder);
        match splits.is_empty() {
            true => error,
            false => error.context(format!("no split {split:?}; there are {}", splits.join(", "))),
        }
    })
}

/// A value as the text of an id.
fn id_text(value: &Value) -> Option<String> {
    match value {
        Value::String(id) => Some(id.clone()),
        Value::Number(id) => Some(id.to_string()),
        _ => None,
    }
}

/// The first of some fields as an id.
fn id(object: &Object, names: &[&str]) -> Option<String> {
    id_text(names.iter().find_map(|name| object.fields.get(*name))?)
}

/// Where a row is.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Number of the file among the files of its kind.
    file: usize,
    line: usize,
}

/// Calls `each` with every row of some files, and names the place where it fails.
fn rows(files: &[TextFile], mut each: impl FnMut(&Object, Place) -> Result<()>) -> Result<()> {
    for (i, file) in files.iter().enumerate() {
        for object in file.objects()? {
            let object = object?;
            each(&object, Place { file: i, line: object.number })
                .with_context(|| format!("{}:{}", file.label, object.number))?;
        }
    }
    Ok(())
}

/// What a key was said to mean, and where.
type Said<V> = HashMap<String, (V, Place)>;

/// Whether a key is new. It may be there twice if it means the same; else nobody can know what it
/// means, and both places are named.
fn is_new<V: PartialEq>(
    files: &[TextFile],
    said: &mut Said<V>,
    key: String,
    value: V,
    place: Place,
    what: &str,
) -> Result<bool> {
    match said.entry(key) {
        Entry::Vacant(entry) => {
            entry.insert((value, place));
            Ok(true)
        }
        Entry::Occupied(entry) if entry.get().0 == value => Ok(false),
        Entry::Occupied(entry) => {
            let before = entry.get().1;
            bail!(
                "{:?} is there twice with different {what}, first in {}:{}; keep one of them",
                entry.key(),
                files[before.file].label,
                before.line
            )
        }
    }
}

/// Rows that say again, word for word, what a row before them says; they count once.
#[derive(Debug, Default)]
struct Repeated {
    documents: usize,
    queries: usize,
    judgements: usize,
    candidates: usize,
}

impl Repeated {
    fn note(&self, label: &str, terminal: Terminal) {
        let parts = [
            (self.documents, ["document", "documents"]),
            (self.queries, ["query", "queries"]),
            (self.judgements, ["judgement", "judgements"]),
            (self.candidates, ["candidate", "candidates"]),
        ];
        let some = parts.into_iter().filter(|(count, _)| *count > 0);
        let said: Vec<String> =
            some.map(|(count, [one, more])| counted(count, one, more)).collect();
        if !said.is_empty() {
            terminal.note(format!("{label}: left out what is there twice: {}", said.join(", ")));
        }
    }
}

/// A judgement's grade.
fn grade(score: &Value) -> Result<f64> {
    let grade = score.as_f64().or_else(|| score.as_str()?.trim().parse().ok());
    grade.filter(|grade: &f64| grade.abs() <= MOST_GRADE).with_context(|| {
        format!("the score is {}, not a number up to {MOST_GRADE:e}", short(score))
    })
}

fn text<'a>(object: &'a Object, name: &str) -> Result<&'a str> {
    object.fields.get(name).and_then(Value::as_str).with_context(|| format!("no text {name:?}"))
}

impl BeirFiles {
    /// The files of a folder's split.
    ///
    /// # Errors
    /// A missing file.
    pub fn of(folder: &Path, split: &str) -> Result<Self> {
        let open = |path: PathBuf| -> Result<Vec<TextFile>> {
            Ok(vec![TextFile::open(&path.to_string_lossy(), Columns::required(&[]))?])
        };
        Ok(Self {
            corpus: open(beside(folder, "corpus.jsonl")?)?,
            queries: open(beside(folder, "queries.jsonl")?)?,
            qrels: open(qrels_file(folder, split)?)?,
            top_ranked: beside(folder, "top_ranked.jsonl").map_or_else(|_| Ok(Vec::new()), open)?,
        })
    }

    /// Reads the set. What is there twice with the same meaning counts once, with a note.
    ///
    /// # Errors
    /// Rows that cannot be read, ids and judgements that are there twice with different meanings, or
    /// judgements that name nothing that is there.
    pub fn read(&self, limit: Option<usize>, terminal: Terminal) -> Result<BeirFolder> {
        let mut repeated = Repeated::default();
        let mut corpus = StoreWriter::new()?;
        let mut corpus_ids = Vec::new();
        let mut row_of = HashMap::new();
        let mut said = Said::new();
        rows(&self.corpus, |object, place| {
            let title = object.fields.get("title").and_then(Value::as_str).unwrap_or_default();
            let text = text(object, "text")?;
            let whole: Cow<'_, str> = match title.is_empty() {
                true => text.into(),
                false => format!("{title} {text}").into(),
            };
            let id = id(object, &["_id", "id"]).context("no _id")?;
            let hash = xxh3_128(whole.as_bytes());
            if !is_new(&self.corpus, &mut said, id.clone(), hash, place, "texts")? {
                repeated.documents += 1;
                return Ok(());
            }
            corpus.push(&whole)?;
            row_of.insert(id.clone(), corpus_ids.len());
            corpus_ids.push(id);
            Ok(())
        })?;
        drop(said);
        let mut texts = Said::new();
        rows(&self.queries, |object, place| {
            let id = id(object, &["_id", "id"]).context("no _id")?;
            let text = text(object, "text")?.to_string();
            let new = is_new(&self.queries, &mut texts, id, text, place, "texts")?;
            repeated.queries += usize::from(!new);
            Ok(())
        })?;
        let (mut queries, mut relevant) = (Vec::new(), Vec::<HashMap<usize, f64>>::new());
        let mut query_ids = Vec::new();
        let mut query_row: HashMap<String, usize> = HashMap::new();
        let mut absent = Vec::<Vec<f64>>::new();
        let mut judged = Vec::<Said<f64>>::new();
        rows(&self.qrels, |object, place| {
            let query = id(object, &["query-id", "query_id"]).context("no query-id")?;
            let document = id(object, &["corpus-id", "corpus_id"]).context("no corpus-id")?;
            let grade = grade(object.fields.get("score").unwrap_or(&Value::Null))?;
            // Queries that are not there are not asked.
            let Some((text, _)) = texts.get(&query) else { return Ok(()) };
            let i = *query_row.entry(query.clone()).or_insert_with(|| {
                query_ids.push(query.clone());
                queries.push(text.clone());
                relevant.push(HashMap::new());
                absent.push(Vec::new());
                judged.push(Said::new());
                queries.len() - 1
            });
            let new = is_new(&self.qrels, &mut judged[i], document.clone(), grade, place, "scores")
                .with_context(|| format!("the query {query:?}"))?;
            match row_of.get(&document) {
                _ if !new => repeated.judgements += 1,
                Some(&row) => _ = relevant[i].insert(row, grade),
                None => absent[i].push(grade),
            }
            Ok(())
        })?;
        let label = self.qrels.first().map_or("qrels", |file| file.label.as_str());
        if relevant.iter().all(HashMap::is_empty) {
            bail!("{label}: no judgement names a query and a document that are there");
        }
        let mut candidates = None;
        if !self.top_ranked.is_empty() {
            let mut ranked = vec![Vec::new(); queries.len()];
            let mut said = Said::new();
            rows(&self.top_ranked, |object, place| {
                let query = id(object, &["query-id", "query_id"]).context("no query-id")?;
                let documents = object.fields.get("corpus-ids").and_then(Value::as_array);
                let documents = documents.context("no list corpus-ids")?;
                let Some(&i) = query_row.get(&query) else { return Ok(()) };
                let mut rows: Vec<usize> = Vec::with_capacity(documents.len());
                let mut seen = HashSet::new();
                for id in documents {
                    let row = id_text(id).and_then(|id| row_of.get(&id).copied());
                    let row =
                        row.with_context(|| format!("the corpus has no document {}", short(id)))?;
                    match seen.insert(row) {
                        true => rows.push(row),
                        false => repeated.candidates += 1,
                    }
                }
                if is_new(&self.top_ranked, &mut said, query, rows.clone(), place, "candidates")? {
                    ranked[i] = rows;
                } else {
                    repeated.candidates += rows.len();
                }
                Ok(())
            })?;
            candidates = Some(ranked);
        }
        repeated.note(label, terminal);
        if let Some(limit) = limit {
            queries.truncate(limit);
            query_ids.truncate(limit);
            relevant.truncate(limit);
            absent.truncate(limit);
            candidates.iter_mut().for_each(|candidates| candidates.truncate(limit));
        }
        let corpus = corpus.finish()?;
        Ok(BeirFolder { corpus, corpus_ids, query_ids, queries, relevant, absent, candidates })
    }
}

impl BeirFolder {
    /// Reads a split of a folder.
    ///
    /// # Errors
    /// Missing files, lines that cannot be read, or a split without judgements.
    pub fn read(
        folder: &Path,
        split: &str,
        limit: Option<usize>,
        terminal: Terminal,
    ) -> Result<Self> {
        BeirFiles::of(folder, split)?.read(limit, terminal)
    }
}
