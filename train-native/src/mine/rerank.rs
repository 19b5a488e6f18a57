//! A cross-encoder's scores in the place of the teacher's (sentence-transformers' `mine_hard_negatives` with a
//! `cross_encoder`): what it takes for an answer is no negative.

use anyhow::Result;
use kiln_embed::reranker::ranked;

use super::{Candidate, Scored};
use crate::data::{DataSet, Store};
use crate::reranking::PairModel;
use crate::terminal::Terminal;

/// Scores every query's positives, given negatives and candidates anew, and puts the candidates into the order of
/// their new scores.
///
/// # Errors
/// Texts that cannot be read or scored; [`kiln_embed::Error::Cancelled`] after Ctrl-C.
pub fn rerank(
    scored: &mut Scored,
    reranker: &dyn PairModel,
    name: &str,
    batch_tokens: Option<usize>,
    (set, corpus): (&DataSet, &Store),
    terminal: Terminal,
) -> Result<()> {
    let total: usize = scored.queries.iter().map(|query| query.candidates.len()).sum();
    let bar = terminal.progress(total as u64, "reranking");
    for query in &mut scored.queries {
        let example = set.get(query.number)?;
        let mut texts = example.pos;
        let positives = texts.len();
        if scored.given {
            texts.extend(example.neg);
        }
        let given = texts.len();
        for candidate in &query.candidates {
            texts.push(corpus.get(candidate.row)?);
        }
        let pairs: Vec<(&str, &str)> =
            texts.iter().map(|text| (example.query.as_str(), text.as_str())).collect();
        let logits = reranker.logits(&pairs, batch_tokens, true, &mut |_| {})?;
        let activation = reranker.activation();
        let scores: Vec<f32> = logits.iter().map(|&score| activation.of(score)).collect();
        query.positive_scores = scores[..positives].to_vec();
        query.negative_scores = scores[positives..given].to_vec();
        // By the scores before the activation, which may make many of them equal; equal ones stay in the
        // teacher's order.
        query.candidates = ranked(&logits[given..], activation)
            .into_iter()
            .map(|place| Candidate { score: place.score, ..query.candidates[place.index] })
            .collect();
        bar.inc(query.candidates.len() as u64);
    }
    bar.finish_and_clear();
    scored.model = format!("{}, reranked by {name}", scored.model);
    Ok(())
}
