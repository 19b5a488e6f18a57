//! Lessons: what a reader says belongs together, checked before anything is trained.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::{Result, bail};
use kiln_data::data::{Example, mixed, text_key};

/// Lessons of a reader: each a query with a text that answers it, and texts that do not.
#[derive(Debug, Clone, PartialEq)]
pub struct Lessons(Vec<Example>);

impl Lessons {
    /// Checks what was given, and joins what is said twice: a lesson counts once however often it is repeated, and
    /// a query's positives and negatives come together.
    ///
    /// # Errors
    /// No lesson, an empty text, a query that is its own answer, or a text that is said both to answer a query and
    /// not to: the message names the lesson, counted from 1.
    pub fn new(given: Vec<Example>) -> Result<Self> {
        if given.is_empty() {
            bail!("there is no lesson to learn from; give some pairs");
        }
        let mut order: Vec<Example> = Vec::new();
        let mut places: HashMap<u64, usize> = HashMap::new();
        let mut sides: BTreeMap<(u64, u64), (bool, usize)> = BTreeMap::new();
        for (i, lesson) in given.into_iter().enumerate() {
            let number = i + 1;
            if lesson.query.trim().is_empty() {
                bail!("lesson {number} has an empty query");
            }
            if lesson.pos.is_empty() {
                bail!("lesson {number} has no text that answers its query");
            }
            if lesson.texts().any(|text| text.trim().is_empty()) {
                bail!("lesson {number} has an empty text");
            }
            let query = text_key(&lesson.query);
            if lesson.pos.iter().any(|text| text_key(text) == query) {
                bail!("lesson {number} says that {:?} answers itself", short(&lesson.query));
            }
            let texts = lesson.pos.iter().map(|text| (text, true));
            for (text, answers) in texts.chain(lesson.neg.iter().map(|text| (text, false))) {
                let said = sides.entry((query, text_key(text))).or_insert((answers, number));
                if said.0 != answers {
                    bail!(
                        "lessons {} and {number} contradict each other: {:?} is said to answer {:?}, and not to; take \
                         one of them back",
                        said.1,
                        short(text),
                        short(&lesson.query)
                    );
                }
            }
            let place = *places.entry(query).or_insert_with(|| {
                order.push(Example { pos: vec![], neg: vec![], ..lesson.clone() });
                order.len() - 1
            });
            let joined = &mut order[place];
            for (to, from) in [(&mut joined.pos, lesson.pos), (&mut joined.neg, lesson.neg)] {
                let mut known: HashSet<u64> = to.iter().map(|text| text_key(text)).collect();
                to.extend(from.into_iter().filter(|text| known.insert(text_key(text))));
            }
        }
        Ok(Self(order))
    }

    /// Number of queries.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The lessons.
    pub fn into_examples(self) -> Vec<Example> {
        self.0
    }

    /// Holds about a share of the lessons back, none where too few would be left on one side. Which ones is drawn by the seed
    /// and each one's query by itself, so that another run with these lessons and more, in whatever order, holds back none
    /// that was taught.
    pub fn split(self, share: f64, seed: u64) -> Split {
        // Shares of a fifth and the like are not exact.
        if self.0.len() as f64 * share + 1e-6 < Split::LEAST as f64 {
            return Split { taught: self.0, held_back: Vec::new() };
        }
        let drawn = |i: usize| mixed(&[seed, 0x4e1d, text_key(&self.0[i].query)]);
        let mut order: Vec<usize> = (0..self.0.len()).collect();
        order.sort_by_cached_key(|&i| drawn(i));
        let below = (share * u64::MAX as f64) as u64;
        let count = order.iter().filter(|&&i| drawn(i) < below).count().max(Split::LEAST);
        if self.0.len() < count + Split::LEAST {
            return Split { taught: self.0, held_back: Vec::new() };
        }
        let held: HashSet<usize> = order.into_iter().take(count).collect();
        let (mut taught, mut held_back) = (Vec::new(), Vec::new());
        for (i, lesson) in self.0.into_iter().enumerate() {
            if held.contains(&i) { held_back.push(lesson) } else { taught.push(lesson) }
        }
        Split { taught, held_back }
    }
}

/// The lessons that are taught, and those that are not.
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    /// What the model is taught.
    pub taught: Vec<Example>,
    /// What it is asked afterwards.
    pub held_back: Vec<Example>,
}

impl Split {
    /// Fewest lessons that say anything.
    pub const LEAST: usize = 5;
}

/// The beginning of a text, for a message.
fn short(text: &str) -> String {
    let mut chars = text.chars();
    let beginning: String = chars.by_ref().take(40).collect();
    if chars.next().is_some() { beginning + "…" } else { beginning }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lesson(query: &str, pos: &[&str], neg: &[&str]) -> Example {
        let texts = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect();
        Example { query: query.into(), pos: texts(pos), neg: texts(neg), ..Example::default() }
    }

    #[test]
    fn what_is_said_twice_counts_once() {
        let lessons = Lessons::new(vec![
            lesson("q", &["a"], &["x"]),
            lesson("Q ", &["a", "b"], &["x", "y"]),
            lesson("r", &["a"], &[]),
        ]);
        let lessons = lessons.unwrap().into_examples();
        assert_eq!(lessons, [lesson("q", &["a", "b"], &["x", "y"]), lesson("r", &["a"], &[])]);
    }

    #[test]
    fn contradictions_are_named() {
        let said = |given: Vec<Example>| Lessons::new(given).unwrap_err().to_string();
        let both = said(vec![lesson("q", &["a"], &[]), lesson("q", &["b"], &["A "])]);
        assert!(both.starts_with("lessons 1 and 2 contradict each other"), "{both}");
        let one = said(vec![lesson("q", &["a"], &["a"])]);
        assert!(one.starts_with("lessons 1 and 1 contradict"), "{one}");
        assert!(said(vec![lesson("q", &["Q"], &[])]).contains("answers itself"));
        assert!(said(vec![lesson(" ", &["a"], &[])]).contains("lesson 1 has an empty query"));
        assert!(said(vec![lesson("q", &[], &["a"])]).contains("no text that answers"));
        assert!(said(vec![lesson("q", &[""], &[])]).contains("lesson 1 has an empty text"));
        assert!(said(vec![]).contains("no lesson"));
    }

    #[test]
    fn some_are_held_back_where_there_are_enough() {
        let lessons = |count: usize| {
            let one = |i: usize| lesson(&format!("q{i}"), &[&format!("a{i}")], &[]);
            Lessons::new((0..count).map(one).collect()).unwrap()
        };
        let few = lessons(20).split(0.2, 1);
        assert_eq!((few.taught.len(), few.held_back.len()), (20, 0));
        // 24 times 0.2 is less than five, though it would be rounded to five.
        assert!(lessons(24).split(0.2, 1).held_back.is_empty());
        assert_eq!(lessons(25).split(0.2, 1).held_back.len(), 5);
        let some = lessons(50).split(0.2, 1);
        assert!((5..=20).contains(&some.held_back.len()), "{}", some.held_back.len());
        assert_eq!(some.taught.len() + some.held_back.len(), 50);
        // What was taught is not held back where more lessons come.
        let queries = |lessons: Vec<Example>| -> HashSet<String> {
            lessons.into_iter().map(|lesson| lesson.query).collect()
        };
        let mut taught = HashSet::new();
        for count in (1..200).step_by(7) {
            let now = lessons(count).split(0.2, 1);
            let held = queries(now.held_back);
            assert!(taught.is_disjoint(&held) || held.is_empty(), "{count}");
            if !held.is_empty() {
                taught = queries(now.taught);
            }
        }
        assert_eq!(some, lessons(50).split(0.2, 1));
        let other_way = Lessons(lessons(50).into_examples().into_iter().rev().collect());
        let mut again = other_way.split(0.2, 1).held_back;
        again.reverse();
        assert_eq!(again, some.held_back);
        assert_ne!(some, lessons(50).split(0.2, 2));
    }
}
