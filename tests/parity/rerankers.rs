//! Scores of cross-encoders of every family against sentence-transformers (and, for decoders, against the
//! recipes of their model cards): pairs of one and of two token types, texts that are cut, empty texts.

use kiln_embed::checkpoint::{
    Directory, Files, LoadOptions, Weights, read_text, write_safetensors,
};
use kiln_embed::kernels::Kernels;
use kiln_embed::quant::WeightPrecision;
use kiln_embed::reranker::{Reranker, ScoreActivation, save_reranker};
use kiln_tests::fixture;
use serde_json::{Value, json};

fn reranker<B: Kernels>(name: &str, device: &B::Device) {
    let folder = fixture(&format!("rerankers/{name}"));
    let reranker = Reranker::<B>::load_with(
        &Directory::new(folder.clone()).unwrap(),
        &LoadOptions::default(),
        device,
    )
    .unwrap();
    assert_eq!(reranker.activation(), ScoreActivation::Sigmoid);
    let reranker = reranker.with_activation(ScoreActivation::Identity);
    let read = |path| std::fs::read(path).unwrap();
    let pairs: Vec<(String, String)> =
        serde_json::from_slice(&read(fixture("rerankers/pairs.json"))).unwrap();
    let expected: Vec<f32> = serde_json::from_slice(&read(folder.join("scores.json"))).unwrap();
    let scores = reranker.scores(&pairs).unwrap();
    assert_eq!(scores.len(), expected.len());
    let mut worst = 0.0f32;
    for (pair, (score, expected)) in pairs.iter().zip(scores.iter().zip(&expected)) {
        let error = (score - expected).abs() / expected.abs().max(1.0);
        assert!(
            error < kiln_tests::allowed::<B>(device, 1e-4),
            "{name} {pair:?}: {score} {expected}"
        );
        worst = worst.max(error);
    }
    let (query, _) = &pairs[0];
    let texts: Vec<&str> = pairs.iter().map(|(_, text)| text.as_str()).collect();
    let ranked = reranker.rank(query, &texts).unwrap();
    assert!(ranked.windows(2).all(|pair| pair[0].score >= pair[1].score));
    assert_eq!(ranked.len(), texts.len());
    eprintln!("PARITY reranker {name}: {worst:.1e} over {} pairs", pairs.len());
}

const ENCODERS: [&str; 10] = [
    "bert",
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "distilbert",
    "mpnet",
    "modernbert",
    "nomic-bert",
    "gte",
];

/// As Qwen3-Reranker and bge-reranker-v2-gemma are released.
const DECODERS: [&str; 2] = ["qwen3", "gemma"];

fn encoders<B: Kernels>(device: B::Device) {
    for name in ENCODERS {
        reranker::<B>(name, &device);
    }
}

fn decoders<B: Kernels>(device: B::Device) {
    for name in DECODERS {
        reranker::<B>(name, &device);
    }
}

fn open<B: Kernels>(name: &str, device: &B::Device) -> Reranker<B> {
    let folder = Directory::new(fixture(&format!("rerankers/{name}"))).unwrap();
    Reranker::load_with(&folder, &LoadOptions::default(), device).unwrap()
}

fn pairs() -> Vec<(String, String)> {
    serde_json::from_slice(&std::fs::read(fixture("rerankers/pairs.json")).unwrap()).unwrap()
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
        alike(load(&files, int8), load(&saved, int8));
        // The score's direction is not rounded with the rest.
        let mut direction = Weights::open(&saved, "1_LogitScore/model").unwrap();
        let score = direction.read("score.weight").unwrap().unwrap();
        assert_eq!(direction.tensors()["score.weight"].shape, [1, score.len()], "{name}");
        for rounded in [load(&files, int8), load(&saved, int8)] {
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

/// Qwen3's files with a language-model head of its own.
fn untied() -> Files {
    let mut files = decoder_files("qwen3");
    let mut weights = Weights::open(&files, "model").unwrap();
    let names: Vec<String> = weights.tensors().keys().cloned().collect();
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    for name in names {
        let shape = weights.tensors()[&name].shape.clone();
        let values = weights.read(&name).unwrap().unwrap();
        if name.ends_with("embed_tokens.weight") {
            let other = values.iter().rev().map(|value| 0.5 * value).collect();
            tensors.push(("lm_head.weight".into(), shape.clone(), other));
        }
        tensors.push((name, shape, values));
    }
    let bytes = write_safetensors(&tensors, &[("format", "pt")]).unwrap();
    files.0.insert("model.safetensors".into(), bytes.into());
    change(&mut files, "config.json", |config| config["tie_word_embeddings"] = false.into());
    files
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

/// A reranker's files without the tensors that an encoder lacks.
fn encoder(name: &str, lacks: &[&str], class: &str) -> Files {
    let folder = Directory::new(fixture(&format!("rerankers/{name}"))).unwrap();
    let mut files = Files::default();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        files.0.insert(file.into(), read_text(&folder, file).unwrap().unwrap().into());
    }
    let mut config: Value = serde_json::from_slice(&files.0["config.json"]).unwrap();
    config["architectures"] = serde_json::json!([class]);
    files.0.insert("config.json".into(), config.to_string().into());
    let mut weights = Weights::open(&folder, "model").unwrap();
    let kept: Vec<String> = weights.tensors().keys().cloned().collect();
    let tensors: Vec<(String, Vec<usize>, Vec<f32>)> = kept
        .into_iter()
        .filter(|tensor| !lacks.iter().any(|start| tensor.starts_with(start)))
        .map(|tensor| {
            let shape = weights.tensors()[&tensor].shape.clone();
            let values = weights.read(&tensor).unwrap().unwrap();
            (tensor, shape, values)
        })
        .collect();
    let bytes = write_safetensors(&tensors, &[("format", "pt")]).unwrap();
    files.0.insert("model.safetensors".into(), bytes.into());
    files
}

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
        let apart = Reranker::from_parts(whole.clone().into_parts()).unwrap();
        for reranker in [whole, apart] {
            assert_eq!(reranker.scores(&pairs()).unwrap(), before.scores(&pairs()).unwrap());
            let saved = save_reranker(&reranker).unwrap();
            assert_eq!(names(&saved), names(&files), "{name}");
            let (mut ours, mut theirs) =
                (Weights::open(&saved, "model").unwrap(), Weights::open(&files, "model").unwrap());
            for tensor in names(&files) {
                let [a, b] =
                    [&mut ours, &mut theirs].map(|one| one.read(&tensor).unwrap().unwrap());
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
            assert_eq!(again.scores(&pairs()).unwrap(), before.scores(&pairs()).unwrap(), "{name}");
            let twice = save_reranker(&train(&saved).unwrap()).unwrap();
            assert!(twice == saved, "{name}: saved twice");
        }
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

/// A decoder that ranks by a chat template, with the weights and the tokenizer of `qwen3`.
fn chat(name: &str) -> Files {
    let own = ["chat_template.jinja", "sentence_bert_config.json", "modules.json"];
    let own =
        own.into_iter().chain(["config_sentence_transformers.json", "1_LogitScore/config.json"]);
    let mut files = decoder_files("qwen3");
    files.0.extend(some_files(name, &own.collect::<Vec<_>>()).0);
    files
}

/// Those of a decoder as it is released.
fn decoder_files(name: &str) -> Files {
    let paths = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    some_files(name, &paths)
}

fn some_files(name: &str, paths: &[&str]) -> Files {
    let folder = fixture(&format!("rerankers/{name}"));
    let mut files = Files::default();
    for path in paths {
        files.0.insert(path.to_string(), std::fs::read(folder.join(path)).unwrap().into());
    }
    files
}

fn change(files: &mut Files, file: &str, change: impl Fn(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&files.0[file]).unwrap();
    change(&mut value);
    files.0.insert(file.into(), value.to_string().into());
}

/// sentence-transformers' scores of its own files: with an instruction, without, and cut.
fn chat_templates<B: Kernels>(device: B::Device) {
    for (name, activation, length) in [
        ("qwen3-chat", ScoreActivation::Sigmoid, 320),
        ("qwen3-one-token", ScoreActivation::Identity, 90),
    ] {
        let expected = std::fs::read(fixture(&format!("rerankers/{name}/scores.json"))).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let load = |options: &LoadOptions| {
            let reranker = Reranker::<B>::load_with(&chat(name), options, &device).unwrap();
            assert_eq!(reranker.activation(), activation);
            reranker.with_activation(ScoreActivation::Identity)
        };
        let same = |reranker: &Reranker<B>, key: &str| {
            let expected: Vec<f32> = serde_json::from_value(expected[key].clone()).unwrap();
            let scores = reranker.scores(&pairs()).unwrap();
            for (pair, (score, expected)) in pairs().iter().zip(scores.iter().zip(&expected)) {
                let error = (score - expected).abs() / expected.abs().max(1.0);
                let allowed = kiln_tests::allowed::<B>(&device, 1e-4);
                assert!(error < allowed, "{name} {key} {pair:?}: {score} {expected}");
            }
        };
        let whole = load(&LoadOptions::default());
        same(&whole, "scores");
        if !B::HOST {
            // The rest is a matter of tokens.
            continue;
        }
        same(&load(&LoadOptions { max_length: Some(length), ..LoadOptions::default() }), "cut");
        let instructed = whole.with_instruction("Find what is asked for");
        if expected["instructed"].is_null() {
            assert!(instructed.unwrap_err().to_string().contains("takes no instruction"));
        } else {
            same(&instructed.unwrap(), "instructed");
        }
        // Too short for the prompt.
        let short = load(&LoadOptions { max_length: Some(20), ..LoadOptions::default() });
        assert!(short.scores(&pairs()).unwrap_err().to_string().contains("leaves no room"));
    }
}

#[test]
fn chat_templates_that_are_none_are_refused() {
    type B = burn::backend::Flex;
    let refused = |files: &Files| -> String {
        let options = LoadOptions::default();
        let error = Reranker::<B>::load_with(files, &options, &Default::default()).unwrap_err();
        let error = error.to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    };
    let template = |text: &str| {
        let mut files = chat("qwen3-chat");
        files.0.insert("chat_template.jinja".into(), text.to_string().into());
        refused(&files)
    };
    let both = "{{ messages[-2].content }} {{ messages[-1].content }}";
    for (text, why) in [
        ("{{ messages[-2].content }}", "leaves out messages of the role document"),
        ("nothing", "leaves out messages of the role query"),
        (&format!("{both} {{{{ messages[-1].content }}}}"), "document twice"),
        (
            "{{ messages[-2].content | upper }} {{ messages[-1].content }}",
            "leaves out messages of the role query",
        ),
        (
            "{{ messages[-2].content | replace('a', 'b') }} {{ messages[-1].content }}",
            "changes the texts",
        ),
        ("{{ messages[-2].content }} {{ messages[-1].content[:2000] }}", "changes the texts"),
        (&format!("{both} {{{{ strftime_now('%Y') }}}}"), "asks for the date"),
        (&format!("{both} {{{{ [1] | batch(9999999999999) }}}}"), "cannot be rendered"),
        ("{% for message in %}", "cannot be rendered"),
        ("{{ raise_exception('not for pairs') }}", "not for pairs"),
        (
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
            "cannot be rendered: engine ran out of fuel",
        ),
    ] {
        let error = template(text);
        assert!(error.contains("is no reranker") && error.contains(why), "{text}: {error}");
    }
    // The files have an instruction, for which this one has no place.
    let flat = "{{ (messages | selectattr('role', 'eq', 'query') | first).content }} \
                {{ (messages | selectattr('role', 'eq', 'document') | first).content }}";
    let error = template(flat);
    assert!(
        error.contains("has the default prompt") && error.contains("of the role system"),
        "{error}"
    );

    let changed = |file: &str, how: &dyn Fn(&mut Value)| {
        let mut files = chat("qwen3-chat");
        change(&mut files, file, how);
        refused(&files)
    };
    let score = "1_LogitScore/config.json";
    assert!(
        changed(score, &|value| value["true_token_id"] = "yes".into()).contains("true_token_id")
    );
    assert!(
        changed(score, &|value| value["false_token_id"] = (-1).into()).contains("false_token_id")
    );
    assert!(changed(score, &|value| value["true_token_id"] = 64.into()).contains("token 64 of 64"));
    let modality = |value: &mut Value| value["modality_config"]["message"] = Value::Null;
    let settings = "sentence_bert_config.json";
    assert!(changed(settings, &modality).contains("does not say that texts are messages"));
    let format = |value: &mut Value| value["modality_config"]["message"]["format"] = "other".into();
    assert!(changed(settings, &format).contains("the format of messages is \"other\""));
    for (bucket, key, value, why) in [
        ("chat_template", "restore_suffix", serde_json::json!(false), "restore_suffix is false"),
        ("text", "truncation", serde_json::json!(false), "truncation is false"),
        ("chat_template", "tools", serde_json::json!([{}]), "chat_template.tools is not supported"),
        ("common", "stride", serde_json::json!(3), "common.stride is not supported"),
        ("text", "max_length", serde_json::json!("long"), "max_length is \"long\""),
        (
            "chat_template",
            "chat_template",
            serde_json::json!("a"),
            "chat template \"a\", which is not there",
        ),
    ] {
        let given = |settings: &mut Value| {
            settings["processing_kwargs"] = serde_json::json!({ bucket: { key: value } });
        };
        let error = changed(settings, &given);
        assert!(error.contains(why), "{error}");
    }
    let capped = |value: &mut Value| value["final_logit_softcapping"] = 30.0.into();
    assert!(changed("config.json", &capped).contains("final_logit_softcapping"));
    let third = |value: &mut Value| {
        let last = value[1].clone();
        value.as_array_mut().unwrap().push(last);
        value[2]["idx"] = 2.into();
    };
    assert!(changed("modules.json", &third).contains("LogitScore"));
    // Its template may stand in the tokenizer's settings, too, by a name.
    let mut files = chat("qwen3-chat");
    let text = String::from_utf8(files.0.remove("chat_template.jinja").unwrap().to_vec()).unwrap();
    assert!(refused(&files).contains("there is no chat template"));
    change(&mut files, "tokenizer_config.json", |value| {
        value["chat_template"] = serde_json::json!([{ "name": "rank", "template": text }]);
    });
    assert!(refused(&files).contains("there is no chat template"));
    change(&mut files, "sentence_bert_config.json", |value| {
        value["processing_kwargs"] =
            serde_json::json!({"chat_template": {"chat_template": "rank"}});
    });
    let options = LoadOptions::default();
    let by_name = Reranker::<B>::load_with(&files, &options, &Default::default()).unwrap();
    let by_file =
        Reranker::<B>::load_with(&chat("qwen3-chat"), &options, &Default::default()).unwrap();
    assert_eq!(by_name.scores(&pairs()).unwrap(), by_file.scores(&pairs()).unwrap());
    // A length beside the template is the row's.
    let mut shorter = chat("qwen3-one-token");
    change(&mut shorter, "sentence_bert_config.json", |value| {
        value["processing_kwargs"]["text"] = serde_json::json!({ "max_length": 90 });
    });
    let shorter = Reranker::<B>::load_with(&shorter, &options, &Default::default()).unwrap();
    assert_eq!(shorter.tokenizer().config().max_length, 90);
    // It gives no vectors.
    let error = kiln_embed::checkpoint::load::<B>(&files, &options, &Default::default());
    assert!(error.unwrap_err().to_string().contains("is a reranker (LogitScore)"));
}

kiln_tests::on_every_device!(
    encoders,
    decoders,
    saved,
    saved_decoders,
    decoders_to_train,
    fresh,
    chat_templates
);
