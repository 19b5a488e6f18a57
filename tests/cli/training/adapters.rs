//! LoRA: adapters that are trained, merged and saved.

use std::path::Path;

use super::{DATA, losses, metrics, numbers, weights};
use crate::harness::{Folder, embed, failure, kiln};

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

/// Adapters beside a base in int4 (QLoRA): they learn, a run goes on to the bit, and they are merged into weights that are
/// made floating point for it.
#[test]
fn adapters_learn_beside_packed_weights() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let full = folder.model("{ mode = 'mean' }").display().to_string();
    let few = folder.arg("few");
    kiln(&["quantize", "-m", &full, "--scheme", "int4:8", "-o", &few]).assert().success();
    let recipe = |base: &str, frozen: &str| {
        let text = format!(
            "name = 'packed'\nseed = 5\n[model]\nbase = '{base}'\n{frozen}\n\
             [model.lora]\nrank = 4\nalpha = 8\ndropout = 0.0\n\
             [[stage]]\nname = 's'\ndata = ['data.jsonl']\nsteps = 8\nbatch_size = 4\nlr = 1e-2\n\
             loss = {{ temperature = 1.0 }}\n"
        );
        folder.write("r.toml", text)
    };
    let train = |base: &str, frozen: &str, out: &str, more: &[&str]| {
        let (recipe, output) = (recipe(base, frozen), folder.arg(out));
        let args =
            ["train", "-r", &recipe, "-o", &output, "--checkpoint-every", "1", "--keep", "9"];
        kiln(&args).args(more).assert().success();
        losses(&folder.path(out))
    };
    let packed = "frozen_weights = 'int4:8'";
    let of_packed = train(&few, packed, "out", &[]);
    assert!(of_packed[7] < of_packed[0], "{of_packed:?}");
    let (expected, trained) = (numbers(&folder.path("out")), weights(&folder.path("out")));
    for step in 4..=8 {
        std::fs::remove_dir_all(folder.path(&format!("out/checkpoints/{step:08}"))).unwrap();
    }
    train(&few, packed, "out", &["--resume"]);
    assert_eq!(numbers(&folder.path("out")), expected);
    assert!(weights(&folder.path("out")) == trained);

    // The CPU rounds what packed weights meet to eight bits. Fresh adapters change nothing.
    let near = |other: &[f64]| (other[0] - of_packed[0]).abs() < 0.02 * of_packed[0];
    let whole = train(&few, "", "whole", &[]);
    assert!(near(&whole), "{whole:?} {of_packed:?}");
    // A base in floating point is rounded as it is loaded.
    let rounded = train(&full, packed, "rounded", &[]);
    assert!(near(&rounded), "{rounded:?} {of_packed:?}");

    // The model is the base in floating point with the adapters merged.
    let merged = embed(&folder.arg("out/model"), &folder, &[]);
    let adapted = embed(&folder.arg("out/adapter"), &folder, &[]);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    for (a, b) in merged.iter().zip(&adapted) {
        let cosine = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
        assert!(cosine > 0.9999, "{cosine}");
    }

    let recipe = recipe(&few, packed);
    for (change, part) in [
        ("model.train=['token_embedding']", "model.train names \"token_embedding\""),
        ("stage.1.full=true", "full = true"),
        ("stage.1.objective='mntp'", "writes tokens"),
    ] {
        let out = folder.arg("refused");
        let args = ["--quiet", "train", "-r", &recipe, "-o", &out, "--set", change];
        let refused = failure(&mut kiln(&args));
        assert!(refused.contains(part), "{change}: {refused}");
    }
}
