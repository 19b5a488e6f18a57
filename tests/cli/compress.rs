//! Quantize, prune, distil and export: what is written is what is loaded, and damage is found.

use std::path::Path;

use kiln_embed::checkpoint::{Directory, Weights};
use serde_json::Value;

use crate::harness::{Folder, TEXTS, embed, failure, kiln, kiln_on, names, stdout};
use crate::training::DATA;

const MEAN: &str = "{ mode = 'mean' }";

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn least_cosine(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| cosine(a, b)).fold(1.0, f32::min)
}

fn json(command: &mut assert_cmd::Command) -> Value {
    serde_json::from_str(&stdout(command)).unwrap()
}

/// Many texts, for calibration.
fn calibration(folder: &Folder) -> String {
    let lines: Vec<String> =
        (0..40).map(|i| format!("{} and {}", TEXTS[i % 6], TEXTS[(i * 5 + 1) % 6])).collect();
    folder.write("calibration.txt", lines.join("\n"))
}

#[test]
fn weights_that_are_no_numbers_are_refused() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let (texts, out) = (folder.texts(), folder.arg("v.jsonl"));
    let with = |weights: &str| {
        kiln(&["embed", "-m", &model, "-i", &texts, "-o", &out, "--weights", weights])
    };
    for wrong in ["int3", "q8", "int8:6", ""] {
        let error = failure(&mut with(wrong));
        assert!(error.contains("int8") && error.contains("f32"), "{error}");
    }
    // Rows of 16 and 24 take smaller blocks than they are asked for.
    with("int8:128").assert().success();
}

/// Two runs write the same bytes.
#[test]
fn quantizing_twice_gives_the_same_files() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let outs = ["a", "b"].map(|name| folder.arg(name));
    for out in &outs {
        kiln(&["quantize", "-m", &model, "-s", "int4:8", "-o", out]).assert().success();
    }
    for name in names(Path::new(&outs[0])) {
        if !name.starts_with("1_") {
            let [a, b] =
                outs.each_ref().map(|out| std::fs::read(Path::new(out).join(&name)).unwrap());
            assert_eq!(a, b, "{name}");
        }
    }
}

#[test]
fn every_scheme_gives_nearly_the_same_vectors() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let full = embed(&model, &folder, &[]);
    let texts = calibration(&folder);
    let gptq = ["--method", "gptq", "--calibration", &texts, "--act-order"];
    for (scheme, more, least) in [
        ("int8:8", &[][..], 0.9999),
        ("int8:channel", &[][..], 0.9995),
        ("int4:8", &[][..], 0.99),
        ("int4:8", &gptq[..], 0.99),
        ("fp8-e4m3", &[][..], 0.999),
        ("fp8-e5m2:8", &[][..], 0.995),
        ("f16", &[][..], 0.999999),
        ("bf16", &[][..], 0.999),
    ] {
        let out = folder.arg("quantized");
        let said = json(
            kiln(&["--json", "quantize", "-m", &model, "-s", scheme, "-o", &out, "--overwrite"])
                .args(more),
        );
        let vectors = embed(&out, &folder, &[]);
        let actual = least_cosine(&full, &vectors);
        assert!(actual > least, "{scheme}: {actual}");
        if scheme != "f16" && more.is_empty() {
            // Rounded as they are loaded, weights are those of the file; bf16 leaves tables as they are.
            let loaded = embed(&model, &folder, &["--weights", scheme]);
            let alike = least_cosine(&loaded, &vectors);
            assert!(loaded == vectors || scheme == "bf16" && alike > least, "{scheme}: {alike}");
        }
        // Without the rounding of activations they are no further from the full ones.
        let floating = embed(&out, &folder, &["--weights", "f32"]);
        assert!(least_cosine(&full, &floating) > least, "{scheme}");
        // What the command says of itself is about other texts, and near.
        assert!(said["cosine"].as_f64().unwrap() > f64::from(least) - 0.01, "{said}");
        let kept =
            said["matrix_bytes"].as_f64().unwrap() / said["matrix_bytes_f32"].as_f64().unwrap();
        let most = match scheme {
            "f16" | "bf16" => 0.5,
            "int4:8" => 0.1876,
            _ => 0.3126,
        };
        assert!(kept <= most, "{scheme}: {kept}");
        // One file is the same model, and makes the same folder again.
        let (file, again) = (folder.arg("m.kiln"), folder.arg("again"));
        kiln(&["export", "-m", &out, "-o", &file, "--overwrite"]).assert().success();
        assert_eq!(embed(&file, &folder, &[]), vectors, "{scheme}");
        kiln(&["export", "-m", &file, "-o", &again, "--overwrite"]).assert().success();
        for name in names(Path::new(&out)) {
            if !name.starts_with("1_") {
                let read = |folder: &str| std::fs::read(Path::new(folder).join(&name)).unwrap();
                assert_eq!(read(&out), read(&again), "{name}");
            }
        }
    }
}

#[test]
fn tensors_are_kept_as_rules_and_budgets_say() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let out = folder.arg("q.kiln");
    let stored = |args: &[&str]| -> Vec<(String, String)> {
        let said = json(
            kiln(&["--json", "quantize", "-m", &model, "-s", "int4:8", "-o", &out, "--overwrite"])
                .args(args),
        );
        let lines = said["tensors"].as_array().unwrap();
        let text = |line: &Value, key: &str| line[key].as_str().unwrap().to_string();
        lines.iter().map(|line| (text(line, "tensor"), text(line, "storage"))).collect()
    };
    let lines = stored(&["--tensor", "embed_tokens*=int8:4", "--tensor", "*.0.mlp.*=f16"]);
    assert_eq!(lines.len(), 15, "{lines:?}");
    for (tensor, storage) in lines {
        let expected = match tensor.as_str() {
            "embed_tokens.weight" => "int8:4",
            name if name.contains(".0.mlp.") => "f16",
            _ => "int4:8",
        };
        assert_eq!(storage, expected, "{tensor}");
    }
    // A budget that nothing meets asks for 16 bits everywhere; blocks of 32 do not fit.
    assert!(stored(&["--error-budget", "1e-9"]).iter().all(|(_, storage)| storage == "f16"));
    // Mixed bits inside one block are computed with all the same.
    kiln(&[
        "quantize",
        "-m",
        &model,
        "-s",
        "int4:8",
        "--tensor",
        "*q_proj*=int8:8",
        "-o",
        &out,
        "--overwrite",
    ])
    .assert()
    .success();
    assert!(least_cosine(&embed(&model, &folder, &[]), &embed(&out, &folder, &[])) > 0.99);
}

#[test]
fn damage_is_found_before_a_vector_is_made() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let (out, file) = (folder.arg("q"), folder.arg("q.kiln"));
    kiln(&["quantize", "-m", &model, "-s", "int8:8", "-o", &out]).assert().success();
    kiln(&["export", "-m", &out, "-o", &file]).assert().success();
    let whole = std::fs::read(&file).unwrap();
    let fails = |model: &str| failure(&mut kiln(&["similarity", "-m", model, "a", "b"]));

    // One bit of the file's every part.
    for i in (0..whole.len()).step_by(whole.len() / 23) {
        let mut changed = whole.clone();
        changed[i] ^= 4;
        std::fs::write(&file, &changed).unwrap();
        let output = kiln(&["similarity", "-m", &file, "a", "b"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // Only a bit in the space between two files may go unnoticed.
        let between = output.status.success() && whole[i] == 0;
        assert!(between || said.starts_with("error: "), "byte {i}: {said}");
    }
    std::fs::write(&file, &whole[..whole.len() - 9]).unwrap();
    let error = fails(&file);
    assert!(error.contains("q.kiln") && error.contains("cut short"), "{error}");
    std::fs::write(&file, b"not a model at all, but long enough to have a header of its own....")
        .unwrap();
    assert!(fails(&file).contains("is no .kiln file"));

    let weights = Path::new(&out).join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let last = bytes.len() - 20;
    bytes[last] ^= 1;
    std::fs::write(&weights, &bytes).unwrap();
    let error = fails(&out);
    assert!(error.contains("model.safetensors") && error.contains("SHA-256"), "{error}");
    std::fs::remove_file(&weights).unwrap();
    assert!(fails(&out).contains("model.safetensors"));
}

#[test]
fn a_model_that_computes_wrongly_is_refused() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let out = folder.arg("q");
    kiln(&["quantize", "-m", &model, "-s", "int8:8", "-o", &out]).assert().success();
    let path = Path::new(&out).join("kiln.json");
    let manifest: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let change = |change: &dyn Fn(&mut Value)| {
        let mut changed = manifest.clone();
        change(&mut changed);
        std::fs::write(&path, serde_json::to_vec(&changed).unwrap()).unwrap();
        failure(&mut kiln(&["similarity", "-m", &out, "a", "b"]))
    };
    let error = change(&|m| m["self_test"]["vectors"][1].as_array_mut().unwrap().reverse());
    assert!(
        error.contains("fails the test that it carries") && error.contains("cosine"),
        "{error}"
    );
    let error = change(&|m| {
        m["self_test"]["texts"] = Value::Array(vec![]);
        m["self_test"]["vectors"] = Value::Array(vec![]);
    });
    assert!(error.contains("self_test makes no sense"), "{error}");
    let error = change(&|m| {
        let sum = m["files"]["config.json"].clone();
        m["files"]["../config.json"] = sum;
    });
    assert!(error.contains("outside the model"), "{error}");
    let error = change(&|m| m["format"] = 2.into());
    assert!(error.contains("kiln.json") && error.contains("format 2"), "{error}");
    let error = change(&|m| drop(m.as_object_mut().unwrap().remove("self_test")));
    assert!(error.contains("kiln.json") && error.contains("self_test"), "{error}");
    std::fs::write(&path, serde_json::to_vec(&manifest).unwrap()).unwrap();
    // Another head gives other vectors, which the test does not speak of.
    kiln(&["similarity", "-m", &out, "--pooling", "cls", "a", "b"]).assert().success();
}

#[test]
fn what_cannot_be_done_is_said() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let out = folder.arg("out");
    let fails = |args: &[&str]| {
        failure(&mut kiln(&[&["--quiet"], args, &["-m", &model, "-o", &out]].concat()))
    };
    let empty = folder.write("empty.txt", "\n \n");
    let few = folder.write("few.txt", "one\ntwo\n");
    let error = fails(&["quantize", "-s", "int4"]);
    assert!(error.contains("do not divide") && error.contains("int4:8"), "{error}");
    assert!(fails(&["quantize", "-s", "int3"]).contains("int8"));
    assert!(fails(&["quantize", "-s", "int8:8", "--method", "gptq"]).contains("--calibration"));
    for texts in [&empty, &few] {
        let error =
            fails(&["quantize", "-s", "int8:8", "--method", "gptq", "--calibration", texts]);
        assert!(error.contains("at least 8"), "{error}");
    }
    assert!(fails(&["quantize", "-s", "int8:8", "--tensor", "x"]).contains("PATTERN"));
    assert!(fails(&["prune", "--pattern", "2:4"]).contains("--calibration"));
    let texts = calibration(&folder);
    let error = fails(&["prune", "--pattern", "3:5", "--calibration", &texts]);
    assert!(error.contains("3:5 does not divide"), "{error}");
    assert!(!Path::new(&out).exists());

    let quantized = folder.arg("q.kiln");
    kiln(&["quantize", "-m", &model, "-s", "int8:8", "-o", &quantized]).assert().success();
    let error = failure(&mut kiln(&["quantize", "-m", &quantized, "-o", &out]));
    assert!(error.contains("quantized already"), "{error}");
    let error = failure(&mut kiln(&["export", "-m", &quantized, "-w", "int4:8", "-o", &out]));
    assert!(error.contains("exported already, with int8:8 weights"), "{error}");
}

#[test]
fn zeros_of_a_pruned_model_stay() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let model = folder.model(MEAN).display().to_string();
    let (texts, pruned) = (calibration(&folder), folder.arg("pruned"));
    for method in ["magnitude", "wanda", "sparsegpt"] {
        let args = ["--json", "prune", "-m", &model, "--method", method, "--pattern", "2:4"];
        let said = json(kiln(&args).args(["--calibration", &texts, "-o", &pruned, "--overwrite"]));
        assert_eq!(said["sparsity"].as_f64(), Some(0.5), "{said}");
        assert!(said["output_error"].as_f64().unwrap() < 0.6, "{said}");
    }
    let projections = |model: &str| -> Vec<(String, Vec<f32>)> {
        let mut weights = Weights::open(&Directory::new(model).unwrap(), "model").unwrap();
        let names: Vec<String> =
            weights.tensors().keys().filter(|name| name.contains("_proj")).cloned().collect();
        names
            .into_iter()
            .map(|name| (name.clone(), weights.read(&name).unwrap().unwrap()))
            .collect()
    };
    let before = projections(&pruned);
    for (_, weights) in &before {
        assert!(weights.chunks(4).all(|four| four.iter().filter(|w| **w == 0.0).count() >= 2));
    }
    for lora in ["", "[model.lora]\nrank = 2\nalpha = 8\ntargets = ['all-linear']\n"] {
        let recipe = folder.write(
            "r.toml",
            format!(
                "name = 'retrain'\n[model]\nbase = '{pruned}'\nkeep_zeros = true\n{lora}\
                 [[stage]]\nname = 's'\ndata = ['data.jsonl']\nsteps = 8\nbatch_size = 4\nlr = 1e-2\nweight_decay = 0.1\n"
            ),
        );
        let out = folder.arg(if lora.is_empty() { "full" } else { "lora" });
        kiln(&["train", "--recipe", &recipe, "-o", &out]).assert().success();
        let after = projections(&format!("{out}/model"));
        let mut moved = 0.0f32;
        for ((name, before), (_, after)) in before.iter().zip(&after) {
            for (before, after) in before.iter().zip(after) {
                assert!(*before != 0.0 || *after == 0.0, "{name}: a zero became {after}");
                moved = moved.max((before - after).abs());
            }
        }
        assert!(moved > 1e-3, "training changed nothing");
    }
}

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

#[test]
fn a_quantized_model_is_the_same_on_vulkan() {
    let folder = Folder::new();
    let listed = stdout(kiln_on("auto", &["--json", "devices"]).arg("--quiet"));
    if !listed.contains("vulkan:0") {
        eprintln!("SKIPPED: no Vulkan adapter; tests/run.sh installs a software one");
        return;
    }
    let model = folder.model(MEAN).display().to_string();
    for scheme in ["int8:8", "int4:8", "fp8-e4m3"] {
        let out = folder.arg("q.kiln");
        kiln(&["quantize", "-m", &model, "-s", scheme, "-o", &out, "--overwrite"])
            .assert()
            .success();
        let cpu = embed(&out, &folder, &[]);
        let texts = folder.texts();
        let vectors = folder.arg("vulkan.jsonl");
        kiln_on("vulkan", &["embed", "--model", &out, "--input", &texts, "--output", &vectors])
            .assert()
            .success();
        let lines = std::fs::read_to_string(&vectors).unwrap();
        let vulkan: Vec<Vec<f32>> = lines
            .lines()
            .map(|line| {
                let line: Value = serde_json::from_str(line).unwrap();
                serde_json::from_value(line["embedding"].clone()).unwrap()
            })
            .collect();
        let actual = least_cosine(&cpu, &vulkan);
        assert!(actual > 0.999, "{scheme}: {actual}");
    }
}
