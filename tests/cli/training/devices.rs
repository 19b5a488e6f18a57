//! Several devices that train as one, and each alone beside the CPU.

use serde_json::Value;

use super::{DATA, losses, metrics, recipe};
use crate::harness::{Folder, failure, kiln};

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
