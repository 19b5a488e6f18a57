//! `eval` and `eval trec` as a user runs them.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use serde_json::Value;

use crate::harness::{Folder, failure, kiln, names, stdout};
use crate::hub::Hub;
use crate::tasks::{KINDS, write_tasks};

pub(crate) const MEAN: &str = "{ mode = 'mean' }";

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// The binary with vectors kept in the test's own folder.
pub(crate) fn eval(folder: &Folder, args: &[&str]) -> assert_cmd::Command {
    let mut command = kiln(&["eval", "--json"]);
    command.args(args).env("KILN_EMBEDDINGS", folder.path("embeddings"));
    command
}

#[test]
fn each_kind_runs_on_a_file_of_ones_own() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let (data, _) = write_tasks(&folder);
    for kind in KINDS {
        let path = format!("{data}/{kind}");
        let actual =
            json(&stdout(&mut eval(&folder, &["-m", &model, "--task", kind, "--data", &path])));
        let score = actual["main_score"].as_f64().unwrap();
        assert!((-1.0..=1.0).contains(&score) && score != 0.0, "{kind}: {actual}");
        assert_eq!(actual["split"], "test");
        let name = actual["main_score_name"].as_str().unwrap();
        assert_eq!(actual["scores"][name], actual["main_score"], "{kind}");
    }
    // A file alone is a split too, and prompts change the vectors.
    let file = format!("{data}/sts/test.jsonl");
    let of = |more: &[&str]| {
        let args = [&["-m", &model, "--task", "sts", "--data", &file], more].concat();
        json(&stdout(&mut eval(&folder, &args)))
    };
    let (plain, told) = (of(&[]), of(&["--instruction", "Find what is alike"]));
    assert_eq!(told["prompts"][0], "Instruct: Find what is alike\nQuery: ");
    assert_ne!(plain["main_score"], told["main_score"]);
    // The papers' tables give the instruction of a suite's task.
    let suite = "title = 'x'\n[[task]]\nname = 'S'\nkind = 'sts'\npath = 'sts'\n\
        instructions.nv-embed = 'Find what is alike'\n";
    let suite = folder.write("told.toml", suite);
    let run = |prompts: &str| {
        let output = folder.arg(prompts);
        let args =
            ["-m", &model, "--suite", &suite, "--data", &data, "--prompts", prompts, "-o", &output];
        eval(&folder, &args).output().unwrap()
    };
    let actual = json(&String::from_utf8(run("nv-embed").stdout).unwrap());
    assert_eq!(actual["tasks"][0]["main_score"], told["main_score"]);
    assert_eq!(actual["tasks"][0]["prompts"], told["prompts"]);
    let refused = run("mgh");
    assert!(!refused.status.success());
    assert!(
        String::from_utf8(refused.stderr).unwrap().contains("the table mgh has no instruction")
    );
    // In another form, which goes with instructions alone.
    let form = ["--instruction-format", "Task: {instruction} | "];
    let actual = of(&[&["--instruction", "Find what is alike"], &form[..]].concat());
    assert_eq!(actual["prompts"][0], "Task: Find what is alike | ");
    let args = ["-m", &model, "--task", "sts", "--data", &file];
    let refused = failure(eval(&folder, &args).args(form));
    assert!(refused.contains("--instruction-format") && refused.contains("--prompts"), "{refused}");
    let refused = failure(eval(&folder, &args).args(["--instruction-format", "Query: "]));
    assert!(refused.contains("{instruction}"), "{refused}");
    assert!(folder.path("embeddings").is_dir());
}

#[test]
fn a_score_that_is_not_defined_is_null() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let same = r#"{"sentence1":"a river","sentence2":"a ship","score":3}"#;
    let data = folder.write("sts.jsonl", format!("{same}\n{same}\n{same}\n"));
    let mut command = eval(&folder, &["-m", &model, "--task", "sts", "--data", &data]);
    let output = command.assert().success().get_output().clone();
    let actual = json(&String::from_utf8(output.stdout).unwrap());
    assert!(actual["main_score"].is_null(), "{actual}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("not defined"));
}

#[test]
fn a_suite_goes_on_where_it_stopped_and_lists_what_is_missing() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let (data, suite) = write_tasks(&folder);
    let more = "[[task]]\nname = \"Gone\"\nkind = \"sts\"\npath = \"gone\"\n\
                [[task]]\nname = \"Broken\"\nkind = \"sts\"\npath = \"broken.jsonl\"\n";
    let suite = folder.write("more.toml", std::fs::read_to_string(suite).unwrap() + more);
    folder
        .write("data/broken.jsonl", "{\"sentence1\":\"a\",\"sentence2\":\"b\",\"score\":\"x\"}\n");
    let output = folder.arg("results");
    let args = ["-m", &model, "--suite", &suite, "--data", &data, "--output", &output];
    let run = |more: &[&str]| {
        let mut command = eval(&folder, &[&args[..], more].concat());
        let output = command.output().unwrap();
        (
            output.status.success(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    // First one task, then all: the first is not evaluated again.
    let (success, ..) = run(&["--only", "Own-sts"]);
    assert!(success);
    let (success, out, notes) = run(&[]);
    let actual = json(&out);
    assert!(!success, "a data set that is wrong must show in the exit code");
    assert_eq!(notes.matches("kept from before").count(), 1, "{notes}");
    assert_eq!(actual["skipped"][0]["task"], "Gone", "{actual}");
    assert!(actual["failed"][0]["reason"].as_str().unwrap().contains("broken.jsonl:1"), "{actual}");
    assert_eq!(actual["tasks"].as_array().unwrap().len(), 7, "{actual}");
    let (_, again, notes) = run(&[]);
    assert_eq!(notes.matches("kept from before").count(), 7, "{notes}");
    assert_eq!(json(&again)["tasks"], actual["tasks"]);
    let (_, _, notes) = run(&["--again"]);
    assert_eq!(notes.matches("kept from before").count(), 0, "{notes}");
    // What a task's files say now counts, wherever they lie and whatever their dates.
    let file = folder.path("data/sts/test.jsonl");
    let before = std::fs::read_to_string(&file).unwrap();
    let fewer: Vec<&str> = before.lines().skip(1).collect();
    for (text, kept) in [(fewer.join("\n"), 6), (before.clone(), 6), (before, 7)] {
        std::fs::write(&file, text).unwrap();
        let (_, _, notes) = run(&[]);
        assert_eq!(notes.matches("kept from before").count(), kept, "{notes}");
    }
    // One task says so, too.
    let one = ["-m", &model, "--task", "sts", "--data", &folder.arg("data/sts"), "-o", &output];
    for kept in [false, true] {
        let said = eval(&folder, &one).output().unwrap();
        let notes = String::from_utf8(said.stderr).unwrap();
        assert_eq!(notes.contains("--again computes it anew"), kept, "{notes}");
    }

    // Named after the run's folder and the model's.
    let name = names(&folder.path("results")).pop().unwrap();
    assert!(name.ends_with("__model"), "{name}");
    let revision = names(&folder.path("results").join(&name)).pop().unwrap();
    let results = folder.path("results").join(name).join(revision);
    let files = names(&results);
    for name in ["Own-sts.json", "model_meta.json", "report.html", "report.md"] {
        assert!(files.iter().any(|file| file == name), "{files:?}");
    }
    let page = std::fs::read_to_string(results.join("report.html")).unwrap();
    assert!(page.contains("Own-retrieval") && page.contains("Gone"), "skipped tasks are listed");

    // mteb reads the files.
    let Some(python) = std::env::var_os("KILN_PYTHON") else {
        eprintln!("SKIPPED: KILN_PYTHON is not set; tests/run.sh installs mteb and sets it");
        return;
    };
    let script = "import sys, pathlib\nfrom mteb.results import TaskResult\n\
        r = TaskResult.from_disk(pathlib.Path(sys.argv[1]))\n\
        print(r.task_name, list(r.scores), r.scores['test'][0]['main_score'])";
    let file = results.join("Own-sts.json");
    let read = std::process::Command::new(python).args(["-c", script]).arg(&file).output().unwrap();
    let text = String::from_utf8(read.stdout).unwrap();
    assert!(
        text.starts_with("Own-sts ['test'] 0."),
        "{text}{}",
        String::from_utf8_lossy(&read.stderr)
    );
}

#[test]
fn rounded_weights_and_the_light_set_print_their_gap() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let (data, suite) = write_tasks(&folder);
    let output = folder.arg("results");
    let args = [
        "-m",
        &model,
        "--suite",
        &suite,
        "--data",
        &data,
        "--output",
        &output,
        "--only",
        "Own-retrieval,Own-sts",
    ];
    let full = json(&stdout(&mut eval(&folder, &args)));
    let score = |actual: &Value, i: usize| actual["tasks"][i]["main_score"].as_f64().unwrap();
    for (more, changed) in
        [(["--weights", "int4"], [true, true]), (["--light", &model], [true, false])]
    {
        let actual = json(&stdout(eval(&folder, &args).args(more)));
        let rows = actual["gaps"].as_array().unwrap();
        assert_eq!(rows.len(), 2, "{actual}");
        for i in 0..2 {
            let gap = score(&actual, i) - score(&full, i);
            assert_eq!(gap != 0.0, changed[i], "{more:?} {actual}");
            assert!((rows[i]["gap"].as_f64().unwrap() - gap).abs() < 1e-12, "{actual}");
        }
    }
    // Whatever the precision, it is said where there is none to compare with.
    let alone = folder.arg("alone");
    let args = ["eval", "-m", &model, "--suite", &suite, "--data", &data, "--output", &alone];
    let text = stdout(kiln(&args).args(["--only", "Own-sts", "--weights", "bf16"]));
    assert!(text.contains("no full evaluation is in the folder"), "{text}");
}

/// A light set is another one where its teacher is asked otherwise, and so are its results.
#[test]
fn the_light_sets_teacher_has_prompts_of_its_own() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let (data, suite) = write_tasks(&folder);
    let output = folder.arg("results");
    let run = |more: &[&str]| {
        let suite = ["--suite", &suite, "--data", &data, "--only", "Own-retrieval"];
        let mut command = eval(&folder, &[&["-m", &model, "-o", &output], &suite[..]].concat());
        command.args(more);
        command
    };
    let light = |more: &[&str]| {
        let actual = json(&stdout(run(&["--light", &model]).args(more)));
        actual["revision"].as_str().unwrap().to_string()
    };
    let bare = light(&[]);
    let told = light(&["--light-query-prompt", "find:"]);
    assert!(told.starts_with(&format!("{bare}-")), "{bare} {told}");
    assert_eq!(light(&["--light-query-prompt-name", "query"]), told);
    let document = light(&["--light-document-prompt", "find:"]);
    assert_eq!(light(&["--light-document-prompt-name", "query"]), document);
    assert_ne!(document, told);
    assert_ne!(light(&["--light-query-prompt", "seek:"]), told);

    let error = failure(
        run(&["--quiet", "--light", &model]).args(["--light-document-prompt-name", "seek"]),
    );
    assert!(error.contains("seek") && error.contains("query"), "{error}");
    for (flag, other) in [
        ("--light-query-prompt", "--light-query-prompt-name"),
        ("--light-document-prompt", "--light-document-prompt-name"),
    ] {
        for flag in [flag, other] {
            let error = failure(&mut run(&[flag, "x"]));
            assert!(error.contains("--light <"), "{error}");
        }
        let error = failure(run(&["--light", &model, flag, "x"]).args([other, "y"]));
        assert!(error.contains(flag) && error.contains(other), "{error}");
    }
}

#[test]
fn trec_runs_are_scored_with_trec_evals_names() {
    let fixture =
        |name: &str| format!("{}/../tests/fixtures/eval/{name}", env!("CARGO_MANIFEST_DIR"));
    let (qrels, run) = (fixture("qrels.txt"), fixture("run.txt"));
    let text = stdout(&mut kiln(&["eval", "trec", &qrels, &run]));
    let value = |name: &str| {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.and_then(|line| line.split_whitespace().last()).unwrap_or_default().to_string()
    };
    for name in ["map", "recip_rank", "P_10", "ndcg_cut_10", "recall_100"] {
        assert!(value(name).parse::<f64>().is_ok(), "{name}: {text}");
    }
    let each = stdout(&mut kiln(&["eval", "trec", "-q", "-m", "map", &qrels, &run]));
    assert!(each.lines().count() > 2 && each.lines().all(|line| line.starts_with("map")), "{each}");
    let all = json(&stdout(&mut kiln(&["eval", "trec", "--json", &qrels, &run])));
    assert!(all["all"]["map"].is_number(), "{all}");
    // From standard input.
    let piped = kiln(&["eval", "trec", &qrels, "-"])
        .write_stdin(std::fs::read(&run).unwrap())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), text);

    let folder = Folder::new();
    let bad = folder.write("bad.txt", "1 Q0 d1 1 high name\n");
    let error = failure(&mut kiln(&["eval", "trec", &qrels, &bad]));
    assert!(error.contains("bad.txt:1") && error.contains("high"), "{error}");
    let error = failure(&mut kiln(&["eval", "trec", "-m", "mapp", &qrels, &run]));
    assert!(error.contains("mapp"), "{error}");
}

#[test]
fn data_sets_come_from_the_hub_as_parquet() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let (data, _) = write_tasks(&folder);
    let repo = folder.path("hub/datasets/someone/pairs");
    std::fs::create_dir_all(repo.join("data")).unwrap();
    let rows: Vec<Value> = std::fs::read_to_string(format!("{data}/sts/test.jsonl"))
        .unwrap()
        .lines()
        .map(json)
        .collect();
    let texts = |name: &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row[name].as_str().unwrap())))
    };
    let scores: ArrayRef = Arc::new(Float64Array::from_iter_values(
        rows.iter().map(|row| row["score"].as_f64().unwrap()),
    ));
    let batch = RecordBatch::try_from_iter([
        ("sentence1", texts("sentence1")),
        ("sentence2", texts("sentence2")),
        ("score", scores),
    ])
    .unwrap();
    let half = batch.num_rows() / 2;
    for (i, part) in
        [batch.slice(0, half), batch.slice(half, batch.num_rows() - half)].iter().enumerate()
    {
        let file = std::fs::File::create(repo.join(format!("data/test-0000{i}-of-00002.parquet")))
            .unwrap();
        let mut writer = ArrowWriter::try_new(file, part.schema(), None).unwrap();
        writer.write(part).unwrap();
        writer.close().unwrap();
    }
    let Some(hub) = Hub::start(&folder) else { return };
    let run = |id: &str, endpoint: &str| {
        let mut command = eval(&folder, &["-m", &model, "--task", "sts", "--data", id]);
        command.env("HF_ENDPOINT", endpoint).env("HF_HOME", folder.path("cache"));
        command
    };
    let local = format!("{data}/sts");
    let expected =
        json(&stdout(&mut eval(&folder, &["-m", &model, "--task", "sts", "--data", &local])));
    let actual = json(&stdout(&mut run("hub:someone/pairs", &hub.endpoint)));
    assert_eq!(actual["scores"], expected["scores"]);
    assert_eq!(actual["task"], "pairs");
    let error = failure(run("hub:someone/none", &hub.endpoint).arg("--quiet"));
    assert!(error.contains("someone/none"), "{error}");

    // A retrieval set in parts, with a card that says which file is what.
    let repo = folder.path("hub/datasets/someone/search");
    std::fs::create_dir_all(&repo).unwrap();
    for (name, to) in [("corpus.jsonl", "texts.jsonl"), ("queries.jsonl", "questions.jsonl")] {
        std::fs::copy(format!("{data}/retrieval/{name}"), repo.join(to)).unwrap();
    }
    let qrels = std::fs::read_to_string(format!("{data}/retrieval/qrels/test.tsv")).unwrap();
    let row = |line: &str| {
        let parts: Vec<&str> = line.split('\t').collect();
        let score: f64 = parts[2].parse().unwrap();
        format!(
            "{}\n",
            serde_json::json!({ "query-id": parts[0], "corpus-id": parts[1], "score": score })
        )
    };
    std::fs::write(repo.join("judged.jsonl"), qrels.lines().skip(1).map(row).collect::<String>())
        .unwrap();
    let part = |config: &str, split: &str, file: &str| {
        format!("- config_name: {config}\n  data_files:\n  - split: {split}\n    path: {file}\n")
    };
    let card = format!(
        "---\nconfigs:\n{}{}{}---\n# Search\n",
        part("default", "test", "judged.jsonl"),
        part("corpus", "corpus", "texts.jsonl"),
        part("queries", "queries", "questions.jsonl")
    );
    std::fs::write(repo.join("README.md"), card).unwrap();
    let retrieval = |i: &str| {
        let mut command = eval(&folder, &["-m", &model, "--task", "retrieval", "--data", i]);
        command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", folder.path("cache"));
        json(&stdout(&mut command))["scores"].clone()
    };
    let actual = retrieval("hub:someone/search");
    assert_eq!(actual, retrieval(&format!("{data}/retrieval")));

    // Without the Hub the cache does.
    let again = json(&stdout(run("hub:someone/pairs", &hub.endpoint).env("HF_HUB_OFFLINE", "1")));
    assert_eq!(again["scores"], expected["scores"]);
    let closed = hub.endpoint.clone();
    drop(hub);
    let again = json(&stdout(&mut run("hub:someone/pairs", &closed)));
    assert_eq!(again["scores"], expected["scores"]);
    let error = failure(run("hub:someone/new", &closed).arg("--quiet"));
    assert!(error.contains("someone/new") && error.contains("no network"), "{error}");
}

#[test]
fn bad_input_is_named() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let run =
        |args: &[&str]| failure(eval(&folder, &[&["-m", &model], args].concat()).arg("--quiet"));
    let write = |name: &str, text: &str| folder.write(name, text);

    let error = run(&["--task", "sts", "--data", &folder.arg("none")]);
    assert!(error.contains("none") && error.contains("no such file"), "{error}");
    let error = run(&["--task", "sts", "--data", &write("empty.jsonl", "")]);
    assert!(error.contains("empty.jsonl"), "{error}");
    let error = run(&["--task", "sts", "--data", &write("a.jsonl", "{\"text\":\"x\"}\n")]);
    assert!(error.contains("a.jsonl:1") && error.contains("sentence1"), "{error}");
    let error = run(&[
        "--task",
        "pair",
        "--data",
        &write("p.jsonl", "{\"sentence1\":\"a\",\"sentence2\":\"b\",\"label\":7}\n"),
    ]);
    assert!(error.contains("p.jsonl:1") && error.contains('7'), "{error}");
    let error = run(&[
        "--task",
        "reranking",
        "--data",
        &write("r.jsonl", "{\"query\":\"a\",\"positive\":[],\"negative\":[\"b\"]}\n"),
    ]);
    assert!(error.contains("positives"), "{error}");
    let beir = folder.path("beir");
    std::fs::create_dir_all(beir.join("qrels")).unwrap();
    std::fs::write(beir.join("corpus.jsonl"), "{\"_id\":\"d\",\"text\":\"a\"}\n").unwrap();
    std::fs::write(beir.join("queries.jsonl"), "{\"_id\":\"q\",\"text\":\"a\"}\n").unwrap();
    let judged = |line: &str| {
        let text = format!("query-id\tcorpus-id\tscore\n{line}\n");
        std::fs::write(beir.join("qrels/test.tsv"), text).unwrap();
    };
    let i = beir.display().to_string();
    judged("q\tother\t1");
    let error = run(&["--task", "retrieval", "--data", &i]);
    assert!(error.contains("test.tsv") && error.contains("no judgement"), "{error}");
    judged("q\td\thigh");
    let error = run(&["--task", "retrieval", "--data", &i]);
    assert!(error.contains("test.tsv:") && error.contains("high"), "{error}");
    judged("q\td\t1");
    std::fs::write(beir.join("top_ranked.jsonl"), "{\"query-id\":\"q\",\"corpus-ids\":[\"x\"]}\n")
        .unwrap();
    let error = run(&["--task", "reranking", "--data", &i]);
    assert!(error.contains("top_ranked.jsonl:1") && error.contains("\"x\""), "{error}");
    let one = "{\"text\":\"a\",\"label\":\"x\"}\n{\"text\":\"b\",\"label\":\"x\"}\n";
    let error = run(&["--task", "classification", "--data", &write("c.jsonl", one)]);
    assert!(error.contains("label"), "{error}");
    let error = run(&["--suite", "locl"]);
    assert!(error.contains("locl") && error.contains("local"), "{error}");
    let error = run(&["--suite", "local", "--only", "Nope"]);
    assert!(error.contains("Nope"), "{error}");
    let suite = write("s.toml", "title = 'x'\n[[task]]\nname = 'a'\nkind = 'sst'\n");
    let error = run(&["--suite", &suite]);
    assert!(error.contains("s.toml") && error.contains("sst"), "{error}");
    let (a, b) = (folder.arg("nothing"), folder.arg("nothing"));
    let error = failure(&mut kiln(&["compare", &a, &b]));
    assert!(error.contains("nothing"), "{error}");
}

#[test]
fn recall_falls_with_what_is_left_out() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let (data, _) = write_tasks(&folder);
    let path = format!("{data}/retrieval");
    let run = |args: &[&str]| {
        let mut command = kiln(&["recall", "--json", "-m", &model]);
        command.args(args).env("KILN_EMBEDDINGS", folder.path("embeddings"));
        command
    };
    let lines = json(&stdout(&mut run(&["--data", &path, "-k", "5"])));
    let lines = lines.as_array().unwrap();
    assert_eq!(lines.len(), 16);
    assert_eq!((&lines[0]["dimensions"], &lines[0]["bytes"]), (&16.into(), &64.into()));
    assert_eq!(lines[0]["recall"], 1.0);
    let recall = |i: usize| lines[i]["recall"].as_f64().unwrap();
    assert!(recall(1) > recall(2) && recall(0) > recall(12), "{lines:?}");
    assert!(lines.iter().all(|line| line["ndcg_at_10"].is_number()));
    // Plain files have no judgements.
    let (corpus, queries) = (folder.texts(), folder.write("q.txt", "a river\na ship\n"));
    let args = ["--corpus", &corpus, "--queries", &queries, "--widths", "8", "--precision", "int8"];
    let lines = json(&stdout(&mut run(&args)));
    assert!(lines[0]["ndcg_at_10"].is_null() && lines[0]["bytes"] == 12, "{lines}");
    let error = failure(run(&["--data", &path, "--widths", "17"]).arg("--quiet"));
    assert!(error.contains("17") && error.contains("16"), "{error}");
    let error = failure(run(&["--data", &path, "--precision", "int7"]).arg("--quiet"));
    assert!(error.contains("binary+int8"), "{error}");
}
