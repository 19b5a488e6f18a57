//! Trainers of kiln-mini, their lessons, and what comes of them.

use std::path::Path;

use burn::backend::{Autodiff, Flex};
use kiln_data::data::Example;
use kiln_embed::checkpoint::{AdapterBase, KilnFile, LoadOptions};
use kiln_embed::embedder::Embedder;
use kiln_embed::quant::WeightPrecision;
use kiln_lessons::{
    AdapterKind, AdapterSettings, Outcome, Phase, Point, State, TeachingPlan, Trainer,
};

/// The backend that teaches on the CPU.
pub(crate) type B = Autodiff<Flex>;

/// kiln-mini, with weights as they are computed with.
pub(crate) fn model(weights: &str) -> Embedder<Flex> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web-demo/kiln-mini.kiln");
    let precision: WeightPrecision = weights.parse().unwrap();
    let options = LoadOptions { precision, ..LoadOptions::default() };
    let file = KilnFile::from_bytes("kiln-mini", std::fs::read(path).unwrap()).unwrap();
    Embedder::load_with(&file, &options, &Default::default()).unwrap()
}

/// A trainer of the kind that such a small model gets.
pub(crate) fn trainer(weights: &str) -> Trainer<B> {
    trainer_of(AdapterKind::Auto, weights)
}

/// A trainer of a kind.
pub(crate) fn trainer_of(kind: AdapterKind, weights: &str) -> Trainer<B> {
    let settings = AdapterSettings { kind, rank: Some(4), ..AdapterSettings::default() };
    Trainer::new(model(weights), settings).unwrap()
}

/// What adapters say of their model.
pub(crate) fn base() -> AdapterBase {
    AdapterBase { name: Some("kiln-mini".into()), fingerprint: Some("ab".into()) }
}

/// What a shop sells.
const THINGS: [&str; 12] = [
    "a kettle for the stove",
    "a rope for climbing",
    "ink for fountain pens",
    "a lamp with a clip",
    "a saw for branches",
    "oil for hinges",
    "a brush for bottles",
    "a tent for two",
    "a scale for letters",
    "wax for skis",
    "a jar for honey",
    "a hook for coats",
];

/// Words of a shop's own, which no model knows: each is asked for in two ways.
pub(crate) fn lessons(count: usize) -> Vec<Example> {
    const NAMES: [&str; 12] = [
        "Veltra", "Sombo", "Quill", "Nixa", "Brado", "Mervin", "Tollo", "Ganda", "Pirro", "Zafir",
        "Olmek", "Duvet",
    ];
    (0..count)
        .map(|i| {
            let thing = i % THINGS.len();
            let (name, series) = (NAMES[thing], i / THINGS.len());
            let wrong = NAMES[(thing + 5) % NAMES.len()];
            Example {
                query: format!("{} of series {series}", THINGS[thing]),
                pos: vec![format!("{name} {series}")],
                neg: vec![format!("{wrong} {series}")],
                ..Example::default()
            }
        })
        .collect()
}

/// Things of eight colours, 96 in all: each is asked for by its own words, or by a made-up name, of which no model knows
/// what it means.
pub(crate) fn coloured(by_name: bool) -> Vec<Example> {
    const COLOURS: [&str; 8] =
        ["red", "green", "blue", "yellow", "black", "white", "grey", "brown"];
    const SYLLABLES: [&str; 12] =
        ["zor", "gle", "bli", "vak", "mun", "tro", "fep", "qui", "dax", "lum", "ska", "wib"];
    let one = |i: usize| {
        let (thing, colour) = (i % 12, i / 12);
        let text = format!("{}, {}", THINGS[thing], COLOURS[colour]);
        let name = format!("{}{}", SYLLABLES[(thing * 5 + 1) % 12], SYLLABLES[(colour + 3) % 12]);
        let query = if by_name { name } else { format!("{} {}", COLOURS[colour], THINGS[thing]) };
        Example { query, pos: vec![text], ..Example::default() }
    };
    (0..96).map(one).collect()
}

/// Lessons that have no text in common with those.
pub(crate) fn other_lessons(count: usize) -> Vec<Example> {
    let other = |text: &String| format!("{text}, another");
    let others = |texts: &[String]| texts.iter().map(other).collect();
    let of = |lesson: &Example| Example {
        query: other(&lesson.query),
        pos: others(&lesson.pos),
        neg: others(&lesson.neg),
        ..Example::default()
    };
    lessons(count).iter().map(of).collect()
}

/// Goes on to the end of a run.
pub(crate) fn run(trainer: &mut Trainer<B>) -> Vec<Point> {
    let mut points = Vec::new();
    loop {
        points.push(trainer.step().unwrap());
        if points.last().unwrap().phase == Phase::Done {
            return points;
        }
    }
}

/// A trainer that has taught, each step of it, and what became of it.
pub(crate) fn taught(weights: &str, plan: TeachingPlan) -> (Trainer<B>, Vec<Point>, Outcome) {
    let mut trainer = trainer(weights);
    trainer.begin(lessons(48), &[], plan).unwrap();
    let points = run(&mut trainer);
    let outcome = trainer.finish().unwrap();
    (trainer, points, outcome)
}

/// A plan of few steps.
pub(crate) fn small() -> TeachingPlan {
    TeachingPlan {
        steps: Some(12),
        batch_size: Some(8),
        learning_rate: Some(2e-3),
        patience: 9,
        ..TeachingPlan::default()
    }
}

/// Texts to be embedded.
pub(crate) fn texts() -> Vec<String> {
    ["a rope for climbing", "Sombo 0", "letters of the alphabet"].map(String::from).to_vec()
}

/// Vectors of texts by the trainer.
pub(crate) fn vectors(trainer: &Trainer<B>) -> Vec<Vec<f32>> {
    trainer.embed(&texts(), "document").unwrap()
}

/// The largest difference between vectors.
pub(crate) fn off(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// What the state of a run says.
pub(crate) fn state(trainer: &Trainer<B>) -> State {
    serde_json::from_slice(&trainer.state(None).unwrap().0["state.json"]).unwrap()
}

/// A fresh trainer that goes on with a run.
pub(crate) fn resumed(trainer: &Trainer<B>) -> Trainer<B> {
    let mut other = self::trainer("kept");
    other.restore(&trainer.state(None).unwrap(), None).unwrap();
    other
}
