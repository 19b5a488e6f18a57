//! Cross-encoders, decoders among them: whole batches, chunks, GradCache, recomputed blocks, adapters and devices give one
//! gradient.

use std::path::Path;

use kiln_embed::checkpoint::{Directory, LoadOptions};
use kiln_embed::reranker::{Reranker, ScoreActivation};

use super::*;
use crate::recipe::{Rerank, RerankLoss};
use crate::train::rerank::rerank;
use crate::train::{Trained, new_reranker};

const LOSSES: [RerankLoss; 6] = [
    RerankLoss::BinaryCrossEntropy,
    RerankLoss::Mse,
    RerankLoss::MarginMse,
    RerankLoss::MultipleNegativesRanking,
    RerankLoss::RankNet,
    RerankLoss::Lambda,
];

/// How near gradients are. Where scores are compared that a random model makes nearly equal, most of the gradients of
/// two pairs cancel, and what is left is rounded as they were.
fn near(loss: RerankLoss) -> f32 {
    match loss {
        RerankLoss::BinaryCrossEntropy | RerankLoss::Mse => 1e-5,
        _ => 1e-3,
    }
}

fn recipe_of_pairs(rest: &str) -> Recipe {
    Recipe::parse(&format!(
        "name = 'tiny'\n[model]\nmax_length = 48\n{rest}\n\
         [model.new]\nvocab_size = 320\nhidden_size = 32\nintermediate_size = 48\nlayers = 3\nheads = 4\n\
         [[stage]]\nname = 'full'\nobjective = 'rerank'\nfull = true\ndata = ['x']\nsteps = 1\nbatch_size = 4\nlr = 1e-3\n\
         [[stage]]\nname = 'lora'\nobjective = 'rerank'\ndata = ['x']\nsteps = 1\nbatch_size = 4\nlr = 1e-3\n"
    ))
    .unwrap()
}

fn pair_model(recipe: &Recipe, stage: usize) -> (ModelParts<B>, TrainModel<B>) {
    let device = Default::default();
    Flex::seed(&device, 7);
    let new = recipe.model.new.as_ref().unwrap();
    let reranker = new_reranker::<Flex>(new, recipe, TEXTS.into_iter(), &device).unwrap();
    let (parts, train_model) = start::<B>(Trained::Reranker(reranker), None);
    let mut train_model = enter_stage(train_model, recipe, stage, None, &device).unwrap();
    if stage == 1 {
        train_model = train_model.map(&mut Shake);
    }
    (parts, train_model)
}

/// A decoder that answers by two tokens (`qwen3`) or by one (`gemma`), by the table or by a language-model head of its own.
fn decoder(
    name: &str,
    recipe: &Recipe,
    stage: usize,
    tied: bool,
) -> (ModelParts<B>, TrainModel<B>) {
    let device = Default::default();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/rerankers");
    let folder = folder.join(name);
    let (folder, options) = (Directory::new(folder).unwrap(), LoadOptions::default());
    let fresh = ScoreActivation::Sigmoid;
    let reranker = Reranker::<Flex>::for_training(&folder, &options, fresh, &device).unwrap();
    let (parts, mut train_model) = start::<B>(Trained::Reranker(reranker), None);
    if !tied {
        let table = train_model.backbone().token_embedding().flip([0]).detach();
        train_model.lm_head = Some(Param::from_tensor(table));
    }
    let mut train_model = enter_stage(train_model, recipe, stage, None, &device).unwrap();
    if stage == 1 {
        train_model = train_model.map(&mut Shake);
    }
    (parts, train_model)
}

/// Four queries, each with its positive and a negative, and a score of each.
fn scored_batch() -> Batch {
    let text = |text: &&str| Text { prompt: "".into(), text: text.to_string() };
    let documents = (0..4).flat_map(|query| [4 + query, 4 + (query + 1) % 4]);
    let mut candidates = Candidates::grouped(4, 2, true);
    candidates.query_text = (0..4).collect();
    candidates.document_text = documents.clone().collect();
    Batch {
        queries: TEXTS[..4].iter().map(text).collect(),
        documents: documents.map(|place| text(&TEXTS[place])).collect(),
        scores: [0.9, 0.1, 0.8, 0.3, 1.0, 0.0, 0.6, 0.2].map(Some).to_vec(),
        candidates,
        ids: (0..4).map(|i| (0, i)).collect(),
    }
}

fn pair_loss(
    train_model: &TrainModel<B>,
    parts: &ModelParts<B>,
    compute: &Compute,
    loss: RerankLoss,
    group: &DeviceGroup<B>,
    scale: f64,
) -> Found {
    let context = StepContext {
        tokenizer: &parts.tokenizer,
        input: &parts.input,
        runner: chunk_runner::<B>(compute),
        device: &parts.device,
        group,
        teacher: None,
        scale,
    };
    let num_negatives = (loss == RerankLoss::MultipleNegativesRanking).then_some(2);
    let settings = Rerank { loss, num_negatives, ..Rerank::default() };
    rerank(train_model, &scored_batch(), &settings, &context, 9).unwrap().into()
}

/// The gradient of one graph over the whole batch, by Burn alone.
fn by_one_graph(train_model: &TrainModel<B>, parts: &ModelParts<B>) -> (f64, Vec<f32>) {
    let batch = scored_batch();
    let tokens: Vec<_> = batch
        .candidates
        .owner
        .iter()
        .zip(&batch.documents)
        .map(|(&query, document)| {
            let query = &batch.queries[query].text;
            parts.input.tokenize(&parts.tokenizer, query, &document.text).unwrap()
        })
        .collect();
    let tokens = parts.tokenizer.pad(&tokens.iter().collect::<Vec<_>>());
    let input = ModelInput::new(&tokens, &parts.device);
    let pooled = train_model.model.forward(&input).unwrap().0;
    let scores = match (&train_model.score_head, train_model.answer) {
        (Some(head), _) => head.forward_rows(pooled),
        (None, answer) => {
            // Of the logits of all tokens.
            let (answer, logits) = (answer.unwrap(), train_model.logits(pooled));
            let of = |token: u32| logits.clone().narrow(1, token as usize, 1);
            match answer.other {
                Some(other) => of(answer.token) - of(other),
                None => of(answer.token),
            }
        }
    };
    let labels: Vec<f64> = batch.scores.iter().map(|score| f64::from(score.unwrap())).collect();
    let loss = kiln_embed::loss::binary_cross_entropy(scores.reshape([labels.len()]), &labels, 1.0);
    let value = f64::from(loss.clone().into_scalar());
    let grads = GradientsParams::from_grads(loss.backward(), train_model);
    (value, flat(train_model, &grads))
}

#[test]
fn chunks_of_pairs_give_the_gradient_of_one_graph() {
    let recipe = recipe_of_pairs("");
    let (parts, train_model) = pair_model(&recipe, 0);
    let single = DeviceGroup::single();
    for loss in LOSSES {
        let run = |chunk, cached, blocks, scale| {
            let compute = compute(chunk, cached, blocks);
            let found = pair_loss(&train_model, &parts, &compute, loss, &single, scale);
            (found.loss, flat(&train_model, &found.gradients))
        };
        let (whole, expected) = match loss {
            RerankLoss::BinaryCrossEntropy => by_one_graph(&train_model, &parts),
            _ => run(64, false, false, 1.0),
        };
        for (chunk, cached, blocks, scale) in [
            (64, false, false, 1.0),
            (3, false, false, 1.0),
            (3, true, false, 1.0),
            (3, true, true, 1.0),
            (2, false, false, 64.0),
        ] {
            let (value, found) = run(chunk, cached, blocks, scale);
            let error = difference(&expected, &found);
            assert!((value - whole).abs() < 1e-5, "{loss:?}: {value} {whole}");
            assert!(error < near(loss), "{loss:?}, chunks of {chunk}, {cached}, {blocks}: {error}");
        }
    }
}

#[test]
fn chunks_of_a_decoders_pairs_give_the_gradient_of_one_graph_through_all_logits() {
    let recipe = recipe_of_pairs("lora = { rank = 4, dropout = 0.0, targets = ['all-linear'] }");
    let (single, loss) = (DeviceGroup::single(), RerankLoss::BinaryCrossEntropy);
    for (name, stage, tied) in [
        ("qwen3", 0, true),
        ("qwen3", 0, false),
        ("qwen3", 1, true),
        ("qwen3", 1, false),
        ("gemma", 0, true),
        ("gemma", 1, false),
    ] {
        let (parts, train_model) = decoder(name, &recipe, stage, tied);
        assert_eq!(train_model.answer.unwrap().other.is_none(), name == "gemma");
        let trained = parameters(&train_model).into_iter().filter(|one| one.trains);
        let trained: Vec<String> = trained.map(|one| one.path).collect();
        // Adapters leave the language-model head, and the table, as they are.
        assert_eq!(trained.contains(&"lm_head".to_string()), stage == 0 && !tied, "{trained:?}");
        assert_eq!(trained.iter().all(|path| path.contains("adapters")), stage == 1);
        let (whole, expected) = by_one_graph(&train_model, &parts);
        for (chunk, cached, blocks, scale) in [
            (64, false, false, 1.0),
            (3, true, false, 1.0),
            (3, true, true, 1.0),
            (2, false, false, 64.0),
        ] {
            let compute = compute(chunk, cached, blocks);
            let found = pair_loss(&train_model, &parts, &compute, loss, &single, scale);
            let error = difference(&expected, &flat(&train_model, &found.gradients));
            assert!((found.loss - whole).abs() < 1e-5 * whole.max(1.0), "{} {whole}", found.loss);
            assert!(
                error < 1e-4,
                "{name}, stage {stage}, {tied}, {chunk}, {cached}, {blocks}: {error}"
            );
        }
    }
}

#[test]
fn a_trained_decoder_scores_by_the_logits_of_its_new_weights() {
    let recipe = recipe_of_pairs("");
    for (name, tied) in [("qwen3", true), ("qwen3", false), ("gemma", true)] {
        let (parts, train_model) = decoder(name, &recipe, 0, tied);
        let train_model = train_model.map(&mut Shake);
        let Trained::Reranker(reranker) = parts.trained(&train_model).unwrap() else {
            panic!("it is a reranker");
        };
        let (query, text) = (TEXTS[0], TEXTS[4]);
        let tokens = parts.input.tokenize(&parts.tokenizer, query, text).unwrap();
        let input = ModelInput::new(&parts.tokenizer.pad(&[&tokens]), &parts.device);
        let state = train_model.model.forward(&input).unwrap().0;
        let logits = train_model.logits(state).into_data().to_vec::<f32>().unwrap();
        let answer = train_model.answer.unwrap();
        let logit = |id: u32| logits[id as usize];
        let expected = logit(answer.token) - answer.other.map_or(0.0, logit);
        let reranker = reranker.with_activation(ScoreActivation::Identity);
        let score = reranker.scores(&[(query, text)]).unwrap()[0];
        let most = 1e-4 * score.abs().max(1.0);
        assert!((score - expected).abs() < most, "{name}: {score} {expected}");
    }
}

#[test]
fn the_head_trains_beside_adapters_and_comes_back_from_a_checkpoint() {
    let recipe = recipe_of_pairs("lora = { rank = 4, dropout = 0.2, targets = ['Wqkv'] }");
    let (parts, train_model) = pair_model(&recipe, 1);
    let other = pair_model(&recipe, 1).1.map(&mut Shake);
    let trained: Vec<String> = parameters(&train_model)
        .into_iter()
        .filter(|parameter| parameter.trains)
        .map(|parameter| parameter.path)
        .collect();
    // An adapter of two matrices in each of three blocks, and the head: a projection and a norm without biases, and
    // one with.
    assert_eq!(trained.len(), 3 * 2 + 4, "{trained:?}");
    let (single, loss) = (DeviceGroup::single(), RerankLoss::BinaryCrossEntropy);
    let run = |cached| {
        let compute = compute(3, cached, false);
        let found = pair_loss(&train_model, &parts, &compute, loss, &single, 1.0);
        flat(&train_model, &found.gradients)
    };
    assert!(difference(&run(false), &run(true)) < 1e-5);

    let folder = tempfile::tempdir().unwrap();
    let mut state = Checkpoint::new(&recipe);
    state.stage = 1;
    let optimizer = optimizer_of::<B>(&recipe.stages[1]);
    let states = optimizer::states(&optimizer, &DeviceGroup::single(), false).unwrap();
    state.save(folder.path(), 1, &train_model, states).unwrap();
    let quiet = Terminal { json: false, quiet: true };
    let (state, checkpoint) = Checkpoint::find(folder.path(), &recipe, quiet).unwrap().unwrap();
    assert!(state.parameters.contains_key("score_head.output.weight"));
    assert_ne!(values(&other), values(&train_model));
    let loaded = state.load(&checkpoint, other, &parts.device).unwrap();
    assert_eq!(values(&loaded), values(&train_model));
}

#[test]
fn two_devices_share_the_pairs() {
    let recipe = recipe_of_pairs("");
    let (parts, train_model) = pair_model(&recipe, 0);
    let compute = &compute(2, false, false);
    for loss in [RerankLoss::BinaryCrossEntropy, RerankLoss::MultipleNegativesRanking] {
        shared_by_two(&train_model, &parts, compute, loss);
    }
}

fn shared_by_two(
    train_model: &TrainModel<B>,
    parts: &ModelParts<B>,
    compute: &Compute,
    loss: RerankLoss,
) {
    let single = pair_loss(train_model, parts, compute, loss, &DeviceGroup::single(), 1.0);
    let expected = flat(train_model, &single.gradients);
    std::thread::scope(|scope| {
        let ranks: Vec<_> = in_process::devices(2)
            .into_iter()
            .map(|device| {
                let (parts, train_model) = (parts.clone(), train_model.clone());
                scope.spawn(move || {
                    let group = DeviceGroup::<B>::over(Box::new(device));
                    let found = pair_loss(&train_model, &parts, compute, loss, &group, 1.0);
                    let summed = group.sum_gradients(&train_model, found.gradients).unwrap();
                    (found.loss, flat(&train_model, &summed))
                })
            })
            .collect();
        for rank in ranks {
            let (value, found) = rank.join().unwrap();
            assert!((value - single.loss).abs() < 1e-6);
            let error = difference(&expected, &found);
            assert!(error < near(loss), "{loss:?}: {error}");
        }
    });
}

#[test]
fn lower_precision_follows_f32() {
    let recipe = recipe_of_pairs("");
    let (parts, train_model) = pair_model(&recipe, 0);
    let (single, loss) = (DeviceGroup::single(), RerankLoss::BinaryCrossEntropy);
    let full = pair_loss(&train_model, &parts, &Compute::default(), loss, &single, 1.0);
    let expected = flat(&train_model, &full.gradients);
    for (precision, scale, most) in
        [(ComputeDtype::Bf16, 1.0, 0.1), (ComputeDtype::F16, 32.0, 0.03)]
    {
        let compute = Compute { precision, ..Compute::default() };
        let found = pair_loss(&train_model, &parts, &compute, loss, &single, scale);
        let error = difference(&expected, &flat(&train_model, &found.gradients));
        assert!((found.loss - full.loss).abs() < 0.05, "{} {}", found.loss, full.loss);
        assert!(error < most, "{precision:?}: {error}");
    }
}
