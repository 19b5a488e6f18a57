//! What retrieval tasks found, as files: TREC runs, and search results in AIR-Bench's form.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use super::task::{AirBench, Task};
use crate::vectors::write_atomically;

/// Ids of the documents found for a query, best first, with their scores.
pub type RankedDocuments = Vec<(String, f64)>;

/// Writes what is found to a folder.
#[derive(Debug, Clone)]
pub struct RunFiles {
    /// The folder.
    pub folder: PathBuf,
    /// Name of the model in the files.
    pub model: String,
    /// Name of the reranker, if there is one.
    pub reranker: Option<String>,
}

#[derive(Serialize)]
struct SearchResults<'a> {
    model_name: &'a str,
    reranker_name: &'a str,
    #[serde(flatten)]
    place: &'a AirBench,
    split: &'a str,
    search_results: BTreeMap<&'a str, BTreeMap<&'a str, f64>>,
}

impl RunFiles {
    /// Writes `TASK.trec`, which `eval trec` reads; of a task of AIR-Bench also
    /// `MODEL/RERANKER/TYPE/DOMAIN/LANGUAGE_DATASET_SPLIT.json` (`NoReranker` without one), as its
    /// leaderboard takes it.
    ///
    /// # Errors
    /// A folder that cannot be written, an id with a space, which a TREC run cannot hold, or a name of the
    /// task that is no file's.
    pub fn write<'a>(
        &self,
        task: &Task,
        split: &str,
        found: &'a [(&'a str, RankedDocuments)],
    ) -> Result<()> {
        let place = task.air_bench.iter();
        let parts =
            place.flat_map(|at| [&at.task_type, &at.domain, &at.language, &at.dataset_name]);
        for part in parts.map(String::as_str).chain([task.name.as_str(), split]) {
            if part.is_empty() || part.starts_with('.') || part.contains(['/', '\\']) {
                bail!(
                    "{}: {part:?} cannot be the name of a file or folder; change the suite",
                    task.name
                );
            }
        }
        // Slashes would be folders, and spaces further columns.
        let plain = |name: &str| name.replace(['/', ' '], "_");
        let name = plain(&self.model);
        let reranker = self.reranker.as_deref().map_or(NO_RERANKER.into(), plain);
        let tag = match &self.reranker {
            Some(_) => format!("{name}+{reranker}"),
            None => name.clone(),
        };
        let ids = found.iter().flat_map(|(query, documents)| {
            documents.iter().map(|(id, _)| id.as_str()).chain([*query])
        });
        if let Some(id) = ids.into_iter().find(|id| id.contains(char::is_whitespace)) {
            bail!(
                "{}: the id {id:?} has a space, which a TREC run cannot hold; rename it",
                task.name
            );
        }
        let mut run = String::new();
        for (query, documents) in found {
            for (i, (document, score)) in documents.iter().enumerate() {
                let _ = writeln!(run, "{query} Q0 {document} {} {score} {tag}", i + 1);
            }
        }
        put(&self.folder.join(format!("{}.trec", task.name)), run.as_bytes())?;
        let Some(place) = &task.air_bench else { return Ok(()) };
        let of_query = |(query, documents): &'a (&'a str, RankedDocuments)| {
            (*query, documents.iter().map(|(id, score)| (id.as_str(), *score)).collect())
        };
        let results = SearchResults {
            model_name: &name,
            reranker_name: &reranker,
            place,
            split,
            search_results: found.iter().map(of_query).collect(),
        };
        let AirBench { task_type, domain, language, dataset_name, .. } = place;
        let file = format!("{language}_{dataset_name}_{split}.json");
        let path = self.folder.join(&name).join(&reranker).join(task_type).join(domain);
        put(&path.join(file), &serde_json::to_vec_pretty(&results)?)
    }
}

/// AIR-Bench's name for results that were not reranked.
const NO_RERANKER: &str = "NoReranker";

fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    write_atomically(path, bytes)
}
