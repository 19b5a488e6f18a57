//! Whom the token and the content of files are trusted to: sums, redirects, lists of further pages.

use std::collections::BTreeMap;

use super::names::names_that_leave;
use super::server::{Files, ID, Reply, Server, git, sha256};
use super::{TOKEN, User, WEIGHTS, honest, lying_about, server};
use crate::harness::{failure, stdout};

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
