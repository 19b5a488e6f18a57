//! Special files: pipes, sockets, devices, folders and links where a regular file is read or written.

#![cfg(unix)]

use super::{Place, has};
use crate::harness::{failure, kiln};

#[test]
fn what_is_no_regular_file_is_refused_before_it_is_opened() {
    let place = Place::new();
    let made = |kind: &str| {
        let path = place.folder.path(kind);
        match kind {
            "fifo" => {
                let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
                assert!(made.success());
            }
            "socket" => drop(std::os::unix::net::UnixListener::bind(&path).unwrap()),
            "device" => std::os::unix::fs::symlink("/dev/zero", &path).unwrap(),
            _ => std::fs::create_dir(&path).unwrap(),
        }
        path
    };
    let out = place.folder.arg("out.npy");
    let at = |name: &str| place.folder.arg(name);
    for (kind, word) in
        [("fifo", "a FIFO"), ("socket", "a socket"), ("device", "a device"), ("folder", "a folder")]
    {
        let from = made(kind);
        let link = |name: &str| {
            let path = place.folder.path(name);
            let _ = std::fs::remove_file(&path);
            std::os::unix::fs::symlink(&from, &path).unwrap();
            path.display().to_string()
        };
        let qrels = place.write("qrels.txt", "1 0 a 1\n");
        let (texts, lines, index) = (link("x.txt"), link("x.jsonl"), link("x.npy"));
        let (recipe, suite, run) = (link("x.toml"), link("s.toml"), link("run.txt"));
        let model = place.model.as_str();
        let all: [&[&str]; 10] = [
            &["embed", "--model", model, "--input", &texts, "--output", &out],
            &["embed", "--model", model, "--input", &lines, "--output", &out],
            &["search", "--model", model, "--query", "a", "--corpus", &link("x.csv")],
            &["search", "--model", model, "--query", "a", "--corpus", &link("x.parquet")],
            &["search", "--model", model, "--query", "a", "--index", &index],
            &["search", "--model", model, "--query", "a", "--index", &link("x.safetensors")],
            &["similarity", "--model", model, "--input", &lines],
            &["eval", "trec", &qrels, &run],
            &["train", "--recipe", &recipe, "--dry-run"],
            &["eval", "--model", model, "--suite", &suite, "--output", &at("results")],
        ];
        for args in all {
            let error = failure(kiln(args).timeout(std::time::Duration::from_secs(60)));
            assert!(error.contains(word), "{args:?}: {error}");
        }
    }
}

#[test]
fn outputs_take_no_place_that_is_not_theirs() {
    let place = Place::new();
    let rows = "{\"id\":\"a\",\"text\":\"a river\"}\n";
    let texts = place.write("texts.jsonl", rows);
    std::os::unix::fs::symlink(&texts, place.folder.path("link.jsonl")).unwrap();
    std::fs::create_dir(place.folder.path("folder.npy")).unwrap();
    std::os::unix::fs::symlink("/dev/null", place.folder.path("null.npy")).unwrap();
    let link = place.folder.arg("link.jsonl");
    let embed = |output: &str| {
        failure(&mut place.command(&["embed", "--input", &texts, "--output", output]))
    };
    has(&embed(&texts), &["texts.jsonl", "overwritten"]);
    has(&embed(&link), &["link.jsonl", "overwritten"]);
    has(&embed(&place.folder.arg("folder.npy")), &["folder.npy", "folder"]);
    has(&embed(&place.folder.arg("null.npy")), &["null.npy", "regular file"]);
    has(&embed("/dev/null"), &["/dev/null", ".npy"]);
    let args = ["search", "--query", "a", "--corpus", &texts, "--save-index", &texts];
    has(&failure(&mut place.command(&args)), &["overwritten"]);
    let data = place.write("data.jsonl", "{\"query\":\"a\",\"pos\":[\"b\"]}\n");
    let args = ["mine", "--data", &data, "--output", &data];
    has(&failure(&mut place.command(&args)), &["data.jsonl", "overwritten"]);
    assert_eq!(std::fs::read_to_string(&texts).unwrap(), rows);
    assert!(place.folder.path("null.npy").is_symlink());
}
