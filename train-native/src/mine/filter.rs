//! Which of a query's nearest texts become its negatives.
//!
//! Names and their equals elsewhere: `percent_of_positive = 0.95` is NV-Embed's TopK-PercPos
//! (arXiv:2405.17428, section 4.1.1) and sentence-transformers' `relative_margin = 0.05`; `absolute_margin` drops
//! where `score + margin > positive's`.

use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{Candidate, Query};

/// Which candidates stay when there are more than are asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Pick {
    /// The nearest.
    #[default]
    Top,
    /// Drawn at random.
    Random,
}

/// What a candidate must be to become a negative.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Filters {
    /// First rank that counts, from 1, positives left out of the count.
    pub min_rank: usize,
    /// Last rank that counts.
    pub max_rank: usize,
    /// Largest share of the positive's score.
    pub percent_of_positive: Option<f32>,
    /// Least distance below the positive's score.
    pub absolute_margin: Option<f32>,
    /// Largest score.
    pub max_score: Option<f32>,
    /// Least score.
    pub min_score: Option<f32>,
    /// Worst rank that a query's best positive may have among the candidates.
    pub max_positive_rank: Option<usize>,
    /// Negatives of each query.
    pub per_query: usize,
    /// Queries with fewer negatives are dropped.
    pub least: usize,
    /// Which stay when there are more.
    pub pick: Pick,
    /// Seed of [`Pick::Random`].
    pub seed: u64,
}

impl Default for Filters {
    fn default() -> Self {
        Self {
            min_rank: 1,
            max_rank: usize::MAX,
            percent_of_positive: Some(0.95),
            absolute_margin: None,
            max_score: None,
            min_score: None,
            max_positive_rank: None,
            per_query: 7,
            least: 1,
            pick: Pick::Top,
            seed: 1,
        }
    }
}

/// How many candidates went, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Dropped {
    /// Candidates looked at.
    pub candidates: usize,
    /// Candidates that became negatives.
    pub kept: usize,
    /// The query's own positives, or the query itself.
    pub known: usize,
    /// Outside the rank window.
    pub rank: usize,
    /// Too near to the positive's score, as a share of it.
    pub percent_of_positive: usize,
    /// Too near to the positive's score, as a difference.
    pub absolute_margin: usize,
    /// Above the largest or below the least score.
    pub score: usize,
    /// More than are asked for.
    pub surplus: usize,
    /// Queries whose positive ranks too low.
    pub queries_positive_rank: usize,
    /// Queries with too few negatives.
    pub queries_too_few: usize,
    /// Queries that stay.
    pub queries_kept: usize,
}

/// The negatives of a query, or `None` where the query is dropped.
///
/// The guard against false negatives looks at the lowest of the positives' scores, so that a text
/// that is nearer than any known answer is never a negative.
pub fn filter(query: &Query, filters: &Filters, dropped: &mut Dropped) -> Option<Vec<Candidate>> {
    dropped.candidates += query.candidates.len();
    if let Some(worst) = filters.max_positive_rank {
        let rank = query.candidates.iter().position(|candidate| candidate.known);
        if rank.is_none_or(|rank| rank >= worst) {
            dropped.queries_positive_rank += 1;
            return None;
        }
    }
    let positive = query.positive_scores.iter().copied().fold(f32::INFINITY, f32::min);
    let mut rank = 0;
    let mut left: Vec<Candidate> = Vec::new();
    for candidate in &query.candidates {
        if candidate.known {
            dropped.known += 1;
            continue;
        }
        rank += 1;
        let score = candidate.score;
        // A share of a negative score would turn the comparison round.
        let share = |percent: f32| {
            positive > 0.0 && score >= percent * positive || positive <= 0.0 && score >= positive
        };
        let reason = if rank < filters.min_rank || rank > filters.max_rank {
            &mut dropped.rank
        } else if filters.percent_of_positive.is_some_and(share) {
            &mut dropped.percent_of_positive
        } else if filters.absolute_margin.is_some_and(|margin| score + margin > positive) {
            &mut dropped.absolute_margin
        } else if filters.max_score.is_some_and(|most| score > most)
            || filters.min_score.is_some_and(|least| score < least)
        {
            &mut dropped.score
        } else {
            left.push(*candidate);
            continue;
        };
        *reason += 1;
    }
    if left.len() < filters.least.max(1) {
        dropped.surplus += left.len();
        dropped.queries_too_few += 1;
        return None;
    }
    if left.len() > filters.per_query {
        dropped.surplus += left.len() - filters.per_query;
        if filters.pick == Pick::Random {
            let seed = crate::data::mixed(&[filters.seed, query.number as u64]);
            left.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        }
        left.truncate(filters.per_query);
        // Hardest first, as graded negatives are.
        left.sort_by(|a, b| b.score.total_cmp(&a.score));
    }
    dropped.kept += left.len();
    dropped.queries_kept += 1;
    Some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scores of the candidates; `true` marks a known positive.
    fn query(candidates: &[(f32, bool)]) -> Query {
        Query {
            number: 3,
            positive_scores: vec![0.8, 0.9],
            candidates: candidates
                .iter()
                .enumerate()
                .map(|(row, &(score, known))| Candidate { row, score, known })
                .collect(),
        }
    }

    const CANDIDATES: [(f32, bool); 7] = [
        (0.95, false),
        (0.9, true),
        (0.8, true),
        (0.77, false),
        (0.75, false),
        (0.6, false),
        (0.2, false),
    ];

    fn rows(filters: Filters) -> (Vec<usize>, Dropped) {
        let mut dropped = Dropped::default();
        let result = filter(&query(&CANDIDATES), &filters, &mut dropped).unwrap_or_default();
        (result.iter().map(|candidate| candidate.row).collect(), dropped)
    }

    fn none() -> Filters {
        Filters { percent_of_positive: None, ..Filters::default() }
    }

    #[test]
    fn each_filter_by_hand() {
        let (actual, dropped) = rows(none());
        assert_eq!((actual, dropped.known, dropped.kept), (vec![0, 3, 4, 5, 6], 2, 5));
        // 0.95 x 0.8 = 0.76: the lowest positive decides.
        let (actual, dropped) = rows(Filters::default());
        assert_eq!((actual, dropped.percent_of_positive), (vec![4, 5, 6], 2));
        let (actual, dropped) = rows(Filters { absolute_margin: Some(0.1), ..none() });
        assert_eq!((actual, dropped.absolute_margin), (vec![5, 6], 3));
        let (actual, dropped) = rows(Filters { min_rank: 2, max_rank: 3, ..none() });
        assert_eq!((actual, dropped.rank), (vec![3, 4], 3));
        let (actual, dropped) =
            rows(Filters { min_score: Some(0.3), max_score: Some(0.76), ..none() });
        assert_eq!((actual, dropped.score), (vec![4, 5], 3));
        let (actual, dropped) = rows(Filters { per_query: 2, ..none() });
        assert_eq!((actual, dropped.surplus), (vec![0, 3], 3));
        let (actual, dropped) = rows(Filters { least: 6, ..none() });
        assert_eq!((actual, dropped.queries_too_few), (vec![], 1));
        assert_eq!(rows(Filters { max_positive_rank: Some(2), ..none() }).1.queries_kept, 1);
        assert_eq!(
            rows(Filters { max_positive_rank: Some(1), ..none() }).1.queries_positive_rank,
            1
        );
    }

    #[test]
    fn random_picks_repeat_and_every_candidate_is_accounted_for() {
        let filters = Filters { pick: Pick::Random, per_query: 2, ..none() };
        let (actual, dropped) = rows(filters.clone());
        assert_eq!(actual, rows(filters).0);
        assert_eq!(actual.len(), 2);
        let Dropped {
            candidates,
            kept,
            known,
            rank,
            percent_of_positive,
            absolute_margin,
            score,
            surplus,
            ..
        } = dropped;
        assert_eq!(
            candidates,
            kept + known + rank + percent_of_positive + absolute_margin + score + surplus
        );
    }

    #[test]
    fn a_negative_positive_score_keeps_what_is_below_it() {
        let mut one = query(&[(-0.2, false), (-0.5, false)]);
        one.positive_scores = vec![-0.3];
        let actual = filter(&one, &Filters::default(), &mut Dropped::default()).unwrap();
        assert_eq!(actual.iter().map(|candidate| candidate.row).collect::<Vec<_>>(), [1]);
    }
}
