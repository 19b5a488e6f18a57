//! A teacher's ranks of all passages of some rows, computed once and kept.

use std::collections::HashMap;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use kiln_embed::embedder::Prompt;
use kiln_synthesis::refine::{Passage, Rank, Ranks, RefineRow, Role, lines, open};
use serde_json::json;

use crate::data::{DataSet, Example, LeakFilter, OnBadRow, Opening, Store, text_hash};
use crate::embedding::TextModel;
use crate::interrupt;
use crate::mine::{
    Asking, Candidate, Query, Scored, corpus, read_scores, search, teacher_prompts, write_scores,
};
use crate::recipe::{DataSource, LeakRule};
use crate::terminal::Terminal;

/// What to ask a teacher about.
#[derive(Debug, Clone)]
pub struct Ask<'a> {
    /// Files of rows.
    pub data: &'a [PathBuf],
    /// What to do with rows that cannot be read.
    pub on_bad_row: OnBadRow,
    /// File of texts to rank; the rows' own passages where absent.
    pub corpus: Option<&'a str>,
    /// The teacher's name, with all that changes its vectors: its files, its prompts, how it is loaded.
    pub teacher: &'a str,
    /// Its prompts of queries and documents, where they are not its own.
    pub prompts: [Option<Prompt>; 2],
    /// Nearest texts whose ranks are told apart.
    pub top_k: usize,
    /// Where scores and ranks are kept.
    pub kept: &'a Path,
    /// What the user sees.
    pub terminal: Terminal,
}

/// The ranks of all passages of the rows: kept by an earlier run on the same texts with the same teacher, or
/// found now, for which `load` makes the teacher ready.
///
/// A passage's rank is its place among the nearest texts that are neither the query nor another answer to it, by
/// all rows.
///
/// # Errors
/// Rows or texts that cannot be read or embedded; [`kiln_embed::Error::Cancelled`] after Ctrl-C.
pub fn ranks(ask: &Ask<'_>, load: impl FnOnce() -> Result<Arc<dyn TextModel>>) -> Result<Ranks> {
    let set = pairs(ask)?;
    let texts = corpus(ask.corpus, &set, ask.terminal)?;
    let scored = match again(ask, &set, &texts) {
        Some(scored) => scored,
        None => {
            let teacher = load()?;
            let asking = Asking {
                model: ask.teacher.into(),
                prompts: teacher_prompts(teacher.prompts(), ask.prompts.clone())?,
                top_k: ask.top_k,
                given: true,
            };
            let scored = search(teacher.as_ref(), &asking, &set, &texts, ask.terminal)?;
            write_scores(ask.kept, &scored)?;
            scored
        }
    };
    let mut ranks = Ranks::new(scored.model.clone(), depth(&scored), scored.corpus);
    for query in &scored.queries {
        let example = set.get(query.number)?;
        insert(&mut ranks, &example, query, &mut |row| Ok(text_hash(&texts.get::<String>(row)?)))?;
    }
    Ok(ranks)
}

/// Nearest texts of a query that are known.
fn depth(scored: &Scored) -> usize {
    scored.queries.iter().map(|query| query.candidates.len()).max().unwrap_or(0)
}

/// The rows as examples, whatever formats they have.
fn pairs(ask: &Ask<'_>) -> Result<DataSet> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder for the texts")?;
    let path = folder.path().join("pairs.jsonl");
    let mut file = BufWriter::new(std::fs::File::create(&path)?);
    let bar = ask.terminal.counter("rows");
    let mut number = 0usize;
    for data in ask.data {
        let data = open(data)?;
        lines(&data, &mut |line, text| {
            number += 1;
            if number.is_multiple_of(1024) && interrupt::asked() {
                return Err(kiln_embed::Error::Cancelled.into());
            }
            bar.inc(1);
            let row = text.and_then(|text| {
                RefineRow::of_line(text, &data.label)
                    .with_context(|| format!("{}:{line}", data.label))
            });
            let row = match (row, ask.on_bad_row) {
                (Ok(row), _) => row,
                (Err(_), OnBadRow::Skip) => return Ok(()),
                (Err(error), OnBadRow::Stop) => return Err(error),
            };
            let texts = |all: &[Passage]| -> Vec<String> {
                all.iter().map(|one| one.text.clone()).collect()
            };
            let pair = json!({
                "query": row.query, "pos": texts(&row.positives), "neg": texts(&row.negatives),
            });
            writeln!(file, "{pair}").context(
                "cannot keep the texts in the temporary folder; free space there, or set TMPDIR",
            )
        })?;
    }
    file.flush().context("the temporary file of texts")?;
    bar.finish_and_clear();
    let opening = Opening {
        folder: Path::new(""),
        on_bad_row: OnBadRow::Stop,
        leaks: None::<&LeakFilter>,
        leak: LeakRule::None,
        // Rows of the same positives may have other negatives.
        deduplicate: false,
        texts_alone: false,
        scored: false,
        binary: false,
        negatives: 0,
        seed: 1,
        terminal: ask.terminal,
    };
    DataSet::open(&DataSource::file(&path.to_string_lossy()), &opening).with_context(|| {
        let names: Vec<_> = ask.data.iter().map(|path| path.display().to_string()).collect();
        names.join(", ")
    })
}

/// What an earlier run kept, where it is about the same.
fn again(ask: &Ask<'_>, set: &DataSet, texts: &Store) -> Option<Scored> {
    if !ask.kept.exists() {
        return None;
    }
    let other = |why: &str| {
        let name = ask.kept.display();
        ask.terminal.note(format!("{name}: {why}; the teacher is asked again"));
        None
    };
    // What a name stands for is a matter of the model's files, and so of the teacher's name.
    let prompts = ask.prompts.each_ref().map(|prompt| match prompt {
        Some(Prompt::Text(text)) => Some(text.as_str()),
        _ => None,
    });
    match read_scores(&ask.kept.to_string_lossy(), set, texts, prompts) {
        Ok(scored) if scored.model != ask.teacher => other("was kept for another teacher"),
        Ok(scored) if !scored.given || depth(&scored) < ask.top_k.min(scored.corpus) => {
            other("was kept with fewer nearest texts")
        }
        Ok(scored) => Some(scored),
        Err(_) => other("was kept for other rows or texts, or by another version of Kiln"),
    }
}

/// Adds the ranks of an example's passages. `hash` is that of a text of the corpus.
fn insert(
    ranks: &mut Ranks,
    example: &Example,
    query: &Query,
    hash: &mut dyn FnMut(usize) -> Result<u128>,
) -> Result<()> {
    let mut candidates = HashMap::new();
    for one in query.candidates.iter().filter(|one| one.known || one.given) {
        candidates.insert(hash(one.row)?, one);
    }
    let positives = (Role::Positive, &example.pos, &query.positive_scores);
    let negatives = (Role::Negative, &example.neg, &query.negative_scores);
    for (role, texts, scores) in [positives, negatives] {
        for (text, &score) in texts.iter().zip(scores) {
            let own = candidates.get(&text_hash(text)).copied();
            ranks.insert(role, &example.query, text, placed(query, own, score));
        }
    }
    Ok(())
}

/// A passage's rank, or the one after the last where it is farther than all that are known. As a candidate it has
/// the score that it was ranked by: another batch may round the same text otherwise, and put it behind itself.
fn placed(query: &Query, own: Option<&Candidate>, score: f32) -> Rank {
    let last = query.candidates.last().map_or(f32::NEG_INFINITY, |candidate| candidate.score);
    if own.is_none() && score < last {
        return Rank { score, rank: query.candidates.len() + 1 };
    }
    let score = own.map_or(score, |own| own.score);
    let others = query.candidates.iter().filter(|one| !one.own && !one.known);
    Rank { score, rank: 1 + others.filter(|one| one.score > score).count() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mine::Candidate;

    const TEXTS: [&str; 6] = ["q", "first", "near", "nearer", "third", "other"];

    fn candidate(row: usize, score: f32) -> Candidate {
        let (known, given) = (matches!(row, 2 | 3), matches!(row, 1 | 4));
        Candidate { row, score, known, own: row == 0, given }
    }

    /// The ranks of a query among candidates, by the scores of its positives and negatives.
    fn ranked(candidates: &[(usize, f32)], pos: &[(&str, f32)], neg: &[(&str, f32)]) -> Ranks {
        let split = |all: &[(&str, f32)]| -> (Vec<String>, Vec<f32>) {
            all.iter().map(|(text, score)| (text.to_string(), *score)).unzip()
        };
        let ((pos, positive_scores), (neg, negative_scores)) = (split(pos), split(neg));
        let candidates = candidates.iter().map(|(row, score)| candidate(*row, *score)).collect();
        let query = Query { number: 0, positive_scores, negative_scores, candidates };
        let example = Example { query: "q".into(), pos, neg, ..Example::default() };
        let mut ranks = Ranks::new("t".into(), 5, 10);
        let mut hash = |row: usize| Ok(text_hash(TEXTS[row]));
        insert(&mut ranks, &example, &query, &mut hash).unwrap();
        ranks
    }

    #[test]
    fn ranks_leave_out_the_query_and_its_answers() {
        let candidates = [(0, 1.0), (1, 0.9), (3, 0.85), (2, 0.8), (4, 0.7)];
        let pos = [("near", 0.8), ("nearer", 0.85), ("far", 0.2)];
        let neg = [("third", 0.7), ("first", 0.9), ("last", 0.1)];
        let ranks = ranked(&candidates, &pos, &neg);
        let rank = |role, text: &str| ranks.of(role, "q", text).unwrap().rank;
        let positive = |text| rank(Role::Positive, text);
        assert_eq!((positive("near"), positive("nearer"), positive("far")), (2, 2, 6));
        let negative = |text| rank(Role::Negative, text);
        assert_eq!((negative("third"), negative("first"), negative("last")), (2, 1, 6));
        assert!(ranks.of(Role::Negative, "q", "near").is_none());
        assert!(ranks.of(Role::Positive, "q", "other").is_none());
    }

    #[test]
    fn no_text_stands_before_itself_by_rounding() {
        // Alone each scores a little less than in the corpus.
        let less = |score: f32| score.next_down();
        let candidates = [(1, 0.9), (2, 0.8), (4, 0.7)];
        let ranks = ranked(
            &candidates,
            &[("near", less(0.8))],
            &[("first", less(0.9)), ("third", less(0.7))],
        );
        let of = |role, text: &str| ranks.of(role, "q", text).unwrap();
        assert_eq!(of(Role::Negative, "first"), Rank { score: 0.9, rank: 1 });
        assert_eq!(of(Role::Positive, "near"), Rank { score: 0.8, rank: 2 });
        // Not beyond the last, which it is.
        assert_eq!(of(Role::Negative, "third"), Rank { score: 0.7, rank: 2 });
        // Texts of the same score share a place.
        let ranks = ranked(&[(1, 0.9), (4, 0.9), (2, 0.9)], &[("near", 0.9)], &[("third", 0.9)]);
        assert_eq!(ranks.of(Role::Positive, "q", "near").unwrap().rank, 1);
        assert_eq!(ranks.of(Role::Negative, "q", "third").unwrap().rank, 1);
    }
}
