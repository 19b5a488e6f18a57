//! Pruning: weights that are zero, and stay so when the model is trained again.

use kiln_embed::checkpoint::{Directory, Weights};

use super::{MEAN, calibration, json};
use crate::harness::{Folder, kiln};
use crate::training::DATA;

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
