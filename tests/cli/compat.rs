//! What an earlier version wrote is read by this one, and means the same: `tests/compat/v*`, each
//! made once by `tests/compat/make.sh`. These files never change.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{Folder, kiln, stdout};

/// Another processor adds in another order; weights and vectors are the same to this cosine.
const SAME: f32 = 0.9999;

/// The folders, one of each generation of formats.
fn generations() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/compat");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    assert!(!found.is_empty());
    found
}

fn at(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

fn vectors(lines: &str) -> Vec<Vec<f32>> {
    let vector = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        serde_json::from_value(line["embedding"].clone()).unwrap()
    };
    lines.lines().map(vector).collect()
}

/// What a model makes of the generation's texts is what it made of them then.
fn gives(model: &str, folder: &Path, expected: &str) {
    let texts = at(folder, "texts.txt");
    let args = ["embed", "--quiet", "--model", model, "--input", &texts, "--output", "-"];
    let actual = vectors(&stdout(&mut kiln(&args)));
    let expected = vectors(&std::fs::read_to_string(folder.join(expected)).unwrap());
    assert_eq!(actual.len(), expected.len(), "{model}");
    for (row, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
        assert_eq!(actual.len(), expected.len(), "{model}");
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let cosine = dot(actual, expected) / (dot(actual, actual) * dot(expected, expected)).sqrt();
        assert!(cosine > SAME, "{model}, row {row}: {cosine}");
    }
}

#[test]
fn models_of_earlier_versions_give_their_vectors() {
    for folder in generations() {
        gives(&at(&folder, "model"), &folder, "vectors.jsonl");
        gives(&at(&folder, "int8.kiln"), &folder, "int8.jsonl");
        gives(&at(&folder, "int4.kiln"), &folder, "int4.jsonl");
    }
}

#[test]
fn vectors_of_earlier_versions_are_searched() {
    let query = "granite walls and a long way up";
    for folder in generations() {
        let model = at(&folder, "model");
        for name in ["vectors.npy", "vectors.jsonl", "vectors.parquet", "vectors.safetensors"] {
            let index = at(&folder, name);
            let args = ["search", "--json", "--model", &model, "--index", &index, "-k", "6"];
            let found = stdout(kiln(&args).args(["--query", query]));
            let found: Value = serde_json::from_str(&found).unwrap();
            let hits = found[0]["hits"].as_array().unwrap();
            assert_eq!(hits.len(), 6, "{name}");
            assert_eq!(hits[0]["row"], 2, "{name}: {found}");
        }
    }
}

#[test]
fn a_run_of_an_earlier_version_goes_on() {
    for folder in generations() {
        let place = Folder::new();
        copy(&folder.join("checkpoint"), &place.path("run"));
        let (recipe, run) = (at(&folder, "recipe.toml"), place.arg("run"));
        let args = ["train", "--json", "--recipe", &recipe, "--output", &run, "--resume"];
        let summary: Value = serde_json::from_str(&stdout(&mut kiln(&args))).unwrap();
        assert_eq!(summary["steps"], 3);
        gives(&place.arg("run/model"), &folder, "resumed.jsonl");
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}
