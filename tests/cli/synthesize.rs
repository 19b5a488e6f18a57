//! A language model writes rows: all kinds of them, within a budget, and never twice for the same question.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::chat::{
    Fake, Real, Reply, Running, TYPES, answers, lines, no_key_below, rejected, rows, summary,
    synthesize,
};
use crate::harness::{Folder, failure, kiln, names, stdout};

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

/// The error of a command that fails in one line and may have printed a summary.
fn refused(command: &mut assert_cmd::Command) -> String {
    let output = command.assert().code(1).get_output().clone();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("error: ") && error.trim_end().lines().count() == 1, "{error}");
    error
}

#[test]
fn a_dry_run_asks_nothing() {
    let (folder, model) = (Folder::new(), Fake::good());
    let args = ["--rows", "1000", "--dry-run", "--prompt-price", "1", "--completion-price", "2"];
    let text = stdout(&mut synthesize(&model.url(), &folder, &args));
    assert_eq!(text.matches("--- prompt ").count(), 10, "{text}");
    assert!(text.contains("--- prompt 10") && text.contains("tokens of prompts"), "{text}");
    assert!(text.contains("cost about"), "{text}");
    assert_eq!((model.count(), folder.path("out").exists()), (0, false));
    let found = stdout(&mut kiln(&["--json", "synthesize", "--dry-run", "--rows", "20"]));
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["prompts"].as_array().unwrap().len(), 10);
    assert!(found["prompt_tokens"].as_u64() > Some(1000), "{found}");
    // What it said is what it asks for, about.
    let args = with(&STS, &["--rows", "50"]);
    let dry = synthesize(&model.url(), &folder, &with(&args, &["--dry-run", "--json"]))
        .output()
        .unwrap()
        .stdout;
    let dry: Value = serde_json::from_slice(&dry).unwrap();
    stdout(&mut synthesize(&model.url(), &folder, &args));
    let used = summary(&folder)["prompt_tokens"].as_f64().unwrap();
    let ratio = dry["prompt_tokens"].as_f64().unwrap() / used;
    assert!((0.8..1.25).contains(&ratio), "{ratio}");
}

#[test]
fn prompts_are_printed_and_replaced() {
    let (folder, model) = (Folder::new(), Fake::good());
    for name in ["short-long", "tasks-long-long", "corpus", "negatives", "sts"] {
        let text = stdout(&mut kiln(&["synthesize", "--print-prompt", name]));
        assert!(text.contains("{{") && text.contains("{#- version "), "{text}");
    }
    let error = failure(&mut kiln(&["synthesize", "--print-prompt", "x"]));
    assert!(error.contains("short-long"), "{error}");
    std::fs::create_dir(folder.path("prompts")).unwrap();
    let own = "Three texts, please, as {{ keys | join('/') }}, in {{ language }}.";
    folder.write("prompts/sts.jinja", own);
    let prompts = folder.arg("prompts");
    let args = with(&STS, &["--rows", "3", "--prompts", &prompts]);
    stdout(&mut synthesize(&model.url(), &folder, &args));
    for prompt in model.seen().prompts() {
        assert_eq!(prompt, "Three texts, please, as S1/S2/S3, in English.");
    }
    let version = rows(&folder)[0]["prompt_version"].clone();
    assert!(version != "sts/1" && version.as_str().unwrap().starts_with("sts/"), "{version}");
    // Others are another run.
    folder.write("prompts/sts.jinja", format!("{own} Quickly."));
    let error = failure(&mut synthesize(&model.url(), &folder, &with(&args, &["--resume"])));
    assert!(error.contains("prompts"), "{error}");
    for (text, word) in [("{{ nothing }}", "sts.jinja"), ("{% if %}", "sts.jinja")] {
        folder.write("prompts/sts.jinja", text);
        let out = Folder::new();
        let error = failure(&mut synthesize(&model.url(), &out, &args));
        assert!(error.contains(word), "{error}");
    }
    folder.write("prompts/sts.jinja", own);
    folder.write("prompts/stz.jinja", own);
    let error = failure(&mut synthesize(&model.url(), &Folder::new(), &args));
    assert!(error.contains("stz"), "{error}");
}

#[test]
fn a_run_that_goes_on_asks_nothing_twice() {
    let (folder, model) = (Folder::new(), Fake::good());
    let args = ["--types", "sts,short-short=10", "--rows", "40", "--brainstorms", "3"];
    let part = with(&args, &["--max-requests", "20"]);
    stdout(&mut synthesize(&model.url(), &folder, &part));
    assert_eq!(model.count(), 20);
    assert!(rows(&folder).len() >= 15, "{}", summary(&folder));

    // Not by accident.
    let error = failure(&mut synthesize(&model.url(), &folder, &args));
    assert!(error.contains("--resume"), "{error}");
    let other = with(&args, &["--resume", "--seed", "2"]);
    let error = failure(&mut synthesize(&model.url(), &folder, &other));
    assert!(error.contains("seed"), "{error}");
    assert_eq!(model.count(), 20);

    let again = with(&args, &["--resume"]);
    stdout(&mut synthesize(&model.url(), &folder, &again));
    let (asked, whole) = (model.count(), std::fs::read(folder.path("out/rows.jsonl")).unwrap());
    assert_eq!((model.seen().most_asked(), asked), (1, answers(&folder).len()));
    let done = summary(&folder);
    assert_eq!((&done["unanswered"], &done["examples"]), (&json!(0), &json!(40)));
    stdout(&mut synthesize(&model.url(), &folder, &again));
    assert_eq!((model.count(), summary(&folder)["spent"]["requests"].clone()), (asked, json!(0)));
    assert_eq!(std::fs::read(folder.path("out/rows.jsonl")).unwrap(), whole);

    // All at once is the same.
    let out = Folder::new();
    stdout(&mut synthesize(&model.url(), &out, &args));
    assert_eq!(std::fs::read(out.path("out/rows.jsonl")).unwrap(), whole);
    // More of them begin with those.
    let more = with(
        &["--types", "sts,short-short=10", "--rows", "50", "--brainstorms", "3"],
        &["--resume"],
    );
    stdout(&mut synthesize(&model.url(), &out, &more));
    assert!(std::fs::read(out.path("out/rows.jsonl")).unwrap().starts_with(&whole));
}

#[test]
fn the_same_journal_is_the_same_rows() {
    let folder = Folder::new();
    // Answers that come in any order, and are no good now and then.
    let model = Fake::start(|request| {
        let good = Reply::good(request).delay(Duration::from_millis(request.hash % 20));
        match request.hash % 5 {
            0 => Reply::content(request, "no").delay(Duration::from_millis(7)),
            _ => good,
        }
    });
    let args = ["--types", "sts,short-short=10", "--rows", "60", "--brainstorms", "4"];
    stdout(&mut synthesize(&model.url(), &folder, &with(&args, &["--concurrency", "32"])));
    let files = ["rows.jsonl", "rejected.jsonl"];
    let read = |folder: &Folder| {
        files.map(|name| std::fs::read_to_string(folder.path(&format!("out/{name}"))).unwrap())
    };
    let before = read(&folder);
    assert!(
        before[0].lines().count() > 40 && before[1].lines().count() > 5,
        "{}",
        summary(&folder)
    );
    // One after the other.
    let slow = Folder::new();
    stdout(&mut synthesize(&model.url(), &slow, &with(&args, &["--concurrency", "1"])));
    assert_eq!(read(&slow), before);
    // Nobody is asked, as nobody is there.
    for name in files {
        std::fs::remove_file(folder.path(&format!("out/{name}"))).unwrap();
    }
    stdout(&mut synthesize("http://127.0.0.1:9/v1", &folder, &with(&args, &["--resume"])));
    assert_eq!(read(&folder), before);
    // The order of the journal's lines does not matter.
    let path = folder.path("out/answers.jsonl");
    let journal = std::fs::read_to_string(&path).unwrap();
    let turned: Vec<&str> = journal.lines().rev().collect();
    std::fs::write(&path, turned.join("\n") + "\n").unwrap();
    stdout(&mut synthesize("http://127.0.0.1:9/v1", &folder, &with(&args, &["--resume"])));
    assert_eq!(read(&folder), before);
}

#[test]
fn budgets_end_a_run_and_more_of_them_go_on() {
    let usage = |body: &mut Value| {
        body["usage"] = json!({"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150});
    };
    let model = || Fake::start(move |request| Reply::good(request).changed(usage));
    let prices = ["--prompt-price", "10", "--completion-price", "20"];
    // Of 20 examples 8 are paid for: 0.002 each.
    let budgets: [(&[&str], &[&str]); 3] = [
        (&["--max-requests", "8"], &["--max-requests", "30"]),
        (&["--max-tokens", "1200"], &["--max-tokens", "5000"]),
        (&["--max-cost", "0.016"], &["--max-cost", "1"]),
    ];
    for (little, much) in budgets {
        for concurrency in ["1", "4"] {
            let (folder, model) = (Folder::new(), model());
            let args = with(&STS, &["--rows", "20", "--concurrency", concurrency]);
            let args = with(&args, &prices);
            let first = synthesize(&model.url(), &folder, &with(&args, little)).output().unwrap();
            let text = String::from_utf8(first.stdout).unwrap();
            assert!(first.status.success(), "{text}");
            assert!(text.contains("--resume asks for them"), "{text}");
            let asked = model.count();
            // What is under way is counted, about, so that none is wasted and little is overspent.
            assert!((5..=8).contains(&asked), "{little:?}: {asked} requests");
            let done = summary(&folder);
            assert_eq!(done["prompt_tokens"], 100 * asked);
            assert!((done["cost"].as_f64().unwrap() - 0.002 * asked as f64).abs() < 1e-9, "{done}");
            assert!(done["spent"]["stopped"].is_object(), "{done}");

            // Spent is spent.
            let resumed = with(&args, &["--resume"]);
            if little[0] != "--max-requests" {
                stdout(&mut synthesize(&model.url(), &folder, &with(&resumed, little)));
                assert!(model.count() <= 8, "{}", model.count());
            }
            stdout(&mut synthesize(&model.url(), &folder, &with(&resumed, much)));
            let (answers, done) = (answers(&folder).len(), summary(&folder));
            assert_eq!((model.count(), model.seen().most_asked()), (answers, 1));
            assert_eq!((&done["unanswered"], done["spent"].get("stopped")), (&json!(0), None));
        }
    }
    // While nothing is known of its answers, a server gets no more than the budget surely bears.
    let (folder, hasty) = (Folder::new(), model());
    let args = with(&STS, &["--rows", "20", "--concurrency", "16", "--max-tokens", "100"]);
    stdout(&mut synthesize(&hasty.url(), &folder, &args));
    assert_eq!(hasty.count(), 1);
    // Money without prices is none.
    let (folder, model) = (Folder::new(), model());
    let args = with(&STS, &["--rows", "20", "--max-cost", "1"]);
    let error = failure(&mut synthesize(&model.url(), &folder, &args));
    assert!(error.contains("--prompt-price"), "{error}");
    assert_eq!(model.count(), 0);
}

#[test]
fn a_killed_run_loses_only_what_was_under_way() {
    const AT_ONCE: usize = 8;
    let (folder, rows) = (Folder::new(), 150);
    let model = Fake::start(|request| Reply::good(request).delay(Duration::from_millis(15)));
    let rows = rows.to_string();
    let at_once = AT_ONCE.to_string();
    let args = with(&STS, &["--rows", &rows, "--concurrency", &at_once]);
    let resumed = with(&args, &["--resume"]);
    let mut kills = 0;
    for wanted in [10, 45, 80] {
        let arguments = if kills == 0 { &args } else { &resumed };
        let mut running = Running::start(&model.url(), &folder, arguments);
        model.wait_for(wanted);
        running.0.kill().unwrap();
        kills += usize::from(!running.0.wait().unwrap().success());
        // The journal holds every answer that was read but, perhaps, a cut last line.
        let journal = std::fs::read_to_string(folder.path("out/answers.jsonl")).unwrap();
        let whole = journal.lines().filter(|line| line.ends_with('}')).count();
        let asked = model.count();
        assert!(whole + kills * AT_ONCE >= asked, "{whole} kept of {asked} after {kills} kills");
    }
    stdout(&mut synthesize(&model.url(), &folder, &resumed));
    let (kept, seen) = (answers(&folder).len(), model.seen());
    assert_eq!(summary(&folder)["unanswered"], 0);
    assert!(kills == 3 && seen.count <= kept + kills * AT_ONCE, "{} for {kept}", seen.count);

    // A run that was never killed writes the same.
    let whole = Folder::new();
    stdout(&mut synthesize(&model.url(), &whole, &args));
    let read = |folder: &Folder| std::fs::read_to_string(folder.path("out/rows.jsonl")).unwrap();
    assert_eq!(read(&whole), read(&folder));
}

#[test]
fn a_journal_that_was_cut_or_spoilt() {
    let (folder, model) = (Folder::new(), Fake::good());
    let args = with(&STS, &["--rows", "6", "--concurrency", "1"]);
    stdout(&mut synthesize(&model.url(), &folder, &args));
    let path = folder.path("out/answers.jsonl");
    let (whole, rows) =
        (std::fs::read(&path).unwrap(), std::fs::read(folder.path("out/rows.jsonl")).unwrap());
    let asked = model.count();
    let resumed = with(&args, &["--resume"]);
    // The last line is asked again, and no other; where only its end is missing not even that.
    for (cut, more) in [(1, 0), (20, 1)] {
        std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
        stdout(&mut synthesize(&model.url(), &folder, &resumed));
        assert_eq!(std::fs::read(folder.path("out/rows.jsonl")).unwrap(), rows);
        assert_eq!(model.count(), asked + more);
    }
    // A spoilt one is named, and nothing is asked or written.
    let mut spoilt = whole.clone();
    spoilt[3] = b'#';
    std::fs::write(&path, &spoilt).unwrap();
    let error = failure(&mut synthesize(&model.url(), &folder, &resumed));
    assert!(error.contains("answers.jsonl:1"), "{error}");
    assert_eq!((model.count(), std::fs::read(&path).unwrap()), (asked + 1, spoilt));
    // Nobody else's files are taken.
    let other = Folder::new();
    std::fs::create_dir(other.path("out")).unwrap();
    other.write("out/rows.jsonl", "mine");
    let error = failure(&mut synthesize(&model.url(), &other, &args));
    assert!(error.contains("rows.jsonl"), "{error}");
    assert_eq!(std::fs::read_to_string(other.path("out/rows.jsonl")).unwrap(), "mine");
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_there_is() {
    let folder = Folder::new();
    let model = Fake::start(|request| Reply::good(request).delay(Duration::from_millis(20)));
    let args = with(&STS, &["--rows", "400", "--concurrency", "4"]);
    let running = Running::start(&model.url(), &folder, &args);
    model.wait_for(30);
    assert_eq!(running.interrupt(), Some(130));
    let (kept, asked) = (answers(&folder).len(), model.count());
    assert!(kept >= 20 && kept + 4 >= asked, "{kept} of {asked}");
    assert!(rows(&folder).len() >= 20, "{}", summary(&folder));
    assert_eq!(summary(&folder)["spent"]["stopped"], "interrupted");
    // From a server that does not answer, too.
    let (folder, silent) = (Folder::new(), Fake::start(|_| Reply::silence()));
    let running = Running::start(&silent.url(), &folder, &args);
    silent.wait_for(1);
    let begun = std::time::Instant::now();
    assert_eq!(running.interrupt(), Some(130));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn endpoints_are_mixed_by_share_and_role() {
    let (folder, strong, cheap, slow) = (Folder::new(), Fake::good(), Fake::good(), Fake::good());
    let config = folder.write(
        "models.toml",
        format!(
            "[[endpoint]]\nurl = '{}'\nmodel = 'strong'\nroles = ['seed']\nkey_env = 'STRONG_KEY'\n\
             prompt_price = 10\ncompletion_price = 30\n\
             [[endpoint]]\nurl = '{}'\nmodel = 'cheap'\nroles = ['write']\nshare = 3\nanswer_tokens = 700\n\
             [[endpoint]]\nurl = '{}'\nmodel = 'slow'\nroles = ['write', 'judge']\n",
            strong.url(),
            cheap.url(),
            slow.url()
        ),
    );
    let out = folder.arg("out");
    let args = ["--quiet", "synthesize", "--llm-config", &config, "-o", &out, "--rows", "60"];
    let mut command = kiln(&args);
    command.args(["--types", "sts,short-short=8", "--brainstorms", "2", "--samples", "2"]);
    command.env("STRONG_KEY", "sk-strong-0123456789").env_remove("OPENAI_API_KEY");
    stdout(&mut command);
    let [strong, cheap, slow] = [&strong, &cheap, &slow].map(Fake::seen);
    // Tasks, and samples of two types.
    assert_eq!(strong.count, 2 + 4);
    assert!(cheap.count > slow.count && slow.count > 5, "{} {}", cheap.count, slow.count);
    assert!(
        strong
            .requests
            .iter()
            .all(|r| r.header("authorization") == Some("Bearer sk-strong-0123456789"))
    );
    for request in cheap.requests.iter().chain(&slow.requests) {
        assert_eq!(request.header("authorization"), None);
        assert!(request.prompt().starts_with("Examples of what is asked"), "{}", request.prompt());
    }
    assert!(cheap.requests.iter().all(|request| request.body["max_tokens"] == 700));
    // A prefix that a provider can keep: one of each type.
    let starts: BTreeSet<String> =
        cheap.prompts().iter().map(|prompt| prompt.chars().take(300).collect()).collect();
    assert_eq!(starts.len(), 2);
    let generators = counts(&rows(&folder), "generator");
    assert_eq!(generators.keys().collect::<Vec<_>>(), ["cheap", "slow"]);
    assert!(summary(&folder)["cost"].as_f64() > Some(0.0));
    // A key that is named must be there.
    let mut command = kiln(&args);
    let error = failure(command.env_remove("STRONG_KEY"));
    assert!(error.contains("STRONG_KEY"), "{error}");
}

#[test]
fn what_only_sorts_answers_pays_for_none() {
    let (folder, model) = (Folder::new(), Fake::good());
    let corpus = passages(&folder);
    let args = ["--corpus", &corpus, "--queries", "1"];
    stdout(&mut synthesize(&model.url(), &folder, &args));
    let asked = model.count();
    for more in [&["--without-check", "length"][..], &["--attempts", "4"]] {
        let args = [&args[..], &["--resume"], more].concat();
        stdout(&mut synthesize(&model.url(), &folder, &args));
        assert_eq!(model.count(), asked, "{more:?}");
    }
    // A judge is asked by others.
    let models = |more: &str| {
        let text = format!(
            "[[endpoint]]\nurl = '{}'\nmodel = 'writer'\nroles = ['write']\n{more}",
            model.url()
        );
        folder.write("models.toml", text)
    };
    let judge = "[[endpoint]]\nurl = 'http://127.0.0.1:9'\nmodel = 'judge'\nroles = ['judge']\n";
    let output = folder.arg("configured");
    for more in ["", judge] {
        let config = models(more);
        let words = ["synthesize", "--llm-config", &config, "-o", &output, "--resume"];
        stdout(&mut kiln(&[&words[..], &args].concat()));
    }
    assert_eq!(model.count(), 2 * asked);
    let error =
        refused(&mut synthesize(&model.url(), &folder, &[&args[..2], &["--resume"]].concat()));
    assert!(error.contains("queries"), "{error}");
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

/// SmolLM2 writes three rows of each type. It writes weak text: what is tested is that a real server understands
/// what is asked, and that what comes has the form that was asked for.
#[test]
fn a_real_model_writes_rows_of_each_type() {
    let Some(model) = Real::start_or_skip() else { return };
    let folder = Folder::new();
    let tasks = folder.write(
        "tasks.txt",
        "Given a question about cooking, find recipes that answer it.\n\
         Given a review of a restaurant, tell how content the guest is.\n",
    );
    let (mut total, begun) = (0, std::time::Instant::now());
    for (i, name) in TYPES.into_iter().enumerate() {
        let out = Folder::new();
        // It neither counts words nor keeps to a language.
        let mut args = vec!["--types", name, "--rows", "3", "--without-check", "length,language"];
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
    assert!(total >= 6, "{total} rows of 18");
}
