//! Decoders that rank: what tells them from embedders, and what they are in fewer bits.

use kiln_embed::checkpoint::{Directory, Weights};
use serde_json::json;

use super::{changed, fixture, parse};
use crate::harness::{Folder, TEXTS, embed, failure, kiln, stdout};

/// Qwen3-Reranker's configuration is that of a language model, and its name or model card alone say that it ranks.
#[test]
fn a_language_model_that_ranks_is_taken_for_no_embedder() {
    let folder = Folder::new();
    let card = "---\nlicense: apache-2.0\npipeline_tag: text-ranking\n---\n\n# A model\n";
    let plain = fixture("rerankers/qwen3");
    let models = [("Qwen3-Reranker-0.6B", None), ("model", Some(card))].map(|(name, card)| {
        let copy = folder.path(name);
        std::fs::create_dir(&copy).unwrap();
        for entry in std::fs::read_dir(&plain).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
        if let Some(card) = card {
            std::fs::write(copy.join("README.md"), card).unwrap();
        }
        copy.display().to_string()
    });
    let (texts, out) = (folder.texts(), folder.arg("out"));
    let vectors = folder.arg("out.npy");
    let notes = |model: &str| {
        let mut command = kiln(&["rerank", "-m", model, "-Q", "x", "-t", "y"]);
        String::from_utf8(command.assert().success().get_output().stderr.clone()).unwrap()
    };
    for model in &models {
        let args = ["embed", "-m", model, "--input", &texts, "--output", &vectors];
        let said = failure(&mut kiln(&args));
        let parts =
            ["is a reranker by its name or model card", "kiln rerank", "--pooling last_token"];
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        assert_eq!(embed(model, &folder, &["--pooling", "last_token"]).len(), TEXTS.len());
        let shown = stdout(&mut kiln(&["inspect", "-m", model]));
        assert!(shown.contains("a score of each pair"), "{shown}");
        // What is exported is a reranker by its files, whatever its name.
        kiln(&["export", "-m", model, "-o", &out]).assert().success();
        assert!(!notes(&out).contains("warning"), "{}", notes(&out));
        let args = ["embed", "-m", &out, "--input", &texts, "--output", &vectors];
        let said = failure(&mut kiln(&args));
        assert!(said.contains("is a reranker (LogitScore)"), "{said}");
        std::fs::remove_dir_all(&out).unwrap();
        let args = ["export", "-m", model, "-o", &out, "--pooling", "last_token"];
        kiln(&args).assert().success();
        std::fs::remove_dir_all(&out).unwrap();
        assert!(!notes(model).contains("warning"), "{}", notes(model));
    }
    let plain = plain.display().to_string();
    assert!(notes(&plain).contains("nothing in its files says that it ranks"), "{}", notes(&plain));
    // Its text is no setting of the card.
    std::fs::write(folder.path("model").join("README.md"), "# A\npipeline_tag: text-ranking\n")
        .unwrap();
    assert!(!embed(&models[1], &folder, &[]).is_empty());
}

/// A decoder that ranks is rounded like a cross-encoder, and is one file, with its prompt and its direction in f32.
#[test]
fn a_decoder_that_ranks_is_quantized_and_exported() {
    for name in ["qwen3", "qwen3-chat", "qwen3-one-token", "gemma"] {
        let folder = Folder::new();
        let base = folder.path("a-reranker");
        std::fs::create_dir_all(base.join("1_LogitScore")).unwrap();
        for part in ["qwen3", name] {
            for path in ["", "1_LogitScore"] {
                let Ok(files) = std::fs::read_dir(fixture("rerankers").join(part).join(path))
                else {
                    continue;
                };
                for file in files.map(Result::unwrap).filter(|file| file.path().is_file()) {
                    std::fs::copy(file.path(), base.join(path).join(file.file_name())).unwrap();
                }
            }
        }
        let base = base.display().to_string();
        let scores = |model: &str, more: &[&str]| -> Vec<f64> {
            let mut command = kiln(&["rerank", "--json", "-m", model, "-Q", "the river"]);
            TEXTS.iter().for_each(|text| {
                command.args(["-t", *text]);
            });
            let answer = parse(&stdout(command.args(more)));
            let mut found = vec![0.0; TEXTS.len()];
            for place in answer[0]["ranked"].as_array().unwrap() {
                found[place["row"].as_u64().unwrap() as usize] = place["score"].as_f64().unwrap();
            }
            found
        };
        let apart =
            |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        let full = scores(&base, &[]);
        // Logits, or what a sigmoid makes of them.
        let (rough, fine) = if name == "qwen3-one-token" { (1.0, 0.1) } else { (0.3, 0.03) };
        let (small, file) = (folder.arg("small"), folder.arg("small.kiln"));
        for (scheme, most) in [("int8:8", rough), ("int4:8", f64::MAX)] {
            let args = ["--json", "quantize", "-m", &base, "-s", scheme, "-o", &small];
            let said = parse(&stdout(kiln(&args).arg("--overwrite")));
            assert!(said["most_apart"].as_f64().unwrap() > 0.0, "{said}");
            kiln(&["--quiet", "export", "-m", &small, "-o", &file, "--overwrite"])
                .assert()
                .success();
            let rounded = scores(&small, &[]);
            assert_eq!(scores(&file, &[]), rounded, "{name} {scheme}");
            assert!(rounded != full && apart(&rounded, &full) < most, "{rounded:?} {full:?}");
            // Rounded as they are loaded, weights are those of the file.
            let loaded = scores(&base, &["--reranker-weights", scheme]);
            assert!(apart(&loaded, &rounded) < 1e-5, "{name} {scheme}: {loaded:?} {rounded:?}");
            let opened = Directory::new(&small).unwrap();
            let weights = Weights::open(&opened, "1_LogitScore/model").unwrap();
            assert_eq!(format!("{:?}", weights.tensors()["score.weight"].dtype), "F32");
        }
        let said = failure(&mut kiln(&["quantize", "-m", &small, "-o", &folder.arg("again")]));
        assert!(said.contains("is quantized already"), "{said}");
        let shown = stdout(&mut kiln(&["inspect", "-m", &file]));
        assert!(shown.contains("a score of each pair") && shown.contains("int4:8"), "{shown}");
        // In f16, with another instruction where the prompt takes one.
        kiln(&["--quiet", "export", "-m", &base, "-o", &file, "--overwrite"]).assert().success();
        assert!(apart(&scores(&file, &[]), &full) < fine, "{name}");
        let instruction = ["--reranker-instruction", "Find what is asked for"];
        if name == "qwen3-one-token" {
            let args = ["rerank", "-m", &file, "-Q", "x", "-t", "y"];
            let said = failure(&mut kiln(&[&args[..], &instruction].concat()));
            assert!(said.contains("takes no instruction"), "{said}");
        } else {
            let instructed = scores(&base, &instruction);
            assert!(instructed != full);
            assert!(apart(&scores(&file, &instruction), &instructed) < fine, "{name}");
        }
    }
}

#[test]
fn a_decoder_with_a_head_for_classes_neither_ranks_nor_embeds() {
    let folder = Folder::new();
    let text = std::fs::read_to_string(fixture("rerankers/qwen3/config.json")).unwrap();
    let mut config = parse(&text);
    config["architectures"] = json!(["Qwen3ForSequenceClassification"]);
    let model = changed(&folder, "qwen3", "config.json", &config);
    let what =
        "is a decoder with a head for sequence classification (Qwen3ForSequenceClassification)";
    let said = failure(&mut kiln(&["rerank", "-m", &model, "-Q", "x", "-t", "y"]));
    assert!(said.contains(what), "{said}");
    let (texts, out) = (folder.texts(), folder.arg("out.npy"));
    let args = ["embed", "-m", &model, "--input", &texts, "--output", &out];
    let said = failure(&mut kiln(&args));
    assert!(said.contains(what) && !said.contains("use `kiln rerank`"), "{said}");
}
