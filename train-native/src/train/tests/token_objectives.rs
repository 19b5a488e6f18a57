//! The objectives that write tokens, beside their definitions, whole and in parts.

use super::*;
use crate::train::mntp::mntp;
use crate::train::reconstruction::reconstruction;

#[test]
fn reconstruction_equals_its_definition_and_flows_through_the_state() {
    let mut recipe = recipe("{ mode = 'last_token' }", "");
    recipe.model.attention = Some(kiln_embed::config::AttentionMode::Causal);
    let (parts, train_model) = train_model(&recipe, 0);
    let group = DeviceGroup::single();
    let run_with = |alpha: f64, chunk: usize, blocks: bool, scale: f64| {
        let runner = chunk_runner::<B>(&compute(chunk, false, blocks));
        let context = StepContext {
            tokenizer: &parts.tokenizer,
            runner,
            device: &parts.device,
            group: &group,
            teacher: None,
            scale,
        };
        let settings = crate::recipe::Reconstruction { alpha, ..Default::default() };
        reconstruction(&train_model, &batch(), &settings, &context, 4).unwrap()
    };
    let run = |alpha: f64, chunk: usize| run_with(alpha, chunk, false, 1.0);
    // A random model is about as unsure as a uniform one.
    let [forward, back, both] = [1.0, 0.0, 0.2].map(|alpha| run(alpha, 16));
    assert!((forward.loss - 320f64.ln()).abs() < 0.2, "{}", forward.loss);
    assert!((both.loss - 0.2 * forward.loss - 0.8 * back.loss).abs() < 1e-5);
    // Neither chunks nor blocks that are computed again change anything.
    for (chunk, blocks, scale) in [(2, false, 1.0), (2, true, 1.0), (16, true, 8.0)] {
        let cut = run_with(0.2, chunk, blocks, scale);
        let error =
            difference(&flat(&train_model, &both.gradients), &flat(&train_model, &cut.gradients));
        assert!(error < 1e-5 && (cut.loss - both.loss).abs() < 1e-5, "{chunk} {blocks}: {error}");
    }

    // By hand, text by text: [e_Q ; d_1 .. d_{m-1}] predicts d_1 .. d_m.
    let inner = train_model.model.valid();
    let (mut sum, mut count) = (0.0, 0);
    for (query, document) in TEXTS[..4].iter().zip(&TEXTS[4..]) {
        use kiln_embed::config::AttentionMode::Causal;
        let read = parts.tokenizer.encode("", query).unwrap();
        let input = ModelInput::<Flex>::new(&parts.tokenizer.pad(&[&read]), &parts.device);
        let states = inner.backbone().forward(&input, Causal, Default::default()).last;
        let state = states.narrow(1, read.ids.len() - 1, 1);
        let write = parts.tokenizer.encode("", document).unwrap();
        let target = &write.ids[1..write.ids.len() - 1];
        let ids = parts.tokenizer.pad_right(&[target]);
        let embedded = inner.backbone().embed_tokens(&ModelInput::<Flex>::new(&ids, &parts.device));
        let x = Tensor::cat(vec![state, embedded.narrow(1, 0, target.len() - 1)], 1);
        let input = ModelInput::<Flex>::new(&ids, &parts.device);
        let states =
            inner.backbone().forward_embeddings(x, &input, Causal, Default::default()).last;
        let logits =
            states.squeeze_dim::<2>(0).matmul(inner.backbone().token_embedding().transpose());
        let log =
            burn::tensor::activation::log_softmax(logits, 1).into_data().to_vec::<f32>().unwrap();
        for (i, &id) in target.iter().enumerate() {
            sum -= f64::from(log[i * 320 + id as usize]);
            count += 1;
        }
    }
    assert!(
        (forward.loss - sum / f64::from(count)).abs() < 1e-4,
        "{} {}",
        forward.loss,
        sum / f64::from(count)
    );
}

#[test]
fn a_batch_without_a_token_to_mask_teaches_nothing() {
    let recipe = recipe("{ mode = 'mean' }", "");
    let (parts, train_model) = train_model(&recipe, 0);
    let group = DeviceGroup::single();
    let context = StepContext {
        tokenizer: &parts.tokenizer,
        runner: chunk_runner::<B>(&compute(3, false, false)),
        device: &parts.device,
        group: &group,
        teacher: None,
        scale: 1.0,
    };
    let mut blank = batch();
    let texts = blank.queries.iter_mut().chain(&mut blank.documents);
    texts.for_each(|text| text.text.clear());
    let settings = crate::recipe::Mntp { mask_token: "a".into(), ..Default::default() };
    let actual = mntp(&train_model, &blank, &settings, &context, 4).unwrap();
    assert_eq!(actual.loss, 0.0);
    assert!(actual.gradients.is_empty());
}

#[test]
fn masked_tokens_are_predicted_from_the_state_before_them() {
    for lora in [false, true] {
        let rest = if lora { "lora = { rank = 4, alpha = 8.0, dropout = 0.0 }" } else { "" };
        let recipe = recipe("{ mode = 'mean' }", rest);
        let (parts, train_model) = train_model(&recipe, usize::from(lora));
        let group = DeviceGroup::single();
        let run = |mask: f64, chunk: usize, blocks: bool, scale: f64| {
            let context = StepContext {
                tokenizer: &parts.tokenizer,
                runner: chunk_runner::<B>(&compute(chunk, false, blocks)),
                device: &parts.device,
                group: &group,
                teacher: None,
                scale,
            };
            let settings = crate::recipe::Mntp { mask, mask_token: "a".into(), tied: None };
            mntp(&train_model, &batch(), &settings, &context, 4).unwrap()
        };
        let whole = run(0.2, 16, false, 1.0);
        let expected = flat(&train_model, &whole.gradients);
        for (chunk, blocks, scale) in [(3, false, 1.0), (3, true, 1.0), (16, true, 8.0)] {
            let cut = run(0.2, chunk, blocks, scale);
            let error = difference(&expected, &flat(&train_model, &cut.gradients));
            assert!((cut.loss - whole.loss).abs() < 1e-5, "{} {}", cut.loss, whole.loss);
            assert!(error < 1e-5, "{chunk} {blocks}: {error}");
        }
        // By hand, text by text, with every token masked.
        let inner = train_model.model.valid();
        let mask = parts.tokenizer.token_id("a").unwrap();
        let (mut sum, mut count) = (0.0, 0);
        for text in TEXTS {
            let mut tokens = parts.tokenizer.encode("", text).unwrap();
            let targets = tokens.ids[tokens.content.clone()].to_vec();
            tokens.ids[tokens.content.clone()].fill(mask);
            let input = ModelInput::<Flex>::new(&parts.tokenizer.pad(&[&tokens]), &parts.device);
            let mode = kiln_embed::config::AttentionMode::Bidirectional;
            let states = inner.backbone().forward(&input, mode, Default::default()).last;
            let table = inner.backbone().token_embedding();
            let logits = states.squeeze_dim::<2>(0).matmul(table.transpose());
            let log = burn::tensor::activation::log_softmax(logits, 1);
            let log = log.into_data().to_vec::<f32>().unwrap();
            for (place, id) in tokens.content.clone().zip(targets) {
                sum -= f64::from(log[(place - 1) * 320 + id as usize]);
                count += 1;
            }
        }
        let all = run(1.0, 16, false, 1.0).loss;
        assert!((all - sum / f64::from(count)).abs() < 1e-4, "{all} {}", sum / f64::from(count));
    }
}
