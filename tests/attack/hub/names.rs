//! Names that leave the cache: of files, shards, modules, revisions, commits, and links.

use std::collections::BTreeMap;

use super::server::{COMMIT, Files, ID, Reply, git};
use super::{User, WEIGHTS, honest, lying_about, server};
use crate::harness::{failure, kiln};

const INDEX: &str = "model.safetensors.index.json";

/// Names that no repository may call its files.
pub(super) fn names_that_leave(user: &User) -> Vec<String> {
    let up = "../".repeat(6);
    vec![
        user.canary(),
        format!("{}.safetensors", user.canary()),
        format!("{up}canary"),
        "../../../../../canary".into(),
        "deep/../../../../canary".into(),
        "./canary".into(),
        "deep//canary".into(),
        "..\\..\\canary".into(),
        "C:\\canary".into(),
        "//host/canary".into(),
        "canary\u{1b}[2J".into(),
        "canary\n".into(),
        "a".repeat(5000),
    ]
}

#[test]
fn shards_that_leave_the_cache_are_refused_before_they_are_asked_for() {
    let user = User::new();
    for name in names_that_leave(&user) {
        for there in [true, false] {
            let index = serde_json::json!({ "weight_map": { "a": WEIGHTS, "b": name } });
            let files = user.files.clone().with(INDEX, index.to_string());
            let hub = server(&files, move |request, reply| match request.file() {
                // A canary of the Hub's, or none.
                Some(file) if file.contains("canary") && there => Reply::new(200)
                    .with("X-Repo-Commit", COMMIT)
                    .with("ETag", format!("\"{}\"", git(b"evil")))
                    .body("evil"),
                _ => reply,
            });
            user.refused(&mut user.inspect(&hub), &[INDEX, "no path inside it"]);
            assert!(hub.requests().iter().all(|request| !request.path.contains("canary")));
            std::fs::remove_dir_all(user.folder.path("home/cache")).unwrap();
        }
    }
}

#[test]
fn every_command_that_reads_a_repository_checks_its_names() {
    let user = User::new();
    let texts = user.folder.texts();
    let name = user.canary();
    let index = serde_json::json!({ "weight_map": { "a": name } }).to_string();
    let modules = serde_json::json!([{ "idx": 0, "name": "0", "path": name, "type": "x.Pooling" }]);
    let recipe = user.folder.write(
        "recipe.toml",
        format!(
            "name = 'r'\n[model]\nbase = '{ID}'\n[[stage]]\nname = 's'\ndata = ['{texts}']\n\
             steps = 1\nbatch_size = 2\nlr = 1e-3\n"
        ),
    );
    let gguf = user.folder.write("model.gguf", "GGUF");
    let out = user.folder.arg("out");
    let commands: [&[&str]; 4] = [
        &["inspect", "--model", ID],
        &["similarity", "--model", ID, "a", "b"],
        &["import", &gguf, "--like", ID, "--output", &out],
        &["train", "--recipe", &recipe, "--dry-run", "--output", &out],
    ];
    for args in commands {
        let modules = user.files.clone().with("modules.json", modules.to_string());
        let hub = honest(&modules);
        user.refused(&mut user.run(&hub, args), &["modules.json", "no path inside it"]);
        assert!(hub.requests().iter().all(|request| !request.path.contains("canary")));
    }
    // The cache has the list of modules of that commit.
    std::fs::remove_dir_all(user.folder.path("home/cache")).unwrap();
    let shards = honest(&user.files.clone().with(INDEX, index));
    for args in &commands[..2] {
        user.refused(&mut user.run(&shards, args), &[INDEX, "no path inside it"]);
    }
}

#[test]
fn modules_that_leave_the_cache_are_refused_before_they_are_asked_for() {
    let user = User::new();
    for name in names_that_leave(&user) {
        let modules =
            serde_json::json!([{ "idx": 0, "name": "0", "path": name, "type": "x.Pooling" }]);
        let hub = honest(&user.files.clone().with("modules.json", modules.to_string()));
        user.refused(&mut user.inspect(&hub), &["modules.json", "no path inside it"]);
        assert!(hub.requests().iter().all(|request| !request.path.contains("canary")));
        std::fs::remove_dir_all(user.folder.path("home/cache")).unwrap();
    }
}

#[test]
fn encoded_names_are_names() {
    let user = User::new();
    let index = serde_json::json!({ "weight_map": { "a": "..%2f..%2fcanary" } }).to_string();
    let hub = honest(&user.files.clone().with(INDEX, index));
    user.refused(&mut user.inspect(&hub), &["..%2f..%2fcanary"]);
    // What the Hub decodes is the name itself.
    assert!(hub.requests().iter().any(|request| request.path.ends_with("/..%252f..%252fcanary")));
}

#[test]
fn local_folders_do_not_leave_themselves() {
    let user = User::new();
    let model = user.folder.path("model");
    let modules = std::fs::read_to_string(model.join("modules.json")).unwrap();
    for name in names_that_leave(&user) {
        let named =
            serde_json::json!([{ "idx": 0, "name": "0", "path": name, "type": "x.Pooling" }]);
        std::fs::write(model.join("modules.json"), named.to_string()).unwrap();
        let error = failure(&mut kiln(&["--quiet", "inspect", "--model", model.to_str().unwrap()]));
        assert!(error.contains("modules.json"), "{error}");
        std::fs::write(model.join("modules.json"), &modules).unwrap();

        let index = serde_json::json!({ "weight_map": { "a": name } }).to_string();
        std::fs::write(model.join(INDEX), index).unwrap();
        let error = failure(&mut kiln(&["--quiet", "inspect", "--model", model.to_str().unwrap()]));
        assert!(error.contains(INDEX), "{error}");
        std::fs::remove_file(model.join(INDEX)).unwrap();
    }
    user.check();
}

#[test]
fn adapters_of_a_stranger_do_not_open_the_users_folders() {
    let user = User::new();
    let model = user.folder.arg("model");
    for base in [model.as_str(), "/dev/stdin", "../x", "./model"] {
        let config = serde_json::json!({
            "peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": base,
        });
        let files = Files(BTreeMap::new())
            .with("adapter_config.json", config.to_string())
            .with("adapter_model.safetensors", "x");
        // Alone, and as LLM2Vec has them.
        let both = files.clone().with("config.json", "{}").with("tokenizer.json", "{}");
        for files in [files, both] {
            let hub = honest(&files);
            for args in [["inspect", "--model", ID].as_slice(), &["similarity", "-m", ID, "a", "b"]]
            {
                let error = failure(&mut user.run(&hub, args));
                assert!(
                    error.contains("adapter_config.json") && error.contains("base model"),
                    "{error}"
                );
            }
        }
    }
    user.check();
}

#[test]
fn etags_are_no_paths() {
    let user = User::new();
    let up = format!("{}canary", "../".repeat(6));
    for etag in [user.canary(), up, "..".into(), "a/../../b".into(), "x".repeat(3000)] {
        let tag = etag.clone();
        let hub = server(&user.files, move |request, reply| match request.file() {
            Some(_) if reply.status == 200 => {
                reply.without("X-Linked-Etag").with("ETag", format!("\"{tag}\""))
            }
            _ => reply,
        });
        // One content for every file is a model that does not load, and nothing worse.
        let _ = user.inspect(&hub).output().unwrap();
        user.check();
        let hub = lying_about("config.json", &user.files, move |_, reply| {
            reply.with("ETag", format!("\"{etag}\""))
        });
        std::fs::remove_dir_all(user.folder.path("home/cache")).unwrap();
        user.accepted(&mut user.inspect(&hub));
    }
    let hub = lying_about("config.json", &user.files, |_, reply| reply.without("ETag"));
    std::fs::remove_dir_all(user.folder.path("home/cache")).unwrap();
    user.refused(&mut user.inspect(&hub), &["config.json", "ETag"]);
}

#[test]
fn commits_are_no_paths() {
    let user = User::new();
    for commit in ["../", "../../../../deep", "..", &user.canary(), "", &"g".repeat(40), "HEAD"] {
        let named = commit.to_string();
        let hub = server(&user.files, move |_, reply| reply.with("X-Repo-Commit", &named));
        user.refused(&mut user.inspect(&hub), &["commit"]);
        assert!(!user.repo().join("snapshots").exists());
        let info = serde_json::json!({ "sha": commit }).to_string();
        let hub = server(&user.files, move |request, reply| {
            if request.path.starts_with("/api/") { Reply::new(200).body(&info) } else { reply }
        });
        user.refused(&mut user.inspect(&hub), &["commit"]);
    }
    // Files of two commits are not mixed.
    let hub =
        lying_about(WEIGHTS, &user.files, |_, reply| reply.with("X-Repo-Commit", "f".repeat(40)));
    user.refused(&mut user.inspect(&hub), &[WEIGHTS, "commit"]);
}

#[test]
fn revisions_are_no_paths() {
    let user = User::new();
    let hub = honest(&user.files);
    for revision in ["../../canary", "/canary", "a/../b", "..", "a\\b", ""] {
        let id = format!("{ID}@{revision}");
        failure(&mut user.run(&hub, &["inspect", "--model", &id]));
    }
    assert!(hub.requests().is_empty());
    user.check();
    // A reference that was planted is not followed.
    user.accepted(&mut user.inspect(&hub));
    let deep = user.folder.arg("home/deep");
    for planted in ["../../../../../deep", &deep, &"x".repeat(100_000)] {
        std::fs::write(user.repo().join("refs/main"), planted).unwrap();
        let error = failure(user.inspect(&hub).env("HF_HUB_OFFLINE", "1"));
        assert!(error.contains("the cache does not have"), "{error}");
    }
}

#[test]
#[cfg(unix)]
fn links_in_the_cache_lead_nowhere_else() {
    let user = User::new();
    let hub = honest(&user.files);
    let outside = user.folder.path("home/deep");
    for place in ["snapshots", "blobs", "refs", &format!("snapshots/{COMMIT}")] {
        let place = user.repo().join(place);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(&outside, &place).unwrap();
        user.refused(&mut user.inspect(&hub), &["is a link"]);
        std::fs::remove_dir_all(user.folder.path("home/cache")).unwrap();
    }
    // A file's link that leads out is replaced, and what it leads to is not.
    std::fs::create_dir_all(user.snapshot()).unwrap();
    let links = [(WEIGHTS, "home/canary.safetensors"), ("config.json", "home/config.json")];
    for (file, target) in links {
        std::os::unix::fs::symlink(user.folder.path(target), user.snapshot().join(file)).unwrap();
    }
    user.accepted(&mut user.inspect(&hub));
}
