//! The shipped recipes: every one resolves, every small one trains, every field can be changed.

use serde_json::Value;

use crate::harness::{Folder, failure, kiln, stdout};
use crate::training::DATA;

fn names() -> Vec<String> {
    let listed = stdout(&mut kiln(&["recipes", "--json"]));
    let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
    listed.iter().map(|one| one["name"].as_str().unwrap().to_string()).collect()
}

fn dry(args: &[&str]) -> Value {
    let result = stdout(&mut kiln(&[&["--quiet", "train", "--dry-run", "--json"], args].concat()));
    serde_json::from_str(&result).unwrap()
}

#[test]
fn each_paper_has_its_recipe_and_a_small_twin() {
    let names = names();
    for paper in ["nv-embed", "mgh-ata", "anchor", "linq", "cross-encoder"]
        .map(String::from)
        .into_iter()
        .chain((1..=5).map(|design| format!("pooling-attn-{design}")))
    {
        for name in [paper.clone(), format!("{paper}-small")] {
            assert!(names.contains(&name), "{name} is not in {names:?}");
        }
    }
}

#[test]
fn paper_size_recipes_resolve() {
    let folder = Folder::new();
    let tiny = folder.model("{ mode = 'mean' }").display().to_string();
    let others = ["quickstart", "cross-encoder"];
    let is_paper = |name: &&String| !name.ends_with("-small") && !others.contains(&name.as_str());
    for name in names().iter().filter(is_paper) {
        // The shape of another model stands in for the 7B one, which would have to be downloaded.
        let actual = dry(&["--recipe", name, "--set", &format!("model.base={tiny}")]);
        let stages = actual["stages"].as_array().unwrap();
        assert_eq!(actual["place"], "host", "{name}");
        for stage in stages {
            assert_eq!(stage["warning"], Value::Null, "{name}: a tiny model fits everywhere");
            let full = stage["frozen"] == 0;
            let trained = stage["trained"].as_u64().unwrap();
            assert!(trained > 0 && stage["samples"].as_u64() > Some(0), "{name}: {stage}");
            assert_eq!(full, *name == "anchor" && stage["name"] == "reconstruction", "{name}");
        }
        assert!(actual["data_error"].as_str().unwrap().contains("data/"), "{name}: {actual}");
    }
}

#[test]
fn shipped_recipes_resolve_without_a_network() {
    let folder = Folder::new();
    let home = folder.arg("hub");
    let offline = |args: &[&str]| {
        let mut command = kiln(&[&["train", "--dry-run", "--json"], args].concat());
        // Nobody listens there.
        command.env("HF_ENDPOINT", "http://127.0.0.1:9").env("HF_HOME", &home);
        let output = command.assert().success().get_output().clone();
        let actual: Value = serde_json::from_slice(&output.stdout).unwrap();
        (actual, String::from_utf8(output.stderr).unwrap())
    };
    for name in names() {
        let (actual, notes) = offline(&["--recipe", &name]);
        let stage = &actual["stages"][0];
        let all = stage["trained"].as_u64().unwrap() + stage["frozen"].as_u64().unwrap();
        let base = actual["recipe"]["model"]["base"].as_str();
        let least = if name == "cross-encoder" { 20_000_000 } else { 1_000_000_000 };
        assert_eq!(base.is_some(), all > least, "{name}: {all}");
        assert_eq!(base.is_some(), notes.contains("nothing was downloaded"), "{name}: {notes}");
        // At paper size too, one card of 80 GB is enough.
        let (on_card, _) = offline(&["--recipe", &name, "--device", "cuda:0"]);
        for stage in on_card["stages"].as_array().unwrap() {
            let parts = ["weights", "training", "activations"];
            let all: u64 = parts.iter().map(|part| stage["memory"][part].as_u64().unwrap()).sum();
            assert!((1 << 20..80_000_000_000).contains(&all), "{name}: {stage}");
        }
    }
    // Parameters of the published weights, without the head that predicts tokens and BERT's pooler.
    for (base, parameters) in [
        ("mistralai/Mistral-7B-v0.1", 7_110_660_096_u64),
        ("intfloat/e5-mistral-7b-instruct", 7_110_660_096),
        ("meta-llama/Llama-3.2-1B", 1_235_814_400),
        ("sentence-transformers/all-MiniLM-L6-v2", 22_565_376),
    ] {
        let recipe = folder.write(
            "recipe.toml",
            format!(
                "name = 'n'\n[model]\nbase = '{base}'\npooling = {{ mode = 'mean' }}\n\
                 [[stage]]\nname = 's'\ndata = ['data.jsonl']\nsteps = 1\nbatch_size = 2\nlr = 1e-3\n"
            ),
        );
        assert_eq!(offline(&["--recipe", &recipe]).0["stages"][0]["trained"], parameters, "{base}");
    }
}

/// On a GPU that computes in bf16 frozen weights take what they take in the base's file.
#[test]
fn a_dry_run_looks_at_the_bases_numbers() {
    let folder = Folder::new();
    let base = folder.model("{ mode = 'mean' }").display().to_string();
    let half = folder.arg("half");
    stdout(&mut kiln(&["quantize", "--model", &base, "--scheme", "bf16", "--output", &half]));
    let weights = |base: &str, more: &str| {
        let recipe = format!(
            "name = 'n'\n[model]\nbase = '{base}'\nlora = {{ rank = 2, alpha = 4.0, targets = ['all-linear'] }}\n{more}\n\
             [[stage]]\nname = 's'\ndata = ['data.jsonl']\nsteps = 1\nbatch_size = 2\nlr = 1e-3\n\
             [compute]\nprecision = 'bf16'\n"
        );
        let recipe = folder.write("recipe.toml", recipe);
        let actual = dry(&["--recipe", &recipe, "--device", "cuda:0"]);
        actual["stages"][0]["memory"]["weights"].as_u64().unwrap()
    };
    // Of each of two layers: four projections of attention and three of the feed-forward part.
    let factors = 2 * (4 * 16 * 16 + 3 * 16 * 24);
    assert_eq!(weights(&base, "") - weights(&half, ""), 2 * factors);
    let zeros = "keep_zeros = true";
    assert_eq!(weights(&base, zeros), weights(&half, zeros));
    // Packed, the table too: half a byte each, and four bytes a scale of eight.
    let packed = "frozen_weights = 'int4:8'";
    assert_eq!(weights(&base, "") - weights(&base, packed), 3 * (factors + 300 * 16));
    assert_eq!(weights(&half, packed), weights(&base, packed));
}

#[test]
fn examples_resolve() {
    let folder = Folder::new();
    let base = format!("model.base={}", folder.model("{ mode = 'mean' }").display());
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/examples");
    for example in std::fs::read_dir(examples).unwrap() {
        let path = example.unwrap().path().display().to_string();
        let (set, data) = (["--set", &base], folder.arg(""));
        let own = std::fs::read_to_string(&path).unwrap().contains("[model.new]");
        let more = if own { &[][..] } else { &set[..] };
        let actual = dry(&[&["--recipe", &path, "--data-dir", &data][..], more].concat());
        assert!(actual["stages"][0]["samples"].as_u64() > Some(0), "{path}: {actual}");
        assert!(actual["data_error"].as_str().unwrap().contains("data/"), "{path}: {actual}");
        if path.ends_with("kiln-mini.toml") {
            // The projection to the teacher's width is counted.
            assert_eq!(actual["stages"][0]["trained"], 6_604_544);
        }
    }
}

#[test]
fn blocks_that_are_not_there_are_said_before_training() {
    let folder = Folder::new();
    let base = format!("model.base={}", folder.model("{ mode = 'mean' }").display());
    let keep = "model.keep_blocks=[0, 99]";
    let args = ["train", "--dry-run", "--recipe", "nv-embed", "--set", &base, "--set", keep];
    let said = failure(&mut kiln(&args));
    assert!(said.contains("there is no block 99: the model has"), "{said}");
}

#[test]
fn small_recipes_train() {
    for name in names().iter().filter(|name| name.ends_with("-small")) {
        let folder = Folder::new();
        let stages = dry(&["--recipe", name])["stages"].as_array().unwrap().len();
        let mut command = kiln(&["train", "--json", "--recipe", name]);
        command.args(["--output", &folder.arg("out"), "--set", "eval.set.1.limit=20"]);
        for stage in 1..=stages {
            command.args(["--set", &format!("stage.{stage}.steps=2")]);
            command.args(["--set", &format!("stage.{stage}.batch_size=6")]);
        }
        let summary: Value = serde_json::from_str(&stdout(&mut command)).unwrap();
        assert_eq!(summary["steps"], 2 * stages, "{name}");
        assert!(summary["loss"].as_f64().unwrap().is_finite(), "{name}");
        assert!(summary["best"]["score"].as_f64().is_some(), "{name}: {summary}");
        let report = std::fs::read_to_string(folder.path("out/report.html")).unwrap();
        assert!(report.contains("<svg"), "{name}");
    }
}

#[test]
fn fields_change_from_the_command_line() {
    let small = ["--recipe", "nv-embed-small"];
    let with = |fields: &[&str]| -> Value {
        let fields: Vec<&str> = fields.iter().flat_map(|field| ["--set", field]).collect();
        dry(&[&small[..], &fields].concat())
    };
    let plain = with(&[]);
    assert_eq!(plain["recipe"]["stage"][0]["lr"], 1.5e-3);
    let changed = with(&[
        "stage.1.lr=1e-4",
        "stage.blended.loss.in_batch=true",
        "seed=9",
        "order=['blended']",
        "model.pooling.latents=64",
    ]);
    let recipe = &changed["recipe"];
    assert_eq!(recipe["seed"], 9);
    // Only the stage that the order names is left.
    assert_eq!(changed["stages"].as_array().unwrap().len(), 1);
    assert_eq!(recipe["stage"][0]["name"], "blended");
    assert_eq!(recipe["stage"][0]["loss"]["in_batch"], true);
    assert_eq!(changed["stages"][0]["samples"], 60 * 32);
    let more = changed["stages"][0]["trained"].as_u64().unwrap()
        - plain["stages"][1]["trained"].as_u64().unwrap();
    assert_eq!(more, 32 * 128);

    // The memory of the gradients and of what the optimizer keeps of each value.
    for (optimizer, bytes) in [("adamw", 12), ("adam", 12), ("sgd", 8), ("adagrad", 8), ("lion", 8)]
    {
        let stage = with(&[&format!("stage.1.optimizer={optimizer}")])["stages"][0].clone();
        let expected = stage["trained"].as_u64().unwrap() * bytes;
        assert_eq!(stage["memory"]["training"], expected, "{optimizer}");
    }

    let text = stdout(&mut kiln(&["--quiet", "train", "--dry-run", "--recipe", "linq-small"]));
    for part in ["stage ordered: 240 steps", "parameters train", "memory, estimated", "examples"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // A weight is held against the sizes of the sets without one.
    let data = "stage.1.data=['made-up:pairs', { path = 'made-up:retrieval', weight = 2.0 }]";
    let set =
        ["--set", data, "--set", "stage.1.mixing='proportional'", "--set", "order=['ordered']"];
    let text = stdout(kiln(&["--quiet", "train", "--dry-run", "--recipe", "linq-small"]).args(set));
    let part = |name: &str| -> f64 {
        let line = text.lines().find(|line| line.contains(&format!("data {name}:"))).unwrap();
        let part = line.split(" % of the queries").next().unwrap().rsplit(' ').next().unwrap();
        part.parse().unwrap()
    };
    let (pairs, retrieval) = (part("made-up:pairs"), part("made-up:retrieval"));
    assert!((pairs + retrieval - 100.0).abs() < 0.2 && retrieval < 5.0, "{text}");
}

#[test]
fn unknown_fields_name_the_nearest() {
    let folder = Folder::new();
    let error = |args: &[&str]| {
        let output = folder.arg("out");
        failure(&mut kiln(&[&["--quiet", "train", "--output", &output], args].concat()))
    };
    for (field, expected) in [
        ("stage.1.learning_rat=1", "learning_rat"),
        ("stage.1.warm_up=1", "did you mean `warmup`"),
        ("stage.7.lr=1", "stage.7"),
        ("stage.1.loss.temprature=1", "did you mean `temperature`"),
        ("model.pooling.mode='men'", "did you mean `mean`"),
        ("stage.1.curriculum='corse_to_fine'", "did you mean `coarse_to_fine`"),
        ("stage.1.lr=fast", "lr"),
        ("order=['retrieval','blend']", "blend"),
        ("seed", "key=value"),
        ("stage.1.optimizer='adamm'", "did you mean `adam`"),
    ] {
        let actual = error(&["--recipe", "nv-embed-small", "--set", field]);
        assert!(actual.contains(expected), "{field}: {actual}");
    }
    let actual = error(&["--recipe", "nv-embed-small", "--set", "stage.1.optimizer='newton'"]);
    for name in ["`newton`", "`adamw`", "`adam`", "`sgd`", "`adagrad`", "`lion`"] {
        assert!(actual.contains(name), "{name}: {actual}");
    }
    let kept = ["--set", "stage.2.optimizer='sgd'", "--set", "stage.2.keep_optimizer=true"];
    let actual = error(&[&["--recipe", "nv-embed-small"], &kept[..]].concat());
    assert!(actual.contains("adamw") && actual.contains("not with sgd"), "{actual}");
    let actual = error(&["--recipe", "nv-embd-small"]);
    assert!(actual.contains("nv-embed-small"), "{actual}");
}

#[test]
fn recipes_that_do_not_fit_their_data() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    folder.write(
        "labels.jsonl",
        "{\"text\":\"a\",\"label\":\"x\"}\n{\"text\":\"b\",\"label\":\"y\"}\n{\"text\":\"c\",\"label\":\"z\"}\n",
    );
    folder.write("scored.csv", "sentence1,sentence2,score\na,b,1\nc,d,2\n");
    folder.write("pairs.jsonl", "{\"query\":\"a\",\"pos\":[\"b\"]}\n");
    folder.write("words.txt", "one\ntwo\n");
    let all_missing =
        "{\"query\":\"a\",\"positive\":\"b\",\"negatives\":{\"n1\":\"\",\"n2\":null}}\n";
    folder.write("unnamed.jsonl", all_missing);
    let stage = "name = 'x'\n[model.new]\nvocab_size = 300\nhidden_size = 16\nintermediate_size = 24\nlayers = 1\nheads = 2\n\
                 [[stage]]\nname = 's'\nsteps = 2\nbatch_size = 4\nlr = 1e-3\n";
    let error = |extra: &str| {
        let recipe = folder.write("r.toml", format!("{stage}{extra}"));
        let output = folder.arg("out");
        let actual =
            failure(&mut kiln(&["--quiet", "train", "--recipe", &recipe, "--output", &output]));
        assert!(!folder.path("out/model").exists());
        actual
    };
    for (extra, expected) in [
        ("data = ['none.jsonl']", &["none.jsonl"][..]),
        // Each label has one example only.
        ("data = ['labels.jsonl']", &["labels", "3 texts alone in their class"]),
        // No pair is above the threshold.
        ("data = ['scored.csv']", &["scored", "threshold"]),
        (
            "data = ['data.jsonl']\ncurriculum = { fixed = 4 }",
            &["fixed = 4", "no example", "highest is 2"],
        ),
        (
            "data = ['data.jsonl']\nhard_negatives = 2\ncurriculum = 'random'",
            &["hard_negatives = 2", "set hard_negatives = 1"],
        ),
        (
            "data = ['unnamed.jsonl']\ncurriculum = 'coarse_to_fine'",
            &["graded", "no example has a negative"],
        ),
        (
            "data = [{ path = 'data.jsonl', leak = 'exact' }]",
            &["data.jsonl", "filter.evaluation_texts"],
        ),
        (
            "data = [{ path = 'data.jsonl', instructions = ['a'], query_prompt = 'b' }]",
            &["data.jsonl", "keep one"],
        ),
        ("data = ['pairs.jsonl']", &["one example"]),
        ("data = ['pairs.jsonl']\ncurriculum = 'random'", &["graded", "mine"]),
        (
            "data = ['data.jsonl']\nhard_negatives = 0\nloss = { in_batch = false }",
            &["hard negatives"],
        ),
        ("data = ['words.txt']", &["words", "without positives"]),
        ("data = [{ path = 'data.jsonl', labels = 'names' }]", &["data.jsonl", "labelled texts"]),
        ("data = [{ path = 'made-up:pairs', labels = 'names' }]", &["made-up:pairs", "labels"]),
        ("data = []", &["data"]),
    ] {
        let actual = error(extra);
        for part in expected {
            assert!(actual.contains(part), "{extra}: {part:?} is not in {actual}");
        }
    }
    let format = "instruction_format = 'Query: '\n[model.new]";
    let recipe = stage.replacen("[model.new]", &format!("[model]\n{format}"), 1);
    let recipe = folder.write("r.toml", format!("{recipe}data = ['data.jsonl']"));
    let output = folder.arg("out");
    let actual =
        failure(&mut kiln(&["--quiet", "train", "--recipe", &recipe, "--output", &output]));
    assert!(actual.contains("instruction_format") && actual.contains("{instruction}"), "{actual}");
    // More negatives than there are is a note, since blends differ in how many they have.
    let recipe =
        folder.write("r.toml", format!("{stage}data = ['data.jsonl']\nhard_negatives = 5"));
    let output = folder.arg("short");
    let run = kiln(&["train", "--recipe", &recipe, "--output", &output]).assert().success();
    let notes = String::from_utf8(run.get_output().stderr.clone()).unwrap();
    assert!(notes.contains("hard_negatives = 5") && notes.contains("more than 2"), "{notes}");
}

#[test]
fn what_the_data_have_too_little_of_is_a_note() {
    let folder = Folder::new();
    let row = |n: usize, more: &str| {
        format!(
            "{{\"query\":\"q {n}\",\"positive\":\"p {n}\",\"negatives\":{{\"n1\":\"n {n}\"{more}}}}}\n"
        )
    };
    let rows: String = (0..120).map(|n| row(n, "")).collect();
    folder.write("data.jsonl", rows + &row(120, ",\"n4\":\"odd\""));
    let recipe = folder.write(
        "r.toml",
        "name = 'x'\n[model]\nmax_length = 8\n[model.new]\nvocab_size = 300\nhidden_size = 16\n\
         intermediate_size = 24\nlayers = 1\nheads = 2\n[[stage]]\nname = 's'\ndata = ['data.jsonl']\nsteps = 2\n\
         batch_size = 200\ncurriculum = 'random'\nlr = 1e-3\n",
    );
    let output = folder.arg("out");
    let run = kiln(&["train", "--recipe", &recipe, "--output", &output]).assert().success();
    let notes = String::from_utf8(run.get_output().stderr.clone()).unwrap();
    assert!(notes.contains("fewer than 1 % of the examples of data have"), "{notes}");
    assert!(notes.contains("of level 4,") && notes.contains("its 4 levels"), "{notes}");
    assert_eq!(notes.matches("a batch of 121 queries, not of 200").count(), 1, "{notes}");
}

/// By label and by example: what the sweep compares.
#[test]
fn made_up_classes_are_labelled_too() {
    let folder = Folder::new();
    let loss = |labels: &str| -> Value {
        let output = folder.arg(labels);
        let mut command = kiln(&["train", "--json", "--recipe", "nv-embed-small"]);
        command.args(["--output", &output, "--set", "order=['blended']"]);
        let source = format!("{{ path = 'made-up:classes', labels = '{labels}' }}");
        command.args(["--set", &format!("stage.blended.data=[{source}]")]);
        for field in ["stage.blended.steps=2", "stage.blended.batch_size=6", "eval.set.1.limit=9"] {
            command.args(["--set", field]);
        }
        let summary = stdout(&mut command);
        serde_json::from_str::<Value>(&summary).unwrap()["loss"].clone()
    };
    assert_ne!(loss("examples"), loss("names"));
}
