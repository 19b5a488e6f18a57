//! A teacher's ranks of all passages of some rows, computed once and kept.

use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use kiln_embed::embedder::Prompt;
use kiln_synthesis::refine::{Passage, Rank, Ranks, Row, lines, open};
use serde_json::json;

use crate::data::{DataSet, Example, LeakFilter, OnBadRow, Opening, Store};
use crate::embedding::TextModel;
use crate::interrupt;
use crate::mine::{
    Asking, Query, Scored, corpus, read_scores, search, teacher_prompts, write_scores,
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
    /// The teacher's name, with all that changes its vectors.
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
/// A positive's rank is its place among the nearest texts without the query itself; a negative's is its
/// place among those that are neither the query nor an answer to it, by all rows.
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
        insert(&mut ranks, &example, query);
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
                Row::of_line(text, &data.label).with_context(|| format!("{}:{line}", data.label))
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
    let prompts = ask.prompts.each_ref().map(|prompt| match prompt {
        Some(Prompt::Text(text)) => Some(text.as_str()),
        _ => None,
    });
    // What a name stands for is known to the model alone.
    if ask.prompts.iter().any(|prompt| matches!(prompt, Some(Prompt::Named(_)))) {
        return other("prompts by name are looked up in the model");
    }
    match read_scores(&ask.kept.to_string_lossy(), set, texts, prompts) {
        Ok(scored) if scored.model != ask.teacher => other("was kept for another teacher"),
        Ok(scored) if !scored.given || depth(&scored) < ask.top_k.min(scored.corpus) => {
            other("was kept with fewer nearest texts")
        }
        Ok(scored) => Some(scored),
        Err(_) => other("was kept for other rows or texts"),
    }
}

fn insert(ranks: &mut Ranks, example: &Example, query: &Query) {
    let others = || query.candidates.iter().filter(|candidate| !candidate.own);
    for (text, &score) in example.pos.iter().zip(&query.positive_scores) {
        let before = others().filter(|candidate| candidate.score > score).count();
        ranks.insert(&example.query, text, placed(query, score, before));
    }
    for (text, &score) in example.neg.iter().zip(&query.negative_scores) {
        let before = others().filter(|one| !one.known && one.score > score).count();
        ranks.insert(&example.query, text, placed(query, score, before));
    }
}

/// A rank, or the one after the last where the text is farther than all that are known.
fn placed(query: &Query, score: f32, before: usize) -> Rank {
    let last = query.candidates.last().map_or(f32::NEG_INFINITY, |candidate| candidate.score);
    let rank = if score < last { query.candidates.len() + 1 } else { before + 1 };
    Rank { score, rank }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mine::Candidate;

    #[test]
    fn ranks_leave_out_the_query_and_of_negatives_the_answers() {
        let candidate = |row, score, known, own| Candidate { row, score, known, own, given: false };
        let query = Query {
            number: 0,
            positive_scores: vec![0.8, 0.2],
            negative_scores: vec![0.7, 0.9, 0.1],
            candidates: vec![
                candidate(0, 1.0, false, true),
                candidate(1, 0.9, false, false),
                candidate(2, 0.8, true, false),
                candidate(3, 0.7, false, false),
            ],
        };
        let texts = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect();
        let example = Example {
            query: "q".into(),
            pos: texts(&["near", "far"]),
            neg: texts(&["third", "first", "last"]),
            ..Example::default()
        };
        let mut ranks = Ranks::new("t".into(), 4, 10);
        insert(&mut ranks, &example, &query);
        let rank = |text: &str| ranks.of("q", text).unwrap().rank;
        assert_eq!((rank("near"), rank("far")), (2, 5));
        assert_eq!((rank("third"), rank("first"), rank("last")), (2, 1, 5));
        assert!(ranks.of("q", "other").is_none());
    }
}
