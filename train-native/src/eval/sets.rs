//! The sets on which a run is measured while it trains.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use kiln_embed::embedder::{DOCUMENT, EmbedOptions, Prompt, QUERY, Similarity};
use kiln_embed::index::{TopK, cosine};
use kiln_embed::reranker::{ScoreActivation, ranked};
use kiln_metrics::{checked, ndcg, spearman};

use super::bm25::bm25_rankings;
use super::encoder::TextEncoder;
use super::run::EvalRun;
use super::suite::Suite;
use super::task::{PromptChoice, Task, TaskKind};
use super::tasks::{Reranking, lists};
use crate::data::corpus::{Corpus, CorpusSize};
use crate::data::{BeirFolder, DataRow, RowFormat};
use crate::embedding::{BLOCK, TextModel};
use crate::recipe::EvaluationSet;
use crate::reranking::PairModel;
use crate::terminal::Terminal;
use crate::text::{Columns, TextFile};

/// Rank down to which nDCG counts.
const DEPTH: usize = 10;

/// The measure that stands beside nDCG@10 where a cross-encoder ranks.
pub const MRR: &str = "MRR@10";

/// Texts that BM25 finds and a cross-encoder ranks anew, where a recipe does not say.
const CANDIDATES: usize = 100;

/// A model in training, as it is measured.
#[derive(Clone, Copy)]
pub enum Model<'a> {
    /// One that gives texts vectors.
    Texts(&'a dyn TextModel),
    /// One that scores pairs.
    Pairs(&'a dyn PairModel),
}

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
    Task { task: Box<Task>, data: PathBuf, prompts: PromptChoice },
}

/// Name of the mean of a suite's tasks among scores.
pub const MEAN: &str = "mean";

/// Scores of all sets by name. A suite's tasks are followed by the mean of each kind and of all tasks.
///
/// # Errors
/// As [`EvalSet::score`].
pub fn scores(
    sets: &[EvalSet],
    model: Model<'_>,
    terminal: Terminal,
    mut each: impl FnMut(&EvalSet, f64),
) -> Result<Vec<(String, f64)>> {
    let mut scores = Vec::new();
    let mut by_kind: BTreeMap<TaskKind, Vec<f64>> = BTreeMap::new();
    for set in sets {
        let (score, rank) = match model {
            Model::Texts(model) => (set.score(model, terminal)?, None),
            Model::Pairs(model) => set.score_pairs(model, terminal)?,
        };
        each(set, score);
        scores.push((set.name.clone(), score));
        scores.extend(rank.map(|rank| (format!("{} {MRR}", set.name), rank)));
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

    /// Reads a set of a recipe that trains a cross-encoder, which ranks what BM25 finds, or what the set itself lists;
    /// relative paths are looked for in `folder`.
    ///
    /// # Errors
    /// Files that cannot be read, or that are neither a BEIR folder nor rows to rank nor scored pairs.
    pub fn open_to_rerank(
        set: &EvaluationSet,
        folder: &Path,
        seed: u64,
        terminal: Terminal,
    ) -> Result<Self> {
        let path = folder.join(&set.path);
        let listed = set.path != "made-up:test" && !path.is_dir();
        let mut opened = match listed && has_negatives(&path)? {
            false => Self::open(set, folder, seed, terminal)?,
            true => {
                let file = TextFile::open(&path.to_string_lossy(), Columns::required(&[]))?;
                let mut listed = lists(&[file], &set.split)
                    .with_context(|| format!("evaluation set {:?}", set.name))?;
                let limit = set.limit.unwrap_or(usize::MAX);
                listed.queries.truncate(limit);
                listed.relevant.truncate(limit);
                listed.candidates.iter_mut().for_each(|rows| rows.truncate(limit));
                let metric = "nDCG@10".into();
                Self { name: set.name.clone(), metric, kind: Kind::Retrieval(listed) }
            }
        };
        if let Kind::Retrieval(found) = &mut opened.kind
            && found.candidates.is_none()
        {
            let corpus = (0..found.corpus.len()).map(|row| found.corpus.get(row));
            let corpus = corpus.collect::<Result<Vec<String>>>()?;
            let most = set.candidates.unwrap_or(CANDIDATES);
            let ranked = bm25_rankings(&found.queries, &corpus, most);
            let (before, rank) = measures(found, &ranked);
            terminal.note(format!(
                "evaluation set {}: BM25's {most} best, which are ranked anew, have nDCG@10 {before:.4} and {MRR} \
                 {rank:.4} as BM25 ranks them",
                set.name
            ));
            found.candidates = Some(ranked);
        }
        Ok(opened)
    }

    /// The tasks of a recipe's suite, which get prompts as `prompts` names them; relative paths are looked for in
    /// `folder`. A cross-encoder takes tasks of reranking alone.
    ///
    /// # Errors
    /// No such suite or prompts, a task whose data or instruction is not there, or one that a cross-encoder cannot do.
    pub fn open_suite(
        suite: &str,
        prompts: Option<&str>,
        data: &Path,
        folder: &Path,
        reranks: bool,
    ) -> Result<Vec<Self>> {
        let prompts = prompts.map(PromptChoice::from_name).transpose().context("eval.prompts")?;
        let prompts = prompts.unwrap_or_default();
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
            if reranks && task.kind != TaskKind::Reranking {
                bail!(
                    "the task {} of the suite {suite} is of {}, and a cross-encoder does reranking; use [[eval.set]] for a \
                     retrieval set",
                    task.name,
                    task.kind
                );
            }
            if prompts.instruction(&task).is_err() {
                bail!(
                    "eval.prompts: the suite {suite} has no such instruction for the task {}",
                    task.name
                );
            }
            Ok(Self {
                name: task.name.clone(),
                metric: task.main_score().into(),
                kind: Kind::Task {
                    task: Box::new(task),
                    data: data.into(),
                    prompts: prompts.clone(),
                },
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
            Kind::Task { task, data, prompts } => {
                let run = EvalRun {
                    encoder: &InTraining { model, terminal },
                    prompts: prompts.clone(),
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
        let mut embed = |texts: &[String], prompts: &[&str]| {
            let options = EmbedOptions::with_prompt(model.prompts().first_of(prompts));
            let vectors = model.embed(texts, &options, |progress| {
                bar.set_position((done + progress.texts) as u64);
            })?;
            done += texts.len();
            anyhow::Ok(vectors)
        };
        let score = match &self.kind {
            Kind::Pairs { texts, scores } => {
                let vectors = embed(texts, &QUERY)?;
                let found: Vec<f64> =
                    vectors.chunks(2).map(|pair| f64::from(cosine(&pair[0], &pair[1]))).collect();
                // Equal scores everywhere (a model at its start) rank nothing.
                spearman(&found, scores)
            }
            Kind::Retrieval(set) => {
                let mut search = TopK::new(&embed(&set.queries, &QUERY)?, DEPTH)?;
                for block in set.corpus.blocks(BLOCK) {
                    let texts = block.map(|row| set.corpus.get(row)).collect::<Result<Vec<_>>>()?;
                    search.push(&embed(&texts, &DOCUMENT)?)?;
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

    /// A cross-encoder's score and, where it ranks, its mean reciprocal rank.
    ///
    /// # Errors
    /// As [`PairModel::logits`].
    pub fn score_pairs(
        &self,
        model: &dyn PairModel,
        terminal: Terminal,
    ) -> Result<(f64, Option<f64>)> {
        match &self.kind {
            Kind::Pairs { texts, scores } => {
                let pairs: Vec<(&str, &str)> =
                    texts.chunks(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
                let bar = terminal.progress(pairs.len() as u64, &self.name);
                let mut progress = |done: kiln_embed::Progress| bar.set_position(done.texts as u64);
                let logits = model.logits(&pairs, None, true, &mut progress)?;
                bar.finish_and_clear();
                let found: Vec<f64> = logits.into_iter().map(f64::from).collect();
                Ok((self.checked(spearman(&found, scores))?, None))
            }
            Kind::Retrieval(set) => {
                let candidates = set.candidates.as_deref().unwrap_or_default();
                let total: usize = candidates.iter().map(Vec::len).sum();
                let bar = terminal.progress(total as u64, &self.name);
                let mut rankings = Vec::with_capacity(candidates.len());
                for (query, rows) in set.queries.iter().zip(candidates) {
                    let texts = rows.iter().map(|&row| set.corpus.get(row));
                    let texts = texts.collect::<Result<Vec<String>>>()?;
                    let pairs: Vec<(&str, &str)> =
                        texts.iter().map(|text| (query.as_str(), text.as_str())).collect();
                    let logits = model.logits(&pairs, None, true, &mut |_| {})?;
                    // Equal scores keep the candidates' order.
                    let places = ranked(&logits, ScoreActivation::Identity);
                    rankings.push(places.iter().map(|place| rows[place.index]).collect());
                    bar.inc(rows.len() as u64);
                }
                bar.finish_and_clear();
                let (score, rank) = measures(set, &rankings);
                Ok((self.checked(score)?, Some(rank)))
            }
            Kind::Task { task, data, .. } => {
                let run = EvalRun {
                    encoder: &NoEncoder,
                    prompts: PromptChoice::None,
                    data: data.clone(),
                    folder: None,
                    again: true,
                    light: None,
                    reranker: Some(Reranking { model, candidates: 0, batch_tokens: None }),
                    run_files: None,
                    terminal,
                };
                let (result, _) = run.one(task)?;
                Ok((self.checked(result.main_score().unwrap_or(f64::NAN))?, None))
            }
        }
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

    fn instruction_format(&self) -> Option<String> {
        self.model.prompts().instruction_format().map(String::from)
    }

    fn similarity(&self) -> Similarity {
        self.model.similarity()
    }
}

/// What stands for an encoder where nothing is embedded.
struct NoEncoder;

impl TextEncoder for NoEncoder {
    fn encode(&self, _: &[String], _: &str) -> Result<Vec<Vec<f32>>> {
        bail!("a cross-encoder gives texts no vectors")
    }

    fn own_prompt(&self, _: &[&str]) -> String {
        String::new()
    }
}

/// nDCG@10 and MRR@10 of rankings of corpus rows, means over the queries. Of lists of graded texts that are all that
/// is judged, as of corpora.
fn measures(set: &BeirFolder, rankings: &[Vec<usize>]) -> (f64, f64) {
    let judged = set.relevant.iter().zip(&set.absent);
    let (mut gain, mut rank) = (0.0, 0.0);
    for (ranking, (grades, absent)) in rankings.iter().zip(judged) {
        gain += ndcg(ranking, grades, absent, DEPTH);
        let is_relevant = |row: &usize| grades.get(row).is_some_and(|grade| *grade > 0.0);
        let first = ranking.iter().take(DEPTH).position(is_relevant);
        rank += first.map_or(0.0, |place| 1.0 / (place as f64 + 1.0));
    }
    let count = rankings.len().max(1) as f64;
    (gain / count, rank / count)
}

/// Whether a file's rows list negatives of a query.
fn has_negatives(path: &Path) -> Result<bool> {
    let file = TextFile::open(&path.to_string_lossy(), Columns::required(&[]))?;
    let first = file.objects()?.next().transpose()?;
    Ok(first
        .is_some_and(|row| ["negative", "neg"].iter().any(|name| row.fields.contains_key(*name))))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// JSON has no other: what a run notes of its steps could not be read when it goes on.
    #[test]
    fn a_score_in_training_is_a_finite_number() {
        let score = |metric: &str, score: f64| {
            let kind = Kind::Pairs { texts: Vec::new(), scores: Vec::new() };
            EvalSet { name: "dev".into(), metric: metric.into(), kind }.checked(score)
        };
        // Equal values have no correlation: a model that gives them ranks nothing.
        assert_eq!(score("Spearman", f64::NAN).unwrap(), 0.0);
        assert_eq!(score("nDCG@10", 0.5).unwrap(), 0.5);
        for (metric, value) in [
            ("nDCG@10", f64::NAN),
            ("nDCG@10", f64::INFINITY),
            ("Spearman", f64::INFINITY),
            ("Spearman", f64::NEG_INFINITY),
        ] {
            assert!(score(metric, value).is_err(), "{metric} {value}");
        }
    }
}
