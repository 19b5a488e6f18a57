//! What is learned, and whether it is kept.

use std::path::Path;

use kiln_embed::checkpoint::{load_adapted, load_vector_adapter};
use kiln_lessons::{AdapterKind, AdapterSettings, Phase, Point, State, TeachingPlan, Trainer};

use crate::teacher::{
    B, base, lessons, model, off, run, small, state, taught, texts, trainer, trainer_of, vectors,
};

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
fn answers_are_told_apart_from_other_texts_first() {
    let others: Vec<String> = (0..40).map(|i| format!("passage {i}")).collect();
    let mut trainer = trainer_of(AdapterKind::Adapter, "kept");
    trainer.begin(lessons(120), &others, TeachingPlan::default()).unwrap();
    let State { texts, held_back, .. } = state(&trainer);
    assert_eq!((texts.len(), held_back.len()), (96, 24));
    assert!(others.iter().all(|text| texts.contains(text)));
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
    let waiting = |points: &[Point]| points.iter().map(|point| point.waiting).collect::<Vec<_>>();
    let left = waiting(&points[..embedding]);
    assert!(left.is_sorted_by(|before, now| before > now) && left.ends_with(&[0]), "{left:?}");
    assert!(waiting(&points[embedding..]).iter().all(|left| *left == 0));
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
