//! Models by Hub id, from a local server that answers like the Hub.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::json;

use crate::adapters::lora;
use crate::harness::{Folder, TEXTS, failure, kiln, names, stdout};

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

#[test]
fn an_adapter_by_name_comes_from_the_hub_whole() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path("hub/someone")).unwrap();
    let model = folder.path("hub/someone/tiny");
    std::fs::rename(folder.model("{ mode = 'mean' }"), &model).unwrap();
    // Their maker's own folder, which is of no use to anybody else.
    lora(&model.join("retrieval_query"), "/home/maker/model", 1.0);
    lora(&model.join("adapters/passage"), "/home/maker/model", 2.0);
    let Some(hub) = Hub::start(&folder) else { return };
    let run = |args: &[&str]| {
        let mut command = kiln(&[&["--quiet"], args].concat());
        command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", folder.arg("cache"));
        command
    };
    let similarity = |model: &str| run(&["similarity", "--json", "-m", model, "a river", "a ship"]);
    let local = |name: &str| stdout(&mut similarity(&format!("{}#{name}", model.display())));
    let expected = local("retrieval.query");
    std::fs::create_dir(folder.path("docs")).unwrap();
    folder.write("docs/a.txt", TEXTS.join("\n"));
    let (docs, vectors) = (folder.arg("docs"), folder.arg("vectors/"));
    stdout(&mut run(&["embed", "-m", "someone/tiny", "--input", &docs, "--output", &vectors]));

    // A download that breaks off between the two files.
    let (weights, aside) =
        (model.join("retrieval_query/adapter_model.safetensors"), folder.path("aside"));
    std::fs::rename(&weights, &aside).unwrap();
    let id = "someone/tiny#retrieval.query";
    let error = failure(&mut similarity(id));
    assert!(error.contains("retrieval_query/adapter_model.safetensors"), "{error}");
    let snapshots = folder.path("cache/hub/models--someone--tiny/snapshots");
    let snapshot = snapshots.join(&names(&snapshots)[0]);
    assert_eq!(names(&snapshot.join("retrieval_query")), ["adapter_config.json"]);
    let error = failure(similarity(id).env("HF_HUB_OFFLINE", "1"));
    assert!(error.contains("retrieval_query/adapter_model.safetensors"), "{error}");
    std::fs::rename(&aside, &weights).unwrap();
    assert_eq!(stdout(&mut similarity(id)), expected);
    assert_eq!(stdout(similarity(id).env("HF_HUB_OFFLINE", "1")), expected);
    // A whole one is not asked for again.
    let asked = || {
        // The log is read by another thread.
        std::thread::sleep(std::time::Duration::from_millis(200));
        hub.requests.lock().unwrap().iter().filter(|path| path.contains("retrieval_query")).count()
    };
    let before = asked();
    assert_eq!(stdout(&mut similarity(id)), expected);
    assert_eq!(asked(), before);

    assert_eq!(stdout(&mut similarity("someone/tiny#passage")), local("passage"));
    let error = failure(&mut similarity("someone/tiny#separation"));
    let known = "has no adapter \"separation\"; there are passage, retrieval_query";
    assert!(error.contains(known), "{error}");
    // By itself it is a stranger's that names a folder.
    let error = failure(&mut similarity(&snapshot.join("retrieval_query").display().to_string()));
    assert!(error.contains("names the base model"), "{error}");
    // The model's vectors are what they were before it had adapters.
    stdout(&mut run(&["search", "-m", "someone/tiny", "-Q", "x", "--index", &vectors]));
}

#[test]
fn a_model_goes_to_the_hub_and_comes_back() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'latent_attention', latents = 4, heads = 2 }");
    let model = model.display().to_string();
    std::fs::create_dir_all(folder.path("hub")).unwrap();
    let Some(hub) = Hub::start(&folder) else { return };
    let push = |args: &[&str], token: &str| {
        let mut command = kiln(&[&["--quiet", "push"], args].concat());
        command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", folder.arg("cache"));
        command.env("HF_TOKEN", token);
        command
    };
    let id = "someone/pushed";
    let error = failure(&mut push(&[&model, id], "hf_reader"));
    assert!(error.contains("HF_TOKEN"), "{error}");
    assert!(!folder.path("hub/someone").exists());
    let url = stdout(&mut push(&[&model, id], "hf_writer"));
    assert!(url.contains("someone/pushed"), "{url}");
    let compare = |i: &str| {
        let mut command = kiln(&["--quiet", "similarity", "--json", "-m", i, "a river", "a ship"]);
        command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", folder.arg("cache"));
        stdout(&mut command)
    };
    assert_eq!(compare(id), compare(&model));

    let error = failure(&mut push(&[&folder.arg("hub"), id], "hf_writer"));
    assert!(error.contains("config.json"), "{error}");
    let error = failure(&mut push(&[&model, "no id"], "hf_writer"));
    assert!(error.contains("owner/name"), "{error}");
    let error = failure(push(&[&model, id], "hf_writer").env("HF_HUB_OFFLINE", "1"));
    assert!(error.contains("HF_HUB_OFFLINE"), "{error}");
}
