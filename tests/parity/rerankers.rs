//! Scores of cross-encoders of every family against sentence-transformers (and, for decoders, against the
//! recipes of their model cards): pairs of one and of two token types, texts that are cut, empty texts.

mod chat_templates;
mod saving;
mod training;

use kiln_embed::checkpoint::{
    Directory, Files, LoadOptions, Weights, read_text, write_safetensors,
};
use kiln_embed::kernels::Kernels;
use kiln_embed::reranker::{Reranker, ScoreActivation};
use kiln_tests::fixture;
use serde_json::Value;

fn reranker<B: Kernels>(name: &str, device: &B::Device) {
    let folder = fixture(&format!("rerankers/{name}"));
    let reranker = Reranker::<B>::load_with(
        &Directory::new(folder.clone()).unwrap(),
        &LoadOptions::default(),
        device,
    )
    .unwrap();
    assert_eq!(reranker.activation(), ScoreActivation::Sigmoid);
    let reranker = reranker.with_activation(ScoreActivation::Identity);
    let read = |path| std::fs::read(path).unwrap();
    let pairs: Vec<(String, String)> =
        serde_json::from_slice(&read(fixture("rerankers/pairs.json"))).unwrap();
    let expected: Vec<f32> = serde_json::from_slice(&read(folder.join("scores.json"))).unwrap();
    let scores = reranker.scores(&pairs).unwrap();
    assert_eq!(scores.len(), expected.len());
    let mut worst = 0.0f32;
    for (pair, (score, expected)) in pairs.iter().zip(scores.iter().zip(&expected)) {
        let error = (score - expected).abs() / expected.abs().max(1.0);
        assert!(
            error < kiln_tests::allowed::<B>(device, 1e-4),
            "{name} {pair:?}: {score} {expected}"
        );
        worst = worst.max(error);
    }
    let (query, _) = &pairs[0];
    let texts: Vec<&str> = pairs.iter().map(|(_, text)| text.as_str()).collect();
    let ranked = reranker.rank(query, &texts).unwrap();
    assert!(ranked.windows(2).all(|pair| pair[0].score >= pair[1].score));
    assert_eq!(ranked.len(), texts.len());
    eprintln!("PARITY reranker {name}: {worst:.1e} over {} pairs", pairs.len());
}

const ENCODERS: [&str; 10] = [
    "bert",
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "distilbert",
    "mpnet",
    "modernbert",
    "nomic-bert",
    "gte",
];

/// As Qwen3-Reranker and bge-reranker-v2-gemma are released.
const DECODERS: [&str; 2] = ["qwen3", "gemma"];

fn encoders<B: Kernels>(device: B::Device) {
    for name in ENCODERS {
        reranker::<B>(name, &device);
    }
}

fn decoders<B: Kernels>(device: B::Device) {
    for name in DECODERS {
        reranker::<B>(name, &device);
    }
}

fn pairs() -> Vec<(String, String)> {
    serde_json::from_slice(&std::fs::read(fixture("rerankers/pairs.json")).unwrap()).unwrap()
}

/// Qwen3's files with a language-model head of its own.
fn untied() -> Files {
    let mut files = decoder_files("qwen3");
    let mut weights = Weights::open(&files, "model").unwrap();
    let names: Vec<String> = weights.tensors().keys().cloned().collect();
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    for name in names {
        let shape = weights.tensors()[&name].shape.clone();
        let values = weights.read(&name).unwrap().unwrap();
        if name.ends_with("embed_tokens.weight") {
            let other = values.iter().rev().map(|value| 0.5 * value).collect();
            tensors.push(("lm_head.weight".into(), shape.clone(), other));
        }
        tensors.push((name, shape, values));
    }
    let bytes = write_safetensors(&tensors, &[("format", "pt")]).unwrap();
    files.0.insert("model.safetensors".into(), bytes.into());
    change(&mut files, "config.json", |config| config["tie_word_embeddings"] = false.into());
    files
}

/// A reranker's files without the tensors that an encoder lacks.
fn encoder(name: &str, lacks: &[&str], class: &str) -> Files {
    let folder = Directory::new(fixture(&format!("rerankers/{name}"))).unwrap();
    let mut files = Files::default();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        files.0.insert(file.into(), read_text(&folder, file).unwrap().unwrap().into());
    }
    let mut config: Value = serde_json::from_slice(&files.0["config.json"]).unwrap();
    config["architectures"] = serde_json::json!([class]);
    files.0.insert("config.json".into(), config.to_string().into());
    let mut weights = Weights::open(&folder, "model").unwrap();
    let kept: Vec<String> = weights.tensors().keys().cloned().collect();
    let tensors: Vec<(String, Vec<usize>, Vec<f32>)> = kept
        .into_iter()
        .filter(|tensor| !lacks.iter().any(|start| tensor.starts_with(start)))
        .map(|tensor| {
            let shape = weights.tensors()[&tensor].shape.clone();
            let values = weights.read(&tensor).unwrap().unwrap();
            (tensor, shape, values)
        })
        .collect();
    let bytes = write_safetensors(&tensors, &[("format", "pt")]).unwrap();
    files.0.insert("model.safetensors".into(), bytes.into());
    files
}

/// A decoder that ranks by a chat template, with the weights and the tokenizer of `qwen3`.
fn chat(name: &str) -> Files {
    let own = ["chat_template.jinja", "sentence_bert_config.json", "modules.json"];
    let own =
        own.into_iter().chain(["config_sentence_transformers.json", "1_LogitScore/config.json"]);
    let mut files = decoder_files("qwen3");
    files.0.extend(some_files(name, &own.collect::<Vec<_>>()).0);
    files
}

/// Those of a decoder as it is released.
fn decoder_files(name: &str) -> Files {
    let paths = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    some_files(name, &paths)
}

fn some_files(name: &str, paths: &[&str]) -> Files {
    let folder = fixture(&format!("rerankers/{name}"));
    let mut files = Files::default();
    for path in paths {
        files.0.insert(path.to_string(), std::fs::read(folder.join(path)).unwrap().into());
    }
    files
}

fn change(files: &mut Files, file: &str, change: impl Fn(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&files.0[file]).unwrap();
    change(&mut value);
    files.0.insert(file.into(), value.to_string().into());
}

kiln_tests::on_every_device!(encoders, decoders);
