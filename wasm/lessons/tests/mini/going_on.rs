//! Runs that are left, gone on with, or begun from given adapters.

use kiln_embed::checkpoint::Files;
use kiln_lessons::{AdapterKind, AdapterSettings, TeachingPlan, Trainer};

use crate::teacher::{
    B, base, lessons, model, off, other_lessons, resumed, run, small, state, texts, trainer,
    trainer_of, vectors,
};

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
