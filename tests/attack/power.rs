//! Power cuts and kills: what is half-written or damaged is never used in silence.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{Folder, failure, kiln, names};

pub(crate) const DATA: &str = r#"{"query":"where does the river flood","pos":["the river floods the lower streets"],"neg":["granite walls and a long way up"]}
{"query":"who came from a small town","pos":["a violinist from a small town"],"neg":["the ship carried tea and timber"]}
{"query":"what did the ship carry","pos":["the ship carried tea and timber"],"neg":["a violinist from a small town"]}
{"query":"which colour are the petals","pos":["petals of pale blue in wet meadows"],"neg":["granite walls and a long way up"]}
"#;

pub(crate) fn recipe(steps: usize) -> String {
    format!(
        "name = 'tiny'\nseed = 3\n[model]\nmax_length = 24\npooling = {{ mode = 'mean' }}\n\
         [model.new]\nvocab_size = 320\nhidden_size = 32\nintermediate_size = 48\nlayers = 2\nheads = 2\n\
         [[stage]]\nname = 'only'\ndata = ['data.jsonl']\nsteps = {steps}\nbatch_size = 4\nlr = 2e-3\n"
    )
}

/// A run that was killed with two checkpoints behind it, and the folder of the newest.
fn killed(folder: &Folder) -> (String, PathBuf) {
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("recipe.toml", recipe(100_000));
    let out = folder.arg("run");
    let mut child = Command::new(env!("CARGO_BIN_EXE_kiln"))
        .args(["--device", "cpu", "train", "-r", &recipe, "-o", &out, "--checkpoint-every", "5"])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    while !lines.next().expect("training begins").unwrap().contains("parameters train") {}
    std::thread::spawn(move || lines.for_each(drop));
    let checkpoints = folder.path("run/checkpoints");
    let whole = || names(&checkpoints).into_iter().filter(|name| !name.starts_with('.')).count();
    while !checkpoints.is_dir() || whole() < 2 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let newest = names(&checkpoints).into_iter().rfind(|name| !name.starts_with('.')).unwrap();
    (recipe, checkpoints.join(newest))
}

/// Goes on from the checkpoints of a killed run until there are new ones, and says what it wrote to
/// standard error.
fn resumed(folder: &Folder, recipe: &str) -> (Option<i32>, String) {
    let out = folder.arg("run");
    let mut child = Command::new(env!("CARGO_BIN_EXE_kiln"))
        .args(["--device", "cpu", "train", "-r", recipe, "-o", &out, "--resume"])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = String::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        said.push_str(&format!("{line}\n"));
        if line.contains("parameters train") {
            child.kill().unwrap();
        }
    }
    (child.wait().unwrap().code(), said)
}

fn damage(path: &Path, how: &str) {
    let mut bytes = fs::read(path).unwrap();
    match how {
        "flipped" => {
            let middle = bytes.len() / 2;
            bytes[middle..].iter_mut().take(400).for_each(|byte| *byte ^= 0x55);
        }
        "cut" => bytes.truncate(bytes.len() / 2),
        _ => bytes.clear(),
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn damaged_checkpoints_are_not_gone_on_from() {
    let folder = Folder::new();
    let (recipe, newest) = killed(&folder);
    let copy = |from: &Path, to: &Path| {
        let done = Command::new("cp").args(["-r"]).args([from, to]).status().unwrap();
        assert!(done.success());
    };
    copy(&folder.path("run"), &folder.path("kept"));
    // A kill right after it took its place leaves a lock, which says nothing.
    for file in names(&newest).into_iter().filter(|name| name != ".kiln-lock") {
        for how in ["flipped", "cut", "empty"] {
            if file == kiln_embed::checkpoint::SUMS && how == "flipped" {
                continue;
            }
            fs::remove_dir_all(folder.path("run")).unwrap();
            copy(&folder.path("kept"), &folder.path("run"));
            damage(&newest.join(&file), how);
            let (code, said) = resumed(&folder, &recipe);
            // Killed once it trains: it went on, from the one before.
            assert_eq!(code, None, "{file}, {how}: {said}");
            assert!(said.contains("damaged") && said.contains("the one before"), "{said}");
            assert!(!said.contains("panicked"), "{said}");
            assert!(newest.with_extension("damaged").is_dir() && !newest.exists(), "{said}");
        }
    }
    // None is left: an error, and nothing is trained.
    fs::remove_dir_all(folder.path("run")).unwrap();
    copy(&folder.path("kept"), &folder.path("run"));
    for checkpoint in names(&folder.path("run/checkpoints")) {
        let state = folder.path("run/checkpoints").join(checkpoint).join("state.json");
        if state.is_file() {
            damage(&state, "cut");
        }
    }
    let out = folder.arg("run");
    let error = failure(&mut kiln(&["train", "-r", &recipe, "-o", &out, "--resume", "-q"]));
    assert!(error.contains("no checkpoint that is whole"), "{error}");
}

#[test]
fn what_a_killed_process_left_is_swept() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("recipe.toml", recipe(20));
    let (out, checkpoints) = (folder.arg("run"), folder.path("run/checkpoints"));
    // As a kill in the middle of writing leaves it.
    let stale = checkpoints.join(".00000015.kiln-1-0");
    fs::create_dir_all(&stale).unwrap();
    fs::write(stale.join(".kiln-lock"), "").unwrap();
    fs::write(stale.join("parameters.safetensors"), vec![0; 1 << 20]).unwrap();
    let other = checkpoints.join(".00000020.kiln-1-0");
    fs::create_dir_all(&other).unwrap();
    fs::write(other.join(".kiln-lock"), "").unwrap();
    let args = ["train", "-q", "-r", &recipe, "-o", &out, "--checkpoint-every", "5"];
    kiln(&args).assert().success();
    let left = names(&checkpoints);
    assert_eq!(left, ["00000015", "00000020"], "{left:?}");
}

#[test]
fn temporary_files_of_killed_processes_are_swept() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    let make = |name: &str, time| {
        let file = fs::File::create(folder.path(name)).unwrap();
        file.set_modified(time).unwrap();
        file
    };
    drop(make(".kiln-a1B2c3", old));
    drop(make(".kiln-young1", std::time::SystemTime::now()));
    // Not of our making.
    drop(make(".kiln-notes.txt", old));
    let held = make(".kiln-held00", old);
    held.lock().unwrap();
    let (texts, out) = (folder.texts(), folder.arg("out.npy"));
    kiln(&["-q", "embed", "-m", &model, "-i", &texts, "-o", &out]).assert().success();
    let left: Vec<String> = names(folder.path("x").parent().unwrap())
        .into_iter()
        .filter(|name| name.starts_with('.'))
        .collect();
    assert_eq!(left, [".kiln-held00", ".kiln-notes.txt", ".kiln-young1"]);
}
