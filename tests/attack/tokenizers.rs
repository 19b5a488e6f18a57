//! Tokenizers of strangers, and texts that are made to be tokenized for ever.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Folder, embed, failure, kiln};

/// Changes a model's `tokenizer.json`.
fn change(model: &Path, change: impl FnOnce(&mut Value)) {
    let path = model.join("tokenizer.json");
    let mut file: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut file);
    fs::write(&path, file.to_string()).unwrap();
    // The list of what was written would name the change.
    fs::remove_file(model.join(kiln_embed::checkpoint::SUMS)).unwrap();
}

#[test]
fn megabytes_of_text_cost_what_is_kept_of_them() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let line = "the river floods the lower streets of a small town ".repeat(160_000);
    assert!(line.len() > 7_900_000);
    let texts = folder.write("long.txt", format!("{line}\n{}\n", &line[..2000]));
    let out = folder.arg("out.jsonl");
    let binary = env!("CARGO_BIN_EXE_kiln");
    // Tokenizing all of it takes some gigabytes.
    let command = format!(
        "ulimit -v 2500000; exec {binary} --device cpu -q embed -m {model} -i {texts} -o {out}"
    );
    assert_cmd::Command::new("sh").args(["-c", &command]).assert().success();
    let lines = fs::read_to_string(&out).unwrap();
    let vector = |line: &str| serde_json::from_str::<Value>(line).unwrap()["embedding"].clone();
    let vectors: Vec<Value> = lines.lines().map(vector).collect();
    assert_eq!(vectors[0], vectors[1]);

    for endless in ["x".repeat(8_000_000), " ".repeat(8_000_000)] {
        let texts = folder.write("endless.txt", endless + "\n");
        let error = failure(&mut kiln(&["-q", "embed", "-m", &model, "-i", &texts, "-o", &out]));
        assert!(error.contains("first 262144 bytes"), "{error}");
    }
}

#[test]
fn tokens_around_a_text_are_the_models_too() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }");
    let before = embed(&model.display().to_string(), &folder, &[]);
    assert_eq!(before.len(), 6);
    change(&model, |file| {
        file["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<x>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<x>": {"id": "<x>", "ids": [4_000_000], "tokens": ["<x>"]}}
        });
    });
    let texts = folder.texts();
    let out = folder.arg("out.npy");
    let model = model.display().to_string();
    let error = failure(&mut kiln(&["-q", "embed", "-m", &model, "-i", &texts, "-o", &out]));
    assert!(error.contains("tokenizer.json") && error.contains("4000000"), "{error}");
}

#[test]
fn tokenizers_that_ask_for_endless_work_are_refused() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 5] = [
        ("look-around", |file| {
            file["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": "(a+)+(?!b)"},
                "behavior": "Isolated", "invert": false});
        }),
        ("times as long", |file| {
            let replace =
                json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(50)});
            file["normalizer"] = json!({"type": "Sequence", "normalizers": vec![replace; 12]});
        }),
        ("added tokens", |file| {
            let token = |id: usize| {
                json!({"id": 300 + id, "content": format!("<{id}>"), "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false, "special": true})
            };
            file["added_tokens"] = (0..200_000).map(token).collect();
        }),
        ("letters", |file| {
            file["model"]["type"] = "WordPiece".into();
            file["model"]["max_input_chars_per_word"] = 1_000_000.into();
        }),
        ("tokenizer.json", |file| file["model"] = json!({"type": "WordPiece"})),
    ];
    for (expected, how) in cases {
        let folder = Folder::new();
        let model = folder.model("{ mode = 'mean' }");
        change(&model, how);
        let model = model.display().to_string();
        let error = failure(&mut kiln(&["-q", "similarity", "-m", &model, "a river", "a ship"]));
        assert!(
            error.contains("tokenizer.json") && error.contains(expected),
            "{expected}: {error}"
        );
    }
}
