//! Several adapters of a model, each for a task, one of which is taken by name.

use std::process::Command;

use kiln_embed::checkpoint::{Existing, write_directory};
use serde_json::json;

use super::{furthest, lora, lora_with};
use crate::harness::{Folder, TEXTS, embed, failure, kiln, names, stdout};
use crate::named::{NamedModel, texts};

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
