//! Runs whose number of steps changes on the way.

use kiln_lessons::{AdapterKind, Phase, TeachingPlan};

use crate::teacher::{lessons, off, resumed, run, trainer_of, vectors};

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
