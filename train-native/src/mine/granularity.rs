//! Whether graded negatives are graded: mean similarity to the query, level by level (Negative
//! Matters, arXiv:2509.00842, section 5.1 and table 4).

use anyhow::{Result, bail};
use kiln_embed::embedder::{DOCUMENT, QUERY};
use kiln_embed::index::cosine;
use serde::Serialize;

use crate::data::{DataSet, Example};
use crate::embedding::BLOCK;
use crate::eval::TextEncoder;
use crate::terminal::{Terminal, counted};

/// One level of negatives, or the positives.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Level {
    /// `positive`, `n1` (hardest), `n2`, ...
    pub name: String,
    /// Cosine of each with its query.
    #[serde(skip)]
    pub similarities: Vec<f64>,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation.
    pub deviation: f64,
    /// How many there are.
    pub count: usize,
}

/// What the levels look like.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Granularity {
    /// The positives, then the levels, hardest first.
    pub levels: Vec<Level>,
    /// Whether the mean falls from each level to the next easier one.
    pub graded: bool,
    /// Share of the queries for which it does.
    pub graded_queries: f64,
}

impl Granularity {
    /// The similarities of each level under its name, as histograms take them.
    pub fn series(&self) -> Vec<(String, Vec<f64>)> {
        let level = |level: &Level| (level.name.clone(), level.similarities.clone());
        self.levels.iter().map(level).collect()
    }
}

/// Similarities by level, as a model sees them, of the first `limit` examples that have at least
/// `least` negatives.
///
/// # Errors
/// No such example, or texts that cannot be embedded.
pub fn granularity(
    encoder: &dyn TextEncoder,
    set: &DataSet,
    least: usize,
    limit: usize,
    terminal: Terminal,
) -> Result<Granularity> {
    let [query_prompt, document_prompt] =
        [&QUERY[..], &DOCUMENT].map(|names| encoder.own_prompt(names));
    let mut columns: Vec<Vec<f64>> = Vec::new();
    let (mut graded, mut queries) = (0, 0);
    let bar = terminal.progress(set.len().min(limit) as u64, "examples");
    for block in set.blocks(BLOCK / 4).take_while(|block| block.start < limit) {
        let examples: Vec<Example> =
            (block.start..block.end.min(limit)).map(|i| set.get(i)).collect::<Result<_>>()?;
        let read = examples.len() as u64;
        let examples: Vec<Example> =
            examples.into_iter().filter(|example| example.neg.len() >= least).collect();
        let of_queries: Vec<String> =
            examples.iter().map(|example| example.query.clone()).collect();
        let of_queries = encoder.encode(&of_queries, &query_prompt)?;
        let documents: Vec<String> = examples
            .iter()
            .flat_map(|example| example.pos.iter().take(1).chain(&example.neg).cloned())
            .collect();
        let mut of_documents = encoder.encode(&documents, &document_prompt)?.into_iter();
        for (example, query) in examples.iter().zip(&of_queries) {
            let mut found = of_documents
                .by_ref()
                .take(1 + example.neg.len())
                .map(|document| f64::from(cosine(query, &document)));
            // The positive stands before level 1.
            let Some(positive) = found.next() else { continue };
            let mut levels = vec![(0, positive)];
            levels.extend((0..).map(|negative| example.level(negative)).zip(found));
            queries += 1;
            let falls = levels[1..]
                .is_sorted_by(|harder, easier| harder.0 == easier.0 || harder.1 > easier.1);
            graded += usize::from(falls);
            for (level, similarity) in levels {
                columns.resize(columns.len().max(level + 1), Vec::new());
                columns[level].push(similarity);
            }
        }
        bar.inc(read);
    }
    bar.finish_and_clear();
    if queries == 0 {
        let least = counted(least, "negative", "negatives");
        bail!("{}: no example has {least} or more", set.name);
    }
    let levels: Vec<Level> = columns
        .into_iter()
        .enumerate()
        .filter(|(_, similarities)| !similarities.is_empty())
        .map(|(i, similarities)| {
            let count = similarities.len();
            let mean = similarities.iter().sum::<f64>() / count as f64;
            let squares = similarities.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
            Level {
                name: if i == 0 { "positive".into() } else { format!("n{i}") },
                deviation: (squares / count as f64).sqrt(),
                similarities,
                mean,
                count,
            }
        })
        .collect();
    Ok(Granularity {
        graded: levels[1..].is_sorted_by(|harder, easier| harder.mean > easier.mean),
        graded_queries: f64::from(graded as u32) / f64::from(queries as u32),
        levels,
    })
}
