//! Models by Hub id, from a local server that answers like the Hub.

mod adapters;
mod push;
mod pytorch;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::{Folder, failure, kiln, names, stdout};

/// The server, ended with the test.
pub(crate) struct Hub {
    child: Child,
    pub(crate) endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Hub {
    pub(crate) fn start(folder: &Folder) -> Option<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/reference/hub.py");
        let child = Command::new("python3")
            .args([script, &folder.arg("hub")])
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            eprintln!("SKIPPED: python3 is not installed");
            return None;
        };
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let endpoint = format!("http://127.0.0.1:{}", lines.next().unwrap().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = requests.clone();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| log.lock().unwrap().push(line))
        });
        Some(Self { child, endpoint, requests })
    }

    /// Files that were asked for.
    fn files(&self) -> Vec<String> {
        // The log is read by another thread.
        std::thread::sleep(std::time::Duration::from_millis(200));
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|path| path.contains("/resolve/")).cloned().collect()
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            std::fs::copy(from, to).unwrap();
        }
    }
}

/// Moves the files of a model's first module into a folder of their own.
fn nest(model: &Path, name: &str) {
    std::fs::create_dir(model.join(name)).unwrap();
    for file in names(model) {
        let stays = ["modules.json", "config_sentence_transformers.json"].contains(&&*file);
        if !stays && model.join(&file).is_file() {
            std::fs::rename(model.join(&file), model.join(name).join(&file)).unwrap();
        }
    }
    change(&model.join("modules.json"), |modules| modules[0]["path"] = name.into());
}

fn change(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    change(&mut value);
    std::fs::write(file, value.to_string()).unwrap();
}

impl Drop for Hub {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_model_comes_from_the_hub_once_and_works_offline_afterwards() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'latent_attention', latents = 4, heads = 2 }");
    std::fs::create_dir_all(folder.path("hub/someone")).unwrap();
    std::fs::rename(&model, folder.path("hub/someone/tiny-model")).unwrap();
    let Some(hub) = Hub::start(&folder) else { return };
    let cache = folder.arg("cache");
    let run = |id: &str, endpoint: &str| {
        let mut command =
            kiln(&["--quiet", "similarity", "--json", "--model", id, "a river", "a ship"]);
        command.env("HF_ENDPOINT", endpoint).env("HF_HOME", &cache);
        command
    };
    let local = folder.arg("hub/someone/tiny-model");
    let expected = stdout(&mut kiln(&[
        "--quiet",
        "similarity",
        "--json",
        "--model",
        &local,
        "a river",
        "a ship",
    ]));
    assert_eq!(stdout(&mut run("someone/tiny-model", &hub.endpoint)), expected);
    let weights = || {
        // The log is read by another thread.
        std::thread::sleep(std::time::Duration::from_millis(200));
        let requests = hub.requests.lock().unwrap();
        requests.iter().filter(|path| path.contains("/model.safetensors")).count()
    };
    let before = weights();
    assert!(before > 0);
    // The second time the weights come from the cache, a revision is another snapshot.
    assert_eq!(stdout(&mut run("someone/tiny-model", &hub.endpoint)), expected);
    assert_eq!(weights(), before);
    assert_eq!(stdout(&mut run("someone/tiny-model@v1", &hub.endpoint)), expected);

    let error = failure(&mut run("someone/other", &hub.endpoint));
    assert!(error.contains("someone/other") && error.contains("not found"), "{error}");
    let error = failure(&mut run("someone/tiny-model@v9", &hub.endpoint));
    assert!(error.contains("v9"), "{error}");
    let closed = hub.endpoint.clone();
    drop(hub);
    // Nobody answers: what was downloaded still works, what was not is an error.
    assert_eq!(stdout(&mut run("someone/tiny-model", &closed)), expected);
    assert_eq!(stdout(run("someone/tiny-model", &closed).env("HF_HUB_OFFLINE", "1")), expected);
    let error = failure(&mut run("someone/new", &closed));
    assert!(error.contains("someone/new"), "{error}");
}

#[test]
fn of_a_model_that_cannot_be_read_the_configuration_alone_is_asked_for() {
    let folder = Folder::new();
    for (name, config, what) in [
        ("deberta", json!({"model_type": "deberta-v2"}), "unknown model_type \"deberta-v2\""),
        (
            "experts",
            json!({"model_type": "nomic_bert", "n_embd": 16, "n_head": 2, "n_inner": 32, "n_layer": 2,
                   "n_positions": 64, "vocab_size": 50, "num_experts": 4, "moe_top_k": 2,
                   "moe_every_n_layers": 2, "num_shared_experts": 1}),
            "num_shared_experts",
        ),
    ] {
        let model = folder.path(&format!("hub/someone/{name}"));
        std::fs::create_dir_all(&model).unwrap();
        std::fs::write(model.join("config.json"), config.to_string()).unwrap();
        std::fs::write(model.join("model.safetensors"), "large").unwrap();
        let Some(hub) = Hub::start(&folder) else { return };
        let id = format!("someone/{name}");
        for args in [
            &["--quiet", "inspect", "-m", &id][..],
            &["--quiet", "similarity", "-m", &id, "a river", "a ship"],
        ] {
            let mut command = kiln(args);
            command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", folder.arg("cache"));
            let error = failure(&mut command);
            let line = format!("error: {id}: config.json: ");
            assert!(error.starts_with(&line) && error.contains(what), "{error}");
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
        let requests = hub.requests.lock().unwrap();
        let files = requests.iter().filter(|path| path.contains("/resolve/"));
        assert!(files.clone().count() > 0);
        assert!(files.clone().all(|path| path.contains("config.json")), "{requests:?}");
    }
}

/// Whatever a command asks for first: a table's shape is in its weights.
#[test]
fn tables_come_from_the_hub_in_every_command() {
    let folder = Folder::new();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/static");
    let hub_folder = folder.path("hub/someone");
    // As of potion, of models that sentence-transformers saved, and of static-retrieval-mrl-en-v1.
    copy(&fixtures.join("model2vec"), &hub_folder.join("model2vec"));
    copy(&fixtures.join("sentence-transformers"), &hub_folder.join("listed"));
    copy(&fixtures.join("sentence-transformers"), &hub_folder.join("nested"));
    nest(&hub_folder.join("nested"), "0_StaticEmbedding");
    std::fs::create_dir(folder.path("docs")).unwrap();
    // Of words that the table has.
    folder.write("docs/a.txt", "a sea\ntin\n");
    let rows = "{\"query\":\"a sea\",\"pos\":[\"tin\"]}\n{\"query\":\"rose\",\"pos\":[\"a b\"]}\n";
    let data = folder.write("data.jsonl", rows);
    let Some(hub) = Hub::start(&folder) else { return };
    for name in ["model2vec", "listed", "nested"] {
        let id = format!("someone/{name}");
        // Nothing is in the cache yet.
        let run = |cache: &str, args: &[&str]| {
            let mut command = kiln(&[&["--quiet"], args].concat());
            let cache = folder.arg(&format!("cache-{name}-{cache}"));
            command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", cache);
            stdout(&mut command)
        };
        let similarity = |model: &str| {
            run("similarity", &["similarity", "--json", "-m", model, "a river", "a ship"])
        };
        let local = hub_folder.join(name).display().to_string();
        assert_eq!(similarity(&id), similarity(&local), "{name}");
        let (docs, vectors) = (folder.arg("docs"), folder.arg(&format!("{name}/")));
        run("embed", &["embed", "-m", &id, "--input", &docs, "--output", &vectors]);
        let recipe = folder.write(
            "recipe.toml",
            format!(
                "name = 'r'\n[model]\nbase = '{id}'\n[[stage]]\nname = 's'\ndata = ['{data}']\nsteps = 1\n\
                 batch_size = 2\nlr = 1e-3\n"
            ),
        );
        run("train", &["train", "-r", &recipe, "--dry-run", "-o", &folder.arg("out")]);
        let shown = run("inspect", &["inspect", "--json", "-m", &id]);
        assert!(shown.contains("parameters"), "{shown}");
    }
}

#[test]
fn a_transformer_in_a_folder_of_its_own_comes_from_the_hub() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path("hub/someone")).unwrap();
    let model = folder.path("hub/someone/nested");
    std::fs::rename(folder.model("{ mode = 'cls' }"), &model).unwrap();
    let similarity = |model: &str| {
        let mut command =
            kiln(&["--quiet", "similarity", "--json", "--model", model, "a river", "a ship"]);
        command.env("HF_HOME", folder.arg("cache"));
        command
    };
    let expected = stdout(&mut similarity(&model.display().to_string()));
    nest(&model, "0_Transformer");
    assert_eq!(stdout(&mut similarity(&model.display().to_string())), expected);
    let Some(hub) = Hub::start(&folder) else { return };
    let found = stdout(similarity("someone/nested").env("HF_ENDPOINT", &hub.endpoint));
    assert_eq!(found, expected);
}

#[test]
fn modules_that_cannot_be_read_are_refused_before_the_weights_come() {
    let folder = Folder::new();
    let base = folder.model("{ mode = 'mean' }");
    let dense = |activation: &'static str, residual: bool| {
        move |model: &Path| {
            change(&model.join("modules.json"), |modules| {
                modules[2] = json!({"idx": 2, "name": "2", "path": "2_Dense",
                    "type": "sentence_transformers.models.Dense"});
            });
            std::fs::create_dir(model.join("2_Dense")).unwrap();
            let config = json!({"in_features": 16, "out_features": 16, "bias": true,
                "activation_function": activation, "use_residual": residual});
            std::fs::write(model.join("2_Dense/config.json"), config.to_string()).unwrap();
        }
    };
    let module = |kind: &'static str| {
        move |model: &Path| {
            change(&model.join("modules.json"), |modules| {
                modules[1]["type"] = format!("sentence_transformers.models.{kind}").into();
            });
        }
    };
    // As sentence-transformers saves two models that share nothing.
    let router = |kind: &'static str| {
        move |model: &Path| {
            nest(model, "query_0_Transformer");
            let class = format!("sentence_transformers.models.{kind}");
            let modules = json!([{"idx": 0, "name": "0", "path": "", "type": class}]);
            std::fs::write(model.join("modules.json"), modules.to_string()).unwrap();
        }
    };
    let max = |model: &Path| {
        let config = json!({"word_embedding_dimension": 16, "pooling_mode_max_tokens": true});
        std::fs::write(model.join("1_Pooling/config.json"), config.to_string()).unwrap();
    };
    let (odd, residual) = (dense("torch.nn.modules.activation.Mish", false), dense("Tanh", true));
    type Change<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, &str, Change<'_>); 7] = [
        (
            "router",
            "\"Router\" sends queries and documents through different models",
            &router("Router"),
        ),
        ("asym", "\"Asym\" sends queries and documents through different models", &router("Asym")),
        ("splade", "\"SpladePooling\" is not supported", &module("SpladePooling")),
        ("cnn", "\"CNN\" is not supported", &module("CNN")),
        ("max", "\"pooling_mode_max_tokens\" is not supported", &max),
        ("mish", "the activation \"Mish\" is not supported", &odd),
        ("residual", "use_residual is true", &residual),
    ];
    for (name, _, spoil) in &cases {
        let model = folder.path(&format!("hub/someone/{name}"));
        copy(&base, &model);
        spoil(&model);
    }
    let Some(hub) = Hub::start(&folder) else { return };
    for (name, what, _) in cases {
        // Here, too.
        let local = folder.arg(&format!("hub/someone/{name}"));
        let error = failure(&mut kiln(&["--quiet", "inspect", "-m", &local]));
        assert!(error.contains(what), "{name}: {error}");
        let id = format!("someone/{name}");
        let mut command = kiln(&["--quiet", "inspect", "-m", &id]);
        command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", folder.arg("cache"));
        let error = failure(&mut command);
        assert!(error.starts_with(&format!("error: {id}: ")) && error.contains(what), "{error}");
    }
    let files = hub.files();
    assert!(files.iter().any(|file| file.contains("modules.json")), "{files:?}");
    // Behind the revision.
    let path = |file: &String| {
        file.split("/resolve/").nth(1)?.split_once('/').map(|(_, path)| path.to_string())
    };
    let is_weights =
        |path: &String| path.starts_with("model.") || path.starts_with("pytorch_model");
    let weights: Vec<_> = files.iter().filter_map(path).filter(is_weights).collect();
    assert!(weights.is_empty(), "{weights:?}");
}
