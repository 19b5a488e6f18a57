//! Ways to search the same documents beside each other: words (BM25), models, and both together.

use std::collections::HashMap;

use anyhow::{Result, bail};
use kiln_embed::embedder::{DOCUMENT, EmbedOptions, Prompt, QUERY};
use kiln_metrics::{Interval, ScoreParts, clustered_bootstrap, dense_rankings, ndcg};
use serde::Serialize;

use super::bm25_rankings;
use crate::data::BeirFolder;
use crate::embedding::{BLOCK, TextModel};
use crate::terminal::Terminal;

/// Rank down to which nDCG counts.
const DEPTH: usize = 10;
/// Hits of each way that a hybrid fuses.
const FUSED: usize = 100;
/// Reciprocal rank fusion's constant (Cormack et al., SIGIR 2009).
const RRF: f64 = 60.0;
/// The name of the way that matches words.
pub const BM25: &str = "BM25";

/// One way to search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct System {
    /// What searches.
    pub name: String,
    /// Mean nDCG@10 over the queries.
    pub ndcg_at_10: f64,
    /// Share of the queries whose first hit is right.
    pub top_1: f64,
    /// nDCG@10 of each query.
    pub per_query: Vec<f64>,
    /// The first hits of each query, best first, as rows of the corpus.
    #[serde(skip)]
    pub hits: Vec<Vec<usize>>,
}

/// How far one way is from the one that all are compared with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// The way.
    pub name: String,
    /// Its mean nDCG@10 less that of the other.
    pub difference: f64,
    /// The middle 95 % of 2000 paired draws of documents with their questions, and their p.
    pub bootstrap: Option<Interval>,
}

/// All ways on one set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Systems {
    /// Queries.
    pub queries: usize,
    /// Documents among which each searches.
    pub documents: usize,
    /// The ways, in the order BM25, each model, and its hybrid with BM25.
    pub systems: Vec<System>,
    /// The model that all are compared with.
    pub against: String,
    /// The others, compared with it.
    pub differences: Vec<Difference>,
    /// A number for the document that each query is about.
    #[serde(skip)]
    pub about: Vec<usize>,
}

impl Systems {
    /// Searches by BM25, by each model, and by the reciprocal rank fusion of both, and compares all with the first
    /// model.
    ///
    /// # Errors
    /// No query, or texts that cannot be read or embedded.
    pub fn of(
        set: &BeirFolder,
        models: &[(String, &dyn TextModel)],
        terminal: Terminal,
    ) -> Result<Self> {
        let Some((against, _)) = models.first() else { bail!("no model is to be compared") };
        if set.queries.is_empty() {
            bail!("no query has a judgement");
        }
        let corpus: Vec<String> =
            (0..set.corpus.len()).map(|row| set.corpus.get(row)).collect::<Result<_>>()?;
        let words = bm25_rankings(&set.queries, &corpus, FUSED);
        let mut systems = vec![System::of(BM25, set, words.clone())];
        for (name, model) in models {
            let dense = rankings(name, *model, set, &corpus, terminal)?;
            let both = words.iter().zip(&dense).map(|(words, dense)| fused(words, dense)).collect();
            systems.push(System::of(name, set, dense));
            systems.push(System::of(&format!("{name} + {BM25}"), set, both));
        }
        let first = systems.iter().find(|system| system.name == *against).cloned();
        let Some(first) = first else { bail!("{against} did not search") };
        let others = systems.iter().filter(|system| system.name != *against);
        let about = documents(set);
        let differences = others.map(|system| system.less(&first, &about)).collect();
        Ok(Self {
            queries: set.queries.len(),
            documents: corpus.len(),
            systems,
            against: against.clone(),
            differences,
            about,
        })
    }

    /// A way by its name.
    pub fn get(&self, name: &str) -> Option<&System> {
        self.systems.iter().find(|system| system.name == name)
    }

    /// One way less another.
    pub fn difference(&self, name: &str, from: &str) -> Option<Difference> {
        Some(self.get(name)?.less(self.get(from)?, &self.about))
    }

    /// The table of people.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![
            [
                "search by".to_string(),
                "nDCG@10".into(),
                "top 1".into(),
                format!("less {}", self.against),
                "95 % of draws".into(),
                "p".into(),
            ]
            .to_vec(),
        ];
        for system in &self.systems {
            let difference =
                self.differences.iter().find(|difference| difference.name == system.name);
            let points = |value: f64| format!("{:.2}", 100.0 * value);
            let mut row =
                vec![system.name.clone(), points(system.ndcg_at_10), points(system.top_1)];
            row.extend(difference.map_or([const { String::new() }; 3], Difference::cells));
            rows.push(row);
        }
        rows
    }
}

impl Difference {
    /// The difference, its interval and p, in points of 100.
    pub fn cells(&self) -> [String; 3] {
        let (range, p) = match self.bootstrap {
            Some(interval) => (
                format!("{:+.2} to {:+.2}", 100.0 * interval.low, 100.0 * interval.high),
                format!("{:.3}", interval.p),
            ),
            None => ("not drawn".into(), String::new()),
        };
        [format!("{:+.2}", 100.0 * self.difference), range, p]
    }
}

impl System {
    fn of(name: &str, set: &BeirFolder, hits: Vec<Vec<usize>>) -> Self {
        let judged = || hits.iter().zip(&set.relevant).zip(&set.absent);
        let per_query: Vec<f64> =
            judged().map(|((hits, grades), absent)| ndcg(hits, grades, absent, DEPTH)).collect();
        let right = judged().filter(|((hits, grades), _)| {
            hits.first().and_then(|row| grades.get(row)).is_some_and(|grade| *grade > 0.0)
        });
        let queries = per_query.len().max(1) as f64;
        Self {
            name: name.into(),
            ndcg_at_10: per_query.iter().sum::<f64>() / queries,
            top_1: right.count() as f64 / queries,
            per_query,
            hits: hits.into_iter().map(|hits| hits.into_iter().take(DEPTH).collect()).collect(),
        }
    }

    /// How far this one is from another, by queries of these documents.
    fn less(&self, other: &Self, documents: &[usize]) -> Difference {
        let parts = |system: &Self| ScoreParts::Mean { values: system.per_query.clone() };
        let (own, others) = (parts(self), parts(other));
        Difference {
            name: self.name.clone(),
            difference: self.ndcg_at_10 - other.ndcg_at_10,
            bootstrap: clustered_bootstrap(
                (&others, other.ndcg_at_10),
                (&own, self.ndcg_at_10),
                documents,
            ),
        }
    }
}

/// A number for the document that each query is about: passages are called `DOCUMENT#NUMBER`. A query that nothing
/// in the corpus answers stands for itself.
fn documents(set: &BeirFolder) -> Vec<usize> {
    let mut known: HashMap<String, usize> = HashMap::new();
    let each = set.relevant.iter().zip(&set.query_ids).map(|(relevant, query)| {
        let document = relevant.keys().min().map(|row| document_of(&set.corpus_ids[*row]));
        let name = document.map_or(format!("query {query}"), |document| format!("of {document}"));
        let next = known.len();
        *known.entry(name).or_insert(next)
    });
    each.collect()
}

fn document_of(passage: &str) -> &str {
    match passage.rsplit_once('#') {
        Some((document, number)) if number.parse::<u64>().is_ok() => document,
        _ => passage,
    }
}

/// A model's rankings, queries and documents with its own prompts for them.
fn rankings(
    name: &str,
    model: &dyn TextModel,
    set: &BeirFolder,
    corpus: &[String],
    terminal: Terminal,
) -> Result<Vec<Vec<usize>>> {
    let options = |names: &[&str]| -> Result<EmbedOptions> {
        let prompts = model.prompts();
        let text = prompts.text(&prompts.first_of(names))?.to_string();
        // Compared as `kiln search` and `kiln eval` do it.
        let normalize = model.similarity().normalizes().then_some(true);
        Ok(EmbedOptions { normalize, ..EmbedOptions::with_prompt(Prompt::Text(text)) })
    };
    let queries = model.embed(&set.queries, &options(&QUERY)?, |_| {})?;
    let as_document = options(&DOCUMENT)?;
    let bar = terminal.progress(corpus.len() as u64, name);
    let mut documents = Vec::with_capacity(corpus.len());
    for block in corpus.chunks(BLOCK) {
        let done = documents.len();
        documents.extend(model.embed(block, &as_document, |progress| {
            bar.set_position((done + progress.texts) as u64);
        })?);
    }
    bar.finish_and_clear();
    Ok(dense_rankings(&queries, &documents, FUSED)?)
}

/// Reciprocal rank fusion; of equal scores the earlier row comes first.
fn fused(a: &[usize], b: &[usize]) -> Vec<usize> {
    let mut scores: HashMap<usize, f64> = HashMap::new();
    for ranking in [a, b] {
        for (rank, row) in ranking.iter().enumerate() {
            *scores.entry(*row).or_default() += 1.0 / (RRF + rank as f64 + 1.0);
        }
    }
    let mut rows: Vec<(usize, f64)> = scores.into_iter().collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    rows.into_iter().take(FUSED).map(|(row, _)| row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fusion_prefers_what_both_find() {
        assert_eq!(fused(&[1, 2, 3], &[3, 4]), [3, 1, 2, 4]);
        assert_eq!(fused(&[5], &[6]), [5, 6]);
        assert!(fused(&[], &[]).is_empty());
    }

    #[test]
    fn passages_are_of_their_documents() {
        let cases = [("a/b.txt#12", "a/b.txt"), ("C#", "C#"), ("x", "x"), ("a#b#3", "a#b")];
        for (passage, document) in cases {
            assert_eq!(document_of(passage), document);
        }
    }
}
