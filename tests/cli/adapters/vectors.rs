//! Adapters of vectors, as a page teaches them, on the model that they were taught on and on others.

use std::process::Command;

use kiln_embed::checkpoint::{AdapterBase, FileSum, save_vector_adapter};
use kiln_embed::index::VectorAdapter;

use super::furthest;
use crate::harness::{Folder, embed, kiln};

/// An adapter of vectors, as a page teaches one, is a module of sentence-transformers, and a model by its base.
#[test]
fn an_adapter_of_vectors_is_read_with_its_base() {
    let folder = Folder::new();
    let base = folder.model("{ mode = 'mean' }").display().to_string();
    let plain = embed(&base, &folder, &[]);
    let width = plain[0].len();
    let shear = |i: usize| match (i % width).wrapping_sub(i / width) {
        0 => 1.0,
        1 => 0.5,
        _ => 0.0,
    };
    let adapter = VectorAdapter::new(width, (0..width * width).map(shear).collect()).unwrap();
    let of = AdapterBase { name: Some(base.clone()), fingerprint: None };
    std::fs::create_dir(folder.path("adapter")).unwrap();
    for (name, bytes) in save_vector_adapter(&adapter, &of).unwrap().0 {
        folder.write(&format!("adapter/{name}"), bytes);
    }
    let expected: Vec<Vec<f32>> =
        plain.iter().map(|vector| adapter.apply(vector, "it").unwrap()).collect();
    assert!(furthest(&plain, &expected) > 1e-2);
    let loaded = embed(&folder.arg("adapter"), &folder, &[]);
    assert!(furthest(&loaded, &expected) < 1e-5);
    let whole = folder.arg("whole");
    kiln(&["export", "--model", &folder.arg("adapter"), "--output", &whole, "--weights", "f32"])
        .assert()
        .success();
    assert!(furthest(&embed(&whole, &folder, &[]), &expected) < 1e-5);

    let Some(python) = std::env::var_os("KILN_PYTHON") else {
        eprintln!("SKIPPED: KILN_PYTHON is not set; tests/run.sh sets it");
        return;
    };
    let vectors = folder.write("vectors.json", serde_json::to_string(&plain).unwrap());
    let script = "import json, sys, torch\n\
                  from sentence_transformers.models import Dense\n\
                  vectors = torch.tensor(json.load(open(sys.argv[2])))\n\
                  moved = Dense.load(sys.argv[1])({'sentence_embedding': vectors})['sentence_embedding']\n\
                  print(json.dumps((moved / moved.norm(dim=1, keepdim=True)).tolist()))\n";
    let output = Command::new(python)
        .args(["-c", script, &folder.arg("adapter"), &vectors])
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line = String::from_utf8(output.stdout).unwrap();
    let theirs: Vec<Vec<f32>> = serde_json::from_str(line.lines().last().unwrap()).unwrap();
    assert!(furthest(&theirs, &expected) < 1e-5);
}

/// A page keeps the sum of its model with what it teaches.
#[test]
fn an_adapter_of_vectors_on_another_model_is_noted() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let base = folder.arg("exported");
    kiln(&["export", "-m", &model, "-o", &base, "--weights", "f32"]).assert().success();
    std::fs::create_dir(folder.path("adapter")).unwrap();
    let said = |base: &str, sum: String| {
        let of = AdapterBase { name: Some(base.into()), fingerprint: Some(sum) };
        for (name, bytes) in save_vector_adapter(&VectorAdapter::identity(16), &of).unwrap().0 {
            folder.write(&format!("adapter/{name}"), bytes);
        }
        let mut command = kiln(&["similarity", "-m", &folder.arg("adapter"), "a", "b"]);
        let output = command.assert().success().get_output().clone();
        String::from_utf8(output.stderr).unwrap()
    };
    let manifest = std::fs::read(folder.path("exported/kiln.json")).unwrap();
    let own = FileSum::of(&manifest).sha256;
    assert!(!said(&base, own.clone()).contains("warning"));
    let other = said(&base, "ab".repeat(32));
    assert!(other.contains("warning") && other.contains("taught on another model"), "{other}");
    // Which weights a folder without a sum has is not known.
    assert!(!said(&model, own).contains("warning"));
}
