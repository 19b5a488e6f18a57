//! `analyze` as a user runs it: every picture in three formats, and one page.

use serde_json::Value;

use crate::harness::{Folder, failure, kiln, names, stdout};

fn run(folder: &Folder, pooling: &str, more: &[&str]) -> Value {
    let model = folder.model(pooling).display().to_string();
    let output = folder.arg("out");
    let args = ["analyze", "--json", "-m", &model, "-o", &output, "--limit", "60"];
    let mut command = kiln(&args);
    let result = stdout(command.args(more).env("XDG_CACHE_HOME", folder.path("cache")));
    serde_json::from_str(&result).unwrap()
}

fn data(folder: &Folder, name: &str) -> Value {
    let text = std::fs::read_to_string(folder.path("out").join(format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn a_latent_model_is_drawn_from_all_sides() {
    let folder = Folder::new();
    let text = "the river floods <b>the</b> lower streets";
    let actual =
        run(&folder, "{ mode = 'latent_attention', latents = 4, heads = 2 }", &["--text", text]);
    let skipped: Vec<&str> = actual["skipped"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["analysis"].as_str().unwrap())
        .collect();
    assert_eq!(skipped, ["layer-weights"]);
    let pictures = [
        "anchors-1",
        "attention-1",
        "latent-tokens-1",
        "latents",
        "layer-scores",
        "layers",
        "pca",
        "similarity",
        "space",
        "t-sne",
    ];
    let files = names(&folder.path("out"));
    for name in pictures {
        for ending in ["json", "png", "svg"] {
            assert!(files.contains(&format!("{name}.{ending}")), "{name}.{ending}: {files:?}");
        }
        let png = std::fs::read(folder.path("out").join(format!("{name}.png"))).unwrap();
        assert!(png.starts_with(b"\x89PNG"), "{name}");
    }
    assert_eq!(files.len(), pictures.len() * 3 + 1, "{files:?}");
    let page = std::fs::read_to_string(folder.path("out/index.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), pictures.len());
    assert!(page.contains("&lt;b&gt;") && !page.contains("<b>"), "texts are shown as texts");
    assert!(
        !page.contains("http://")
            || page.matches("http://").count() == page.matches("http://www.w3.org").count()
    );

    // The numbers beside the pictures.
    let attention = data(&folder, "attention-1");
    for head in attention["attention"].as_array().unwrap() {
        for row in head.as_array().unwrap() {
            assert!((numbers(row).iter().sum::<f64>() - 1.0).abs() < 1e-4);
        }
    }
    for list in data(&folder, "anchors-1")["weights"].as_array().unwrap() {
        let weights = numbers(&list["weights"]);
        assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-4, "{list}");
    }
    let latents = data(&folder, "latents");
    assert_eq!(latents["rows"].as_array().unwrap().len(), 20);
    for head in latents["attention"][0].as_array().unwrap() {
        assert!(
            (numbers(head).iter().sum::<f64>() - 1.0).abs() < 1e-4,
            "means of weights sum to 1"
        );
    }
    let layers = data(&folder, "layers");
    assert_eq!(layers["layers"].as_array().unwrap().len(), 3);
    assert!((0..3).all(|i| (layers["spearman"][i][i].as_f64().unwrap() - 1.0).abs() < 1e-9));
    assert_eq!(data(&folder, "layer-scores")["layers"].as_array().unwrap().len(), 3);
    assert_eq!(data(&folder, "t-sne")["points"].as_array().unwrap().len(), 60);
    assert_eq!(data(&folder, "similarity")["levels"].as_array().unwrap().len(), 5);
    let health = &actual["health"];
    assert!(
        health["uniformity"].as_f64().unwrap() < 0.0
            && health["alignment"].as_f64().unwrap() >= 0.0,
        "{health}"
    );
    let dimension = health["effective_dimension"].as_f64().unwrap();
    assert!((1.0..=16.0).contains(&dimension), "{health}");
}

#[test]
fn layers_are_weighed_and_scored_on_a_task_of_ones_own() {
    let folder = Folder::new();
    let (tasks, _) = crate::tasks::write_tasks(&folder);
    let data_path = format!("{tasks}/sts");
    let labelled = format!("{tasks}/clustering/test.jsonl");
    let actual = run(
        &folder,
        "{ mode = 'multi_layer_trainable', latents = 3, heads = 2 }",
        &[
            "--only",
            "layer-weights,layer-scores,projection",
            "--task",
            "sts",
            "--data",
            &data_path,
            "--labelled",
            &labelled,
        ],
    );
    assert!(actual["skipped"].as_array().unwrap().is_empty(), "{actual}");
    let weights = data(&folder, "layer-weights");
    let mean = numbers(&weights["mean"]);
    assert!(mean.len() == 2 && (mean.iter().sum::<f64>() - 1.0).abs() < 1e-5, "{mean:?}");
    let scores = data(&folder, "layer-scores");
    assert_eq!((&scores["task"], &scores["score"]), (&"sts".into(), &"cosine_spearman".into()));
    assert_eq!(scores["layers"].as_array().unwrap().len(), 3);
    // The states were kept: the second run reads them.
    assert!(folder.path("cache/kiln/embeddings").is_dir());
}

/// Too few texts, or all alike: what cannot be drawn is left out and said, the rest is drawn.
#[test]
fn degenerate_texts_are_no_failure() {
    for (rows, other) in [(1, "river"), (2, "river"), (12, "river"), (12, "ship")] {
        let folder = Folder::new();
        let row = |word: &str| format!("{{\"text\":\"a {word}\",\"label\":\"{word}\"}}\n");
        let same: String =
            (0..rows).map(|i| row(if i % 2 == 0 { "river" } else { other })).collect();
        let labelled = folder.write("same.jsonl", same);
        let actual = run(&folder, "{ mode = 'mean' }", &["--labelled", &labelled]);
        let pictures = actual["pictures"].as_array().unwrap().len();
        assert!(pictures >= 5, "{actual}");
        assert_eq!(folder.path("out/t-sne.png").exists(), other == "ship", "{actual}");
    }
}

#[test]
fn bad_input_is_named() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let output = folder.arg("out");
    let run = |args: &[&str]| {
        failure(
            kiln(&["analyze", "--quiet", "-m", &model, "-o", &output])
                .args(args)
                .env("XDG_CACHE_HOME", folder.path("cache")),
        )
    };
    let error = run(&["--labelled", &folder.write("l.jsonl", "{\"text\":\"a\"}\n")]);
    assert!(error.contains("l.jsonl:1") && error.contains("label"), "{error}");
    let error = run(&["--groups", "a"]);
    assert!(error.contains("--groups"), "{error}");
    let error = run(&["--limit", "0"]);
    assert!(error.contains("--limit"), "{error}");
    let file = folder.write("file", "");
    let error = failure(
        kiln(&["analyze", "--quiet", "--only", "layers", "-m", &model, "-o", &file])
            .env("XDG_CACHE_HOME", folder.path("cache")),
    );
    assert!(error.contains("file"), "{error}");
}
