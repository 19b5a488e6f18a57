//! Runs that are stopped or killed, and go on.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{DATA, PAIRS, losses, metrics, numbers, recipe, weights};
use crate::harness::{Folder, failure, kiln};

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
    let path = out;
    let out = folder.arg("out");
    let error = failure(&mut kiln(&["train", "--recipe", &other, "--output", &out, "--resume"]));
    assert!(error.contains("another recipe"), "{error}");
    let sgd = text.replace("weight_decay = 0.01", "weight_decay = 0.01\noptimizer = 'sgd'");
    let other = folder.write("other.toml", sgd);
    let error = failure(&mut kiln(&["train", "--recipe", &other, "--output", &out, "--resume"]));
    assert!(error.contains("optimizer = \"adamw\", not \"sgd\""), "{error}");

    // Another recipe in the place of this one.
    let shorter = folder.write("shorter.toml", text.replace("steps = 400", "steps = 3"));
    let args = ["train", "--recipe", &shorter, "--output", &out];
    let error = failure(&mut kiln(&args));
    assert!(error.contains("another recipe"), "{error}");
    kiln(&args).arg("--overwrite").assert().success();
    assert_eq!(losses(&path).len(), 3 + 6);
    // What was put aside as damaged is nobody's to remove.
    std::fs::create_dir(folder.path("out/checkpoints/00000009.damaged")).unwrap();
    kiln(&args).arg("--overwrite").assert().success();
    assert!(folder.path("out/checkpoints/00000009.damaged").exists());
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
