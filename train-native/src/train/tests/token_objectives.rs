//! The objectives that write tokens, beside their definitions, whole and in parts.

use kiln_embed::loss::Reduction;

use super::*;
use crate::train::mntp::mntp;
use crate::train::reconstruction::reconstruction;

#[test]
fn reconstruction_equals_its_definition_and_flows_through_the_state() {
    let mut recipe = recipe("{ mode = 'last_token' }", "");
    recipe.model.attention = Some(kiln_embed::config::AttentionMode::Causal);
    let (parts, train_model) = train_model(&recipe, 0);
    let group = DeviceGroup::single();
    let run_with = |alpha: f64, chunk: usize, blocks: bool, scale: f64| -> Found {
        let runner = chunk_runner::<B>(&compute(chunk, false, blocks));
        let context = StepContext {
            tokenizer: &parts.tokenizer,
            input: &parts.input,
            runner,
            device: &parts.device,
            group: &group,
            teacher: None,
            scale,
        };
        let settings = crate::recipe::Reconstruction { alpha, ..Default::default() };
        reconstruction(&train_model, &batch(), &settings, &context, 4).unwrap().into()
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

    let queries: Vec<_> = TEXTS[..4].iter().map(|text| ("", *text)).collect();
    let documents: Vec<_> = TEXTS[4..].iter().map(|text| ("", *text)).collect();
    let written = written_by_hand(&parts, &train_model, &queries, &documents, false);
    let (sum, count) = total(&written);
    assert!((forward.loss - sum / count).abs() < 1e-4, "{} {}", forward.loss, sum / count);
}

/// By hand, text by text: [e_Q ; d_1 .. d_{m-1}] predicts d_1 .. d_m. Of each text that is written, the summed loss and how
/// many tokens. Texts stand behind their prompts.
fn written_by_hand(
    parts: &ModelParts<B>,
    train_model: &TrainModel<B>,
    read: &[(&str, &str)],
    written: &[(&str, &str)],
    eos: bool,
) -> Vec<(f64, usize)> {
    let inner = train_model.model.valid();
    let causal = AttentionMode::Causal;
    let of_pair = |(read, written): (&(&str, &str), &(&str, &str))| {
        let read = parts.tokenizer.encode(read.0, read.1).unwrap();
        let input = ModelInput::<Flex>::new(&parts.tokenizer.pad(&[&read]), &parts.device);
        let states = inner.backbone().forward(&input, causal, Default::default()).last;
        let state = states.narrow(1, read.ids.len() - 1, 1);
        let written = parts.tokenizer.encode(written.0, written.1).unwrap();
        // The text's own tokens, after BOS and a prompt, and before EOS, unless that is written too.
        let end = written.ids.len() - usize::from(!eos);
        let target = &written.ids[written.content.start..end];
        let ids = parts.tokenizer.pad_right(&[target]);
        let embedded = inner.backbone().embed_tokens(&ModelInput::<Flex>::new(&ids, &parts.device));
        let x = Tensor::cat(vec![state, embedded.narrow(1, 0, target.len() - 1)], 1);
        let input = ModelInput::<Flex>::new(&ids, &parts.device);
        let states =
            inner.backbone().forward_embeddings(x, &input, causal, Default::default()).last;
        let table = inner.backbone().token_embedding();
        let logits = states.squeeze_dim::<2>(0).matmul(table.transpose());
        let log = burn::tensor::activation::log_softmax(logits, 1);
        let log = log.into_data().to_vec::<f32>().unwrap();
        let of_token = |(i, id): (usize, &u32)| -f64::from(log[i * 320 + *id as usize]);
        (target.iter().enumerate().map(of_token).sum::<f64>(), target.len())
    };
    read.iter().zip(written).map(of_pair).collect()
}

/// Losses and tokens of all texts.
fn total(written: &[(f64, usize)]) -> (f64, f64) {
    (written.iter().map(|one| one.0).sum(), written.iter().map(|one| one.1 as f64).sum())
}

#[test]
fn reconstruction_reads_writes_and_sums_as_its_fields_say() {
    const PROMPTS: [&str; 2] = ["find: ", "told: "];
    const ALPHA: f64 = 0.3;
    let mut recipe = recipe("{ mode = 'last_token' }", "");
    recipe.model.attention = Some(AttentionMode::Causal);
    let (parts, train_model) = train_model(&recipe, 0);
    let mut batch = batch();
    batch.queries.iter_mut().for_each(|text| text.prompt = PROMPTS[0].into());
    batch.documents.iter_mut().for_each(|text| text.prompt = PROMPTS[1].into());
    let group = DeviceGroup::single();
    let mut losses: Vec<f64> = Vec::new();
    for (instructions, predict_eos, reduction) in [
        (false, false, Reduction::TokenMean),
        (true, false, Reduction::TokenMean),
        (false, false, Reduction::TokenSum),
        // EOS is one more token: much in a sum, next to nothing in a mean.
        (false, true, Reduction::TokenSum),
        (true, true, Reduction::TokenSum),
    ] {
        let what = format!("instructions {instructions}, EOS {predict_eos}, {reduction:?}");
        let prompts = if instructions { PROMPTS } else { [""; 2] };
        let texts = |side: usize, texts: &[&'static str]| -> Vec<(&str, &str)> {
            texts.iter().map(|text| (prompts[side], *text)).collect()
        };
        let (queries, documents) = (texts(0, &TEXTS[..4]), texts(1, &TEXTS[4..]));
        let by_hand = |read: &[(&str, &str)], written: &[(&str, &str)]| {
            let written = written_by_hand(&parts, &train_model, read, written, predict_eos);
            let (sum, count) = total(&written);
            match reduction {
                Reduction::TokenMean => sum / count,
                Reduction::TokenSum => sum / written.len() as f64,
            }
        };
        let (forward, back) = (by_hand(&queries, &documents), by_hand(&documents, &queries));
        let expected = ALPHA * forward + (1.0 - ALPHA) * back;

        let settings = crate::recipe::Reconstruction {
            alpha: ALPHA,
            reduction,
            predict_eos,
            instructions,
            ..Default::default()
        };
        for (chunk, blocks) in [(16, false), (2, false), (2, true)] {
            let context = StepContext {
                tokenizer: &parts.tokenizer,
                input: &parts.input,
                runner: chunk_runner::<B>(&compute(chunk, false, blocks)),
                device: &parts.device,
                group: &group,
                teacher: None,
                scale: 1.0,
            };
            let actual = reconstruction(&train_model, &batch, &settings, &context, 4).unwrap();
            let actual = Found::from(actual);
            let error = (actual.loss - expected).abs() / expected;
            assert!(error < 3e-5, "{what}, {chunk} {blocks}: {} {expected}", actual.loss);
        }
        // None of the fields is without effect.
        let known = losses.iter().any(|loss| (loss - expected).abs() < 1e-4 * expected);
        assert!(!known, "{what}: {expected} {losses:?}");
        losses.push(expected);
    }
}

#[test]
fn a_batch_without_a_token_to_mask_teaches_nothing() {
    let recipe = recipe("{ mode = 'mean' }", "");
    let (parts, train_model) = train_model(&recipe, 0);
    let group = DeviceGroup::single();
    let context = StepContext {
        tokenizer: &parts.tokenizer,
        input: &parts.input,
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
    let actual = Found::from(mntp(&train_model, &blank, &settings, &context, 4).unwrap());
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
        let run = |mask: f64, chunk: usize, blocks: bool, scale: f64| -> Found {
            let context = StepContext {
                tokenizer: &parts.tokenizer,
                input: &parts.input,
                runner: chunk_runner::<B>(&compute(chunk, false, blocks)),
                device: &parts.device,
                group: &group,
                teacher: None,
                scale,
            };
            let settings = crate::recipe::Mntp { mask, mask_token: "a".into(), tied: None };
            mntp(&train_model, &batch(), &settings, &context, 4).unwrap().into()
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
