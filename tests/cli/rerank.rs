//! `rerank`, `search --reranker` and `eval --reranker`.

mod bad_input;
mod decoders;
mod distillation;
mod serving;

use serde_json::{Value, json};

use crate::harness::{Folder, TEXTS, failure, kiln, stdout};

fn fixture(path: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(path)
}

/// A cross-encoder of BERT's shape, and the logits that sentence-transformers gives its pairs.
fn reranker() -> (String, Vec<(String, String)>, Vec<f64>) {
    let folder = fixture("rerankers/bert");
    let read = |path: std::path::PathBuf| std::fs::read(path).unwrap();
    let pairs = serde_json::from_slice(&read(fixture("rerankers/pairs.json"))).unwrap();
    let scores = serde_json::from_slice(&read(folder.join("scores.json"))).unwrap();
    (folder.display().to_string(), pairs, scores)
}

fn sigmoid(score: f64) -> f64 {
    1.0 / (1.0 + (-score).exp())
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn texts_are_ranked_by_their_scores() {
    let (model, pairs, scores) = reranker();
    let folder = Folder::new();
    let corpus = folder.write(
        "corpus.jsonl",
        format!(
            "{}\n{}\n",
            json!({"id": "x", "text": pairs[1].1}),
            json!({"id": "y", "text": pairs[0].1})
        ),
    );
    let args = ["rerank", "--json", "--model", &model, "-Q", &pairs[0].0, "--corpus", &corpus];
    let answer = parse(&stdout(&mut kiln(&args)));
    let ranked = answer[0]["ranked"].as_array().unwrap();
    let expected = [sigmoid(scores[1]), sigmoid(scores[0])];
    assert_eq!(ranked.len(), 2);
    for place in ranked {
        let row = place["row"].as_u64().unwrap() as usize;
        assert_eq!(place["id"], ["x", "y"][row]);
        assert!((place["score"].as_f64().unwrap() - expected[row]).abs() < 1e-4, "{place}");
    }
    assert!(ranked[0]["score"].as_f64() >= ranked[1]["score"].as_f64());
    let text = stdout(&mut kiln(&[
        "rerank", "-m", &model, "-Q", "noon", "-t", "night", "-t", "noon", "-k", "1",
    ]));
    assert_eq!(text.lines().count(), 2, "{text}");
    // Rounded weights rank, too.
    let args = [&args[..], &["--reranker-weights", "int8"]].concat();
    let rounded = parse(&stdout(&mut kiln(&args)));
    for place in rounded[0]["ranked"].as_array().unwrap() {
        let row = place["row"].as_u64().unwrap() as usize;
        assert!((place["score"].as_f64().unwrap() - expected[row]).abs() < 0.05, "{place}");
    }
}

#[test]
fn search_puts_its_best_hits_into_the_rerankers_order() {
    let (reranker, ..) = reranker();
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let corpus = folder.texts();
    let search = ["search", "--json", "-m", &model, "-Q", "the old river", "--corpus", &corpus];
    let plain = parse(&stdout(&mut kiln(&[&search[..], &["-k", "3"]].concat())));
    let more = ["-k", "2", "--reranker", &reranker, "--candidates", "3"];
    let answer = parse(&stdout(&mut kiln(&[&search[..], &more].concat())));
    let hits = answer[0]["hits"].as_array().unwrap();
    assert_eq!(hits.len(), 2);
    assert!(hits[0]["score"].as_f64() >= hits[1]["score"].as_f64());
    for hit in hits {
        let found = plain[0]["hits"].as_array().unwrap();
        let same = found.iter().find(|other| other["row"] == hit["row"]).expect("among the three");
        assert_eq!(hit["similarity"], same["score"]);
        let args = [
            "rerank",
            "--json",
            "-m",
            &reranker,
            "-Q",
            "the old river",
            "-t",
            hit["text"].as_str().unwrap(),
        ];
        let alone = parse(&stdout(&mut kiln(&args)));
        let (a, b) =
            (hit["score"].as_f64().unwrap(), alone[0]["ranked"][0]["score"].as_f64().unwrap());
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    // Vectors without texts cannot be reranked.
    let index = folder.arg("index.npy");
    stdout(&mut kiln(&["embed", "--json", "-m", &model, "--input", &corpus, "--output", &index]));
    let args = ["search", "-m", &model, "-Q", "x", "--index", &index, "--reranker", &reranker];
    assert!(failure(&mut kiln(&args)).contains("no texts to rerank"));
    // What is found can be no fewer than what is shown, and 100 where nothing is said.
    let few = [&search[..], &["-k", "3", "--reranker", &reranker, "--candidates", "2"]].concat();
    let said = failure(&mut kiln(&few));
    assert!(said.contains("--candidates 2 are fewer than the --top-k 3"), "{said}");
    for alone in [["--candidates", "5"], ["--pair-batch-tokens", "64"]] {
        let said = failure(&mut kiln(&[&search[..], &alone].concat()));
        assert!(said.contains("--reranker"), "{said}");
    }
}

#[test]
fn tasks_are_reranked() {
    let (reranker, ..) = reranker();
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let rows: String = TEXTS
        .windows(3)
        .map(|three| {
            json!({"query": three[0], "positive": [three[1]], "negative": [three[2]]}).to_string()
                + "\n"
        })
        .collect();
    let data = folder.write("rows.jsonl", rows);
    let eval =
        ["eval", "--json", "-m", &model, "--task", "reranking", "--data", &data, "--no-cache"];
    let answer = parse(&stdout(&mut kiln(&[&eval[..], &["--reranker", &reranker]].concat())));
    // The map of one positive among two is 1 or 1/2; by hand, from the scores of the pairs.
    let mut expected = 0.0;
    for three in TEXTS.windows(3) {
        let args =
            ["rerank", "--json", "-m", &reranker, "-Q", three[0], "-t", three[1], "-t", three[2]];
        let ranked = parse(&stdout(&mut kiln(&args)));
        expected += if ranked[0]["ranked"][0]["row"] == 0 { 1.0 } else { 0.5 };
    }
    expected /= TEXTS.windows(3).count() as f64;
    let found = answer["scores"]["map_at_1000"].as_f64().or(answer["main_score"].as_f64());
    assert!((found.unwrap_or(f64::NAN) - expected).abs() < 1e-9, "{answer} {expected}");
}

/// A reranker's folder with one file changed or added.
fn changed(folder: &Folder, of: &str, file: &str, content: &Value) -> String {
    let copy = folder.path(&format!("{of}-{}", file.replace('.', "-")));
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(fixture(&format!("rerankers/{of}"))).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    std::fs::write(copy.join(file), content.to_string()).unwrap();
    copy.display().to_string()
}
