//! Prompts: shown by a dry run, printed, and replaced by others.

use serde_json::Value;

use super::{STS, with};
use crate::chat::{Fake, rows, summary, synthesize};
use crate::harness::{Folder, failure, kiln, stdout};

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
