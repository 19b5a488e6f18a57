//! The base model of an adapter: by name, by the folder that it lies in, and by a config beside it.

use std::path::Path;

use serde_json::{Value, json};

use super::{furthest, lora, lora_with};
use crate::harness::{Folder, embed, failure, kiln};
use crate::training::DATA;

#[test]
fn adapters_below_a_snapshot_open_no_folder_of_this_machine() {
    let folder = Folder::new();
    let own = folder.arg("own");
    std::fs::rename(folder.model("{ mode = 'mean' }"), &own).unwrap();
    let name = format!("hub/models--someone--model/snapshots/{}", "a1".repeat(20));
    let snapshot = folder.path(&name);
    std::fs::create_dir_all(snapshot.parent().unwrap()).unwrap();
    std::fs::rename(folder.model("{ mode = 'mean' }"), &snapshot).unwrap();
    let said = |model: &str, from: &Path| {
        failure(kiln(&["similarity", "-m", model, "a", "b"]).current_dir(from))
    };
    // Its own model is not there yet.
    let (weights, aside) = (snapshot.join("model.safetensors"), folder.path("aside"));
    std::fs::rename(&weights, &aside).unwrap();
    for place in ["query", "adapters/query"] {
        lora(&snapshot.join(place), &own, 1.0);
        for error in [
            said(&folder.arg(&format!("{name}/{place}")), Path::new(".")),
            said(&format!("./{place}"), &snapshot),
            said(".", &snapshot.join(place)),
        ] {
            assert!(error.contains("names the base model") && error.contains(&own), "{error}");
        }
    }
    std::fs::rename(&aside, &weights).unwrap();
    // With the model that they lie in they are used, whatever they name.
    lora(&folder.path("alone"), &own, 1.0);
    let expected = embed(&folder.arg("alone"), &folder, &[]);
    assert!(furthest(&expected, &embed(&own, &folder, &[])) > 1e-2);
    assert_eq!(embed(&format!("{}#query", snapshot.display()), &folder, &[]), expected);
}

#[test]
fn the_base_of_an_adapter_by_name_is_its_model() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }");
    let base = model.display().to_string();
    lora(&folder.path("alone"), &base, 1.0);
    lora(&model.join("query"), "/nowhere", 1.0);
    let named = format!("{base}#query");
    let expected = embed(&folder.arg("alone"), &folder, &[]);
    assert_eq!(embed(&named, &folder, &[]), expected);
    // For what is made of it, too.
    let (exported, packed) = (folder.arg("exported"), folder.arg("packed"));
    kiln(&["export", "-m", &named, "-o", &exported, "--weights", "f32"]).assert().success();
    assert!(furthest(&embed(&exported, &folder, &[]), &expected) < 1e-5);
    kiln(&["quantize", "-m", &named, "-o", &packed, "--scheme", "int8:8"]).assert().success();
    assert!(furthest(&embed(&packed, &folder, &[]), &expected) < 1e-2);
    let bench =
        ["bench", "-m", &named, "--tokens", "8", "--limit", "2", "--runs", "1", "--rounds", "1"];
    kiln(&bench).env_remove("KILN_PYTHON").assert().success();
    // PEFT keeps the second adapter of a model below the first, where no model is.
    lora(&folder.path("first"), &base, 2.0);
    lora(&folder.path("first/second"), &base, 1.0);
    assert_eq!(embed(&folder.arg("first#second"), &folder, &[]), expected);
}

/// LLM2Vec's folders have the base's config.json beside the adapters; with weights they are models.
#[test]
fn adapters_beside_their_bases_config_are_read_as_both() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let base = folder.model("{ mode = 'mean' }");
    let recipe = folder.write(
        "r.toml",
        format!(
            "name = 'lora'\n[model]\nbase = '{}'\n[model.lora]\nrank = 4\nalpha = 12\n\
             [[stage]]\nname = 's'\ndata = ['data.jsonl']\nsteps = 5\nbatch_size = 4\nlr = 1e-2\n",
            base.display()
        ),
    );
    let (out, adapter) = (folder.arg("out"), folder.arg("out/adapter"));
    kiln(&["train", "--recipe", &recipe, "--output", &out]).assert().success();
    let alone = embed(&adapter, &folder, &[]);
    std::fs::copy(base.join("config.json"), folder.path("out/adapter/config.json")).unwrap();
    assert_eq!(embed(&adapter, &folder, &[]), alone);
    let plain = embed(&base.display().to_string(), &folder, &[]);
    assert!(furthest(&plain, &alone) > 1e-3, "the adapters do something");
    // Beside whole weights, which may have them already, they are named and left.
    for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(base.join(file), folder.path("out/adapter").join(file)).unwrap();
    }
    let output =
        kiln(&["similarity", "-m", &adapter, "a", "b"]).assert().success().get_output().clone();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("beside weights of its own"), "{said}");
    std::fs::remove_file(folder.path("out/adapter/model.safetensors")).unwrap();

    // From the Hub too.
    std::fs::create_dir_all(folder.path("hub/someone")).unwrap();
    std::fs::rename(&base, folder.path("hub/someone/base")).unwrap();
    let config = folder.path("out/adapter/adapter_config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value["base_model_name_or_path"] = "someone/base".into();
    std::fs::write(&config, value.to_string()).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        let from = folder.path("hub/someone/base").join(file);
        std::fs::copy(from, folder.path("out/adapter").join(file)).unwrap();
    }
    std::fs::rename(&adapter, folder.path("hub/someone/adapter")).unwrap();
    let Some(hub) = crate::hub::Hub::start(&folder) else { return };
    let texts = folder.texts();
    let vectors = folder.arg("hub.jsonl");
    kiln(&["embed", "--model", "someone/adapter", "--input", &texts, "--output", &vectors])
        .env("HF_ENDPOINT", &hub.endpoint)
        .env("HF_HOME", folder.arg("cache"))
        .assert()
        .success();
    let read = std::fs::read_to_string(vectors).unwrap();
    let read: Vec<Vec<f32>> = read
        .lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            serde_json::from_value(line["embedding"].clone()).unwrap()
        })
        .collect();
    assert!(furthest(&read, &alone) < 1e-6);
}

/// LLM2Vec's code is named beside its adapters, not in the base's folder.
#[test]
fn code_that_a_config_beside_adapters_names_is_warned_of() {
    let folder = Folder::new();
    let base = folder.model("{ mode = 'mean' }");
    let adapters = folder.path("adapters");
    lora(&adapters, &base.display().to_string(), 1.0);
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(base.join("config.json")).unwrap()).unwrap();
    config["is_causal"] = Value::Null;
    std::fs::write(base.join("config.json"), config.to_string()).unwrap();
    let notes = || {
        let mut command = kiln(&["similarity", "-m", &folder.arg("adapters"), "a", "b"]);
        String::from_utf8(command.assert().success().get_output().stderr.clone()).unwrap()
    };
    assert!(!notes().contains("code of its own"), "{}", notes());
    config["auto_map"] = json!({"AutoModel": "modeling_llama_encoder.LlamaEncoderModel"});
    std::fs::write(adapters.join("config.json"), config.to_string()).unwrap();
    assert!(notes().contains("modeling_llama_encoder.LlamaEncoderModel"), "{}", notes());
}

#[test]
fn adapters_that_do_not_fit_their_base_are_not_trained() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let base = folder.model("{ mode = 'mean' }").display().to_string();
    let adapters = folder.path("adapters");
    let said = || {
        let recipe = format!(
            "name = 'r'\n[model]\nbase = '{}'\n[[stage]]\nname = 's'\ndata = ['data.jsonl']\nsteps = 1\n\
             batch_size = 2\nlr = 1e-3\n",
            adapters.display()
        );
        let recipe = folder.write("r.toml", recipe);
        failure(&mut kiln(&["--quiet", "train", "-r", &recipe, "-o", &folder.arg("out")]))
    };
    let has = |parts: &[&str]| {
        let said = said();
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        assert!(!folder.path("out/model").exists());
    };
    // Of a narrower model; the tiny one's projection is of 24 to 16.
    lora_with(&adapters, &base, [16, 12], 1.0);
    has(&["mlp.down_proj is [2, 12] and [16, 2], and r is 2 for a projection of 24 to 16"]);
    lora_with(&adapters, &base, [32, 24], 1.0);
    has(&["mlp.down_proj is [2, 24] and [32, 2]"]);
    // Of another rank than the file has.
    lora(&adapters, &base, 1.0);
    let file = adapters.join("adapter_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    config["r"] = 3.into();
    std::fs::write(&file, config.to_string()).unwrap();
    has(&["and r is 3 for a projection of 24 to 16", "check r in adapter_config.json"]);
    // Of layers that the base has not.
    let named = |module: &str| {
        let tensor = |name: &str, shape: [usize; 2]| {
            let name = format!("base_model.model.{module}.{name}.weight");
            (name, shape.to_vec(), vec![0.5; shape[0] * shape[1]])
        };
        let tensors = [tensor("lora_A", [2, 24]), tensor("lora_B", [16, 2])];
        let bytes = kiln_embed::checkpoint::write_safetensors(&tensors, &[("format", "pt")]);
        std::fs::write(adapters.join("adapter_model.safetensors"), bytes.unwrap()).unwrap();
    };
    named("layers.7.mlp.down_proj");
    has(&["adapts base_model.model.layers.7.mlp.down_proj, which this model has not"]);
}

/// PEFT on the code that came with a release has that code's names.
#[test]
fn adapters_of_a_releases_own_class_are_told_from_those_of_another_model() {
    let folder = Folder::new();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    for (family, module) in [
        ("gte-released", "encoder.layer.0.attention.qkv_proj"),
        ("nomic-bert-released", "encoder.layers.0.attn.Wqkv"),
    ] {
        let base = folder.path(family);
        std::fs::create_dir(&base).unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(fixtures.join("families").join(family).join(file), base.join(file))
                .unwrap();
        }
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(fixtures.join("rerankers/bert").join(file), base.join(file)).unwrap();
        }
        let adapters = folder.path("adapters");
        lora(&adapters, &base.display().to_string(), 1.0);
        let tensor = |name: &str| {
            let name = format!("base_model.model.{module}.{name}.weight");
            (name, vec![2, 2], vec![0.5; 4])
        };
        let tensors = [tensor("lora_A"), tensor("lora_B")];
        let bytes = kiln_embed::checkpoint::write_safetensors(&tensors, &[("format", "pt")]);
        std::fs::write(adapters.join("adapter_model.safetensors"), bytes.unwrap()).unwrap();
        let adapters = adapters.display().to_string();
        let said = failure(&mut kiln(&["--quiet", "similarity", "-m", &adapters, "a", "b"]));
        assert!(said.contains(module) && said.contains("the model's release calls it"), "{said}");
    }
}
