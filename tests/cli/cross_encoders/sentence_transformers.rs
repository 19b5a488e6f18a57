//! Cross-encoders beside those of sentence-transformers: a step of training, and files in both directions.

use std::process::Command;

use serde_json::{Value, json};

use super::{chat, fixture, logit, metrics, parse, read, recipe, scores, train};
use crate::harness::{Folder, failure, kiln};
use crate::training::DATA;

/// `tests/reference/make_fixtures.py cross-encoders` made the numbers.
#[test]
fn a_step_is_the_one_that_sentence_transformers_takes() {
    let folder = Folder::new();
    let rows = read(&fixture("cross-encoders/rows.jsonl"));
    folder.write("rows.jsonl", &rows);
    let losses = [
        ("binary_cross_entropy", "pos_weight = 2.0"),
        ("mse", ""),
        ("margin_mse", ""),
        // All others' texts, as with None in sentence-transformers.
        ("multiple_negatives_ranking", "num_negatives = 99"),
        ("rank_net", ""),
        ("lambda", ""),
    ];
    // In f64 PyTorch's own scores of the decoder, whose gradients are larger, are up to 4e-5 apart from those in f32.
    let models = [("bert", "steps.json", 1e-4), ("qwen3", "steps-qwen3.json", 3e-4)];
    let all = models.into_iter().flat_map(|model| losses.map(|loss| (model, loss)));
    for ((model, file, most), (loss, more)) in all {
        let expected = parse(&read(&fixture(&format!("cross-encoders/{file}"))));
        let base = fixture(&format!("rerankers/{model}"));
        let run = format!("{model}-{loss}");
        let comma = if more.is_empty() { "" } else { ", " };
        let stage = format!(
            "steps = 1\nbatch_size = 4\nhard_negatives = 2\nlr = 1e-3\nschedule = 'constant'\nweight_decay = 0.01\n\
             rerank = {{ loss = '{loss}'{comma}{more} }}"
        );
        train(&folder, &recipe(Some(&base), "rows.jsonl", &stage), &run, &[]).assert().success();
        let (found, expected) = (&metrics(&folder.path(&run))[0], &expected[loss]);
        for key in ["loss", "grad_norm"] {
            let (a, b) = (found[key].as_f64().unwrap(), expected[key].as_f64().unwrap());
            assert!((a - b).abs() < 2e-5 * b.abs().max(1.0), "{run} {key}: {a} {b}");
        }
        let model = folder.arg(&format!("{run}/model"));
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
            // What is shown is the sigmoid of a score in f32, which says little of a large one.
            let rounded = f64::from(f32::EPSILON) * (2.0 + after.exp());
            assert!((found - after).abs() < most + rounded, "{run}: {found} {after}");
        }
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
    for name in [
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
    ] {
        let base = fixture(&format!("rerankers/{name}"));
        train(&folder, &recipe(Some(&base), "data.jsonl", stage), name, &[]).assert().success();
        models.push((name, 40));
    }
    // As Qwen3-Reranker and bge-reranker-v2-gemma are released, without LogitScore, and as sentence-transformers saves them.
    for (name, base, length) in [
        ("qwen3", fixture("rerankers/qwen3"), 900),
        ("gemma", fixture("rerankers/gemma"), 240),
        ("qwen3-chat", chat(&folder, "qwen3-chat"), 900),
        ("qwen3-one-token", chat(&folder, "qwen3-one-token"), 900),
    ] {
        train(&folder, &recipe(Some(&base), "data.jsonl", stage), name, &[]).assert().success();
        models.push((name, length));
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
        // Its own settings say so.
        let activation = if *name == "qwen3-one-token" { "Identity" } else { "Sigmoid" };
        assert_eq!(
            (&line[1], &line[2], &line[3]),
            (&json!(1), &json!(length), &json!(activation)),
            "{name}"
        );
        for ([query, text], theirs) in pairs.iter().zip(line[0].as_array().unwrap()) {
            let ours = scores(&folder.arg(&format!("{name}/model")), query, &[text])[0];
            let theirs = theirs.as_f64().unwrap();
            let most = 1e-5 * theirs.abs().max(1.0);
            assert!((ours - theirs).abs() < most, "{name} {query:?}: {ours} {theirs}");
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
