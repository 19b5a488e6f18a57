//! Training: quickstart, recipes, LoRA, Ctrl-C and resume.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::harness::{Folder, failure, kiln, stdout};

const DATA: &str = r#"{"query":"where does the river flood","pos":["the river floods the lower streets"],"neg":["granite walls and a long way up","a portrait hangs in the hall"]}
{"query":"who came from a small town","pos":["a violinist from a small town"],"neg":["the ship carried tea and timber","the river floods the lower streets"]}
{"query":"what did the ship carry","pos":["the ship carried tea and timber"],"neg":["a violinist from a small town","petals of pale blue in wet meadows"]}
{"query":"which colour are the petals","pos":["petals of pale blue in wet meadows"],"neg":["granite walls and a long way up","the ship carried tea and timber"]}
"#;

fn recipe(steps: usize) -> String {
    format!(
        "name = 'tiny'\nseed = 3\n[model]\nmax_length = 24\npooling = {{ mode = 'mean' }}\n\
         [model.new]\nvocab_size = 320\nhidden_size = 32\nintermediate_size = 48\nlayers = 2\nheads = 2\n\
         [[stage]]\nname = 'first'\ndata = ['data.jsonl']\nsteps = {steps}\nbatch_size = 4\naccumulation = 2\n\
         curriculum = 'coarse_to_fine'\nlr = 2e-3\nwarmup = 2\nweight_decay = 0.01\n\
         [[stage]]\nname = 'second'\ndata = ['data.jsonl']\nsteps = 6\nbatch_size = 2\nhard_negatives = 2\nlr = 1e-3\n\
         loss = {{ temperature = 0.1, in_batch = false }}\n"
    )
}

/// The losses that a run wrote.
fn losses(folder: &Folder, out: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(folder.path(out).join("metrics.jsonl")).unwrap();
    text.lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["loss"].as_f64().unwrap()
        })
        .collect()
}

#[test]
fn a_small_quickstart_learns() {
    let folder = Folder::new();
    let out = folder.arg("qs");
    let summary = stdout(&mut kiln(&["quickstart", "--json", "--steps", "0.12", "--output", &out]));
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
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
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found[0]["hits"][0]["text"], summary["samples"][0]["answers"][0][1]);
}

#[test]
fn ctrl_c_saves_and_resume_gives_the_same_run() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("r.toml", recipe(400));
    let whole = folder.arg("whole");
    kiln(&["train", "--recipe", &recipe, "--output", &whole]).assert().success();

    let out = folder.arg("out");
    let mut child = Command::new(env!("CARGO_BIN_EXE_train-native"))
        .args(["--device", "cpu", "train", "--recipe", &recipe, "--output", &out])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("parameters train"));
    std::thread::sleep(std::time::Duration::from_millis(400));
    assert!(
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let done = losses(&folder, "out").len();
    assert!((1..400).contains(&done), "{done} steps before Ctrl-C");
    assert!(!folder.path("out/model").exists());

    let again = failure(&mut kiln(&["train", "--recipe", &recipe, "--output", &out]));
    assert!(again.contains("--resume"), "{again}");
    kiln(&["train", "--recipe", &recipe, "--output", &out, "--resume"]).assert().success();
    let (resumed, whole) = (losses(&folder, "out"), losses(&folder, "whole"));
    assert_eq!(resumed.len(), whole.len());
    for (step, (a, b)) in resumed.iter().zip(&whole).enumerate() {
        assert!(
            (a - b).abs() < 1e-3 * b.abs().max(0.1),
            "step {step}: {a} after resume, {b} without"
        );
    }
    assert!(whole[399] < 0.5 * whole[0], "{} -> {}", whole[0], whole[399]);
    assert!(folder.path("out/model/model.safetensors").exists());

    let other = std::fs::read_to_string(&recipe).unwrap().replace("seed = 3", "seed = 4");
    let other = folder.write("other.toml", other);
    let error = failure(&mut kiln(&["train", "--recipe", &other, "--output", &out, "--resume"]));
    assert!(error.contains("another recipe"), "{error}");
}

#[test]
fn lora_trains_adapters_and_saves_merged_weights() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let base = folder.model("{ mode = 'mean' }");
    let text = "name = 'lora'\n[model]\nbase = 'BASE'\n[model.lora]\nrank = 4\nalpha = 8\ntargets = ['q_proj', 'v_proj']\n\
                [[stage]]\nname = 's'\ndata = ['data.jsonl']\nsteps = 12\nbatch_size = 4\nlr = 5e-3\n";
    let recipe = folder.write("r.toml", text.replace("BASE", &base.display().to_string()));
    let out = folder.arg("out");
    let run = kiln(&["train", "--recipe", &recipe, "--output", &out])
        .assert()
        .success()
        .get_output()
        .clone();
    let notes = String::from_utf8(run.stderr).unwrap();
    // Two layers, two targets: rank 4 on 16 x 16 projections has 128 values each.
    assert!(notes.contains("512 parameters train"), "{notes}");

    let tensors = |path: &std::path::Path| {
        let folder = kiln_core::checkpoint::Directory::new(path).unwrap();
        kiln_core::checkpoint::Weights::open(&folder, "model").unwrap()
    };
    let (mut before, mut after) = (tensors(&base), tensors(&folder.path("out/model")));
    for name in before.tensors().keys().cloned().collect::<Vec<_>>() {
        let changed = before.read(&name).unwrap() != after.read(&name).unwrap();
        let adapted = name.contains("q_proj") || name.contains("v_proj");
        assert_eq!(changed, adapted, "{name}");
    }
    let wrong = folder.write(
        "w.toml",
        text.replace("BASE", &base.display().to_string()).replace("v_proj", "w_proj"),
    );
    let error =
        failure(&mut kiln(&["--quiet", "train", "--recipe", &wrong, "--output", &folder.arg("w")]));
    assert!(error.contains("w_proj") && error.contains("k_proj"), "{error}");
}
