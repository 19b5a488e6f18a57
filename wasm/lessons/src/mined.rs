//! Negatives of lessons from the texts that a search finds, by the rule of `kiln mine`.

use std::collections::{HashMap, HashSet};

use kiln_data::data::negatives::{Candidate, Dropped, Filters, Negative, Query, filter};
use kiln_data::data::{Example, text_key};
use serde::Deserialize;

/// What a search found for a lesson.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Found {
    /// Cosine of the query and of each of the lesson's positives.
    pub positive_scores: Vec<f32>,
    /// The texts nearest to the query and their cosines, best first.
    pub texts: Vec<(String, f32)>,
}

/// Which of the texts that were found become negatives: [`Filters`], as far as a page needs them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Mine {
    /// Negatives of each query.
    pub per_query: usize,
    /// Largest share of the cosine that the query's lowest positive has.
    pub percent_of_positive: f32,
    /// First rank that counts, from 1, positives left out of the count.
    pub min_rank: usize,
}

impl Default for Mine {
    fn default() -> Self {
        Self { per_query: 3, percent_of_positive: 0.95, min_rank: 1 }
    }
}

impl Mine {
    fn filters(&self) -> Filters {
        Filters {
            per_query: self.per_query,
            percent_of_positive: Some(self.percent_of_positive),
            min_rank: self.min_rank,
            ..Filters::default()
        }
    }
}

/// Lessons with the negatives that were found for them beside their own, and what became of the texts. No text that is
/// nearer to a query than most of what its lowest positive is becomes a negative, and none that any lesson says answers
/// it.
pub fn mined(lessons: Vec<(Example, Found)>, mine: &Mine) -> (Vec<Example>, Dropped) {
    let filters = mine.filters();
    let mut dropped = Dropped::default();
    let mut answers: HashMap<u64, HashSet<u64>> = HashMap::new();
    let mut scores: HashMap<u64, Vec<f32>> = HashMap::new();
    for (lesson, found) in &lessons {
        let query = text_key(&lesson.query);
        answers.entry(query).or_default().extend(lesson.pos.iter().map(|text| text_key(text)));
        scores.entry(query).or_default().extend(&found.positive_scores);
    }
    let mut all = Vec::with_capacity(lessons.len());
    let mut done: HashSet<u64> = HashSet::new();
    for (number, (mut lesson, found)) in lessons.into_iter().enumerate() {
        let key = text_key(&lesson.query);
        let given: HashSet<u64> = lesson.neg.iter().map(|text| text_key(text)).collect();
        // A query that is said twice is asked once.
        if done.insert(key) {
            let candidate = |(row, (text, score)): (usize, &(String, f32))| {
                let text = text_key(text);
                let known = answers.get(&key).is_some_and(|answers| answers.contains(&text));
                Candidate { row, score: *score, known, own: text == key, given: false }
            };
            let others = found.texts.iter().enumerate();
            let others = others.filter(|(_, (text, _))| !given.contains(&text_key(text)));
            let query = Query {
                number,
                positive_scores: scores.remove(&key).unwrap_or_default(),
                negative_scores: Vec::new(),
                candidates: others.map(candidate).collect(),
            };
            for negative in filter(&query, &filters, &mut dropped).unwrap_or_default() {
                if let Negative::Mined(Candidate { row, .. }) = negative {
                    lesson.neg.push(found.texts[row].0.clone());
                }
            }
        }
        all.push(lesson);
    }
    (all, dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lesson(query: &str, pos: &str, neg: &[&str]) -> Example {
        let neg = neg.iter().map(|text| text.to_string()).collect();
        Example { query: query.into(), pos: vec![pos.into()], neg, ..Example::default() }
    }

    #[test]
    fn what_may_be_an_answer_is_no_negative() {
        let texts =
            [("twin", 0.79), ("a", 0.8), ("Other answer", 0.7), ("q", 0.69), ("given", 0.6)];
        let more = [("far", 0.5), ("farther", 0.4), ("farthest", 0.3), ("last", 0.2)];
        let texts = texts.into_iter().chain(more).map(|(text, score)| (text.to_string(), score));
        let found = Found { positive_scores: vec![0.8], texts: texts.collect() };
        let again = Found { positive_scores: vec![0.7], texts: found.texts.clone() };
        let lessons =
            vec![(lesson("q", "a", &["given"]), found), (lesson("Q", "other answer", &[]), again)];
        let (lessons, dropped) = mined(lessons, &Mine { per_query: 2, ..Mine::default() });
        // 0.95 of the lowest positive is 0.665: the twin is too near.
        assert_eq!(lessons[0].neg, ["given", "far", "farther"]);
        assert!(lessons[1].neg.is_empty());
        assert_eq!((dropped.known, dropped.percent_of_positive, dropped.kept), (3, 1, 2));
    }
}
