//! `kiln adapt`: a folder of documents in, an embedder out.

use std::path::Path;

use serde_json::Value;

use crate::chat::{Fake, KEY, no_key_below};
use crate::harness::{Folder, failure, kiln, stdout};

/// Thirty documents of two sections, and a tiny model to begin with.
fn documents() -> Folder {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path("docs/<b>")).unwrap();
    for n in 0..30 {
        let text = format!(
            "---\nlicense: CC0-1.0\n---\n# tea {n}\n\nthe river {n} floods the lower streets in spring.\n\n\
             ## the hall\n\nthe ship carried tea and timber up to mile {n}. <script>alert({n})</script>\n"
        );
        folder.write(&format!("docs/<b>/{n}.md"), text);
    }
    folder.model("{ mode = 'mean' }");
    // A model that has learned nothing yet is no teacher.
    folder.write("filters.toml", "[[filter]]\nkind = 'equal'\n");
    folder
}

/// The command, into `out`, with a run that is as short as can be.
fn adapt(folder: &Folder, more: &[&str]) -> assert_cmd::Command {
    let (docs, model, out) = (folder.arg("docs"), folder.arg("model"), folder.arg("out"));
    let own = [
        "adapt", "--docs", &docs, "--base", &model, "-o", &out, "--tokens", "16", "--steps", "2",
        "--batch", "4",
    ];
    let mut command = kiln(&own);
    command
        .args([
            "--split",
            "0.5,0.25,0.25",
            "--scheme",
            "int8:8",
            "--filters",
            &folder.arg("filters.toml"),
        ])
        .args(more);
    command.env("OPENAI_API_KEY", KEY).env("NO_PROXY", "127.0.0.1");
    command
}

fn json(command: &mut assert_cmd::Command) -> Value {
    let text = stdout(command);
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn adapt_goes_the_whole_way_without_a_model_and_then_repeats_nothing() {
    let folder = documents();
    let done = json(&mut adapt(&folder, &["--no-llm", "--json", "--quiet"]));
    let questions = &done["questions"];
    assert_eq!(
        (&questions["documents"], &questions["licences"]["CC0-1.0"]),
        (&30.into(), &30.into())
    );
    let count = |name: &str| questions[name].as_u64().unwrap();
    assert!(count("train") > 4 && count("dev") > 0 && count("test") > 0, "{questions}");
    let names: Vec<&str> = done["held_out"]["systems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert!(names[1].ends_with("/model") && names[2].ends_with("/model + BM25"), "{names:?}");
    assert_eq!([names[0], names[3], names[4]], ["BM25", "adapted.kiln", "adapted.kiln + BM25"]);
    assert!(done["verdict"] == "better" || !done["why"].as_array().unwrap().is_empty(), "{done}");

    // Nothing that is tested was trained on, or mined from.
    let out = folder.path("out");
    let ids = |name: &str| -> Vec<String> {
        let lines = read(&out.join(name));
        lines
            .lines()
            .map(|line| {
                serde_json::from_str::<Value>(line).unwrap()["_id"].as_str().unwrap().into()
            })
            .collect()
    };
    let mined_from = ids("train-corpus.jsonl");
    for line in read(&out.join("test/qrels/test.tsv")).lines().skip(1) {
        let passage = line.split('\t').nth(1).unwrap();
        let document = passage.split('#').next().unwrap();
        assert!(!mined_from.iter().any(|id| id.starts_with(&format!("{document}#"))), "{passage}");
    }
    // Without a model the titles are the questions, so they are not in the corpus.
    assert!(
        read(&out.join("test/corpus.jsonl")).lines().all(|line| line.contains("\"title\":\"\""))
    );

    // Texts of documents are texts.
    let page = read(&out.join("report.html"));
    assert!(!page.contains("<script>") && page.contains("Held-out questions"));
    let card = read(&out.join("README.md"));
    assert!(
        card.contains("CC0-1.0 (30)") && card.contains("no language model wrote any"),
        "{card}"
    );

    // The model is whole, and each step is a command that runs alone.
    let packed = out.join("adapted.kiln").display().to_string();
    let searched = stdout(&mut kiln(&[
        "eval",
        "search",
        "-m",
        &packed,
        "--data",
        &folder.arg("out/test"),
        "--json",
    ]));
    let searched: Value = serde_json::from_str(&searched).unwrap();
    assert_eq!(searched["systems"][1]["ndcg_at_10"], done["held_out"]["systems"][3]["ndcg_at_10"]);
    let again = json(&mut adapt(&folder, &["--no-llm", "--json", "--quiet"]));
    let steps = again["steps"].as_array().unwrap();
    let repeated: Vec<&Value> = steps.iter().filter(|step| !step["seconds"].is_null()).collect();
    assert!(repeated.len() == 1 && repeated[0]["name"] == "comparison", "{repeated:?}");
    // Other options repeat what depends on them, and no more.
    let other = json(&mut adapt(&folder, &["--no-llm", "--json", "--quiet", "--lr", "1e-3"]));
    let names: Vec<&str> = other["steps"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|step| !step["seconds"].is_null())
        .map(|step| step["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["recipe", "training", "compression", "comparison"]);
}

#[test]
fn adapt_has_a_model_write_and_judge_and_asks_nothing_twice() {
    let (folder, model) = (documents(), Fake::good());
    let url = model.url();
    let args = ["--llm", &url, "--llm-model", "writer", "--no-judge", "--json", "--quiet"];
    let done = json(&mut adapt(&folder, &args));
    assert_eq!(done["writers"], serde_json::json!(["writer"]));
    let asked = model.seen().count;
    assert!(asked >= 30, "{asked}");
    json(&mut adapt(&folder, &args));
    assert_eq!(model.seen().count, asked);
    let card = read(&folder.path("out/README.md"));
    assert!(card.contains("generated by `writer`"), "{card}");
    no_key_below(&folder.path("out"));
}

#[test]
fn adapt_says_what_it_needs() {
    let folder = documents();
    let error = failure(&mut adapt(&folder, &["--quiet"]));
    assert!(error.contains("--no-llm") && error.contains("--llm"), "{error}");
    let (docs, model, inside) = (folder.arg("docs"), folder.arg("model"), folder.arg("docs/out"));
    let error = failure(&mut kiln(&[
        "adapt", "--docs", &docs, "--base", &model, "-o", &inside, "--no-llm",
    ]));
    assert!(error.contains("outside --docs"), "{error}");
    let error = failure(&mut adapt(&folder, &["--quiet", "--no-llm", "--test-set", &docs]));
    assert!(error.contains("qrels"), "{error}");
    std::fs::remove_dir_all(folder.path("docs")).unwrap();
    let error = failure(&mut adapt(&folder, &["--quiet", "--no-llm"]));
    assert!(error.contains("docs"), "{error}");
    // Documents without any structure give no pair.
    std::fs::create_dir(folder.path("docs")).unwrap();
    folder.write("docs/a.txt", "one line\n");
    let error = failure(&mut adapt(&folder, &["--quiet", "--no-llm"]));
    assert!(error.contains("questions") && error.contains("--llm"), "{error}");
    // What the user keeps there is not taken.
    std::fs::create_dir(folder.path("mine")).unwrap();
    folder.write("mine/README.md", "mine");
    let mine = folder.arg("mine");
    let error = failure(&mut kiln(&[
        "adapt", "--docs", &docs, "--base", &model, "-o", &mine, "--no-llm", "--quiet",
    ]));
    assert!(error.contains("README.md"), "{error}");
}
