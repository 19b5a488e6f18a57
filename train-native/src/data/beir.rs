//! BEIR folders: `corpus.jsonl`, `queries.jsonl`, `qrels/SPLIT.tsv`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::store::{Store, StoreWriter};
use crate::text::{Columns, TextFile};

/// A retrieval set: the corpus stays on disk, queries and judgements are in memory.
#[derive(Debug)]
pub struct BeirFolder {
    /// Texts of the corpus, title first.
    pub corpus: Store,
    /// Ids of the corpus.
    pub corpus_ids: Vec<String>,
    /// Queries that have a judgement in the split.
    pub queries: Vec<String>,
    /// Relevant corpus rows of each query with their grades.
    pub relevant: Vec<HashMap<usize, f64>>,
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

/// The judgements of a split.
///
/// # Errors
/// No such split; the error lists those that are there.
pub fn qrels_file(folder: &Path, split: &str) -> Result<PathBuf> {
    beside(folder, &format!("qrels/{split}.tsv")).map_err(|error| {
        let mut splits: Vec<String> = std::fs::read_dir(folder.join("qrels"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| Some(entry.file_name().to_str()?.split('.').next()?.to_string()))
            .collect();
        splits.sort();
        match splits.is_empty() {
            true => error,
            false => error.context(format!("no split {split:?}; there are {}", splits.join(", "))),
        }
    })
}

impl BeirFolder {
    /// Reads a split.
    ///
    /// # Errors
    /// Missing files, lines that cannot be read, or a split without judgements.
    pub fn read(folder: &Path, split: &str, limit: Option<usize>) -> Result<Self> {
        let open =
            |path: PathBuf, columns: Columns| TextFile::open(&path.to_string_lossy(), columns);
        let id = |record: &crate::text::Record, file: &TextFile| {
            record.id.clone().with_context(|| format!("{}:{}: no _id", file.label, record.number))
        };
        let columns = Columns { fields: vec!["text".into()], optional: vec!["title".into()] };
        let corpus_file = open(beside(folder, "corpus.jsonl")?, columns)?;
        let mut corpus = StoreWriter::new()?;
        let mut corpus_ids = Vec::new();
        let mut row_of = HashMap::new();
        for record in corpus_file.records()? {
            let record = record?;
            let id = id(&record, &corpus_file)?;
            let [text, title] = &record.fields[..] else { continue };
            let joined = if title.is_empty() { text.clone() } else { format!("{title} {text}") };
            corpus.push(&joined)?;
            row_of.insert(id.clone(), corpus_ids.len());
            corpus_ids.push(id);
        }
        let query_file = open(beside(folder, "queries.jsonl")?, Columns::required(&["text"]))?;
        let mut texts = HashMap::new();
        for record in query_file.records()? {
            let record = record?;
            texts.insert(id(&record, &query_file)?, record.joined());
        }
        let qrels = open(
            qrels_file(folder, split)?,
            Columns::required(&["query-id", "corpus-id", "score"]),
        )?;
        let (mut queries, mut relevant) = (Vec::new(), Vec::<HashMap<usize, f64>>::new());
        let mut query_row: HashMap<String, usize> = HashMap::new();
        let mut absent = 0;
        for record in qrels.records()? {
            let record = record?;
            let place = || format!("{}:{}", qrels.label, record.number);
            let [query, document, score] = &record.fields[..] else { continue };
            let score: f64 =
                score.parse().with_context(|| format!("{}: the score is {score:?}", place()))?;
            let (Some(text), Some(&row)) = (texts.get(query), row_of.get(document)) else {
                absent += 1;
                continue;
            };
            let at = *query_row.entry(query.clone()).or_insert_with(|| {
                queries.push(text.clone());
                relevant.push(HashMap::new());
                queries.len() - 1
            });
            relevant[at].insert(row, score);
        }
        if queries.is_empty() {
            bail!(
                "{}: no judgement names a query and a document that are there ({absent} do not)",
                qrels.label
            );
        }
        if let Some(limit) = limit {
            queries.truncate(limit);
            relevant.truncate(limit);
        }
        Ok(Self { corpus: corpus.finish()?, corpus_ids, queries, relevant })
    }
}
