//! Cross-encoders that are trained: against PyTorch, to an overfit set, resumed, in sentence-transformers, and as
//! teachers of embedders.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Folder, failure, kiln, names, stdout};
use crate::training::DATA;

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(path)
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The lines of a run's metrics.
fn metrics(run: &Path) -> Vec<Value> {
    read(&run.join("metrics.jsonl")).lines().map(parse).collect()
}

fn losses(run: &Path) -> Vec<f64> {
    metrics(run).iter().map(|line| line["loss"].as_f64().unwrap()).collect()
}

/// A recipe of one stage from a fixture's reranker or from nothing, with `more` in the stage.
fn recipe(base: Option<&Path>, data: &str, more: &str) -> String {
    let model = match base {
        Some(base) => format!("[model]\nbase = '{}'\n", base.display()),
        None => "[model]\nmax_length = 48\n[model.new]\nvocab_size = 320\nhidden_size = 32\n\
                 intermediate_size = 48\nlayers = 2\nheads = 2\n"
            .into(),
    };
    format!(
        "name = 'tiny'\nseed = 3\n{model}\
         [[stage]]\nname = 'first'\nobjective = 'rerank'\ndata = ['{data}']\n{more}\n"
    )
}

fn train(folder: &Folder, text: &str, run: &str, more: &[&str]) -> assert_cmd::Command {
    let path = folder.write(&format!("{run}.toml"), text);
    let (data, out) = (folder.arg(""), folder.arg(run));
    let mut command =
        kiln(&["--quiet", "train", "--recipe", &path, "--data-dir", &data, "--output", &out]);
    command.args(more);
    command
}

/// Scores of pairs by `kiln rerank`, in their order.
fn scores(model: &str, query: &str, texts: &[&str]) -> Vec<f64> {
    let mut command = kiln(&["rerank", "--json", "-m", model, "-Q", query]);
    for text in texts {
        command.args(["-t", text]);
    }
    let answer = parse(&stdout(&mut command));
    let mut found = vec![0.0; texts.len()];
    for place in answer[0]["ranked"].as_array().unwrap() {
        let row = place["row"].as_u64().unwrap() as usize;
        found[row] = place["score"].as_f64().unwrap();
    }
    found
}

fn logit(score: f64) -> f64 {
    (score / (1.0 - score)).ln()
}

/// What a cross-encoder is can be looked at, as an embedder can, in a folder and in a file.
#[test]
fn a_cross_encoder_is_inspected() {
    let folder = Folder::new();
    let file = folder.arg("bert.kiln");
    let base = fixture("rerankers/bert").display().to_string();
    stdout(&mut kiln(&["quantize", "--quiet", "-m", &base, "--scheme", "int8:8", "-o", &file]));
    for (model, says) in [(&base, "a score of each pair, then Sigmoid"), (&file, "its test passed")]
    {
        let text = stdout(&mut kiln(&["inspect", "-m", model, "--tensors"]));
        assert!(text.contains("family       bert") && text.contains(says), "{text}");
        assert!(text.contains("classifier.weight"), "{text}");
        let value = parse(&stdout(&mut kiln(&["inspect", "-m", model, "--json"])));
        assert_eq!((&value["scores"], &value["activation"]), (&json!(1), &json!("sigmoid")));
        // Rounded or not, it has as many.
        assert_eq!(value["parameters"], 25_753, "{model}");
        assert!(value["parameters"].as_u64() > value["head"].as_u64());
    }
    let error = failure(&mut kiln(&["inspect", "-m", &base, "--pooling", "cls"]));
    assert!(error.contains("is a reranker, of which") && error.lines().count() == 1, "{error}");
}

/// `tests/reference/make_fixtures.py cross-encoders` made the numbers.
#[test]
fn a_step_is_the_one_that_sentence_transformers_takes() {
    let folder = Folder::new();
    let rows = read(&fixture("cross-encoders/rows.jsonl"));
    folder.write("rows.jsonl", &rows);
    let expected = parse(&read(&fixture("cross-encoders/steps.json")));
    let base = fixture("rerankers/bert");
    for (loss, more) in [
        ("binary_cross_entropy", "pos_weight = 2.0"),
        ("mse", ""),
        ("margin_mse", ""),
        // All others' texts, as with None in sentence-transformers.
        ("multiple_negatives_ranking", "num_negatives = 99"),
        ("rank_net", ""),
        ("lambda", ""),
    ] {
        let comma = if more.is_empty() { "" } else { ", " };
        let stage = format!(
            "steps = 1\nbatch_size = 4\nhard_negatives = 2\nlr = 1e-3\nschedule = 'constant'\nweight_decay = 0.01\n\
             rerank = {{ loss = '{loss}'{comma}{more} }}"
        );
        train(&folder, &recipe(Some(&base), "rows.jsonl", &stage), loss, &[]).assert().success();
        let (found, expected) = (&metrics(&folder.path(loss))[0], &expected[loss]);
        for key in ["loss", "grad_norm"] {
            let (a, b) = (found[key].as_f64().unwrap(), expected[key].as_f64().unwrap());
            assert!((a - b).abs() < 2e-5 * b.abs().max(1.0), "{loss} {key}: {a} {b}");
        }
        let model = folder.arg(&format!("{loss}/model"));
        let mut found = Vec::new();
        for row in rows.lines().map(parse) {
            let texts = [&row["pos"][0], &row["neg"][0], &row["neg"][1]];
            let texts = texts.map(|text| text.as_str().unwrap());
            found.extend(
                scores(&model, row["query"].as_str().unwrap(), &texts).into_iter().map(logit),
            );
        }
        let mut after: Vec<f64> = expected["scores"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one.as_f64().unwrap())
            .collect();
        if ["margin_mse", "rank_net", "lambda"].contains(&loss) {
            // These see differences alone, so that the last bias has a gradient of zero, up to rounding, of which Adam
            // makes a step all the same: one that moves all scores alike.
            for scores in [&mut found, &mut after] {
                let mean = scores.iter().sum::<f64>() / scores.len() as f64;
                scores.iter_mut().for_each(|score| *score -= mean);
            }
        }
        for (found, after) in found.iter().zip(&after) {
            assert!((found - after).abs() < 1e-4, "{loss}: {found} {after}");
        }
    }
}

/// Four queries and their candidates, as `kiln eval --task reranking` takes them.
fn candidates(folder: &Folder) -> String {
    let rows: String = DATA
        .lines()
        .map(|line| {
            let row = parse(line);
            json!({"query": row["query"], "positive": row["pos"], "negative": row["neg"]})
                .to_string()
                + "\n"
        })
        .collect();
    folder.write("candidates.jsonl", rows)
}

#[test]
fn a_small_set_is_learned_by_heart_with_each_loss() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let candidates = candidates(&folder);
    let embedder = folder.model("{ mode = 'mean' }").display().to_string();
    for (loss, settings) in [
        ("binary_cross_entropy", "pos_weight = 2.0"),
        ("multiple_negatives", "num_negatives = 2"),
        ("rank_net", ""),
        ("lambda", ""),
    ] {
        let comma = if settings.is_empty() { "" } else { ", " };
        let stage = format!(
            "steps = 80\nbatch_size = 4\nhard_negatives = 2\nlr = 3e-3\n\
             rerank = {{ loss = '{loss}'{comma}{settings} }}"
        );
        let text = format!(
            "{}\n[eval]\nevery = 20\nset = [{{ name = 'seen', path = 'candidates.jsonl' }}]\n",
            recipe(None, "data.jsonl", &stage)
        );
        let summary = stdout(&mut train(&folder, &text, loss, &["--json"]));
        let run = folder.path(loss);
        let all = losses(&run);
        assert!(all[79] < 0.5 * all[0], "{loss}: {} {}", all[0], all[79]);
        let last = metrics(&run).pop().unwrap();
        let named: Vec<&str> =
            last["scores"].as_array().unwrap().iter().map(|one| one[0].as_str().unwrap()).collect();
        assert_eq!(named, ["seen", "seen MRR@10"]);
        assert_eq!(last["scores"][0][1], 1.0, "{loss}: {last}");
        assert_eq!(parse(&summary)["best"]["score"], 1.0, "{summary}");
        assert_eq!(names(&run.join("best")), names(&run.join("model")));
        // The command ranks as the run was measured.
        let model = folder.arg(&format!("{loss}/model"));
        let args = ["eval", "--json", "-m", &embedder, "--reranker", &model, "--no-cache"];
        let task = ["--task", "reranking", "--data", &candidates];
        let answer = parse(&stdout(&mut kiln(&[&args[..], &task].concat())));
        assert_eq!(answer["main_score"], 1.0, "{answer}");
    }
    let card = read(&folder.path("lambda/model").join("README.md"));
    for part in [
        "pipeline_tag: text-ranking",
        "cross-encoder",
        "CrossEncoder(",
        "| seen | nDCG@10 | 1.0000 |",
    ] {
        assert!(card.contains(part), "{part}: {card}");
    }
    assert!(card.contains("| seen MRR@10 | MRR@10 | 1.0000 |"), "{card}");
    let config = parse(&read(&folder.path("lambda/model/config.json")));
    assert_eq!(config["architectures"][0], "ModernBertForSequenceClassification");
    assert_eq!(config["classifier_pooling"], "mean");
    assert_eq!(config["id2label"], json!({"0": "LABEL_0"}));
    let tokenizer = parse(&read(&folder.path("lambda/model/tokenizer_config.json")));
    assert_eq!(tokenizer["model_max_length"], 48);
}

#[test]
fn labelled_pairs_and_a_teachers_scores_are_learned() {
    let folder = Folder::new();
    let pairs = "sentence1,sentence2,label\nwhere does the river flood,the river floods the lower streets,1\n\
                 where does the river flood,granite walls and a long way up,0\n\
                 what did the ship carry,the ship carried tea and timber,1\n\
                 what did the ship carry,a violinist from a small town,0\n";
    folder.write("pairs.csv", pairs);
    let stage = "steps = 60\nbatch_size = 4\nlr = 3e-3";
    let text = format!(
        "{}\n[eval]\nset = [{{ name = 'pairs', path = 'pairs.csv' }}]\n",
        recipe(None, "pairs.csv", stage)
    );
    train(&folder, &text, "pairs", &[]).assert().success();
    let model = folder.arg("pairs/model");
    let texts = ["the river floods the lower streets", "granite walls and a long way up"];
    let found = scores(&model, "where does the river flood", &texts);
    assert!(found[0] > 0.8 && found[1] < 0.2, "{found:?}");
    // Spearman's correlation with labels of two kinds.
    let score = metrics(&folder.path("pairs")).pop().unwrap()["scores"][0][1].as_f64().unwrap();
    assert!(score > 0.85, "{score}");

    // Its scores go into rows, as they are and before the sigmoid.
    let rows = folder.write("data.jsonl", DATA);
    for (name, more) in [("scored.jsonl", &[][..]), ("logits.jsonl", &["--logits"])] {
        let out = folder.arg(name);
        let args = ["rerank", "--json", "-m", &model, "--data", &rows, "--scores", &out];
        let said = parse(&stdout(kiln(&args).args(more)));
        assert_eq!((&said["rows"], &said["texts"]), (&json!(4), &json!(12)));
        for row in read(&folder.path(name)).lines().map(parse) {
            let of = |key: &str| row[key].as_array().unwrap().clone();
            let texts: Vec<Value> = [of("pos"), of("neg")].concat();
            let texts: Vec<&str> = texts.iter().map(|text| text.as_str().unwrap()).collect();
            let alone = scores(&model, row["query"].as_str().unwrap(), &texts);
            let written = [of("pos_scores"), of("neg_scores")].concat();
            for (alone, written) in alone.into_iter().zip(&written) {
                let alone = if more.is_empty() { alone } else { logit(alone) };
                let written = written.as_f64().unwrap();
                assert!((alone - written).abs() < 1e-4 * alone.abs().max(1.0), "{alone} {written}");
            }
        }
    }
    // Of them another cross-encoder learns, and an embedder.
    for loss in ["mse", "margin_mse"] {
        let stage = format!(
            "steps = 100\nbatch_size = 4\nhard_negatives = 2\nlr = 3e-3\nrerank = {{ loss = '{loss}' }}"
        );
        train(&folder, &recipe(None, "logits.jsonl", &stage), loss, &[]).assert().success();
        let all = losses(&folder.path(loss));
        assert!(*all.last().unwrap() < 0.2 * all[0], "{loss}: {all:?}");
        // What has learned scores shows them as they are.
        let config = parse(&read(&folder.path(&format!("{loss}/model/config.json"))));
        let function = config["sentence_transformers"]["activation_fn"].as_str().unwrap();
        assert!(function.ends_with("Identity"), "{function}");
    }
    let text = "name = 'student'\n[model]\nmax_length = 24\npooling = { mode = 'mean' }\n\
                [model.new]\nvocab_size = 320\nhidden_size = 32\nintermediate_size = 48\nlayers = 2\nheads = 2\n\
                [[stage]]\nname = 's'\ndata = ['scored.jsonl']\nsteps = 60\nbatch_size = 4\nhard_negatives = 2\nlr = 3e-3\n\
                margin_mse = { contrastive = 0 }\n";
    train(&folder, text, "student", &[]).assert().success();
    let all = losses(&folder.path("student"));
    assert!(*all.last().unwrap() < 0.3 * all[0], "{all:?}");
}

#[test]
fn a_stopped_run_goes_on_bit_for_bit() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    candidates(&folder);
    // Adapters with dropout, in-batch negatives that are drawn, an evaluation, two stages.
    let base = fixture("rerankers/bert");
    let text = format!(
        "name = 'stopped'\nseed = 5\n[model]\nbase = '{}'\n[model.lora]\nrank = 4\ndropout = 0.2\ntargets = ['query', 'value']\n\
         [eval]\nevery = 3\nset = [{{ name = 'seen', path = 'candidates.jsonl' }}]\n\
         [[stage]]\nname = 'first'\nobjective = 'rerank'\ndata = ['data.jsonl']\nsteps = 8\nbatch_size = 3\n\
         curriculum = 'sampled'\nlr = 3e-3\nrerank = {{ loss = 'multiple_negatives_ranking', num_negatives = 2 }}\n\
         [[stage]]\nname = 'second'\nobjective = 'rerank'\ndata = ['data.jsonl']\nsteps = 5\nbatch_size = 2\nlr = 1e-3\n",
        base.display()
    );
    let more = ["--checkpoint-every", "1", "--keep", "99"];
    train(&folder, &text, "run", &more).assert().success();
    let run = folder.path("run");
    let numbers = || -> Vec<Value> {
        let without_time = |mut line: Value| {
            line["seconds"] = Value::Null;
            line
        };
        metrics(&run).into_iter().map(without_time).collect()
    };
    let weights = || std::fs::read(run.join("model/model.safetensors")).unwrap();
    let (expected, trained) = (numbers(), weights());
    assert!(!run.join("adapter").exists(), "PEFT's files would lack the head");
    for last in [8, 11, 5] {
        for step in last + 1..=13 {
            let checkpoint = run.join(format!("checkpoints/{step:08}"));
            std::fs::remove_dir_all(checkpoint).unwrap();
        }
        train(&folder, &text, "run", &more).arg("--resume").assert().success();
        assert_eq!(numbers(), expected, "from step {last}");
        assert!(weights() == trained, "from step {last}");
    }
    // Only what the adapters adapt and the head have changed.
    let tensors = |path: &Path| {
        let folder = kiln_embed::checkpoint::Directory::new(path).unwrap();
        kiln_embed::checkpoint::Weights::open(&folder, "model").unwrap()
    };
    let (mut before, mut after) = (tensors(&base), tensors(&run.join("model")));
    for name in before.tensors().keys().cloned().collect::<Vec<_>>() {
        let changed = before.read(&name).unwrap() != after.read(&name).unwrap();
        let trains = ["query.weight", "value.weight"].iter().any(|part| name.ends_with(part))
            || ["classifier.", "bert.pooler."].iter().any(|part| name.starts_with(part));
        assert_eq!(changed, trains, "{name}");
    }
}

const PEER: &str = r#"
import json, sys, torch
from sentence_transformers import CrossEncoder
pairs = json.load(open(sys.argv[1]))
for folder in sys.argv[2:]:
    model = CrossEncoder(folder, device="cpu")
    scores = model.predict(pairs, batch_size=1).tolist()
    activation = type(model.activation_fn).__name__
    print(json.dumps([scores, model.num_labels, model.max_seq_length, activation]))
"#;

/// Every family, and a model from nothing, trained a step and loaded by sentence-transformers.
#[test]
fn sentence_transformers_loads_what_was_trained() {
    let Some(python) = std::env::var_os("KILN_PYTHON") else {
        eprintln!(
            "SKIPPED: KILN_PYTHON is not set; tests/run.sh installs sentence-transformers and sets it"
        );
        return;
    };
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let stage = "steps = 1\nbatch_size = 4\nlr = 1e-3";
    let mut models = Vec::new();
    for name in ["bert", "roberta", "xlm-roberta", "distilbert", "mpnet", "modernbert", "gte"] {
        let base = fixture(&format!("rerankers/{name}"));
        train(&folder, &recipe(Some(&base), "data.jsonl", stage), name, &[]).assert().success();
        models.push((name, 40));
    }
    let shorter = recipe(None, "data.jsonl", stage).replace("max_length = 48", "max_length = 20");
    train(&folder, &shorter, "new", &[]).assert().success();
    models.push(("new", 20));
    let pairs = [
        ["where does the river flood", "the river floods the lower streets"],
        ["a", "b"],
        [
            "what did the ship carry, and whereto",
            "tea and timber and a violinist from a small town",
        ],
        ["", "only the second"],
    ];
    let file = folder.write("pairs.json", json!(pairs).to_string());
    let output = Command::new(python)
        .args(["-c", PEER, &file])
        .args(models.iter().map(|(name, _)| folder.path(&format!("{name}/model"))))
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter(|line| line.starts_with('['))
        .map(parse)
        .collect();
    assert_eq!(lines.len(), models.len());
    for ((name, length), line) in models.iter().zip(&lines) {
        assert_eq!(
            (&line[1], &line[2], &line[3]),
            (&json!(1), &json!(length), &json!("Sigmoid")),
            "{name}"
        );
        for ([query, text], theirs) in pairs.iter().zip(line[0].as_array().unwrap()) {
            let ours = scores(&folder.arg(&format!("{name}/model")), query, &[text])[0];
            let theirs = theirs.as_f64().unwrap();
            assert!((ours - theirs).abs() < 1e-5, "{name} {query:?}: {ours} {theirs}");
        }
    }
}

/// A cross-encoder of sentence-transformers 6 says its activation beside its config.json.
#[test]
fn an_activation_is_read_where_sentence_transformers_writes_it() {
    let folder = Folder::new();
    let copy = folder.path("copy");
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(fixture("rerankers/bert")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let copy_arg = copy.display().to_string();
    let before = scores(&copy_arg, "noon", &["night"])[0];
    for (function, expected) in [("linear.Identity", logit(before)), ("activation.Sigmoid", before)]
    {
        let said = json!({"activation_fn": format!("torch.nn.modules.{function}"), "prompts": {}});
        std::fs::write(copy.join("config_sentence_transformers.json"), said.to_string()).unwrap();
        let found = scores(&copy_arg, "noon", &["night"])[0];
        assert!((found - expected).abs() < 1e-4, "{function}: {found} {expected}");
    }
    let said = json!({"activation_fn": "torch.nn.modules.activation.Tanh"});
    std::fs::write(copy.join("config_sentence_transformers.json"), said.to_string()).unwrap();
    let said = failure(&mut kiln(&["rerank", "-m", &copy_arg, "-Q", "a", "-t", "b"]));
    assert!(said.contains("config_sentence_transformers.json") && said.contains("Tanh"), "{said}");
}

#[test]
fn what_a_cross_encoder_cannot_learn_from_is_said() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    folder.write(
        "bare.jsonl",
        "{\"query\":\"a\",\"pos\":[\"b\"]}\n{\"query\":\"c\",\"pos\":[\"d\"]}\n",
    );
    folder.write("wide.csv", "sentence1,sentence2,score\na,b,4.5\nc,d,0\n");
    folder.write("labels.csv", "sentence1,sentence2,label\na,b,1\nc,d,0\n");
    folder.write("words.txt", "one\ntwo\n");
    let usual = "steps = 1\nbatch_size = 2\nlr = 1e-3";
    let error = |text: &str| {
        let said = failure(&mut train(&folder, text, "out", &[]));
        assert!(!folder.path("out/model").exists());
        said
    };
    for (data, more, parts) in [
        ("bare.jsonl", "", &["bare: no row has a label or a negative", "kiln mine"][..]),
        ("wide.csv", "", &["wide: 1 of 2 rows have a label below 0 or above 1", "mse"]),
        ("words.txt", "", &["without positives"]),
        (
            "data.jsonl",
            "rerank = { loss = 'margin_mse' }",
            &["no row has scores", "kiln rerank --data"],
        ),
        (
            "data.jsonl",
            "rerank = { loss = 'mse' }",
            &["no row has a teacher's score", "kiln rerank --data"],
        ),
        ("data.jsonl", "rerank = { labels = 'scores' }", &["no row has a score", "rerank.labels"]),
        (
            "labels.csv",
            "rerank = { loss = 'rank_net' }",
            &["no row has a negative beside its positive"],
        ),
        (
            "labels.csv",
            "rerank = { loss = 'margin_mse' }",
            &["no row has scores of its positives and negatives"],
        ),
        ("data.jsonl", "rerank = { loss = 'hinge' }", &["hinge"]),
        ("data.jsonl", "rerank = { num_labels = 3 }", &["num_labels"]),
        ("data.jsonl", "margin_mse = { scale = 2.0 }", &["does not use margin_mse"]),
        ("data.jsonl", "loss = { temperature = 1.0 }", &["does not use loss"]),
    ] {
        let said = error(&recipe(None, data, &format!("{usual}\n{more}")));
        for part in parts {
            assert!(said.contains(part), "{data} {more}: {part:?} is not in {said}");
        }
    }
    // Bases of which no cross-encoder is made.
    let decoder = folder.model("{ mode = 'mean' }");
    for (base, part) in [
        (decoder, "is a decoder (llama)"),
        (fixture("rerankers/qwen3"), "answers yes or no, as a decoder (qwen3) does"),
        (fixture("static/sentence-transformers"), "is of a family without such a head (static)"),
    ] {
        let text = recipe(Some(&base), "data.jsonl", usual);
        let said = error(&text);
        assert!(said.contains(part) && said.contains("ModernBERT"), "{said}");
        let said = failure(&mut train(&folder, &text, "out", &["--dry-run"]));
        assert!(said.contains(part), "{said}");
    }
    // A head of several scores.
    let three = folder.path("three");
    std::fs::create_dir(&three).unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(fixture("rerankers/bert").join(file), three.join(file)).unwrap();
    }
    let from = kiln_embed::checkpoint::Directory::new(fixture("rerankers/bert")).unwrap();
    let mut weights = kiln_embed::checkpoint::Weights::open(&from, "model").unwrap();
    let tensors: Vec<_> = weights
        .tensors()
        .iter()
        .map(|(name, info)| (name.clone(), info.shape.clone()))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|(name, mut shape)| {
            let values = weights.read(&name).unwrap().unwrap();
            let head = name.starts_with("classifier.");
            if head {
                shape[0] = 3;
            }
            (name, shape, if head { values.repeat(3) } else { values })
        })
        .collect();
    let bytes = kiln_embed::checkpoint::write_safetensors(&tensors, &[("format", "pt")]).unwrap();
    std::fs::write(three.join("model.safetensors"), bytes).unwrap();
    let said = error(&recipe(Some(&three), "data.jsonl", usual));
    assert!(said.contains("gives each pair 3 scores"), "{said}");
    // No room for two texts.
    let text = recipe(None, "data.jsonl", usual).replace("max_length = 48", "max_length = 4");
    assert!(error(&text).contains("leaves no room for two texts"), "{}", error(&text));
}

#[test]
fn a_dry_run_counts_the_head() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let dry = |text: &str| {
        let answer = stdout(&mut train(&folder, text, "dry", &["--dry-run", "--json"]));
        parse(&answer)["stages"][0].clone()
    };
    let stage = "steps = 3\nbatch_size = 2\nlr = 1e-3";
    let base = fixture("rerankers/bert");
    let whole = dry(&recipe(Some(&base), "data.jsonl", stage));
    // Every tensor of the file.
    let from = kiln_embed::checkpoint::Directory::new(&base).unwrap();
    let weights = kiln_embed::checkpoint::Weights::open(&from, "model").unwrap();
    let sizes = weights.tensors().values().map(|info| info.shape.iter().product::<usize>());
    assert_eq!(whole["trained"], sizes.sum::<usize>());
    let lora = recipe(Some(&base), "data.jsonl", stage)
        .replace("[[stage]]", "[model.lora]\nrank = 4\ntargets = ['query']\n[[stage]]");
    // Three layers, rank 4 on 32 x 32, and the head: 32 x 32 + 32, 32 + 1.
    assert_eq!(dry(&lora)["trained"], 3 * 4 * 64 + 32 * 33 + 33);
    assert_eq!(whole["data"][0][1]["examples"], 4);
}
