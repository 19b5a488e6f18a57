//! Checkpoint layouts: shards, half precision, and NV-Embed's released names.

use std::collections::BTreeMap;

use burn::tensor::backend::Backend as _;
use half::{bf16, f16};
use kiln_embed::checkpoint::{Directory, Files, LoadOptions, Weights, load, load_backbone, save};
use kiln_embed::config::ModelConfig;
use kiln_embed::embedder::Embedder;
use kiln_embed::model::{Backbone, ForwardOptions, ModelInput};
use kiln_embed::pooling::{BlockConfig, PoolingConfig};
use kiln_embed::tokenizer::TokenBatch;
use kiln_tests::fixture;
use safetensors::tensor::{Dtype, TensorView};
use train_native::device::Cpu;
use train_native::recipe::Recipe;
use train_native::train::new_model;

pub(crate) type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

pub(crate) fn read(files: &dyn kiln_embed::checkpoint::Folder, stem: &str) -> Tensors {
    let mut weights = Weights::open(files, stem).unwrap();
    let names: Vec<String> = weights.tensors().keys().cloned().collect();
    let mut tensor = |name: String| {
        let shape = weights.tensors()[&name].shape.clone();
        let values = weights.read(&name).unwrap().unwrap();
        (name, (shape, values))
    };
    names.into_iter().map(&mut tensor).collect()
}

/// A file of the given tensors in some precision.
pub(crate) fn encode(tensors: &Tensors, dtype: Dtype) -> Vec<u8> {
    let bytes = |values: &Vec<f32>| -> Vec<u8> {
        match dtype {
            Dtype::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
            Dtype::BF16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    };
    let data: Vec<_> = tensors
        .iter()
        .map(|(name, (shape, values))| (name, shape.clone(), bytes(values)))
        .collect();
    let views = data
        .iter()
        .map(|(name, shape, bytes)| (name, TensorView::new(dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

fn last_states(files: &Files, config: &ModelConfig) -> Vec<f32> {
    let mut weights = Weights::open(files, "model").unwrap();
    let backbone: Backbone<Cpu> = load_backbone(config, &mut weights, &Default::default()).unwrap();
    let tokens = TokenBatch::new(vec![3, 9, 4, 20], vec![true; 4], vec![true; 4], 4).unwrap();
    let input = ModelInput::new(&tokens, &Default::default());
    backbone
        .forward(&input, config.attention, ForwardOptions::default())
        .last
        .into_data()
        .to_vec()
        .unwrap()
}

#[test]
fn shards_and_half_precision_give_the_same_model() {
    let folder = Directory::new(fixture("families/qwen2")).unwrap();
    let config = std::fs::read(fixture("families/qwen2/config.json")).unwrap();
    let config = ModelConfig::from_json(&config).unwrap();
    let tensors = read(&folder, "model");
    let single = |bytes: Vec<u8>| Files([("model.safetensors".to_string(), bytes.into())].into());
    let whole = last_states(&single(encode(&tensors, Dtype::F32)), &config);

    let half = tensors.len() / 2;
    let parts = [
        tensors.clone().into_iter().take(half).collect(),
        tensors.clone().into_iter().skip(half).collect(),
    ];
    let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let shard = |i: usize| names[usize::from(i >= half)];
    let map: BTreeMap<&String, &str> =
        tensors.keys().enumerate().map(|(i, name)| (name, shard(i))).collect();
    let index = serde_json::json!({"metadata": {}, "weight_map": map}).to_string();
    let mut files: BTreeMap<String, _> = names
        .iter()
        .zip(&parts)
        .map(|(name, part)| (name.to_string(), encode(part, Dtype::F32).into()))
        .collect();
    files.insert("model.safetensors.index.json".into(), index.into());
    assert_eq!(last_states(&Files(files.clone()), &config), whole);

    files.remove(names[1]);
    let error = Weights::open(&Files(files), "model").err().unwrap().to_string();
    assert!(error.contains(names[1]) && error.contains("not there"), "{error}");

    for (dtype, tolerance) in [(Dtype::F16, 2e-2), (Dtype::BF16, 2e-1)] {
        let rounded = last_states(&single(encode(&tensors, dtype)), &config);
        let worst = rounded.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst > 0.0 && worst < tolerance, "{dtype:?}: {worst}");
    }
}

const TEXTS: [&str; 2] = ["a river in spring", "the ship carried tea"];

/// A new model with NV-Embed's head.
fn with_latent_attention() -> Embedder<Cpu> {
    let recipe = Recipe::parse(
        "name = 'x'\n[model]\nmax_length = 24\npooling = { mode = 'latent_attention', latents = 5, heads = 2, head_dim = 6 }\n\
         [model.new]\nvocab_size = 300\nhidden_size = 16\nintermediate_size = 24\nlayers = 2\nheads = 2\n\
         [[stage]]\nname = 's'\ndata = ['x']\nsteps = 1\nbatch_size = 2\nlr = 1e-3\n",
    )
    .unwrap();
    let new = recipe.model.new.as_ref().unwrap();
    let device = Default::default();
    Cpu::seed(&device, 3);
    new_model(new, &recipe.model, TEXTS.into_iter(), &device).unwrap()
}

/// A recipe that names the head which its base has goes on training that head.
#[test]
fn a_folders_own_head_keeps_its_weights_where_it_is_asked_for() {
    let ours = with_latent_attention();
    let saved = save(&ours).unwrap();
    let own = ours.model().pooling().config().clone();
    let loaded = |pooling| {
        let options = LoadOptions { pooling: Some(pooling), ..Default::default() };
        let embedder: Embedder<Cpu> = load(&saved, &options, &Default::default()).unwrap();
        embedder.embed(&TEXTS).unwrap()
    };
    assert_eq!(loaded(own.clone()), ours.embed(&TEXTS).unwrap());
    let PoolingConfig::LatentAttention(mut block) = own else { panic!("{own:?}") };
    // The sizes may be written in other ways.
    let written = BlockConfig { latent_size: Some(16), layer_std: 1.0, ..block.clone() };
    assert_eq!(loaded(PoolingConfig::LatentAttention(written)), ours.embed(&TEXTS).unwrap());
    block.latents += 1;
    assert_ne!(loaded(PoolingConfig::LatentAttention(block)), ours.embed(&TEXTS).unwrap());
    let none = PoolingConfig::LatentAttention(BlockConfig { heads: 0, ..Default::default() });
    let options = LoadOptions { pooling: Some(none), ..Default::default() };
    let error = load::<Cpu>(&saved, &options, &Default::default()).unwrap_err().to_string();
    assert!(error.contains("heads is 0"), "{error}");
}

#[test]
fn nv_embeds_release_layout_is_read() {
    let ours = with_latent_attention();
    let saved = save(&ours).unwrap();

    // The same weights under the names, and in the wrapper, of NV-Embed's release.
    let mut tensors = Tensors::new();
    for (name, tensor) in read(&saved, "model") {
        tensors.insert(format!("embedding_model.{name}"), tensor);
    }
    for (name, tensor) in read(&saved, "1_Pooling/model") {
        tensors.insert(format!("latent_attention_model.{name}"), tensor);
    }
    let mut inner: serde_json::Value = serde_json::from_slice(&saved.0["config.json"]).unwrap();
    inner["model_type"] = "mistral".into();
    inner["is_causal"] = true.into();
    let config = serde_json::json!({
        "model_type": "nvembed", "architectures": ["NVEmbedModel"], "text_config": inner,
        "latent_attention_config": {"num_latents_value": 5, "num_cross_heads": 2, "cross_dim_head": 6},
    });
    let mut files = Files(
        saved
            .0
            .iter()
            .filter(|(name, _)| name.starts_with("tokenizer"))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect(),
    );
    files.0.insert("config.json".into(), config.to_string().into());
    files.0.insert("model.safetensors".into(), encode(&tensors, Dtype::F32).into());
    let released: Embedder<Cpu> =
        load(&files, &LoadOptions::default(), &Default::default()).unwrap();
    assert_eq!(released.model().pooling().config().name(), "latent_attention");

    let embed = |embedder: &Embedder<Cpu>| embedder.embed(&TEXTS).unwrap();
    for (a, b) in embed(&ours).iter().zip(&embed(&released)) {
        let worst = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-6, "{worst}");
    }
    // The release's list of modules names the mean of what its model gives, which is behind the latents.
    let modules = serde_json::json!([
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]);
    files.0.insert("modules.json".into(), modules.to_string().into());
    let pools =
        |flag: &str| serde_json::json!({"word_embedding_dimension": 16, flag: true}).to_string();
    let pooling = "1_Pooling/config.json";
    files.0.insert(pooling.into(), pools("pooling_mode_mean_tokens").into());
    let listed = load::<Cpu>(&files, &LoadOptions::default(), &Default::default()).unwrap();
    assert_eq!(embed(&listed), embed(&released));
    files.0.insert(pooling.into(), pools("pooling_mode_cls_token").into());
    let error =
        load::<Cpu>(&files, &LoadOptions::default(), &Default::default()).unwrap_err().to_string();
    assert!(error.contains(pooling) && error.contains("pools by cls"), "{error}");
    files.0.insert(pooling.into(), pools("pooling_mode_mean_tokens").into());
    // A head that is missing is one error that names what is missing.
    tensors.remove("latent_attention_model.latents");
    files.0.insert("model.safetensors".into(), encode(&tensors, Dtype::F32).into());
    let error =
        load::<Cpu>(&files, &LoadOptions::default(), &Default::default()).unwrap_err().to_string();
    assert!(
        error.contains("missing") && error.contains("latent_attention_model.latents"),
        "{error}"
    );
}

/// As files have it that were saved from a class around the model.
#[test]
fn names_below_model_are_found() {
    for family in ["bert", "roberta", "mpnet", "distilbert"] {
        let folder = Directory::new(fixture(&format!("families/{family}"))).unwrap();
        let config = std::fs::read(fixture(&format!("families/{family}/config.json"))).unwrap();
        let config = ModelConfig::from_json(&config).unwrap();
        let tensors = read(&folder, "model");
        let states = |prefix: &str| {
            let mut named = Tensors::new();
            for (name, tensor) in &tensors {
                named.insert(format!("{prefix}{name}"), tensor.clone());
            }
            let mut files = Files::default();
            let weights = encode(&named, Dtype::F32);
            files.0.insert("model.safetensors".into(), weights.into());
            last_states(&files, &config)
        };
        assert_eq!(states("model."), states(""), "{family}");
    }
}

/// Heads for other tasks, and buffers of old releases, here in F64.
#[test]
fn what_no_state_comes_from_is_passed_over() {
    let bert = [
        "embeddings.token_type_ids",
        "cls.predictions.bias",
        "qa_outputs.weight",
        "lm_head.bias",
        "encoder.layer.0.attention.self.rotary_emb.inv_freq",
    ];
    let distilbert = [
        "vocab_transform.weight",
        "vocab_layer_norm.weight",
        "vocab_projector.bias",
        "qa_outputs.bias",
    ];
    let qwen2 = ["lm_head.weight", "score.weight", "layers.0.self_attn.rotary_emb.inv_freq"];
    for (family, others) in [
        ("bert", &bert[..]),
        ("distilbert", &distilbert[..]),
        ("modernbert", &["decoder.bias", "head.dense.weight"][..]),
        ("qwen2", &qwen2[..]),
    ] {
        let folder = Directory::new(fixture(&format!("families/{family}"))).unwrap();
        let config = std::fs::read(fixture(&format!("families/{family}/config.json"))).unwrap();
        let config = ModelConfig::from_json(&config).unwrap();
        let tensors = read(&folder, "model");
        let states = |others: &[&str]| {
            let bytes = |values: &Vec<f32>| -> Vec<u8> {
                values.iter().flat_map(|v| v.to_le_bytes()).collect()
            };
            let mut data: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = tensors
                .iter()
                .map(|(name, (shape, values))| {
                    (name.clone(), Dtype::F32, shape.clone(), bytes(values))
                })
                .collect();
            for name in others {
                data.push((name.to_string(), Dtype::F64, vec![1], 0.5f64.to_le_bytes().to_vec()));
            }
            let views = data.iter().map(|(name, dtype, shape, bytes)| {
                (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
            });
            let weights = safetensors::serialize(views, None).unwrap();
            let mut files = Files::default();
            files.0.insert("model.safetensors".into(), weights.into());
            last_states(&files, &config)
        };
        assert_eq!(states(others), states(&[]), "{family}");
    }
}

/// The error function, by its series.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..60 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn a_projection_has_the_activation_that_its_file_names() {
    let recipe = Recipe::parse(
        "name = 'x'\n[model]\nmax_length = 24\npooling = { mode = 'mean' }\n\
         [model.new]\nvocab_size = 300\nhidden_size = 16\nintermediate_size = 24\nlayers = 2\nheads = 2\n\
         [[stage]]\nname = 's'\ndata = ['x']\nsteps = 1\nbatch_size = 2\nlr = 1e-3\n",
    )
    .unwrap();
    let new = recipe.model.new.as_ref().unwrap();
    let device = Default::default();
    Cpu::seed(&device, 3);
    let ours: Embedder<Cpu> = new_model(new, &recipe.model, TEXTS.into_iter(), &device).unwrap();
    let mut files = save(&ours).unwrap();
    let module = |i: usize, kind: &str, path: &str| {
        serde_json::json!({"idx": i, "name": i.to_string(), "path": path,
            "type": format!("sentence_transformers.models.{kind}")})
    };
    let modules = serde_json::json!([
        module(0, "Transformer", ""),
        module(1, "Pooling", "1_Pooling"),
        module(2, "Dense", "2_Dense")
    ]);
    files.0.insert("modules.json".into(), modules.to_string().into());
    let numbers =
        |count: usize| (0..count).map(|i| 0.2 * (i as f32 * 1.7).sin()).collect::<Vec<_>>();
    let mut tensors = Tensors::new();
    tensors.insert("linear.weight".into(), (vec![6, 16], numbers(6 * 16)));
    tensors.insert("linear.bias".into(), (vec![6], numbers(6)));
    files.0.insert("2_Dense/model.safetensors".into(), encode(&tensors, Dtype::F32).into());
    let mut vectors = |activation: &str| {
        let config = serde_json::json!({"in_features": 16, "out_features": 6, "bias": true,
            "activation_function": format!("torch.nn.modules.activation.{activation}")});
        files.0.insert("2_Dense/config.json".into(), config.to_string().into());
        let loaded: Embedder<Cpu> = load(&files, &LoadOptions::default(), &device).unwrap();
        loaded.embed(&TEXTS).unwrap().concat()
    };
    let plain = vectors("Identity");
    assert!(plain.iter().any(|x| *x < -0.1) && plain.iter().any(|x| *x > 0.1), "{plain:?}");
    let gelu = |x: f64| x * 0.5 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2));
    let cases: [(&str, &dyn Fn(f64) -> f64); 3] =
        [("Tanh", &f64::tanh), ("ReLU", &|x: f64| x.max(0.0)), ("GELU", &gelu)];
    for (activation, of) in cases {
        for (x, y) in plain.iter().zip(vectors(activation)) {
            let expected = of(f64::from(*x));
            assert!((expected - f64::from(y)).abs() < 1e-5, "{activation}: {x} {y} {expected}");
        }
    }
}
