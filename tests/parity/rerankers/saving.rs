//! Rerankers that are saved are what was loaded.

use kiln_embed::checkpoint::{Directory, Files, LoadOptions, Weights, write_safetensors};
use kiln_embed::kernels::Kernels;
use kiln_embed::quant::WeightPrecision;
use kiln_embed::reranker::{Reranker, ScoreActivation, save_reranker};
use kiln_tests::fixture;
use serde_json::{Value, json};

use super::{DECODERS, ENCODERS, change, chat, decoder_files, encoder, pairs, untied};

fn open<B: Kernels>(name: &str, device: &B::Device) -> Reranker<B> {
    let folder = Directory::new(fixture(&format!("rerankers/{name}"))).unwrap();
    Reranker::load_with(&folder, &LoadOptions::default(), device).unwrap()
}

/// What is saved is what was loaded: the same tensors under the names of transformers' classes, and the same scores.
fn saved<B: Kernels>(device: B::Device) {
    for name in ENCODERS {
        let reranker = open::<B>(name, &device).with_activation(ScoreActivation::Identity);
        let files = save_reranker(&reranker).unwrap();
        let folder = Directory::new(fixture(&format!("rerankers/{name}"))).unwrap();
        let names =
            |weights: &Weights| -> Vec<String> { weights.tensors().keys().cloned().collect() };
        let (before, after) =
            (Weights::open(&folder, "model").unwrap(), Weights::open(&files, "model").unwrap());
        assert_eq!(names(&before), names(&after), "{name}");
        let again = Reranker::<B>::load_with(&files, &LoadOptions::default(), &device).unwrap();
        assert_eq!(again.activation(), ScoreActivation::Identity);
        assert_eq!(again.scores(&pairs()).unwrap(), reranker.scores(&pairs()).unwrap(), "{name}");
    }
}

/// transformers counts the scores of a head by the names of its labels.
#[test]
fn as_many_labels_are_named_as_a_head_gives_scores() {
    type B = burn::backend::Flex;
    let load = |files: &Files| {
        Reranker::<B>::load_with(files, &LoadOptions::default(), &Default::default()).unwrap()
    };
    for (labels, by_id, by_name) in [
        (1, json!({"0": "LABEL_0"}), json!({"LABEL_0": 0})),
        (
            3,
            json!({"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}),
            json!({"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}),
        ),
    ] {
        let mut files = encoder("bert", &[], "BertForSequenceClassification");
        let mut weights = Weights::open(&files, "model").unwrap();
        let names: Vec<String> = weights.tensors().keys().cloned().collect();
        let tensors: Vec<(String, Vec<usize>, Vec<f32>)> = names
            .into_iter()
            .map(|name| {
                let mut shape = weights.tensors()[&name].shape.clone();
                let mut values = weights.read(&name).unwrap().unwrap();
                if name.starts_with("classifier.") {
                    shape[0] = labels;
                    values = values.repeat(labels);
                }
                (name, shape, values)
            })
            .collect();
        let bytes = write_safetensors(&tensors, &[("format", "pt")]).unwrap();
        files.0.insert("model.safetensors".into(), bytes.into());
        let reranker = load(&files);
        let saved = save_reranker(&reranker).unwrap();
        let config: Value = serde_json::from_slice(&saved.0["config.json"]).unwrap();
        assert_eq!((&config["id2label"], &config["label2id"]), (&by_id, &by_name));
        let again = load(&saved);
        assert_eq!((again.labels(), again.activation()), (labels, reranker.activation()));
        match again.scores(&pairs()) {
            Ok(scores) => assert_eq!(scores, reranker.scores(&pairs()).unwrap()),
            Err(error) => {
                let error = error.to_string();
                assert!(
                    labels > 1 && error.contains("3 scores") && !error.contains('\n'),
                    "{error}"
                );
            }
        }
        assert_eq!(again.check_ranks().is_ok(), labels == 1);
    }
}

/// A decoder is saved with its prompt, its length and the direction of its score, and ranks as before: at any precision,
/// with another instruction, and where its language-model head is not the table.
fn saved_decoders<B: Kernels>(device: B::Device) {
    let load = |files: &Files, precision: WeightPrecision| {
        let options = LoadOptions { precision, ..LoadOptions::default() };
        Reranker::<B>::load_with(files, &options, &device).unwrap()
    };
    let int8 = WeightPrecision::Rounded("int8:8".parse().unwrap());
    let chats = ["qwen3-chat", "qwen3-one-token"].map(|name| (name, chat(name)));
    let released = DECODERS.map(|name| (name, decoder_files(name)));
    for (name, files) in released.into_iter().chain([("untied", untied())]).chain(chats) {
        let reranker = load(&files, WeightPrecision::Kept);
        let saved = save_reranker(&reranker).unwrap();
        assert!(!saved.0.contains_key("chat_template.jinja"), "{name}");
        let again = load(&saved, WeightPrecision::Kept);
        assert_eq!(again.input(), reranker.input(), "{name}");
        assert_eq!(again.activation(), reranker.activation(), "{name}");
        assert_eq!(again.tokenizer().config(), reranker.tokenizer().config(), "{name}");
        assert!(save_reranker(&again).unwrap() == saved, "{name}: saved twice");
        let allowed = kiln_tests::allowed::<B>(&device, 1e-5);
        let alike = |a: Reranker<B>, b: Reranker<B>| {
            let [a, b] = [a, b].map(|one| {
                one.with_activation(ScoreActivation::Identity).scores(&pairs()).unwrap()
            });
            for (a, b) in a.iter().zip(&b) {
                assert!((a - b).abs() < allowed * a.abs().max(1.0), "{name}: {a} {b}");
            }
        };
        alike(reranker.clone(), again.clone());
        let rounded = [load(&files, int8), load(&saved, int8)];
        let [ours, theirs] = rounded.clone();
        alike(ours, theirs);
        // The score's direction is not rounded with the rest.
        let mut direction = Weights::open(&saved, "1_LogitScore/model").unwrap();
        let score = direction.read("score.weight").unwrap().unwrap();
        assert_eq!(direction.tensors()["score.weight"].shape, [1, score.len()], "{name}");
        for rounded in rounded {
            let head = save_reranker(&rounded).unwrap();
            let mut head = Weights::open(&head, "1_LogitScore/model").unwrap();
            assert_eq!(head.read("score.weight").unwrap().unwrap(), score, "{name}");
        }
        match (reranker.with_instruction("Find bees"), again.with_instruction("Find bees")) {
            (Ok(a), Ok(b)) => alike(a, b),
            (Err(a), Err(b)) => assert_eq!(a.to_string(), b.to_string(), "{name}"),
            (a, b) => panic!("{name}: {:?} {:?}", a.is_ok(), b.is_ok()),
        }
    }
}

#[test]
fn a_saved_decoder_in_whose_files_something_is_amiss() {
    type B = burn::backend::Flex;
    let load = |files: &Files| {
        Reranker::<B>::load_with(files, &LoadOptions::default(), &Default::default())
    };
    let saved = save_reranker(&load(&chat("qwen3-chat")).unwrap()).unwrap();
    let refused = |files: &Files, part: &str| {
        let error = load(files).unwrap_err().to_string();
        assert!(error.contains(part) && !error.contains("internal"), "{error}");
    };
    let score = "1_LogitScore/config.json";
    let mut files = saved.clone();
    change(&mut files, score, |value| value["kiln"] = serde_json::json!({}));
    refused(&files, "1_LogitScore/config.json: its prompt cannot be read");
    let mut files = saved.clone();
    change(&mut files, score, |value| {
        let parts = &mut value["kiln"]["prompt"]["plain"]["parts"];
        parts.as_array_mut().unwrap().push("query".into());
    });
    refused(&files, "one place each");
    let mut files = saved.clone();
    files.0.remove("1_LogitScore/model.safetensors");
    refused(&files, "1_LogitScore/model.safetensors");
    for (name, shape, value) in [
        ("score.weight", vec![1, 31], 0.5),
        ("other.weight", vec![1, 32], 0.5),
        ("score.weight", vec![1, 32], f32::NAN),
    ] {
        let values = vec![value; shape[1]];
        let bytes = write_safetensors(&[(name.to_string(), shape, values)], &[]).unwrap();
        let mut files = saved.clone();
        files.0.insert("1_LogitScore/model.safetensors".into(), bytes.into());
        refused(&files, "score.weight");
    }
    // It gives no vectors.
    let embedder = kiln_embed::checkpoint::load::<B>;
    let error = embedder(&saved, &LoadOptions::default(), &Default::default()).unwrap_err();
    assert!(error.to_string().contains("is a reranker (LogitScore)"), "{error}");
}

kiln_tests::on_every_device!(saved, saved_decoders);
