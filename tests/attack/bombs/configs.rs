//! Configs that promise more than the weights beside them hold, or than any model has.

use std::path::Path;

use serde_json::{Value, json};

use super::{MEAN, has, refused, weights, zeros};
use crate::harness::{Folder, kiln};

/// Changes one key of a JSON file.
fn set(path: &Path, key: &str, value: Value) {
    let mut all: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    all[key] = value;
    std::fs::write(path, all.to_string()).unwrap();
}

#[test]
fn configs_beyond_any_model() {
    let folder = Folder::new();
    let model = folder.model(MEAN);
    let config = model.join("config.json");
    let sound = std::fs::read_to_string(&config).unwrap();
    for (key, value, words) in [
        ("vocab_size", json!(1u64 << 32), "vocab_size is 4294967296"),
        ("vocab_size", json!(u64::MAX), "vocab_size is 18446744073709551615"),
        ("vocab_size", json!(16_000_000), "embed_tokens.weight expected [16000000, 16]"),
        ("hidden_size", json!(1u64 << 40), "hidden_size is 1099511627776"),
        ("hidden_size", json!(16_000_000), "expected [300, 16000000]"),
        ("intermediate_size", json!(16_000_000), "expected [16000000, 16]"),
        ("num_hidden_layers", json!(1_000_000_000), "num_hidden_layers is 1000000000"),
        ("num_hidden_layers", json!(1024), "and 9182 more"),
        ("num_attention_heads", json!(0), "num_attention_heads is 0"),
        ("num_attention_heads", json!(1u64 << 63), "num_attention_heads is 9223372036854775808"),
        ("num_key_value_heads", json!(0), "num_key_value_heads is 0"),
        ("head_dim", json!(1 << 20), "head_dim is 1048576"),
        ("head_dim", json!(16_384), "expected [32768, 16]"),
        ("max_position_embeddings", json!(1u64 << 63), "max_position_embeddings is"),
        ("rms_norm_eps", json!(0), "the norm epsilon is 0e0"),
        ("rms_norm_eps", json!(-1e-6), "the norm epsilon is -1e-6"),
        ("rms_norm_eps", json!(1e300), "the norm epsilon is 1e300"),
        ("rms_norm_eps", json!(1e-300), "the norm epsilon is 1e-300"),
        ("rope_parameters", json!({"rope_theta": 0}), "rope_theta is 0"),
        ("rope_parameters", json!({"rope_theta": 1e300}), "rope_theta is 1"),
        ("rope_parameters", json!({"rope_theta": -5}), "rope_theta is -5"),
        ("rope_parameters", json!({"rope_type": "linear", "factor": 1e300}), "rope factor"),
        (
            "rope_parameters",
            json!({"rope_type": "yarn", "factor": 2.0, "attention_factor": 1e300}),
            "attention_factor is",
        ),
        (
            "rope_parameters",
            json!({"rope_type": "llama3", "low_freq_factor": 4.0, "high_freq_factor": 4.0}),
            "high_freq_factor is 4",
        ),
    ] {
        std::fs::write(&config, &sound).unwrap();
        set(&config, key, value);
        has(&refused(&folder, &model), &[words]);
    }
    for number in ["NaN", "Infinity", "1e999", "-"] {
        std::fs::write(
            &config,
            sound.replace("\"vocab_size\": 300", &format!("\"vocab_size\": {number}")),
        )
        .unwrap();
        has(&refused(&folder, &model), &["config.json", "not valid JSON"]);
    }
    zeros(&config, 1 << 36);
    has(&refused(&folder, &model), &["config.json", "68719476736 bytes"]);
}

#[test]
fn encoders_ask_for_no_tables_that_their_weights_lack() {
    let folder = Folder::new();
    let family = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/families/bert");
    let model = folder.path("bert");
    std::fs::create_dir(&model).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(family.join(name), model.join(name)).unwrap();
    }
    let tokenizer = family.join("../../rerankers/bert/tokenizer.json");
    std::fs::copy(tokenizer, model.join("tokenizer.json")).unwrap();
    let config = model.join("config.json");
    let sound = std::fs::read_to_string(&config).unwrap();
    for (key, value, words) in [
        // The first two would be 2 GB each in single precision.
        ("max_position_embeddings", json!(16_000_000), "expected [16000000, 32] found [64, 32]"),
        ("type_vocab_size", json!(16_000_000), "expected [16000000, 32] found [2, 32]"),
        ("type_vocab_size", json!(u64::MAX), "type_vocab_size is 18446744073709551615"),
        ("layer_norm_eps", json!(0), "the norm epsilon is 0e0"),
        ("num_attention_heads", json!(0), "num_attention_heads is 0"),
    ] {
        std::fs::write(&config, &sound).unwrap();
        set(&config, key, value);
        has(&refused(&folder, &model), &[words]);
    }
}

#[test]
fn pooling_heads_beyond_any_model() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'latent_attention', latents = 3, heads = 2, head_dim = 4 }");
    let config = model.join("1_Pooling/config.json");
    let sound = std::fs::read(&config).unwrap();
    let head = |changes: Value| {
        std::fs::write(&config, &sound).unwrap();
        let mut all: Value = serde_json::from_slice(&sound).unwrap();
        for (key, value) in changes.as_object().unwrap() {
            all["kiln"][key] = value.clone();
        }
        std::fs::write(&config, all.to_string()).unwrap();
        refused(&folder, &model)
    };
    has(&head(json!({"latents": 0})), &["1_Pooling/config.json", "latents is 0"]);
    has(&head(json!({"latents": 1u64 << 40})), &["latents is 1099511627776"]);
    has(&head(json!({"heads": 0})), &["heads is 0"]);
    has(&head(json!({"heads": 1 << 20})), &["heads is 1048576"]);
    has(&head(json!({"head_dim": 1u64 << 63})), &["head_dim is 9223372036854775808"]);
    // 34 GB of projections, and 4 TB of latents.
    let wide = json!({"heads": 4096, "head_dim": 65536});
    has(&head(wide), &["1_Pooling/model.safetensors", "to_q", "268435456"]);
    let many = json!({"mode": "last_layer_trainable", "latents": 1 << 20, "latent_size": 1 << 20});
    has(&head(many), &["1_Pooling/model.safetensors", "latents expected [1048576, 1048576]"]);
}

#[test]
fn projections_beyond_any_model() {
    let folder = Folder::new();
    let model = folder.model(MEAN);
    let modules = model.join("modules.json");
    let mut list: Value = serde_json::from_slice(&std::fs::read(&modules).unwrap()).unwrap();
    let list_of = list.as_array_mut().unwrap();
    // Before the module that normalizes.
    list_of.insert(
        2,
        json!({
            "idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense",
        }),
    );
    for (i, module) in list_of.iter_mut().enumerate() {
        (module["idx"], module["name"]) = (i.into(), i.to_string().into());
    }
    std::fs::write(&modules, list.to_string()).unwrap();
    let dense = model.join("2_Dense");
    std::fs::create_dir(&dense).unwrap();
    weights(
        &dense.join("model.safetensors"),
        &[("linear.weight", &[8, 16]), ("linear.bias", &[8])],
    );
    let sized = |inputs: Value, outputs: Value| {
        let config = json!({"in_features": inputs, "out_features": outputs, "bias": true});
        std::fs::write(dense.join("config.json"), config.to_string()).unwrap();
        refused(&folder, &model)
    };
    let huge = sized(json!(16), json!(16_000_000));
    has(&huge, &["2_Dense/model.safetensors", "expected [16000000, 16] found [8, 16]"]);
    has(&sized(json!(16_000_000), json!(16_000_000)), &["expected [16000000, 16000000]"]);
    has(&sized(json!(16), json!(1_000_000_000_000u64)), &["2_Dense/config.json", "out_features"]);
    has(&sized(json!(0), json!(8)), &["2_Dense/config.json", "in_features"]);
    has(&sized(json!(-1), json!(8)), &["2_Dense/config.json", "in_features"]);
}

#[test]
fn adapters_beyond_their_files() {
    let folder = Folder::new();
    let base = folder.model(MEAN).display().to_string();
    let adapter = folder.path("adapter");
    std::fs::create_dir(&adapter).unwrap();
    let module = "base_model.model.layers.0.self_attn.q_proj";
    let shaped = |r: Value, alpha: Value, a: &[usize], b: &[usize]| {
        let config = json!({
            "peft_type": "LORA", "base_model_name_or_path": base, "r": r, "lora_alpha": alpha,
            "lora_dropout": 0.1,
        });
        std::fs::write(adapter.join("adapter_config.json"), config.to_string()).unwrap();
        let (a_name, b_name) =
            (format!("{module}.lora_A.weight"), format!("{module}.lora_B.weight"));
        weights(&adapter.join("adapter_model.safetensors"), &[(&a_name, a), (&b_name, b)]);
        refused(&folder, &adapter)
    };
    let (a, b): (&[usize], &[usize]) = (&[4, 16], &[16, 4]);
    has(&shaped(json!(1_000_000_000), json!(8), a, b), &["adapter_config.json", "r is 1000000000"]);
    has(&shaped(json!(0), json!(8), a, b), &["r is 0"]);
    has(&shaped(json!(65_536), json!(8), a, b), &["q_proj", "[4, 16]", "r is 65536"]);
    has(&shaped(json!(4), json!(1e300), a, b), &["lora_alpha is 1"]);
    has(&shaped(json!(4), json!(8), &[4, 17], b), &["q_proj", "[4, 17]"]);
    has(&shaped(json!(4), json!(8), a, &[1000, 4]), &["q_proj", "[1000, 4]"]);
    has(&shaped(json!(4), json!(8), a, &[15, 4]), &["q_proj", "[15, 4]"]);
}

#[test]
fn a_test_that_would_never_end() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let exported = folder.path("exported");
    kiln(&["export", "--model", &model, "--output", &folder.arg("exported")]).assert().success();
    let manifest = exported.join("kiln.json");
    let mut all: Value = serde_json::from_slice(&std::fs::read(&manifest).unwrap()).unwrap();
    let vector = all["self_test"]["vectors"][0].clone();
    all["self_test"]["texts"] = json!(vec!["again"; 5000]);
    all["self_test"]["vectors"] = json!(vec![vector; 5000]);
    std::fs::write(&manifest, all.to_string()).unwrap();
    has(&refused(&folder, &exported), &["kiln.json", "self_test makes no sense"]);
    std::fs::write(&manifest, format!("{{\"format\": 1, \"x\": \"{}\"}}", "y".repeat(20 << 20)))
        .unwrap();
    has(&refused(&folder, &exported), &["kiln.json", "bytes, more than"]);
}
