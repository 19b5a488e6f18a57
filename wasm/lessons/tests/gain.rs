//! Do lessons help? Opt-in: real judgements that a model has not seen, some of them as lessons, and how well the others
//! are answered afterwards, in the same collection and in an unrelated one.
//!
//! KILN_GAIN_MODEL: a .kiln file or folder; KILN_GAIN_LESSONS: a BEIR folder whose train.jsonl.gz has `query` and `pos`;
//! KILN_GAIN_OTHER: a BEIR folder; KILN_GAIN_COUNTS and KILN_GAIN_SEEDS: as `25,100`; KILN_GAIN_PLAN: a plan as JSON;
//! KILN_GAIN_RANK. Prints a line of JSON for each run.

use std::collections::HashMap;
use std::env::var;
use std::path::Path;

use burn::backend::{Autodiff, Flex};
use kiln_embed::checkpoint::{LoadOptions, open_folder};
use kiln_embed::embedder::Embedder;
use kiln_lessons::{AdapterSettings, Phase, Plan, Trainer};
use kiln_metrics::{dense_rankings, ndcg};
use train_native::data::{BeirFolder, Example, mixed};
use train_native::terminal::Terminal;
use train_native::text::{Columns, TextFile};

type B = Autodiff<Flex>;

/// Documents of a collection beside the relevant ones; all of them would take minutes each time.
const DOCUMENTS: usize = 1500;

struct Questions {
    queries: Vec<String>,
    texts: Vec<String>,
    relevant: Vec<HashMap<usize, f64>>,
}

impl Questions {
    /// All queries of a split, the relevant documents, and the first of the others.
    fn read(folder: &str, split: &str) -> Self {
        let quiet = Terminal { json: false, quiet: true };
        let set = BeirFolder::read(Path::new(folder), split, None, quiet).unwrap();
        let judged = set.relevant.iter().flat_map(HashMap::keys).copied();
        let mut rows: Vec<usize> = judged.collect();
        rows.sort_unstable();
        rows.dedup();
        let known: std::collections::HashSet<usize> = rows.iter().copied().collect();
        let others = (0..set.corpus.len()).filter(|row| !known.contains(row));
        rows.extend(others.take(DOCUMENTS));
        let places: HashMap<usize, usize> =
            rows.iter().enumerate().map(|(place, &row)| (row, place)).collect();
        let relevant = set.relevant.iter();
        let relevant = relevant
            .map(|grades| grades.iter().map(|(row, grade)| (places[row], *grade)).collect());
        Self {
            texts: rows.iter().map(|&row| set.corpus.get(row).unwrap()).collect(),
            relevant: relevant.collect(),
            queries: set.queries,
        }
    }

    /// Mean nDCG@10 of a trainer's model.
    fn score(&self, trainer: &Trainer<B>) -> f64 {
        let queries = trainer.embed(&self.queries, "query").unwrap();
        let texts = trainer.embed(&self.texts, "document").unwrap();
        let rankings = dense_rankings(&queries, &texts, 10).unwrap();
        let scores = rankings.iter().zip(&self.relevant);
        let scores = scores.map(|(ranking, grades)| ndcg(ranking, grades, &[], 10));
        scores.sum::<f64>() / queries.len() as f64
    }
}

/// Lessons from other pages than those that are asked about, one a page, drawn by the seed.
fn lessons(folder: &str, count: usize, seed: u64) -> Vec<Example> {
    let file = TextFile::open(&format!("{folder}/train.jsonl.gz"), Columns::required(&[])).unwrap();
    let mut rows: Vec<(u64, Example)> = Vec::new();
    let mut pages: HashMap<String, usize> = HashMap::new();
    for (number, object) in file.objects().unwrap().enumerate() {
        let fields = object.unwrap().fields;
        let text = |key: &str| fields[key].as_str().unwrap_or_default().to_string();
        let example = Example {
            query: text("query"),
            pos: vec![fields["pos"][0].as_str().unwrap().to_string()],
            ..Example::default()
        };
        let draw = mixed(&[seed, number as u64]);
        match pages.entry(text("id")) {
            std::collections::hash_map::Entry::Occupied(place) => {
                let kept = &mut rows[*place.get()];
                if draw < kept.0 {
                    *kept = (draw, example);
                }
            }
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(rows.len());
                rows.push((draw, example));
            }
        }
    }
    rows.sort_by_key(|(draw, _)| *draw);
    rows.into_iter().take(count).map(|(_, example)| example).collect()
}

fn numbers(name: &str, usual: &str) -> Vec<u64> {
    let text = var(name).unwrap_or(usual.into());
    text.split(',').map(|number| number.trim().parse().unwrap()).collect()
}

#[test]
#[ignore = "opt-in: takes hours; see the variables above"]
fn gain() {
    let (model, folder) = (var("KILN_GAIN_MODEL").unwrap(), var("KILN_GAIN_LESSONS").unwrap());
    let plan: Plan = serde_json::from_str(&var("KILN_GAIN_PLAN").unwrap_or("{}".into())).unwrap();
    let rank = numbers("KILN_GAIN_RANK", "8")[0] as usize;
    let same = Questions::read(&folder, "dev");
    let other = Questions::read(&var("KILN_GAIN_OTHER").unwrap(), "test");
    let opened = open_folder(Path::new(&model)).unwrap();
    let embedder: Embedder<Flex> =
        Embedder::load_with(opened.as_ref(), &LoadOptions::default(), &Default::default()).unwrap();
    let trainer = |seed| {
        let settings = AdapterSettings { rank, seed, ..AdapterSettings::default() };
        Trainer::<B>::new(embedder.clone(), settings).unwrap()
    };
    let before = [same.score(&trainer(1)), other.score(&trainer(1))];
    for count in numbers("KILN_GAIN_COUNTS", "25,50,100,200,400") {
        for seed in numbers("KILN_GAIN_SEEDS", "1,2,3,4,5") {
            let mut trainer = trainer(seed);
            let begun = std::time::Instant::now();
            trainer.begin(lessons(&folder, count as usize, seed), &[], plan.clone()).unwrap();
            while trainer.step().unwrap().phase != Phase::Done {}
            let outcome = trainer.finish().unwrap();
            let seconds = begun.elapsed().as_secs_f64();
            let after = [same.score(&trainer), other.score(&trainer)];
            println!(
                "{}",
                serde_json::json!({
                    "lessons": count, "seed": seed, "rank": rank, "plan": plan, "outcome": outcome, "seconds": seconds,
                    "same": [before[0], after[0]], "other": [before[1], after[1]],
                })
            );
        }
    }
}
