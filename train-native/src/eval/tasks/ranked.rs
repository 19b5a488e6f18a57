//! Retrieval and reranking: a corpus, or a list that each query brings, ranked by cosine.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Result, bail};
use kiln_embed::index::dot;
use kiln_metrics::{ParallelTopK, Ranking, ScoreParts};

use super::{Evaluation, Reranking, judged_split, read_rows, split_of, text, texts};
use crate::data::{BeirFiles, BeirFolder, StoreWriter};
use crate::embedding::BLOCK;
use crate::eval::run_files::RankedDocuments;
use crate::eval::source::TaskSource;
use crate::eval::task::{Task, TaskKind, TaskOutcome};
use crate::terminal::Terminal;
use crate::text::TextFile;

/// Depths at which mteb cuts rankings.
const DEPTHS: [usize; 7] = [1, 3, 5, 10, 20, 100, 1000];

/// A set to rank: corpus, queries, judgements, and candidates where not all is ranked.
pub type RankedTask = BeirFolder;

pub(super) fn evaluate(
    task: &Task,
    source: &TaskSource,
    evaluation: &Evaluation<'_>,
) -> Result<TaskOutcome> {
    let (split, set) = read(task, source, evaluation.terminal)?;
    let set = (evaluation.reduce)(set)?;
    if task.kind == TaskKind::Reranking && set.candidates.is_none() {
        bail!(
            "{}: reranking needs rows of query, positive and negative, or top_ranked beside the corpus; this is a retrieval set",
            source.label()
        );
    }
    let rankings = match (&set.candidates, evaluation.reranker) {
        (Some(candidates), None) => rank_candidates(&set, candidates, evaluation)?,
        (Some(candidates), Some(reranker)) => {
            let pairs = candidates.iter().map(|rows| rows.iter().map(|&row| (row, 0.0)).collect());
            rerank(&set, pairs.collect(), usize::MAX, reranker, evaluation.terminal)?
        }
        (None, reranker) => {
            let ranked = rank_corpus(&set, task.ignore_identical_ids, evaluation)?;
            match reranker {
                Some(reranker) => {
                    let hits = ranked.into_iter().map(|ranked| ranked.hits).collect();
                    let depth = reranker.candidates;
                    rerank(&set, hits, depth, reranker, evaluation.terminal)?
                }
                None => ranked,
            }
        }
    };
    if let Some(files) = evaluation.run_files.filter(|_| task.kind == TaskKind::Retrieval) {
        let found: Vec<(&str, RankedDocuments)> = rankings
            .iter()
            .enumerate()
            .map(|(query, ranked)| (set.query_ids[query].as_str(), ranked.found(&set)))
            .collect();
        files.write(task, &split, &found)?;
    }
    let mut scores = ranking_scores(&rankings);
    let main = task.main_score();
    let values = if let Some(name) = main.strip_prefix("max_over_subqueries_") {
        let best = best_of_subqueries(&set, &rankings);
        for (name, value) in ranking_scores(&best) {
            scores.insert(format!("max_over_subqueries_{name}"), value);
        }
        best.iter().map(|ranking| measure(ranking, name)).collect()
    } else {
        rankings.iter().map(|one| measure(&one.ranking, main)).collect()
    };
    Ok(TaskOutcome { scores, parts: ScoreParts::Mean { values }, split })
}

/// The data set, and the split that it is.
fn read(task: &Task, source: &TaskSource, terminal: Terminal) -> Result<(String, RankedTask)> {
    if let TaskSource::Folder(folder) = source
        && folder.join("qrels").is_dir()
    {
        let split = task.split.clone().map_or_else(|| judged_split(folder), Ok)?;
        return Ok((split.clone(), BeirFolder::read(folder, &split, None, terminal)?));
    }
    if let TaskSource::Hub { .. } = source {
        let split = task.split.as_deref().unwrap_or("test");
        // mteb's names of the parts: corpus, queries and default or qrels, after a subset's name.
        let part = |names: &[&str], splits: &[&str]| -> Result<Vec<TextFile>> {
            for name in names {
                let name = match task.subset.as_str() {
                    "default" => name.to_string(),
                    subset => format!("{subset}-{name}"),
                };
                for split in splits {
                    let files = source.split(&name, split)?;
                    if !files.is_empty() {
                        return Ok(files);
                    }
                }
            }
            Ok(Vec::new())
        };
        let files = BeirFiles {
            corpus: part(&["corpus"], &[split, "corpus", "train"])?,
            queries: part(&["queries", "query"], &[split, "queries", "query", "train"])?,
            qrels: part(&["default", "qrels"], &[split])?,
            top_ranked: part(&["top_ranked"], &[split, "train"])?,
        };
        if !files.corpus.is_empty() && !files.queries.is_empty() && !files.qrels.is_empty() {
            return Ok((split.into(), files.read(None, terminal)?));
        }
        if task.kind == TaskKind::Retrieval {
            bail!(
                "{}: no files of corpus, queries and judgements for the split {split}",
                source.label()
            );
        }
    }
    let (split, files) = split_of(task, source)?;
    Ok((split.clone(), lists(&files, &split)?))
}

/// Rows of query, positive and negative as one set, with mteb's ids, by which it breaks ties.
pub(crate) fn lists(files: &[TextFile], split: &str) -> Result<RankedTask> {
    let mut corpus = StoreWriter::new()?;
    let mut set = (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (corpus_ids, query_ids, queries, relevant, candidates) =
        (&mut set.0, &mut set.1, &mut set.2, &mut set.3, &mut set.4);
    read_rows(files, &[], |fields| {
        let query = text(fields, &["query"])?;
        let [positive, negative] = [["positive", "pos"], ["negative", "neg"]].map(|names| {
            names.into_iter().find(|name| fields.contains_key(*name)).unwrap_or(names[0])
        });
        let (positive, negative) = (texts(fields, positive)?, texts(fields, negative)?);
        // Rows with one kind alone cannot be ranked wrong.
        if positive.is_empty() || negative.is_empty() {
            return Ok(());
        }
        let id = format!("{split}_query{}", queries.len());
        let (mut grades, mut rows) = (HashMap::new(), Vec::new());
        for (name, grade, documents) in [("apositive", 1.0, positive), ("negative", 0.0, negative)]
        {
            for (i, document) in documents.into_iter().enumerate() {
                corpus.push(&document)?;
                let row = corpus_ids.len();
                corpus_ids.push(format!("{name}_{id}_{i:05}"));
                grades.insert(row, grade);
                rows.push(row);
            }
        }
        query_ids.push(id);
        queries.push(query);
        relevant.push(grades);
        candidates.push(rows);
        Ok(())
    })?;
    let (corpus_ids, query_ids, queries, relevant, candidates) = set;
    if queries.is_empty() {
        bail!("no row has both positives and negatives");
    }
    let corpus = corpus.finish()?;
    let absent = vec![Vec::new(); queries.len()];
    let candidates = Some(candidates);
    Ok(BeirFolder { corpus, corpus_ids, query_ids, queries, relevant, absent, candidates })
}

/// Scored documents of a query, and the ranking that they make.
struct Ranked {
    hits: Vec<(usize, f64)>,
    ranking: Ranking,
}

impl Ranked {
    /// Its documents, best first, ties by id descending as mteb breaks them.
    fn found(&self, set: &RankedTask) -> RankedDocuments {
        let mut found: RankedDocuments =
            self.hits.iter().map(|(row, score)| (set.corpus_ids[*row].clone(), *score)).collect();
        found.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| b.0.cmp(&a.0)));
        found
    }
}

impl std::borrow::Borrow<Ranking> for Ranked {
    fn borrow(&self) -> &Ranking {
        &self.ranking
    }
}

fn ranking(set: &RankedTask, query: usize, hits: Vec<(usize, f64)>) -> Ranked {
    let row_of: HashMap<&str, usize> =
        hits.iter().map(|(row, _)| (set.corpus_ids[*row].as_str(), *row)).collect();
    let documents =
        hits.iter().map(|(row, score)| (set.corpus_ids[*row].as_str(), *score)).collect();
    let grades = &set.relevant[query];
    let grade = |id: &str| grades.get(&row_of[id]).copied();
    let judged = grades.values().chain(&set.absent[query]).copied();
    let made = Ranking::of(documents, grade, judged);
    Ranked { hits, ranking: made }
}

/// Blocks of the corpus as vectors to rank by.
fn corpus_blocks(
    set: &RankedTask,
    evaluation: &Evaluation<'_>,
    mut each: impl FnMut(Vec<Vec<f32>>) -> Result<()>,
) -> Result<()> {
    for rows in set.corpus.blocks(BLOCK) {
        let texts = rows.map(|row| set.corpus.get(row)).collect::<Result<Vec<String>>>()?;
        each(evaluation.to_rank(&texts, 1)?)?;
    }
    Ok(())
}

fn rank_corpus(
    set: &RankedTask,
    ignore_identical_ids: bool,
    evaluation: &Evaluation<'_>,
) -> Result<Vec<Ranked>> {
    let queries = evaluation.to_rank(&set.queries, 0)?;
    let deepest = DEPTHS[DEPTHS.len() - 1];
    let mut search = ParallelTopK::new(&queries, deepest)?;
    corpus_blocks(set, evaluation, |vectors| Ok(search.push(&vectors)?))?;
    let hits = search.finish().into_iter().enumerate();
    Ok(hits
        .map(|(query, hits)| {
            let own =
                |row: usize| ignore_identical_ids && set.corpus_ids[row] == set.query_ids[query];
            let hits = hits.into_iter().filter(|hit| !own(hit.row));
            ranking(set, query, hits.map(|hit| (hit.row, f64::from(hit.score))).collect())
        })
        .collect())
}

fn rank_candidates(
    set: &RankedTask,
    candidates: &[Vec<usize>],
    evaluation: &Evaluation<'_>,
) -> Result<Vec<Ranked>> {
    let queries = evaluation.to_rank(&set.queries, 0)?;
    let mut vectors = Vec::with_capacity(set.corpus.len());
    corpus_blocks(set, evaluation, |block| {
        vectors.extend(block);
        Ok(())
    })?;
    let of_query = |(query, rows): (usize, &Vec<usize>)| {
        let hits = rows.iter().map(|&row| (row, f64::from(dot(&queries[query], &vectors[row]))));
        ranking(set, query, hits.collect())
    };
    Ok(candidates.iter().enumerate().map(of_query).collect())
}

/// The best `depth` hits of each query, which come best first, in the order of a cross-encoder; the others stay
/// behind them.
fn rerank(
    set: &RankedTask,
    hits: Vec<Vec<(usize, f64)>>,
    depth: usize,
    reranker: Reranking<'_>,
    terminal: Terminal,
) -> Result<Vec<Ranked>> {
    let total: usize = hits.iter().map(|hits| hits.len().min(depth)).sum();
    let bar = terminal.progress(total as u64, "reranking");
    let mut before = 0;
    let mut rankings = Vec::with_capacity(hits.len());
    for (query, mut hits) in hits.into_iter().enumerate() {
        let best = hits.len().min(depth);
        let texts = hits[..best].iter().map(|(row, _)| set.corpus.get(*row));
        let texts = texts.collect::<Result<Vec<String>>>()?;
        let pairs: Vec<(&str, &str)> =
            texts.iter().map(|text| (set.queries[query].as_str(), text.as_str())).collect();
        let scores = reranker.model.logits(&pairs, reranker.batch_tokens, true, &mut |done| {
            bar.set_position((before + done.texts) as u64);
        })?;
        before += best;
        let lowest = scores.iter().copied().fold(f32::INFINITY, f32::min);
        for (place, (_, score)) in hits.iter_mut().enumerate() {
            *score = match scores.get(place) {
                Some(score) => f64::from(*score),
                None => f64::from(lowest) - 1.0 - (place - best) as f64,
            };
        }
        rankings.push(ranking(set, query, hits));
    }
    bar.finish_and_clear();
    Ok(rankings)
}

/// Queries whose ids differ in what follows the last `_` as one, each document with its best score
/// (mteb's way with MIND).
fn best_of_subqueries(set: &RankedTask, rankings: &[Ranked]) -> Vec<Ranking> {
    let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (query, id) in set.query_ids.iter().enumerate() {
        let base = id.rsplit_once('_').map_or(id.as_str(), |(base, _)| base);
        groups.entry(base).or_default().push(query);
    }
    let merged = |queries: &Vec<usize>| {
        let mut best: BTreeMap<usize, f64> = BTreeMap::new();
        for (row, score) in queries.iter().flat_map(|&query| &rankings[query].hits) {
            let kept = best.entry(*row).or_insert(*score);
            *kept = kept.max(*score);
        }
        ranking(set, queries[queries.len() - 1], best.into_iter().collect()).ranking
    };
    groups.values().map(merged).collect()
}

/// A measure of one ranking by mteb's name (`ndcg_at_10`).
fn measure(ranking: &Ranking, name: &str) -> f64 {
    let (kind, depth) = name.rsplit_once("_at_").unwrap_or((name, "1000"));
    let depth = depth.parse().unwrap_or(usize::MAX);
    match kind {
        "map" => ranking.average_precision(depth),
        "mrr" => ranking.reciprocal_rank(depth),
        "recall" => ranking.recall(depth),
        "precision" => ranking.precision(depth),
        "hit_rate" => ranking.success(depth),
        _ => ranking.ndcg(depth),
    }
}

/// Means over queries of all of mteb's measures and depths.
pub fn ranking_scores<R>(rankings: &[R]) -> BTreeMap<String, f64>
where
    R: std::borrow::Borrow<Ranking>,
{
    let mut scores = BTreeMap::new();
    for depth in DEPTHS {
        for kind in ["ndcg", "map", "mrr", "recall", "precision", "hit_rate"] {
            let name = format!("{kind}_at_{depth}");
            let sum: f64 = rankings.iter().map(|one| measure(one.borrow(), &name)).sum();
            scores.insert(name, sum / rankings.len().max(1) as f64);
        }
    }
    // mteb's name for the share of queries whose first hit is right.
    scores.insert("accuracy".into(), scores["recall_at_1"]);
    scores
}
