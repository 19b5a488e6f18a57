//! What a cross-encoder is: a head and its parameters, by `kiln inspect` and a dry run.

use serde_json::json;

use super::{fixture, parse, recipe, tensors, train, untied};
use crate::harness::{Folder, failure, kiln, stdout};
use crate::training::DATA;

/// What a cross-encoder is can be looked at, as an embedder can, in a folder and in a file.
#[test]
fn a_cross_encoder_is_inspected() {
    let folder = Folder::new();
    let file = folder.arg("bert.kiln");
    let base = fixture("rerankers/bert").display().to_string();
    stdout(&mut kiln(&["quantize", "--quiet", "-m", &base, "--scheme", "int8:8", "-o", &file]));
    for (model, says) in [(&base, "a score of each pair, then Sigmoid"), (&file, "its test passed")]
    {
        let text = stdout(&mut kiln(&["inspect", "-m", model, "--tensors"]));
        assert!(text.contains("family       bert") && text.contains(says), "{text}");
        assert!(text.contains("classifier.weight"), "{text}");
        let value = parse(&stdout(&mut kiln(&["inspect", "-m", model, "--json"])));
        assert_eq!((&value["scores"], &value["activation"]), (&json!(1), &json!("sigmoid")));
        // Rounded or not, it has as many.
        assert_eq!(value["parameters"], 25_753, "{model}");
        assert!(value["parameters"].as_u64() > value["head"].as_u64());
    }
    for (option, value, words) in [
        ("--pooling", "cls", "is a reranker (BertForSequenceClassification)"),
        ("--attention", "causal", "is a reranker, of which"),
    ] {
        let error = failure(&mut kiln(&["inspect", "-m", &base, option, value]));
        assert!(error.contains(words) && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn a_dry_run_counts_the_head() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let dry = |text: &str| {
        let answer = stdout(&mut train(&folder, text, "dry", &["--dry-run", "--json"]));
        parse(&answer)["stages"][0].clone()
    };
    let stage = "steps = 3\nbatch_size = 2\nlr = 1e-3";
    let base = fixture("rerankers/bert");
    let whole = dry(&recipe(Some(&base), "data.jsonl", stage));
    // Every tensor of the file.
    let from = kiln_embed::checkpoint::Directory::new(&base).unwrap();
    let weights = kiln_embed::checkpoint::Weights::open(&from, "model").unwrap();
    let sizes = weights.tensors().values().map(|info| info.shape.iter().product::<usize>());
    assert_eq!(whole["trained"], sizes.sum::<usize>());
    let lora = recipe(Some(&base), "data.jsonl", stage)
        .replace("[[stage]]", "[model.lora]\nrank = 4\ntargets = ['query']\n[[stage]]");
    // Three layers, rank 4 on 32 x 32, and the head: 32 x 32 + 32, 32 + 1.
    assert_eq!(dry(&lora)["trained"], 3 * 4 * 64 + 32 * 33 + 33);
    // A decoder's language-model head, 64 rows of 32, is the table or trains beside it; adapters leave it as it is.
    let (tied, untied) = (fixture("rerankers/qwen3"), untied(&folder));
    let weights = tensors(&tied);
    let sizes = weights.tensors().values().map(|info| info.shape.iter().product::<usize>());
    let values = sizes.sum::<usize>();
    for (base, head) in [(&tied, 0), (&untied, 64 * 32)] {
        let text = recipe(Some(base), "data.jsonl", stage);
        assert_eq!(dry(&text)["trained"], values + head);
        let lora = "[model.lora]\nrank = 4\ntargets = ['q_proj']\n[[stage]]";
        let lora = dry(&text.replace("[[stage]]", lora));
        assert_eq!(
            (&lora["trained"], &lora["frozen"]),
            (&json!(3 * 4 * 64), &json!(values + head))
        );
    }
    assert_eq!(whole["data"][0][1]["examples"], 4);
}
