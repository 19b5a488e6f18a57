//! One training example.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

/// A query with its positives and negatives.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Example {
    /// The task's instruction, where the row has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
    /// The query.
    pub query: String,
    /// Texts that answer it; one is drawn each time.
    pub pos: Vec<String>,
    /// Texts that do not. Where they are graded, hardest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub neg: Vec<String>,
    /// The level of each negative, 1 being the hardest; empty where none is given ([`Self::level`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<usize>,
    /// A teacher's score of each positive, where mining kept it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pos_scores: Vec<f32>,
    /// A teacher's score of each negative.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub neg_scores: Vec<f32>,
}

impl Example {
    /// An example with one positive.
    pub fn new(query: String, positive: String, negatives: Vec<String>) -> Self {
        Self { query, pos: vec![positive], neg: negatives, ..Self::default() }
    }

    /// All texts.
    pub fn texts(&self) -> impl Iterator<Item = &String> {
        [&self.query].into_iter().chain(&self.pos).chain(&self.neg)
    }

    /// The level of a negative, from 1, the hardest; its place among them where no level is given.
    pub fn level(&self, negative: usize) -> usize {
        self.levels.get(negative).copied().unwrap_or(negative + 1)
    }

    /// Leaves out the positives that are the query itself, and says how many there were.
    pub fn drop_own_positives(&mut self) -> usize {
        let query = self.query.trim().to_string();
        self.retain_positives(|positive| positive.trim() != query)
    }

    /// Leaves out the negatives that are empty, the query or a positive, and says how many there were.
    pub fn drop_equal_negatives(&mut self) -> usize {
        if self.neg.is_empty() {
            return 0;
        }
        let known = [&self.query].into_iter().chain(&self.pos);
        let known: HashSet<String> = known.map(|text| text.trim().to_string()).collect();
        self.retain_negatives(|text| !text.trim().is_empty() && !known.contains(text.trim()))
    }

    /// Keeps the positives that pass, with their scores, and says how many went.
    pub fn retain_positives(&mut self, mut keep: impl FnMut(&str) -> bool) -> usize {
        let kept: Vec<bool> = self.pos.iter().map(|text| keep(text)).collect();
        retain(&mut self.pos, &kept);
        retain(&mut self.pos_scores, &kept);
        kept.iter().filter(|kept| !**kept).count()
    }

    /// Keeps the negatives that pass, each at the level that it had, with their scores, and says how
    /// many went.
    pub fn retain_negatives(&mut self, mut keep: impl FnMut(&str) -> bool) -> usize {
        let kept: Vec<bool> = self.neg.iter().map(|text| keep(text)).collect();
        let gone = kept.iter().filter(|kept| !**kept).count();
        if gone == 0 {
            return 0;
        }
        if self.levels.is_empty() {
            self.levels = (1..=self.neg.len()).collect();
        }
        retain(&mut self.neg, &kept);
        retain(&mut self.levels, &kept);
        retain(&mut self.neg_scores, &kept);
        gone
    }
}

/// Keeps the items whose place is marked.
fn retain<T>(items: &mut Vec<T>, kept: &[bool]) {
    let mut kept = kept.iter();
    items.retain(|_| kept.next().copied().unwrap_or(true));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Example {
        let texts = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect();
        Example {
            query: "q".into(),
            pos: texts(&["p1", "p2"]),
            neg: texts(&["n1", "n2", "n3"]),
            pos_scores: vec![0.9, 0.8],
            neg_scores: vec![0.3, 0.2, 0.1],
            ..Example::default()
        }
    }

    #[test]
    fn a_negative_that_goes_leaves_the_others_their_levels() {
        let mut example = example();
        assert_eq!((example.retain_negatives(|_| true), example.levels.len()), (0, 0));
        assert_eq!(example.retain_negatives(|text| text != "n2"), 1);
        assert_eq!(
            (&example.neg[..], &example.levels[..]),
            (&["n1".into(), "n3".into()][..], &[1, 3][..])
        );
        assert_eq!((example.level(1), example.neg_scores), (3, vec![0.3, 0.1]));
    }

    #[test]
    fn positives_go_with_their_scores() {
        let mut example = example();
        assert_eq!(example.retain_positives(|text| text != "p1"), 1);
        assert_eq!((&example.pos[..], example.pos_scores), (&["p2".to_string()][..], vec![0.8]));
    }

    #[test]
    fn what_is_not_there_is_not_written() {
        let plain = Example::new("q".into(), "p".into(), vec![]);
        assert_eq!(serde_json::to_string(&plain).unwrap(), r#"{"query":"q","pos":["p"]}"#);
        let mut graded = example();
        graded.levels = vec![1, 2, 4];
        let again: Example =
            serde_json::from_str(&serde_json::to_string(&graded).unwrap()).unwrap();
        assert_eq!(again, graded);
    }
}
