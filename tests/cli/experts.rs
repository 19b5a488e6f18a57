//! A model with experts (nomic-embed-text-v2-moe, small) through every command that changes or writes one.

use std::collections::BTreeMap;
use std::path::Path;

use kiln_embed::checkpoint::{Directory, Existing, Weights, load_backbone, save, write_directory};
use kiln_embed::config::ModelConfig;
use kiln_embed::embedder::{Embedder, EmbeddingModel};
use kiln_embed::pooling::{Pooling, PoolingConfig};
use kiln_embed::tokenizer::{InstructionSpan, PaddingSide, Tokenizer, TokenizerConfig};
use serde_json::{Value, json};
use train_native::device::Cpu;

use crate::harness::{Folder, TEXTS, embed, failure, kiln, kiln_on, stdout};
use crate::training::{DATA, losses};

const FIXTURE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/families/nomic-bert-moe");

/// The weights of the parity tests' fixture, with a tokenizer for the tests' texts.
fn model(folder: &Folder) -> String {
    let directory = Directory::new(FIXTURE).unwrap();
    let config = std::fs::read(Path::new(FIXTURE).join("config.json")).unwrap();
    let config = ModelConfig::from_json(&config).unwrap();
    let device = Default::default();
    let mut weights = Weights::open(&directory, "model").unwrap();
    let backbone = load_backbone::<Cpu>(&config, &mut weights, &device).unwrap();
    let mut words: Vec<&str> = TEXTS.iter().flat_map(|text| text.split(' ')).collect();
    words.sort_unstable();
    words.dedup();
    let special = ["<s>", "<pad>", "</s>", "?"];
    let vocab: serde_json::Map<_, _> = special
        .into_iter()
        .chain(words)
        .take(config.vocab_size)
        .enumerate()
        .map(|(id, word)| (word.to_string(), id.into()))
        .collect();
    let file = json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "?"}
    });
    let names = json!({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"});
    let settings = TokenizerConfig {
        max_length: 24,
        padding_side: PaddingSide::Right,
        add_bos: Some(true),
        add_eos: Some(true),
        text_suffix: String::new(),
        lower_case: false,
        drop_unknown: false,
        instruction: InstructionSpan::Pooled,
    };
    let tokenizer = Tokenizer::new(file.to_string().as_bytes(), &names, settings).unwrap();
    let pooling = Pooling::new(&PoolingConfig::Mean, &config, &device);
    let model = EmbeddingModel::new(backbone, pooling, &config);
    let embedder = Embedder::new(model, tokenizer, &device).unwrap();
    write_directory(&folder.path("model"), &save(&embedder).unwrap(), Existing::Refuse).unwrap();
    folder.arg("model")
}

/// Tensors of a folder's `model.safetensors`.
fn tensors(folder: impl AsRef<Path>) -> BTreeMap<String, Vec<f32>> {
    let directory = Directory::new(folder.as_ref()).unwrap();
    let mut weights = Weights::open(&directory, "model").unwrap();
    let names: Vec<String> = weights.tensors().keys().cloned().collect();
    let mut read = |name: String| (name.clone(), weights.read(&name).unwrap().unwrap());
    names.into_iter().map(&mut read).collect()
}

fn least_cosine(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    assert_eq!(a.len(), b.len());
    let cosines = a.iter().zip(b).map(|(a, b)| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt());
    cosines.fold(1.0, f32::min)
}

fn calibration(folder: &Folder) -> String {
    let lines: Vec<String> =
        (0..40).map(|i| format!("{} and {}", TEXTS[i % 6], TEXTS[(i * 5 + 1) % 6])).collect();
    folder.write("calibration.txt", lines.join("\n"))
}

fn said(command: &mut assert_cmd::Command) -> Value {
    serde_json::from_str(&stdout(command)).unwrap()
}

#[test]
fn experts_are_shown_and_give_vectors_on_every_device() {
    let folder = Folder::new();
    let model = model(&folder);
    let shown = stdout(&mut kiln(&["inspect", "-m", &model]));
    assert!(shown.contains("4 of which a token takes 2, in the layers 1, 3"), "{shown}");
    let vectors = embed(&model, &folder, &[]);
    let (texts, out) = (folder.texts(), folder.arg("gpu.jsonl"));
    let args = ["embed", "--model", &model, "--input", &texts, "--output", &out];
    // Where there is no such device the command says so, and other tests ask whether there is one.
    if kiln_on("vulkan", &args).output().unwrap().status.success() {
        let lines = std::fs::read_to_string(&out).unwrap();
        let vector = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            serde_json::from_value(line["embedding"].clone()).unwrap()
        };
        let on_gpu: Vec<Vec<f32>> = lines.lines().map(vector).collect();
        assert!(least_cosine(&vectors, &on_gpu) > 0.99999);
    }
}

#[test]
fn experts_are_packed_one_by_one_and_saved_as_one() {
    let folder = Folder::new();
    let model = model(&folder);
    let full = embed(&model, &folder, &[]);
    let texts = calibration(&folder);
    let gptq = ["--method", "gptq", "--calibration", &texts];
    let whole = "encoder.layers.3.mlp.experts.mlp.w2".to_string();
    let part = "encoder.layers.3.mlp.experts.2.fc2.weight".to_string();
    let router = "encoder.layers.3.mlp.router.layer.weight";
    let before = tensors(&model);
    for (scheme, more, least) in [
        ("int8:8", &[][..], 0.999),
        ("int4:8", &[][..], 0.9),
        ("int4:8", &gptq[..], 0.9),
        ("f16", &[][..], 0.99999),
        ("bf16", &[][..], 0.999),
    ] {
        let out = folder.arg("quantized");
        kiln(&["quantize", "-m", &model, "-s", scheme, "-o", &out, "--overwrite"])
            .args(more)
            .assert()
            .success();
        let after = tensors(&out);
        let apart = scheme.starts_with("int");
        assert_eq!((after.contains_key(&part), after.contains_key(&whole)), (apart, !apart));
        assert_eq!(after[router], before[router], "{scheme}");
        let vectors = embed(&out, &folder, &[]);
        assert!(least_cosine(&full, &vectors) > least, "{scheme} {more:?}");
        // The same when they are rounded as they are loaded.
        if more.is_empty() && apart {
            assert_eq!(embed(&model, &folder, &["--weights", scheme]), vectors, "{scheme}");
        }
        let file = folder.arg("m.kiln");
        kiln(&["export", "-m", &out, "-o", &file, "--overwrite"]).assert().success();
        assert_eq!(embed(&file, &folder, &[]), vectors, "{scheme}");
    }
    // Products in bf16, by which a token may come to another expert in so small a model.
    let cosine = least_cosine(&full, &embed(&model, &folder, &["--weights", "bf16"]));
    assert!(cosine > 0.998, "{cosine}");
}

#[test]
fn experts_are_pruned_and_routers_are_not() {
    let folder = Folder::new();
    let model = model(&folder);
    let (texts, pruned) = (calibration(&folder), folder.arg("pruned"));
    for method in ["magnitude", "wanda", "sparsegpt"] {
        let args = ["--json", "prune", "-m", &model, "--method", method, "--pattern", "2:4"];
        let said = said(kiln(&args).args(["--calibration", &texts, "-o", &pruned, "--overwrite"]));
        assert_eq!(said["sparsity"].as_f64(), Some(0.5), "{said}");
    }
    let (before, after) = (tensors(&model), tensors(&pruned));
    assert!(before.keys().eq(after.keys()));
    let zeros = |name: &str| after[name].iter().filter(|weight| **weight == 0.0).count();
    for weight in ["w1", "w2"] {
        let name = format!("encoder.layers.1.mlp.experts.mlp.{weight}");
        assert_eq!(2 * zeros(&name), after[&name].len(), "{name}");
    }
    assert_eq!(zeros("encoder.layers.1.mlp.router.layer.weight"), 0);
}

#[test]
fn experts_learn_and_their_adapters_are_the_routers_and_the_dense_layers() {
    let folder = Folder::new();
    let model = model(&folder);
    folder.write("data.jsonl", DATA);
    let before = tensors(&model);
    for lora in ["", "[model.lora]\nrank = 2\nalpha = 8\ntargets = ['all-linear']\n"] {
        let text = format!(
            "name = 'experts'\nseed = 2\n[model]\nbase = '{model}'\n{lora}\
             [[stage]]\nname = 's'\ndata = ['data.jsonl']\nsteps = 12\nbatch_size = 4\nlr = 5e-3\n"
        );
        let (recipe, out) = (folder.write("r.toml", text), folder.arg("out"));
        kiln(&["train", "-r", &recipe, "-o", &out]).assert().success();
        let losses = losses(&folder.path("out"));
        assert!(losses[11] < losses[0], "{lora}: {losses:?}");
        let after = tensors(folder.path("out/model"));
        assert!(before.keys().eq(after.keys()), "{lora}");
        for (name, before) in &before {
            let experts = name.contains("mlp.experts");
            let linear = name.ends_with("weight") && before.len() > 64 && !name.contains("embed");
            let trains = if lora.is_empty() { true } else { linear && !experts };
            // Keys' biases change no vector, and the table has rows of words that no text has.
            assert!(trains || before == &after[name], "{lora} {name}");
            assert!(before != &after[name] || !trains, "{lora} {name}");
        }
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn a_student_keeps_layers_whose_experts_the_configuration_can_place() {
    let folder = Folder::new();
    let model = model(&folder);
    let texts = calibration(&folder);
    let distill = |keep: &[&str], out: &str| {
        let mut command = kiln(&["--quiet", "distill", "--teacher", &model, "--texts", &texts]);
        command.args(["--steps", "2", "--batch-size", "4", "--keep-blocks", &keep.join(",")]);
        command.args(["--max-length", "16", "-o", &folder.arg(out)]);
        command.env("XDG_CACHE_HOME", folder.arg("cache"));
        command
    };
    for (keep, experts) in [(&["0", "3"][..], true), (&["0", "2"], false)] {
        let out = format!("kept-{experts}");
        distill(keep, &out).assert().success();
        let kept = tensors(folder.path(&format!("{out}/model")));
        assert_eq!(kept.contains_key("encoder.layers.1.mlp.experts.mlp.w1"), experts);
        assert_eq!(kept.contains_key("encoder.layers.1.mlp.fc1.weight"), !experts);
        assert_eq!(embed(&folder.arg(&format!("{out}/model")), &folder, &[]).len(), 6);
    }
    let error = failure(&mut distill(&["1", "2"], "wrong"));
    assert!(error.contains("moe_every_n_layers"), "{error}");
}
