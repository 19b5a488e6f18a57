//! A hostile Hub: names that leave the cache, answers that lie, bodies cut short.

mod server;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::harness::{Disk, Folder, failure, kiln, stdout};
use server::{COMMIT, Files, ID, Reply, Request, Server, Then, git, sha256};

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const TOKEN: &str = "hf_secret";

/// A user with a model's files at hand, a cache, and files that are none of the Hub's business.
struct User {
    folder: Folder,
    files: Files,
    kept: BTreeMap<PathBuf, Vec<u8>>,
}

impl User {
    fn new() -> Self {
        let folder = Folder::new();
        let files = Files::of(&folder.model("{ mode = 'mean' }"));
        std::fs::create_dir_all(folder.path("home/deep")).unwrap();
        for name in
            ["home/canary", "home/canary.safetensors", "home/config.json", "home/deep/canary"]
        {
            folder.write(name, "the user's own");
        }
        let kept = content(&folder.path("home"));
        Self { folder, files, kept }
    }

    fn canary(&self) -> String {
        self.folder.arg("home/canary")
    }

    fn repo(&self) -> PathBuf {
        self.folder.path("home/cache/hub/models--someone--model")
    }

    fn snapshot(&self) -> PathBuf {
        self.repo().join("snapshots").join(COMMIT)
    }

    /// A command that asks a server.
    fn run(&self, server: &Server, args: &[&str]) -> assert_cmd::Command {
        let mut command = kiln(&["--quiet"]);
        command.args(args).env("HF_ENDPOINT", server.url()).env("HF_TOKEN", TOKEN);
        command.env("HF_HOME", self.folder.path("home/cache")).env("NO_PROXY", "127.0.0.1");
        for name in
            ["HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"]
        {
            command.env_remove(name);
        }
        command
    }

    fn inspect(&self, server: &Server) -> assert_cmd::Command {
        self.run(server, &["inspect", "--model", ID])
    }

    /// Nothing of the user's has changed, and the cache holds only what belongs there.
    fn check(&self) {
        let mut now = content(&self.folder.path("home"));
        now.retain(|path, _| !path.starts_with(self.folder.path("home/cache")));
        assert_eq!(now, self.kept);
        let blobs = self.repo().join("blobs");
        if blobs.is_symlink() {
            return;
        }
        let Ok(blobs) = std::fs::read_dir(blobs) else { return };
        for blob in blobs {
            let blob = blob.unwrap();
            let name = blob.file_name().into_string().unwrap();
            let bytes = std::fs::read(blob.path()).unwrap();
            let sound = name == sha256(&bytes) || name == git(&bytes) || name.starts_with("tag-");
            assert!(sound || name.ends_with(".incomplete"), "{name}");
        }
    }

    /// The command fails in one line, which says some words, and does no harm.
    fn refused(&self, command: &mut assert_cmd::Command, words: &[&str]) -> String {
        let error = failure(command);
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert!(error.contains(ID), "{error}");
        assert!(!error.contains(TOKEN), "{error}");
        self.check();
        error
    }

    /// The command works, and does no harm.
    fn accepted(&self, command: &mut assert_cmd::Command) -> String {
        let actual = stdout(command);
        self.check();
        actual
    }
}

/// Files below a folder, links not followed.
fn content(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut result = BTreeMap::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_symlink() {
                let target = std::fs::read_link(entry.path()).unwrap();
                result.insert(entry.path(), target.to_string_lossy().into_owned().into_bytes());
            } else {
                result.insert(entry.path(), std::fs::read(entry.path()).unwrap());
            }
        }
    }
    result
}

/// A server that is honest but where a test says otherwise.
fn server(files: &Files, lie: impl Fn(&Request, Reply) -> Reply + Send + Sync + 'static) -> Server {
    let files = files.clone();
    Server::start(move |request| lie(request, files.answer(request)))
}

fn honest(files: &Files) -> Server {
    server(files, |_, reply| reply)
}

/// An honest server but for the content of one file.
fn lying_about(
    file: &'static str,
    files: &Files,
    lie: impl Fn(&Request, Reply) -> Reply + Send + Sync + 'static,
) -> Server {
    server(
        files,
        move |request, reply| {
            if request.file() == Some(file) { lie(request, reply) } else { reply }
        },
    )
}

/// Names that no repository may call its files.
fn names_that_leave(user: &User) -> Vec<String> {
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
fn what_is_not_its_sum_is_not_kept() {
    let user = User::new();
    for file in [WEIGHTS, "config.json"] {
        let hub = lying_about(file, &user.files, |request, mut reply| {
            if request.is_get() {
                let last = reply.body.len() - 1;
                reply.body[last] ^= 1;
            }
            reply
        });
        user.refused(&mut user.inspect(&hub), &[file, "not what the Hub announced"]);
        let tag = user.files.0.get(file).map(|bytes| [sha256(bytes), git(bytes)]).unwrap();
        let blobs = user.repo().join("blobs");
        for name in tag.iter().flat_map(|tag| [tag.clone(), format!("{tag}.incomplete")]) {
            assert!(!blobs.join(&name).exists(), "{name}");
        }
        assert!(!user.snapshot().join(file).exists());
        std::fs::remove_dir_all(user.folder.path("home/cache")).unwrap();
    }
    user.accepted(&mut user.inspect(&honest(&user.files)));
}

#[test]
fn the_token_stays_with_the_hub() {
    let user = User::new();
    let store = honest(&user.files);
    let other = store.address.clone();
    // As the real Hub does for large files, in the ways that an address can be written.
    let ways = [
        format!("http://{other}/x/resolve/main/{WEIGHTS}"),
        format!("//{other}/x/resolve/main/{WEIGHTS}"),
        format!("/\\{other}/x/resolve/main/{WEIGHTS}"),
        format!("\\\\{other}/x/resolve/main/{WEIGHTS}"),
        format!("http:\\\\{other}/x/resolve/main/{WEIGHTS}"),
        format!("http://127.0.0.1@{other}/x/resolve/main/{WEIGHTS}"),
    ];
    for way in ways {
        let hub = lying_about(WEIGHTS, &user.files, move |_, reply| {
            Reply { status: 302, ..reply }.with("Location", &way).body("")
        });
        let before = store.requests().len();
        user.accepted(&mut user.inspect(&hub));
        assert!(store.requests().len() > before);
        let sent = format!("Bearer {TOKEN}");
        assert!(
            hub.requests().iter().all(|one| one.header("authorization") == Some(sent.as_str()))
        );
        std::fs::remove_dir_all(user.folder.path("home/cache")).unwrap();
    }
    // A mirror that sends everything elsewhere.
    let hub = Server::start(move |request| {
        Reply::new(307).with("Location", format!("http://{other}{}", request.path)).body("")
    });
    user.accepted(&mut user.inspect(&hub));
    for request in store.requests() {
        assert_eq!(request.header("authorization"), None, "{request:?}");
        assert!(!format!("{request:?}").contains(TOKEN));
    }
}

#[test]
fn what_is_pushed_goes_where_the_hub_says_without_the_token() {
    let user = User::new();
    let model = user.folder.arg("model");
    let sent = format!("Bearer {TOKEN}");
    let push = |place: String| {
        let hub = Server::start(move |request| {
            let asked: serde_json::Value =
                serde_json::from_slice(&request.body).unwrap_or_default();
            let answer = if request.path.contains("/preupload/") {
                let files = asked["files"].as_array().unwrap().iter();
                let large = |file: &serde_json::Value| serde_json::json!({ "path": file["path"], "uploadMode": "lfs" });
                serde_json::json!({ "files": files.map(large).collect::<Vec<_>>() })
            } else if request.path.ends_with("/objects/batch") {
                let objects = asked["objects"].as_array().unwrap().iter();
                let actions = serde_json::json!({
                    "upload": { "href": place, "header": { "Authorization": "x" } },
                    "verify": { "href": place },
                });
                let object = |one: &serde_json::Value| serde_json::json!({ "oid": one["oid"], "size": one["size"], "actions": actions });
                serde_json::json!({ "objects": objects.map(object).collect::<Vec<_>>() })
            } else {
                serde_json::json!({ "commitUrl": "https://hub/\u{1b}[2Jcommit" })
            };
            Reply::new(200).body(answer.to_string())
        });
        let command = user.run(&hub, &["push", &model, ID]);
        (hub, command)
    };
    let store = Server::start(|_| Reply::new(200).body("{}"));
    for way in [store.url(), format!("//{}", store.address), format!("/\\{}", store.address)] {
        let (hub, mut command) = push(format!("{way}/put?signed"));
        let address = stdout(&mut command);
        assert_eq!(address.trim(), "https://hub/[2Jcommit");
        assert!(hub.requests().iter().all(|one| one.header("authorization") == Some(&sent)));
    }
    let weights = &user.files.0[WEIGHTS];
    assert!(store.requests().iter().any(|request| request.body == *weights));
    for request in store.requests() {
        assert_eq!(request.header("authorization"), None);
    }
    for place in [format!("file://{}", user.canary()), "ftp://host/x".into()] {
        let (_hub, mut command) = push(place);
        let error = failure(&mut command);
        assert!(error.contains(ID) && !error.contains(TOKEN), "{error}");
    }
    user.check();
}

#[test]
fn redirects_are_few_and_on_the_web() {
    let user = User::new();
    let file = format!("file://{}", user.canary());
    for place in ["/again", &file, "data:,evil", "ftp://127.0.0.1/x", "http://", "gopher:x"] {
        let to = place.to_string();
        let hub = Server::start(move |_| Reply::new(302).with("Location", &to).body(""));
        user.refused(&mut user.inspect(&hub), &["leads"]);
        assert!(hub.requests().len() < 20);
    }
}

#[test]
fn lists_are_followed_on_the_hub_alone_and_not_for_ever() {
    let user = User::new();
    let other = honest(&user.files);
    let run = |hub: &Server| {
        let args = ["eval", "-m", "model", "--task", "sts", "--data", "hub:someone/model"];
        let mut command = user.run(hub, &args);
        command
            .current_dir(user.folder.path(""))
            .env("KILN_EMBEDDINGS", user.folder.path("vectors"));
        command
    };
    let page = |path: &str| {
        serde_json::json!([{ "type": "file", "oid": "0", "path": path, "size": 4 }]).to_string()
    };
    let way = other.address.clone();
    for next in [format!("http://{way}/api"), format!("//{way}/api"), format!("/\\{way}/api")] {
        let body = page("test.jsonl");
        let hub = Server::start(move |_| {
            Reply::new(200).with("Link", format!("<{next}>; rel=\"next\"")).body(&body)
        });
        user.refused(&mut run(&hub), &["another server"]);
    }
    assert!(other.requests().is_empty());
    // A list that goes on and on.
    let body = page("test.jsonl");
    let hub = Server::start(move |_| {
        Reply::new(200).with("Link", "</api/again>; rel=\"next\"").body(&body)
    });
    user.refused(&mut run(&hub), &["pages"]);
    // Names that are no paths are nobody's files.
    let names: Vec<_> = names_that_leave(&user)
        .into_iter()
        .chain(["test.jsonl".into()])
        .map(|path| serde_json::json!({ "type": "file", "oid": "0", "path": path, "size": 4 }))
        .collect();
    let list = serde_json::to_string(&names).unwrap();
    let rows = "{\"sentence1\": \"a ship\", \"sentence2\": \"a boat\", \"score\": 1}\n\
                {\"sentence1\": \"a ship\", \"sentence2\": \"a river\", \"score\": 0.5}\n\
                {\"sentence1\": \"a ship\", \"sentence2\": \"tea\", \"score\": 0}\n";
    let files = Files(BTreeMap::new()).with("test.jsonl", rows);
    let hub = server(&files, move |request, reply| {
        if request.path.contains("/tree/") { Reply::new(200).body(&list) } else { reply }
    });
    user.accepted(&mut run(&hub));
    assert!(hub.requests().iter().all(|request| !request.path.contains("canary")));
}

#[test]
fn endless_answers_end() {
    let user = User::new();
    // Longer than announced, also where what was announced came first.
    for file in [WEIGHTS, "config.json"] {
        let hub = lying_about(file, &user.files, |request, reply| {
            let reply = reply.then(Then::Endless);
            if request.is_get() { reply.without("Content-Length") } else { reply }
        });
        let output = user.inspect(&hub).output().unwrap();
        assert!(output.status.code().is_some_and(|code| code < 2), "{output:?}");
        user.check();
        std::fs::remove_dir_all(user.folder.path("home/cache")).unwrap();
    }
    // Of no announced length.
    let hub = lying_about("config.json", &user.files, |_, reply| {
        reply.without("Content-Length").then(Then::Endless)
    });
    user.refused(&mut user.inspect(&hub), &["config.json", "64 MiB"]);
    // Too long for what it is.
    let hub = lying_about("tokenizer.json", &user.files, |_, reply| {
        reply.with("Content-Length", 1u64 << 40).then(Then::Endless)
    });
    user.refused(&mut user.inspect(&hub), &["tokenizer.json", "too many"]);
    // What the Hub says of the repository.
    let hub = server(&user.files, |request, reply| {
        if request.path.starts_with("/api/") { Reply::new(200).then(Then::Endless) } else { reply }
    });
    user.accepted(&mut user.inspect(&hub));
}

#[test]
fn a_body_that_is_cut_short_is_continued() {
    let user = User::new();
    let half = user.files.0[WEIGHTS].len() / 2;
    let first = AtomicUsize::new(0);
    let hub = lying_about(WEIGHTS, &user.files, move |request, reply| {
        let cut = request.is_get() && first.fetch_add(1, Ordering::SeqCst) == 0;
        if cut { reply.cut(half) } else { reply }
    });
    user.accepted(&mut user.inspect(&hub));
    let ranges: Vec<_> = hub.gets(WEIGHTS).iter().map(Request::range).collect();
    assert_eq!(ranges, [None, Some(half)]);
}

#[test]
fn a_body_of_no_length_that_is_cut_short_is_seen_and_healed() {
    let user = User::new();
    let hub = lying_about("tokenizer.json", &user.files, |request, reply| {
        let half = reply.body.len() / 2;
        let reply = reply.without("Content-Length");
        if request.is_get() { reply.cut(half) } else { reply }
    });
    user.refused(&mut user.inspect(&hub), &["tokenizer.json", "not what the Hub announced"]);
    user.accepted(&mut user.inspect(&honest(&user.files)));
}

#[test]
fn what_an_earlier_run_left_is_continued_or_replaced() {
    let user = User::new();
    let weights = user.files.0[WEIGHTS].clone();
    let (half, blobs) = (weights.len() / 2, user.repo().join("blobs"));
    let left = blobs.join(format!("{}.incomplete", sha256(&weights)));
    let leave = |content: &[u8]| {
        let _ = std::fs::remove_dir_all(user.folder.path("home/cache"));
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::write(&left, content).unwrap();
    };
    let ranges = |hub: &Server| hub.gets(WEIGHTS).iter().map(Request::range).collect::<Vec<_>>();
    // A half that is right.
    leave(&weights[..half]);
    let hub = honest(&user.files);
    user.accepted(&mut user.inspect(&hub));
    assert_eq!(ranges(&hub), [Some(half)]);
    // All of it, which need not be asked for.
    leave(&weights);
    let hub = honest(&user.files);
    user.accepted(&mut user.inspect(&hub));
    assert_eq!(ranges(&hub), []);
    // A half of something else.
    leave(&vec![7; half]);
    let hub = honest(&user.files);
    user.accepted(&mut user.inspect(&hub));
    assert_eq!(ranges(&hub), [Some(half), None]);
    // A server that gives another part, another version, or no part.
    let lies: [fn(Reply) -> Reply; 4] = [
        |reply| reply.with("Content-Range", "bytes 0-9/10"),
        |reply| reply.without("Content-Range"),
        |reply| reply.with("X-Linked-Etag", "\"other\""),
        |_| Reply::new(416).body(""),
    ];
    for lie in lies {
        leave(&weights[..half]);
        let hub = lying_about(WEIGHTS, &user.files, move |request, reply| {
            if request.range().is_some() { lie(reply) } else { reply }
        });
        user.accepted(&mut user.inspect(&hub));
        assert_eq!(ranges(&hub), [Some(half), None]);
    }
    // A link in its place is not written through.
    leave(b"");
    std::fs::remove_file(&left).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(user.canary(), &left).unwrap();
    user.accepted(&mut user.inspect(&honest(&user.files)));
}

#[test]
fn empty_and_short_files_in_the_cache_are_fetched_again() {
    let user = User::new();
    let hub = honest(&user.files);
    let actual = user.accepted(&mut user.inspect(&hub));
    for file in [WEIGHTS, "config.json"] {
        let blob = std::fs::canonicalize(user.snapshot().join(file)).unwrap();
        std::fs::write(&blob, "").unwrap();
        let error = failure(user.inspect(&hub).env("HF_HUB_OFFLINE", "1"));
        assert!(error.contains(file) && error.contains("empty"), "{error}");
        assert_eq!(user.accepted(&mut user.inspect(&hub)), actual);
    }
    // Where the Hub says how long its files are, shorter ones are seen too.
    let list = |(name, content): (&String, &Vec<u8>)| serde_json::json!({ "rfilename": name, "size": content.len() });
    let siblings: Vec<_> = user.files.0.iter().map(list).collect();
    let info = serde_json::json!({ "sha": COMMIT, "siblings": siblings }).to_string();
    let hub = server(&user.files, move |request, reply| {
        if request.path.starts_with("/api/") { Reply::new(200).body(&info) } else { reply }
    });
    let blob = std::fs::canonicalize(user.snapshot().join(WEIGHTS)).unwrap();
    std::fs::write(&blob, "short").unwrap();
    assert_eq!(user.accepted(&mut user.inspect(&hub)), actual);
    // All is there: nothing but the list is asked for.
    let before = hub.requests().len();
    user.accepted(&mut user.inspect(&hub));
    let more = &hub.requests()[before..];
    assert!(!more.is_empty() && more.iter().all(|request| request.path.starts_with("/api/")));
}

#[test]
fn a_silent_hub_is_given_up() {
    let user = User::new();
    let hub = Server::start(|_| Reply::new(200).then(Then::Silence).with("Content-Length", 9));
    user.refused(user.inspect(&hub).env("HF_HUB_DOWNLOAD_TIMEOUT", "1"), &["no network"]);
    // One that falls silent in the middle of a file, again and again.
    let hub = lying_about(WEIGHTS, &user.files, |request, reply| {
        if request.is_get() { reply.cut(0).then(Then::Silence) } else { reply }
    });
    let error = user.refused(user.inspect(&hub).env("HF_HUB_DOWNLOAD_TIMEOUT", "1"), &[WEIGHTS]);
    assert!(error.contains("attempts") && error.contains("nothing came"), "{error}");
}

#[test]
fn a_busy_hub_is_asked_again() {
    let user = User::new();
    for (status, pause) in [(503, ""), (500, ""), (429, "1")] {
        let seen = AtomicUsize::new(0);
        let hub = server(&user.files, move |_, reply| {
            // Every request is answered at its second try.
            match seen.fetch_add(1, Ordering::SeqCst) % 8 {
                0 => Reply::new(status).with("Retry-After", pause).body("busy"),
                _ => reply,
            }
        });
        user.accepted(&mut user.inspect(&hub));
        std::fs::remove_dir_all(user.folder.path("home/cache")).unwrap();
    }
    let hub = lying_about(WEIGHTS, &user.files, |_, _| {
        Reply::new(429).with("Retry-After", 86_400).body("")
    });
    user.refused(&mut user.inspect(&hub), &[WEIGHTS, "86400 seconds"]);
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

#[test]
fn two_at_once_download_a_file_once() {
    let user = User::new();
    let hub = lying_about(WEIGHTS, &user.files, |request, reply| {
        if request.is_get() {
            // Long enough for the other to come.
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
        reply
    });
    std::thread::scope(|scope| {
        let one = || stdout(&mut user.inspect(&hub));
        let (first, second) = (scope.spawn(one), scope.spawn(one));
        assert_eq!(first.join().unwrap(), second.join().unwrap());
    });
    assert_eq!(hub.gets(WEIGHTS).len(), 1);
    user.check();
}

#[test]
fn a_full_disk_is_one_line() {
    let user = User::new();
    let Some(disk) = Disk::mount(user.folder.path("small"), "32k") else {
        eprintln!("SKIPPED: this process may not mount");
        return;
    };
    let hub = honest(&user.files);
    user.refused(user.inspect(&hub).env("HF_HOME", &disk.0), &["No space left", "HF_HOME"]);
}
