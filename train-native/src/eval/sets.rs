//! The sets on which a run is measured while it trains.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use kiln_embed::embedder::EmbedOptions;
use kiln_embed::index::{TopK, cosine};
use kiln_metrics::{checked, ndcg, spearman};

use crate::data::corpus::{Corpus, CorpusSize};
use crate::data::{BeirFolder, DataRow, RowFormat};
use crate::embedding::{BLOCK, TextModel};
use crate::recipe::EvaluationSet;
use crate::terminal::Terminal;
use crate::text::{Columns, TextFile};

/// Rank down to which nDCG counts.
const DEPTH: usize = 10;

/// A set that is ready to be measured on.
pub struct EvalSet {
    /// Name for reports.
    pub name: String,
    /// What is measured, as people call it.
    pub metric: &'static str,
    kind: Kind,
}

enum Kind {
    Retrieval(BeirFolder),
    Pairs { texts: Vec<String>, scores: Vec<f64> },
}

impl EvalSet {
    /// Reads a set of a recipe; relative paths are looked for in `folder`.
    ///
    /// # Errors
    /// Files that cannot be read, or that are neither a BEIR folder nor scored pairs.
    pub fn open(set: &EvaluationSet, folder: &Path, seed: u64, terminal: Terminal) -> Result<Self> {
        let name = set.name.clone();
        let retrieval = |folder| Kind::Retrieval(folder);
        let kind = if set.path == "made-up:test" {
            retrieval(made_up(seed, set.limit)?)
        } else {
            let path = folder.join(&set.path);
            if path.is_dir() {
                retrieval(BeirFolder::read(&path, &set.split, set.limit, terminal)?)
            } else {
                pairs(&path, set.limit).with_context(|| format!("evaluation set {name:?}"))?
            }
        };
        let metric = match kind {
            Kind::Retrieval(_) => "nDCG@10",
            Kind::Pairs { .. } => "Spearman",
        };
        Ok(Self { name, metric, kind })
    }

    /// The model's score.
    ///
    /// # Errors
    /// As embedding.
    pub fn score(&self, model: &dyn TextModel, terminal: Terminal) -> Result<f64> {
        let total = match &self.kind {
            Kind::Pairs { texts, .. } => texts.len(),
            Kind::Retrieval(set) => set.queries.len() + set.corpus.len(),
        };
        let bar = terminal.progress(total as u64, &self.name);
        let mut done = 0;
        let mut embed = |texts: &[String], prompt: &str| {
            let options = EmbedOptions::with_prompt(model.prompts().first_of(&[prompt]));
            let vectors = model.embed(texts, &options, |progress| {
                bar.set_position((done + progress.texts) as u64);
            })?;
            done += texts.len();
            anyhow::Ok(vectors)
        };
        let score = match &self.kind {
            Kind::Pairs { texts, scores } => {
                let vectors = embed(texts, "query")?;
                let found: Vec<f64> =
                    vectors.chunks(2).map(|pair| f64::from(cosine(&pair[0], &pair[1]))).collect();
                // Equal scores everywhere (a model at its start) rank nothing.
                spearman(&found, scores)
            }
            Kind::Retrieval(set) => {
                let mut search = TopK::new(&embed(&set.queries, "query")?, DEPTH)?;
                for block in set.corpus.blocks(BLOCK) {
                    let texts = block.map(|row| set.corpus.get(row)).collect::<Result<Vec<_>>>()?;
                    search.push(&embed(&texts, "document")?)?;
                }
                let hits = search.finish();
                let judged = set.relevant.iter().zip(&set.absent);
                let scores = hits.iter().zip(judged).map(|(hits, (grades, absent))| {
                    let ranking: Vec<usize> = hits.iter().map(|hit| hit.row).collect();
                    ndcg(&ranking, grades, absent, DEPTH)
                });
                scores.sum::<f64>() / hits.len().max(1) as f64
            }
        };
        bar.finish_and_clear();
        self.checked(score)
    }

    /// A score that is one; 0 where it is not defined.
    fn checked(&self, score: f64) -> Result<f64> {
        Ok(checked(&self.name, self.metric, score)?.unwrap_or(0.0))
    }
}

fn made_up(seed: u64, limit: Option<usize>) -> Result<BeirFolder> {
    let test = Corpus::generate(seed, CorpusSize::default()).test;
    let mut corpus = crate::data::StoreWriter::new()?;
    for text in &test.corpus {
        corpus.push(text)?;
    }
    let count = limit.unwrap_or(usize::MAX).min(test.queries.len());
    let grades = |row: &usize| -> HashMap<usize, f64> { [(*row, 1.0)].into() };
    Ok(BeirFolder {
        corpus: corpus.finish()?,
        corpus_ids: (0..test.corpus.len()).map(|row| format!("d{row}")).collect(),
        query_ids: (0..count).map(|row| format!("q{row}")).collect(),
        queries: test.queries[..count].to_vec(),
        relevant: test.relevant[..count].iter().map(grades).collect(),
        absent: vec![Vec::new(); count],
        candidates: None,
    })
}

fn pairs(path: &Path, limit: Option<usize>) -> Result<Kind> {
    let file = TextFile::open(&path.to_string_lossy(), Columns::required(&[]))?;
    let (mut texts, mut scores) = (Vec::new(), Vec::new());
    for object in file.objects()?.take(limit.unwrap_or(usize::MAX)) {
        let object = object?;
        let place = || format!("{}:{}", file.label, object.number);
        let format = RowFormat::of(&object.fields).with_context(place)?;
        match format.read(&object.fields).with_context(place)? {
            DataRow::Scored(pair, score) => {
                texts.extend(pair);
                scores.push(score);
            }
            _ => bail!(
                "{}: holds {}; expected scored pairs or a BEIR folder",
                place(),
                format.name()
            ),
        }
    }
    if scores.len() < 2 {
        bail!("{}: fewer than two pairs", file.label);
    }
    Ok(Kind::Pairs { texts, scores })
}
