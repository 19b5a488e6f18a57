//! Cross-encoders that are trained, decoders that answer yes or no among them: against PyTorch, to an overfit set, resumed,
//! in sentence-transformers, and as teachers of embedders.

mod bad_input;
mod inspect;
mod sentence_transformers;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{Folder, failure, kiln, names, stdout};
use crate::training::DATA;

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(path)
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The lines of a run's metrics.
fn metrics(run: &Path) -> Vec<Value> {
    read(&run.join("metrics.jsonl")).lines().map(parse).collect()
}

fn losses(run: &Path) -> Vec<f64> {
    metrics(run).iter().map(|line| line["loss"].as_f64().unwrap()).collect()
}

/// A recipe of one stage from a fixture's reranker or from nothing, with `more` in the stage.
fn recipe(base: Option<&Path>, data: &str, more: &str) -> String {
    let model = match base {
        Some(base) => format!("[model]\nbase = '{}'\n", base.display()),
        None => "[model]\nmax_length = 48\n[model.new]\nvocab_size = 320\nhidden_size = 32\n\
                 intermediate_size = 48\nlayers = 2\nheads = 2\n"
            .into(),
    };
    format!(
        "name = 'tiny'\nseed = 3\n{model}\
         [[stage]]\nname = 'first'\nobjective = 'rerank'\ndata = ['{data}']\n{more}\n"
    )
}

fn train(folder: &Folder, text: &str, run: &str, more: &[&str]) -> assert_cmd::Command {
    let path = folder.write(&format!("{run}.toml"), text);
    let (data, out) = (folder.arg(""), folder.arg(run));
    let mut command =
        kiln(&["--quiet", "train", "--recipe", &path, "--data-dir", &data, "--output", &out]);
    command.args(more);
    command
}

/// A cross-encoder of BERT's shape whose head gives each pair three scores.
pub(crate) fn three_scores(folder: &Folder) -> PathBuf {
    let three = folder.path("three");
    std::fs::create_dir(&three).unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(fixture("rerankers/bert").join(file), three.join(file)).unwrap();
    }
    let from = kiln_embed::checkpoint::Directory::new(fixture("rerankers/bert")).unwrap();
    let mut weights = kiln_embed::checkpoint::Weights::open(&from, "model").unwrap();
    let tensors: Vec<_> = weights
        .tensors()
        .iter()
        .map(|(name, info)| (name.clone(), info.shape.clone()))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|(name, mut shape)| {
            let values = weights.read(&name).unwrap().unwrap();
            let head = name.starts_with("classifier.");
            if head {
                shape[0] = 3;
            }
            (name, shape, if head { values.repeat(3) } else { values })
        })
        .collect();
    let bytes = kiln_embed::checkpoint::write_safetensors(&tensors, &[("format", "pt")]).unwrap();
    std::fs::write(three.join("model.safetensors"), bytes).unwrap();
    three
}

/// Scores of pairs by `kiln rerank`, in their order.
fn scores(model: &str, query: &str, texts: &[&str]) -> Vec<f64> {
    let mut command = kiln(&["rerank", "--json", "-m", model, "-Q", query]);
    for text in texts {
        command.args(["-t", text]);
    }
    let answer = parse(&stdout(&mut command));
    let mut found = vec![0.0; texts.len()];
    for place in answer[0]["ranked"].as_array().unwrap() {
        let row = place["row"].as_u64().unwrap() as usize;
        found[row] = place["score"].as_f64().unwrap();
    }
    found
}

fn logit(score: f64) -> f64 {
    (score / (1.0 - score)).ln()
}

/// Four queries and their candidates, as `kiln eval --task reranking` takes them.
fn candidates(folder: &Folder) -> String {
    let rows: String = DATA
        .lines()
        .map(|line| {
            let row = parse(line);
            json!({"query": row["query"], "positive": row["pos"], "negative": row["neg"]})
                .to_string()
                + "\n"
        })
        .collect();
    folder.write("candidates.jsonl", rows)
}

#[test]
fn a_small_set_is_learned_by_heart_with_each_loss() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let candidates = candidates(&folder);
    let embedder = folder.model("{ mode = 'mean' }").display().to_string();
    for (loss, settings) in [
        ("binary_cross_entropy", "pos_weight = 2.0"),
        ("multiple_negatives", "num_negatives = 2"),
        ("rank_net", ""),
        ("lambda", ""),
    ] {
        let comma = if settings.is_empty() { "" } else { ", " };
        let stage = format!(
            "steps = 80\nbatch_size = 4\nhard_negatives = 2\nlr = 3e-3\n\
             rerank = {{ loss = '{loss}'{comma}{settings} }}"
        );
        let text = format!(
            "{}\n[eval]\nevery = 20\nset = [{{ name = 'seen', path = 'candidates.jsonl' }}]\n",
            recipe(None, "data.jsonl", &stage)
        );
        let summary = stdout(&mut train(&folder, &text, loss, &["--json"]));
        let run = folder.path(loss);
        let all = losses(&run);
        assert!(all[79] < 0.5 * all[0], "{loss}: {} {}", all[0], all[79]);
        let last = metrics(&run).pop().unwrap();
        let named: Vec<&str> =
            last["scores"].as_array().unwrap().iter().map(|one| one[0].as_str().unwrap()).collect();
        assert_eq!(named, ["seen", "seen MRR@10"]);
        assert_eq!(last["scores"][0][1], 1.0, "{loss}: {last}");
        assert_eq!(parse(&summary)["best"]["score"], 1.0, "{summary}");
        assert_eq!(names(&run.join("best")), names(&run.join("model")));
        // The command ranks as the run was measured.
        let model = folder.arg(&format!("{loss}/model"));
        let args = ["eval", "--json", "-m", &embedder, "--reranker", &model, "--no-cache"];
        let task = ["--task", "reranking", "--data", &candidates];
        let answer = parse(&stdout(&mut kiln(&[&args[..], &task].concat())));
        assert_eq!(answer["main_score"], 1.0, "{answer}");
    }
    let card = read(&folder.path("lambda/model").join("README.md"));
    for part in [
        "pipeline_tag: text-ranking",
        "cross-encoder",
        "CrossEncoder(",
        "| seen | nDCG@10 | 1.0000 |",
    ] {
        assert!(card.contains(part), "{part}: {card}");
    }
    assert!(card.contains("| seen MRR@10 | MRR@10 | 1.0000 |"), "{card}");
    let config = parse(&read(&folder.path("lambda/model/config.json")));
    assert_eq!(config["architectures"][0], "ModernBertForSequenceClassification");
    assert_eq!(config["classifier_pooling"], "mean");
    assert_eq!(config["id2label"], json!({"0": "LABEL_0"}));
    let tokenizer = parse(&read(&folder.path("lambda/model/tokenizer_config.json")));
    assert_eq!(tokenizer["model_max_length"], 48);
}

#[test]
fn labelled_pairs_and_a_teachers_scores_are_learned() {
    let folder = Folder::new();
    let pairs = "sentence1,sentence2,label\nwhere does the river flood,the river floods the lower streets,1\n\
                 where does the river flood,granite walls and a long way up,0\n\
                 what did the ship carry,the ship carried tea and timber,1\n\
                 what did the ship carry,a violinist from a small town,0\n";
    folder.write("pairs.csv", pairs);
    let stage = "steps = 60\nbatch_size = 4\nlr = 3e-3";
    let text = format!(
        "{}\n[eval]\nset = [{{ name = 'pairs', path = 'pairs.csv' }}]\n",
        recipe(None, "pairs.csv", stage)
    );
    train(&folder, &text, "pairs", &[]).assert().success();
    let model = folder.arg("pairs/model");
    let texts = ["the river floods the lower streets", "granite walls and a long way up"];
    let found = scores(&model, "where does the river flood", &texts);
    assert!(found[0] > 0.8 && found[1] < 0.2, "{found:?}");
    // Spearman's correlation with labels of two kinds.
    let score = metrics(&folder.path("pairs")).pop().unwrap()["scores"][0][1].as_f64().unwrap();
    assert!(score > 0.85, "{score}");

    // Its scores go into rows, as they are and before the sigmoid.
    let rows = folder.write("data.jsonl", DATA);
    for (name, more) in [("scored.jsonl", &[][..]), ("logits.jsonl", &["--logits"])] {
        let out = folder.arg(name);
        let args = ["rerank", "--json", "-m", &model, "--data", &rows, "--scores", &out];
        let said = parse(&stdout(kiln(&args).args(more)));
        assert_eq!((&said["rows"], &said["texts"]), (&json!(4), &json!(12)));
        for row in read(&folder.path(name)).lines().map(parse) {
            let of = |key: &str| row[key].as_array().unwrap().clone();
            let texts: Vec<Value> = [of("pos"), of("neg")].concat();
            let texts: Vec<&str> = texts.iter().map(|text| text.as_str().unwrap()).collect();
            let alone = scores(&model, row["query"].as_str().unwrap(), &texts);
            let written = [of("pos_scores"), of("neg_scores")].concat();
            for (alone, written) in alone.into_iter().zip(&written) {
                let alone = if more.is_empty() { alone } else { logit(alone) };
                let written = written.as_f64().unwrap();
                assert!((alone - written).abs() < 1e-4 * alone.abs().max(1.0), "{alone} {written}");
            }
        }
    }
    // Of them another cross-encoder learns, and an embedder.
    for loss in ["mse", "margin_mse"] {
        let stage = format!(
            "steps = 100\nbatch_size = 4\nhard_negatives = 2\nlr = 3e-3\nrerank = {{ loss = '{loss}' }}"
        );
        train(&folder, &recipe(None, "logits.jsonl", &stage), loss, &[]).assert().success();
        let all = losses(&folder.path(loss));
        assert!(*all.last().unwrap() < 0.2 * all[0], "{loss}: {all:?}");
        // What has learned scores shows them as they are.
        let config = parse(&read(&folder.path(&format!("{loss}/model/config.json"))));
        let function = config["sentence_transformers"]["activation_fn"].as_str().unwrap();
        assert!(function.ends_with("Identity"), "{function}");
    }
    let text = "name = 'student'\n[model]\nmax_length = 24\npooling = { mode = 'mean' }\n\
                [model.new]\nvocab_size = 320\nhidden_size = 32\nintermediate_size = 48\nlayers = 2\nheads = 2\n\
                [[stage]]\nname = 's'\ndata = ['scored.jsonl']\nsteps = 60\nbatch_size = 4\nhard_negatives = 2\nlr = 3e-3\n\
                margin_mse = { contrastive = 0 }\n";
    train(&folder, text, "student", &[]).assert().success();
    let all = losses(&folder.path("student"));
    assert!(*all.last().unwrap() < 0.3 * all[0], "{all:?}");
}

/// A copy of the fixture that answers yes or no, with a language-model head of its own.
fn untied(folder: &Folder) -> PathBuf {
    let (from, to) = (fixture("rerankers/qwen3"), folder.path("untied"));
    std::fs::create_dir(&to).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
    let mut config = parse(&read(&from.join("config.json")));
    config["tie_word_embeddings"] = false.into();
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    let mut weights = tensors(&from);
    let names: Vec<String> = weights.tensors().keys().cloned().collect();
    let mut all: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    for name in names {
        let shape = weights.tensors()[&name].shape.clone();
        let values = weights.read(&name).unwrap().unwrap();
        if name == "model.embed_tokens.weight" {
            let other = values.iter().rev().copied().collect();
            all.push(("lm_head.weight".into(), shape.clone(), other));
        }
        all.push((name, shape, values));
    }
    let bytes = kiln_embed::checkpoint::write_safetensors(&all, &[("format", "pt")]).unwrap();
    std::fs::write(to.join("model.safetensors"), bytes).unwrap();
    to
}

/// A decoder that answers by a chat template of its own, with the weights and the tokenizer of `qwen3`.
fn chat(folder: &Folder, name: &str) -> PathBuf {
    let to = folder.path(&format!("{name}-base"));
    std::fs::create_dir_all(to.join("1_LogitScore")).unwrap();
    let copy = |from: &str, file: &str| {
        std::fs::copy(fixture(&format!("rerankers/{from}")).join(file), to.join(file)).unwrap();
    };
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        copy("qwen3", file);
    }
    for file in ["chat_template.jinja", "sentence_bert_config.json", "modules.json"] {
        copy(name, file);
    }
    copy(name, "config_sentence_transformers.json");
    copy(name, "1_LogitScore/config.json");
    to
}

fn tensors(path: &Path) -> kiln_embed::checkpoint::Weights {
    let folder = kiln_embed::checkpoint::Directory::new(path).unwrap();
    kiln_embed::checkpoint::Weights::open(&folder, "model").unwrap()
}

#[test]
fn a_decoder_that_answers_yes_or_no_is_taught_what_to_answer() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let tied = fixture("rerankers/qwen3");
    let adapters =
        "[model.lora]\nrank = 4\nalpha = 16\ndropout = 0.0\ntargets = ['all-linear']\n[[stage]]";
    let untied = untied(&folder);
    // The score of these is the logit of one token.
    let (one_token, gemma) = (chat(&folder, "qwen3-one-token"), fixture("rerankers/gemma"));
    for (run, base, lora, compute) in [
        ("whole", &tied, false, ""),
        ("untied", &untied, false, "grad_cache = true\nchunk = 5\n"),
        ("adapters", &tied, true, "checkpoint_blocks = true\n"),
        ("one-token", &one_token, false, ""),
        ("gemma", &gemma, false, ""),
    ] {
        let lr = if lora { "1e-2" } else { "3e-3" };
        let stage = format!("steps = 40\nbatch_size = 4\nhard_negatives = 2\nlr = {lr}");
        let mut text = recipe(Some(base), "data.jsonl", &stage);
        if lora {
            text = text.replace("[[stage]]", adapters);
        }
        let text = format!("{text}[compute]\n{compute}");
        train(&folder, &text, run, &[]).assert().success();
        let all = losses(&folder.path(run));
        assert!(all[35..].iter().sum::<f64>() / 5.0 < 0.2 * all[0], "{run}: {all:?}");
        let model = folder.path(run).join("model");
        for row in DATA.lines().map(parse) {
            let texts = [&row["pos"][0], &row["neg"][0], &row["neg"][1]];
            let texts = texts.map(|text| text.as_str().unwrap());
            let query = row["query"].as_str().unwrap();
            let found = scores(&model.display().to_string(), query, &texts);
            assert!(found[0] > 0.5 && found[1] < 0.5 && found[2] < 0.5, "{run}: {found:?}");
        }
        let (mut before, mut after) = (tensors(base), tensors(&model));
        let names: Vec<String> = before.tensors().keys().cloned().collect();
        assert!(names.iter().eq(after.tensors().keys()), "{run}");
        for name in names {
            let changed = before.read(&name).unwrap() != after.read(&name).unwrap();
            assert_eq!(changed, !lora || name.ends_with("_proj.weight"), "{run}: {name}");
        }
        assert!(!folder.path(run).join("adapter").exists(), "{run}");
        // It is a reranker by its files, and trains again from them.
        let (name, texts, out) = (model.display().to_string(), folder.texts(), folder.arg("o.npy"));
        let args = ["embed", "-m", &name, "--input", &texts, "--output", &out];
        let said = failure(&mut kiln(&args));
        assert!(said.contains("is a reranker (LogitScore)"), "{said}");
        let more = recipe(
            Some(&model),
            "data.jsonl",
            "steps = 1\nbatch_size = 4\nhard_negatives = 2\nlr = 1e-6",
        );
        train(&folder, &more, &format!("{run}-more"), &[]).assert().success();
        let begun = losses(&folder.path(&format!("{run}-more")))[0];
        assert!(begun < 0.2 * all[0], "{run}: {begun} {all:?}");
    }
    // Its other losses.
    for (loss, settings) in [("multiple_negatives_ranking", ", num_negatives = 2"), ("lambda", "")]
    {
        let stage = format!(
            "steps = 30\nbatch_size = 4\nhard_negatives = 2\nlr = 3e-3\nrerank = {{ loss = '{loss}'{settings} }}"
        );
        train(&folder, &recipe(Some(&tied), "data.jsonl", &stage), loss, &[]).assert().success();
        let all = losses(&folder.path(loss));
        assert!(all[25..].iter().sum::<f64>() / 5.0 < 0.5 * all[0], "{loss}: {all:?}");
    }
}

#[test]
fn a_stopped_run_goes_on_bit_for_bit() {
    let of_head = |name: &str| name.starts_with("classifier.") || name.starts_with("bert.pooler.");
    stopped("bert", ["query", "value"], &of_head);
}

#[test]
fn a_stopped_run_of_a_decoder_goes_on_bit_for_bit() {
    stopped("qwen3", ["q_proj", "v_proj"], &|_| false);
}

/// Two stages with adapters of two projections; beside what they adapt the tensors `of_head` train.
fn stopped(base: &str, targets: [&str; 2], of_head: &dyn Fn(&str) -> bool) {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    candidates(&folder);
    // Adapters with dropout, in-batch negatives that are drawn, an evaluation, two stages.
    let base = fixture(&format!("rerankers/{base}"));
    let text = format!(
        "name = 'stopped'\nseed = 5\n[model]\nbase = '{}'\n[model.lora]\nrank = 4\ndropout = 0.2\ntargets = {targets:?}\n\
         [eval]\nevery = 3\nset = [{{ name = 'seen', path = 'candidates.jsonl' }}]\n\
         [[stage]]\nname = 'first'\nobjective = 'rerank'\ndata = ['data.jsonl']\nsteps = 8\nbatch_size = 3\n\
         curriculum = 'sampled'\nlr = 3e-3\nrerank = {{ loss = 'multiple_negatives_ranking', num_negatives = 2 }}\n\
         [[stage]]\nname = 'second'\nobjective = 'rerank'\ndata = ['data.jsonl']\nsteps = 5\nbatch_size = 2\nlr = 1e-3\n",
        base.display()
    );
    let more = ["--checkpoint-every", "1", "--keep", "99"];
    train(&folder, &text, "run", &more).assert().success();
    let run = folder.path("run");
    let numbers = || -> Vec<Value> {
        let without_time = |mut line: Value| {
            line["seconds"] = Value::Null;
            line
        };
        metrics(&run).into_iter().map(without_time).collect()
    };
    let weights = || std::fs::read(run.join("model/model.safetensors")).unwrap();
    let (expected, trained) = (numbers(), weights());
    assert!(!run.join("adapter").exists(), "PEFT's files would lack the head");
    for last in [8, 11, 5] {
        for step in last + 1..=13 {
            let checkpoint = run.join(format!("checkpoints/{step:08}"));
            std::fs::remove_dir_all(checkpoint).unwrap();
        }
        train(&folder, &text, "run", &more).arg("--resume").assert().success();
        assert_eq!(numbers(), expected, "from step {last}");
        assert!(weights() == trained, "from step {last}");
    }
    // Only what the adapters adapt and the head have changed.
    let (mut before, mut after) = (tensors(&base), tensors(&run.join("model")));
    for name in before.tensors().keys().cloned().collect::<Vec<_>>() {
        let changed = before.read(&name).unwrap() != after.read(&name).unwrap();
        let adapted = targets.iter().any(|target| name.ends_with(&format!("{target}.weight")));
        assert_eq!(changed, adapted || of_head(&name), "{name}");
    }
}
