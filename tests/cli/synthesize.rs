//! A language model writes rows: all kinds of them, within a budget, and never twice for the same question.

mod budgets;
mod corpus;
mod endpoints;
mod prompts;
mod resume;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::chat::{
    Fake, Real, Reply, TYPES, answers, no_key_below, rejected, rows, summary, synthesize,
};
use crate::harness::{Folder, kiln, names, stdout};

/// A kind that needs no tasks, so that a question is a row.
const STS: [&str; 2] = ["--types", "sts"];

fn with<'a>(first: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [first, more].concat()
}

/// All that a row must have, whatever its kind.
fn check(row: &Value, levels: usize) {
    let text = |value: &Value| value.as_str().is_some_and(|text| !text.trim().is_empty());
    for name in ["query", "type", "generator", "prompt_version"] {
        assert!(text(&row[name]), "{name}: {row}");
    }
    assert!(row["instruction"].is_string() && row["seed"] == 1, "{row}");
    assert!(row["tokens"]["prompt"].as_u64() > Some(0), "{row}");
    assert!(row["tokens"]["completion"].as_u64() > Some(0), "{row}");
    let positives = row["pos"].as_array().unwrap();
    assert!(positives.len() == 1 && text(&positives[0]), "{row}");
    let mut texts = vec![&row["query"], &positives[0]];
    if levels > 1 {
        let names: Vec<String> = (1..=levels).map(|level| format!("n{level}")).collect();
        texts.extend(names.iter().map(|name| &row["negatives"][name]));
        assert!(row.get("neg").is_none(), "{row}");
    } else {
        texts.extend(row["neg"].as_array().into_iter().flatten());
    }
    assert!(texts.iter().all(|one| text(one)), "{row}");
    let distinct: BTreeSet<&str> = texts.iter().map(|one| one.as_str().unwrap()).collect();
    assert_eq!(distinct.len(), texts.len(), "{row}");
}

/// Rows of each value of a field.
fn counts(rows: &[Value], field: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for row in rows {
        *counts.entry(row[field].as_str().unwrap_or("").to_string()).or_default() += 1;
    }
    counts
}

/// Passages as `kiln chunk` writes them.
fn passages(folder: &Folder) -> String {
    let line = |i: usize| {
        json!({
            "_id": format!("book/{}.md#{}", i / 4, i % 4 + 1),
            "title": format!("Chapter {}", i / 4),
            "text": format!("Mooring number {i} is closed for repairs until the {i}th of May, as its chains are worn."),
            "document": format!("book/{}.md", i / 4),
            "split": if i < 8 { "train" } else { "dev" },
        })
    };
    let lines: Vec<String> = (0..12).map(|i| line(i).to_string()).collect();
    folder.write("passages.jsonl", lines.join("\n"))
}

/// The error of a command that fails in one line and may have printed a summary.
fn refused(command: &mut assert_cmd::Command) -> String {
    let output = command.assert().code(1).get_output().clone();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("error: ") && error.trim_end().lines().count() == 1, "{error}");
    error
}

#[test]
fn a_good_model_writes_rows_of_all_types() {
    let (folder, model) = (Folder::new(), Fake::good());
    let types = TYPES.map(|name| format!("{name}=1")).join(",");
    let args = ["--types", &types, "--rows", "60", "--brainstorms", "2"];
    let said = stdout(&mut synthesize(&model.url(), &folder, &args));
    let rows = rows(&folder);
    assert!(said.contains(&format!("{} rows of 60 examples", rows.len())), "{said}");
    assert!(rows.len() >= 57, "{} rows: {}", rows.len(), summary(&folder));
    rows.iter().for_each(|row| check(row, 1));
    let counts = counts(&rows, "type");
    assert!(TYPES.iter().all(|name| counts[*name] > 2), "{counts:?}");
    // What is written is what was answered, and where it comes from.
    let negatives = |row: &Value| row.get("neg").map_or(0, |neg| neg.as_array().unwrap().len());
    for row in &rows {
        let kind = row["type"].as_str().unwrap();
        // E5 has no negative for these.
        let expected = usize::from(!matches!(kind, "short-short" | "long-long"));
        assert_eq!(negatives(row), expected, "{row}");
        assert_eq!((&row["generator"], &row["language"]), (&json!("writer"), &json!("en")));
        assert!(row["prompt_version"].as_str().unwrap().starts_with(kind), "{row}");
        // What they were to be like, where that was asked for.
        let scores = ["positive_score", "negative_score"].map(|name| row[name].as_f64());
        match kind {
            "sts" | "bitext" => assert!(scores[0] > scores[1] && scores[1].is_some(), "{row}"),
            _ => assert_eq!(scores, [None, None], "{row}"),
        }
    }
    assert_eq!(
        names(&folder.path("out")),
        [
            ".kiln-run",
            "answers.jsonl",
            "rejected.jsonl",
            "rows.jsonl",
            "settings.json",
            "summary.json"
        ]
    );
    let seen = model.seen();
    assert_eq!((seen.most_asked(), seen.count), (1, answers(&folder).len()));
    for request in &seen.requests {
        assert_eq!(request.path, "POST /v1/chat/completions");
        assert_eq!(request.format(), "json_schema");
        assert_eq!(request.body["response_format"]["json_schema"]["strict"], true);
        assert_eq!(request.body["model"], "writer");
    }
    no_key_below(&folder.path("out"));
}

#[test]
fn training_reads_what_was_written() {
    let (folder, model) = (Folder::new(), Fake::good());
    let args =
        ["--types", "sts,short-short", "--levels", "4", "--rows", "24", "--brainstorms", "1"];
    stdout(&mut synthesize(&model.url(), &folder, &args));
    let (rows, out) = (folder.arg("out/rows.jsonl"), folder.arg("trained"));
    let recipe = folder.write(
        "recipe.toml",
        format!(
            "name = 'r'\n[model]\nmax_length = 128\npooling = {{ mode = 'mean' }}\n\
             [model.new]\nvocab_size = 600\nhidden_size = 16\nintermediate_size = 24\nlayers = 2\nheads = 2\n\
             [[stage]]\nname = 's'\ndata = ['{rows}']\nsteps = 2\nbatch_size = 4\nlr = 1e-3\n"
        ),
    );
    kiln(&["train", "--recipe", &recipe, "--output", &out]).assert().success();
}

#[test]
fn four_levels_are_one_answer() {
    let (folder, model) = (Folder::new(), Fake::good());
    let types = TYPES.map(|name| format!("{name}=1")).join(",");
    let args = ["--types", &types, "--rows", "36", "--levels", "4", "--brainstorms", "1"];
    stdout(&mut synthesize(&model.url(), &folder, &args));
    let rows = rows(&folder);
    assert!(rows.len() >= 33, "{}", summary(&folder));
    rows.iter().for_each(|row| check(row, 4));
    // One question each, but for four of stage 1 and answers that did not pass.
    let tried = rejected(&folder).len();
    assert!(model.count() <= 36 + 4 + tried, "{} requests, {tried} rejected", model.count());
    assert_eq!(counts(&rows, "type").len(), 6);
}

#[test]
fn pairs_get_new_negatives() {
    let (folder, model) = (Folder::new(), Fake::good());
    let pair = |i: usize| {
        json!({"instruction": "Find it.", "query": format!("What is number {i}?"),
            "pos": [format!("Number {i} is a mooring in the old harbour.")], "neg": ["an old one"]})
    };
    let pairs: Vec<String> = (0..6).map(|i| pair(i).to_string()).collect();
    let pairs = folder.write("pairs.jsonl", pairs.join("\n"));
    stdout(&mut synthesize(&model.url(), &folder, &["--regenerate", &pairs]));
    let mut rows = rows(&folder);
    rows.sort_by_key(|row| row["query"].to_string());
    assert_eq!(rows.len(), 6);
    for (i, row) in rows.iter().enumerate() {
        check(row, 4);
        let old = pair(i);
        for name in ["instruction", "query", "pos"] {
            assert_eq!(row[name], old[name]);
        }
        assert_eq!(row["type"], "regenerated");
    }
    assert!(model.seen().prompts().iter().all(|prompt| !prompt.contains("an old one")));
}

#[test]
fn languages_are_asked_for_by_their_shares() {
    let (folder, model) = (Folder::new(), Fake::good());
    let args = ["--types", "sts", "--languages", "en=2,de,fr", "--rows", "40"];
    stdout(&mut synthesize(&model.url(), &folder, &args));
    let rows = rows(&folder);
    let counts = counts(&rows, "language");
    assert!(rows.len() >= 36 && counts.len() == 3, "{counts:?} {}", summary(&folder));
    assert!(counts["en"] > counts["de"] && counts["en"] > counts["fr"], "{counts:?}");

    // A model that goes on in German is not believed.
    let stubborn = Fake::start(|request| {
        let text =
            "Die Fischer aus der kleinen Stadt wissen nicht, warum das Wasser gestern so ruhig war";
        let mut answer = crate::chat::answer(request);
        for (i, value) in answer.as_object_mut().unwrap().values_mut().enumerate() {
            *value = json!(format!("{text}, Teil {i}."));
        }
        Reply::content(request, answer.to_string())
    });
    let out = Folder::new();
    let error = refused(&mut synthesize(&stubborn.url(), &out, &with(&STS, &["--rows", "5"])));
    assert!(error.contains("no answer is an example"), "{error}");
    assert!(rejected(&out).iter().all(|one| one["reason"] == "language"), "{:?}", rejected(&out));
    // Every example was asked for twice, with another number, and no more.
    assert_eq!((stubborn.count(), stubborn.seen().most_asked()), (10, 1));
}

#[test]
fn evaluation_data_is_kept_out() {
    let (folder, model) = (Folder::new(), Fake::good());
    let args = with(&STS, &["--rows", "10"]);
    stdout(&mut synthesize(&model.url(), &folder, &args));
    let before = rows(&folder);
    let leaked = folder.write("test.jsonl", json!({"text": before[3]["pos"][0]}).to_string());
    let resumed = with(&args, &["--resume", "--leak", &leaked]);
    stdout(&mut synthesize(&model.url(), &folder, &resumed));
    let after = rows(&folder);
    assert_eq!(after.len() + 1, before.len());
    assert!(!after.contains(&before[3]));
    assert_eq!(rejected(&folder)[0]["reason"], "leak");
}

/// SmolLM2 writes a row of each type (`KILN_LLM_ROWS`: more, each some ten seconds). It writes weak text: what is tested
/// is that a real server understands what is asked, and that what comes has the form that was asked for.
#[test]
fn a_real_model_writes_rows_of_each_type() {
    let Some(model) = Real::start_or_skip() else { return };
    let folder = Folder::new();
    let tasks = folder.write(
        "tasks.txt",
        "Given a question about cooking, find recipes that answer it.\n\
         Given a review of a restaurant, tell how content the guest is.\n",
    );
    let wanted = std::env::var("KILN_LLM_ROWS").unwrap_or_else(|_| "1".into());
    let (mut total, begun) = (0, std::time::Instant::now());
    for (i, name) in TYPES.into_iter().enumerate() {
        let out = Folder::new();
        // It neither counts words nor keeps to a language.
        let mut args =
            vec!["--types", name, "--rows", &wanted, "--without-check", "length,language"];
        args.extend(["--answer-tokens", "200", "--attempts", "3", "--concurrency", "2"]);
        args.extend(["--levels", if i % 2 == 0 { "1" } else { "4" }]);
        // The first type thinks of its tasks.
        match i {
            0 => args.extend(["--brainstorms", "2", "--tasks-each", "3"]),
            _ => args.extend(["--tasks", &tasks]),
        }
        // Another processor samples other texts: a type may be left without any good row, and it says so.
        let run = synthesize(&model.url, &out, &args).output().unwrap();
        let error = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success() || error.contains("no answer is an example"), "{error}");
        let (rows, done) = (rows(&out), summary(&out));
        eprintln!(
            "{name}: {} rows, refused {}; {} tokens of prompts, {} of answers; {:.0} s so far",
            rows.len(),
            done["rejected"],
            done["prompt_tokens"],
            done["completion_tokens"],
            begun.elapsed().as_secs_f64()
        );
        rows.iter().for_each(|row| check(row, if i % 2 == 0 { 1 } else { 4 }));
        assert!(
            rows.iter().all(|row| row["type"] == name && row["tokens"].get("estimated").is_none())
        );
        // The grammar leaves no other form.
        assert!(done["rejected"].get("not_json").is_none(), "{done}");
        total += rows.len();
        // Nobody is asked again.
        let before = std::fs::read(out.path("out/rows.jsonl")).unwrap();
        let again = synthesize("http://127.0.0.1:9/v1", &out, &with(&args, &["--resume"]))
            .output()
            .unwrap();
        assert_eq!(again.status.code(), run.status.code());
        assert_eq!(std::fs::read(out.path("out/rows.jsonl")).unwrap(), before);
    }
    let all = TYPES.len() * wanted.parse::<usize>().unwrap();
    assert!(3 * total >= all, "{total} rows of {all}");
}
