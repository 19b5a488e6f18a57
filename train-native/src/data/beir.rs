//! BEIR folders: `corpus.jsonl`, `queries.jsonl`, `qrels/SPLIT.tsv`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::store::{Store, StoreWriter};
use crate::text::{Columns, Object, TextFile};

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
fn id(object: &Object, names: &[&str]) -> Option<String> {
    match names.iter().find_map(|name| object.fields.get(*name))? {
        Value::String(id) => Some(id.clone()),
        Value::Number(id) => Some(id.to_string()),
        _ => None,
    }
}

/// Calls `each` with every row of some files, and names the place where it fails.
fn rows(files: &[TextFile], mut each: impl FnMut(&Object) -> Result<()>) -> Result<()> {
    for file in files {
        for object in file.objects()? {
            let object = object?;
            each(&object).with_context(|| format!("{}:{}", file.label, object.number))?;
        }
    }
    Ok(())
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

    /// Reads the set.
    ///
    /// # Errors
    /// Rows that cannot be read, or judgements that name nothing that is there.
    pub fn read(&self, limit: Option<usize>) -> Result<BeirFolder> {
        let mut corpus = StoreWriter::new()?;
        let mut corpus_ids = Vec::new();
        let mut row_of = HashMap::new();
        rows(&self.corpus, |object| {
            let title = object.fields.get("title").and_then(Value::as_str).unwrap_or_default();
            let text = text(object, "text")?;
            match title.is_empty() {
                true => corpus.push(&text)?,
                false => corpus.push(&format!("{title} {text}"))?,
            }
            let id = id(object, &["_id", "id"]).context("no _id")?;
            row_of.insert(id.clone(), corpus_ids.len());
            corpus_ids.push(id);
            Ok(())
        })?;
        let mut texts = HashMap::new();
        rows(&self.queries, |object| {
            let id = id(object, &["_id", "id"]).context("no _id")?;
            texts.insert(id, text(object, "text")?.to_string());
            Ok(())
        })?;
        let (mut queries, mut relevant) = (Vec::new(), Vec::<HashMap<usize, f64>>::new());
        let mut query_ids = Vec::new();
        let mut query_row: HashMap<String, usize> = HashMap::new();
        let mut absent = Vec::<Vec<f64>>::new();
        rows(&self.qrels, |object| {
            let query = id(object, &["query-id", "query_id"]).context("no query-id")?;
            let document = id(object, &["corpus-id", "corpus_id"]).context("no corpus-id")?;
            let score = object.fields.get("score").unwrap_or(&Value::Null);
            let grade = score.as_f64().or_else(|| score.as_str()?.trim().parse().ok());
            let grade = grade
                .filter(|grade: &f64| grade.is_finite())
                .with_context(|| format!("the score is {score}"))?;
            // Queries that are not there are not asked.
            let Some(text) = texts.get(&query) else { return Ok(()) };
            let at = *query_row.entry(query.clone()).or_insert_with(|| {
                query_ids.push(query);
                queries.push(text.clone());
                relevant.push(HashMap::new());
                absent.push(Vec::new());
                queries.len() - 1
            });
            match row_of.get(&document) {
                Some(&row) => _ = relevant[at].insert(row, grade),
                None => absent[at].push(grade),
            }
            Ok(())
        })?;
        if relevant.iter().all(HashMap::is_empty) {
            let label = self.qrels.first().map_or("qrels", |file| file.label.as_str());
            bail!("{label}: no judgement names a query and a document that are there");
        }
        let mut candidates = None;
        if !self.top_ranked.is_empty() {
            let mut ranked = vec![Vec::new(); queries.len()];
            rows(&self.top_ranked, |object| {
                let query = id(object, &["query-id", "query_id"]).context("no query-id")?;
                let documents = object.fields.get("corpus-ids").and_then(Value::as_array);
                let documents = documents.context("no list corpus-ids")?;
                if let Some(&at) = query_row.get(&query) {
                    let row = |id: &Value| {
                        let row = id.as_str().and_then(|id| row_of.get(id)).copied();
                        row.with_context(|| format!("the corpus has no document {id}"))
                    };
                    ranked[at] = documents.iter().map(row).collect::<Result<_>>()?;
                }
                Ok(())
            })?;
            candidates = Some(ranked);
        }
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
    pub fn read(folder: &Path, split: &str, limit: Option<usize>) -> Result<Self> {
        BeirFiles::of(folder, split)?.read(limit)
    }
}
