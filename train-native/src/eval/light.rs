//! The light retrieval set (Linq-Embed-Mistral, section 7.1): the union of what a teacher ranks
//! first for each query, and a fifth of the queries.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::Result;
use kiln_metrics::{NumpyRandom, ParallelTopK};

use super::encoder::TextEncoder;
use super::tasks::RankedTask;
use crate::data::StoreWriter;
use crate::embedding::BLOCK;
use crate::search::normalize;

/// Documents kept for each query.
const TOP: usize = 50;
/// One query in this many is kept.
const QUERIES: usize = 5;
const SEED: u32 = 42;

/// What makes retrieval sets light.
pub struct Light<'a> {
    /// The model that was trained before.
    pub teacher: &'a dyn TextEncoder,
    /// What it has before queries and before documents.
    pub prompts: [String; 2],
}

impl Light<'_> {
    /// The light form of a set. Queries are sampled within groups of equally many relevant
    /// documents, so that easy and hard ones keep their shares; every judged document stays.
    ///
    /// # Errors
    /// Whatever hinders the teacher.
    pub fn reduce(&self, set: RankedTask) -> Result<RankedTask> {
        if set.candidates.is_some() {
            return Ok(set);
        }
        let [of_queries, of_documents] = &self.prompts;
        let encode = |texts: &[String], prompt: &str| -> Result<Vec<Vec<f32>>> {
            let mut vectors = self.teacher.encode(texts, prompt)?;
            vectors.iter_mut().for_each(|vector| normalize(vector));
            Ok(vectors)
        };
        let mut search = ParallelTopK::new(&encode(&set.queries, of_queries)?, TOP)?;
        for rows in set.corpus.blocks(BLOCK) {
            let texts = rows.map(|row| set.corpus.get(row)).collect::<Result<Vec<String>>>()?;
            search.push(&encode(&texts, of_documents)?)?;
        }
        let mut rows: BTreeSet<usize> =
            search.finish().into_iter().flatten().map(|hit| hit.row).collect();
        rows.extend(set.relevant.iter().flat_map(|grades| grades.keys()));

        let mut corpus = StoreWriter::new()?;
        let mut new_row = HashMap::new();
        for &row in &rows {
            new_row.insert(row, corpus.len());
            corpus.push(&set.corpus.get::<String>(row)?)?;
        }
        let kept = sampled(&set.relevant);
        let moved = |grades: &HashMap<usize, f64>| {
            grades.iter().map(|(row, grade)| (new_row[row], *grade)).collect()
        };
        Ok(RankedTask {
            corpus: corpus.finish()?,
            corpus_ids: rows.iter().map(|&row| set.corpus_ids[row].clone()).collect(),
            query_ids: kept.iter().map(|&query| set.query_ids[query].clone()).collect(),
            queries: kept.iter().map(|&query| set.queries[query].clone()).collect(),
            relevant: kept.iter().map(|&query| moved(&set.relevant[query])).collect(),
            absent: kept.iter().map(|&query| set.absent[query].clone()).collect(),
            candidates: None,
        })
    }
}

/// A fifth of each group of queries, in order.
fn sampled(relevant: &[HashMap<usize, f64>]) -> Vec<usize> {
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (query, grades) in relevant.iter().enumerate() {
        let count = grades.values().filter(|&&grade| grade > 0.0).count();
        groups.entry(count).or_default().push(query);
    }
    let mut random = NumpyRandom::new(SEED);
    // What the groups' sizes leave over goes on to the next group, so that the sum is a fifth.
    let mut owed = 0;
    let mut kept = Vec::new();
    for mut group in groups.into_values() {
        random.shuffle(&mut group);
        owed += group.len();
        kept.extend(&group[..(owed / QUERIES).min(group.len())]);
        owed %= QUERIES;
    }
    if kept.is_empty() {
        kept.extend(0..relevant.len().min(1));
    }
    kept.sort_unstable();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_each_group_is_kept() {
        let judged = |count: usize| (0..count).map(|row| (row, 1.0)).collect();
        let relevant: Vec<HashMap<usize, f64>> =
            (0..100).map(|query| judged(1 + query % 4)).collect();
        let kept = sampled(&relevant);
        assert_eq!(kept.len(), 20);
        for count in 1..=4 {
            assert_eq!(kept.iter().filter(|&&query| relevant[query].len() == count).count(), 5);
        }
        assert_eq!(sampled(&relevant[..1]), [0]);
    }

    /// A text is a number, a hundredth of the way from one axis to the other; prompts put it elsewhere.
    struct Turning;

    impl TextEncoder for Turning {
        fn encode(&self, texts: &[String], prompt_text: &str) -> Result<Vec<Vec<f32>>> {
            let vector = |text: &String| {
                let share = text.parse::<f32>().unwrap() / 100.0;
                let turned = match prompt_text {
                    "first: " => 0.0,
                    "last: " => 1.0,
                    "back: " => 1.0 - share,
                    _ => share,
                };
                let angle = turned * std::f32::consts::FRAC_PI_2;
                vec![angle.cos(), angle.sin()]
            };
            Ok(texts.iter().map(vector).collect())
        }

        fn own_prompt(&self, _: &[&str]) -> String {
            String::new()
        }
    }

    #[test]
    fn the_teacher_is_asked_with_its_prompts() {
        let ids = |rows: std::ops::Range<usize>| rows.map(|row| row.to_string());
        for (queries, documents, kept) in [
            ("first: ", "", 0..50),
            ("last: ", "", 50..100),
            ("first: ", "back: ", 50..100),
            ("last: ", "back: ", 0..50),
        ] {
            let mut corpus = StoreWriter::new().unwrap();
            ids(0..100).for_each(|text| corpus.push(&text).unwrap());
            let set = RankedTask {
                corpus: corpus.finish().unwrap(),
                corpus_ids: ids(0..100).collect(),
                query_ids: vec!["q".into()],
                queries: vec!["50".into()],
                relevant: vec![HashMap::new()],
                absent: vec![Vec::new()],
                candidates: None,
            };
            let light = Light { teacher: &Turning, prompts: [queries.into(), documents.into()] };
            let actual = light.reduce(set).unwrap().corpus_ids;
            assert_eq!(actual, ids(kept).collect::<Vec<_>>(), "{queries}{documents}");
        }
    }
}
