//! Small files that would become large, and numbers that make no sense.
//!
//! The command may have as much memory as it needs to start, and no more: what a file promises has to be
//! compared with what it holds before memory is set aside for it.

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use kiln_embed::checkpoint::write_safetensors;
use serde_json::{Value, json};

use crate::harness::{Folder, failure, kiln, names};

const MEAN: &str = "{ mode = 'mean' }";

/// The command on the CPU with 3 GB of addresses, threads and code included.
fn bounded(args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -v 3000000; exec \"$0\" --device cpu \"$@\""])
        .arg(env!("CARGO_BIN_EXE_kiln"))
        .args(args)
        .timeout(std::time::Duration::from_secs(300));
    command
}

/// The one line with which embedding with a model fails.
fn refused(folder: &Folder, model: &Path) -> String {
    let (texts, out) = (folder.texts(), folder.arg("out.npy"));
    let model = model.display().to_string();
    let error =
        failure(&mut bounded(&["embed", "--model", &model, "--input", &texts, "--output", &out]));
    assert!(!error.contains("out of memory"), "{error}");
    assert!(error.len() < 4000, "{} characters: {error}", error.len());
    assert!(!names(&folder.path("")).contains(&"out.npy".to_string()));
    error
}

fn has(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

/// Changes one key of a JSON file.
fn set(path: &Path, key: &str, value: Value) {
    let mut all: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    all[key] = value;
    std::fs::write(path, all.to_string()).unwrap();
}

/// Replaces a file by tensors of zeros.
fn weights(path: &Path, tensors: &[(&str, &[usize])]) {
    let all: Vec<(String, Vec<usize>, Vec<f32>)> = tensors
        .iter()
        .map(|(name, shape)| (name.to_string(), shape.to_vec(), vec![0.0; shape.iter().product()]))
        .collect();
    std::fs::write(path, write_safetensors(&all, &[("format", "pt")]).unwrap()).unwrap();
}

/// A safetensors file with a header of one's own and so many bytes of data.
fn with_header(path: &Path, header: &str, data: usize) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    std::fs::write(path, bytes).unwrap();
}

/// A file of so many zeros, which takes no room on most disks.
fn zeros(path: &Path, bytes: u64) {
    std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
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

#[test]
fn shards_that_do_not_add_up() {
    let folder = Folder::new();
    let model = folder.model(MEAN);
    let index = model.join("model.safetensors.index.json");
    let mapped = |map: Value| {
        std::fs::write(&index, json!({"metadata": {}, "weight_map": map}).to_string()).unwrap();
        refused(&folder, &model)
    };
    weights(&model.join("a.safetensors"), &[("x", &[2]), ("y", &[2])]);
    weights(&model.join("b.safetensors"), &[("y", &[2]), ("z", &[2])]);
    weights(&model.join("c.safetensors"), &[("z", &[2])]);
    has(&mapped(json!({})), &["model.safetensors.index.json", "names no tensor", "again"]);
    let missing = mapped(json!({"x": "a.safetensors", "z": "nowhere.safetensors"}));
    has(&missing, &["index.json", "the shard nowhere.safetensors is not there", "again"]);
    let twice = mapped(json!({"x": "a.safetensors", "z": "b.safetensors"}));
    has(&twice, &["b.safetensors", "the tensor y is in two shards"]);
    let elsewhere = mapped(json!({"x": "c.safetensors", "z": "a.safetensors"}));
    has(&elsewhere, &["index.json", "not in"]);
    has(&mapped(json!({"w": "c.safetensors"})), &["the tensor w is in no shard"]);
    has(&mapped(json!({"x": "/etc/passwd"})), &["outside the folder"]);
    has(&mapped(json!([])), &["weight_map is missing"]);
    std::fs::write(&index, format!("{{\"weight_map\": {{\"x\": \"{}\"}}}}", "y".repeat(20 << 20)))
        .unwrap();
    has(&refused(&folder, &model), &["index.json", "bytes, more than"]);
    zeros(&index, 1 << 36);
    has(&refused(&folder, &model), &["index.json", "68719476736 bytes"]);
}

#[test]
fn headers_that_lie() {
    let folder = Folder::new();
    let model = folder.model(MEAN);
    let file = model.join("model.safetensors");
    let entry = |shape: &str, offsets: &str| {
        format!(r#"{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}"#)
    };
    let header = |text: &str, data: usize| {
        with_header(&file, text, data);
        let error = refused(&folder, &model);
        has(&error, &["model.safetensors"]);
        error
    };
    let (first, second) = (entry("[2]", "[0,8]"), entry("[2]", "[8,16]"));
    let twice = header(&format!(r#"{{"w":{first},"w":{first}}}"#), 8);
    has(&twice, &["\"w\" is there twice"]);
    // Two tensors in the same bytes, half over each other, with a gap, and beyond the end.
    for (a, b, data) in [
        (&first, &first, 8),
        (&first, &entry("[2]", "[4,12]"), 12),
        (&first, &entry("[2]", "[12,20]"), 20),
        (&first, &second, 12),
        (&entry("[2]", "[8,0]"), &second, 16),
    ] {
        header(&format!(r#"{{"v":{a},"w":{b}}}"#), data);
    }
    header(&format!(r#"{{"w":{}}}"#, entry("[18446744073709551615,2]", "[0,8]")), 8);
    header(
        &format!(r#"{{"w":{}}}"#, entry("[4611686018427387904,4611686018427387904]", "[0,8]")),
        8,
    );
    header(&format!(r#"{{"w":{}}}"#, entry("[2]", "[0,18446744073709551615]")), 8);
    // A hundred megabytes of header, in a file that has them and in one that has not.
    let mut long = std::fs::File::create(&file).unwrap();
    std::io::Write::write_all(&mut long, &100_000_000u64.to_le_bytes()).unwrap();
    has(&refused(&folder, &model), &["truncated", "100000000 bytes"]);
    long.set_len(200_000_000).unwrap();
    has(&refused(&folder, &model), &["its header has 100000000 bytes"]);
    let empty = entry("[0]", "[0,0]");
    let many: Vec<String> = (0..1_000_000).map(|i| format!(r#""{i}":{empty}"#)).collect();
    has(&header(&format!("{{{}}}", many.join(",")), 0), &["its header has"]);
    let deep = "[".repeat(1_000_000);
    has(&header(&format!(r#"{{"w":{deep}"#), 0), &["corrupt safetensors header"]);
}

/// Every number on the command line, at the ends of what a computer counts.
#[test]
fn numbers_beyond_their_range() {
    let folder = Folder::new();
    let arg = |name: &str| folder.arg(name);
    let (model, texts) = (arg("model"), arg("texts.txt"));
    let commands: [(&[&str], &[&str]); 12] = [
        (&["analyze", "--model", &model], &["--limit", "--seed", "--dimensions", "--batch-tokens"]),
        (
            &["bench", "--model", &model],
            &["--limit", "--tokens", "--batch", "--runs", "--rounds", "--max-length"],
        ),
        (
            &["distill", "--teacher", &model, "--texts", &texts],
            &[
                "--keep-blocks",
                "--layers",
                "--hidden-size",
                "--heads",
                "--vocab-size",
                "--steps",
                "--batch-size",
                "--lr",
                "--max-length",
                "--seed",
                "--checkpoint-every",
                "--keep",
            ],
        ),
        (
            &["embed", "--model", &model],
            &["--max-length", "--dimensions", "--batch-tokens", "--weights"],
        ),
        (&["eval", "--model", &model], &["--samples-per-label", "--max-length", "--dimensions"]),
        (&["eval", "trec", "qrels", "run"], &["--level"]),
        (
            &["mine", "--data", &texts],
            &[
                "--top-k",
                "--negatives",
                "--least",
                "--percent-of-positive",
                "--absolute-margin",
                "--min-rank",
                "--max-rank",
                "--max-score",
                "--min-score",
                "--max-positive-rank",
                "--seed",
            ],
        ),
        (&["prune", "--model", &model], &["--pattern", "--calibration-tokens", "--damping"]),
        (
            &["quantize", "--model", &model],
            &["--error-budget", "--calibration-tokens", "--damping", "--scheme"],
        ),
        (&["quickstart"], &["--seed", "--steps"]),
        (&["recall", "--model", &model], &["--top-k", "--widths", "--rescore"]),
        (&["search", "--model", &model], &["--top-k", "--dimensions"]),
    ];
    for (command, flags) in commands {
        for flag in flags {
            for number in ["18446744073709551615", "1e300", "-1e300", "NaN"] {
                let flag = format!("{flag}={number}");
                let error = failure(kiln(command).arg(&flag));
                let name = flag.split_once('=').unwrap().0;
                assert!(error.contains(name) && error.contains("invalid"), "{flag}: {error}");
            }
        }
    }
    for device in
        ["cuda:18446744073709551615", "vulkan:18446744073709551615", "cuda:18446744073709551616"]
    {
        let args = ["embed", "-m", &model, "-i", &texts, "-o", "x.npy"];
        failure(&mut crate::harness::kiln_on(device, &args));
    }
}

/// Numbers that parse, in places where they are used at once.
#[test]
fn numbers_at_the_end_of_their_range() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let texts = folder.texts();
    let embed = |more: &[&str]| {
        let base =
            ["embed", "--model", &model, "--input", &texts, "--output", &folder.arg("o.npy")];
        bounded(&[&base[..], more].concat())
    };
    embed(&["--batch-tokens", "1073741824"]).assert().success();
    embed(&["--batch-tokens", "1"]).assert().success();
    embed(&["--max-length", "16777216"]).assert().success();
    has(&failure(&mut embed(&["--dimensions", "16777216"])), &["16777216", "16"]);
    let search = |more: &[&str]| {
        let base = ["search", "--model", &model, "--query", "a river", "--corpus", &texts];
        bounded(&[&base[..], more].concat())
    };
    search(&["-k", "100000"]).assert().success();
    let scheme = |scheme: &str| {
        let args = ["quantize", "-m", &model, "-s", scheme, "-o", &folder.arg("q")];
        failure(&mut bounded(&args))
    };
    has(&scheme("int8:18446744073709551612"), &["18446744073709551612"]);
    has(&scheme("int4:9223372036854775808"), &["9223372036854775808"]);
}

/// Numbers in recipes.
#[test]
fn recipes_beyond_any_machine() {
    let folder = Folder::new();
    let row = |text: &str| json!({"query": text, "pos": [format!("{text}, again")]}).to_string();
    let data = crate::harness::TEXTS.map(row);
    let data = folder.write("data.jsonl", data.join("\n"));
    let recipe = |model: &str, stage: &str| {
        let text = format!(
            "name = 'x'\n[model]\nmax_length = 16\npooling = {MEAN}\n[model.new]\n{model}\n\
             [[stage]]\nname = 's'\ndata = ['{data}']\n{stage}\n"
        );
        let recipe = folder.write("r.toml", text);
        failure(&mut bounded(&[
            "--quiet",
            "train",
            "--recipe",
            &recipe,
            "--output",
            &folder.arg("out"),
        ]))
    };
    let small = "vocab_size = 300\nhidden_size = 16\nintermediate_size = 24\nlayers = 2\nheads = 2";
    let usual = "steps = 1\nbatch_size = 2\nlr = 1e-3";
    for (from, to) in [
        ("vocab_size = 300", "vocab_size = 9223372036854775807"),
        ("hidden_size = 16", "hidden_size = 1099511627776"),
        ("layers = 2", "layers = 1000000000"),
        ("heads = 2", "heads = 0"),
    ] {
        let error = recipe(&small.replace(from, to), usual);
        has(&error, &["model.new", to.rsplit(' ').next().unwrap()]);
    }
    for (from, to) in
        [("lr = 1e-3", "lr = nan"), ("lr = 1e-3", "lr = 1e300"), ("lr = 1e-3", "lr = -1")]
    {
        has(&recipe(small, &usual.replace(from, to)), &["lr"]);
    }
    for (from, to) in [
        ("steps = 1", "steps = 9223372036854775807"),
        ("batch_size = 2", "batch_size = 9223372036854775807"),
        ("batch_size = 2", "batch_size = 2\naccumulation = 9223372036854775807"),
        ("batch_size = 2", "batch_size = 2\nhard_negatives = 9223372036854775807"),
    ] {
        has(&recipe(small, &usual.replace(from, to)), &["9223372036854775807"]);
    }
    let large = recipe(small, &usual.replace("batch_size = 2", "batch_size = 1099511627776"));
    has(&large, &["batch_size", "1099511627776"]);
}

/// The path of something that every machine has and no model.
#[test]
fn models_that_are_no_files() {
    let folder = Folder::new();
    for path in ["/dev/null", "/dev/zero", "/proc/self/mem"] {
        if Path::new(path).exists() {
            refused(&folder, &PathBuf::from(path));
        }
    }
}
