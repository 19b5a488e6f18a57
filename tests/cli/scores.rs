//! Scores compared, written as runs, and drawn along a training run.

use std::path::Path;

use serde_json::Value;

use crate::eval::{MEAN, eval, json};
use crate::harness::{Folder, failure, kiln, stdout};
use crate::tasks::{KINDS, write_tasks};

#[test]
fn a_comparison_tests_types_and_tasks() {
    let folder = Folder::new();
    let (data, _) = write_tasks(&folder);
    // Five tasks: each leaves out other pairs.
    let all = std::fs::read_to_string(folder.path("data/sts/test.jsonl")).unwrap();
    let task = |i: usize| {
        let kept = all.lines().enumerate().filter(|(row, _)| row % 5 != i);
        let rows: String = kept.map(|(_, line)| format!("{line}\n")).collect();
        folder.write(&format!("data/s{i}.jsonl"), rows);
        format!("[[task]]\nname = \"S{i}\"\nkind = \"sts\"\npath = \"s{i}.jsonl\"\n")
    };
    let suite = |count: usize| {
        let tasks: String = (0..count).map(task).collect();
        folder.write(&format!("s{count}.toml"), format!("title = \"S\"\n{tasks}"))
    };
    let (five, four) = (suite(5), suite(4));
    let pooled = [MEAN, "{ mode = 'cls' }"].map(|pooling| {
        let from = folder.model(pooling);
        let name = folder.path(if pooling == MEAN { "a" } else { "b" });
        std::fs::rename(from, &name).unwrap();
        name.display().to_string()
    });
    let results = |model: &str, suite: &str, to: &str| {
        let output = folder.arg(to);
        stdout(&mut eval(
            &folder,
            &["-m", model, "--suite", suite, "--data", &data, "--output", &output],
        ));
        output
    };
    let compare = |suite: &str, name: &str, more: &[&str]| {
        let a = results(&pooled[0], suite, &format!("{name}-a"));
        let b = results(&pooled[1], suite, &format!("{name}-b"));
        json(&stdout(kiln(&["compare", "--json", &a, &b]).args(more)))
    };
    let page = folder.arg("compare.html");
    let actual = compare(&five, "five", &["--output", &page]);
    assert_eq!(actual["tasks"].as_array().unwrap().len(), 5, "{actual}");
    assert!(actual["tasks"][0]["bootstrap"]["p"].is_number(), "{actual}");
    assert!(actual["kinds"][0]["wilcoxon"]["exact"].as_bool().unwrap(), "{actual}");
    assert!(std::fs::read_to_string(page).unwrap().contains("Wilcoxon"));
    let actual = compare(&four, "four", &[]);
    assert!(actual["kinds"][0]["wilcoxon"].is_null(), "four tasks are refused: {actual}");
    // Several models: a row each, the first being the one to beat.
    let [a, b] = ["five-a", "five-b"].map(|name| folder.arg(name));
    let page = folder.arg("report.md");
    let several = json(&stdout(&mut kiln(&["compare", "--json", &a, &b, &a, "-o", &page])));
    assert_eq!(several["kinds"], serde_json::json!(["STS (5)", "all (5)"]), "{several}");
    let others = several["others"].as_array().unwrap();
    assert_eq!(others.len(), 2);
    assert_eq!(others[1]["kinds"][0]["difference"], 0.0, "the first beside itself");
    let five: Value =
        serde_json::from_str(&stdout(&mut kiln(&["compare", "--json", &a, &b]))).unwrap();
    assert_eq!(others[0]["kinds"], five["kinds"]);
    assert_eq!(std::fs::read_to_string(page).unwrap().matches("\n|").count(), 5);
    // A model beside itself.
    let same = json(&stdout(&mut kiln(&["compare", "--json", &a, &a])));
    assert_eq!(same["tasks"][0]["difference"], 0.0);
    assert_eq!(same["kinds"][0]["wilcoxon"]["p"], 1.0, "{same}");
}

#[test]
fn what_retrieval_finds_is_written_as_runs() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let document = |id: usize, text: &str| format!("{{\"_id\":\"d{id}\",\"text\":\"{text}\"}}\n");
    let texts = ["the river floods", "a violinist", "tea and timber", "petals of pale blue"];
    let corpus: String = texts.iter().enumerate().map(|(id, text)| document(id, text)).collect();
    std::fs::create_dir_all(folder.path("data/retrieval/qrels")).unwrap();
    folder.write("data/retrieval/corpus.jsonl", corpus);
    let queries = "{\"_id\":\"q1\",\"text\":\"a river\"}\n{\"_id\":\"q2\",\"text\":\"tea\"}\n";
    folder.write("data/retrieval/queries.jsonl", queries);
    let qrels = "query-id\tcorpus-id\tscore\nq1\td0\t1\nq1\td3\t2\nq2\td2\t1\n";
    folder.write("data/retrieval/qrels/test.tsv", qrels);
    let data = folder.arg("data");
    let suite = "[[task]]\nname = 'R'\nkind = 'retrieval'\npath = 'retrieval'\nair_bench = { \
                 benchmark_version = 'AIR-Bench_24.05', task_type = 'qa', domain = 'wiki', language = 'en', \
                 dataset_name = 'default' }\n";
    let suite = folder.write("s.toml", suite);
    let (output, runs) = (folder.arg("results"), folder.arg("runs"));
    let args = ["-m", &model, "--suite", &suite, "--data", &data, "-o", &output, "--runs", &runs];
    let actual = json(&stdout(&mut eval(&folder, &args)));
    let score = actual["tasks"][0]["main_score"].as_f64().unwrap();
    // trec_eval's measure of the run is the task's score.
    let judged = qrels.lines().skip(1).map(|line| {
        let cells: Vec<&str> = line.split('\t').collect();
        format!("{} 0 {} {}\n", cells[0], cells[1], cells[2])
    });
    let judged = folder.write("qrels.trec", judged.collect::<String>());
    let run = folder.arg("runs/R.trec");
    let trec = ["eval", "trec", "--json", "-m", "ndcg_cut.10", &judged, &run];
    let measured = json(&stdout(&mut kiln(&trec)));
    let ndcg = measured["all"]["ndcg_cut_10"].as_f64().unwrap();
    assert!((ndcg - score).abs() < 1e-4, "{ndcg} {score}");
    let name = actual["model"].as_str().unwrap().replace('/', "_");
    let file = format!("runs/{name}/NoReranker/qa/wiki/en_default_test.json");
    let found = json(&std::fs::read_to_string(folder.path(&file)).unwrap());
    assert_eq!(found["benchmark_version"], "AIR-Bench_24.05");
    let queries = found["search_results"].as_object().unwrap();
    let lines = std::fs::read_to_string(&run).unwrap().lines().count();
    let hits = queries.values().map(|hits| hits.as_object().unwrap().len()).sum::<usize>();
    assert_eq!(hits, lines);

    // Reranked, the best three documents of each query are in the cross-encoder's order, before the fourth.
    let reranker = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let reranker = reranker.join("../tests/fixtures/rerankers/bert").display().to_string();
    let runs = folder.arg("reranked");
    let args = ["-m", &model, "--suite", &suite, "--data", &data, "-o", &output, "--runs", &runs];
    let more = ["--reranker", &reranker, "--candidates", "3"];
    stdout(&mut eval(&folder, &[&args[..], &more].concat()));
    let file = format!("reranked/{name}/bert/qa/wiki/en_default_test.json");
    let found_anew = json(&std::fs::read_to_string(folder.path(&file)).unwrap());
    assert_eq!(found_anew["reranker_name"], "bert");
    let best_first = |found: &Value, query: &str| {
        let mut hits: Vec<(String, f64)> = found["search_results"][query]
            .as_object()
            .unwrap()
            .iter()
            .map(|(id, score)| (id.clone(), score.as_f64().unwrap()))
            .collect();
        hits.sort_by(|a, b| b.1.total_cmp(&a.1));
        hits.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    for (query, text) in [("q1", "a river"), ("q2", "tea")] {
        let before = best_first(&found, query);
        let mut rank = vec!["rerank", "--json", "-m", &reranker, "-Q", text];
        let number = |id: &String| id[1..].parse::<usize>().unwrap();
        rank.extend(before[..3].iter().flat_map(|id| ["-t", texts[number(id)]]));
        let ranked = json(&stdout(&mut kiln(&rank)));
        let places = ranked[0]["ranked"].as_array().unwrap().iter();
        let rows = places.map(|place| place["row"].as_u64().unwrap() as usize);
        let mut expected: Vec<String> = rows.map(|row| before[row].clone()).collect();
        expected.push(before[3].clone());
        assert_eq!(best_first(&found_anew, query), expected);
    }
}

/// A run keeps models along its way, and a suite's tasks are its evaluation.
#[test]
fn a_run_is_scored_on_a_suite_and_keeps_models_at_steps() {
    let folder = Folder::new();
    let (_, suite) = write_tasks(&folder);
    folder.write("data.jsonl", crate::training::DATA);
    let suite = Path::new(&suite).file_name().unwrap().to_string_lossy().into_owned();
    let recipe = |best: &str| {
        folder.write(
            "recipe.toml",
            format!(
                "name = 'tiny'\n[model]\nmax_length = 24\n\
                 [model.new]\nvocab_size = 320\nhidden_size = 32\nintermediate_size = 48\nlayers = 2\nheads = 2\n\
                 [eval]\nevery = 2\nsuite = '{suite}'\ndata = 'data'\nbest = '{best}'\n\
                 [[stage]]\nname = 'first'\ndata = ['data.jsonl']\nsteps = 5\nbatch_size = 2\nlr = 1e-3\n"
            ),
        )
    };
    let out = folder.arg("run");
    let train =
        |recipe: &str| kiln(&["--quiet", "train", "-r", recipe, "-o", &out, "--save-every", "2"]);
    let error = failure(&mut train(&recipe("Own-nothing")));
    assert!(error.contains("eval.best") && error.contains("Own-sts"), "{error}");
    stdout(&mut train(&recipe("mean")));
    let metrics = std::fs::read_to_string(folder.path("run/metrics.jsonl")).unwrap();
    let lines: Vec<Value> = metrics.lines().map(json).collect();
    let scores = |step: usize| -> std::collections::BTreeMap<String, f64> {
        let scores = lines[step - 1].get("scores").cloned().unwrap_or_else(|| Value::Array(vec![]));
        serde_json::from_value::<Vec<(String, f64)>>(scores).unwrap().into_iter().collect()
    };
    assert!(scores(1).is_empty() && scores(3).is_empty());
    let at_two = scores(2);
    let own: Vec<f64> = at_two
        .iter()
        .filter(|(name, _)| name.starts_with("Own-"))
        .map(|(_, score)| *score)
        .collect();
    assert_eq!(own.len(), KINDS.len(), "{at_two:?}");
    let mean = own.iter().sum::<f64>() / own.len() as f64;
    assert!((at_two["mean"] - mean).abs() < 1e-12 && at_two.contains_key("mean STS"), "{at_two:?}");

    // What was kept after two steps has the scores of two steps.
    for step in ["000002", "000004"] {
        let model = folder.path(&format!("run/steps/{step}")).display().to_string();
        let data = folder.arg("data/sts");
        let of = eval(&folder, &["-m", &model, "--task", "sts", "--data", &data]).output().unwrap();
        let score = json(&String::from_utf8(of.stdout).unwrap())["main_score"].as_f64().unwrap();
        let then = scores(step.parse().unwrap())["Own-sts"];
        assert!((score - then).abs() < 1e-6, "{step}: {score} {then}");
    }
    assert!(!folder.path("run/steps/000005").exists());
    // A sweep compares its variants by the same scores, along training too, and keeps the same models.
    recipe("mean");
    let sweep = "name = 'rates'\nrecipe = 'recipe.toml'\nseeds = [1]\n\
                 variant = [{ name = 'slow', set = ['stage.first.lr=1e-5'] }, { name = 'fast' }]\n";
    let (sweep, rates) = (folder.write("sweep.toml", sweep), folder.arg("rates"));
    let args = ["sweep", &sweep, "--json", "--output", &rates, "--save-every", "2"];
    let compared = json(&stdout(&mut kiln(&args)));
    let sets = compared[1]["sets"].as_array().unwrap();
    for name in ["Own-sts", "mean STS", "mean"] {
        let found = sets.iter().find(|set| set["set"] == name).unwrap();
        let along = found["along"].as_array().unwrap();
        let steps: Vec<u64> = along.iter().map(|at| at["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, [2, 4, 5], "{compared}");
        assert_eq!(along[2]["mean"], found["mean"], "{compared}");
    }
    let kept = |step: &str| folder.path(&format!("rates/fast/seed-1/steps/{step}")).exists();
    assert!(kept("000002") && kept("000004") && !kept("000005"));
    let page = std::fs::read_to_string(folder.path("rates/report.html")).unwrap();
    assert!(page.contains("mean STS: mean over seeds by step"), "{page}");
    let again = stdout(&mut kiln(&["--quiet", "sweep", &sweep, "--output", &rates]));
    assert!(again.contains("| score | variant | 2 | 4 | 5 |"), "{again}");
    folder.write("run/steps/000002/config.json", "{}");
    let error = failure(train(&recipe("mean")).arg("--overwrite"));
    assert!(error.contains("000002") && error.contains("changed"), "{error}");
}

/// What a model was trained with is what it is asked with, along its training and after it.
#[test]
fn a_suite_is_asked_with_a_papers_instructions_in_the_models_form() {
    let folder = Folder::new();
    let (data, _) = write_tasks(&folder);
    folder.write("data.jsonl", crate::training::DATA);
    let task = |kind: &str| {
        format!(
            "[[task]]\nname = '{kind}'\nkind = '{kind}'\npath = '{kind}'\ninstructions.mgh = 'Find it'\n"
        )
    };
    let tasks = ["sts", "retrieval"].map(task).concat();
    let suite = folder.write("s.toml", format!("title = 'S'\n{tasks}"));
    let trained = |model: &str, prompts: &str, to: &str| {
        let recipe = format!(
            "name = 'tiny'\n[model]\nmax_length = 48\n{model}\n[eval]\nsuite = 's.toml'\ndata = 'data'\n{prompts}\n\
             [[stage]]\nname = 'one'\ndata = ['data.jsonl']\nsteps = 2\nbatch_size = 2\nlr = 1e-3\n"
        );
        let (recipe, out) = (folder.write("r.toml", recipe), folder.arg(to));
        let mut command = kiln(&["--quiet", "train", "-r", &recipe, "-o", &out]);
        if prompts.contains("linq") {
            return Err(failure(&mut command));
        }
        stdout(&mut command);
        let lines = std::fs::read_to_string(folder.path(&format!("{to}/metrics.jsonl"))).unwrap();
        let scores = json(lines.lines().last().unwrap())["scores"].clone();
        Ok(serde_json::from_value::<Vec<(String, f64)>>(scores).unwrap())
    };
    let new = "instruction_format = '[I] {instruction}: '\nprompts = { document = '[I] ' }\n\
               new = { vocab_size = 320, hidden_size = 32, intermediate_size = 48, layers = 2, heads = 2 }";
    let error = trained(new, "prompts = 'linq'", "none").unwrap_err();
    assert!(error.contains("eval.prompts") && error.contains("sts"), "{error}");
    let along = trained(new, "prompts = 'mgh'", "first").unwrap();
    // A model that goes on from another keeps its form.
    let base = format!("base = '{}'", folder.path("first/model").display());
    trained(&base, "", "second").unwrap();
    for run in ["first", "second"] {
        let (model, output) = (folder.arg(&format!("{run}/model")), folder.arg("results"));
        let args = ["-m", &model, "--suite", &suite, "--data", &data, "-o", &output];
        let actual = json(&stdout(eval(&folder, &args).args(["--prompts", "mgh"])));
        let query = "[I] Find it: ";
        assert_eq!(actual["tasks"][0]["prompts"], serde_json::json!([query, query]), "{actual}");
        assert_eq!(actual["tasks"][1]["prompts"], serde_json::json!([query, "[I] "]), "{actual}");
        for task in actual["tasks"].as_array().unwrap().iter().filter(|_| run == "first") {
            let then = along.iter().find(|(name, _)| task["task"] == name.as_str()).unwrap().1;
            assert!((task["main_score"].as_f64().unwrap() - then).abs() < 1e-6, "{task} {then}");
        }
    }
}
