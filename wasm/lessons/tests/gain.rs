//! Do lessons help? Opt-in: real judgements that a model has not seen, some of them as lessons, and how well other queries
//! are answered afterwards, in the same collection and in an unrelated one.
//!
//! KILN_GAIN_MODEL: a .kiln file or folder; KILN_GAIN_LESSONS: a BEIR folder with lessons, as `train.jsonl.gz` (`query`,
//! `pos`, `id`) or as the qrels `train`, and queries to ask, the qrels `dev`; KILN_GAIN_OTHER: a BEIR folder with the qrels
//! `test`; KILN_GAIN_COUNTS and KILN_GAIN_SEEDS: as `25,100`; KILN_GAIN_KINDS: as `lora,adapter`; KILN_GAIN_PLAN: a plan as
//! JSON; KILN_GAIN_RANK; KILN_GAIN_TEXTS: documents and queries of each collection at most, as `600,200`; KILN_GAIN_MINE:
//! a number of negatives that are mined for each lesson, among the collection's texts and the lessons' own.
//! Prints a line of JSON for each run, and for each kind and count the mean gain and its interval of 95 % over the seeds.

#![allow(clippy::unwrap_used)]

use std::collections::{HashMap, HashSet};
use std::env::var;
use std::path::Path;
use std::time::Instant;

use burn::backend::{Autodiff, Flex};
use kiln_data::data::{BeirFolder, Example, mixed};
use kiln_data::text::{Columns, TextFile};
use kiln_embed::checkpoint::{AdapterBase, LoadOptions, load_vector_adapter, open_folder};
use kiln_embed::embedder::Embedder;
use kiln_embed::index::cosine;
use kiln_lessons::{
    AdapterKind, AdapterSettings, Found, Mine, Phase, TeachingPlan, Trainer, mined,
};
use kiln_metrics::{dense_rankings, ndcg};
use kiln_terminal::terminal::Terminal;

type B = Autodiff<Flex>;
type Vectors = [Vec<Vec<f32>>; 2];

const QUIET: Terminal = Terminal { json: false, quiet: true };

/// Questions to a collection.
struct Questions {
    queries: Vec<String>,
    texts: Vec<String>,
    relevant: Vec<HashMap<usize, f64>>,
}

impl Questions {
    /// The first queries of a split, the relevant documents, and the first of the others.
    fn read(folder: &str, split: &str, [documents, queries]: [usize; 2]) -> Self {
        let set = BeirFolder::read(Path::new(folder), split, None, QUIET).unwrap();
        // Spread over the file, whose neighbours are alike.
        let every = set.queries.len().div_ceil(queries).max(1);
        let asked: Vec<usize> = (0..set.queries.len()).step_by(every).collect();
        let judged = asked.iter().flat_map(|&i| set.relevant[i].keys().copied());
        let mut rows: Vec<usize> = judged.collect();
        rows.sort_unstable();
        rows.dedup();
        let known: HashSet<usize> = rows.iter().copied().collect();
        let others = (0..set.corpus.len()).filter(|row| !known.contains(row));
        rows.extend(others.take(documents.saturating_sub(known.len())));
        let places: HashMap<usize, usize> =
            rows.iter().enumerate().map(|(place, &row)| (row, place)).collect();
        let grades = |&i: &usize| {
            let relevant = set.relevant[i].iter();
            relevant.map(|(row, grade)| (places[row], *grade)).collect()
        };
        Self {
            texts: rows.iter().map(|&row| set.corpus.get(row).unwrap()).collect(),
            relevant: asked.iter().map(grades).collect(),
            queries: asked.iter().map(|&i| set.queries[i].clone()).collect(),
        }
    }

    /// Vectors of the queries and of the documents by a trainer's model.
    fn vectors(&self, trainer: &Trainer<B>) -> Vectors {
        [
            trainer.embed(&self.queries, "query").unwrap(),
            trainer.embed(&self.texts, "document").unwrap(),
        ]
    }

    /// Mean nDCG@10.
    fn score(&self, [queries, texts]: &Vectors) -> f64 {
        let rankings = dense_rankings(queries, texts, 10).unwrap();
        let scores = rankings.iter().zip(&self.relevant);
        let scores = scores.map(|(ranking, grades)| ndcg(ranking, grades, &[], 10));
        scores.sum::<f64>() / queries.len() as f64
    }
}

/// Lessons from other pages than those that are asked about, one a page, drawn by the seed.
struct Pool(Vec<(u64, Example)>);

impl Pool {
    fn read(folder: &str) -> Self {
        let example =
            |query: String, pos: String| Example { query, pos: vec![pos], ..Example::default() };
        let file = format!("{folder}/train.jsonl.gz");
        if !Path::new(&file).exists() {
            let set = BeirFolder::read(Path::new(folder), "train", None, QUIET).unwrap();
            let best = |i: usize| {
                let grades = set.relevant[i].iter();
                let best = grades.max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(a.0)));
                best.map(|(&row, _)| {
                    (row as u64, example(set.queries[i].clone(), set.corpus.get(row).unwrap()))
                })
            };
            return Self((0..set.queries.len()).filter_map(best).collect());
        }
        let mut pages: HashMap<String, u64> = HashMap::new();
        let file = TextFile::open(&file, Columns::required(&[])).unwrap();
        let rows = file.objects().unwrap().map(|object| {
            let fields = object.unwrap().fields;
            let text = |key: &str| fields[key].as_str().unwrap_or_default().to_string();
            let next = pages.len() as u64;
            let page = *pages.entry(text("id")).or_insert(next);
            (page, example(text("query"), fields["pos"][0].as_str().unwrap().to_string()))
        });
        Self(rows.collect())
    }

    fn draw(&self, count: usize, seed: u64) -> Vec<Example> {
        let mut order: Vec<usize> = (0..self.0.len()).collect();
        order.sort_by_key(|&row| mixed(&[seed, row as u64]));
        let mut pages = HashSet::new();
        let new = order.into_iter().filter(|&row| pages.insert(self.0[row].0));
        new.take(count).map(|row| self.0[row].1.clone()).collect()
    }
}

/// What the trainer in a page finds among the texts of an index (`wasm/js/trainer.js`): as many of the nearest, and how near
/// the lesson's own text is.
fn found(trainer: &Trainer<B>, lessons: &[Example], questions: &Questions) -> Vec<Found> {
    const NEAREST: usize = 50;
    let queries: Vec<String> = lessons.iter().map(|lesson| lesson.query.clone()).collect();
    let answers: Vec<String> = lessons.iter().map(|lesson| lesson.pos[0].clone()).collect();
    let mut known = HashSet::new();
    let texts = questions.texts.iter().chain(&answers);
    let texts: Vec<String> = texts.filter(|text| known.insert(*text)).cloned().collect();
    let [queries, answers, vectors] =
        [(&queries, "query"), (&answers, "document"), (&texts, "document")]
            .map(|(texts, prompt)| trainer.embed(texts, prompt).unwrap());
    let rankings = dense_rankings(&queries, &vectors, NEAREST).unwrap();
    let found = rankings.iter().zip(queries.iter().zip(&answers)).map(|(ranking, (query, own))| {
        let near = ranking.iter().map(|&row| (texts[row].clone(), cosine(query, &vectors[row])));
        Found { positive_scores: vec![cosine(query, own)], texts: near.collect() }
    });
    found.collect()
}

fn numbers(name: &str, usual: &str) -> Vec<u64> {
    let text = var(name).unwrap_or(usual.into());
    text.split(',').map(|number| number.trim().parse().unwrap()).collect()
}

/// Mean, and half the interval of 95 % by Student's t.
fn interval(values: &[f64]) -> [f64; 2] {
    const T: [f64; 9] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262];
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    let freedom = values.len().saturating_sub(1);
    let t = T.get(freedom.wrapping_sub(1)).copied().unwrap_or(f64::NAN);
    [mean, t * (square / freedom as f64 / count).sqrt()]
}

#[test]
#[ignore = "opt-in: takes minutes to hours; see the variables above"]
fn gain() {
    let (model, folder) = (var("KILN_GAIN_MODEL").unwrap(), var("KILN_GAIN_LESSONS").unwrap());
    let plan: TeachingPlan =
        serde_json::from_str(&var("KILN_GAIN_PLAN").unwrap_or("{}".into())).unwrap();
    let rank = numbers("KILN_GAIN_RANK", "8")[0] as usize;
    let most: [usize; 2] =
        std::array::from_fn(|i| numbers("KILN_GAIN_TEXTS", "600,200")[i] as usize);
    let same = Questions::read(&folder, "dev", most);
    let other = Questions::read(&var("KILN_GAIN_OTHER").unwrap(), "test", most);
    let pool = Pool::read(&folder);
    let mine = var("KILN_GAIN_MINE")
        .ok()
        .map(|per_query| Mine { per_query: per_query.parse().unwrap(), ..Mine::default() });
    let opened = open_folder(Path::new(&model)).unwrap();
    let embedder: Embedder<Flex> =
        Embedder::load_with(opened.as_ref(), &LoadOptions::default(), &Default::default()).unwrap();
    let trainer = |kind, seed| {
        let settings =
            AdapterSettings { kind, rank: Some(rank), seed, ..AdapterSettings::default() };
        Trainer::<B>::new(embedder.clone(), settings).unwrap()
    };
    let bare = trainer(AdapterKind::Adapter, 1);
    let vectors = [same.vectors(&bare), other.vectors(&bare)];
    let before = [same.score(&vectors[0]), other.score(&vectors[1])];
    println!(
        "{}",
        serde_json::json!({ "before": before, "texts": [same.texts.len(), other.texts.len()], "queries": [same.queries.len(), other.queries.len()] })
    );
    for kind in var("KILN_GAIN_KINDS").unwrap_or("adapter,lora".into()).split(',') {
        let kind = if kind == "lora" { AdapterKind::Lora } else { AdapterKind::Adapter };
        for count in numbers("KILN_GAIN_COUNTS", "25,50,100,200,400") {
            let mut gains: [Vec<f64>; 2] = Default::default();
            let (mut kept, mut seconds) = (0, 0.0);
            let seeds = numbers("KILN_GAIN_SEEDS", "1,2,3,4,5");
            for &seed in &seeds {
                let mut trainer = trainer(kind, seed);
                let begun = Instant::now();
                let mut lessons = pool.draw(count as usize, seed);
                if let Some(rule) = &mine {
                    let found = found(&bare, &lessons, &same);
                    lessons = mined(lessons.into_iter().zip(found).collect(), rule).0;
                }
                trainer.begin(lessons, &[], plan.clone()).unwrap();
                while trainer.step().unwrap().phase != Phase::Done {}
                let outcome = trainer.finish().unwrap();
                seconds += begun.elapsed().as_secs_f64();
                kept += usize::from(outcome.kept);
                let after = match (kind, outcome.kept) {
                    // As the model was.
                    (_, false) => before,
                    (AdapterKind::Adapter, true) => {
                        let files = trainer.adapter(&AdapterBase::default()).unwrap();
                        let (adapter, _) = load_vector_adapter(&files).unwrap();
                        let moved = |all: &Vectors| -> Vectors {
                            all.each_ref().map(|all| {
                                all.iter().map(|one| adapter.apply(one, "it").unwrap()).collect()
                            })
                        };
                        [same.score(&moved(&vectors[0])), other.score(&moved(&vectors[1]))]
                    }
                    _ => {
                        [same.score(&same.vectors(&trainer)), other.score(&other.vectors(&trainer))]
                    }
                };
                println!(
                    "{}",
                    serde_json::json!({ "kind": kind, "lessons": count, "seed": seed, "outcome": outcome, "same": after[0], "other": after[1] })
                );
                (0..2).for_each(|i| gains[i].push(after[i] - before[i]));
            }
            let [same, other] = gains.map(|gains| interval(&gains));
            let seconds = seconds / seeds.len() as f64;
            println!(
                "{}",
                serde_json::json!({ "mean of": kind, "lessons": count, "kept": kept, "seconds": seconds, "same": same, "other": other })
            );
        }
    }
}
