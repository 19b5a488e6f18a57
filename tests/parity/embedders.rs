//! Whole vectors of EmbeddingGemma 2 against sentence-transformers: its tokenizer, prompts, pooling and projection, in
//! the layout of one model and in that of the release, whose text part is beside towers for images and sound.

use kiln_embed::checkpoint::{
    Directory, Files, LoadOptions, Weights, load, save, write_safetensors,
};
use kiln_embed::config::AttentionMode;
use kiln_embed::embedder::Embedder;
use kiln_embed::kernels::Kernels;
use kiln_embed::pooling::PoolingConfig;
use kiln_tests::fixture;
use serde_json::{Value, json};
use train_native::device::Cpu;

const FOLDER: &str = "embedders/embedding-gemma2";

fn read(file: &str) -> Vec<u8> {
    std::fs::read(fixture(FOLDER).join(file)).unwrap()
}

/// The fixture as the release lays it out: keys under `text_config`, names below `prefix`, tensors of towers, and one
/// more tensor.
fn with_towers(prefix: &str, more: Option<&str>) -> Files {
    let mut files = Files::default();
    for file in [
        "1_Pooling/config.json",
        "config_sentence_transformers.json",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        files.0.insert(file.into(), read(file).into());
    }
    let text: Value = serde_json::from_slice(&read("config.json")).unwrap();
    let config = json!({
        "model_type": "embedding_gemma2", "architectures": ["EmbeddingGemma2Model"], "text_config": text,
        "vision_config": {"model_type": "gemma4_vision"}, "audio_config": null,
    });
    files.0.insert("config.json".into(), config.to_string().into());
    let mut weights = Weights::open(&Directory::new(fixture(FOLDER)).unwrap(), "model").unwrap();
    let names: Vec<String> = weights.tensors().keys().cloned().collect();
    let mut tensors = Vec::new();
    for name in names {
        let shape = weights.tensors()[&name].shape.clone();
        let values = weights.read(&name).unwrap().unwrap();
        tensors.push((format!("{prefix}language_model.{name}"), shape, values));
    }
    for part in [
        "vision_tower.layers.0",
        "audio_tower.norm",
        "embed_vision.embedding_projection",
        "embed_audio.x",
    ] {
        tensors.push((format!("{prefix}{part}.weight"), vec![2], vec![f32::NAN; 2]));
    }
    tensors.extend(more.map(|name| (format!("{prefix}{name}"), vec![1], vec![0.0])));
    let weights = write_safetensors(&tensors, &[("format", "pt")]).unwrap();
    files.0.insert("model.safetensors".into(), weights.into());
    files
}

/// Vectors by the prompts' names.
fn vectors<B: Kernels>(embedder: &Embedder<B>, texts: &[String], prompt: &str) -> Vec<Vec<f32>> {
    match prompt {
        "query" => embedder.embed_query(texts),
        "document" => embedder.embed_document(texts),
        _ => embedder.embed(texts),
    }
    .unwrap()
}

fn embedding_gemma2<B: Kernels>(device: B::Device) {
    let expected: Value = serde_json::from_slice(&read("expected.json")).unwrap();
    let texts: Vec<String> = serde_json::from_value(expected["texts"].clone()).unwrap();
    let options = LoadOptions::default();
    let folder = Directory::new(fixture(FOLDER)).unwrap();
    let plain = load::<B>(&folder, &options, &device).unwrap();
    let saved = save(&plain).unwrap();
    let mut worst = 0.0f32;
    for embedder in [
        plain,
        load::<B>(&saved, &options, &device).unwrap(),
        load::<B>(&with_towers("", None), &options, &device).unwrap(),
        load::<B>(&with_towers("model.", None), &options, &device).unwrap(),
    ] {
        assert_eq!((embedder.model().dimensions(), embedder.model().normalizes()), (40, true));
        for prompt in ["query", "document", "none"] {
            let reference: Vec<Vec<f32>> =
                serde_json::from_value(expected["vectors"][prompt].clone()).unwrap();
            let found = vectors(&embedder, &texts, prompt);
            for ((text, found), reference) in texts.iter().zip(&found).zip(&reference) {
                assert_eq!(found.len(), reference.len());
                for (found, reference) in found.iter().zip(reference) {
                    let far = (found - reference).abs();
                    assert!(far < 1e-5, "{prompt}, {text:?}: {found} {reference}");
                    worst = worst.max(far);
                }
            }
        }
    }
    eprintln!("PARITY {FOLDER}: {worst:.1e}");
}

kiln_tests::on_every_device!(embedding_gemma2);

#[test]
fn an_unknown_tensor_of_the_text_part_is_an_error() {
    let device = Default::default();
    let read = |files: Files| load::<Cpu>(&files, &LoadOptions::default(), &device).map(drop);
    for name in ["language_model.embed_tokens_per_layer.weight", "image_tower.weight"] {
        let error = read(with_towers("", Some(name))).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn what_the_model_cannot_be_is_said() {
    let device = Default::default();
    let folder = Directory::new(fixture(FOLDER)).unwrap();
    let load = |options: LoadOptions| load::<Cpu>(&folder, &options, &device).map(drop);
    let causal = LoadOptions { attention: Some(AttentionMode::Causal), ..Default::default() };
    assert!(load(causal).unwrap_err().to_string().contains("both directions"));
    let head = PoolingConfig::MultiLayerTrainable(Default::default());
    let error = load(LoadOptions { pooling: Some(head), ..Default::default() }).unwrap_err();
    assert!(error.to_string().contains("32 wide and its last states 40"), "{error}");
    let head = PoolingConfig::LastLayerTrainable(Default::default());
    load(LoadOptions { pooling: Some(head), ..Default::default() }).unwrap();
}
