//! Lessons for kiln-mini, as the demo has it: int4 weights that stay packed.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use burn::backend::{Autodiff, Flex};
use kiln_data::data::Example;
use kiln_embed::checkpoint::{
    AdapterBase, Files, KilnFile, LoadOptions, load_adapted, load_vector_adapter, write_safetensors,
};
use kiln_embed::embedder::Embedder;
use kiln_embed::quant::WeightPrecision;
use kiln_lessons::{
    AdapterKind, AdapterSettings, Outcome, Phase, Point, State, TeachingPlan, Trainer,
};

type B = Autodiff<Flex>;

fn model(weights: &str) -> Embedder<Flex> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web-demo/kiln-mini.kiln");
    let precision: WeightPrecision = weights.parse().unwrap();
    let options = LoadOptions { precision, ..LoadOptions::default() };
    let file = KilnFile::from_bytes("kiln-mini", std::fs::read(path).unwrap()).unwrap();
    Embedder::load_with(&file, &options, &Default::default()).unwrap()
}

fn trainer(weights: &str) -> Trainer<B> {
    trainer_of(AdapterKind::Auto, weights)
}

fn trainer_of(kind: AdapterKind, weights: &str) -> Trainer<B> {
    let settings = AdapterSettings { kind, rank: Some(4), ..AdapterSettings::default() };
    Trainer::new(model(weights), settings).unwrap()
}

fn base() -> AdapterBase {
    AdapterBase { name: Some("kiln-mini".into()), fingerprint: Some("ab".into()) }
}

/// Words of a shop's own, which no model knows: each is asked for in two ways.
fn lessons(count: usize) -> Vec<Example> {
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

/// Lessons that have no text in common with those.
fn other_lessons(count: usize) -> Vec<Example> {
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

fn run(trainer: &mut Trainer<B>) -> Vec<Point> {
    let mut points = Vec::new();
    loop {
        points.push(trainer.step().unwrap());
        if points.last().unwrap().phase == Phase::Done {
            return points;
        }
    }
}

fn taught(weights: &str, plan: TeachingPlan) -> (Trainer<B>, Vec<Point>, Outcome) {
    let mut trainer = trainer(weights);
    trainer.begin(lessons(48), &[], plan).unwrap();
    let points = run(&mut trainer);
    let outcome = trainer.finish().unwrap();
    (trainer, points, outcome)
}

fn small() -> TeachingPlan {
    TeachingPlan {
        steps: Some(12),
        batch_size: Some(8),
        learning_rate: Some(2e-3),
        patience: 9,
        ..TeachingPlan::default()
    }
}

fn texts() -> Vec<String> {
    ["a rope for climbing", "Sombo 0", "letters of the alphabet"].map(String::from).to_vec()
}

#[test]
fn packed_weights_learn_what_unpacked_ones_learn() {
    let (packed, points, outcome) = taught("kept", small());
    let (_, of_f32, _) = taught("f32", small());
    assert_eq!((outcome.taught + outcome.held_back, outcome.steps), (48, 12));
    assert!((5..20).contains(&outcome.held_back), "{outcome:?}");
    let losses =
        |points: &[Point]| points.iter().filter_map(|point| point.loss).collect::<Vec<_>>();
    let (losses, of_f32) = (losses(&points), losses(&of_f32));
    assert_eq!(losses.len(), 12);
    let sum = |losses: &[f64]| losses.iter().sum::<f64>();
    assert!(sum(&losses[8..]) < sum(&losses[..4]), "{losses:?}");
    // What int4 weights take is rounded to int8; the rest is the same.
    for (packed, unpacked) in losses.iter().zip(&of_f32) {
        assert!((packed - unpacked).abs() < 0.1 * unpacked, "{losses:?} {of_f32:?}");
    }
    let (before, after) = (outcome.before.unwrap(), outcome.after.unwrap());
    assert!(outcome.kept && after.is_better_than(before), "{outcome:?}");
    // The adapters are PEFT's, and give the same vectors in a model of their own.
    let files = packed.adapter(&base()).unwrap();
    let mut again = trainer("kept");
    let error = again.adapters(&files, Some("cd")).unwrap_err().to_string();
    assert!(error.contains("another model, \"kiln-mini\""), "{error}");
    let load = |one| load_adapted(one, &files, Some("cd"), &Default::default());
    assert!(model("kept").map_model(load).err().unwrap().to_string().contains("another model"));
    again.adapters(&files, Some("ab")).unwrap();
    let [one, two] = [&packed, &again].map(|trainer| trainer.embed(&texts(), "document").unwrap());
    // Those that were read lie in memory in another order, in which sums are made.
    assert!(off(&one, &two) < 1e-5);
    let bare = trainer("kept").embed(&texts(), "document").unwrap();
    assert_ne!(one, bare);
}

/// Losses and vectors of a run on the packed base, which `tests/browser/train.test.mjs` compares a page's with, too.
/// `KILN_WRITE_LOSSES=1` writes them anew.
#[test]
fn a_packed_base_gives_the_losses_that_a_page_is_held_to() {
    let settings =
        AdapterSettings { kind: AdapterKind::Lora, rank: Some(4), seed: 3, ..Default::default() };
    let mut trainer = Trainer::<B>::new(model("kept"), settings).unwrap();
    let plan = TeachingPlan {
        steps: Some(12),
        batch_size: Some(8),
        learning_rate: Some(1e-3),
        hold_back: 0.0,
        ..TeachingPlan::default()
    };
    trainer.begin(lessons(40), &[], plan).unwrap();
    let losses: Vec<f64> = run(&mut trainer).iter().filter_map(|point| point.loss).collect();
    trainer.finish().unwrap();
    let texts = ["a rope for climbing of series 1", "Sombo 1", "letters of the alphabet"];
    let vectors = trainer.embed(&texts.map(String::from), "").unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/lessons.json");
    if std::env::var_os("KILN_WRITE_LOSSES").is_some() {
        let found = serde_json::json!({ "losses": losses, "vectors": vectors });
        std::fs::write(&path, format!("{found}\n")).unwrap();
    }
    let expected: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let of_file: Vec<f64> = serde_json::from_value(expected["losses"].clone()).unwrap();
    assert_eq!((losses.len(), of_file.len()), (12, 12));
    // States are rounded to bytes before each product; on another processor one may be rounded the other way.
    for (step, (loss, expected)) in losses.iter().zip(&of_file).enumerate() {
        let allowed = if step == 0 { 1e-3 } else { 5e-3 };
        assert!((loss - expected).abs() < allowed * expected.max(1.0), "{losses:?} {of_file:?}");
    }
    let of_file: Vec<Vec<f32>> = serde_json::from_value(expected["vectors"].clone()).unwrap();
    for (vector, expected) in vectors.iter().zip(&of_file) {
        let cosine: f32 = vector.iter().zip(expected).map(|(a, b)| a * b).sum();
        assert!(cosine > 0.9999, "{cosine}");
    }
}

#[test]
fn a_state_goes_on_with_the_same_numbers() {
    let plan = TeachingPlan { check_every: 3, ..small() };
    let mut whole = trainer("kept");
    whole.begin(lessons(48), &texts(), plan.clone()).unwrap();
    let points = run(&mut whole);
    let mut half = trainer("kept");
    half.begin(lessons(48), &texts(), plan).unwrap();
    for _ in 0..8 {
        half.step().unwrap();
    }
    let files = half.state(Some("m int4")).unwrap();
    let mut resumed = trainer("kept");
    resumed.restore(&files, Some("m int4")).unwrap();
    assert_eq!(points[8..], run(&mut resumed));
    let [one, two] = [&mut whole, &mut resumed].map(|trainer| {
        trainer.finish().unwrap();
        trainer.embed(&texts(), "query").unwrap()
    });
    assert_eq!(one, two);

    let error = trainer("kept").restore(&files, Some("other int4")).unwrap_err().to_string();
    assert!(error.contains("another model"), "{error}");
    let mut damaged = Files::default();
    for (name, bytes) in &files.0 {
        let mut bytes = bytes.to_vec();
        if name.starts_with("optimizer-undecayed") || name == "parameters.safetensors" {
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
        }
        damaged.0.insert(name.clone(), bytes.into());
    }
    let error = trainer("kept").restore(&damaged, None).unwrap_err().to_string();
    assert!(error.contains("damaged"), "{error}");
}

/// Vectors of texts by the trainer.
fn vectors(trainer: &Trainer<B>) -> Vec<Vec<f32>> {
    trainer.embed(&texts(), "document").unwrap()
}

/// The largest difference between vectors.
fn off(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// What the state of a run says.
fn state(trainer: &Trainer<B>) -> State {
    serde_json::from_slice(&trainer.state(None).unwrap().0["state.json"]).unwrap()
}

/// A fresh trainer that goes on with a run.
fn resumed(trainer: &Trainer<B>) -> Trainer<B> {
    let mut other = self::trainer("kept");
    other.restore(&trainer.state(None).unwrap(), None).unwrap();
    other
}

#[test]
fn a_run_that_was_left_leaves_nothing_behind() {
    let plan = TeachingPlan { steps: Some(4), ..small() };
    let teach = |mut trainer: Trainer<B>| {
        trainer.begin(lessons(30), &[], plan.clone()).unwrap();
        let points = run(&mut trainer);
        (points, trainer.finish().unwrap(), vectors(&trainer))
    };
    for kind in [AdapterKind::Lora, AdapterKind::Adapter] {
        let mut left = trainer_of(kind, "kept");
        left.begin(other_lessons(48), &[], plan.clone()).unwrap();
        // Of an adapter, most texts still wait for their vectors.
        for _ in 0..3 {
            left.step().unwrap();
        }
        assert_eq!(teach(left), teach(trainer_of(kind, "kept")));
    }
}

#[test]
fn a_run_from_given_adapters_goes_on_as_it_was() {
    // Of another rank and scale than the trainer's settings.
    let settings = AdapterSettings {
        kind: AdapterKind::Lora,
        rank: Some(2),
        alpha: Some(32.0),
        ..AdapterSettings::default()
    };
    let plan = TeachingPlan { steps: Some(4), hold_back: 0.0, ..small() };
    let mut teacher = Trainer::<B>::new(model("kept"), settings).unwrap();
    teacher.begin(lessons(24), &[], plan.clone()).unwrap();
    run(&mut teacher);
    teacher.finish().unwrap();
    let given = teacher.adapter(&base()).unwrap();
    let begun = |plan: &TeachingPlan| {
        let mut trainer = trainer("kept");
        trainer.adapters(&given, None).unwrap();
        trainer.begin(lessons(48), &[], plan.clone()).unwrap();
        trainer
    };

    let mut whole = begun(&plan);
    whole.step().unwrap();
    let mut half = resumed(&whole);
    for trainer in [&mut whole, &mut half] {
        run(trainer);
        trainer.finish().unwrap();
        let files = trainer.adapter(&base()).unwrap();
        let config: serde_json::Value =
            serde_json::from_slice(&files.0["adapter_config.json"]).unwrap();
        assert_eq!((config["r"].as_u64(), config["lora_alpha"].as_f64()), (Some(2), Some(32.0)));
    }
    // Those that were read lie in memory in another order, in which sums are made.
    assert!(off(&vectors(&whole), &vectors(&half)) < 1e-4);
    assert!(off(&vectors(&whole), &vectors(&teacher)) > 1e-3);

    // What is not kept leaves what was given.
    let plan = TeachingPlan { learning_rate: Some(3.0), patience: 1, check_every: 2, ..small() };
    let mut worse = begun(&plan);
    for _ in 0..2 {
        worse.step().unwrap();
    }
    let mut worse = resumed(&worse);
    run(&mut worse);
    assert!(!worse.finish().unwrap().kept);
    assert!(off(&vectors(&worse), &vectors(&teacher)) < 1e-5);

    // An adapter of vectors is of the settings' rank again.
    let mut other = begun(&plan);
    other.use_vector_adapter().unwrap();
    other.begin(lessons(24), &[], plan).unwrap();
    assert_eq!(state(&other).lora.rank, 4);
}

#[test]
fn adapters_of_tables_are_not_taught_further() {
    let mut files = Files::default();
    let config = r#"{"peft_type": "LORA", "r": 1, "lora_alpha": 2, "lora_dropout": 0}"#;
    files.0.insert("adapter_config.json".into(), config.into());
    let table = "base_model.model.embeddings.word_embeddings.lora_embedding_A".to_string();
    let weights = write_safetensors(&[(table, vec![1, 2], vec![0.0, 1.0])], &[]).unwrap();
    files.0.insert("adapter_model.safetensors".into(), weights.into());
    let error = trainer("kept").adapters(&files, None).unwrap_err().to_string();
    assert!(error.contains("tables of tokens"), "{error}");
}

#[test]
fn answers_are_told_apart_from_other_texts_first() {
    let others: Vec<String> = (0..40).map(|i| format!("passage {i}")).collect();
    let mut trainer = trainer_of(AdapterKind::Adapter, "kept");
    trainer.begin(lessons(120), &others, TeachingPlan::default()).unwrap();
    let State { texts, held_back, .. } = state(&trainer);
    assert_eq!((texts.len(), held_back.len()), (96, 24));
    assert!(others.iter().all(|text| texts.contains(text)));
}

#[test]
fn a_run_within_a_time_looks_regularly_and_ends_when_told() {
    let mut trainer = trainer_of(AdapterKind::Adapter, "kept");
    let plan = TeachingPlan { steps: Some(1000), patience: 100, ..TeachingPlan::default() };
    trainer.begin(lessons(48), &[], plan).unwrap();
    let mut looks = Vec::new();
    let last = loop {
        let point = trainer.step().unwrap();
        looks.extend(point.score.map(|_| point.step));
        match point.step {
            _ if point.phase == Phase::Done => break point,
            0..3 => {}
            // What is guessed from the time that steps take goes up and down.
            step @ 3..37 => trainer.set_steps(40 + step % 3),
            // The time is up.
            step => trainer.set_steps(step),
        }
        if point.step == 9 {
            // Later there may be time for more again, up to what was planned.
            let mut resumed = resumed(&trainer);
            resumed.set_steps(2000);
            assert_eq!(resumed.step().unwrap().steps, 1000);
        }
    };
    assert_eq!((last.step, last.loss, last.most), (37, None, 1000));
    assert_eq!((looks.len(), looks.first(), looks.last()), (5, Some(&0), Some(&37)), "{looks:?}");
    assert!(looks[..4].windows(2).all(|two| (10..=11).contains(&(two[1] - two[0]))), "{looks:?}");
    assert_eq!(trainer.finish().unwrap().steps, 37);
}

#[test]
fn an_adapter_of_vectors_learns_without_the_model() {
    let plan =
        TeachingPlan { steps: Some(40), learning_rate: Some(2e-3), ..TeachingPlan::default() };
    let mut trainer = trainer_of(AdapterKind::Adapter, "kept");
    let bare = vectors(&trainer);
    trainer.begin(lessons(48), &texts(), plan.clone()).unwrap();
    let points = run(&mut trainer);
    // All texts are embedded before the first step, some in each call.
    let embedding = points.iter().filter(|point| point.phase == Phase::Embedding).count();
    assert!(embedding > 3 && points[embedding..].iter().all(|one| one.phase != Phase::Embedding));
    let outcome = trainer.finish().unwrap();
    let (before, after) = (outcome.before.unwrap(), outcome.after.unwrap());
    assert!(outcome.kept && after.is_better_than(before), "{outcome:?}");
    let taught = vectors(&trainer);
    assert_ne!(taught, bare);

    // What was saved gives the same in a model, and of vectors alone.
    let files = trainer.adapter(&base()).unwrap();
    let (adapter, of) = load_vector_adapter(&files).unwrap();
    assert_eq!(of, base());
    for (bare, taught) in bare.iter().zip(&taught) {
        let mapped = adapter.apply(bare, "it").unwrap();
        assert!(mapped.iter().zip(taught).all(|(a, b)| (a - b).abs() < 1e-5));
    }
    let device = Default::default();
    let adapt = |sum: Option<&str>| {
        let load = |one| load_adapted(one, &files, sum, &device);
        model("kept").map_model(load)
    };
    assert!(adapt(Some("cd")).err().unwrap().to_string().contains("of another model"));
    let embedded = adapt(Some("ab")).unwrap().embed(&texts()).unwrap();
    for (one, taught) in embedded.iter().zip(&taught) {
        assert!(one.iter().zip(taught).all(|(a, b)| (a - b).abs() < 1e-5));
    }

    // Another run goes on from it, and a state with it.
    let begun = || {
        let mut trainer = trainer_of(AdapterKind::Auto, "kept");
        trainer.adapters(&files, None).unwrap();
        assert_eq!(trainer.kind(), AdapterKind::Adapter);
        trainer.begin(lessons(48), &texts(), plan.clone()).unwrap();
        trainer
    };
    let mut whole = begun();
    // What was learned is one matrix now, whose sums are made in another order.
    assert!(off(&vectors(&whole), &taught) < 1e-5);
    let points = run(&mut whole);
    let mut half = begun();
    for _ in 0..embedding + 9 {
        half.step().unwrap();
    }
    let state = half.state(Some("m int4")).unwrap();
    let mut resumed = trainer_of(AdapterKind::Auto, "kept");
    resumed.restore(&state, Some("m int4")).unwrap();
    let left: Vec<Point> = run(&mut resumed);
    let left = left.iter().filter(|point| point.phase != Phase::Embedding);
    assert_eq!(points[embedding + 9..].iter().collect::<Vec<_>>(), left.collect::<Vec<_>>());
    whole.finish().unwrap();
    resumed.finish().unwrap();
    assert_eq!(vectors(&whole), vectors(&resumed));
    let error =
        trainer_of(AdapterKind::Lora, "kept").restore(&state, None).unwrap_err().to_string();
    assert!(error.contains("other settings"), "{error}");
    let error =
        trainer_of(AdapterKind::Lora, "kept").adapters(&files, None).unwrap_err().to_string();
    assert!(error.contains("other kind"), "{error}");
}

#[test]
fn a_shortened_run_rises_and_falls_within_its_steps() {
    let mut trainer = trainer_of(AdapterKind::Adapter, "kept");
    let learning_rate = Some(2e-3);
    let plan = TeachingPlan {
        steps: Some(1000),
        hold_back: 0.0,
        learning_rate,
        ..TeachingPlan::default()
    };
    trainer.begin(lessons(24), &[], plan).unwrap();
    while trainer.step().unwrap().step < 2 {}
    let before = vectors(&trainer);
    trainer.set_steps(20);
    let points = run(&mut trainer);
    assert_eq!(points.last().unwrap().step, 20);
    // Not the hundredth part of a rate that would have risen over a hundred steps.
    assert!(off(&before, &vectors(&trainer)) > 1e-3);
}

#[test]
fn what_makes_it_worse_is_not_kept() {
    // A rate at which nothing can be learned.
    let plan = TeachingPlan { learning_rate: Some(3.0), patience: 1, check_every: 2, ..small() };
    let (mut trainer, points, outcome) = taught("f32", plan);
    assert!(!outcome.kept && outcome.steps == 2, "{outcome:?}");
    assert!(points.last().unwrap().score.is_some());
    let before = self::trainer("f32").embed(&texts(), "query").unwrap();
    assert_eq!(trainer.embed(&texts(), "query").unwrap(), before);
    assert!(trainer.step().unwrap_err().to_string().contains("begin with lessons"));
}

#[test]
fn what_makes_no_sense_is_said() {
    let said = |plan: TeachingPlan, lessons: Vec<Example>| {
        trainer("f32").begin(lessons, &[], plan).unwrap_err().to_string()
    };
    let plan = TeachingPlan::default();
    assert!(
        said(TeachingPlan { steps: Some(0), ..plan.clone() }, lessons(9)).contains("steps is 0")
    );
    assert!(
        said(TeachingPlan { batch_size: Some(1), ..plan.clone() }, lessons(9))
            .contains("batchSize is 1")
    );
    assert!(
        said(TeachingPlan { learning_rate: Some(f64::NAN), ..plan.clone() }, lessons(9))
            .contains("learningRate")
    );
    assert!(said(TeachingPlan { hold_back: 1.0, ..plan.clone() }, lessons(9)).contains("holdBack"));
    let mut alone = lessons(1);
    alone[0].neg.clear();
    assert!(said(plan, alone).contains("one lesson without a wrong answer"));
    let settings = AdapterSettings { rank: Some(0), ..AdapterSettings::default() };
    let error = Trainer::<B>::new(model("f32"), settings).err().unwrap();
    assert!(error.to_string().contains("rank is 0"), "{error}");
    let settings =
        AdapterSettings { targets: vec!["nothing".into()], ..AdapterSettings::default() };
    let error = Trainer::<B>::new(model("f32"), settings).err().unwrap();
    assert!(error.to_string().contains("\"nothing\""), "{error}");
}
