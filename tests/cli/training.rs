//! Training: quickstart, recipes, LoRA, Ctrl-C, kills and resume, several devices.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

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

/// A run in the background, once its training has begun.
fn begin(args: &[&str]) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kiln"))
        .args(["--device", "cpu", "train"])
        .args(args)
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    while !lines.next().expect("training begins").unwrap().contains("parameters train") {}
    std::thread::spawn(move || lines.for_each(drop));
    child
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
fn ctrl_c_saves_and_resume_gives_the_same_run() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("r.toml", recipe(400));
    let (whole, out) = (folder.path("whole"), folder.path("out"));
    kiln(&["train", "--recipe", &recipe, "--output", &folder.arg("whole")]).assert().success();

    let args = ["--recipe", &recipe, "--output", &folder.arg("out")];
    let mut child = begin(&args);
    std::thread::sleep(Duration::from_millis(400));
    assert!(
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let done = losses(&out).len();
    assert!((1..400).contains(&done), "{done} steps before Ctrl-C");
    assert!(!out.join("model").exists());

    let again = failure(kiln(&["train"]).args(args));
    assert!(again.contains("--resume"), "{again}");
    kiln(&["train"]).args(args).arg("--resume").assert().success();
    assert_eq!(numbers(&out), numbers(&whole));
    assert_eq!(weights(&out), weights(&whole));
    let whole = losses(&whole);
    assert!(whole[399] < 0.5 * whole[0], "{} -> {}", whole[0], whole[399]);

    let text = std::fs::read_to_string(&recipe).unwrap();
    let other = folder.write("other.toml", text.replace("seed = 3", "seed = 4"));
    let out = folder.arg("out");
    let error = failure(&mut kiln(&["train", "--recipe", &other, "--output", &out, "--resume"]));
    assert!(error.contains("another recipe"), "{error}");
    let text = text.replace("weight_decay = 0.01", "weight_decay = 0.01\noptimizer = 'sgd'");
    let other = folder.write("other.toml", text);
    let error = failure(&mut kiln(&["train", "--recipe", &other, "--output", &out, "--resume"]));
    assert!(error.contains("optimizer = \"adamw\", not \"sgd\""), "{error}");
}

#[test]
fn a_killed_run_goes_on_bit_for_bit() {
    goes_on_bit_for_bit("f32");
}

#[test]
fn a_killed_run_in_bf16_goes_on_bit_for_bit() {
    goes_on_bit_for_bit("bf16");
}

fn goes_on_bit_for_bit(precision: &str) {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    folder.write("pairs.csv", PAIRS);
    // Dropout, adapters, a curriculum drawn at random, an evaluation: all that has a state.
    let base = folder.model("{ mode = 'mean' }");
    let text = format!(
        "name = 'killed'\nseed = 5\n[compute]\nprecision = '{precision}'\n[model]\nbase = '{}'\n\
         [model.lora]\nrank = 4\nalpha = 8\ndropout = 0.2\ntargets = ['q_proj', 'v_proj']\n\
         [eval]\nevery = 7\nset = [{{ name = 'pairs', path = 'pairs.csv' }}]\n\
         [[stage]]\nname = 'first'\ndata = ['data.jsonl']\nsteps = 250\nbatch_size = 3\ncurriculum = 'random'\nlr = 3e-3\n\
         [[stage]]\nname = 'second'\ndata = ['data.jsonl']\nsteps = 60\nbatch_size = 2\ncurriculum = 'sampled'\nlr = 1e-3\n\
         keep_optimizer = true\n",
        base.display()
    );
    let recipe = folder.write("r.toml", text);
    let whole = folder.arg("whole");
    kiln(&["train", "--recipe", &recipe, "--output", &whole]).assert().success();

    // A checkpoint after every step, so that most kills fall into writing one.
    let out = folder.arg("out");
    let args = ["--recipe", &recipe, "--output", &out, "--checkpoint-every", "1"];
    let mut killed = 0;
    for pause in [90, 150, 60, 210, 120, 180, 75, 240] {
        // The kill may have come before the first one was whole.
        let whole = std::fs::read_dir(folder.path("out/checkpoints")).is_ok_and(|mut all| {
            all.any(|entry| !entry.unwrap().file_name().to_string_lossy().starts_with('.'))
        });
        let resume = whole.then_some("--resume");
        let mut child = begin(&[&args[..], resume.as_slice()].concat());
        std::thread::sleep(Duration::from_millis(pause));
        child.kill().unwrap();
        killed += usize::from(!child.wait().unwrap().success());
        if folder.path("out/model").exists() {
            break;
        }
    }
    assert!(killed > 2, "{killed} kills");
    let before = losses(&folder.path("out")).len();
    assert!(before > 0);
    if !folder.path("out/model").exists() {
        // What a kill in the middle of a write can leave besides.
        std::fs::create_dir_all(folder.path("out/checkpoints/00099999")).unwrap();
        std::fs::write(folder.path("out/checkpoints/00099999/parameters.safetensors"), b"half")
            .unwrap();
        kiln(&["train"]).args(args).arg("--resume").assert().success();
    }
    assert_eq!(numbers(&folder.path("out")), numbers(&folder.path("whole")));
    assert_eq!(weights(&folder.path("out")), weights(&folder.path("whole")));
    let adapter = |run: &str| {
        std::fs::read(folder.path(run).join("adapter/adapter_model.safetensors")).unwrap()
    };
    assert_eq!(adapter("out"), adapter("whole"));
    // The best model is one of those that were measured, and the summary names it.
    let scores: Vec<f64> = metrics(&folder.path("whole"))
        .iter()
        .filter_map(|line| line["scores"][0][1].as_f64())
        .collect();
    assert_eq!(scores.len(), 250 / 7 + 60 / 7 + 2);
    assert!(folder.path("whole/best/model.safetensors").is_file());
    let card = std::fs::read_to_string(folder.path("whole/best/README.md")).unwrap();
    let best = scores.iter().copied().fold(f64::MIN, f64::max);
    assert!(card.contains(&format!("{best:.4}")), "{best} {card}");
}

/// Negative Matters' way: adapters learn to attend in both directions, are merged, and new ones are trained.
#[test]
fn adapters_of_a_stage_are_merged_before_the_next() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let base = folder.model("{ mode = 'mean' }");
    let text = format!(
        "name = 'merged'\nseed = 5\n[model]\nbase = '{}'\nattention = 'bidirectional'\n\
         [model.lora]\nrank = 4\nalpha = 8\n\
         [[stage]]\nname = 'mntp'\nobjective = 'mntp'\nmntp = {{ mask_token = 'a', tied = true }}\n\
         data = ['data.jsonl']\nsteps = 4\nbatch_size = 3\nlr = 3e-3\n\
         [[stage]]\nname = 'supervised'\nmerge_lora = true\ndata = ['data.jsonl']\nsteps = 5\nbatch_size = 4\n\
         lr = 3e-3\n",
        base.display()
    );
    let recipe = folder.write("r.toml", text);
    let out = folder.arg("out");
    let args = ["train", "-r", &recipe, "-o", &out, "--checkpoint-every", "1", "--keep", "99"];
    kiln(&args).assert().success();
    let (expected, trained) = (numbers(&folder.path("out")), weights(&folder.path("out")));
    assert!(!folder.path("out/adapter").exists(), "adapters that do not belong to the base");
    for line in metrics(&folder.path("out")) {
        assert!(line["grad_norm"].as_f64().unwrap() > 0.0, "new adapters learn too: {line}");
    }
    // From between the stages, and from within the second: the same again, to the bit.
    for last in [4, 6] {
        for step in last + 1..=9 {
            let checkpoint = folder.path(&format!("out/checkpoints/{step:08}"));
            std::fs::remove_dir_all(checkpoint).unwrap();
        }
        kiln(&args).arg("--resume").assert().success();
        assert_eq!(numbers(&folder.path("out")), expected, "from step {last}");
        assert!(weights(&folder.path("out")) == trained, "from step {last}");
    }
    let refused = failure(kiln(&args).args(["--set", "stage.2.keep_optimizer=true"]));
    assert!(refused.contains("merge_lora"), "{refused}");
}

/// The last token's state is what reconstruction writes from, whatever is pooled.
#[test]
fn what_reconstruction_writes_from_is_said() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let base = folder.model("{ mode = 'mean' }").display().to_string();
    let notes = |model: &str, out: &str| {
        let text = format!(
            "name = 'r'\n[model]\nbase = '{base}'\n{model}\n[[stage]]\nname = 's'\ndata = ['data.jsonl']\n\
             objective = 'reconstruction'\nreconstruction = {{ tied = true }}\nsteps = 1\nbatch_size = 2\nlr = 1e-3\n\
             [sources.idle]\npath = 'none.jsonl'\n"
        );
        let recipe = folder.write("r.toml", text);
        let run = kiln(&["train", "-r", &recipe, "-o", &folder.arg(out)]).assert().success();
        String::from_utf8(run.get_output().stderr.clone()).unwrap()
    };
    let (warning, note) = ("reconstruction writes from", "model.pooling is \"mean\"");
    let last = "pooling = { mode = 'last_token' }";
    for (model, out, warned, noted) in [
        ("", "closed", false, true),
        ("add_eos = false", "open", true, true),
        (last, "last", false, false),
    ] {
        let said = notes(model, out);
        assert_eq!(
            (said.contains(warning), said.contains(note)),
            (warned, noted),
            "{model}: {said}"
        );
        assert!(said.contains("sources.idle: no stage"), "{said}");
    }
    // The base's own warning is enough.
    let said = notes(&format!("{last}\nadd_eos = false"), "said");
    assert_eq!(said.matches("add_eos = true").count(), 1, "{said}");
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

    let tensors = |path: &Path| {
        let folder = kiln_embed::checkpoint::Directory::new(path).unwrap();
        kiln_embed::checkpoint::Weights::open(&folder, "model").unwrap()
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

#[test]
fn two_devices_train_as_one() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("r.toml", recipe(20));
    let (one, two) = (folder.arg("one"), folder.arg("two"));
    // Two chunks of texts, one for each device.
    let common = ["train", "--recipe", &recipe, "--set", "compute.chunk=4", "--output"];
    kiln(&[&common[..], &[&one]].concat()).assert().success();
    kiln(&[&common[..], &[&two, "--devices", "cpu,cpu"]].concat()).assert().success();
    let (one, two) = (losses(&folder.path("one")), losses(&folder.path("two")));
    assert_eq!(one.len(), two.len());
    for (step, (a, b)) in one.iter().zip(&two).enumerate() {
        assert!((a - b).abs() < 1e-4 * a.abs().max(1.0), "step {step}: {a} and {b}");
    }
    let mixed = [&["--quiet"], &common[..], &["x", "--devices", "cpu,cuda:0"]].concat();
    let error = failure(&mut kiln(&mixed)).to_lowercase();
    assert!(error.contains("cuda"), "{error}");
}

#[test]
fn two_devices_draw_the_same_adapters() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let base = folder.model("{ mode = 'mean' }");
    let text = format!(
        "name = 'lora'\nseed = 5\n[model]\nbase = '{}'\n[model.lora]\nrank = 4\nalpha = 8\ndropout = 0.2\n\
         targets = ['q_proj', 'v_proj']\n[compute]\nchunk = 4\n\
         [[stage]]\nname = 's'\ndata = ['data.jsonl']\nsteps = 12\nbatch_size = 4\nlr = 5e-3\n",
        base.display()
    );
    let recipe = folder.write("r.toml", text);
    let (one, two) = (folder.arg("one"), folder.arg("two"));
    let common = ["train", "--recipe", &recipe, "--output"];
    kiln(&[&common[..], &[&one]].concat()).assert().success();
    kiln(&[&common[..], &[&two, "--devices", "cpu,cpu"]].concat()).assert().success();
    let (one, two) = (losses(&folder.path("one")), losses(&folder.path("two")));
    assert_eq!(one.len(), two.len());
    for (step, (a, b)) in one.iter().zip(&two).enumerate() {
        assert!((a - b).abs() < 1e-3 * a.abs().max(1.0), "step {step}: {a} and {b}");
    }
}

#[test]
fn a_resumed_run_refuses_other_data() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("r.toml", recipe(4));
    let out = folder.arg("out");
    let args = ["--quiet", "train", "--recipe", &recipe, "--output", &out];
    let every = ["--checkpoint-every", "1", "--keep", "99"];
    kiln(&args).args(every).assert().success();
    let expected = numbers(&folder.path("out"));
    for step in 4..=10 {
        let checkpoint = folder.path(&format!("out/checkpoints/{step:08}"));
        std::fs::remove_dir_all(checkpoint).unwrap();
    }
    let fewer: String = DATA.lines().take(3).map(|line| format!("{line}\n")).collect();
    for (data, how) in
        [(fewer, "4 examples, now 3"), (DATA.replace("granite", "marble"), "other texts")]
    {
        folder.write("data.jsonl", data);
        let error = failure(kiln(&args).arg("--resume"));
        assert!(error.contains("data: ") && error.contains("--output"), "{error}");
        assert!(error.contains(how), "{error}");
    }
    folder.write("data.jsonl", DATA);
    kiln(&args).arg("--resume").assert().success();
    assert_eq!(numbers(&folder.path("out")), expected);
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

/// The first steps on every device that is there, against those on the CPU.
#[test]
fn every_device_takes_the_same_steps() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let base = folder.model("{ mode = 'mean' }");
    let recipe = folder.write(
        "r.toml",
        format!(
            "name = 'steps'\n[model]\nbase = '{}'\n[[stage]]\nname = 's'\ndata = ['data.jsonl']\n\
             steps = 2\nbatch_size = 4\nlr = 1e-3\nweight_decay = 0.01\n",
            base.display()
        ),
    );
    // Loss and norm of each step.
    let steps = |device: &str, settings: &[&str]| -> Option<Vec<(f64, f64)>> {
        let name = format!("{device} {}", settings.join(" "));
        let out = folder.arg(&name);
        let mut command = crate::harness::kiln_on(device, &["--quiet", "train", "-r", &recipe]);
        for &setting in settings {
            command.args(["--set", setting]);
        }
        let run = command.args(["--output", &out]).output().unwrap();
        let error = String::from_utf8(run.stderr).unwrap();
        if ["no CUDA", "no Vulkan"].iter().any(|none| error.contains(none)) {
            eprintln!("SKIPPED on {device}: {}", error.lines().last().unwrap_or_default());
            return None;
        }
        assert!(run.status.success(), "{name}: {error}");
        let number = |line: &Value, name: &str| line[name].as_f64().unwrap();
        let lines = metrics(&folder.path(&name));
        Some(lines.iter().map(|line| (number(line, "loss"), number(line, "grad_norm"))).collect())
    };
    let expected = steps("cpu", &[]).unwrap();
    let near = |what: &str, actual: &[(f64, f64)], expected: &[(f64, f64)], allowed: [f64; 3]| {
        let far = |actual: f64, expected: f64| (actual / expected - 1.0).abs();
        let first = [far(actual[0].0, expected[0].0), far(actual[0].1, expected[0].1)];
        let all = [first[0], first[1], far(actual[1].0, expected[1].0)];
        let passed = all.iter().zip(allowed).all(|(far, allowed)| *far < allowed);
        assert!(passed, "{what}: {actual:?}, not {expected:?}: {all:?}");
    };
    let blocks = "compute.checkpoint_blocks=true";
    let lora = "model.lora={ rank = 2, alpha = 4.0, dropout = 0.0, targets = ['all-linear'] }";
    for device in ["vulkan", "cuda"] {
        let Some(actual) = steps(device, &[]) else { continue };
        near(device, &actual, &expected, [1e-4, 1e-3, 1e-2]);
        println!("{device} and CPU: loss {} and {} after a step", actual[1].0, expected[1].0);
        let again = steps(device, &[blocks]).unwrap();
        near("blocks computed again", &again, &expected, [1e-4, 1e-3, 1e-2]);
        // What an adapter begins with is drawn on the device, and changes no vector yet.
        let adapted = steps(device, &[lora]).unwrap();
        near(lora, &adapted, &expected, [1e-4, f64::INFINITY, f64::INFINITY]);
        let both = steps(device, &[lora, blocks]).unwrap();
        near("adapters, and blocks computed again", &both, &adapted, [1e-3, 2e-3, 1e-2]);
        // Not every driver of Vulkan has numbers of this kind.
        if device == "cuda" {
            let rounded = steps(device, &[blocks, "compute.precision='bf16'"]).unwrap();
            near("in bf16", &rounded, &expected, [0.03, 0.1, 0.1]);
        }
    }
}

/// What writes is the base's own language-model head, unless its config.json or the recipe ties it to the embeddings.
#[test]
fn a_pretrained_head_is_what_writes() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let base = folder.model("{ mode = 'last_token' }");
    let (config, weights) = (base.join("config.json"), base.join("model.safetensors"));
    let mut settings: Value =
        serde_json::from_str(&std::fs::read_to_string(&config).unwrap()).unwrap();
    let size = |name: &str| settings[name].as_u64().unwrap() as usize;
    let [vocab, width] = ["vocab_size", "hidden_size"].map(size);

    // The same weights with a head of zeros, which finds all tokens alike: a loss of ln(vocab).
    let without = std::fs::read(&weights).unwrap();
    let end = 8 + u64::from_le_bytes(without[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&without[8..end]).unwrap();
    let (begin, bytes) = (without.len() - end, 4 * vocab * width);
    header["lm_head.weight"] = serde_json::json!({
        "dtype": "F32", "shape": [vocab, width], "data_offsets": [begin, begin + bytes]
    });
    let mut header = header.to_string();
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    let length = (header.len() as u64).to_le_bytes();
    let zeros = vec![0; bytes];
    let with = [&length[..], header.as_bytes(), &without[end..], &zeros[..]].concat();

    let mut loss = |file: &[u8], config_ties: bool, objective: &str, of_stage: &str| {
        std::fs::write(&weights, file).unwrap();
        settings["tie_word_embeddings"] = config_ties.into();
        std::fs::write(&config, settings.to_string()).unwrap();
        let recipe = format!(
            "name = 'tiny'\n[model]\nbase = '{}'\nmax_length = 24\n[[stage]]\nname = 'first'\ndata = ['data.jsonl']\n\
             objective = '{objective}'\nsteps = 1\nbatch_size = 4\nlr = 1e-9\n{of_stage}\n",
            base.display()
        );
        let out = folder.path("out");
        if out.exists() {
            std::fs::remove_dir_all(&out).unwrap();
        }
        let recipe = folder.write("head.toml", recipe);
        stdout(&mut kiln(&["--quiet", "train", "-r", &recipe, "-o", &folder.arg("out")]));
        metrics(&out)[0]["loss"].as_f64().unwrap()
    };
    for (objective, more) in
        [("reconstruction", "alpha = 0.5"), ("mntp", "mask = 1.0, mask_token = 'a'")]
    {
        let stage = |tied: &str| format!("{objective} = {{ {tied}{more} }}");
        let [unsaid, tied, own] = ["", "tied = true, ", "tied = false, "].map(stage);
        let by_embeddings = loss(&without, true, objective, &unsaid);
        let by_head = (vocab as f64).ln();
        assert!((by_embeddings - by_head).abs() > 1e-4, "{objective}: {by_embeddings} {by_head}");
        for (file, config_ties, of_stage, expected) in [
            (&with, false, &unsaid, by_head),
            (&with, false, &own, by_head),
            (&with, false, &tied, by_embeddings),
            (&with, true, &unsaid, by_embeddings),
            // A copy of the embeddings, which trains.
            (&without, true, &own, by_embeddings),
            (&without, false, &own, by_embeddings),
        ] {
            let actual = loss(file, config_ties, objective, of_stage);
            let what = format!("{objective}: config {config_ties}, {of_stage}");
            assert!((actual - expected).abs() < 1e-5, "{what}: {actual} {expected}");
        }
    }
}
