//! EmbeddingGemma 2 as a user has it: shown, quantized, pruned, exported, made shorter, and trained with adapters that
//! PEFT reads, from a folder that sentence-transformers wrote.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::adapters::{furthest, peft};
use crate::harness::{Folder, TEXTS, embed, failure, kiln, stdout};
use crate::training::DATA;

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// The fixture, which reads 16 tokens of a text as other tiny models do.
fn model(folder: &Folder) -> String {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/embedders");
    let model: PathBuf = folder.path("gemma");
    copy(&fixture.join("embedding-gemma2"), &model);
    let limit = json!({"max_seq_length": 16});
    std::fs::write(model.join("sentence_bert_config.json"), limit.to_string()).unwrap();
    model.display().to_string()
}

fn least_cosine(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    let cosine = |(a, b): (&Vec<f32>, &Vec<f32>)| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(cosine).fold(1.0, f32::min)
}

#[test]
fn it_is_shown_and_compressed() {
    let folder = Folder::new();
    let model = model(&folder);
    let full = embed(&model, &folder, &[]);
    assert_eq!(full[0].len(), 40);

    let shown = stdout(&mut kiln(&["inspect", "-m", &model]));
    for part in ["embedding_gemma2_text", "heads of 16 (1 for", "inputs 12 wide", "projected to 40"]
    {
        assert!(shown.contains(part), "{shown}");
    }
    let shown: Value =
        serde_json::from_str(&stdout(&mut kiln(&["--json", "inspect", "-m", &model]))).unwrap();
    assert_eq!(shown["dimensions"], 40);

    let lines: Vec<String> =
        (0..40).map(|i| format!("{} and {}", TEXTS[i % 6], TEXTS[(i * 5 + 1) % 6])).collect();
    let texts = folder.write("calibration.txt", lines.join("\n"));
    let gptq = ["--method", "gptq", "--calibration", &texts];
    let out = folder.arg("small");
    for (scheme, more, least) in
        [("int8:4", &[][..], 0.999), ("int4:4", &[][..], 0.9), ("int4:4", &gptq[..], 0.9)]
    {
        let args = ["quantize", "-m", &model, "-s", scheme, "-o", &out, "--overwrite"];
        kiln(&args).args(more).assert().success();
        let cosine = least_cosine(&full, &embed(&out, &folder, &[]));
        assert!(cosine > least && cosine < 0.999_999, "{scheme} {more:?}: {cosine}");
    }
    // Rounded as the model loads, its own files stay.
    let rounded = embed(&model, &folder, &["--weights", "int8:8"]);
    assert!(least_cosine(&full, &rounded) > 0.999);
    let file = folder.arg("gemma.kiln");
    kiln(&["export", "-m", &model, "-o", &file, "--weights", "f32"]).assert().success();
    assert!(furthest(&full, &embed(&file, &folder, &[])) < 1e-6);

    let pruned = folder.arg("pruned");
    let args = ["--json", "prune", "-m", &model, "--method", "wanda", "--pattern", "2:4"];
    let mut prune = kiln(&args);
    let said = stdout(prune.args(["--calibration", &texts, "-o", &pruned]));
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["sparsity"].as_f64(), Some(0.5), "{said}");
    assert!(least_cosine(&full, &embed(&pruned, &folder, &[])) < 0.999);
}

#[test]
fn a_student_has_fewer_blocks_and_the_last_sees_the_whole_text() {
    let folder = Folder::new();
    let model = model(&folder);
    let texts = folder.write("many.txt", (TEXTS.join("\n") + "\n").repeat(4));
    let out = folder.arg("student");
    let distill = |blocks: &str| {
        let mut command =
            kiln(&["--quiet", "distill", "--teacher", &model, "--texts", &texts, "-o", &out]);
        command.env("XDG_CACHE_HOME", folder.arg("cache")).args(["--keep-blocks", blocks]);
        command.args(["--steps", "3", "--batch-size", "8", "--max-length", "16", "--states"]);
        command
    };
    let error = failure(&mut distill("3,0"));
    assert!(error.contains("has to see the whole text"), "{error}");
    distill("0,3").assert().success();
    assert_eq!(embed(&format!("{out}/model"), &folder, &[])[0].len(), 40);
}

#[test]
fn peft_reads_what_it_learned() {
    let folder = Folder::new();
    let model = model(&folder);
    folder.write("data.jsonl", DATA);
    let recipe = |more: &str, objective: &str| {
        folder.write(
            "r.toml",
            format!(
                "name = 'gemma'\n[model]\nbase = '{model}'\n{more}[[stage]]\nname = 's'\n{objective}\
                 data = ['data.jsonl']\nsteps = 10\nbatch_size = 4\nlr = 3e-3\n"
            ),
        )
    };
    let writes = recipe("", "objective = 'mntp'\n");
    let out = folder.arg("out");
    let error = failure(&mut kiln(&["--quiet", "train", "--recipe", &writes, "--output", &out]));
    assert!(error.contains("projects its last states to 40"), "{error}");

    let all = recipe("[model.lora]\nrank = 2\nalpha = 4\ntargets = ['all-linear']\n", "");
    kiln(&["train", "--recipe", &all, "--output", &out]).assert().success();
    let (adapter, trained) = (folder.arg("out/adapter"), folder.arg("out/model"));
    let (loaded, merged) = (embed(&adapter, &folder, &[]), embed(&trained, &folder, &[]));
    assert!(furthest(&loaded, &merged) < 1e-5);
    assert!(furthest(&embed(&model, &folder, &[]), &merged) > 1e-3, "training changed nothing");

    // A and B for nine projections of four layers, and for the two that all layers share.
    let Some((theirs, adapted)) = peft(&model, &adapter, &folder) else { return };
    assert_eq!(adapted, 2 * (4 * 9 + 2));
    assert!(furthest(&loaded, &theirs) < 1e-5, "{}", furthest(&loaded, &theirs));
    // What was saved is transformers' to read, and an adapter of it ours.
    let other = folder.arg("theirs");
    let Some((theirs, _)) = peft(&trained, &other, &folder) else { return };
    let ours = embed(&other, &folder, &[]);
    assert!(furthest(&ours, &theirs) < 1e-5, "{}", furthest(&ours, &theirs));
}
