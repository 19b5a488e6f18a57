//! Which of a query's nearest texts become its negatives: `kiln mine`'s rule, and a page's.
//!
//! Names and their equals elsewhere: `percent_of_positive = 0.95` is NV-Embed's TopK-PercPos
//! (arXiv:2405.17428, section 4.1.1) and sentence-transformers' `relative_margin = 0.05`; `absolute_margin` drops
//! where `score + margin > positive's`.

use std::fmt::{Display, Formatter};
use std::str::FromStr;

use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// One of the nearest texts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Row of the corpus.
    pub row: usize,
    /// The teacher's score.
    pub score: f32,
    /// Whether it is one of the query's positives, those of other rows included.
    pub known: bool,
    /// Whether it is the query itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own: bool,
    /// Whether it is one of the example's given negatives.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub given: bool,
}

/// A query's nearest texts, best first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Query {
    /// Number of the example.
    pub number: usize,
    /// The teacher's score of each positive.
    pub positive_scores: Vec<f32>,
    /// The teacher's score of each given negative, where they were to be kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub negative_scores: Vec<f32>,
    /// The nearest texts.
    pub candidates: Vec<Candidate>,
}

/// Which candidates stay when there are more than are asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pick {
    /// The nearest.
    #[default]
    Top,
    /// Drawn at random.
    Random,
}

impl Pick {
    /// Names on command lines.
    pub const NAMES: [&str; 2] = ["top", "random"];
}

impl Display for Pick {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(Self::NAMES[*self as usize])
    }
}

impl FromStr for Pick {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = [Self::Top, Self::Random].into_iter().zip(Self::NAMES);
        let found = known.into_iter().find(|(_, known)| *known == name);
        found.map(|(pick, _)| pick).ok_or_else(|| format!("{name} is neither top nor random"))
    }
}

/// Between which ranks a given negative stays (Linq-Embed-Mistral, arXiv:2412.03223, section 4.1:
/// negatives are considered where `k <= rank <= m`). Its rank is its place among the candidates that
/// are neither a positive nor the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// First rank that counts, from 1.
    pub min_rank: usize,
    /// Last rank that counts; any where absent.
    pub max_rank: Option<usize>,
}

/// A negative that a query is given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Negative {
    /// One that it had: its place among them, and the teacher's score.
    Given(usize, f32),
    /// One of the nearest texts.
    Mined(Candidate),
}

impl Negative {
    /// The teacher's score.
    pub fn score(self) -> f32 {
        match self {
            Self::Given(_, score) => score,
            Self::Mined(candidate) => candidate.score,
        }
    }
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
    /// Worst rank that a query's best positive may have among the candidates, the query itself left
    /// out of the count.
    pub max_positive_rank: Option<usize>,
    /// Which given negatives stay, before others are mined; they are replaced where absent.
    pub keep: Option<Keep>,
    /// Negatives of each query, kept ones included.
    pub per_query: usize,
    /// Queries with fewer negatives are dropped; 0 drops none.
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
            keep: None,
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
    /// Given negatives among the candidates, which the window for given ones judges.
    pub given: usize,
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
    /// Given negatives that stay.
    pub given_kept: usize,
    /// Given negatives outside their rank window, or more than are asked for.
    pub given_dropped: usize,
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
pub fn filter(query: &Query, filters: &Filters, dropped: &mut Dropped) -> Option<Vec<Negative>> {
    dropped.candidates += query.candidates.len();
    if let Some(worst) = filters.max_positive_rank {
        let mut others = query.candidates.iter().filter(|candidate| !candidate.own);
        let rank = others.position(|candidate| candidate.known);
        if rank.is_none_or(|rank| rank >= worst) {
            dropped.queries_positive_rank += 1;
            return None;
        }
    }
    let mut kept = kept(query, filters);
    let room = filters.per_query.saturating_sub(kept.len());
    let mut mined = candidates(query, filters, dropped);
    if kept.len() + mined.len() < filters.least {
        dropped.surplus += mined.len();
        dropped.given_dropped += query.negative_scores.len();
        dropped.queries_too_few += 1;
        return None;
    }
    if mined.len() > room {
        dropped.surplus += mined.len() - room;
        if filters.pick == Pick::Random {
            let seed = super::mixed(&[filters.seed, query.number as u64]);
            mined.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        }
        mined.truncate(room);
    }
    kept.truncate(filters.per_query);
    dropped.kept += mined.len();
    dropped.given_kept += kept.len();
    dropped.given_dropped += query.negative_scores.len() - kept.len();
    dropped.queries_kept += 1;
    let mut negatives: Vec<Negative> =
        kept.into_iter().chain(mined.into_iter().map(Negative::Mined)).collect();
    // Hardest first, as graded negatives are.
    negatives.sort_by(|a, b| b.score().total_cmp(&a.score()));
    Some(negatives)
}

/// The given negatives that rank within their window, hardest first.
fn kept(query: &Query, filters: &Filters) -> Vec<Negative> {
    let Some(Keep { min_rank, max_rank }) = filters.keep else { return Vec::new() };
    let others = || query.candidates.iter().filter(|candidate| !candidate.known && !candidate.own);
    let is_kept = |score: f32| {
        let rank = 1 + others().filter(|candidate| candidate.score > score).count();
        rank >= min_rank && max_rank.is_none_or(|last| rank <= last)
    };
    let given = query.negative_scores.iter().enumerate().filter(|(_, score)| is_kept(**score));
    let mut given: Vec<Negative> =
        given.map(|(place, &score)| Negative::Given(place, score)).collect();
    given.sort_by(|a, b| b.score().total_cmp(&a.score()));
    given
}

/// The candidates that pass, nearest first.
fn candidates(query: &Query, filters: &Filters, dropped: &mut Dropped) -> Vec<Candidate> {
    let positive = query.positive_scores.iter().copied().fold(f32::INFINITY, f32::min);
    let mut rank = 0;
    let mut left: Vec<Candidate> = Vec::new();
    for candidate in &query.candidates {
        if candidate.known || candidate.own {
            dropped.known += 1;
            continue;
        }
        rank += 1;
        let score = candidate.score;
        // A share of a negative score would turn the comparison round.
        let share = |percent: f32| {
            positive > 0.0 && score >= percent * positive || positive <= 0.0 && score >= positive
        };
        let reason = if filters.keep.is_some() && candidate.given {
            &mut dropped.given
        } else if rank < filters.min_rank || rank > filters.max_rank {
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
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(row: usize, score: f32, known: bool) -> Candidate {
        Candidate { row, score, known, own: false, given: false }
    }

    /// The row of a negative that was mined.
    fn row(negative: &Negative) -> usize {
        match negative {
            Negative::Mined(candidate) => candidate.row,
            Negative::Given(..) => panic!("{negative:?}"),
        }
    }

    /// Scores of the candidates; `true` marks a known positive.
    fn query(candidates: &[(f32, bool)]) -> Query {
        Query {
            number: 3,
            positive_scores: vec![0.8, 0.9],
            negative_scores: Vec::new(),
            candidates: candidates
                .iter()
                .enumerate()
                .map(|(row, &(score, known))| candidate(row, score, known))
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
        (result.iter().map(row).collect(), dropped)
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
        let far = Filters { max_score: Some(-1.0), ..none() };
        assert_eq!(rows(far.clone()).1.queries_too_few, 1);
        let (actual, dropped) = rows(Filters { least: 0, ..far });
        assert_eq!((actual, dropped.queries_kept), (vec![], 1));
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
        assert_eq!(actual.iter().map(row).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn the_querys_own_text_does_not_stand_for_its_positive() {
        let mut one = query(&[(0.99, false), (0.95, false), (0.9, true), (0.5, false)]);
        one.candidates[0].own = true;
        let passes = |worst: usize| {
            let filters = Filters { max_positive_rank: Some(worst), ..none() };
            filter(&one, &filters, &mut Dropped::default()).is_some()
        };
        assert!(!passes(1) && passes(2), "second among the others");
        let actual = filter(&one, &none(), &mut Dropped::default()).unwrap();
        assert_eq!(actual.iter().map(row).collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn given_negatives_stay_by_rank_and_mined_ones_fill_up() {
        // Ranks without the positives: 0.95 is 1, 0.77 is 2, 0.75 is 3, 0.6 is 4, 0.2 is 5.
        let mut one = query(&CANDIDATES);
        one.candidates[3].given = true;
        // The second is no candidate: 0.7 would rank 4. The third ranks below all of them.
        one.negative_scores = vec![0.77, 0.7, 0.1];
        let picked = |min_rank: usize, max_rank: Option<usize>, per_query: usize| {
            let keep = Some(Keep { min_rank, max_rank });
            let filters = Filters { keep, per_query, ..Filters::default() };
            let mut dropped = Dropped::default();
            let negatives = filter(&one, &filters, &mut dropped).unwrap_or_default();
            (negatives, dropped)
        };
        let mined = |row: usize, score: f32| Negative::Mined(candidate(row, score, false));
        let (all, dropped) = picked(1, Some(4), 3);
        assert_eq!(all, [Negative::Given(0, 0.77), mined(4, 0.75), Negative::Given(1, 0.7)]);
        assert_eq!((dropped.given_kept, dropped.given_dropped, dropped.given), (2, 1, 1));
        assert_eq!((dropped.kept, dropped.surplus), (1, 2));
        let (all, dropped) = picked(3, None, 2);
        assert_eq!(all, [Negative::Given(1, 0.7), Negative::Given(2, 0.1)]);
        assert_eq!((dropped.given_kept, dropped.given_dropped), (2, 1));
        // One that is dropped for its rank is not mined again, and no more than asked for stay.
        let (all, _) = picked(4, Some(4), 9);
        assert_eq!(all, [mined(4, 0.75), Negative::Given(1, 0.7), mined(5, 0.6), mined(6, 0.2)]);
        assert_eq!(picked(1, None, 1).0, [Negative::Given(0, 0.77)]);
    }
}
