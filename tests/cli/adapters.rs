//! LoRA adapters: PEFT loads what we train, and we load what PEFT makes.

use std::path::Path;
use std::process::Command;

use kiln_embed::checkpoint::{
    AdapterBase, Existing, FileSum, save_vector_adapter, write_directory, write_safetensors,
};
use kiln_embed::index::VectorAdapter;
use serde_json::json;

use crate::harness::{Folder, TEXTS, embed, failure, kiln, names, stdout};
use crate::named::{NamedModel, texts};
use crate::training::DATA;

/// Mean of the last states over each text, normalised, from a base model with an adapter; makes a
/// random adapter first where none is there.
const SCRIPT: &str = r#"
import json, os, sys
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModel, AutoTokenizer
base, adapter, texts = sys.argv[1:4]
torch.manual_seed(7)
model = AutoModel.from_pretrained(base, dtype=torch.float32)
if not os.path.exists(adapter):
    config = LoraConfig(r=3, lora_alpha=5, use_rslora=True, target_modules=["k_proj", "down_proj"],
                        init_lora_weights=False, task_type="FEATURE_EXTRACTION")
    get_peft_model(model, config).save_pretrained(adapter)
    model = AutoModel.from_pretrained(base, dtype=torch.float32)
plain = model
model = PeftModel.from_pretrained(model, adapter).eval()
missing = [name for name, _ in model.named_parameters() if "lora" in name]
tokenizer = AutoTokenizer.from_pretrained(base)
rows = []
for text in json.load(open(texts)):
    with torch.no_grad():
        states = model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=16)).last_hidden_state
    rows.append(torch.nn.functional.normalize(states[0].mean(0), dim=0).tolist())
print(json.dumps({"vectors": rows, "adapted": len(missing), "r": model.peft_config["default"].r}))
"#;

/// Writes LoRA adapters of the tiny model into a folder, others by another `pitch`; they name `base` as theirs.
pub(crate) fn lora(folder: &Path, base: &str, pitch: f32) {
    lora_with(folder, base, [16, 24], pitch);
}

/// As [`lora`], of a projection of `[outputs, inputs]`.
fn lora_with(folder: &Path, base: &str, [outputs, inputs]: [usize; 2], pitch: f32) {
    let config = json!({
        "peft_type": "LORA", "base_model_name_or_path": base, "r": 2, "lora_alpha": 4, "lora_dropout": 0.0,
    });
    let tensor = |name: &str, shape: [usize; 2]| {
        let name = format!("base_model.model.layers.1.mlp.down_proj.{name}.weight");
        let values = (0..shape[0] * shape[1]).map(|i| (i as f32 * pitch).sin()).collect();
        (name, shape.to_vec(), values)
    };
    let tensors = [tensor("lora_A", [2, inputs]), tensor("lora_B", [outputs, 2])];
    let weights = write_safetensors(&tensors, &[("format", "pt")]).unwrap();
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("adapter_model.safetensors"), weights).unwrap();
}

pub(crate) fn peft(base: &str, adapter: &str, folder: &Folder) -> Option<(Vec<Vec<f32>>, u64)> {
    let Some(python) = std::env::var_os("KILN_PYTHON") else {
        eprintln!("SKIPPED: KILN_PYTHON is not set; tests/run.sh installs peft and sets it");
        return None;
    };
    let texts = folder.write("texts.json", serde_json::to_string(&TEXTS).unwrap());
    let output = Command::new(python)
        .args(["-c", SCRIPT, base, adapter, &texts])
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line = String::from_utf8(output.stdout).unwrap();
    let found: serde_json::Value = serde_json::from_str(line.lines().last().unwrap()).unwrap();
    let vectors = serde_json::from_value(found["vectors"].clone()).unwrap();
    Some((vectors, found["adapted"].as_u64().unwrap()))
}

pub(crate) fn furthest(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!((a.len(), a[0].len()), (b.len(), b[0].len()));
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    pairs.map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

#[test]
fn peft_loads_what_we_train() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let base = folder.model("{ mode = 'mean' }").display().to_string();
    let recipe = folder.write(
        "r.toml",
        format!(
            "name = 'lora'\n[model]\nbase = '{base}'\n[model.lora]\nrank = 4\nalpha = 12\n\
             targets = ['q_proj', 'v_proj', 'layers.1.mlp.*']\n\
             [[stage]]\nname = 's'\ndata = ['data.jsonl']\nsteps = 15\nbatch_size = 4\nlr = 1e-2\n"
        ),
    );
    let out = folder.arg("out");
    kiln(&["train", "--recipe", &recipe, "--output", &out]).assert().success();
    let adapter = folder.arg("out/adapter");
    let Some((theirs, adapted)) = peft(&base, &adapter, &folder) else { return };
    // A and B for q and v of two layers, and for gate, up and down of one.
    assert_eq!(adapted, 2 * (2 * 2 + 3));
    assert!(furthest(&embed(&base, &folder, &[]), &theirs) > 1e-2, "training changed nothing");
    // Rounded once they are in.
    let rounded = furthest(&embed(&adapter, &folder, &["--weights", "int8:8"]), &theirs);
    assert!(rounded > 1e-6 && rounded < 1e-2, "{rounded}");
    let merged = furthest(&embed(&folder.arg("out/model"), &folder, &[]), &theirs);
    let loaded = furthest(&embed(&adapter, &folder, &[]), &theirs);
    assert!(merged < 1e-5 && loaded < 1e-5, "merged {merged}, loaded {loaded}");
    println!("PEFT reads ours: {merged:e}; we read ours again: {loaded:e}");
}

#[test]
fn inspect_shows_an_adapters_base_and_tensors() {
    let folder = Folder::new();
    let base = folder.model("{ mode = 'mean' }");
    lora(&base.join("near"), &base.display().to_string(), 0.3);
    let model = format!("{}#near", base.display());
    let shown: serde_json::Value =
        serde_json::from_str(&stdout(&mut kiln(&["inspect", "--json", "--model", &model])))
            .unwrap();
    assert_eq!(shown["adapter_of"], base.display().to_string());
    assert_eq!(shown["config"]["hidden_size"], 16);
    let tensors = shown["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 2);
    assert!(tensors[0]["name"].as_str().unwrap().ends_with("lora_A.weight"));
    let text = stdout(&mut kiln(&["inspect", "--model", &model]));
    assert!(text.contains(&format!("adapter of   {}", base.display())), "{text}");
}

/// An adapter of vectors, as a page teaches one, is a module of sentence-transformers, and a model by its base.
#[test]
fn an_adapter_of_vectors_is_read_with_its_base() {
    let folder = Folder::new();
    let base = folder.model("{ mode = 'mean' }").display().to_string();
    let plain = embed(&base, &folder, &[]);
    let width = plain[0].len();
    let shear = |i: usize| match (i % width).wrapping_sub(i / width) {
        0 => 1.0,
        1 => 0.5,
        _ => 0.0,
    };
    let adapter = VectorAdapter::new(width, (0..width * width).map(shear).collect()).unwrap();
    let of = AdapterBase { name: Some(base.clone()), fingerprint: None };
    std::fs::create_dir(folder.path("adapter")).unwrap();
    for (name, bytes) in save_vector_adapter(&adapter, &of).unwrap().0 {
        folder.write(&format!("adapter/{name}"), bytes);
    }
    let expected: Vec<Vec<f32>> =
        plain.iter().map(|vector| adapter.apply(vector, "it").unwrap()).collect();
    assert!(furthest(&plain, &expected) > 1e-2);
    let loaded = embed(&folder.arg("adapter"), &folder, &[]);
    assert!(furthest(&loaded, &expected) < 1e-5);
    let whole = folder.arg("whole");
    kiln(&["export", "--model", &folder.arg("adapter"), "--output", &whole, "--weights", "f32"])
        .assert()
        .success();
    assert!(furthest(&embed(&whole, &folder, &[]), &expected) < 1e-5);

    let Some(python) = std::env::var_os("KILN_PYTHON") else {
        eprintln!("SKIPPED: KILN_PYTHON is not set; tests/run.sh sets it");
        return;
    };
    let vectors = folder.write("vectors.json", serde_json::to_string(&plain).unwrap());
    let script = "import json, sys, torch\n\
                  from sentence_transformers.models import Dense\n\
                  vectors = torch.tensor(json.load(open(sys.argv[2])))\n\
                  moved = Dense.load(sys.argv[1])({'sentence_embedding': vectors})['sentence_embedding']\n\
                  print(json.dumps((moved / moved.norm(dim=1, keepdim=True)).tolist()))\n";
    let output = Command::new(python)
        .args(["-c", script, &folder.arg("adapter"), &vectors])
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line = String::from_utf8(output.stdout).unwrap();
    let theirs: Vec<Vec<f32>> = serde_json::from_str(line.lines().last().unwrap()).unwrap();
    assert!(furthest(&theirs, &expected) < 1e-5);
}

/// A page keeps the sum of its model with what it teaches.
#[test]
fn an_adapter_of_vectors_on_another_model_is_noted() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let base = folder.arg("exported");
    kiln(&["export", "-m", &model, "-o", &base, "--weights", "f32"]).assert().success();
    std::fs::create_dir(folder.path("adapter")).unwrap();
    let said = |base: &str, sum: String| {
        let of = AdapterBase { name: Some(base.into()), fingerprint: Some(sum) };
        for (name, bytes) in save_vector_adapter(&VectorAdapter::identity(16), &of).unwrap().0 {
            folder.write(&format!("adapter/{name}"), bytes);
        }
        let mut command = kiln(&["similarity", "-m", &folder.arg("adapter"), "a", "b"]);
        let output = command.assert().success().get_output().clone();
        String::from_utf8(output.stderr).unwrap()
    };
    let manifest = std::fs::read(folder.path("exported/kiln.json")).unwrap();
    let own = FileSum::of(&manifest).sha256;
    assert!(!said(&base, own.clone()).contains("warning"));
    let other = said(&base, "ab".repeat(32));
    assert!(other.contains("warning") && other.contains("taught on another model"), "{other}");
    // Which weights a folder without a sum has is not known.
    assert!(!said(&model, own).contains("warning"));
}

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

/// Adapters for passages and for queries are trained for each other.
#[test]
fn search_takes_queries_by_another_adapter_of_the_model() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }");
    let base = model.display().to_string();
    std::fs::create_dir(folder.path("docs")).unwrap();
    folder.write("docs/a.txt", TEXTS.join("\n"));
    let vectors = |name: &str, more: &[&str]| {
        let (docs, out) = (folder.arg("docs"), folder.arg(name));
        let args = ["embed", "--quiet", "-m", &base, "--input", &docs, "--output", &out];
        kiln(&[&args[..], more].concat()).assert().success();
        out
    };
    let search = |model: &str, index: &str, more: &[&str]| {
        let args = ["search", "-m", model, "-Q", TEXTS[0], "--index", index];
        kiln(&[&args[..], more].concat())
    };
    let notes = |command: &mut assert_cmd::Command| {
        let output = command.assert().success().get_output().clone();
        String::from_utf8(output.stderr).unwrap()
    };
    // Adapters that come later change nothing of the model.
    let plain = vectors("plain/", &[]);
    lora(&model.join("passage"), "someone/else", 1.0);
    lora(&model.join("adapters/query"), "someone/else", 2.0);
    let said = notes(&mut search(&base, &plain, &[]));
    assert!(!said.contains("its vectors were"), "{said}");

    let passages = vectors("passages/", &["--adapter", "passage"]);
    let said = notes(&mut search(&base, &passages, &["--adapter", "passage"]));
    assert!(!said.contains("its vectors were"), "{said}");
    let said = notes(&mut search(&base, &passages, &["--adapter", "query"]));
    assert!(said.contains("made with the adapter passage"), "{said}");
    let more = ["--adapter", "query", "--weights", "f32"];
    let said = notes(&mut search(&base, &passages, &more));
    assert!(said.contains("the adapter passage") && said.contains("by kept weights"), "{said}");

    let other = Folder::new();
    let stranger = other.model("{ mode = 'cls' }");
    lora(&stranger.join("passage"), "someone/else", 1.0);
    lora(&stranger.join("query"), "someone/else", 2.0);
    let stranger = stranger.display().to_string();
    for (model, index, more) in [
        (&base, &passages, &[][..]),
        (&base, &plain, &["--adapter", "query"]),
        (&stranger, &passages, &["--adapter", "query"]),
    ] {
        let said = failure(&mut search(model, index, more));
        assert!(said.contains("has vectors of the model"), "{said}");
    }
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

#[test]
fn we_load_what_peft_makes() {
    let folder = Folder::new();
    let base = folder.model("{ mode = 'mean' }").display().to_string();
    let adapter = folder.arg("theirs");
    let Some((theirs, adapted)) = peft(&base, &adapter, &folder) else { return };
    assert_eq!(adapted, 2 * 2 * 2);
    let error = furthest(&embed(&adapter, &folder, &[]), &theirs);
    assert!(error < 1e-5, "{error}");
    assert!(furthest(&embed(&base, &folder, &[]), &theirs) > 1e-3);
    println!("we read PEFT's: {error:e}");

    // An adapter is also a base to train from.
    folder.write("data.jsonl", DATA);
    let recipe = folder.write(
        "r.toml",
        format!(
            "name = 'on'\n[model]\nbase = '{adapter}'\n\
             [[stage]]\nname = 's'\ndata = ['data.jsonl']\nsteps = 1\nbatch_size = 4\nlr = 1e-9\n"
        ),
    );
    let out = folder.arg("out");
    kiln(&["train", "--recipe", &recipe, "--output", &out]).assert().success();
    let error = furthest(&embed(&folder.arg("out/model"), &folder, &[]), &theirs);
    assert!(error < 1e-5, "{error}");
    stdout(&mut kiln(&["train", "--recipe", &recipe, "--dry-run", "--json"]));
}

/// A jina-embeddings-v3 of random weights with two adapters by name, which adapt its tables too, and the vectors by the
/// base and by each of them.
const SEVERAL: &str = r#"
import json, sys
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoTokenizer, JinaEmbeddingsV3Config, JinaEmbeddingsV3Model
files, out, texts = sys.argv[1:4]
torch.manual_seed(11)
tokenizer = AutoTokenizer.from_pretrained(files)
config = JinaEmbeddingsV3Config(vocab_size=300, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
                                max_position_embeddings=64, type_vocab_size=1, pad_token_id=tokenizer.pad_token_id)
base = JinaEmbeddingsV3Model(config)
for parameter in base.parameters():
    parameter.data += 0.2 * torch.randn_like(parameter)
base.save_pretrained(out)
tokenizer.save_pretrained(out)
def vectors(model):
    rows = []
    for text in json.load(open(texts)):
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=16)).last_hidden_state
        rows.append(states[0].mean(0).tolist())
    return rows
said = {"": vectors(base.eval())}
# As published: the pooler, which no vector comes from, is among them.
targets = ["word_embeddings", "token_type_embeddings", "q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2", "dense"]
for name, place in {"retrieval.query": "retrieval_query", "text-matching": "adapters/text-matching"}.items():
    model = JinaEmbeddingsV3Model.from_pretrained(out)
    lora = LoraConfig(r=4, lora_alpha=3, target_modules=targets, init_lora_weights=False, task_type="FEATURE_EXTRACTION")
    get_peft_model(model, lora).save_pretrained(f"{out}/{place}")
    model = JinaEmbeddingsV3Model.from_pretrained(out)
    said[name] = vectors(PeftModel.from_pretrained(model, f"{out}/{place}").eval())
print(json.dumps(said))
"#;

#[test]
fn one_of_several_adapters_is_taken_by_name() {
    let Some(python) = std::env::var_os("KILN_PYTHON") else {
        return eprintln!(
            "SKIPPED: KILN_PYTHON is not set; tests/run.sh installs peft and sets it"
        );
    };
    let folder = Folder::new();
    let files = folder.model("{ mode = 'mean' }").display().to_string();
    let (model, texts) =
        (folder.arg("jina"), folder.write("texts.json", serde_json::to_string(&TEXTS).unwrap()));
    let output = Command::new(python)
        .args(["-c", SEVERAL, &files, &model, &texts])
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line = String::from_utf8(output.stdout).unwrap();
    let theirs: std::collections::BTreeMap<String, Vec<Vec<f32>>> =
        serde_json::from_str(line.lines().last().unwrap()).unwrap();
    let usual = ["--pooling", "mean", "--max-length", "16"];
    let ours = |model: &str, more: &[&str]| embed(model, &folder, &[&usual[..], more].concat());
    let base = ours(&model, &[]);
    assert!(furthest(&base, &theirs[""]) < 1e-5);
    for name in ["retrieval.query", "text-matching"] {
        let vectors = ours(&model, &["--adapter", name]);
        let error = furthest(&vectors, &theirs[name]);
        assert!(error < 1e-5, "{name}: {error}");
        assert!(furthest(&vectors, &base) > 1e-2);
        assert_eq!(vectors, ours(&format!("{model}#{name}"), &[]));
    }
    // One file for the page, adapter and all.
    let out = folder.arg("query.kiln");
    let args = [
        "export",
        "-m",
        &model,
        "--adapter",
        "retrieval.query",
        "--pooling",
        "mean",
        "--weights",
        "f32",
        "-o",
        &out,
    ];
    stdout(&mut kiln(&args));
    assert!(
        furthest(&embed(&out, &folder, &["--max-length", "16"]), &theirs["retrieval.query"]) < 1e-5
    );

    let said =
        failure(&mut kiln(&["similarity", "-m", &model, "--adapter", "separation", "a", "b"]));
    assert!(
        said.contains("has no adapter \"separation\"; there are retrieval_query, text-matching"),
        "{said}"
    );
    let said = failure(&mut kiln(&["similarity", "-m", &files, "--adapter", "../jina", "a", "b"]));
    assert!(said.contains("is no adapter's name"), "{said}");
}

/// A copy of a named model in a folder.
fn copy_of(name: &str, folder: &Folder) -> (NamedModel, String) {
    let model = NamedModel::all().into_iter().find(|model| model.model == name).unwrap();
    write_directory(&folder.path("model"), &model.folder(), Existing::Refuse).unwrap();
    (model, folder.arg("model"))
}

#[test]
fn an_adapter_for_a_task_is_taken_from_the_models_own_file() {
    let folder = Folder::new();
    let (model, path) = copy_of("jinaai/jina-embeddings-v3", &folder);
    let lines: Vec<String> =
        texts().iter().map(|text| json!({ "text": text }).to_string()).collect();
    let (input, out) = (folder.write("named.jsonl", lines.join("\n")), folder.arg("out.jsonl"));
    let ours = |name: &str, more: &[&str]| -> Vec<Vec<f32>> {
        let args = ["embed", "-m", name, "--input", &input, "--output", &out];
        let mut command = kiln(&args);
        command.args(more).env("XDG_CACHE_HOME", folder.path("cache")).assert().success();
        let read = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            serde_json::from_value(line["embedding"].clone()).unwrap()
        };
        std::fs::read_to_string(&out).unwrap().lines().map(read).collect()
    };
    assert!(furthest(&ours(&path, &[]), &model.vectors()) < 1e-5);
    for (task, expected) in &model.tasks {
        let adapted = ours(&path, &["--adapter", task, "--prompt", ""]);
        assert!(furthest(&adapted, expected) < 2e-5, "{task}");
    }
    // The prompt by the adapter's name, as its own code puts it; in the file for the page, too.
    let name = format!("{path}#retrieval_query");
    let by_default = ours(&name, &[]);
    let prompt = "Represent the query for retrieving evidence documents: ";
    assert_eq!(by_default, ours(&name, &["--prompt", prompt]));
    assert!(furthest(&by_default, &model.tasks["retrieval.query"]) > 1e-2);
    let file = folder.arg("query.kiln");
    let mut export = kiln(&["export", "-m", &name, "--weights", "f32", "-o", &file]);
    export.env("XDG_CACHE_HOME", folder.path("cache")).assert().success();
    assert!(furthest(&ours(&file, &[]), &by_default) < 1e-5);

    let mut command =
        kiln(&["--json", "inspect", "-m", &path, "--adapter", "separation", "--tensors"]);
    let shown = stdout(command.env("XDG_CACHE_HOME", folder.path("cache")));
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["model"], format!("{path}#separation"));
    assert_eq!(shown["adapter_of"], path);
    let said = failure(&mut kiln(&["similarity", "-m", &path, "--adapter", "sparse", "a", "b"]));
    assert!(
        said.contains("there are classification, retrieval.passage, retrieval.query"),
        "{said}"
    );

    // Several processes that make the same folder at the same time.
    let fresh = folder.path("fresh");
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
        command.args(["--device", "cpu", "similarity", "-m", &name, "a", "b"]);
        command.env("XDG_CACHE_HOME", &fresh).stdout(std::process::Stdio::null()).spawn().unwrap()
    };
    let started: Vec<_> = (0..6).map(|_| start()).collect();
    assert!(started.into_iter().all(|mut one| one.wait().unwrap().success()));
    assert_eq!(names(&fresh.join("kiln/adapters")).len(), 1);

    // No place for the adapter.
    let taken = folder.write("taken", "");
    let mut command = kiln(&["similarity", "-m", &name, "a", "b"]);
    let said = failure(command.env("XDG_CACHE_HOME", &taken));
    assert!(said.contains("no place for the adapter") && said.contains("XDG_CACHE_HOME"), "{said}");
}

#[test]
fn a_model_that_needs_an_adapter_says_so() {
    let folder = Folder::new();
    let (_, path) = copy_of("jinaai/jina-embeddings-v5-text-nano", &folder);
    let said = |more: &[&str]| {
        let mut command = kiln(&["similarity", "-m", &path, "a boat", "a ship"]);
        let output = command.args(more).assert().success().get_output().clone();
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(said(&[]).contains("add --adapter retrieval"), "{}", said(&[]));
    let adapter = folder.path("model/adapters/retrieval");
    lora_with(&adapter, "jinaai/jina-embeddings-v5-text-nano", [32, 64], 1.0);
    let with = said(&["--adapter", "retrieval"]);
    assert!(!with.contains("adapter"), "{with}");
}
