//! Small copies of named models through the commands that people use them with: each is shown, trained (adapters of
//! all projections), quantized in three ways, pruned, and exported; and copies of two families that none is of.

use kiln_embed::checkpoint::{Existing, write_directory};
use serde_json::Value;

use crate::harness::{Folder, TEXTS, embed, kiln, stdout};
use crate::named::{NamedKind, NamedModel};
use crate::training::{DATA, losses};

fn least_cosine(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    assert_eq!(a.len(), b.len());
    let cosines = a.iter().zip(b).map(|(a, b)| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt());
    cosines.fold(1.0, f32::min)
}

fn trained(name: &str, folder: &Folder, recipe: &str) {
    let recipe = folder.write("r.toml", recipe);
    kiln(&["--quiet", "train", "-r", &recipe, "-o", &folder.arg("out")]).assert().success();
    let losses = losses(&folder.path("out"));
    let half = losses.len() / 2;
    let sum = |part: &[f64]| part.iter().sum::<f64>();
    assert!(sum(&losses[half..]) < sum(&losses[..half]), "{name}: {losses:?}");
}

fn embedder(model: &NamedModel, folder: &Folder) {
    let (name, base) = (&model.model, folder.arg("model"));
    let shown = stdout(&mut kiln(&["--json", "inspect", "-m", &base]));
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert!(shown["parameters"].as_u64().unwrap() > 1000, "{name}: {shown}");
    let full = embed(&base, folder, &[]);

    let is_table = model.kind == NamedKind::Table;
    let lora =
        if is_table { "" } else { "[model.lora]\nrank = 2\nalpha = 8\ntargets = ['all-linear']\n" };
    let recipe = format!(
        "name = 'named'\nseed = 2\n[model]\nbase = '{base}'\n{lora}\
         [[stage]]\nname = 's'\ndata = ['data.jsonl']\nsteps = 12\nbatch_size = 4\nlr = 5e-3\nwarmup = 0\n"
    );
    trained(name, folder, &recipe);
    let after = embed(&folder.arg("out/model"), folder, &[]);
    assert!(after.iter().flatten().all(|value| value.is_finite()), "{name}");
    assert_ne!(after, full, "{name}");

    let lines: Vec<String> =
        (0..40).map(|i| format!("{} and {}", TEXTS[i % 6], TEXTS[(i * 5 + 1) % 6])).collect();
    let texts = folder.write("calibration.txt", lines.join("\n"));
    let gptq = ["--method", "gptq", "--calibration", &texts];
    let mut cosines = Vec::new();
    for (scheme, more, least) in
        [("int8", &[][..], 0.995), ("int4", &[][..], 0.6), ("int4", &gptq[..], 0.6)]
    {
        // A table has no inputs to calibrate with.
        if is_table && !more.is_empty() {
            continue;
        }
        let file = folder.arg("small.kiln");
        // The copies that are named after families alone have rows of 40.
        let scheme = format!("{scheme}{}", if name.contains('/') { "" } else { ":8" });
        kiln(&[
            "--quiet",
            "quantize",
            "-m",
            &base,
            "-s",
            &scheme,
            "-o",
            &folder.arg("small"),
            "--overwrite",
        ])
        .args(more)
        .assert()
        .success();
        kiln(&["--quiet", "export", "-m", &folder.arg("small"), "-o", &file, "--overwrite"])
            .assert()
            .success();
        let vectors = embed(&folder.arg("small"), folder, &[]);
        assert_eq!(embed(&file, folder, &[]), vectors, "{name} {scheme}");
        cosines.push(least_cosine(&full, &vectors));
        assert!(cosines[cosines.len() - 1] > least, "{name} {scheme} {more:?}: {cosines:?}");
    }
    eprintln!("{name}: int8, int4, int4 with GPTQ: {cosines:.4?}");
    if !is_table {
        let args = ["--json", "prune", "-m", &base, "--method", "wanda", "--pattern", "2:4"];
        let out = folder.arg("pruned");
        let said = stdout(kiln(&args).args(["--calibration", &texts, "-o", &out]));
        let said: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(said["sparsity"].as_f64(), Some(0.5), "{name}: {said}");
        assert_ne!(embed(&out, folder, &[]), full, "{name}");
    }
}

fn scores(model: &str, more: &[&str]) -> Vec<f64> {
    let mut command = kiln(&["rerank", "--json", "-m", model, "-Q", "the river"]);
    for text in TEXTS {
        command.args(["-t", text]);
    }
    let answer: Value = serde_json::from_str(&stdout(command.args(more))).unwrap();
    let mut found = vec![0.0; TEXTS.len()];
    for place in answer[0]["ranked"].as_array().unwrap() {
        found[place["row"].as_u64().unwrap() as usize] = place["score"].as_f64().unwrap();
    }
    found
}

fn reranker(model: &NamedModel, folder: &Folder) {
    let (name, base) = (&model.model, folder.arg("reranker"));
    let full = scores(&base, &[]);
    let near = |scores: Vec<f64>, by: f64| {
        for (a, b) in full.iter().zip(&scores) {
            assert!((a - b).abs() < by, "{name}: {full:?} {scores:?}");
        }
    };
    near(scores(&base, &["--reranker-weights", "int8"]), 0.1);
    let (small, file) = (folder.arg("small"), folder.arg("small.kiln"));
    kiln(&["--quiet", "quantize", "-m", &base, "-s", "int8", "-o", &small]).assert().success();
    kiln(&["--quiet", "export", "-m", &small, "-o", &file]).assert().success();
    near(scores(&small, &[]), 0.1);
    assert_eq!(scores(&file, &[]), scores(&small, &[]), "{name}");
    kiln(&["--quiet", "export", "-m", &base, "-o", &file, "--overwrite"]).assert().success();
    near(scores(&file, &[]), if model.is_decoder() { 0.01 } else { 2e-3 });
    let recipe = format!(
        "name = 'named'\nseed = 2\n[model]\nbase = '{base}'\n\
         [[stage]]\nname = 's'\nobjective = 'rerank'\ndata = ['data.jsonl']\nsteps = 12\nbatch_size = 4\nlr = 5e-3\n"
    );
    trained(name, folder, &recipe);
    assert_ne!(scores(&folder.arg("out/model"), &[]), full, "{name}");
}

/// Every `PARTS`th model, so that parts run side by side.
fn part<const PARTS: usize>(first: usize) {
    let families = ["gemma", "xlm-roberta-xl"].map(NamedModel::of_family);
    let models: Vec<NamedModel> = NamedModel::all().into_iter().chain(families).collect();
    for model in models.iter().skip(first).step_by(PARTS) {
        let folder = Folder::new();
        // Of a language model the name says that it ranks.
        let (name, checks) = match model.kind {
            NamedKind::Reranker => ("reranker", reranker as fn(&NamedModel, &Folder)),
            _ => ("model", embedder as fn(&NamedModel, &Folder)),
        };
        write_directory(&folder.path(name), &model.folder(), Existing::Refuse).unwrap();
        folder.write("data.jsonl", DATA);
        checks(model, &folder);
    }
}

#[test]
fn named_models_first_part() {
    part::<4>(0);
}

#[test]
fn named_models_second_part() {
    part::<4>(1);
}

#[test]
fn named_models_third_part() {
    part::<4>(2);
}

#[test]
fn named_models_fourth_part() {
    part::<4>(3);
}
