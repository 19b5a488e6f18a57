//! Numbers of the command line and of recipes, at the ends of their ranges and beyond.

use serde_json::json;

use super::{MEAN, bounded, has};
use crate::harness::{Folder, failure, kiln};

/// Every number on the command line, at the ends of what a computer counts.
#[test]
fn numbers_beyond_their_range() {
    let folder = Folder::new();
    let arg = |name: &str| folder.arg(name);
    let (model, texts) = (arg("model"), arg("texts.txt"));
    let commands: [(&[&str], &[&str]); 12] = [
        (&["analyze", "--model", &model], &["--limit", "--seed", "--dimensions", "--batch-tokens"]),
        (
            &["bench", "--model", &model],
            &["--limit", "--tokens", "--batch", "--runs", "--rounds", "--max-length"],
        ),
        (
            &["distill", "--teacher", &model, "--texts", &texts],
            &[
                "--keep-blocks",
                "--layers",
                "--hidden-size",
                "--heads",
                "--vocab-size",
                "--steps",
                "--batch-size",
                "--lr",
                "--max-length",
                "--seed",
                "--checkpoint-every",
                "--keep",
            ],
        ),
        (
            &["embed", "--model", &model],
            &["--max-length", "--dimensions", "--batch-tokens", "--weights"],
        ),
        (&["eval", "--model", &model], &["--samples-per-label", "--max-length", "--dimensions"]),
        (&["eval", "trec", "qrels", "run"], &["--level"]),
        (
            &["mine", "--data", &texts],
            &[
                "--threshold",
                "--top-k",
                "--negatives",
                "--least",
                "--percent-of-positive",
                "--absolute-margin",
                "--min-rank",
                "--max-rank",
                "--max-score",
                "--min-score",
                "--max-positive-rank",
                "--seed",
            ],
        ),
        (&["prune", "--model", &model], &["--pattern", "--calibration-tokens", "--damping"]),
        (
            &["quantize", "--model", &model],
            &["--error-budget", "--calibration-tokens", "--damping", "--scheme"],
        ),
        (&["quickstart"], &["--seed", "--steps"]),
        (&["recall", "--model", &model], &["--top-k", "--widths", "--rescore"]),
        (&["search", "--model", &model], &["--top-k", "--dimensions"]),
    ];
    for (command, flags) in commands {
        for flag in flags {
            for number in ["18446744073709551615", "1e300", "-1e300", "NaN"] {
                let flag = format!("{flag}={number}");
                let error = failure(kiln(command).arg(&flag));
                let name = flag.split_once('=').unwrap().0;
                assert!(error.contains(name) && error.contains("invalid"), "{flag}: {error}");
            }
        }
    }
    for device in
        ["cuda:18446744073709551615", "vulkan:18446744073709551615", "cuda:18446744073709551616"]
    {
        let args = ["embed", "-m", &model, "-i", &texts, "-o", "x.npy"];
        failure(&mut crate::harness::kiln_on(device, &args));
    }
}

/// Numbers that parse, in places where they are used at once.
#[test]
fn numbers_at_the_end_of_their_range() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let texts = folder.texts();
    let embed = |more: &[&str]| {
        let base =
            ["embed", "--model", &model, "--input", &texts, "--output", &folder.arg("o.npy")];
        bounded(&[&base[..], more].concat())
    };
    embed(&["--batch-tokens", "1073741824"]).assert().success();
    embed(&["--batch-tokens", "1"]).assert().success();
    embed(&["--max-length", "16777216"]).assert().success();
    has(&failure(&mut embed(&["--dimensions", "16777216"])), &["16777216", "16"]);
    let search = |more: &[&str]| {
        let base = ["search", "--model", &model, "--query", "a river", "--corpus", &texts];
        bounded(&[&base[..], more].concat())
    };
    search(&["-k", "100000"]).assert().success();
    let scheme = |scheme: &str| {
        let args = ["quantize", "-m", &model, "-s", scheme, "-o", &folder.arg("q")];
        failure(&mut bounded(&args))
    };
    has(&scheme("int8:18446744073709551612"), &["18446744073709551612"]);
    has(&scheme("int4:9223372036854775808"), &["9223372036854775808"]);
}

/// Numbers in recipes.
#[test]
fn recipes_beyond_any_machine() {
    let folder = Folder::new();
    let row = |text: &str| json!({"query": text, "pos": [format!("{text}, again")]}).to_string();
    let data = crate::harness::TEXTS.map(row);
    let data = folder.write("data.jsonl", data.join("\n"));
    let recipe = |model: &str, stage: &str| {
        let text = format!(
            "name = 'x'\n[model]\nmax_length = 16\npooling = {MEAN}\n[model.new]\n{model}\n\
             [[stage]]\nname = 's'\ndata = ['{data}']\n{stage}\n"
        );
        let recipe = folder.write("r.toml", text);
        failure(&mut bounded(&[
            "--quiet",
            "train",
            "--recipe",
            &recipe,
            "--output",
            &folder.arg("out"),
        ]))
    };
    let small = "vocab_size = 300\nhidden_size = 16\nintermediate_size = 24\nlayers = 2\nheads = 2";
    let usual = "steps = 1\nbatch_size = 2\nlr = 1e-3";
    for (from, to) in [
        ("vocab_size = 300", "vocab_size = 9223372036854775807"),
        ("hidden_size = 16", "hidden_size = 1099511627776"),
        ("layers = 2", "layers = 1000000000"),
        ("heads = 2", "heads = 0"),
    ] {
        let error = recipe(&small.replace(from, to), usual);
        has(&error, &["model.new", to.rsplit(' ').next().unwrap()]);
    }
    for (from, to) in
        [("lr = 1e-3", "lr = nan"), ("lr = 1e-3", "lr = 1e300"), ("lr = 1e-3", "lr = -1")]
    {
        has(&recipe(small, &usual.replace(from, to)), &["lr"]);
    }
    for (from, to) in [
        ("steps = 1", "steps = 9223372036854775807"),
        ("batch_size = 2", "batch_size = 9223372036854775807"),
        ("batch_size = 2", "batch_size = 2\naccumulation = 9223372036854775807"),
        ("batch_size = 2", "batch_size = 2\nhard_negatives = 9223372036854775807"),
    ] {
        has(&recipe(small, &usual.replace(from, to)), &["9223372036854775807"]);
    }
    let large = recipe(small, &usual.replace("batch_size = 2", "batch_size = 1099511627776"));
    has(&large, &["batch_size", "1099511627776"]);
}
