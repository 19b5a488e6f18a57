//! Hard negatives: mined, filtered again from kept scores, trained on, and checked for grades.

use serde_json::Value;

use crate::harness::{Folder, failure, kiln, stdout};

/// Queries that are near their positives word for word, and texts about something else.
const PAIRS: &str = r#"{"query":"the river floods","pos":["the river floods the lower streets"]}
{"query":"a violinist","pos":["a violinist from a small town"]}
{"query":"granite walls","pos":["granite walls and a long way up"]}
{"query":"the ship carried tea","pos":["the ship carried tea and timber","tea and timber on a ship"]}
"#;

const CORPUS: &str = r#"{"title":"petals","text":"of pale blue in wet meadows"}
{"text":"a portrait hangs in the hall"}
{"text":"the river floods the lower streets"}
{"text":"the ship carried tea and timber"}
{"text":"the ship carried timber"}
"#;

fn lines(folder: &Folder, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.path(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn mining_keeps_its_scores_and_filters_again() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let data = folder.write("pairs.jsonl", PAIRS);
    let corpus = folder.write("corpus.jsonl", CORPUS);
    let (out, scores) = (folder.arg("mined.jsonl"), folder.arg("scores.jsonl.zst"));
    let common = ["mine", "--json", "--model", &model, "--data", &data, "--corpus", &corpus];
    let first = stdout(kiln(&common).args([
        "--percent-of-positive",
        "0",
        "--negatives",
        "3",
        "--output",
        &out,
        "--scores",
        &scores,
    ]));
    let summary: Value = serde_json::from_str(&first).unwrap();
    assert_eq!((&summary["queries"], &summary["corpus"]), (&4.into(), &5.into()), "{summary}");
    let mined = lines(&folder, "mined.jsonl");
    assert_eq!(mined.len(), 4);
    for line in &mined {
        let negatives = line["neg"].as_array().unwrap();
        assert_eq!(negatives.len(), 3);
        let scores: Vec<f64> = serde_json::from_value(line["neg_scores"].clone()).unwrap();
        assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
        for positive in line["pos"].as_array().unwrap() {
            assert!(!negatives.contains(positive), "{line}");
        }
    }
    // The title stands before the text.
    assert!(
        first.len() > 10
            && mined.iter().any(|line| {
                line["neg"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|text| text == "petals of pale blue in wet meadows")
            })
    );

    // Filters again without the model: as if it had been filtered so at first.
    let again = folder.arg("again.jsonl");
    let strict = ["--percent-of-positive", "0.9", "--negatives", "2", "--least", "0"];
    let whole = folder.arg("whole.jsonl");
    let direct = stdout(kiln(&common).args(strict).args(["--output", &whole]));
    let from = ["mine", "--json", "--data", &data, "--corpus", &corpus];
    let filtered =
        stdout(kiln(&from).args(strict).args(["--from-scores", &scores, "--output", &again]));
    let counts = |text: &str| serde_json::from_str::<Value>(text).unwrap()["counts"].clone();
    assert_eq!(counts(&direct), counts(&filtered));
    assert_eq!(lines(&folder, "whole.jsonl"), lines(&folder, "again.jsonl"));
    for line in lines(&folder, "again.jsonl") {
        let numbers = |name: &str| -> Vec<f64> {
            serde_json::from_value(line[name].clone()).unwrap_or_default()
        };
        let positive = numbers("pos_scores").into_iter().fold(f64::MAX, f64::min);
        assert!(
            numbers("neg_scores").iter().all(|score| *score <= 0.9 * positive + 1e-6),
            "{line}"
        );
    }
    // What was dropped, and why, adds up.
    let counts = counts(&direct);
    let count = |name: &str| counts[name].as_u64().unwrap();
    let why =
        ["known", "percent_of_positive", "absolute_margin", "rank", "score", "surplus", "kept"];
    assert_eq!(count("candidates"), why.iter().map(|name| count(name)).sum::<u64>(), "{counts}");

    let none = failure(kiln(&["--quiet"]).args(from).args([
        "--from-scores",
        &scores,
        "--max-score=-1",
        "--output",
        &folder.arg("none.jsonl"),
    ]));
    assert!(none.contains("no query") && none.contains("score limits"), "{none}");
    let other = folder.write("other.jsonl", PAIRS.lines().next().unwrap());
    let mismatch = failure(&mut kiln(&[
        "--quiet",
        "mine",
        "--data",
        &other,
        "--corpus",
        &corpus,
        "--from-scores",
        &scores,
        "--output",
        &folder.arg("none.jsonl"),
    ]));
    assert!(mismatch.contains("scores.jsonl.zst"), "{mismatch}");
    assert!(!folder.path("none.jsonl").exists());
}

#[test]
fn given_negatives_stay_and_scores_remember_the_prompts() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let data = folder.write(
        "graded.jsonl",
        r#"{"query":"the river floods","positive":"the river floods the lower streets","negatives":{"n1":"the river floods the hall","n3":"a portrait"}}
{"query":"a violinist","positive":"a violinist from a small town","negatives":{"n2":"a violinist from a large town"}}
"#,
    );
    let corpus = folder.write("corpus.jsonl", CORPUS);
    let (out, scores) = (folder.arg("mined.jsonl"), folder.arg("scores.jsonl"));
    let from_model = ["mine", "--json", "--model", &model, "--data", &data, "--corpus", &corpus];
    let keep = ["--keep-negatives", "--percent-of-positive", "0"];
    let prompt = ["--query-prompt", "find: ", "--negatives", "3"];
    let kept = ["--output", &out, "--scores", &scores];
    let summary = stdout(kiln(&from_model).args(keep).args(prompt).args(kept));
    let summary: Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["prompts"][0], "find: ", "{summary}");
    assert_eq!(summary["counts"]["given_kept"], 3, "{summary}");
    let mined = lines(&folder, "mined.jsonl");
    let has = |line: &Value, text: &str| {
        line["neg"].as_array().unwrap().iter().any(|negative| negative == text)
    };
    assert!(has(&mined[0], "the river floods the hall") && has(&mined[0], "a portrait"));
    assert!(has(&mined[1], "a violinist from a large town"));
    for line in &mined {
        assert_eq!(line["neg"].as_array().unwrap().len(), 3, "{line}");
        assert!(line.get("levels").is_none(), "mined ones have no level: {line}");
    }
    // As many as are given: nothing is mined, and they keep their levels.
    let few = folder.arg("few.jsonl");
    let from = ["mine", "--json", "--data", &data, "--corpus", &corpus, "--from-scores", &scores];
    let same = ["--query-prompt", "find: ", "--negatives", "2", "--least", "2", "--output", &few];
    stdout(kiln(&from).args(keep).args(same).args(["--max-score=-1"]));
    let few = lines(&folder, "few.jsonl");
    assert_eq!(few.len(), 1, "the other has one");
    let mut levels: Vec<u64> = serde_json::from_value(few[0]["levels"].clone()).unwrap();
    levels.sort_unstable();
    assert_eq!(levels, [1, 3]);

    let none = folder.arg("none.jsonl");
    let error = |args: &[&str]| failure(kiln(&["--quiet"]).args(args).args(["--output", &none]));
    let other = error(&[&from[..], &["--query-prompt", "other: "]].concat());
    assert!(other.contains("find: ") && other.contains("scores.jsonl"), "{other}");
    let named = error(&[&from[..], &["--query-prompt-name", "query"]].concat());
    assert!(named.contains("--query-prompt"), "{named}");
    let unknown = error(&[&from_model[..], &["--query-prompt-name", "web_search"]].concat());
    assert!(unknown.contains("web_search") && unknown.contains("query"), "{unknown}");
    let deep = error(&[&from_model[..], &keep, &["--top-k", "2", "--keep-max-rank", "4"]].concat());
    assert!(deep.contains("raise --top-k"), "{deep}");
    let plain = folder.arg("plain.jsonl");
    let output = folder.arg("out.jsonl");
    stdout(kiln(&from_model).args(["--scores", &plain, "--output", &output]).args(&keep[1..]));
    let from = ["mine", "--data", &data, "--corpus", &corpus, "--from-scores", &plain];
    let without = error(&[&from[..], &keep].concat());
    assert!(without.contains("given negatives"), "{without}");
    assert!(!folder.path("none.jsonl").exists());
}

/// Scores of before are of another scale where a teacher does not divide its vectors by their norm.
#[test]
fn scores_of_an_earlier_version_are_not_taken_for_new_ones() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let data = folder.write("pairs.jsonl", PAIRS);
    let (out, scores) = (folder.arg("mined.jsonl"), folder.arg("scores.jsonl"));
    let args = ["mine", "--data", &data, "--percent-of-positive", "0", "--output", &out];
    stdout(kiln(&args).args(["--model", &model, "--scores", &scores]));
    let from = [&args[..], &["--from-scores", &scores]].concat();
    stdout(&mut kiln(&from));
    let text = std::fs::read_to_string(&scores).unwrap();
    let (header, rest) = text.split_once('\n').unwrap();
    let mut header: Value = serde_json::from_str(header).unwrap();
    // The first version did not say with which prompts, either.
    for key in ["format", "prompts"] {
        header.as_object_mut().unwrap().remove(key).unwrap();
        folder.write("scores.jsonl", format!("{header}\n{rest}"));
        let error = failure(kiln(&["--quiet"]).args(&from));
        assert!(error.contains("scores.jsonl") && error.contains("another version"), "{error}");
    }
}

#[test]
fn pairs_are_mined_from_the_texts_of_all_pairs() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let pairs = folder.write(
        "pairs.csv",
        "sentence1,sentence2,score\nthe river floods,the river rises,5\ngranite walls,a violinist,0\n",
    );
    let out = folder.arg("mined.jsonl");
    let args = ["mine", "--json", "--model", &model, "--data", &pairs, "--output", &out];
    let summary = stdout(kiln(&args).args(["--percent-of-positive", "0"]));
    let summary: Value = serde_json::from_str(&summary).unwrap();
    assert_eq!((&summary["queries"], &summary["corpus"]), (&2.into(), &4.into()), "{summary}");
    for line in lines(&folder, "mined.jsonl") {
        let mut negatives: Vec<String> = serde_json::from_value(line["neg"].clone()).unwrap();
        negatives.sort();
        assert_eq!(negatives, ["a violinist", "granite walls"]);
    }
}

/// STS data whose scores go from 0 to 1.
#[test]
fn pairs_have_a_threshold() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let pairs = folder.write(
        "pairs.csv",
        "sentence1,sentence2,score\nthe river floods,the river rises,0.8\ngranite walls,a violinist,0.2\n",
    );
    let out = folder.arg("mined.jsonl");
    let args = ["--quiet", "mine", "--model", &model, "--data", &pairs, "--output", &out];
    let error = failure(&mut kiln(&args));
    assert!(error.contains("the highest is 0.8") && error.contains("--threshold"), "{error}");
    kiln(&args).args(["--percent-of-positive", "0", "--threshold", "0.8"]).assert().success();
    let queries: Vec<Value> =
        lines(&folder, "mined.jsonl").into_iter().map(|line| line["query"].clone()).collect();
    assert_eq!(queries, ["the river floods", "the river rises"]);
    let rows = folder.write("rows.jsonl", PAIRS);
    let args = ["--quiet", "mine", "--model", &model, "--data", &rows, "--output", &out];
    let error = failure(kiln(&args).args(["--threshold", "0.8"]));
    assert!(error.contains("threshold says nothing"), "{error}");
}

#[test]
fn granularity_tells_graded_negatives_from_others() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let graded = folder.write(
        "graded.jsonl",
        r#"{"query":"the river floods the lower streets","positive":"the river floods the streets","negatives":["the river floods the lower meadows","the river and the ship","a portrait hangs in the hall"]}
{"query":"the ship carried tea and timber","positive":"the ship carried tea","negatives":["the ship carried blue and timber","the ship in wet meadows","a violinist from a small town"]}
"#,
    );
    let report = folder.arg("page.html");
    let found = stdout(&mut kiln(&[
        "granularity",
        "--json",
        "--model",
        &model,
        "--data",
        &graded,
        "--report",
        &report,
    ]));
    let found: Value = serde_json::from_str(&found).unwrap();
    let text = stdout(&mut kiln(&["granularity", "--model", &model, "--data", &graded]));
    assert!(text.contains("n1") && text.contains("n3"), "{text}");
    let levels = found["levels"].as_array().unwrap();
    assert_eq!(levels.len(), 4, "{found}");

    // The same means from the vectors that `embed` gives.
    let texts: Vec<Value> = std::fs::read_to_string(&graded)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let vectors = |name: &str, texts: Vec<&str>, prompt: &[&str]| -> Vec<Vec<f64>> {
        let input = folder.write(&format!("{name}.txt"), texts.join("\n") + "\n");
        let output = folder.arg(&format!("{name}.out.jsonl"));
        let args = ["embed", "--model", &model, "--input", &input, "--output", &output];
        kiln(&args).args(prompt).assert().success();
        let rows = lines(&folder, &format!("{name}.out.jsonl"));
        rows.iter().map(|row| serde_json::from_value(row["embedding"].clone()).unwrap()).collect()
    };
    let queries = texts.iter().map(|row| row["query"].as_str().unwrap()).collect();
    let queries = vectors("queries", queries, &["--prompt-name", "query"]);
    let mut means = Vec::new();
    for (i, level) in levels.iter().enumerate() {
        let of = |row: &Value| match i {
            0 => row["positive"].clone(),
            _ => row["negatives"][i - 1].clone(),
        };
        let documents: Vec<Value> = texts.iter().map(of).collect();
        let documents = documents.iter().map(|text| text.as_str().unwrap()).collect();
        let documents = vectors(&format!("level{i}"), documents, &[]);
        let dot = |(a, b): (&Vec<f64>, &Vec<f64>)| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        let mean = queries.iter().zip(&documents).map(dot).sum::<f64>() / 2.0;
        assert!((level["mean"].as_f64().unwrap() - mean).abs() < 1e-5, "{level}: {mean}");
        means.push(mean);
    }
    assert_eq!(found["graded"], means[1] > means[2] && means[2] > means[3], "{found}");
    assert!(std::fs::read_to_string(folder.path("page.html")).unwrap().contains("<svg"));
}
