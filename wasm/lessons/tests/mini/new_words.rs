//! Words that no model has seen, which take more steps than others.

use kiln_lessons::{AdapterKind, Phase, Point, TeachingPlan, Trainer};

use crate::teacher::{B, coloured, resumed, run, state, trainer_of};

/// A plan that leaves all open but for what is held back: so much that luck is no matter.
fn open() -> TeachingPlan {
    TeachingPlan { hold_back: 0.5, ..TeachingPlan::default() }
}

/// A trainer with lessons.
fn begun(kind: AdapterKind, by_name: bool, plan: TeachingPlan) -> Trainer<B> {
    let mut trainer = trainer_of(kind, "kept");
    trainer.begin(coloured(by_name), &[], plan).unwrap();
    trainer
}

/// Goes on until the lessons that are held back were asked, or a step was taken.
fn first_look(trainer: &mut Trainer<B>) -> Point {
    loop {
        let point = trainer.step().unwrap();
        if point.score.is_some() || point.step > 0 {
            return point;
        }
    }
}

/// Steps, rate, and whether words are new, as a run has them after the first look.
fn settled(trainer: &mut Trainer<B>) -> (usize, Option<f64>, bool) {
    let point = first_look(trainer);
    assert_eq!(point.steps, point.most);
    (point.steps, state(trainer).plan.learning_rate, point.new_words)
}

#[test]
fn new_words_are_practised_longer_unless_it_is_said_how_long() {
    let plan_of = |kind, by_name, plan| settled(&mut begun(kind, by_name, plan));
    let (lora, adapter) = (AdapterKind::Lora, AdapterKind::Adapter);
    assert_eq!(plan_of(lora, true, open()), (300, Some(2e-3), true));
    assert_eq!(plan_of(adapter, true, open()), (300, Some(1e-3), true));
    // What the model knows, and what it is not asked.
    assert_eq!(plan_of(adapter, false, open()), (60, Some(3e-4), false));
    let none = TeachingPlan { hold_back: 0.0, ..open() };
    assert_eq!(plan_of(adapter, true, none), (60, Some(3e-4), false));
    // What is said.
    let steps = TeachingPlan { steps: Some(60), ..open() };
    assert_eq!(plan_of(adapter, true, steps), (60, Some(3e-4), false));
    let rate = TeachingPlan { learning_rate: Some(5e-4), ..open() };
    assert_eq!(plan_of(adapter, true, rate), (60, Some(5e-4), false));
    // As within a time.
    let mut told = begun(adapter, true, open());
    told.set_steps(1000);
    assert_eq!(settled(&mut told), (60, Some(3e-4), false));
}

#[test]
fn practice_of_new_words_goes_on_where_it_was_left_and_ends_no_earlier() {
    // So many looks that two of them without a gain, which end other runs, are sure to come.
    let plan = TeachingPlan { check_every: 3, ..open() };
    let mut whole = begun(AdapterKind::Adapter, true, plan);
    whole.step().unwrap();
    // While texts are embedded nothing is settled yet.
    let mut early = resumed(&whole);
    assert_eq!(first_look(&mut whole), first_look(&mut early));
    for _ in 0..5 {
        whole.step().unwrap();
    }
    let mut late = resumed(&whole);
    let last = loop {
        let point = late.step().unwrap();
        match point.phase {
            Phase::Embedding => {}
            Phase::Training => {
                assert_eq!((point.steps, point.most, point.new_words), (300, 300, true))
            }
            Phase::Done => break point,
        }
    };
    assert_eq!((last.step, state(&late).plan.learning_rate), (300, Some(1e-3)));
    run(&mut whole);
    let outcomes = [&mut whole, &mut late].map(|trainer| trainer.finish().unwrap());
    assert_eq!(outcomes[0], outcomes[1]);
    assert!(outcomes[0].new_words && outcomes[0].steps == 300, "{outcomes:?}");
}
