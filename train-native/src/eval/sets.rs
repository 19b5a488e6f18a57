//! The sets on which a run is measured while it trains.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use kiln_embed::embedder::{EmbedOptions, Prompt};
use kiln_embed::index::{TopK, cosine};
use kiln_metrics::{checked, ndcg, spearman};

use super::encoder::TextEncoder;
use super::run::Run;
use super::suite::Suite;
use super::task::{PromptChoice, Task, TaskKind};
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
    pub metric: String,
    kind: Kind,
}

enum Kind {
    Retrieval(BeirFolder),
    Pairs { texts: Vec<String>, scores: Vec<f64> },
    Task { task: Box<Task>, data: PathBuf },
}

/// Name of the mean of a suite's tasks among scores.
pub const MEAN: &str = "mean";

/// Scores of all sets by name. A suite's tasks are followed by the mean of each kind and of all tasks.
///
/// # Errors
/// As [`EvalSet::score`].
pub fn scores(
    sets: &[EvalSet],
    model: &dyn TextModel,
    terminal: Terminal,
    mut each: impl FnMut(&EvalSet, f64),
) -> Result<Vec<(String, f64)>> {
    let mut scores = Vec::new();
    let mut by_kind: BTreeMap<TaskKind, Vec<f64>> = BTreeMap::new();
    for set in sets {
        let score = set.score(model, terminal)?;
        each(set, score);
        scores.push((set.name.clone(), score));
        if let Kind::Task { task, .. } = &set.kind {
            by_kind.entry(task.kind).or_default().push(score);
        }
    }
    let mean = |scores: &[f64]| scores.iter().sum::<f64>() / scores.len() as f64;
    for (kind, of_kind) in &by_kind {
        scores.push((format!("{MEAN} {kind}"), mean(of_kind)));
    }
    let all: Vec<f64> = by_kind.into_values().flatten().collect();
    if !all.is_empty() {
        scores.push((MEAN.into(), mean(&all)));
    }
    Ok(scores)
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
            _ => "Spearman",
        };
        Ok(Self { name, metric: metric.into(), kind })
    }

    /// The tasks of a recipe's suite; relative paths are looked for in `folder`.
    ///
    /// # Errors
    /// No such suite, or a task whose data is not there.
    pub fn open_suite(suite: &str, data: &Path, folder: &Path) -> Result<Vec<Self>> {
        let beside = folder.join(suite);
        let name = if beside.is_file() { beside.to_string_lossy() } else { suite.into() };
        let tasks = Suite::open(&name)?.tasks;
        let open = |task: Task| {
            if let Some(path) = &task.path
                && !data.join(path).exists()
            {
                let path = data.join(path);
                bail!("the task {} of the suite {suite}: {}: not there", task.name, path.display());
            }
            Ok(Self {
                name: task.name.clone(),
                metric: task.main_score().into(),
                kind: Kind::Task { task: Box::new(task), data: data.into() },
            })
        };
        tasks.into_iter().map(open).collect()
    }

    /// The model's score.
    ///
    /// # Errors
    /// As embedding.
    pub fn score(&self, model: &dyn TextModel, terminal: Terminal) -> Result<f64> {
        let total = match &self.kind {
            Kind::Pairs { texts, .. } => texts.len(),
            Kind::Retrieval(set) => set.queries.len() + set.corpus.len(),
            Kind::Task { task, data } => {
                let run = Run {
                    encoder: &InTraining { model, terminal },
                    prompts: PromptChoice::Model,
                    data: data.clone(),
                    folder: None,
                    again: true,
                    light: None,
                    reranker: None,
                    run_files: None,
                    terminal,
                };
                let (result, _) = run.one(task)?;
                return self.checked(result.main_score().unwrap_or(f64::NAN));
            }
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
            Kind::Task { .. } => f64::NAN,
        };
        bar.finish_and_clear();
        self.checked(score)
    }

    /// A score that is one; 0 where it is not defined.
    fn checked(&self, score: f64) -> Result<f64> {
        Ok(checked(&self.name, &self.metric, score)?.unwrap_or(0.0))
    }
}

/// A model whose vectors change from one evaluation to the next, so that none are kept.
struct InTraining<'a> {
    model: &'a dyn TextModel,
    terminal: Terminal,
}

impl TextEncoder for InTraining<'_> {
    fn encode(&self, texts: &[String], prompt_text: &str) -> Result<Vec<Vec<f32>>> {
        let options = EmbedOptions::with_prompt(Prompt::Text(prompt_text.into()));
        let bar = self.terminal.progress(texts.len() as u64, "embedding");
        let vectors = self.model.embed(texts, &options, |progress| {
            bar.set_position(progress.texts as u64);
        })?;
        bar.finish_and_clear();
        Ok(vectors)
    }

    fn own_prompt(&self, names: &[&str]) -> String {
        let prompts = self.model.prompts();
        prompts.text(&prompts.first_of(names)).unwrap_or_default().to_string()
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
            DataRow::Scored { pair, score, .. } => {
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
