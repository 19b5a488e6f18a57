//! Data, settings and bases of which no cross-encoder is made.

use super::{fixture, recipe, train};
use crate::harness::{Folder, failure};
use crate::training::DATA;

#[test]
fn what_a_cross_encoder_cannot_learn_from_is_said() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    folder.write(
        "bare.jsonl",
        "{\"query\":\"a\",\"pos\":[\"b\"]}\n{\"query\":\"c\",\"pos\":[\"d\"]}\n",
    );
    folder.write("wide.csv", "sentence1,sentence2,score\na,b,4.5\nc,d,0\n");
    folder.write("labels.csv", "sentence1,sentence2,label\na,b,1\nc,d,0\n");
    folder.write("words.txt", "one\ntwo\n");
    let usual = "steps = 1\nbatch_size = 2\nlr = 1e-3";
    let error = |text: &str| {
        let said = failure(&mut train(&folder, text, "out", &[]));
        assert!(!folder.path("out/model").exists());
        said
    };
    for (data, more, parts) in [
        ("bare.jsonl", "", &["bare: no row has a label or a negative", "kiln mine"][..]),
        ("wide.csv", "", &["wide: 1 of 2 rows have a label below 0 or above 1", "mse"]),
        ("words.txt", "", &["without positives"]),
        (
            "data.jsonl",
            "rerank = { loss = 'margin_mse' }",
            &["no row has scores", "kiln rerank --data"],
        ),
        (
            "data.jsonl",
            "rerank = { loss = 'mse' }",
            &["no row has a teacher's score", "kiln rerank --data"],
        ),
        ("data.jsonl", "rerank = { labels = 'scores' }", &["no row has a score", "rerank.labels"]),
        (
            "labels.csv",
            "rerank = { loss = 'rank_net' }",
            &["no row has a negative beside its positive"],
        ),
        (
            "labels.csv",
            "rerank = { loss = 'margin_mse' }",
            &["no row has scores of its positives and negatives"],
        ),
        ("data.jsonl", "rerank = { loss = 'hinge' }", &["hinge"]),
        ("data.jsonl", "rerank = { num_labels = 3 }", &["num_labels"]),
        ("data.jsonl", "margin_mse = { scale = 2.0 }", &["does not use margin_mse"]),
        ("data.jsonl", "loss = { temperature = 1.0 }", &["does not use loss"]),
    ] {
        let said = error(&recipe(None, data, &format!("{usual}\n{more}")));
        for part in parts {
            assert!(said.contains(part), "{data} {more}: {part:?} is not in {said}");
        }
    }
    // Bases of which no cross-encoder is made.
    let decoder = folder.model("{ mode = 'mean' }");
    for (base, part) in [
        (decoder, "is a decoder (llama)"),
        (fixture("rerankers/qwen3"), "answers yes or no, as a decoder (qwen3) does"),
        (fixture("static/sentence-transformers"), "is of a family without such a head (static)"),
    ] {
        let text = recipe(Some(&base), "data.jsonl", usual);
        let said = error(&text);
        assert!(said.contains(part) && said.contains("ModernBERT"), "{said}");
        let said = failure(&mut train(&folder, &text, "out", &["--dry-run"]));
        assert!(said.contains(part), "{said}");
    }
    // A head of several scores.
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
    let said = error(&recipe(Some(&three), "data.jsonl", usual));
    assert!(said.contains("gives each pair 3 scores"), "{said}");
    // No room for two texts.
    let text = recipe(None, "data.jsonl", usual).replace("max_length = 48", "max_length = 4");
    assert!(error(&text).contains("leaves no room for two texts"), "{}", error(&text));
}
