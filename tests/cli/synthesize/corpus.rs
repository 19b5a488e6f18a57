//! Passages of a corpus get queries, and those that stay are not asked about again.

use std::path::Path;

use serde_json::{Value, json};

use super::{check, passages, refused, with};
use crate::chat::{Fake, Reply, lines, rows, summary, synthesize};
use crate::harness::{Folder, kiln, stdout};

#[test]
fn passages_of_a_corpus_get_queries() {
    let (folder, model) = (Folder::new(), Fake::good());
    let corpus = passages(&folder);
    stdout(&mut synthesize(&model.url(), &folder, &["--corpus", &corpus, "--queries", "3"]));
    let (texts, rows) = (lines(Path::new(&corpus)), rows(&folder));
    assert_eq!((model.count(), rows.len()), (12, 36), "{}", summary(&folder));
    for row in &rows {
        check(row, 1);
        let passage = texts.iter().find(|passage| passage["_id"] == row["source"]).unwrap();
        let text = |name: &str| passage[name].as_str().unwrap();
        // As it is embedded.
        assert_eq!(row["pos"][0], format!("{} {}", text("title"), text("text")));
        assert_eq!((&row["document"], &row["split"]), (&passage["document"], &passage["split"]));
        assert_eq!(row["type"], "corpus");
        assert!(row.get("neg").is_none(), "{row}");
    }
    // Some of them, with negatives for the first query of each.
    let out = Folder::new();
    let args = ["--corpus", &corpus, "--queries", "2", "--levels", "4", "--rows", "5"];
    stdout(&mut synthesize(&model.url(), &out, &args));
    let rows = crate::chat::rows(&out);
    assert_eq!((model.count(), rows.len()), (17, 10));
    let graded: Vec<&Value> =
        rows.iter().filter(|row| row["negatives"]["n4"].is_string()).collect();
    assert_eq!(graded.len(), 5);
    graded.into_iter().for_each(|row| check(row, 4));
}

#[test]
fn passages_in_another_language_are_noted() {
    let folder = Folder::new();
    let text = "Der Fluss überschwemmt jedes Jahr im Frühling die unteren Straßen der Stadt.";
    let corpus = folder.write("passages.jsonl", json!({"_id": "a#1", "text": text}).to_string());
    let said = |more: &[&str]| {
        let output = kiln(&with(&["synthesize", "--dry-run", "--corpus", &corpus], more))
            .assert()
            .success()
            .get_output()
            .clone();
        String::from_utf8(output.stderr).unwrap()
    };
    let noted = said(&[]);
    assert!(noted.contains("look German; --languages de"), "{noted}");
    let noted = said(&["--languages", "de"]);
    assert!(!noted.contains("German"), "{noted}");
}

#[test]
fn passages_that_stay_are_not_asked_about_again() {
    let (folder, model) = (Folder::new(), Fake::good());
    let corpus = passages(&folder);
    let args = ["--corpus", &corpus, "--queries", "1"];
    stdout(&mut synthesize(&model.url(), &folder, &args));
    let text = std::fs::read_to_string(&corpus).unwrap();
    // Two go, one comes, and one comes twice.
    let new = json!({"_id": "new#1", "text": "The new mooring is open all year."}).to_string();
    let rest: Vec<&str> = text.lines().skip(2).chain([new.as_str(), new.as_str()]).collect();
    folder.write("passages.jsonl", rest.join("\n"));
    let resumed = with(&args, &["--resume"]);
    stdout(&mut synthesize(&model.url(), &folder, &resumed));
    assert_eq!((model.count(), rows(&folder).len()), (13, 11), "{}", summary(&folder));
    // A server that fails leaves the rows of what was answered.
    let broken = Fake::start(|_| Reply::error(401, "invalid_api_key", "no"));
    folder.write("passages.jsonl", rest.join("\n") + "\n" + &new.replace("all year", "in May"));
    let error = refused(&mut synthesize(&broken.url(), &folder, &resumed));
    assert!(error.contains("401"), "{error}");
    assert_eq!((rows(&folder).len(), summary(&folder)["unanswered"].clone()), (11, json!(1)));
}
