//! Evaluation: sets, judgements, runs and kept results that would give wrong scores in silence.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::{Place, beir, has};
use crate::harness::{Folder, failure, kiln};

#[test]
fn what_a_set_says_twice_counts_once_and_contradictions_are_refused() {
    let place = Place::new();
    let scores = |name: &str, more: [&str; 4], task: &str| -> (Value, String) {
        let output = place.eval(task, &beir(&place, name, more)).output().unwrap();
        let notes = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{notes}");
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let all: BTreeMap<String, f64> = serde_json::from_value(found["scores"].clone()).unwrap();
        assert!(all.values().all(|score| (0.0..=1.0).contains(score)), "{all:?}");
        (found["scores"].clone(), notes)
    };
    let document = r#"{"_id":"d0","text":"a river"}"#.to_string() + "\n";
    let query = r#"{"_id":"q0","text":"where is the river"}"#.to_string() + "\n";
    let (clean, notes) = scores("clean", ["", "", "", ""], "retrieval");
    assert!(!notes.contains("twice"), "{notes}");
    let twice = [&document.repeat(2), &query, "q0\td0\t2\nq1\tgone\t1\nq1\tgone\t1\n", ""];
    let (found, notes) = scores("twice", twice, "retrieval");
    has(&notes, &["twice", "2 documents", "1 query", "2 judgements"]);
    // Of q1 a document is judged that the corpus lacks: what it finds is now half of what there is.
    assert!(found["recall_at_10"].as_f64().unwrap() < clean["recall_at_10"].as_f64().unwrap());
    let (same, _) = scores("same", [&document, &query, "q0\td0\t2\n", ""], "retrieval");
    assert_eq!(same, clean);

    let list = |ids: &str| format!("{{\"query-id\":\"q0\",\"corpus-ids\":[{ids}]}}\n");
    let (plain, _) = scores("list", ["", "", "", &list(r#""d0","d1","d2""#)], "reranking");
    let again = list(r#""d0","d1","d0","d2""#).repeat(2);
    let (found, notes) = scores("lists", ["", "", "", &again], "reranking");
    assert_eq!(found, plain);
    has(&notes, &["candidates"]);

    let mut number = 0;
    let mut error = |more: [&str; 4], task: &str| {
        number += 1;
        failure(place.eval(task, &beir(&place, &format!("bad{number}"), more)).arg("--quiet"))
    };
    let other = document.replace("a river", "a lake");
    has(&error([&other, "", "", ""], "retrieval"), &["corpus.jsonl:5", "\"d0\"", "corpus.jsonl:1"]);
    let other = query.replace("river", "lake");
    has(&error(["", &other, "", ""], "retrieval"), &["queries.jsonl:3", "queries.jsonl:1"]);
    has(&error(["", "", "q0\td0\t1\n", ""], "retrieval"), &["test.tsv:5", "test.tsv:2", "\"d0\""]);
    let lists = list(r#""d0","d1""#) + &list(r#""d1","d0""#);
    has(&error(["", "", "", &lists], "reranking"), &["top_ranked.jsonl:2", "top_ranked.jsonl:1"]);
    for grade in ["1e999", "nan", "-1e300", "inf", ""] {
        let line = format!("q1\td0\t{grade}\n");
        has(&error(["", "", &line, ""], "retrieval"), &["test.tsv:5", "score"]);
    }
    // A grade below 0 is "judged, and not relevant".
    scores("below", ["", "", "q1\td2\t-1\n", ""], "retrieval");
}

#[test]
fn a_run_with_lines_twice_scores_as_without() {
    let place = Folder::new();
    let qrels = place.write("qrels.txt", "1 0 a 3\n1 0 b 0\n1 0 c 1\n1 0 a 3\n");
    let run = "1 Q0 b 1 9 x\n1 Q0 a 2 8 x\n1 Q0 d 3 7 x\n1 Q0 a 4 8 x\n";
    let path = place.write("run.txt", run);
    let mut command = kiln(&["eval", "trec", "--json", &qrels, &path]);
    let output = command.assert().success().get_output().clone();
    has(&String::from_utf8(output.stderr).unwrap(), &["left out 2 lines"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    // b, a, d with grades 0, 3, -; relevant are a (3) and c (1).
    // nDCG = (3 / log2 3) / (3 / log2 2 + 1 / log2 3) = 1.89279 / 3.63093 = 0.52130;
    // average precision = (1 / 2) / 2; recall = 1 / 2; P_5 = 1 / 5; reciprocal rank = 1 / 2.
    for (name, expected) in [
        ("ndcg", 0.521_296_1),
        ("map", 0.25),
        ("recall_1000", 0.5),
        ("P_5", 0.2),
        ("recip_rank", 0.5),
        ("num_ret", 3.0),
        ("num_rel", 2.0),
    ] {
        let value = found["all"][name].as_f64().unwrap();
        assert!((value - expected).abs() < 1e-6, "{name}: {value}");
    }
    let error = |qrels: &str, run: &str| {
        let (qrels, run) = (place.write("q.txt", qrels), place.write("r.txt", run));
        failure(&mut kiln(&["eval", "trec", "--quiet", &qrels, &run]))
    };
    let one = "1 0 a 1\n";
    has(&error(one, &run.replace("4 8 x", "4 6 x")), &["r.txt:4", "line 2", "a is there twice"]);
    has(&error("1 0 a 1\n1 0 a 2\n", run), &["q.txt:2", "line 1", "grade"]);
    for score in ["1e999", "nan", "-inf"] {
        has(&error(one, &format!("1 Q0 a 1 {score} x\n")), &["r.txt:1", "score"]);
        has(&error(&format!("1 0 a {score}\n"), run), &["q.txt:1", "grade"]);
    }
    has(&error(one, "1 Q0 \x1b[2J 1 9 x x\n"), &["r.txt:1", "7 words"]);
    has(&error(one, "1 Q0 \x1b[2J 1 x x\n"), &["r.txt:1"]);
    has(&failure(&mut kiln(&["eval", "trec", "--level", "nan", &qrels, &path])), &["--level"]);
}

#[test]
fn kept_results_are_what_a_task_can_give() {
    let place = Place::new();
    let sts = r#"{"sentence1":"a river","sentence2":"a ship","score":3}"#;
    let rows = format!("{sts}\n{}\n", sts.replace("a ship", "a lake").replace('3', "4"));
    place.write("data/sts.jsonl", rows);
    let name = "<script>alert(1)</script>";
    let suite = format!("[[task]]\nname = '{name}'\nkind = 'sts'\npath = 'sts.jsonl'\n");
    let suite = place.write("suite.toml", suite);
    let (data, output) = (place.folder.arg("data"), place.folder.arg("results"));
    let args = ["eval", "--suite", &suite, "--data", &data, "--output", &output];
    place.command(&args).assert().success();
    let inside = |folder: &Path| std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let results = inside(&inside(Path::new(&output)));
    let page = std::fs::read_to_string(results.join("report.html")).unwrap();
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"), "{page}");
    let kept = inside(&results.join("parts"));
    let whole = std::fs::read_to_string(&kept).unwrap();
    let compare = || failure(&mut kiln(&["compare", &output, &output]));
    let mut wrong: Value = serde_json::from_str(&whole).unwrap();
    wrong["scores"]["cosine_spearman"] = 1.5.into();
    std::fs::write(&kept, wrong.to_string()).unwrap();
    has(&compare(), &["cosine_spearman is 1.5", "parts"]);
    std::fs::write(&kept, &whole).unwrap();
    std::fs::write(kept.with_file_name("copy.json"), &whole).unwrap();
    has(&compare(), &["is in another file too"]);
}

#[test]
fn a_score_outside_its_range_is_an_error_that_names_task_and_measure() {
    let place = Place::new();
    // Texts without any label: a mean of nothing.
    let rows = "{\"text\":\"a\",\"labels\":[]}\n{\"text\":\"b\",\"labels\":[]}\n";
    let data = place.write("empty.jsonl", rows);
    has(&failure(place.eval("clustering", &data).arg("--quiet")), &["empty: ami is NaN"]);
}
