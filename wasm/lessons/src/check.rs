//! Whether a model is better than before, by lessons that it was not taught.

use std::collections::HashMap;

use kiln_data::data::{Example, text_key};
use serde::{Deserialize, Serialize};

/// Lessons, and texts among which they are asked, of which a low score says something; of fewer, luck alone decides too often.
const ENOUGH_QUERIES: usize = 10;
const ENOUGH_TEXTS: usize = 20;
/// How far from chance (0) to all answers first (1) the score of a model may be that knows next to nothing of what it is
/// asked: made-up names are found as by chance.
const NEXT_TO_NOTHING: f64 = 0.1;

/// Lessons that are held back, and the texts among which their answers are to be found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Check {
    /// The queries.
    pub queries: Vec<String>,
    /// All texts, each once.
    pub texts: Vec<String>,
    /// Which texts answer each query.
    answers: Vec<Vec<usize>>,
}

/// How well answers are found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Mean over the queries of one over the rank of the first answer; 1 where each comes first.
    pub mrr: f64,
    /// Mean over the queries of the log-likelihood that the best answer loses to the other texts, by the softmax of
    /// the cosines: the loss of training, over all texts.
    pub loss: f64,
}

impl Score {
    /// Whether this is a gain over what was before: no answer lower on average, and the loss is less.
    pub fn is_better_than(self, before: Self) -> bool {
        self.mrr >= before.mrr && self.loss < before.loss
    }
}

impl Check {
    /// A check by lessons; others' texts, up to so many, are what answers can be mistaken for.
    pub fn new<'a>(
        held_back: &'a [Example],
        others: impl Iterator<Item = &'a String>,
        most: usize,
    ) -> Self {
        let mut check = Self::default();
        let mut places: HashMap<u64, usize> = HashMap::new();
        for lesson in held_back {
            check.queries.push(lesson.query.clone());
            let place = |text: &'a String| check.texts.place(&mut places, text);
            let answers = lesson.pos.iter().map(place).collect();
            check.answers.push(answers);
            for text in &lesson.neg {
                check.texts.place(&mut places, text);
            }
        }
        if !held_back.is_empty() {
            for text in others {
                if check.texts.len() >= most {
                    break;
                }
                check.texts.place(&mut places, text);
            }
        }
        check
    }

    /// Whether there is nothing to ask.
    pub fn is_empty(&self) -> bool {
        self.queries.is_empty()
    }

    /// Whether a score says that the model knows next to nothing of what is asked; never of so few lessons or texts that it
    /// may be bad luck.
    pub fn is_new_by(&self, score: Score) -> bool {
        let chance = self.chance();
        self.queries.len() >= ENOUGH_QUERIES
            && self.texts.len() >= ENOUGH_TEXTS
            && score.mrr < chance + NEXT_TO_NOTHING * (1.0 - chance)
    }

    /// The MRR that is to be expected where texts are ranked by chance.
    fn chance(&self) -> f64 {
        let of_query = |answers: &Vec<usize>| {
            let (mut none_yet, mut mean) = (1.0, 0.0);
            for rank in 1..=self.texts.len() + 1 - answers.len() {
                let here = answers.len() as f64 / (self.texts.len() + 1 - rank) as f64;
                mean += none_yet * here / rank as f64;
                none_yet *= 1.0 - here;
            }
            mean
        };
        self.answers.iter().map(of_query).sum::<f64>() / self.queries.len().max(1) as f64
    }

    /// The score of vectors of the queries and of the texts, each of norm 1; `temperature` is that of the loss.
    pub fn score(&self, queries: &[Vec<f32>], texts: &[Vec<f32>], temperature: f64) -> Score {
        let mut score = Score::default();
        for (query, answers) in queries.iter().zip(&self.answers) {
            let cosines: Vec<f64> = texts.iter().map(|text| dot(query, text)).collect();
            let best = answers.iter().map(|&i| cosines[i]).fold(f64::NEG_INFINITY, f64::max);
            let others = || (0..cosines.len()).filter(|i| !answers.contains(i));
            // A tie is no success.
            let above = others().filter(|&i| cosines[i] >= best).count();
            score.mrr += 1.0 / (above + 1) as f64;
            let weight = |cosine: f64| ((cosine - best) / temperature).exp();
            score.loss += (1.0 + others().map(|i| weight(cosines[i])).sum::<f64>()).ln();
        }
        let count = self.queries.len().max(1) as f64;
        Score { mrr: score.mrr / count, loss: score.loss / count }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Texts that are kept once.
trait Place {
    /// Where a text is; it is added where it is not there yet.
    fn place(&mut self, places: &mut HashMap<u64, usize>, text: &str) -> usize;
}

impl Place for Vec<String> {
    fn place(&mut self, places: &mut HashMap<u64, usize>, text: &str) -> usize {
        *places.entry(text_key(text)).or_insert_with(|| {
            self.push(text.to_string());
            self.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lesson(query: &str, pos: &str, neg: &[&str]) -> Example {
        let neg = neg.iter().map(|text| text.to_string()).collect();
        Example { query: query.into(), pos: vec![pos.into()], neg, ..Example::default() }
    }

    #[test]
    fn ranks_and_losses_by_hand() {
        let held = [lesson("q", "a", &["b"]), lesson("r", "b", &[])];
        let other = ["c".to_string(), "A".to_string(), "d".to_string()];
        let check = Check::new(&held, other.iter(), 3);
        assert_eq!(check.texts, ["a", "b", "c"]);
        let queries = [vec![1.0, 0.0], vec![0.6, 0.8]];
        let texts = [vec![1.0, 0.0], vec![0.0, 1.0], vec![0.8, 0.6]];
        let score = check.score(&queries, &texts, 1.0);
        // q: a 1, b 0, c 0.8: first. r: a 0.6, b 0.8, c 0.96: second.
        assert!((score.mrr - 0.75).abs() < 1e-9);
        let first = (1.0 + (-1.0f64).exp() + (-0.2f64).exp()).ln();
        let second = (1.0 + (-0.2f64).exp() + 0.16f64.exp()).ln();
        assert!((score.loss - (first + second) / 2.0).abs() < 1e-6, "{score:?}");
        let worse = Score { mrr: 0.7, loss: 0.1 };
        assert!(!worse.is_better_than(score) && score.is_better_than(Score { loss: 9.0, ..score }));
        assert!(Check::new(&[], other.iter(), 3).is_empty());
    }

    #[test]
    fn a_low_score_says_that_lessons_are_new_where_it_is_no_bad_luck() {
        let asked = |queries: usize, texts: usize| {
            let one = |i: usize| lesson(&format!("q{i}"), &format!("a{i}"), &[]);
            let held: Vec<Example> = (0..queries).map(one).collect();
            let others: Vec<String> = (0..texts).map(|i| format!("other {i}")).collect();
            Check::new(&held, others.iter(), texts)
        };
        let mrr = |mrr: f64| Score { mrr, loss: 9.0 };
        // Chance finds 0.05 of 96.
        let check = asked(10, 96);
        assert!((check.chance() - 0.0536).abs() < 1e-4, "{}", check.chance());
        assert!(check.is_new_by(mrr(0.02)) && check.is_new_by(mrr(0.1)));
        assert!(!check.is_new_by(mrr(0.2)) && !check.is_new_by(mrr(0.97)));
        assert!(!asked(9, 96).is_new_by(mrr(0.02)));
        // Of 20 it finds more, and of 19 too many.
        assert!(asked(10, 20).is_new_by(mrr(0.2)) && !asked(10, 19).is_new_by(mrr(0.2)));
        assert!(!Check::default().is_new_by(mrr(0.0)));

        // One answer of two: 1 or 1/2. Two of three: first in two cases of three, else second.
        assert!((asked(1, 2).chance() - 0.75).abs() < 1e-9);
        let two = Example { pos: vec!["a".into(), "b".into()], ..lesson("q", "a", &["c"]) };
        assert!((Check::new(&[two], std::iter::empty(), 9).chance() - 5.0 / 6.0).abs() < 1e-9);
    }
}
