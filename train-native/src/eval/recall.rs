//! What is lost when embeddings are kept in fewer bytes: of the nearest rows by whole vectors, how
//! many are found by fewer dimensions (Matryoshka), bytes or bits.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Result, bail};
use kiln_embed::index::{Hit, Index, IndexPrecision};
use kiln_metrics::{checked, ndcg};
use rayon::prelude::*;
use serde::Serialize;

use crate::interrupt;
use crate::search::normalize;
use crate::terminal::Terminal;

/// Rank down to which nDCG counts.
const DEPTH: usize = 10;

/// Grades of corpus rows, and of documents that the corpus lacks, query by query.
pub type Judged<'a> = (&'a [HashMap<usize, f64>], &'a [Vec<f64>]);

/// What to measure.
#[derive(Debug, Clone)]
pub struct Recall {
    /// Rows that each query looks for.
    pub k: usize,
    /// Widths to which vectors are cut.
    pub dimensions: Vec<usize>,
    /// Ways to keep them.
    pub precisions: Vec<IndexPrecision>,
    /// Candidates of the binary forms, in multiples of k.
    pub rescore: usize,
}

/// One way to keep vectors.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecallLine {
    /// Width.
    pub dimensions: usize,
    /// How the vectors are kept.
    pub precision: &'static str,
    /// Bytes of a vector.
    pub bytes: usize,
    /// Share of the whole vectors' k nearest rows that are among these k.
    pub recall: f64,
    /// nDCG@10, where there are judgements.
    pub ndcg_at_10: Option<f64>,
    /// Milliseconds of a query on one core.
    pub ms: f64,
}

fn index(vectors: &[Vec<f32>], dimensions: usize, precision: IndexPrecision) -> Result<Index> {
    let mut index = Index::new(dimensions, precision)?;
    for vector in vectors {
        index.push(&cut(vector, dimensions))?;
    }
    Ok(index)
}

/// The first dimensions, of length 1.
fn cut(vector: &[f32], dimensions: usize) -> Vec<f32> {
    let mut vector = vector[..dimensions].to_vec();
    normalize(&mut vector);
    vector
}

impl Recall {
    /// Measures every width at every precision.
    ///
    /// # Errors
    /// No vectors, widths that they do not have, or Ctrl-C.
    pub fn run(
        &self,
        queries: &[Vec<f32>],
        corpus: &[Vec<f32>],
        judged: Option<Judged<'_>>,
        terminal: Terminal,
    ) -> Result<Vec<RecallLine>> {
        let Some(width) = corpus.first().map(Vec::len).filter(|_| !queries.is_empty()) else {
            bail!("there are no queries, or there is no corpus");
        };
        if let Some(wrong) = self.dimensions.iter().find(|&&one| one == 0 || one > width) {
            bail!("{wrong} dimensions asked of vectors that have {width}");
        }
        let depth = self.k.max(DEPTH);
        let search =
            |dimensions: usize, precision: IndexPrecision| -> Result<(Vec<Vec<Hit>>, f64)> {
                let index = index(corpus, dimensions, precision)?;
                let found: Result<Vec<(Vec<Hit>, f64)>> = queries
                    .par_iter()
                    .map(|query| {
                        let (query, start) = (cut(query, dimensions), Instant::now());
                        let hits = index.search(&query, depth, self.rescore)?;
                        Ok((hits, start.elapsed().as_secs_f64()))
                    })
                    .collect();
                let (hits, seconds): (Vec<_>, Vec<f64>) = found?.into_iter().unzip();
                Ok((hits, 1000.0 * seconds.iter().sum::<f64>() / queries.len() as f64))
            };
        let total = self.dimensions.len() * self.precisions.len();
        let bar = terminal.progress(total as u64 + 1, "searching");
        let (truth, _) = search(width, IndexPrecision::F32)?;
        bar.inc(1);
        let mut lines = Vec::with_capacity(total);
        for &dimensions in &self.dimensions {
            for &precision in &self.precisions {
                if interrupt::asked() {
                    return Err(kiln_embed::Error::Cancelled.into());
                }
                let (found, ms) = search(dimensions, precision)?;
                let recall = found.iter().zip(&truth).map(|(found, truth)| {
                    let truth = &truth[..self.k.min(truth.len())];
                    let same = |hit: &&Hit| truth.iter().any(|other| other.row == hit.row);
                    found.iter().take(self.k).filter(same).count() as f64 / truth.len() as f64
                });
                let score = |(relevant, absent): Judged<'_>| {
                    let judged = relevant.iter().zip(absent);
                    let each = found.iter().zip(judged).map(|(hits, (grades, absent))| {
                        let rows: Vec<usize> = hits.iter().map(|hit| hit.row).collect();
                        ndcg(&rows, grades, absent, DEPTH)
                    });
                    each.sum::<f64>() / queries.len() as f64
                };
                let recall = recall.sum::<f64>() / queries.len() as f64;
                let place = format!("{dimensions} dimensions in {}", precision.name());
                let ndcg = judged.map(|judged| checked(&place, "nDCG@10", score(judged)));
                lines.push(RecallLine {
                    dimensions,
                    precision: precision.name(),
                    bytes: precision.bytes(dimensions),
                    recall: checked(&place, "recall", recall)?.unwrap_or_default(),
                    ndcg_at_10: ndcg.transpose()?.flatten(),
                    ms,
                });
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_vectors_are_found_and_less_is_found_of_less() {
        let value =
            |row: usize, i: usize| ((row * 37 + i * 11 + row * i * 7) % 101) as f32 / 50.0 - 1.0;
        let vectors: Vec<Vec<f32>> = (0..300)
            .map(|row| cut(&(0..64).map(|i| value(row, i)).collect::<Vec<_>>(), 64))
            .collect();
        let measure = Recall {
            k: 10,
            dimensions: vec![64, 8],
            precisions: IndexPrecision::ALL.to_vec(),
            rescore: 4,
        };
        let relevant: Vec<HashMap<usize, f64>> = (0..20).map(|row| [(row, 1.0)].into()).collect();
        let absent = vec![Vec::new(); 20];
        let lines = measure
            .run(&vectors[..20], &vectors, Some((&relevant, &absent)), Terminal::default())
            .unwrap();
        assert_eq!(lines.len(), 8);
        assert_eq!((lines[0].recall, lines[0].ndcg_at_10), (1.0, Some(1.0)));
        // int8 loses little, bits more; bits that are scored again by bytes lie between.
        let recall: Vec<f64> = lines.iter().map(|line| line.recall).collect();
        assert!(recall[1] > 0.95 && recall[2] < recall[3] && recall[3] <= recall[1], "{recall:?}");
        assert!(recall[4] < 1.0, "{recall:?}");
        assert_eq!(lines[2].bytes, 8);
        let wrong = Recall { dimensions: vec![65], ..measure };
        assert!(wrong.run(&vectors[..2], &vectors, None, Terminal::default()).is_err());
    }
}
