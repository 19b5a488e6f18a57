//! Gradients: whole batches, chunks, GradCache, recomputed blocks, devices; and what the optimizers make of
//! them.

use std::path::Path;

use burn::backend::{Autodiff, Flex};
use burn::module::{AutodiffModule as _, Module as _, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend as _;
use kiln_embed::checkpoint::{Existing, save, write_directory};
use kiln_embed::config::AttentionMode;
use kiln_embed::embedder::Embedder;
use kiln_embed::loss::{Candidates, MarginStrategy, info_nce};
use kiln_embed::model::ModelInput;
use kiln_embed::pooling::l2_normalize;
use kiln_embed::train::{Optimizer, TrainModel, parameters, state_bytes};

use super::contrastive::contrastive;
use super::device_group::DeviceGroup;
use super::distillation::Teacher;
use super::in_process;
use super::optimizer::{self, optimizer_of};
use super::setup::{ModelParts, chunk_runner, enter_stage, start};
use super::{BatchLoss, Checkpoint, StepContext, new_model};
use crate::data::{Batch, Text};
use crate::recipe::{Compute, ComputeDtype, Distillation, LayerMap, OptimizerKind, Recipe};
use crate::terminal::Terminal;

mod cross_encoders;
mod late;
mod per_layer;
mod precision;
mod token_objectives;

type B = Autodiff<Flex>;

const TEXTS: [&str; 8] = [
    "which river floods the lower streets",
    "who is a violinist",
    "what did the ship carry",
    "colour of the petals",
    "the river floods the lower streets every spring",
    "a violinist from a small town wins a prize",
    "the ship carried tea and timber",
    "petals of pale blue in wet meadows and on walls of granite",
];

fn recipe(pooling: &str, rest: &str) -> Recipe {
    Recipe::parse(&format!(
        "name = 'tiny'\n[model]\nmax_length = 24\nattention = 'bidirectional'\npooling = {pooling}\n{rest}\n\
         [model.new]\nvocab_size = 320\nhidden_size = 32\nintermediate_size = 48\nlayers = 3\nheads = 4\nkv_heads = 2\n\
         [[stage]]\nname = 'full'\nfull = true\ndata = ['x']\nsteps = 1\nbatch_size = 4\nlr = 1e-3\n\
         [[stage]]\nname = 'lora'\ndata = ['x']\nsteps = 1\nbatch_size = 4\nlr = 1e-3\n"
    ))
    .unwrap()
}

fn train_model(recipe: &Recipe, stage: usize) -> (ModelParts<B>, TrainModel<B>) {
    let device = Default::default();
    Flex::seed(&device, 7);
    let new = recipe.model.new.as_ref().unwrap();
    let embedder: Embedder<Flex> =
        new_model(new, &recipe.model, TEXTS.into_iter(), &device).unwrap();
    let (parts, train_model) = start::<B>(embedder, None);
    let mut train_model = enter_stage(train_model, recipe, stage, None, &device).unwrap();
    if stage == 1 {
        // B is zero at the start, which would leave A without a gradient.
        train_model = train_model.map(&mut Shake);
    }
    (parts, train_model)
}

/// Adds a fixed pattern to every parameter that trains.
struct Shake;
impl burn::module::ModuleMapper<B> for Shake {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let trains = param.is_require_grad();
        param.map(|tensor| {
            let shape = tensor.shape();
            let values: Vec<f32> =
                (0..shape.num_elements()).map(|i| 0.02 * (i as f32 * 0.7).sin()).collect();
            let data = burn::tensor::TensorData::new(values, shape);
            let pattern = Tensor::from_data(data, &tensor.device());
            // Detached after the sum: a tensor keeps its need of a gradient when detached.
            let shaken = (tensor.clone() + pattern).detach();
            if trains { shaken.set_require_grad(true) } else { tensor }
        })
    }
}

fn batch() -> Batch {
    let text = |text: &&str| Text { prompt: "".into(), text: text.to_string() };
    Batch {
        queries: TEXTS[..4].iter().map(text).collect(),
        documents: TEXTS[4..].iter().map(text).collect(),
        scores: vec![None; TEXTS[4..].len()],
        candidates: Candidates::grouped(4, 1, true),
        ids: (0..4).map(|i| (0, i)).collect(),
    }
}

/// Loss and gradients of a batch.
struct Found {
    loss: f64,
    gradients: GradientsParams,
}

impl From<BatchLoss<B>> for Found {
    fn from(BatchLoss { loss, gradients, .. }: BatchLoss<B>) -> Self {
        Self { loss: loss.read().unwrap(), gradients }
    }
}

fn batch_loss(
    train_model: &TrainModel<B>,
    parts: &ModelParts<B>,
    recipe: &Recipe,
    compute: &Compute,
    scale: f64,
) -> Found {
    batch_loss_with(train_model, parts, recipe, compute, scale, None)
}

fn batch_loss_with(
    train_model: &TrainModel<B>,
    parts: &ModelParts<B>,
    recipe: &Recipe,
    compute: &Compute,
    scale: f64,
    teacher: Option<&Teacher<B>>,
) -> Found {
    let runner = chunk_runner::<B>(compute);
    let group = DeviceGroup::single();
    let context = StepContext {
        tokenizer: &parts.tokenizer,
        input: &parts.input,
        runner,
        device: &parts.device,
        group: &group,
        teacher,
        scale,
    };
    contrastive(train_model, &batch(), &recipe.stages[0], &context, 9).unwrap().into()
}

/// All gradients, in the parameters' order.
fn flat(train_model: &TrainModel<B>, grads: &GradientsParams) -> Vec<f32> {
    struct Flat<'a>(&'a GradientsParams, Vec<f32>);
    impl ModuleVisitor<B> for Flat<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let grad = self.0.get::<Flex, D>(param.id);
            assert_eq!(grad.is_some(), param.is_require_grad());
            if let Some(grad) = grad {
                self.1.extend(grad.into_data().to_vec::<f32>().unwrap());
            }
        }
    }
    let mut flat = Flat(grads, Vec::new());
    train_model.visit(&mut flat);
    flat.1
}

/// Largest difference relative to the largest value.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = a.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    assert!(largest > 0.0);
    a.iter().zip(b).fold(0.0f32, |most, (x, y)| most.max((x - y).abs())) / largest
}

fn compute(chunk: usize, grad_cache: bool, checkpoint_blocks: bool) -> Compute {
    Compute { chunk: Some(chunk), grad_cache, checkpoint_blocks, ..Compute::default() }
}

const POOLINGS: [&str; 9] = [
    "{ mode = 'mean' }",
    "{ mode = 'anchor' }",
    "{ mode = 'cls' }",
    "{ mode = 'last_token' }",
    "{ mode = 'weighted_mean' }",
    "{ mode = 'self_attention', heads = 2 }",
    "{ mode = 'latent_attention', latents = 6, heads = 2 }",
    "{ mode = 'last_layer_trainable', latents = 6, heads = 2 }",
    "{ mode = 'multi_layer_trainable', latents = 6, heads = 2 }",
];

/// A model of a recipe's shape with weights of its own, which a folder is given to teach.
fn teacher_in(folder: &Path, recipe: &Recipe) -> Embedder<Flex> {
    let device = Default::default();
    let new = recipe.model.new.as_ref().unwrap();
    Flex::seed(&device, 8);
    let model = new_model(new, &recipe.model, TEXTS.into_iter(), &device).unwrap();
    write_directory(folder, &save(&model).unwrap(), Existing::Refuse).unwrap();
    model
}

/// Learning the states of two layers of the teacher in a folder, and nothing else.
fn of_states(teacher: &Path, alpha: f64) -> Distillation {
    Distillation {
        teacher: teacher.display().to_string(),
        query_prompt: None,
        query_prompt_name: None,
        document_prompt: None,
        document_prompt_name: None,
        alpha,
        vectors: 0.0,
        scores: 0.0,
        temperature: 0.05,
        layers: LayerMap::Pairs(vec![[1, 2], [3, 3]]),
        guide: None,
        margin_strategy: MarginStrategy::Absolute,
        contrast_anchors: false,
        contrast_positives: false,
    }
}

#[test]
fn what_a_teacher_teaches_is_the_same_in_chunks() {
    let mut recipe = recipe(POOLINGS[0], "");
    // Every pair of texts weighs something.
    recipe.stages[0].loss.temperature = 0.5;
    let device = Default::default();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("teacher");
    let teacher_model = teacher_in(&path, &recipe);
    let settings = of_states(&path, 0.7);
    let (parts, train_model) = train_model(&recipe, 0);
    let quiet = Terminal { json: false, quiet: true };
    let mut teacher = Teacher::<B>::load(&settings, &parts.tokenizer, 3, &device, quiet).unwrap();
    let alone = batch_loss(&train_model, &parts, &recipe, &compute(8, false, false), 1.0);
    // Loss and gradients of the batch at once, from which those in chunks do not differ.
    let taught = |teacher: &Teacher<B>| {
        let run = |chunk, cached, scale| {
            let compute = compute(chunk, cached, false);
            batch_loss_with(&train_model, &parts, &recipe, &compute, scale, Some(teacher))
        };
        let whole = run(8, false, 1.0);
        let expected = flat(&train_model, &whole.gradients);
        for (chunk, cached, scale) in [(3, false, 1.0), (3, true, 1.0), (2, false, 64.0)] {
            let actual = run(chunk, cached, scale);
            assert!((actual.loss - whole.loss).abs() < 1e-5, "{} {}", actual.loss, whole.loss);
            let far = difference(&expected, &flat(&train_model, &actual.gradients));
            assert!(far < 1e-4, "chunks of {chunk}, {cached}: {far}");
        }
        (whole.loss, expected)
    };
    let (loss, gradient) = taught(&teacher);
    assert!(loss > alone.loss + 0.1, "{loss} {}", alone.loss);
    assert!(difference(&gradient, &flat(&train_model, &alone.gradients)) > 1e-3);

    // A guide beside it, whose margin hides some documents, and not all texts of any kind.
    teacher = teacher.with(Distillation { guide: Some(0.0), ..settings.clone() });
    let vectors = teacher.vectors_of(&batch(), &device).unwrap().unwrap();
    let cosines = vectors.clone().matmul(vectors.transpose()).into_data();
    let cosines: Vec<f32> = cosines.to_vec().unwrap();
    let cosine = |a: usize, b: usize| f64::from(cosines[8 * a + b]);
    // How much farther than a query and its positive other pairs are, from the first rows to the second.
    let farther = |first: usize, second: usize| -> Vec<f64> {
        let pairs = (0..4).flat_map(|i| (0..4).map(move |k| (i, k))).filter(|(i, k)| i != k);
        pairs.map(|(i, k)| cosine(i, 4 + i) - cosine(first + i, second + k)).collect()
    };
    let kinds = [farther(0, 4), farther(0, 0), farther(4, 4)];
    let nearest = kinds[0].iter().copied().fold(f64::INFINITY, f64::min);
    let farthest = |kind: &Vec<f64>| kind.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let farthest = kinds.iter().map(farthest).fold(f64::INFINITY, f64::min);
    assert!(nearest < farthest, "{kinds:?}");
    let guide = Some((nearest + farthest) / 2.0);
    let mut losses = Vec::new();
    for contrast_anchors in [false, true] {
        for contrast_positives in [false, true] {
            let settings = settings.clone();
            let settings = Distillation { guide, contrast_anchors, contrast_positives, ..settings };
            teacher = teacher.with(settings);
            losses.push(taught(&teacher).0);
        }
    }
    assert!(losses[0] < loss - 1e-4, "{losses:?} {loss}");
    assert!(losses[1].min(losses[2]) > losses[0] + 1e-4, "{losses:?}");
    assert!(losses[3] > losses[1].max(losses[2]) + 1e-4, "{losses:?}");
    // The teacher itself has nothing left to learn from its own states.
    let (_, same) = start::<B>(teacher_model, None);
    let same = enter_stage(same, &recipe, 0, None, &device).unwrap();
    let actual = batch_loss_with(
        &same,
        &parts,
        &recipe,
        &compute(8, false, false),
        1.0,
        Some(
            &Teacher::<B>::load(
                &Distillation { layers: LayerMap::Uniform, ..settings },
                &parts.tokenizer,
                3,
                &device,
                quiet,
            )
            .unwrap(),
        ),
    );
    let plain = batch_loss(&same, &parts, &recipe, &compute(8, false, false), 1.0);
    assert!((actual.loss - plain.loss).abs() < 1e-5);
}

#[test]
fn projections_to_a_teachers_width_follow_from_the_seed() {
    let recipe = recipe(POOLINGS[0], "");
    let (parts, student) = train_model(&recipe, 0);
    let device = Default::default();
    let mut wide = recipe.model.new.clone().unwrap();
    wide.hidden_size = 64;
    let wide: Embedder<Flex> = new_model(&wide, &recipe.model, TEXTS.into_iter(), &device).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("teacher");
    write_directory(&path, &save(&wide).unwrap(), Existing::Refuse).unwrap();
    let settings = of_states(&path, 1.0);
    let quiet = Terminal { json: false, quiet: true };
    let teacher = Teacher::<B>::load(&settings, &parts.tokenizer, 3, &device, quiet).unwrap();
    let enter = |model: &TrainModel<B>| {
        enter_stage(model.clone(), &recipe, 0, Some(&teacher), &device).unwrap()
    };
    let projected = |model: &TrainModel<B>| -> Vec<Vec<f32>> {
        let values = |one: &Param<Tensor<B, 2>>| one.val().into_data().to_vec::<f32>().unwrap();
        model.projections.iter().map(values).collect()
    };
    let entered = enter(&student);
    let sizes: Vec<usize> = projected(&entered).iter().map(Vec::len).collect();
    assert_eq!(sizes, [32 * 64; 2]);
    assert_eq!(projected(&enter(&entered)), projected(&entered), "drawn once");
    // Other tests draw from the same generator, and may come between.
    assert!((0..5).any(|_| projected(&enter(&student)) == projected(&enter(&student))));
}

/// The gradient of the plain way: one graph over the whole batch.
fn plain(train_model: &TrainModel<B>, parts: &ModelParts<B>, recipe: &Recipe) -> (f64, Vec<f32>) {
    let encode = |texts: &[&str]| {
        let tokens = parts.tokenizer.encode_all("", texts).unwrap();
        let tokens = parts.tokenizer.pad(&tokens.iter().collect::<Vec<_>>());
        let input = ModelInput::new(&tokens, &parts.device);
        l2_normalize(train_model.model.forward(&input).unwrap().0)
    };
    let (queries, documents) = (encode(&TEXTS[..4]), encode(&TEXTS[4..]));
    let candidates = Candidates::grouped(4, 1, true);
    let loss = info_nce(queries, documents, &candidates, &recipe.stages[0].loss);
    let value = f64::from(loss.clone().into_scalar());
    let grads = GradientsParams::from_grads(loss.backward(), train_model);
    (value, flat(train_model, &grads))
}

#[test]
fn chunks_grad_cache_and_recomputed_blocks_give_the_gradient_of_one_graph() {
    let both = POOLINGS.map(|pooling| (pooling, "", AttentionMode::Bidirectional));
    // The first token, which sees itself alone, is the same in every text.
    let causal = POOLINGS.into_iter().filter(|pooling| !pooling.contains("cls"));
    let causal = causal.map(|pooling| (pooling, "padding_side = 'left'", AttentionMode::Causal));
    for (pooling, padding, attention) in both.into_iter().chain(causal) {
        let mut recipe = recipe(pooling, padding);
        recipe.model.attention = Some(attention);
        let (parts, train_model) = train_model(&recipe, 0);
        let (loss, expected) = plain(&train_model, &parts, &recipe);
        for (chunk, cached, blocks) in [
            (8, false, false),
            (3, false, false),
            (3, true, false),
            (1, true, false),
            (3, true, true),
            (8, true, true),
        ] {
            let actual =
                batch_loss(&train_model, &parts, &recipe, &compute(chunk, cached, blocks), 1.0);
            let error = difference(&expected, &flat(&train_model, &actual.gradients));
            let what = format!("{pooling} {padding}, chunks of {chunk}, {cached}, {blocks}");
            assert!((actual.loss - loss).abs() < 1e-5, "{what}: {} {loss}", actual.loss);
            assert!(error < 1e-5, "{what}: {error}");
        }
    }
}

/// Runs on several threads, each of more chunks than there are cores: Burn's graphs have locks, and a
/// thread that took up another's pass while it waited would wait for itself.
#[test]
fn many_chunks_on_many_threads_end() {
    for pooling in [POOLINGS[0], POOLINGS[1]] {
        let recipe = recipe(pooling, "");
        let (parts, train_model) = train_model(&recipe, 0);
        let expected = flat(
            &train_model,
            &batch_loss(&train_model, &parts, &recipe, &compute(1, false, false), 1.0).gradients,
        );
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (train_model, parts, recipe, expected) =
                    (&train_model, &parts, &recipe, &expected);
                scope.spawn(move || {
                    for _ in 0..10 {
                        let compute = compute(1, thread % 2 == 1, false);
                        let found = batch_loss(train_model, parts, recipe, &compute, 1.0);
                        assert_eq!(&flat(train_model, &found.gradients), expected);
                    }
                });
            }
        });
    }
}

#[test]
fn with_dropout_the_second_pass_drops_what_the_first_dropped() {
    let lora = "lora = { rank = 4, alpha = 8.0, dropout = 0.3 }";
    for pooling in
        ["{ mode = 'mean' }", "{ mode = 'multi_layer_trainable', latents = 6, heads = 2 }"]
    {
        let recipe = recipe(pooling, lora);
        let (parts, train_model) = train_model(&recipe, 1);
        let kept = batch_loss(&train_model, &parts, &recipe, &compute(3, false, false), 1.0);
        let cached = batch_loss(&train_model, &parts, &recipe, &compute(3, true, false), 1.0);
        let expected = flat(&train_model, &kept.gradients);
        assert_eq!(kept.loss, cached.loss);
        let error = difference(&expected, &flat(&train_model, &cached.gradients));
        assert!(error < 1e-5, "{pooling}: {error}");
        // Another order of draws, so other values, but the two passes agree: the gradient is the
        // loss's own, which a small step along it shows.
        let blocks = batch_loss(&train_model, &parts, &recipe, &compute(3, true, true), 1.0);
        let again = batch_loss(&train_model, &parts, &recipe, &compute(3, true, true), 1.0);
        assert_eq!(flat(&train_model, &blocks.gradients), flat(&train_model, &again.gradients));
        let gradient = flat(&train_model, &blocks.gradients);
        let squared: f64 = gradient.iter().map(|x| f64::from(*x).powi(2)).sum();
        let step = 1e-3 / squared.sqrt();
        let moved = walk(&train_model, &blocks.gradients, step);
        let after = batch_loss(&moved, &parts, &recipe, &compute(3, true, true), 1.0).loss;
        let expected = squared * step;
        assert!(
            ((blocks.loss - after) / expected - 1.0).abs() < 0.1,
            "{} {after} {expected}",
            blocks.loss
        );
    }
}

/// The parameters a step against the gradient.
fn walk(train_model: &TrainModel<B>, grads: &GradientsParams, step: f64) -> TrainModel<B> {
    struct Walk<'a>(&'a GradientsParams, f64);
    impl burn::module::ModuleMapper<B> for Walk<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let trains = param.is_require_grad();
            let grad = self.0.get::<Flex, D>(param.id);
            param.map(|tensor| match grad {
                Some(grad) => {
                    let moved = tensor.inner() - grad.mul_scalar(self.1);
                    Tensor::from_inner(moved).set_require_grad(trains)
                }
                None => tensor,
            })
        }
    }
    train_model.clone().map(&mut Walk(grads, step))
}

#[test]
fn frozen_weights_get_no_gradient() {
    let recipe =
        recipe("{ mode = 'mean' }", "lora = { rank = 4, targets = ['q_proj', 'layers.2.mlp.*'] }");
    let (parts, train_model) = train_model(&recipe, 1);
    let actual = batch_loss(&train_model, &parts, &recipe, &Compute::default(), 1.0);
    // `flat` checks that exactly the trained parameters have one: 3 q_proj, and 3 of block 2.
    let count = flat(&train_model, &actual.gradients).len();
    assert_eq!(count, 3 * 4 * (32 + 32) + 2 * 4 * (32 + 48) + 4 * (48 + 32));
    assert_eq!(actual.gradients.len(), 12);
}

#[test]
fn two_devices_give_the_gradient_of_one() {
    let recipe = recipe("{ mode = 'mean' }", "");
    let (parts, train_model) = train_model(&recipe, 0);
    let compute = &compute(2, false, false);
    let single = batch_loss(&train_model, &parts, &recipe, compute, 1.0);
    let expected = flat(&train_model, &single.gradients);
    let ranks: Vec<(f64, Vec<f32>)> = std::thread::scope(|scope| {
        let ranks: Vec<_> = in_process::devices(2)
            .into_iter()
            .map(|device| {
                let (parts, train_model, recipe) = (parts.clone(), train_model.clone(), &recipe);
                scope.spawn(move || {
                    let group = DeviceGroup::<B>::over(Box::new(device));
                    let runner = chunk_runner::<B>(compute);
                    let context = StepContext {
                        tokenizer: &parts.tokenizer,
                        input: &parts.input,
                        runner,
                        device: &parts.device,
                        group: &group,
                        teacher: None,
                        scale: 1.0,
                    };
                    let result: Found =
                        contrastive(&train_model, &batch(), &recipe.stages[0], &context, 9)
                            .unwrap()
                            .into();
                    let grads = group.sum_gradients(&train_model, result.gradients).unwrap();
                    (result.loss, flat(&train_model, &grads))
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for (loss, gradient) in ranks {
        assert!((loss - single.loss).abs() < 1e-6);
        assert!(difference(&expected, &gradient) < 1e-5);
    }
}

/// The values of all parameters.
fn values(train_model: &TrainModel<B>) -> Vec<f32> {
    struct Values(Vec<f32>);
    impl ModuleVisitor<B> for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0.extend(param.val().into_data().to_vec::<f32>().unwrap());
        }
    }
    let mut values = Values(Vec::new());
    train_model.visit(&mut values);
    values.0
}

/// The model after some steps on the same batch, and the loss before each.
fn steps(
    mut train_model: TrainModel<B>,
    parts: &ModelParts<B>,
    recipe: &Recipe,
    optimizer: &mut Optimizer<B>,
    count: usize,
) -> (TrainModel<B>, Vec<f64>) {
    let mut losses = Vec::new();
    for _ in 0..count {
        let result = batch_loss(&train_model, parts, recipe, &recipe.compute, 1.0);
        losses.push(result.loss);
        train_model = optimizer.step(recipe.stages[0].lr, train_model, result.gradients);
    }
    (train_model, losses)
}

#[test]
fn each_optimizer_lowers_the_loss_and_goes_on_with_the_same_bits() {
    for kind in OptimizerKind::ALL {
        let mut recipe = recipe(POOLINGS[0], "");
        recipe.stages[0].optimizer = kind;
        recipe.stages[0].weight_decay = 0.01;
        recipe.stages[0].lr = match kind {
            OptimizerKind::Sgd => 1e-2,
            OptimizerKind::Lion => 3e-4,
            OptimizerKind::AdamW | OptimizerKind::Adam | OptimizerKind::AdaGrad => 1e-3,
        };
        let (parts, fresh) = train_model(&recipe, 0);
        let mut optimizer = optimizer_of(&recipe.stages[0]);
        let (half, before) = steps(fresh.clone(), &parts, &recipe, &mut optimizer, 4);

        let folder = tempfile::tempdir().unwrap();
        let mut state = Checkpoint::new(&recipe);
        state.steps = 4;
        let states = optimizer::states(&optimizer, &DeviceGroup::single(), false).unwrap();
        state.save(folder.path(), 1, &half, states.clone()).unwrap();
        let (whole, after) = steps(half, &parts, &recipe, &mut optimizer, 4);
        assert!(after[3] < before[0], "{kind:?}: {before:?} {after:?}");

        let quiet = Terminal { json: false, quiet: true };
        let found = Checkpoint::find(folder.path(), &recipe, quiet).unwrap();
        let (state, checkpoint) = found.unwrap();
        let half = state.load(&checkpoint, fresh, &parts.device).unwrap();
        let mut optimizer =
            optimizer::load(&checkpoint, &recipe, 0, 1, |_| true, &parts.device).unwrap();
        let (resumed, losses) = steps(half, &parts, &recipe, &mut optimizer, 4);
        assert_eq!(losses, after, "{kind:?}");
        assert_eq!(values(&resumed), values(&whole), "{kind:?}");

        // The dry run's estimate: the state is these bytes a value, and a little a parameter.
        let sizes: Vec<usize> = parameters(&whole).iter().map(|param| param.size).collect();
        let bytes: usize = states.iter().flatten().map(Vec::len).sum();
        let expected = state_bytes(kind) * sizes.iter().sum::<usize>();
        let extra = bytes.checked_sub(expected).unwrap();
        assert!(extra < 256 * sizes.len(), "{kind:?}: {bytes} {expected}");

        // Another optimizer does not take over.
        let other = OptimizerKind::ALL.into_iter().find(|other| *other != kind).unwrap();
        recipe.stages[0].optimizer = other;
        let error = Checkpoint::find(folder.path(), &recipe, quiet).unwrap_err().to_string();
        let said = format!("optimizer = {:?}, not {:?}", kind.name(), other.name());
        assert!(error.contains(&said) && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn norms_and_biases_do_not_decay() {
    for kind in OptimizerKind::ALL {
        let recipe = recipe(POOLINGS[0], "");
        let (parts, train_model) = train_model(&recipe, 0);
        let decays: Vec<bool> = parameters(&train_model)
            .iter()
            .flat_map(|param| std::iter::repeat_n(param.decays, param.size))
            .collect();
        let [plain, decayed] = [0.0, 0.5].map(|weight_decay| {
            let mut recipe = recipe.clone();
            recipe.stages[0].optimizer = kind;
            recipe.stages[0].weight_decay = weight_decay;
            let mut optimizer = optimizer_of(&recipe.stages[0]);
            values(&steps(train_model.clone(), &parts, &recipe, &mut optimizer, 1).0)
        });
        let changed = |which: bool| {
            let values = plain.iter().zip(&decayed).zip(&decays);
            values.filter(|((a, b), decays)| **decays == which && a != b).count()
        };
        assert!(changed(true) > 0, "{kind:?}");
        assert_eq!(changed(false), 0, "{kind:?}");
    }
}

#[test]
fn a_kept_optimizer_is_loaded_with_the_decay_that_it_has() {
    let mut recipe = recipe(POOLINGS[0], "");
    recipe.stages[0].weight_decay = 0.5;
    recipe.stages[1].keep_optimizer = true;
    let (parts, fresh) = train_model(&recipe, 0);
    let mut optimizer = optimizer_of(&recipe.stages[0]);
    let (half, _) = steps(fresh, &parts, &recipe, &mut optimizer, 1);
    let folder = tempfile::tempdir().unwrap();
    let states = optimizer::states(&optimizer, &DeviceGroup::single(), false).unwrap();
    for (name, bytes) in optimizer::to_files(states) {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let load = || optimizer::load::<B>(folder.path(), &recipe, 1, 1, |_| true, &parts.device);
    let mut loaded = load().unwrap();
    let (whole, _) = steps(half.clone(), &parts, &recipe, &mut optimizer, 1);
    let (resumed, _) = steps(half, &parts, &recipe, &mut loaded, 1);
    assert_eq!(values(&resumed), values(&whole));

    std::fs::remove_file(folder.path().join("optimizer-undecayed.bin")).unwrap();
    let error = load().err().unwrap();
    assert!(error.to_string().contains("optimizer-undecayed.bin"), "{error}");
}
