//! Data, settings and bases of which no cross-encoder is made.

use super::{fixture, recipe, three_scores, train};
use crate::harness::{Folder, failure, kiln};
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
        (fixture("static/sentence-transformers"), "is of a family without such a head (static)"),
    ] {
        let text = recipe(Some(&base), "data.jsonl", usual);
        let said = error(&text);
        assert!(said.contains(part) && said.contains("ModernBERT"), "{said}");
        let said = failure(&mut train(&folder, &text, "out", &["--dry-run"]));
        assert!(said.contains(part), "{said}");
    }
    // A decoder that was exported has no language-model head left to train. Its name alone says that it ranks.
    let (qwen, named) = (fixture("rerankers/qwen3"), folder.path("a-reranker"));
    std::fs::create_dir(&named).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(qwen.join(file), named.join(file)).unwrap();
    }
    let exported = folder.path("exported");
    let (from, to) = (named.display().to_string(), exported.display().to_string());
    kiln(&["--quiet", "export", "-m", &from, "-o", &to]).assert().success();
    let text = recipe(Some(&exported), "data.jsonl", usual);
    let dry = failure(&mut train(&folder, &text, "out", &["--dry-run"]));
    for said in [error(&text), dry] {
        assert!(said.contains("start from the model that it was made of"), "{said}");
    }
    // No room for two texts beside its prompt, which is never cut.
    let short = recipe(Some(&qwen), "data.jsonl", usual);
    let said = error(&short.replace("[[stage]]", "max_length = 20\n[[stage]]"));
    assert!(said.contains("max_length 20 leaves no room for a text beside the"), "{said}");
    // A head of several scores.
    let three = three_scores(&folder);
    let said = error(&recipe(Some(&three), "data.jsonl", usual));
    assert!(said.contains("gives each pair 3 scores"), "{said}");
    // No room for two texts.
    let text = recipe(None, "data.jsonl", usual).replace("max_length = 48", "max_length = 4");
    assert!(error(&text).contains("leaves no room for two texts"), "{}", error(&text));
}
