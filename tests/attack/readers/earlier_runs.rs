//! What an earlier run kept, and was changed since or is of other data.

use serde_json::json;

use super::{Place, has};
use crate::harness::{Folder, failure, kiln};

#[test]
fn metrics_of_a_run_that_were_changed() {
    let folder = Folder::new();
    let rows: String = (0..8)
        .map(|n| format!("{{\"query\":\"where is {n}\",\"pos\":[\"{n} is here\"]}}\n"))
        .collect();
    folder.write("data.jsonl", rows);
    let recipe = folder.write(
        "r.toml",
        "name = 'x'\n[model]\nmax_length = 16\n[model.new]\nvocab_size = 300\nhidden_size = 16\n\
         intermediate_size = 24\nlayers = 1\nheads = 2\n[[stage]]\nname = 's'\ndata = ['data.jsonl']\n\
         steps = 2\nbatch_size = 2\nlr = 1e-3\n",
    );
    let out = folder.arg("out");
    let args = ["--quiet", "train", "--recipe", &recipe, "--output", &out];
    kiln(&args).args(["--checkpoint-every", "1"]).assert().success();
    let metrics = folder.path("out/metrics.jsonl");
    let whole = std::fs::read_to_string(&metrics).unwrap();
    std::fs::write(&metrics, format!("nonsense\n{whole}")).unwrap();
    has(&failure(kiln(&args).arg("--resume")), &["metrics.jsonl:1", "--output"]);
    std::fs::write(&metrics, "").unwrap();
    has(&failure(kiln(&args).arg("--resume")), &["metrics.jsonl", "steps", "--output"]);
}

#[test]
fn scores_of_other_data_are_refused() {
    let place = Place::new();
    let rows = |texts: [&str; 2]| -> String {
        let row = |text| json!({ "query": text, "pos": [format!("{text} too")] });
        texts.iter().map(|text| format!("{}\n", row(text))).collect()
    };
    let corpus = place.write("corpus.txt", "a hall\na ship\na lake\n");
    let corpus = place.write("corpus.jsonl", {
        let texts = std::fs::read_to_string(corpus).unwrap();
        texts.lines().map(|text| format!("{}\n", json!({ "text": text }))).collect::<String>()
    });
    let data = place.write("data.jsonl", rows(["a river", "a town"]));
    let (scores, output) = (place.folder.arg("scores.jsonl"), place.folder.arg("mined.jsonl"));
    let args = ["mine", "--corpus", &corpus, "--output", &output, "--percent-of-positive", "0"];
    let actual =
        place.command(&args).args(["--data", &data, "--scores", &scores]).output().unwrap();
    assert!(actual.status.success(), "{}", String::from_utf8_lossy(&actual.stderr));
    let again = |data: &str| {
        let mut command = kiln(&args);
        command.args(["--quiet", "--data", data, "--from-scores", &scores]);
        command
    };
    again(&data).assert().success();
    let other = place.write("other.jsonl", rows(["a river", "a wood"]));
    has(&failure(&mut again(&other)), &["scores.jsonl", "other queries"]);
    let text = std::fs::read_to_string(&scores).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    place.write("scores.jsonl", [lines[0], lines[1], lines[1]].join("\n"));
    has(&failure(&mut again(&data)), &["scores.jsonl:3", "twice"]);
}
