//! What training starts from: fresh heads, and decoders with their whole language-model head.

use kiln_embed::checkpoint::{Directory, Files, LoadOptions, Weights};
use kiln_embed::kernels::Kernels;
use kiln_embed::reranker::{Reranker, ScoreActivation, save_reranker};
use kiln_tests::fixture;
use serde_json::{Value, json};

use super::{DECODERS, change, chat, decoder_files, encoder, pairs, untied};

/// A fresh head begins as transformers draws it, with what the encoder's own file has of it.
fn fresh<B: Kernels>(device: B::Device) {
    let train = |files: &Files| {
        let options = LoadOptions::default();
        Reranker::<B>::for_training(files, &options, ScoreActivation::Sigmoid, &device)
    };
    let spread = |values: &[f32]| {
        let squares: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
        (squares / values.len() as f64).sqrt()
    };
    // Per case: the head's tensors that are the file's own, and those that are drawn with their deviations.
    let root = (32f64).sqrt();
    for (name, lacks, own, drawn) in [
        (
            "bert",
            &["classifier."][..],
            &["bert.pooler.dense.weight"][..],
            &[("classifier.weight", 0.02)][..],
        ),
        (
            "bert",
            &["classifier.", "bert.pooler."],
            &[],
            &[("bert.pooler.dense.weight", 0.02), ("classifier.weight", 0.02)],
        ),
        (
            "roberta",
            &["classifier."],
            &[],
            &[("classifier.dense.weight", 0.02), ("classifier.out_proj.weight", 0.02)],
        ),
        (
            "distilbert",
            &["classifier.", "pre_classifier."],
            &[],
            &[("pre_classifier.weight", 0.02)],
        ),
        (
            "modernbert",
            &["classifier."],
            &["head.dense.weight", "head.norm.weight"],
            &[("classifier.weight", 1.0 / root)],
        ),
        (
            "modernbert",
            &["classifier.", "head."],
            &[],
            // 0.02 / sqrt(2 x 4 layers)
            &[("head.dense.weight", 0.02 / 8f64.sqrt()), ("classifier.weight", 1.0 / root)],
        ),
    ] {
        B::seed(&device, 3);
        let files = encoder(name, lacks, "AnEncoder");
        let reranker = train(&files).unwrap_or_else(|error| panic!("{name} {lacks:?}: {error}"));
        assert_eq!(reranker.labels(), 1);
        let saved = save_reranker(&reranker).unwrap();
        let original = Directory::new(fixture(&format!("rerankers/{name}"))).unwrap();
        let mut before = Weights::open(&original, "model").unwrap();
        let mut after = Weights::open(&saved, "model").unwrap();
        for tensor in own {
            assert_eq!(
                before.read(tensor).unwrap(),
                after.read(tensor).unwrap(),
                "{name} {tensor}"
            );
        }
        for (tensor, expected) in drawn {
            let values = after.read(tensor).unwrap().unwrap();
            // A thousand draws are this near; 32 are not, and a truncated normal is narrower.
            let (low, high) = if values.len() > 100 { (0.8, 1.1) } else { (0.55, 1.45) };
            let found = spread(&values) / expected;
            assert!((low..high).contains(&found), "{name} {tensor}: {found}");
            let bias = after.read(&tensor.replace("weight", "bias")).unwrap();
            assert!(
                bias.is_none_or(|bias| bias.iter().all(|value| *value == 0.0)),
                "{name} {tensor}"
            );
        }
        // What is saved is a reranker, with the sigmoid that was asked for.
        let again = Reranker::<B>::load_with(&saved, &LoadOptions::default(), &device).unwrap();
        assert_eq!(again.activation(), ScoreActivation::Sigmoid);
        assert_eq!(again.scores(&pairs()).unwrap(), reranker.scores(&pairs()).unwrap());
    }
}

/// A decoder that is loaded to be trained is saved with its whole language-model head, and how it is asked in
/// sentence-transformers' files; one that Kiln wrote with a direction in that head's place cannot be trained.
fn decoders_to_train<B: Kernels>(device: B::Device) {
    let train = |files: &Files| {
        let options = LoadOptions::default();
        Reranker::<B>::for_training(files, &options, ScoreActivation::Identity, &device)
    };
    let load =
        |files: &Files| Reranker::<B>::load_with(files, &LoadOptions::default(), &device).unwrap();
    let names = |files: &Files| -> Vec<String> {
        Weights::open(files, "model").unwrap().tensors().keys().cloned().collect()
    };
    let chats = ["qwen3-chat", "qwen3-one-token"].map(|name| (name, chat(name)));
    let released = DECODERS.map(|name| (name, decoder_files(name)));
    for (name, files) in released.into_iter().chain([("untied", untied())]).chain(chats) {
        let before = load(&files);
        let whole = train(&files).unwrap();
        // It goes on with its own activation, as encoders do.
        assert_eq!(whole.activation(), before.activation(), "{name}");
        let scores = before.scores(&pairs()).unwrap();
        assert_eq!(whole.scores(&pairs()).unwrap(), scores, "{name}");
        let saved = save_reranker(&whole).unwrap();
        // Put together of its parts it is the same, and so is what is saved of it.
        let apart = Reranker::from_parts(whole.into_parts()).unwrap();
        assert_eq!(apart.scores(&pairs()).unwrap(), scores, "{name}");
        assert!(save_reranker(&apart).unwrap() == saved, "{name}: of its parts");
        assert_eq!(names(&saved), names(&files), "{name}");
        let (mut ours, mut theirs) =
            (Weights::open(&saved, "model").unwrap(), Weights::open(&files, "model").unwrap());
        for tensor in names(&files) {
            let [a, b] = [&mut ours, &mut theirs].map(|one| one.read(&tensor).unwrap().unwrap());
            // Gemma's norms are one more than their files say.
            let off = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(a.len() == b.len() && off < 1e-6, "{name} {tensor}: {off}");
        }
        let read = |file: &str| -> Value { serde_json::from_slice(&saved.0[file]).unwrap() };
        let class = read("modules.json")[1]["type"].clone();
        assert_eq!(class, "sentence_transformers.cross_encoder.modules.logit_score.LogitScore");
        let answer = read("1_LogitScore/config.json");
        assert!(answer["true_token_id"].is_u64() && answer.get("kiln").is_none(), "{answer}");
        let settings = read("sentence_bert_config.json");
        assert_eq!(settings["transformer_task"], "text-generation", "{name}");
        let class = read("config.json")["architectures"][0].as_str().map(String::from);
        assert!(class.is_some_and(|class| class.ends_with("ForCausalLM")), "{name}");
        let again = load(&saved);
        assert_eq!(again.activation(), before.activation(), "{name}");
        assert_eq!(again.tokenizer().config(), before.tokenizer().config(), "{name}");
        assert_eq!(again.scores(&pairs()).unwrap(), scores, "{name}");
        let twice = save_reranker(&train(&saved).unwrap()).unwrap();
        assert!(twice == saved, "{name}: saved twice");
        let kept = save_reranker(&before).unwrap();
        let error = train(&kept).unwrap_err().to_string();
        assert!(error.contains("start from the model that it was made of"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    // What was trained shorter says so wherever its files say how long pairs are.
    let mut files = chat("qwen3-one-token");
    change(&mut files, "sentence_bert_config.json", |value| {
        value["processing_kwargs"]["text"] = json!({ "max_length": 90 });
    });
    let options = LoadOptions { max_length: Some(70), ..LoadOptions::default() };
    let fresh = ScoreActivation::Identity;
    let shorter = Reranker::<B>::for_training(&files, &options, fresh, &device).unwrap();
    let again = load(&save_reranker(&shorter).unwrap());
    assert_eq!(again.tokenizer().config().max_length, 70);
}

kiln_tests::on_every_device!(decoders_to_train, fresh);
