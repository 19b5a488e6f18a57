//! `kiln adapt`: a folder of documents in, an embedder out.

use std::path::Path;

use serde_json::Value;

use crate::chat::{Fake, KEY, Reply, Running, no_key_below};
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

/// Filters that ask for a judgement of each question.
fn judged(folder: &Folder) {
    folder.write("filters.toml", "[[filter]]\nkind = 'equal'\n\n[[filter]]\nkind = 'answerable'\n");
}

#[test]
fn a_model_judges_and_a_budget_is_for_both() {
    let (folder, model) = (documents(), Fake::good());
    judged(&folder);
    let url = model.url();
    let run = |more: &[&str]| {
        let args = ["--llm", &url, "--llm-model", "writer", "--json", "--quiet"];
        adapt(&folder, &[&args[..], more].concat())
    };
    // The questions are too many.
    let error = failure(&mut run(&["--no-judge", "--max-requests", "10"]));
    assert!(error.contains("questions: ") && error.contains("budget"), "{error}");
    assert_eq!(model.seen().count, 10);
    let done = json(&mut run(&["--no-judge"]));
    assert_eq!(done["judges"], serde_json::json!([]));
    // What they took is missing when they are judged: the first judgement is the last.
    let asked = model.seen().count;
    let summary: Value =
        serde_json::from_str(&read(&folder.path("out/synthesis/summary.json"))).unwrap();
    let used = |name: &str| summary[name].as_u64().unwrap();
    let most = (used("prompt_tokens") + used("completion_tokens") + 1).to_string();
    let error = failure(&mut run(&["--max-tokens", &most]));
    assert!(error.contains("refinement: ") && error.contains("--no-judge"), "{error}");
    assert_eq!(model.seen().count, asked + 1);
    // It is not taken for done.
    let done = json(&mut run(&[]));
    assert_eq!(model.seen().most_asked(), 1);
    assert_eq!((&done["writers"], &done["judges"]), (&done["writers"], &done["writers"]));
    let asked = model.seen().count;
    let card = read(&folder.path("out/README.md"));
    assert!(card.contains("Judged by `writer`") && card.contains("`answerable/"), "{card}");
    assert!(card.contains("`corpus/2`") && card.contains("Seed 1, Kiln "), "{card}");
    assert!(card.contains("kiln serve --model ") && card.contains("Embedder.load"), "{card}");
    // Without judgements nobody is asked, whatever the filters say.
    let done = json(&mut run(&["--no-judge"]));
    assert_eq!((model.seen().count, &done["judges"]), (asked, &serde_json::json!([])));
    // A document less: what is known of the others is not asked again.
    std::fs::remove_file(folder.path("docs/<b>/7.md")).unwrap();
    json(&mut run(&["--no-judge"]));
    assert_eq!(model.seen().count, asked);
    // Other questions are others, and what was paid for is kept beside.
    json(&mut run(&["--no-judge", "--queries", "1"]));
    assert!(model.seen().count > asked && folder.path("out/synthesis.1/answers.jsonl").exists());
}

#[cfg(unix)]
#[test]
fn what_was_interrupted_goes_on() {
    let folder = documents();
    let model =
        Fake::start(|request| Reply::good(request).delay(std::time::Duration::from_millis(40)));
    let url = model.url();
    let args = ["--llm", &url, "--llm-model", "writer", "--no-judge", "--quiet", "--json"];
    let args = [&args[..], &["--concurrency", "2"]].concat();
    let command = adapt(&folder, &args);
    let mut process = std::process::Command::new(command.get_program());
    process.args(command.get_args()).env("NO_PROXY", "127.0.0.1");
    process.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut running = Running(process.spawn().unwrap());
    model.wait_for(10);
    std::process::Command::new("kill")
        .args(["-INT", &running.0.id().to_string()])
        .status()
        .unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(130));
    let known = read(&folder.path("out/synthesis/answers.jsonl")).lines().count();
    assert!(known >= 8, "{known}");
    json(&mut adapt(&folder, &args));
    // But for what was under way.
    let (seen, kept) = (model.seen(), read(&folder.path("out/synthesis/answers.jsonl")));
    assert!(seen.count <= kept.lines().count() + 2, "{} for {}", seen.count, kept.lines().count());
}

#[test]
fn people_judge_too() {
    let folder = documents();
    let line = |id: &str, text: &str| serde_json::json!({"_id": id, "text": text}).to_string();
    let set = |name: &str| {
        std::fs::create_dir_all(folder.path(&format!("{name}/qrels"))).unwrap();
        let texts =
            [line("a", "the river 1 floods"), line("b", "the ship carried tea"), line("c", "x y")];
        folder.write(&format!("{name}/corpus.jsonl"), texts.join("\n"));
        let queries = [line("1", "which river floods"), line("2", "what did the ship carry")];
        folder.write(&format!("{name}/queries.jsonl"), queries.join("\n"));
        let qrels = "query-id\tcorpus-id\tscore\n1\ta\t1\n2\tb\t1\n";
        folder.write(&format!("{name}/qrels/test.tsv"), qrels);
        folder.arg(name)
    };
    let people = set("people");
    let done = json(&mut adapt(&folder, &["--no-llm", "--test-set", &people, "--json", "--quiet"]));
    assert_eq!(done["people"]["queries"], 2, "{done}");
    // They are not trained on.
    let recipe = read(&folder.path("out/recipe.toml"));
    assert!(recipe.contains("people/queries.jsonl"), "{recipe}");
    let card = read(&folder.path("out/README.md"));
    assert!(card.contains("Questions of people") && card.contains("were trained on"), "{card}");
    // The printed commands are those that were run.
    let command = |name: &str| {
        let steps = done["steps"].as_array().unwrap();
        let step = steps.iter().find(|step| step["name"] == name).unwrap();
        step["command"].as_str().unwrap().to_string()
    };
    assert!(command("training").ends_with(" --overwrite"), "{}", command("training"));
    assert!(command("compression").ends_with(" --overwrite"));
    let below = set("docs/people");
    let error = failure(&mut adapt(&folder, &["--no-llm", "--test-set", &below, "--quiet"]));
    assert!(error.contains("below --docs"), "{error}");
}

#[test]
fn what_is_misspelt_is_said_at_once() {
    let folder = documents();
    for (option, value) in [
        ("--scheme", "int5"),
        ("--split", "0.5,0.6"),
        ("--language", "xx"),
        ("--without-check", "spelling"),
        ("--tokens", "17"),
    ] {
        let (docs, model, out) = (folder.arg("docs"), folder.arg("model"), folder.arg("out"));
        let args = ["adapt", "--docs", &docs, "--base", &model, "-o", &out, "--no-llm", "--quiet"];
        let error = failure(&mut kiln(&[&args[..], &[option, value]].concat()));
        assert!(error.contains(option) && !folder.path("out").exists(), "{option}: {error}");
    }
    // Nor is a judge found missing after hours.
    judged(&folder);
    let config = folder.write(
        "models.toml",
        "[[endpoint]]\nurl = 'http://127.0.0.1:9/v1'\nmodel = 'm'\nroles = ['write']\n",
    );
    let error = failure(&mut adapt(&folder, &["--llm-config", &config, "--quiet"]));
    assert!(error.contains("\"judge\"") && !folder.path("out").exists(), "{error}");
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
