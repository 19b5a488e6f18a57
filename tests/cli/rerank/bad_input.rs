//! What is no reranker, and rerankers in whose files something is amiss.

use serde_json::{Value, json};

use super::{changed, fixture, parse, reranker};
use crate::cross_encoders::three_scores;
use crate::harness::{Folder, failure, kiln, stdout};

#[test]
fn what_is_no_reranker_and_what_is_no_embedder() {
    let (reranker, ..) = reranker();
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let said = failure(&mut kiln(&["rerank", "-m", &model, "-Q", "x", "-t", "y"]));
    assert!(said.contains("is no reranker"), "{said}");
    let out = folder.arg("out.npy");
    let said = failure(&mut kiln(&[
        "embed",
        "-m",
        &reranker,
        "--input",
        &folder.texts(),
        "--output",
        &out,
    ]));
    assert!(said.contains("kiln rerank"), "{said}");
    // A tokenizer that puts two texts together without a sign between them.
    let copy = folder.path("copy");
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(&reranker).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let path = copy.join("tokenizer.json");
    let mut tokenizer = parse(&std::fs::read_to_string(&path).unwrap());
    tokenizer["post_processor"] = Value::Null;
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let copy = copy.display().to_string();
    let said = failure(&mut kiln(&["rerank", "-m", &copy, "-Q", "x", "-t", "y"]));
    assert!(said.contains("no template for pairs"), "{said}");
    // Adapters, by their folder and by their name.
    let adapter = folder.path("copy/lora");
    std::fs::create_dir(&adapter).unwrap();
    let config = json!({"peft_type": "LORA", "base_model_name_or_path": reranker});
    std::fs::write(adapter.join("adapter_config.json"), config.to_string()).unwrap();
    for name in [adapter.display().to_string(), format!("{copy}#lora")] {
        let said = failure(&mut kiln(&["rerank", "-m", &name, "-Q", "x", "-t", "y"]));
        assert!(said.contains("rerankers take none; merge them"), "{said}");
    }
    let said = failure(&mut kiln(&[
        "rerank",
        "-m",
        &reranker,
        "-Q",
        "x",
        "-t",
        "y",
        "--reranker-instruction",
        "z",
    ]));
    assert!(said.contains("takes no instruction"), "{said}");
}

/// As those have that judge whether one text follows from another.
#[test]
fn a_head_of_several_scores_ranks_nothing() {
    let folder = Folder::new();
    let three = three_scores(&folder).display().to_string();
    let shown = stdout(&mut kiln(&["inspect", "-m", &three]));
    assert!(shown.contains("3 scores of each pair"), "{shown}");
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let (texts, out) = (folder.texts(), folder.arg("out"));
    for args in [
        &["rerank", "-m", &three, "-Q", "x", "-t", "y"][..],
        &["search", "-m", &model, "-Q", "x", "--corpus", &texts, "--reranker", &three],
        &["serve", "--reranker", &three, "--port", "0"],
        &["quantize", "-m", &three, "-o", &out],
        &["export", "-m", &three, "-o", &out],
    ] {
        let said = failure(kiln(args).arg("--quiet"));
        let line = format!(
            "error: {three}: the model gives each pair 3 scores, and a reranker gives one; name"
        );
        assert!(said.starts_with(&line), "{args:?}: {said}");
    }
    assert!(!folder.path("out").exists());
}

#[test]
fn a_reranker_in_whose_files_something_is_amiss() {
    let folder = Folder::new();
    let read = |path: &str| parse(&std::fs::read_to_string(fixture(path)).unwrap());
    let said = |model: &str| failure(&mut kiln(&["rerank", "-m", model, "-Q", "x", "-t", "y"]));
    // An embedder that is a language model, as Qwen3-Embedding is.
    let modules = json!([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    ]);
    let model = changed(&folder, "qwen3", "modules.json", &modules);
    assert!(said(&model).contains("is no reranker: it pools"), "{}", said(&model));
    // Nothing stands before a query but in prompts that have a place for it.
    let prompts = json!({"prompts": {"query": "find: "}, "default_prompt_name": "query"});
    let model = changed(&folder, "bert", "config_sentence_transformers.json", &prompts);
    assert!(said(&model).contains("its default prompt \"find: \""), "{}", said(&model));
    let model = changed(&folder, "qwen3", "config_sentence_transformers.json", &prompts);
    let score = |args: &[&str]| {
        let args = [&["rerank", "--json", "-Q", "x", "-t", "y", "-m"], args].concat();
        parse(&stdout(&mut kiln(&args)))[0]["ranked"][0]["score"].as_f64().unwrap()
    };
    let plain = fixture("rerankers/qwen3").display().to_string();
    assert_eq!(score(&[&model]), score(&[&plain, "--reranker-instruction", "find: "]));
    assert!(score(&[&model]) != score(&[&plain]));
    for (key, value) in [("classifier_pooling", "max"), ("classifier_activation", "mish")] {
        let mut config = read("rerankers/modernbert/config.json");
        config[key] = value.into();
        let model = changed(&folder, "modernbert", "config.json", &config);
        assert!(said(&model).contains(&format!("{key} \"{value}\"")), "{}", said(&model));
        std::fs::remove_dir_all(model).unwrap();
    }
    let mut config = read("rerankers/qwen3/config.json");
    config["tie_word_embeddings"] = false.into();
    let model = changed(&folder, "qwen3", "config.json", &config);
    assert!(said(&model).contains("lacks lm_head.weight"), "{}", said(&model));
    // No room for two texts.
    let args =
        ["rerank", "-m", &fixture("rerankers/bert").display().to_string(), "-Q", "x", "-t", "y"];
    let said = failure(&mut kiln(&[&args[..], &["--max-pair-length", "4"]].concat()));
    assert!(said.contains("no room"), "{said}");
}

#[test]
fn a_reranker_is_not_pruned() {
    let (model, ..) = reranker();
    let folder = Folder::new();
    let (texts, out) = (folder.texts(), folder.arg("out"));
    let args = ["prune", "-m", &model, "--calibration", &texts, "-o", &out];
    let said = failure(&mut kiln(&args));
    assert!(said.contains("rerankers cannot be pruned"), "{said}");
}
