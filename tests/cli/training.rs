//! Training: quickstart, losses by a field, what a run leaves, and the numbers that other tests read of it.

mod adapters;
mod devices;
mod reconstruction;
mod resume;

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::harness::{Folder, failure, kiln, stdout};

pub(crate) const DATA: &str = r#"{"query":"where does the river flood","pos":["the river floods the lower streets"],"neg":["granite walls and a long way up","a portrait hangs in the hall"]}
{"query":"who came from a small town","pos":["a violinist from a small town"],"neg":["the ship carried tea and timber","the river floods the lower streets"]}
{"query":"what did the ship carry","pos":["the ship carried tea and timber"],"neg":["a violinist from a small town","petals of pale blue in wet meadows"]}
{"query":"which colour are the petals","pos":["petals of pale blue in wet meadows"],"neg":["granite walls and a long way up","the ship carried tea and timber"]}
"#;

const PAIRS: &str = "sentence1,sentence2,score\na river rises,the river floods,4.5\na ship at sea,tea and timber,2\n\
                     blue petals,petals of pale blue,5\ngranite walls,a small town,0.5\n";

pub(crate) fn recipe(steps: usize) -> String {
    format!(
        "name = 'tiny'\nseed = 3\n[model]\nmax_length = 24\npooling = {{ mode = 'mean' }}\n\
         [model.new]\nvocab_size = 320\nhidden_size = 32\nintermediate_size = 48\nlayers = 2\nheads = 2\n\
         [[stage]]\nname = 'first'\ndata = ['data.jsonl']\nsteps = {steps}\nbatch_size = 4\naccumulation = 2\n\
         curriculum = 'coarse_to_fine'\nlr = 2e-3\nwarmup = 2\nweight_decay = 0.01\n\
         [[stage]]\nname = 'second'\ndata = ['data.jsonl']\nsteps = 6\nbatch_size = 2\nhard_negatives = 2\nlr = 1e-3\n\
         loss = {{ temperature = 0.1, in_batch = false }}\n"
    )
}

/// The lines that a run wrote.
pub(crate) fn metrics(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Loss, gradient norm and scores of every step, exactly.
pub(crate) fn numbers(folder: &Path) -> Vec<String> {
    let exact = |line: &Value| format!("{} {} {}", line["loss"], line["grad_norm"], line["scores"]);
    metrics(folder).iter().map(exact).collect()
}

pub(crate) fn losses(folder: &Path) -> Vec<f64> {
    metrics(folder).iter().map(|line| line["loss"].as_f64().unwrap()).collect()
}

pub(crate) fn weights(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("model/model.safetensors")).unwrap()
}

#[test]
fn a_small_quickstart_learns() {
    let folder = Folder::new();
    let out = folder.arg("qs");
    let summary = stdout(&mut kiln(&["quickstart", "--json", "--steps", "0.12", "--output", &out]));
    let summary: Value = serde_json::from_str(&summary).unwrap();
    let score = |name: &str| {
        let scores = summary["scores"].as_array().unwrap();
        let found =
            scores.iter().find(|score| score["name"].as_str().unwrap().starts_with(name)).unwrap();
        found["ndcg_at_10"].as_f64().unwrap()
    };
    let (random, untrained, trained) =
        (score("random"), score("untrained"), score("after stage \"blended\""));
    assert!(random < 0.05 && untrained < 0.4 && score("BM25") > 0.3, "{summary}");
    assert!(trained > untrained + 0.2, "{summary}");
    assert_eq!(summary["samples"].as_array().unwrap().len(), 3);
    let report = std::fs::read_to_string(folder.path("qs/report.html")).unwrap();
    assert!(report.matches("<svg").count() == 3 && report.contains("BM25"));

    // What it wrote can be searched.
    let corpus = folder.arg("qs/data/test/corpus.jsonl");
    let query = summary["samples"][0]["query"].as_str().unwrap();
    let found = stdout(&mut kiln(&[
        "search",
        "--json",
        "--model",
        &folder.arg("qs/model"),
        "--corpus",
        &corpus,
        "--query",
        query,
        "-k",
        "3",
    ]));
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found[0]["hits"][0]["text"], summary["samples"][0]["answers"][0][1]);
}

#[test]
fn matryoshka_and_other_losses_by_a_field() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("r.toml", recipe(30));
    let run = |out: &str, set: &[&str]| -> Vec<f64> {
        let output = folder.arg(out);
        let mut command = kiln(&["train", "--recipe", &recipe, "--output", &output]);
        for field in set {
            command.args(["--set", field]);
        }
        command.assert().success();
        losses(&folder.path(out))
    };
    let plain = run("plain", &[]);
    let nested = run("nested", &["stage.1.matryoshka={dimensions=[8,32]}"]);
    assert_ne!(plain[0], nested[0]);
    assert!(nested[29] < nested[0]);
    let both = run("both", &["stage.1.loss.both_directions=true"]);
    assert_ne!(plain[0], both[0]);
    // The second stage is as before until the first one's weights tell.
    let bf16 = run("bf16", &["compute.precision='bf16'"]);
    assert!(bf16[0] != plain[0] && (bf16[0] - plain[0]).abs() < 0.05, "{} {}", bf16[0], plain[0]);
    let f16 = run("f16", &["compute.precision='f16'"]);
    assert!((f16[0] - plain[0]).abs() < 0.05 && f16[29] < f16[0], "{f16:?}");
}

#[test]
fn a_loss_that_is_no_number_stops_the_run_and_keeps_the_batch() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("r.toml", recipe(50));
    let out = folder.arg("out");
    let error = failure(&mut kiln(&[
        "--quiet",
        "train",
        "--recipe",
        &recipe,
        "--set",
        "stage.first.lr=1e38",
        "--set",
        "stage.first.warmup=0",
        "--output",
        &out,
    ]));
    assert!(error.contains("step 2") && error.contains("NaN") && error.contains("lr"), "{error}");
    let examples = std::fs::read(folder.path("out/bad-batch.json")).unwrap();
    let examples: Vec<Value> = serde_json::from_slice(&examples).unwrap();
    // Two batches; no text comes twice in one, so that they are not full.
    assert!((2..=8).contains(&examples.len()), "{}", examples.len());
    assert!(examples[0]["example"]["query"].is_string(), "{}", examples[0]);
    assert_eq!(losses(&folder.path("out")).len(), 1);
    assert!(!folder.path("out/model").exists());
}

/// TensorBoard itself reads what we write.
#[test]
fn tensorboard_reads_the_event_files() {
    const SCRIPT: &str = r#"
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1]).Reload()
print(json.dumps({tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}))
"#;
    let Some(python) = std::env::var_os("KILN_PYTHON") else {
        eprintln!("SKIPPED: KILN_PYTHON is not set; tests/run.sh installs TensorBoard and sets it");
        return;
    };
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    folder.write("pairs.csv", PAIRS);
    let recipe = folder.write("r.toml", recipe(15));
    let out = folder.arg("out");
    let eval = "eval={ every = 5, set = [{ name = 'pairs', path = 'pairs.csv' }] }";
    kiln(&["train", "--recipe", &recipe, "--set", eval, "--output", &out]).assert().success();
    let board = folder.arg("out/tensorboard");
    let output = Command::new(python).args(["-c", SCRIPT, &board]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line = String::from_utf8(output.stdout).unwrap();
    let found: Value = serde_json::from_str(line.lines().last().unwrap()).unwrap();
    let expected = losses(&folder.path("out"));
    let curve: Vec<(usize, f64)> = serde_json::from_value(found["train/loss"].clone()).unwrap();
    assert_eq!(curve.len(), expected.len());
    for (i, ((step, value), loss)) in curve.iter().zip(&expected).enumerate() {
        assert_eq!(*step, i + 1);
        assert!((value - loss).abs() < 1e-5, "{value} {loss}");
    }
    assert_eq!(found["eval/pairs"].as_array().unwrap().len(), 3 + 1 + 1);
}
