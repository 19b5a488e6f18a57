//! Quantize, prune, distil and export: what is written is what is loaded, and damage is found.

mod damage;
mod distill;
mod prune;
mod quantize;

use std::path::Path;

use kiln_embed::checkpoint::{KilnFile, read_text};
use serde_json::Value;

use crate::harness::{Folder, TEXTS, embed, failure, kiln, stdout};

const MEAN: &str = "{ mode = 'mean' }";

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn least_cosine(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| cosine(a, b)).fold(1.0, f32::min)
}

fn json(command: &mut assert_cmd::Command) -> Value {
    serde_json::from_str(&stdout(command)).unwrap()
}

/// Many texts, for calibration.
fn calibration(folder: &Folder) -> String {
    let lines: Vec<String> =
        (0..40).map(|i| format!("{} and {}", TEXTS[i % 6], TEXTS[(i * 5 + 1) % 6])).collect();
    folder.write("calibration.txt", lines.join("\n"))
}

#[test]
fn what_cannot_be_done_is_said() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let out = folder.arg("out");
    let fails = |args: &[&str]| {
        failure(&mut kiln(&[&["--quiet"], args, &["-m", &model, "-o", &out]].concat()))
    };
    let empty = folder.write("empty.txt", "\n \n");
    let few = folder.write("few.txt", "one\ntwo\n");
    let error = fails(&["quantize", "-s", "int4"]);
    assert!(error.contains("do not divide") && error.contains("int4:8"), "{error}");
    assert!(fails(&["quantize", "-s", "int3"]).contains("int8"));
    assert!(fails(&["quantize", "-s", "int8:8", "--method", "gptq"]).contains("--calibration"));
    for texts in [&empty, &few] {
        let error =
            fails(&["quantize", "-s", "int8:8", "--method", "gptq", "--calibration", texts]);
        assert!(error.contains("at least 8"), "{error}");
    }
    assert!(fails(&["quantize", "-s", "int8:8", "--tensor", "x"]).contains("PATTERN"));
    assert!(fails(&["prune", "--pattern", "2:4"]).contains("--calibration"));
    let texts = calibration(&folder);
    let error = fails(&["prune", "--pattern", "3:5", "--calibration", &texts]);
    assert!(error.contains("3:5 does not divide"), "{error}");
    assert!(!Path::new(&out).exists());

    let quantized = folder.arg("q.kiln");
    kiln(&["quantize", "-m", &model, "-s", "int8:8", "-o", &quantized]).assert().success();
    let error = failure(&mut kiln(&["quantize", "-m", &quantized, "-o", &out]));
    assert!(error.contains("quantized already"), "{error}");
    let error = failure(&mut kiln(&["export", "-m", &quantized, "-w", "int4:8", "-o", &out]));
    assert!(error.contains("exported already, with int8:8 weights"), "{error}");
}

#[test]
fn one_file_has_its_vocabulary_once() {
    let folder = Folder::new();
    let model = folder.model(MEAN);
    let parsed = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
    let tokenizer = model.join("tokenizer.json");
    let legible = serde_json::to_vec_pretty(&parsed(&std::fs::read(&tokenizer).unwrap())).unwrap();
    std::fs::write(&tokenizer, &legible).unwrap();
    std::fs::write(model.join("vocab.txt"), "the\n").unwrap();
    let model = model.display().to_string();
    let (many, file) = (folder.arg("many"), folder.arg("one.kiln"));
    for (command, scheme) in [("quantize", "-s"), ("export", "-w")] {
        for out in [&many, &file] {
            let args = [command, "-m", &model, scheme, "int8:8", "-o", out, "--overwrite"];
            kiln(&args).assert().success();
        }
        let many_has = |name: &str| std::fs::read(Path::new(&many).join(name)).unwrap();
        assert!(many_has("vocab.txt") == b"the\n" && many_has("tokenizer.json") == legible);
        let one = KilnFile::on_disk(Path::new(&file)).unwrap();
        assert!(read_text(&one, "vocab.txt").unwrap().is_none());
        let small = read_text(&one, "tokenizer.json").unwrap().unwrap();
        assert!(small.len() < legible.len() && !small.contains(&b'\n'));
        assert_eq!(parsed(&small), parsed(&legible));
        assert_eq!(embed(&file, &folder, &[]), embed(&many, &folder, &[]));
    }
}
