//! What scores teach embedders: negatives that a reranker judges, margins, a guide, and scored pairs.

use serde_json::json;

use super::{parse, reranker};
use crate::harness::{Folder, TEXTS, failure, kiln, stdout};

#[test]
fn negatives_are_judged_by_a_reranker() {
    let (reranker, ..) = reranker();
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let rows: String = TEXTS
        .windows(2)
        .map(|two| json!({"query": two[0], "pos": [two[1]]}).to_string() + "\n")
        .collect();
    let (data, out, scores) =
        (folder.write("rows.jsonl", rows), folder.arg("mined.jsonl"), folder.arg("scores.jsonl"));
    let args =
        ["mine", "-m", &model, "--data", &data, "--output", &out, "--percent-of-positive", "0"];
    let more = ["--reranker", &reranker, "--scores", &scores, "--negatives", "9"];
    stdout(&mut kiln(&[&args[..], &more].concat()));
    for line in std::fs::read_to_string(&out).unwrap().lines() {
        let row = parse(line);
        let negatives = row["neg"].as_array().unwrap();
        assert!(negatives.len() > 2, "{row}");
        let all = row["pos"].as_array().unwrap().iter().zip(row["pos_scores"].as_array().unwrap());
        for (text, score) in all.chain(negatives.iter().zip(row["neg_scores"].as_array().unwrap()))
        {
            let (query, text) = (row["query"].as_str().unwrap(), text.as_str().unwrap());
            let alone = parse(&stdout(&mut kiln(&[
                "rerank", "--json", "-m", &reranker, "-Q", query, "-t", text,
            ])));
            let expected = alone[0]["ranked"][0]["score"].as_f64().unwrap();
            assert!((score.as_f64().unwrap() - expected).abs() < 1e-5, "{score} {expected}");
        }
        let found: Vec<f64> =
            row["neg_scores"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).collect();
        assert!(found.is_sorted_by(|a, b| a >= b), "{found:?}");
    }
    // What the reranker scores as the positive, or above, is gone.
    let strict = folder.arg("strict.jsonl");
    let args = ["mine", "--from-scores", &scores, "--data", &data, "--output", &strict];
    stdout(&mut kiln(&[&args[..], &["--percent-of-positive", "1", "--least", "0"]].concat()));
    for line in std::fs::read_to_string(&strict).unwrap().lines() {
        let row = parse(line);
        let best = row["pos_scores"][0].as_f64().unwrap();
        let negatives = row["neg_scores"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert!(negatives.iter().all(|score| score.as_f64().unwrap() <= best + 1e-6), "{row}");
    }
}

/// A recipe of one stage, with `more` in it.
fn recipe(more: &str) -> String {
    format!(
        "name = 'tiny'\nseed = 3\n[model]\nmax_length = 24\npooling = {{ mode = 'mean' }}\n\
         [model.new]\nvocab_size = 320\nhidden_size = 32\nintermediate_size = 48\nlayers = 2\nheads = 2\n\
         [[stage]]\nname = 'first'\ndata = ['mined.jsonl']\nsteps = 60\nbatch_size = 4\nhard_negatives = 2\nlr = 3e-3\n\
         {more}\n"
    )
}

fn losses(run: &str) -> Vec<f64> {
    let lines = std::fs::read_to_string(std::path::Path::new(run).join("metrics.jsonl")).unwrap();
    lines.lines().map(|line| parse(line)["loss"].as_f64().unwrap()).collect()
}

#[test]
fn a_cross_encoder_is_distilled_into_an_embedder_and_an_embedder_guides_another() {
    let (reranker, ..) = reranker();
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let rows: String = TEXTS
        .windows(2)
        .map(|two| json!({"query": two[0], "pos": [two[1]]}).to_string() + "\n")
        .collect();
    let (data, out) = (folder.write("rows.jsonl", rows.clone()), folder.arg("mined.jsonl"));
    let args =
        ["mine", "-m", &model, "--data", &data, "--output", &out, "--percent-of-positive", "0"];
    stdout(&mut kiln(&[&args[..], &["--reranker", &reranker]].concat()));

    let margins = "[stage.margin_mse]\ncontrastive = 0\nscale = 1";
    let (path, run) = (folder.write("margins.toml", recipe(margins)), folder.arg("run"));
    stdout(&mut kiln(&[
        "train",
        "--recipe",
        &path,
        "--data-dir",
        &folder.arg(""),
        "--output",
        &run,
        "--json",
    ]));
    let (first, last) = (losses(&run)[0], *losses(&run).last().unwrap());
    assert!(last < 0.2 * first, "{:?}", losses(&run));

    // What the guide finds as near as the positive is no negative: with fewer of them the loss is less.
    let guided = |margin: &str| {
        let text =
            format!("[stage.distillation]\nteacher = '{model}'\nvectors = 0\nguide = {margin}");
        let (path, run) =
            (folder.write("guided.toml", recipe(&text)), folder.arg(&format!("guided{margin}")));
        stdout(&mut kiln(&[
            "train",
            "--recipe",
            &path,
            "--data-dir",
            &folder.arg(""),
            "--output",
            &run,
            "--json",
        ]));
        losses(&run)[0]
    };
    assert!(guided("2.0") < 1e-3 && guided("-2.0") > 0.1);

    let bare = folder.write("mined.jsonl", rows.replace("}", ",\"neg\":[\"tea\",\"ship\"]}"));
    assert_eq!(bare, out);
    let args = [
        "train",
        "--quiet",
        "--recipe",
        &path,
        "--data-dir",
        &folder.arg(""),
        "--output",
        &folder.arg("none"),
    ];
    let said = failure(&mut kiln(&args));
    assert!(said.contains("margin_mse") && said.contains("kiln mine --reranker"), "{said}");
}

#[test]
fn pairs_come_into_the_order_of_their_scores() {
    let folder = Folder::new();
    // Against what a new model finds: texts with words in common are unlike, and others alike.
    let pairs = [
        (TEXTS[0], "the river floods the lower town", 0.0),
        (TEXTS[3], "the ship carried tea and gold", 1.0),
        (TEXTS[0], TEXTS[1], 3.0),
        (TEXTS[2], TEXTS[4], 4.0),
        (TEXTS[5], TEXTS[3], 5.0),
        (TEXTS[1], TEXTS[1], 5.0),
    ];
    let row = |(a, b, score): &(&str, &str, f64)| {
        json!({"sentence1": a, "sentence2": b, "score": score}).to_string() + "\n"
    };
    let data = folder.write("mined.jsonl", pairs.iter().map(row).collect::<String>());
    let train = |text: String, run: &str| {
        let (path, data) = (folder.write("scored.toml", text), folder.arg(""));
        kiln(&["train", "--quiet", "--recipe", &path, "--data-dir", &data, "--output", run])
    };
    for loss in ["cosent", "angle"] {
        let more = format!(
            "objective = 'similarity'\nsimilarity = {{ loss = '{loss}' }}\n\
             matryoshka = {{ dimensions = [16, 32] }}"
        );
        let text = recipe(&more).replace("hard_negatives = 2\n", "");
        let run = folder.arg(loss);
        stdout(&mut train(text.replace("batch_size = 4", "batch_size = 6"), &run));
        let all = losses(&run);
        assert!(*all.last().unwrap() < 0.2 * all[0], "{loss}: {all:?}");
        let model = format!("{run}/model");
        let found = stdout(&mut kiln(&["similarity", "--json", "-m", &model, "--input", &data]));
        let found: Vec<f64> = parse(&found)
            .as_array()
            .unwrap()
            .iter()
            .map(|pair| pair["cosine"].as_f64().unwrap())
            .collect();
        if loss == "cosent" {
            // The last is a text beside itself, to which the last but one is as alike as can be.
            assert!(found[..5].is_sorted(), "{found:?}");
        }
    }
    folder.write(
        "mined.jsonl",
        "{\"query\": \"a\", \"pos\": [\"b\"]}\n{\"query\": \"c\", \"pos\": [\"d\"]}\n",
    );
    let text = recipe("objective = 'similarity'").replace("hard_negatives = 2\n", "");
    let said = failure(&mut train(text, &folder.arg("none")));
    assert!(said.contains("no row has a score"), "{said}");
}
