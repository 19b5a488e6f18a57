//! Files that were damaged or changed, which are found before a vector is made.

use std::path::Path;

use serde_json::Value;

use super::MEAN;
use crate::harness::{Folder, failure, kiln};

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
