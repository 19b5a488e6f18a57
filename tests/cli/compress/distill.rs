//! Distillation: students that learn from a teacher, and teach in turn.

use std::path::Path;

use serde_json::Value;

use super::{MEAN, calibration};
use crate::harness::{Folder, TEXTS, embed, failure, kiln, stdout};

/// Of all files in a folder.
fn bytes_in(folder: impl AsRef<Path>) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(|entry| match entry.metadata().unwrap() {
            result if result.is_dir() => bytes_in(entry.path()),
            result => result.len(),
        })
        .sum()
}

#[test]
fn students_learn_from_a_teacher() {
    let folder = Folder::new();
    let teacher = folder.model(MEAN).display().to_string();
    let texts = calibration(&folder);
    let losses = |out: &str| -> Vec<f64> {
        let lines = std::fs::read_to_string(Path::new(out).join("metrics.jsonl")).unwrap();
        lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["loss"].as_f64().unwrap())
            .collect()
    };
    let cache = folder.arg("cache");
    let common = [
        "--teacher",
        &teacher,
        "--texts",
        &texts,
        "--steps",
        "40",
        "--batch-size",
        "16",
        "--max-length",
        "16",
    ];
    for (name, more) in [
        ("blocks", &["--keep-blocks", "1", "--lr", "3e-3"][..]),
        ("states", &["--keep-blocks", "0", "--states", "--lr", "3e-3"][..]),
        (
            "new",
            &[
                "--layers",
                "1",
                "--hidden-size",
                "8",
                "--heads",
                "2",
                "--vocab-size",
                "320",
                "--lr",
                "1e-2",
            ][..],
        ),
    ] {
        let out = folder.arg(name);
        kiln(&["distill", "-o", &out])
            .env("XDG_CACHE_HOME", &cache)
            .args(common)
            .args(more)
            .assert()
            .success();
        let losses = losses(&out);
        assert!(losses[39] < 0.7 * losses[0], "{name}: {} to {}", losses[0], losses[39]);
        let vectors = embed(&format!("{out}/model"), &folder, &[]);
        assert_eq!(vectors[0].len(), 16);
    }
    // Few steps embed the texts whose turn comes alone, and learn the same.
    let lines: Vec<String> = (0..12_000).map(|i| format!("{i} {}", TEXTS[i % 6])).collect();
    let many = folder.write("many.txt", lines.join("\n"));
    let learn = |cache: &str, out: &str, steps: &str, batch: &str| {
        let out = folder.arg(out);
        kiln(&["distill", "--teacher", &teacher, "--texts", &many, "--keep-blocks", "1"])
            .env("XDG_CACHE_HOME", cache)
            .args(["--steps", steps, "--batch-size", batch, "--max-length", "16", "-o", &out])
            .assert()
            .success();
        losses(&out)
    };
    let (few, all) = (folder.arg("few"), folder.arg("all"));
    let alone = learn(&few, "few-alone", "2", "4");
    learn(&all, "many", "10", "600");
    assert_eq!(alone, learn(&all, "few-kept", "2", "4"));
    assert!(2 * bytes_in(&few) < bytes_in(&all), "{} {}", bytes_in(&few), bytes_in(&all));
    let error = failure(kiln(&["distill", "-o", &folder.arg("x")]).args(common));
    assert!(error.contains("--keep-blocks"), "{error}");
    let fails = |changes: &str| {
        let recipe = folder.write(
            "bad.toml",
            format!(
                "name = 'd'\n[model]\nbase = '{teacher}'\n[[stage]]\nname = 's'\nobjective = 'distillation'\n\
                 data = ['calibration.txt']\nsteps = 1\nbatch_size = 4\nlr = 1e-3\n{changes}"
            ),
        );
        failure(&mut kiln(&["--quiet", "train", "--recipe", &recipe, "-o", &folder.arg("x")]))
    };
    // A student that is its teacher has nothing to learn, but from texts behind the teacher's prompt.
    let first = |name: &str, prompt: &str| {
        let recipe = folder.write(
            "own.toml",
            format!(
                "name = 'own'\n[model]\nbase = '{teacher}'\n[[stage]]\nname = 's'\nobjective = 'distillation'\n\
                 data = ['calibration.txt']\nsteps = 1\nbatch_size = 4\nlr = 1e-9\n\
                 distillation = {{ teacher = '{teacher}'{prompt} }}"
            ),
        );
        let out = folder.arg(name);
        kiln(&["--quiet", "train", "-r", &recipe, "-o", &out])
            .env("XDG_CACHE_HOME", &cache)
            .assert()
            .success();
        losses(&out)[0]
    };
    assert!(first("own", "") < 1e-5);
    assert!(first("asked", ", query_prompt = 'the harbour at night: '") > 1e-3);
    assert!(first("named", ", query_prompt_name = 'query'") < 1e-5);
    let unknown = format!("distillation = {{ teacher = '{teacher}', query_prompt_name = 'web' }}");
    let error = fails(&unknown);
    assert!(error.contains("query_prompt_name") && error.contains("it has query"), "{error}");
    let mut named = kiln(&["--quiet", "distill", "-o", &folder.arg("x"), "--prompt-name", "web"]);
    let error = failure(named.args(common).args(["--keep-blocks", "1"]));
    assert!(error.contains("query_prompt_name"), "{error}");
    assert!(fails("").contains("names no teacher"));
    assert!(fails("distillation = { teacher = '' }").contains("teacher is empty"));
    let pairs =
        format!("distillation = {{ teacher = '{teacher}', layers = {{ pairs = [[3, 1]] }} }}");
    assert!(fails(&pairs).contains("the student has 2 layers"));
    let contrastive = "objective = 'contrastive'\n";
    let recipe = std::fs::read_to_string(folder.path("bad.toml")).unwrap();
    let recipe = recipe.replace("objective = 'distillation'\n", contrastive);
    let recipe = folder.write("bad.toml", recipe.split("distillation = ").next().unwrap());
    let error =
        failure(&mut kiln(&["--quiet", "train", "--recipe", &recipe, "-o", &folder.arg("x")]));
    assert!(error.contains("texts without positives"), "{error}");
}

#[test]
fn a_student_with_a_projection_teaches_in_turn() {
    let folder = Folder::new();
    let texts = calibration(&folder);
    let distill = |teacher: &str, more: &[&str]| {
        let common = ["distill", "--teacher", teacher, "--texts", &texts, "--steps", "1"];
        stdout(kiln(&common).args(["--batch-size", "2"]).args(more))
    };
    let narrow = ["--layers", "1", "--hidden-size", "8", "--heads", "2", "--vocab-size", "320"];
    let mut teacher = folder.model(MEAN).display().to_string();
    for name in ["first", "second"] {
        distill(&teacher, &[&narrow[..], &["-o", &folder.arg(name)]].concat());
        teacher = folder.arg(&format!("{name}/model"));
        assert_eq!(embed(&teacher, &folder, &[])[0].len(), 16, "{name}");
    }
    // The projection trains, and is counted.
    let dry = distill(&teacher, &["--keep-blocks", "0", "--dry-run", "--json"]);
    let dry: Value = serde_json::from_str(&dry).unwrap();
    let shape = stdout(&mut kiln(&["inspect", "--json", "-m", &teacher]));
    let shape: Value = serde_json::from_str(&shape).unwrap();
    assert_eq!(dry["stages"][0]["trained"], shape["parameters"]);
}
