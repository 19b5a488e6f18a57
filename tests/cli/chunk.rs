//! `kiln chunk`: documents to passages.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::harness::{Folder, failure, kiln, stdout};

/// Documents of every kind, and the tiny model.
fn documents() -> (Folder, String, String) {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path("docs/deep")).unwrap();
    let long = "the ship carried tea and timber. ".repeat(20);
    for n in 0..20 {
        let text =
            format!("# River {n}\n\nthe river {n} floods.\n\n## Streets\n\n{long}\n\nof {n}.\n");
        folder.write(&format!("docs/deep/{n}.md"), text);
    }
    folder.write(
        "docs/page.html",
        "<title>Petals</title><p>petals of <b>pale</b> blue<script>no()</script>",
    );
    folder.write(
        "docs/rows.jsonl",
        "{\"_id\":\"r\",\"title\":\"Row\",\"text\":\"a portrait hangs\",\"license\":\"MIT\"}\n",
    );
    folder.write("docs/x.pdf", "%PDF");
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/documents");
    for name in ["handbook.pdf", "locked.pdf"] {
        let copied = folder.path(&format!("docs/{name}"));
        std::fs::copy(format!("{fixtures}/{name}"), copied).unwrap();
    }
    folder.write("docs/picture.png", "x");
    let (docs, model) = (folder.arg("docs"), folder.model("{ mode = 'mean' }"));
    (folder, docs, model.display().to_string())
}

fn lines(path: std::path::PathBuf) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn chunk_makes_passages_that_fit_the_model() {
    let (folder, docs, model) = documents();
    let out = folder.arg("p.jsonl");
    let args = ["--docs", &docs, "--model", &model, "--output", &out];
    let run = kiln(&["--json", "chunk"])
        .args(args)
        .args(["--split", "0.5,0.25,0.25", "--min-tokens", "2"])
        .assert();
    let run = run.success().get_output().clone();
    let summary: Value = serde_json::from_slice(&run.stdout).unwrap();
    let notes = String::from_utf8(run.stderr).unwrap();
    for part in ["1 .png", "2 PDF", "locked.pdf asks for a password", "x.pdf is damaged"] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    let passages = lines(folder.path("p.jsonl"));
    // The tiny model reads 16 tokens.
    assert_eq!(summary["max_tokens"], 16);
    let total: u64 = ["train", "dev", "test"]
        .iter()
        .map(|split| summary["passages"][split].as_u64().unwrap())
        .sum();
    assert_eq!(total as usize, passages.len());
    assert!(summary["left_out"]["duplicate_passages"].as_u64().unwrap() > 0, "{summary}");
    assert_eq!(
        (&summary["left_out"]["other_files"], &summary["left_out"]["unreadable"]),
        (&1.into(), &2.into())
    );
    let mut splits: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for passage in &passages {
        let text = |key: &str| passage[key].as_str().unwrap();
        assert!(passage["tokens"].as_u64().unwrap() <= 16, "{passage}");
        assert!(ids.insert(text("_id")) && text("_id").starts_with(text("document")), "{passage}");
        splits.entry(text("document")).or_default().insert(text("split"));
    }
    assert!(splits.values().all(|splits| splits.len() == 1), "{splits:?}");
    assert_eq!(splits.values().flatten().collect::<BTreeSet<_>>().len(), 3);
    let of =
        |document: &str| passages.iter().find(|passage| passage["document"] == document).unwrap();
    assert_eq!(of("page.html")["title"], "Petals");
    let page = passages.iter().filter(|passage| passage["document"] == "page.html");
    let page: Vec<&str> = page.map(|passage| passage["text"].as_str().unwrap()).collect();
    assert_eq!(page.join(" "), "petals of pale blue");
    let title = of("handbook.pdf")["title"].as_str().unwrap();
    assert!(!title.is_empty() && "Harbour handbook".starts_with(title), "{title}");
    let mut printed = passages.iter().filter(|passage| passage["document"] == "handbook.pdf");
    assert!(
        printed.any(|passage| passage["heading"] == serde_json::json!(["Lights", "Fog signals"]))
    );
    assert_eq!(
        (&of("rows.jsonl:r")["title"], &of("rows.jsonl:r")["licence"]),
        (&"Row".into(), &"MIT".into())
    );
    assert!(passages.iter().any(|passage| passage["heading"] == serde_json::json!(["Streets"])));

    // The same again; and what was written is a corpus that the other commands read.
    let first = std::fs::read(&out).unwrap();
    kiln(&["chunk"])
        .args(args)
        .args(["--split", "0.5,0.25,0.25", "--min-tokens", "2"])
        .assert()
        .success();
    assert_eq!(std::fs::read(&out).unwrap(), first);
    let found = stdout(&mut kiln(&[
        "search", "--model", &model, "--corpus", &out, "--query", "petals", "--top-k", "3",
    ]));
    assert!(found.contains("page.html#1") || found.lines().count() >= 3, "{found}");

    let text = stdout(kiln(&["chunk"]).args(args));
    assert!(text.contains("passages of 23 documents") && text.contains("at most 16"), "{text}");
}

#[test]
fn chunk_says_what_is_wrong() {
    let (folder, docs, model) = documents();
    let out = folder.arg("p.jsonl");
    folder.write("bad.txt", b"fine\n\xff\n");
    folder.write("long.txt", "a line of words\n".repeat(200));
    folder.write("p.pdf", "%PDF");
    std::fs::create_dir(folder.path("empty")).unwrap();
    let inside = folder.arg("docs/p.jsonl");
    let [bad, long, pdf, locked, empty, gone] =
        ["bad.txt", "long.txt", "p.pdf", "docs/locked.pdf", "empty", "gone"]
            .map(|name| folder.arg(name));
    for (docs, out, more, words) in [
        (&gone, &out, &[][..], &["no such file or folder"][..]),
        (&empty, &out, &[], &["empty", "no document"]),
        (&pdf, &out, &[], &["p.pdf", "is damaged, or no PDF"]),
        (&locked, &out, &[], &["locked.pdf", "asks for a password"]),
        (&bad, &out, &[], &["bad.txt:2", "UTF-8"]),
        (&long, &out, &["--max-text-bytes", "1024"], &["long.txt", "--max-text-bytes"]),
        (&docs, &out, &["--tokens", "17"], &["17", "16 tokens"]),
        (&docs, &out, &["--overlap", "12"], &["overlap of 12"]),
        (&docs, &out, &["--split", "0.5,0.1,0.1"], &["sum to 1"]),
        (&docs, &inside, &[], &["p.jsonl", "elsewhere"]),
        (&docs, &docs, &[], &[".jsonl"]),
    ] {
        let args = ["--quiet", "chunk", "--docs", docs, "--model", &model, "--output", out];
        let error = failure(kiln(&args).args(more));
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        assert!(!folder.path("p.jsonl").exists() && !folder.path("docs/p.jsonl").exists());
    }
    let error =
        failure(&mut kiln(&["chunk", "--docs", &docs, "--model", &folder.arg("none"), "-o", &out]));
    assert!(error.contains("none"), "{error}");
    // One document is never divided, which is said.
    let run = kiln(&["chunk", "--docs", &long, "--model", &model, "-o", &out]).assert().success();
    let notes = String::from_utf8(run.get_output().stderr.clone()).unwrap();
    assert_eq!(notes.matches("no document is for").count(), 2, "{notes}");
}
