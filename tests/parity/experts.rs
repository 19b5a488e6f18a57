//! Files of models with experts: names, shapes, and what is refused by name.

use kiln_embed::checkpoint::{
    Directory, Files, Weights, load_adapters, load_backbone, save, save_adapters,
};
use kiln_embed::config::ModelConfig;
use kiln_embed::embedder::{Embedder, EmbeddingModel};
use kiln_embed::model::{Backbone, LoraConfig};
use kiln_embed::pooling::{Pooling, PoolingConfig};
use kiln_embed::reranker::reranker_shape;
use kiln_embed::tokenizer::PaddingSide;
use kiln_tests::fixture;
use safetensors::tensor::Dtype;
use train_native::device::Cpu;

use crate::batches::tokenizer;
use crate::checkpoints::{Tensors, encode, read};

const FAMILY: &str = "families/nomic-bert-moe";

fn config() -> ModelConfig {
    ModelConfig::from_json(&std::fs::read(fixture(FAMILY).join("config.json")).unwrap()).unwrap()
}

fn tensors() -> Tensors {
    read(&Directory::new(fixture(FAMILY)).unwrap(), "model")
}

fn loaded(tensors: &Tensors) -> kiln_embed::Result<Backbone<Cpu>> {
    loaded_from(tensors, Dtype::F32)
}

fn loaded_from(tensors: &Tensors, dtype: Dtype) -> kiln_embed::Result<Backbone<Cpu>> {
    let bytes = encode(tensors, dtype);
    let files = Files([("model.safetensors".to_string(), bytes.into())].into());
    load_backbone(&config(), &mut Weights::open(&files, "model").unwrap(), &Default::default())
}

fn saved(backbone: Backbone<Cpu>) -> Files {
    let (config, device) = (config(), Default::default());
    let pooling = Pooling::new(&PoolingConfig::Mean, &config, &device);
    let model = EmbeddingModel::new(backbone, pooling, &config);
    let embedder = Embedder::new(model, tokenizer(PaddingSide::Right, 32), &device).unwrap();
    save(&embedder).unwrap()
}

#[test]
fn they_are_written_as_they_were_released() {
    let files = saved(loaded(&tensors()).unwrap());
    assert_eq!(read(&files, "model"), tensors());
    assert_eq!(ModelConfig::from_json(&files.0["config.json"]).unwrap(), config());
    let value: serde_json::Value = serde_json::from_slice(&files.0["config.json"]).unwrap();
    assert!(value["auto_map"]["AutoModel"].as_str().unwrap().starts_with("nomic-ai/"));
    let error = reranker_shape(&config(), &value).unwrap_err().to_string();
    assert!(error.contains("nomic-embed-text-v2-moe"), "{error}");
    // In numbers of half as many bytes each expert begins elsewhere.
    let mut halves = tensors();
    for (_, values) in halves.values_mut() {
        values.iter_mut().for_each(|value| *value = half::f16::from_f32(*value).to_f32());
    }
    let files = saved(loaded_from(&halves, Dtype::F16).unwrap());
    assert_eq!(read(&files, "model"), halves);
}

#[test]
fn tensors_that_do_not_fit_are_named_as_the_file_names_them() {
    let (w1, w2) = ("encoder.layers.1.mlp.experts.mlp.w1", "encoder.layers.3.mlp.experts.mlp.w2");
    let mut wrong = tensors();
    let (shape, values) = wrong.get_mut(w1).unwrap();
    shape[0] -= 1;
    values.truncate(shape[0] * shape[1]);
    wrong.remove(w2);
    let error = loaded(&wrong).unwrap_err().to_string();
    let misshaped = format!("{w1} expected [160, 32] found [159, 32]");
    assert!(error.contains(&misshaped), "{error}");
    assert!(error.contains(&format!("1 missing: {w2}")) && !error.contains("no place"), "{error}");
    let mut both = tensors();
    let one = (vec![40, 32], vec![0.0; 40 * 32]);
    both.insert("encoder.layers.1.mlp.experts.0.fc1.weight".into(), one);
    let error = loaded(&both).unwrap_err().to_string();
    assert!(error.contains(w1) && error.contains("no place"), "{error}");
}

/// PEFT's `all-linear` takes the linear layers, and the experts are none.
#[test]
fn adapters_are_those_of_the_routers_and_the_dense_layers() {
    let (config, device) = (config(), Default::default());
    let backbone = loaded(&tensors()).unwrap();
    let names = backbone.projection_names(&config).unwrap();
    assert_eq!(names, ["Wqkv", "out_proj", "fc1", "fc2", "router.layer"]);
    let lora = LoraConfig { rank: 2, ..LoraConfig::default() };
    let (adapted, count) = backbone.with_lora(&lora, &config, &device).unwrap();
    // Two of attention in each of four layers, two in each dense feed-forward, and the router in the others.
    assert_eq!(count, 4 * 2 + 2 * 2 + 2);
    let files = save_adapters(&adapted, &config, &lora, &Default::default()).unwrap();
    let names: Vec<String> = read(&files, "adapter_model").into_keys().collect();
    assert!(names.iter().any(|name| name.contains("layers.1.mlp.router.layer.lora_A")));
    assert!(!names.iter().any(|name| name.contains("experts")), "{names:?}");
    let backbone = loaded(&tensors()).unwrap();
    let (again, _) = load_adapters(backbone, &config, &files, &device).unwrap();
    assert!(again.has_adapters());
    let lora = LoraConfig { targets: vec!["*experts*".into()], ..lora };
    let error = loaded(&tensors()).unwrap().with_lora(&lora, &config, &device).err().unwrap();
    assert!(error.to_string().contains("router.layer"), "{error}");
}
