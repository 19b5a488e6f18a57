//! Numbers that stay on the device while it computes the next step, as on a GPU, beside those that each step waits for.

use anyhow::Result;
use kiln_embed::train::Late;

use super::*;
use crate::data::OnBadRow;
use crate::recipe::{Mntp, Reconstruction};
use crate::train::mntp::mntp;
use crate::train::reconstruction::reconstruction;
use crate::train::run::{CHECKPOINTS, train_with};
use crate::train::{Inputs, Point, TrainObserver, TrainPlan};

const QUIET: Terminal = Terminal { json: false, quiet: true };

/// The steps that an observer is told of.
struct Seen(Vec<Point>);

impl TrainObserver<B> for Seen {
    fn step(&mut self, point: &Point) {
        self.0.push(point.clone());
    }
}

fn recipe_of(rest: &str) -> Recipe {
    Recipe::parse(&format!(
        "name = 'late'\nseed = 3\n[model]\nmax_length = 24\npooling = {{ mode = 'mean' }}\n\
         [model.new]\nvocab_size = 320\nhidden_size = 32\nintermediate_size = 48\nlayers = 2\nheads = 2\n\
         [[stage]]\nname = 'all'\nfull = true\ndata = ['data.jsonl']\nsteps = 7\nbatch_size = 4\naccumulation = 2\n{rest}\n"
    ))
    .unwrap()
}

fn new_embedder(recipe: &Recipe) -> Embedder<Flex> {
    let device = Default::default();
    Flex::seed(&device, 7);
    let new = recipe.model.new.as_ref().unwrap();
    new_model(new, &recipe.model, TEXTS.into_iter(), &device).unwrap()
}

/// The steps of a run whose state is kept every so many.
fn run(
    folder: &Path,
    model: &Embedder<Flex>,
    recipe: &Recipe,
    every: usize,
    late: bool,
) -> Result<Vec<Point>> {
    let rows: Vec<String> = (0..4)
        .map(|i| {
            let (query, pos, neg) = (TEXTS[i], TEXTS[4 + i], TEXTS[4 + (i + 1) % 4]);
            serde_json::json!({"query": query, "pos": [pos], "neg": [neg]}).to_string()
        })
        .collect();
    std::fs::write(folder.join("data.jsonl"), rows.join("\n"))?;
    let inputs = Inputs::open(recipe, folder, OnBadRow::Stop, QUIET)?;
    let plan = TrainPlan {
        recipe,
        sets: &inputs.sets,
        measured: &[],
        output: Some(folder),
        lm_head: None,
        checkpoint_every: every,
        keep: 9,
        save_every: 0,
        resume: None,
        hosts: None,
        terminal: QUIET,
    };
    let mut seen = Seen(Vec::new());
    let outcome = train_with::<B>(model.clone(), plan, &[], &mut seen, late)?;
    assert_eq!(seen.0, outcome.points);
    Ok(outcome.points)
}

/// The lines that a run wrote.
fn lines(folder: &Path) -> Vec<Point> {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn each_step_is_reported_once_and_in_order_with_its_own_numbers() {
    let recipe = recipe_of("lr = 5e-4\nclip_norm = 0.1");
    let (model, folders) = (new_embedder(&recipe), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let [at_once, late] =
        [false, true].map(|late| run(folders[usize::from(late)].path(), &model, &recipe, 3, late));
    let (at_once, late) = (at_once.unwrap(), late.unwrap());
    assert_eq!(late.iter().map(|point| point.step).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    for (late, known) in late.iter().zip(&at_once) {
        assert_eq!((late.lr, late.texts, late.tokens), (known.lr, known.texts, known.tokens));
        // The clipping that was rounded otherwise is in all later steps.
        let near = if late.step == 1 { 1e-5 } else { 1e-2 };
        assert!((late.loss - known.loss).abs() < near * known.loss, "{late:?} {known:?}");
        let far = (late.grad_norm - known.grad_norm).abs() / known.grad_norm;
        assert!(far < near, "{late:?} {known:?}");
        assert!(late.seconds > 0.0);
    }
    assert!(late[0].grad_norm > 0.1, "nothing was clipped: {:?}", late[0]);
    let written = lines(folders[1].path());
    assert_eq!(written.len(), late.len());
    for (written, point) in written.iter().zip(&late) {
        assert_eq!(written.step, point.step);
        assert!((written.loss - point.loss).abs() < 1e-12, "{written:?} {point:?}");
    }
    for folder in &folders {
        let checkpoints = folder.path().join(CHECKPOINTS);
        for steps in ["00000003", "00000006", "00000007"] {
            assert!(checkpoints.join(steps).is_dir(), "{steps}");
        }
    }
}

#[test]
fn a_step_that_is_no_number_ends_the_run_before_anything_is_kept() {
    let recipe = recipe_of("lr = 1e38");
    let model = new_embedder(&recipe);
    // Whether the step after it is under way, or its state was to be kept.
    for every in [0, 2] {
        let [at_once, late] = [false, true].map(|late| {
            let folder = tempfile::tempdir().unwrap();
            let error = run(folder.path(), &model, &recipe, every, late).unwrap_err().to_string();
            assert_eq!(lines(folder.path()).len(), 1, "{every} {late}");
            assert!(!folder.path().join(CHECKPOINTS).exists(), "{every} {late}");
            assert!(folder.path().join("bad-batch.json").is_file(), "{every} {late}");
            error.split("; its examples").next().unwrap().to_string()
        });
        assert!(late.contains("step 2: the loss is") && late.contains("NaN"), "{late}");
        assert_eq!(late, at_once);
    }
}

#[test]
fn losses_that_stay_on_the_device_are_the_same_in_chunks() {
    let mut recipe = recipe("{ mode = 'last_token' }", "");
    recipe.model.attention = Some(AttentionMode::Causal);
    let (parts, train_model) = train_model(&recipe, 0);
    let group = DeviceGroup::single();
    for objective in ["contrastive", "reconstruction", "mntp"] {
        for (chunk, cached, blocks) in [(8, false, false), (3, true, false), (3, true, true)] {
            let [known, late] = [false, true].map(|late| {
                let mut runner = chunk_runner::<B>(&compute(chunk, cached, blocks));
                runner.late = late;
                let context = StepContext {
                    tokenizer: &parts.tokenizer,
                    input: &parts.input,
                    runner,
                    device: &parts.device,
                    group: &group,
                    teacher: None,
                    scale: 4.0,
                };
                let batch = batch();
                let result = match objective {
                    "contrastive" => {
                        contrastive(&train_model, &batch, &recipe.stages[0], &context, 9)
                    }
                    "reconstruction" => {
                        let settings = Reconstruction::default();
                        reconstruction(&train_model, &batch, &settings, &context, 9)
                    }
                    _ => {
                        let settings = Mntp { mask_token: "a".into(), ..Default::default() };
                        mntp(&train_model, &batch, &settings, &context, 9)
                    }
                };
                let result = result.unwrap();
                assert_eq!(matches!(result.loss, Late::OnDevice(_)), late, "{objective}");
                let Found { loss, gradients } = result.into();
                (loss, flat(&train_model, &gradients))
            });
            let what = format!("{objective}, chunks of {chunk}, {cached}, {blocks}");
            assert!((known.0 - late.0).abs() < 1e-6 * known.0, "{what}: {} {}", known.0, late.0);
            assert_eq!(known.1, late.1, "{what}");
        }
    }
}
