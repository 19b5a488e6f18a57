//! LoRA adapters: PEFT loads what we train, and we load what PEFT makes.

mod bases;
mod interop;
mod selection;
mod vectors;

use std::path::Path;
use std::process::Command;

use kiln_embed::checkpoint::write_safetensors;
use serde_json::json;

use crate::harness::{Folder, TEXTS, kiln, stdout};

/// Mean of the last states over each text, normalised, from a base model with an adapter; makes a
/// random adapter first where none is there.
const SCRIPT: &str = r#"
import json, os, sys
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModel, AutoTokenizer
base, adapter, texts = sys.argv[1:4]
torch.manual_seed(7)
model = AutoModel.from_pretrained(base, dtype=torch.float32)
if not os.path.exists(adapter):
    config = LoraConfig(r=3, lora_alpha=5, use_rslora=True, target_modules=["k_proj", "down_proj"],
                        init_lora_weights=False, task_type="FEATURE_EXTRACTION")
    get_peft_model(model, config).save_pretrained(adapter)
    model = AutoModel.from_pretrained(base, dtype=torch.float32)
plain = model
model = PeftModel.from_pretrained(model, adapter).eval()
missing = [name for name, _ in model.named_parameters() if "lora" in name]
tokenizer = AutoTokenizer.from_pretrained(base)
rows = []
for text in json.load(open(texts)):
    with torch.no_grad():
        states = model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=16)).last_hidden_state
    rows.append(torch.nn.functional.normalize(states[0].mean(0), dim=0).tolist())
print(json.dumps({"vectors": rows, "adapted": len(missing), "r": model.peft_config["default"].r}))
"#;

/// Writes LoRA adapters of the tiny model into a folder, others by another `pitch`; they name `base` as theirs.
pub(crate) fn lora(folder: &Path, base: &str, pitch: f32) {
    lora_with(folder, base, [16, 24], pitch);
}

/// As [`lora`], of a projection of `[outputs, inputs]`.
fn lora_with(folder: &Path, base: &str, [outputs, inputs]: [usize; 2], pitch: f32) {
    let config = json!({
        "peft_type": "LORA", "base_model_name_or_path": base, "r": 2, "lora_alpha": 4, "lora_dropout": 0.0,
    });
    let tensor = |name: &str, shape: [usize; 2]| {
        let name = format!("base_model.model.layers.1.mlp.down_proj.{name}.weight");
        let values = (0..shape[0] * shape[1]).map(|i| (i as f32 * pitch).sin()).collect();
        (name, shape.to_vec(), values)
    };
    let tensors = [tensor("lora_A", [2, inputs]), tensor("lora_B", [outputs, 2])];
    let weights = write_safetensors(&tensors, &[("format", "pt")]).unwrap();
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("adapter_model.safetensors"), weights).unwrap();
}

pub(crate) fn peft(base: &str, adapter: &str, folder: &Folder) -> Option<(Vec<Vec<f32>>, u64)> {
    let Some(python) = std::env::var_os("KILN_PYTHON") else {
        eprintln!("SKIPPED: KILN_PYTHON is not set; tests/run.sh installs peft and sets it");
        return None;
    };
    let texts = folder.write("texts.json", serde_json::to_string(&TEXTS).unwrap());
    let output = Command::new(python)
        .args(["-c", SCRIPT, base, adapter, &texts])
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line = String::from_utf8(output.stdout).unwrap();
    let found: serde_json::Value = serde_json::from_str(line.lines().last().unwrap()).unwrap();
    let vectors = serde_json::from_value(found["vectors"].clone()).unwrap();
    Some((vectors, found["adapted"].as_u64().unwrap()))
}

pub(crate) fn furthest(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!((a.len(), a[0].len()), (b.len(), b[0].len()));
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    pairs.map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

#[test]
fn inspect_shows_an_adapters_base_and_tensors() {
    let folder = Folder::new();
    let base = folder.model("{ mode = 'mean' }");
    lora(&base.join("near"), &base.display().to_string(), 0.3);
    let model = format!("{}#near", base.display());
    let shown: serde_json::Value =
        serde_json::from_str(&stdout(&mut kiln(&["inspect", "--json", "--model", &model])))
            .unwrap();
    assert_eq!(shown["adapter_of"], base.display().to_string());
    assert_eq!(shown["config"]["hidden_size"], 16);
    let tensors = shown["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 2);
    assert!(tensors[0]["name"].as_str().unwrap().ends_with("lora_A.weight"));
    let text = stdout(&mut kiln(&["inspect", "--model", &model]));
    assert!(text.contains(&format!("adapter of   {}", base.display())), "{text}");
}
