//! sentence-transformers loads what we save and computes the same vectors.

use std::process::Command;

use crate::harness::{Folder, TEXTS, embed};

const SCRIPT: &str = r#"
import json, sys
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
texts = json.load(open(sys.argv[2]))
prompt = sys.argv[3] if len(sys.argv) > 3 else None
print(json.dumps(model.encode(texts, prompt_name=prompt).tolist()))
"#;

/// Vectors by sentence-transformers, or `None` after printing why it is skipped.
fn peer(model: &str, folder: &Folder, prompt: &[&str]) -> Option<Vec<Vec<f32>>> {
    let Some(python) = std::env::var_os("KILN_PYTHON") else {
        eprintln!(
            "SKIPPED: KILN_PYTHON is not set; tests/run.sh installs sentence-transformers and sets it"
        );
        return None;
    };
    let texts = folder.write("texts.json", serde_json::to_string(&TEXTS).unwrap());
    let output = Command::new(python)
        .args(["-c", SCRIPT, model, &texts])
        .args(prompt)
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line = String::from_utf8(output.stdout).unwrap();
    Some(serde_json::from_str(line.lines().last().unwrap()).unwrap())
}

fn assert_same(a: &[Vec<f32>], b: &[Vec<f32>], what: &str) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        let worst = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(a.len() == b.len() && worst < 1e-5, "{what}: {worst}");
    }
}

#[test]
fn it_loads_a_model_that_we_made() {
    for mode in ["mean", "last_token", "cls", "weighted_mean"] {
        let folder = Folder::new();
        let model = folder.model(&format!("{{ mode = '{mode}' }}")).display().to_string();
        let Some(theirs) = peer(&model, &folder, &[]) else { return };
        assert_same(&embed(&model, &folder, &[]), &theirs, mode);
        if mode == "mean" {
            // The prompt's tokens are kept out of pooling on both sides.
            let theirs = peer(&model, &folder, &["query"]).unwrap();
            assert_same(&embed(&model, &folder, &["--prompt-name", "query"]), &theirs, "prompt");
        }
    }
}

/// A sentence-transformers model with a dense projection, saved by itself, is read by us.
#[test]
fn we_load_its_dense_projection() {
    const MAKE: &str = r#"
import sys
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
torch.manual_seed(5)
transformer = Transformer(sys.argv[1])
pooling = Pooling(16, pooling_mode="cls")
dense = Dense(16, 6, activation_function=torch.nn.Tanh())
SentenceTransformer(modules=[transformer, pooling, dense, Normalize()], device="cpu").save(sys.argv[2])
"#;
    let Some(python) = std::env::var_os("KILN_PYTHON") else {
        eprintln!(
            "SKIPPED: KILN_PYTHON is not set; tests/run.sh installs sentence-transformers and sets it"
        );
        return;
    };
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }");
    let made = folder.arg("made");
    let output = Command::new(python).args(["-c", MAKE]).arg(model).arg(&made).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let theirs = peer(&made, &folder, &[]).unwrap();
    assert_eq!(theirs[0].len(), 6);
    assert_same(&embed(&made, &folder, &[]), &theirs, "dense");
}

#[test]
fn it_loads_the_real_model_saved_again() {
    let (Some(minilm), true) =
        (std::env::var_os("KILN_MINILM"), std::env::var_os("KILN_PYTHON").is_some())
    else {
        eprintln!("SKIPPED: KILN_MINILM or KILN_PYTHON is not set; tests/run.sh sets them");
        return;
    };
    use kiln_embed::checkpoint::{Directory, Existing, LoadOptions, load, save, write_directory};
    let folder = Folder::new();
    let embedder = load::<train_native::device::Cpu>(
        &Directory::new(&minilm).unwrap(),
        &LoadOptions::default(),
        &Default::default(),
    )
    .unwrap();
    let saved = folder.path("minilm");
    write_directory(&saved, &save(&embedder).unwrap(), Existing::Refuse).unwrap();
    let original = peer(&minilm.to_string_lossy(), &folder, &[]).unwrap();
    let again = peer(&saved.display().to_string(), &folder, &[]).unwrap();
    assert_same(&again, &original, "saved again");
}
