//! `rerank`, `search --reranker`, `eval --reranker`, the server's `/rerank`, what is no reranker, and decoders that rank in
//! fewer bits.

use kiln_embed::checkpoint::{Directory, Weights};
use serde_json::{Value, json};

use crate::cross_encoders::three_scores;
use crate::harness::{Folder, TEXTS, embed, failure, kiln, stdout};
use crate::server::Server;

fn fixture(path: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(path)
}

/// A cross-encoder of BERT's shape, and the logits that sentence-transformers gives its pairs.
fn reranker() -> (String, Vec<(String, String)>, Vec<f64>) {
    let folder = fixture("rerankers/bert");
    let read = |path: std::path::PathBuf| std::fs::read(path).unwrap();
    let pairs = serde_json::from_slice(&read(fixture("rerankers/pairs.json"))).unwrap();
    let scores = serde_json::from_slice(&read(folder.join("scores.json"))).unwrap();
    (folder.display().to_string(), pairs, scores)
}

fn sigmoid(score: f64) -> f64 {
    1.0 / (1.0 + (-score).exp())
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn texts_are_ranked_by_their_scores() {
    let (model, pairs, scores) = reranker();
    let folder = Folder::new();
    let corpus = folder.write(
        "corpus.jsonl",
        format!(
            "{}\n{}\n",
            json!({"id": "x", "text": pairs[1].1}),
            json!({"id": "y", "text": pairs[0].1})
        ),
    );
    let args = ["rerank", "--json", "--model", &model, "-Q", &pairs[0].0, "--corpus", &corpus];
    let answer = parse(&stdout(&mut kiln(&args)));
    let ranked = answer[0]["ranked"].as_array().unwrap();
    let expected = [sigmoid(scores[1]), sigmoid(scores[0])];
    assert_eq!(ranked.len(), 2);
    for place in ranked {
        let row = place["row"].as_u64().unwrap() as usize;
        assert_eq!(place["id"], ["x", "y"][row]);
        assert!((place["score"].as_f64().unwrap() - expected[row]).abs() < 1e-4, "{place}");
    }
    assert!(ranked[0]["score"].as_f64() >= ranked[1]["score"].as_f64());
    let text = stdout(&mut kiln(&[
        "rerank", "-m", &model, "-Q", "noon", "-t", "night", "-t", "noon", "-k", "1",
    ]));
    assert_eq!(text.lines().count(), 2, "{text}");
    // Rounded weights rank, too.
    let args = [&args[..], &["--reranker-weights", "int8"]].concat();
    let rounded = parse(&stdout(&mut kiln(&args)));
    for place in rounded[0]["ranked"].as_array().unwrap() {
        let row = place["row"].as_u64().unwrap() as usize;
        assert!((place["score"].as_f64().unwrap() - expected[row]).abs() < 0.05, "{place}");
    }
}

#[test]
fn search_puts_its_best_hits_into_the_rerankers_order() {
    let (reranker, ..) = reranker();
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let corpus = folder.texts();
    let search = ["search", "--json", "-m", &model, "-Q", "the old river", "--corpus", &corpus];
    let plain = parse(&stdout(&mut kiln(&[&search[..], &["-k", "3"]].concat())));
    let more = ["-k", "2", "--reranker", &reranker, "--candidates", "3"];
    let answer = parse(&stdout(&mut kiln(&[&search[..], &more].concat())));
    let hits = answer[0]["hits"].as_array().unwrap();
    assert_eq!(hits.len(), 2);
    assert!(hits[0]["score"].as_f64() >= hits[1]["score"].as_f64());
    for hit in hits {
        let found = plain[0]["hits"].as_array().unwrap();
        let same = found.iter().find(|other| other["row"] == hit["row"]).expect("among the three");
        assert_eq!(hit["similarity"], same["score"]);
        let args = [
            "rerank",
            "--json",
            "-m",
            &reranker,
            "-Q",
            "the old river",
            "-t",
            hit["text"].as_str().unwrap(),
        ];
        let alone = parse(&stdout(&mut kiln(&args)));
        let (a, b) =
            (hit["score"].as_f64().unwrap(), alone[0]["ranked"][0]["score"].as_f64().unwrap());
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    // Vectors without texts cannot be reranked.
    let index = folder.arg("index.npy");
    stdout(&mut kiln(&["embed", "--json", "-m", &model, "--input", &corpus, "--output", &index]));
    let args = ["search", "-m", &model, "-Q", "x", "--index", &index, "--reranker", &reranker];
    assert!(failure(&mut kiln(&args)).contains("no texts to rerank"));
    // What is found can be no fewer than what is shown, and 100 where nothing is said.
    let few = [&search[..], &["-k", "3", "--reranker", &reranker, "--candidates", "2"]].concat();
    let said = failure(&mut kiln(&few));
    assert!(said.contains("--candidates 2 are fewer than the --top-k 3"), "{said}");
    for alone in [["--candidates", "5"], ["--pair-batch-tokens", "64"]] {
        let said = failure(&mut kiln(&[&search[..], &alone].concat()));
        assert!(said.contains("--reranker"), "{said}");
    }
}

#[test]
fn tasks_are_reranked() {
    let (reranker, ..) = reranker();
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let rows: String = TEXTS
        .windows(3)
        .map(|three| {
            json!({"query": three[0], "positive": [three[1]], "negative": [three[2]]}).to_string()
                + "\n"
        })
        .collect();
    let data = folder.write("rows.jsonl", rows);
    let eval =
        ["eval", "--json", "-m", &model, "--task", "reranking", "--data", &data, "--no-cache"];
    let answer = parse(&stdout(&mut kiln(&[&eval[..], &["--reranker", &reranker]].concat())));
    // The map of one positive among two is 1 or 1/2; by hand, from the scores of the pairs.
    let mut expected = 0.0;
    for three in TEXTS.windows(3) {
        let args =
            ["rerank", "--json", "-m", &reranker, "-Q", three[0], "-t", three[1], "-t", three[2]];
        let ranked = parse(&stdout(&mut kiln(&args)));
        expected += if ranked[0]["ranked"][0]["row"] == 0 { 1.0 } else { 0.5 };
    }
    expected /= TEXTS.windows(3).count() as f64;
    let found = answer["scores"]["map_at_1000"].as_f64().or(answer["main_score"].as_f64());
    assert!((found.unwrap_or(f64::NAN) - expected).abs() < 1e-9, "{answer} {expected}");
}

#[test]
fn the_server_ranks_in_both_protocols() {
    let (reranker, pairs, scores) = reranker();
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let server = Server::start(&model, &["--reranker", &reranker, "--max-client-batch-size", "3"]);
    let (query, texts) = (&pairs[0].0, [&pairs[0].1, &pairs[1].1]);
    let (status, body) = server.post(
        "/rerank",
        json!({"query": query, "texts": texts, "raw_scores": true, "return_text": true}),
    );
    assert_eq!(status, 200, "{body}");
    for place in body.as_array().unwrap() {
        let index = place["index"].as_u64().unwrap() as usize;
        assert!((place["score"].as_f64().unwrap() - scores[index]).abs() < 1e-4, "{place}");
        assert_eq!(place["text"], *texts[index]);
    }
    let request = json!({"model": "x", "query": query, "documents": [texts[0], {"text": texts[1]}], "top_n": 1});
    for path in ["/v1/rerank", "/v2/rerank"] {
        let (status, body) = server.post(path, request.clone());
        assert_eq!(status, 200, "{body}");
        let results = body["results"].as_array().unwrap();
        assert_eq!(results.len(), 1);
        let index = results[0]["index"].as_u64().unwrap() as usize;
        let best = scores[0].max(scores[1]);
        assert!((results[0]["relevance_score"].as_f64().unwrap() - sigmoid(best)).abs() < 1e-4);
        assert_eq!(scores[index], best);
        assert!(body["usage"]["total_tokens"].as_u64().unwrap() > 10);
    }
    let (_, models) = server.ask("/v1/models", None, None);
    assert_eq!(models["data"].as_array().unwrap().len(), 2);
    for (body, status, part) in [
        (json!({"query": query, "texts": []}), 422, "no texts"),
        (json!({"query": query}), 422, "texts"),
        (json!({"query": query, "texts": ["a", "b", "c", "d"]}), 413, "4 texts"),
        (
            json!({"query": query, "texts": ["a ".repeat(200)], "truncate": false}),
            413,
            "a pair has more",
        ),
    ] {
        let (found, answer) = server.post("/rerank", body.clone());
        assert_eq!(found, status, "{body} {answer}");
        assert!(answer["error"].as_str().unwrap().contains(part), "{answer}");
    }
    let without = Server::start(&model, &[]);
    let (status, answer) = without.post("/rerank", json!({"query": query, "texts": texts}));
    assert_eq!(status, 422);
    assert!(answer["error"].as_str().unwrap().contains("--reranker"), "{answer}");
}

#[test]
fn a_reranker_is_served_alone() {
    let (reranker, pairs, scores) = reranker();
    let command = || std::process::Command::new(env!("CARGO_BIN_EXE_kiln"));
    let server = Server::serve(command(), &["--reranker", &reranker]);
    let request = json!({"query": pairs[0].0, "texts": [pairs[0].1], "raw_scores": true});
    let (status, body) = server.post("/rerank", request);
    assert_eq!(status, 200, "{body}");
    assert!((body[0]["score"].as_f64().unwrap() - scores[0]).abs() < 1e-4, "{body}");
    let request = json!({"query": pairs[0].0, "documents": [pairs[0].1]});
    assert_eq!(server.post("/v1/rerank", request).0, 200);

    // In each protocol's own form, and whatever the body.
    let said = "no embedder is served here; start the server with --model";
    for body in [json!({"input": "a", "model": "bert"}), json!({})] {
        let (status, answer) = server.post("/v1/embeddings", body);
        assert_eq!((status, &answer["error"]["message"]), (400, &said.into()), "{answer}");
        assert_eq!(answer["error"]["type"], "invalid_request_error", "{answer}");
    }
    let (status, answer) = server.post("/embed", json!({"inputs": "a"}));
    assert_eq!((status, &answer["error"]), (422, &said.into()), "{answer}");
    let load = ["load", "--quiet", "--url", &server.url, "--requests", "1"];
    assert!(failure(&mut kiln(&load)).contains(said));

    let (_, models) = server.ask("/v1/models", None, None);
    assert_eq!(models["data"].as_array().unwrap().len(), 1, "{models}");
    assert_eq!(models["data"][0]["id"], "bert");
    let (status, info) = server.ask("/info", None, None);
    assert_eq!((status, &info["model_id"]), (200, &"bert".into()), "{info}");
    assert_eq!(info["model_type"]["reranker"]["id2label"]["0"], "LABEL_0", "{info}");
    assert_eq!(info["model_sha"].as_str().unwrap().len(), 32, "{info}");
    assert!(info["max_input_length"].as_u64() > Some(0), "{info}");
    assert!(info["version"].is_string() && info["dimensions"].is_null(), "{info}");
    for path in ["/health", "/readyz", "/livez", "/docs", "/metrics"] {
        assert_eq!(server.ask(path, None, None).0, 200, "{path}");
    }
    let (_, document) = server.ask("/openapi.json", None, None);
    for path in ["/embed", "/v1/embeddings"] {
        assert!(document["paths"][path].is_null(), "{path}");
    }
    for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
        assert!(document["paths"][path]["post"].is_object(), "{path}");
    }

    let said = failure(&mut kiln(&["serve", "--port", "0"]));
    assert!(said.contains("--model") && said.contains("--reranker"), "{said}");
    // What is said of an embedder wants one.
    for option in [
        ["--also", "x"],
        ["--name", "x"],
        ["--adapter", "x"],
        ["--pooling", "cls"],
        ["--dimensions", "4"],
        ["--weights", "int8"],
    ] {
        let alone = ["serve", "--reranker", &reranker, "--port", "0"];
        let said = failure(kiln(&alone).args(option));
        assert!(said.contains("required") && said.contains("--model"), "{option:?}: {said}");
    }
}

#[test]
fn what_is_no_reranker_and_what_is_no_embedder() {
    let (reranker, ..) = reranker();
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let said = failure(&mut kiln(&["rerank", "-m", &model, "-Q", "x", "-t", "y"]));
    assert!(said.contains("is no reranker"), "{said}");
    let out = folder.arg("out.npy");
    let said = failure(&mut kiln(&[
        "embed",
        "-m",
        &reranker,
        "--input",
        &folder.texts(),
        "--output",
        &out,
    ]));
    assert!(said.contains("kiln rerank"), "{said}");
    // A tokenizer that puts two texts together without a sign between them.
    let copy = folder.path("copy");
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(&reranker).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let path = copy.join("tokenizer.json");
    let mut tokenizer = parse(&std::fs::read_to_string(&path).unwrap());
    tokenizer["post_processor"] = Value::Null;
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let copy = copy.display().to_string();
    let said = failure(&mut kiln(&["rerank", "-m", &copy, "-Q", "x", "-t", "y"]));
    assert!(said.contains("no template for pairs"), "{said}");
    // Adapters, by their folder and by their name.
    let adapter = folder.path("copy/lora");
    std::fs::create_dir(&adapter).unwrap();
    let config = json!({"peft_type": "LORA", "base_model_name_or_path": reranker});
    std::fs::write(adapter.join("adapter_config.json"), config.to_string()).unwrap();
    for name in [adapter.display().to_string(), format!("{copy}#lora")] {
        let said = failure(&mut kiln(&["rerank", "-m", &name, "-Q", "x", "-t", "y"]));
        assert!(said.contains("rerankers take none; merge them"), "{said}");
    }
    let said = failure(&mut kiln(&[
        "rerank",
        "-m",
        &reranker,
        "-Q",
        "x",
        "-t",
        "y",
        "--reranker-instruction",
        "z",
    ]));
    assert!(said.contains("takes no instruction"), "{said}");
}

/// As those have that judge whether one text follows from another.
#[test]
fn a_head_of_several_scores_ranks_nothing() {
    let folder = Folder::new();
    let three = three_scores(&folder).display().to_string();
    let shown = stdout(&mut kiln(&["inspect", "-m", &three]));
    assert!(shown.contains("3 scores of each pair"), "{shown}");
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let (texts, out) = (folder.texts(), folder.arg("out"));
    for args in [
        &["rerank", "-m", &three, "-Q", "x", "-t", "y"][..],
        &["search", "-m", &model, "-Q", "x", "--corpus", &texts, "--reranker", &three],
        &["serve", "--reranker", &three, "--port", "0"],
        &["quantize", "-m", &three, "-o", &out],
        &["export", "-m", &three, "-o", &out],
    ] {
        let said = failure(kiln(args).arg("--quiet"));
        let line = format!(
            "error: {three}: the model gives each pair 3 scores, and a reranker gives one; name"
        );
        assert!(said.starts_with(&line), "{args:?}: {said}");
    }
    assert!(!folder.path("out").exists());
}

/// A reranker's folder with one file changed or added.
fn changed(folder: &Folder, of: &str, file: &str, content: &Value) -> String {
    let copy = folder.path(&format!("{of}-{}", file.replace('.', "-")));
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(fixture(&format!("rerankers/{of}"))).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    std::fs::write(copy.join(file), content.to_string()).unwrap();
    copy.display().to_string()
}

#[test]
fn a_reranker_in_whose_files_something_is_amiss() {
    let folder = Folder::new();
    let read = |path: &str| parse(&std::fs::read_to_string(fixture(path)).unwrap());
    let said = |model: &str| failure(&mut kiln(&["rerank", "-m", model, "-Q", "x", "-t", "y"]));
    // An embedder that is a language model, as Qwen3-Embedding is.
    let modules = json!([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    ]);
    let model = changed(&folder, "qwen3", "modules.json", &modules);
    assert!(said(&model).contains("is no reranker: it pools"), "{}", said(&model));
    // Nothing stands before a query but in prompts that have a place for it.
    let prompts = json!({"prompts": {"query": "find: "}, "default_prompt_name": "query"});
    let model = changed(&folder, "bert", "config_sentence_transformers.json", &prompts);
    assert!(said(&model).contains("its default prompt \"find: \""), "{}", said(&model));
    let model = changed(&folder, "qwen3", "config_sentence_transformers.json", &prompts);
    let score = |args: &[&str]| {
        let args = [&["rerank", "--json", "-Q", "x", "-t", "y", "-m"], args].concat();
        parse(&stdout(&mut kiln(&args)))[0]["ranked"][0]["score"].as_f64().unwrap()
    };
    let plain = fixture("rerankers/qwen3").display().to_string();
    assert_eq!(score(&[&model]), score(&[&plain, "--reranker-instruction", "find: "]));
    assert!(score(&[&model]) != score(&[&plain]));
    for (key, value) in [("classifier_pooling", "max"), ("classifier_activation", "mish")] {
        let mut config = read("rerankers/modernbert/config.json");
        config[key] = value.into();
        let model = changed(&folder, "modernbert", "config.json", &config);
        assert!(said(&model).contains(&format!("{key} \"{value}\"")), "{}", said(&model));
        std::fs::remove_dir_all(model).unwrap();
    }
    let mut config = read("rerankers/qwen3/config.json");
    config["tie_word_embeddings"] = false.into();
    let model = changed(&folder, "qwen3", "config.json", &config);
    assert!(said(&model).contains("lacks lm_head.weight"), "{}", said(&model));
    // No room for two texts.
    let args =
        ["rerank", "-m", &fixture("rerankers/bert").display().to_string(), "-Q", "x", "-t", "y"];
    let said = failure(&mut kiln(&[&args[..], &["--max-pair-length", "4"]].concat()));
    assert!(said.contains("no room"), "{said}");
}

/// Qwen3-Reranker's configuration is that of a language model, and its name or model card alone say that it ranks.
#[test]
fn a_language_model_that_ranks_is_taken_for_no_embedder() {
    let folder = Folder::new();
    let card = "---\nlicense: apache-2.0\npipeline_tag: text-ranking\n---\n\n# A model\n";
    let plain = fixture("rerankers/qwen3");
    let models = [("Qwen3-Reranker-0.6B", None), ("model", Some(card))].map(|(name, card)| {
        let copy = folder.path(name);
        std::fs::create_dir(&copy).unwrap();
        for entry in std::fs::read_dir(&plain).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
        if let Some(card) = card {
            std::fs::write(copy.join("README.md"), card).unwrap();
        }
        copy.display().to_string()
    });
    let (texts, out) = (folder.texts(), folder.arg("out"));
    let vectors = folder.arg("out.npy");
    let notes = |model: &str| {
        let mut command = kiln(&["rerank", "-m", model, "-Q", "x", "-t", "y"]);
        String::from_utf8(command.assert().success().get_output().stderr.clone()).unwrap()
    };
    for model in &models {
        let args = ["embed", "-m", model, "--input", &texts, "--output", &vectors];
        let said = failure(&mut kiln(&args));
        let parts =
            ["is a reranker by its name or model card", "kiln rerank", "--pooling last_token"];
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        assert_eq!(embed(model, &folder, &["--pooling", "last_token"]).len(), TEXTS.len());
        let shown = stdout(&mut kiln(&["inspect", "-m", model]));
        assert!(shown.contains("a score of each pair"), "{shown}");
        // What is exported is a reranker by its files, whatever its name.
        kiln(&["export", "-m", model, "-o", &out]).assert().success();
        assert!(!notes(&out).contains("warning"), "{}", notes(&out));
        let args = ["embed", "-m", &out, "--input", &texts, "--output", &vectors];
        let said = failure(&mut kiln(&args));
        assert!(said.contains("is a reranker (LogitScore)"), "{said}");
        std::fs::remove_dir_all(&out).unwrap();
        let args = ["export", "-m", model, "-o", &out, "--pooling", "last_token"];
        kiln(&args).assert().success();
        std::fs::remove_dir_all(&out).unwrap();
        assert!(!notes(model).contains("warning"), "{}", notes(model));
    }
    let plain = plain.display().to_string();
    assert!(notes(&plain).contains("nothing in its files says that it ranks"), "{}", notes(&plain));
    // Its text is no setting of the card.
    std::fs::write(folder.path("model").join("README.md"), "# A\npipeline_tag: text-ranking\n")
        .unwrap();
    assert!(!embed(&models[1], &folder, &[]).is_empty());
}

/// A decoder that ranks is rounded like a cross-encoder, and is one file, with its prompt and its direction in f32.
#[test]
fn a_decoder_that_ranks_is_quantized_and_exported() {
    for name in ["qwen3", "qwen3-chat", "qwen3-one-token", "gemma"] {
        let folder = Folder::new();
        let base = folder.path("a-reranker");
        std::fs::create_dir_all(base.join("1_LogitScore")).unwrap();
        for part in ["qwen3", name] {
            for path in ["", "1_LogitScore"] {
                let Ok(files) = std::fs::read_dir(fixture("rerankers").join(part).join(path))
                else {
                    continue;
                };
                for file in files.map(Result::unwrap).filter(|file| file.path().is_file()) {
                    std::fs::copy(file.path(), base.join(path).join(file.file_name())).unwrap();
                }
            }
        }
        let base = base.display().to_string();
        let scores = |model: &str, more: &[&str]| -> Vec<f64> {
            let mut command = kiln(&["rerank", "--json", "-m", model, "-Q", "the river"]);
            TEXTS.iter().for_each(|text| {
                command.args(["-t", *text]);
            });
            let answer = parse(&stdout(command.args(more)));
            let mut found = vec![0.0; TEXTS.len()];
            for place in answer[0]["ranked"].as_array().unwrap() {
                found[place["row"].as_u64().unwrap() as usize] = place["score"].as_f64().unwrap();
            }
            found
        };
        let apart =
            |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        let full = scores(&base, &[]);
        // Logits, or what a sigmoid makes of them.
        let (rough, fine) = if name == "qwen3-one-token" { (1.0, 0.1) } else { (0.3, 0.03) };
        let (small, file) = (folder.arg("small"), folder.arg("small.kiln"));
        for (scheme, most) in [("int8:8", rough), ("int4:8", f64::MAX)] {
            let args = ["--json", "quantize", "-m", &base, "-s", scheme, "-o", &small];
            let said = parse(&stdout(kiln(&args).arg("--overwrite")));
            assert!(said["most_apart"].as_f64().unwrap() > 0.0, "{said}");
            kiln(&["--quiet", "export", "-m", &small, "-o", &file, "--overwrite"])
                .assert()
                .success();
            let rounded = scores(&small, &[]);
            assert_eq!(scores(&file, &[]), rounded, "{name} {scheme}");
            assert!(rounded != full && apart(&rounded, &full) < most, "{rounded:?} {full:?}");
            // Rounded as they are loaded, weights are those of the file.
            let loaded = scores(&base, &["--reranker-weights", scheme]);
            assert!(apart(&loaded, &rounded) < 1e-5, "{name} {scheme}: {loaded:?} {rounded:?}");
            let opened = Directory::new(&small).unwrap();
            let weights = Weights::open(&opened, "1_LogitScore/model").unwrap();
            assert_eq!(format!("{:?}", weights.tensors()["score.weight"].dtype), "F32");
        }
        let said = failure(&mut kiln(&["quantize", "-m", &small, "-o", &folder.arg("again")]));
        assert!(said.contains("is quantized already"), "{said}");
        let shown = stdout(&mut kiln(&["inspect", "-m", &file]));
        assert!(shown.contains("a score of each pair") && shown.contains("int4:8"), "{shown}");
        // In f16, with another instruction where the prompt takes one.
        kiln(&["--quiet", "export", "-m", &base, "-o", &file, "--overwrite"]).assert().success();
        assert!(apart(&scores(&file, &[]), &full) < fine, "{name}");
        let instruction = ["--reranker-instruction", "Find what is asked for"];
        if name == "qwen3-one-token" {
            let args = ["rerank", "-m", &file, "-Q", "x", "-t", "y"];
            let said = failure(&mut kiln(&[&args[..], &instruction].concat()));
            assert!(said.contains("takes no instruction"), "{said}");
        } else {
            let instructed = scores(&base, &instruction);
            assert!(instructed != full);
            assert!(apart(&scores(&file, &instruction), &instructed) < fine, "{name}");
        }
    }
}

#[test]
fn a_decoder_with_a_head_for_classes_neither_ranks_nor_embeds() {
    let folder = Folder::new();
    let text = std::fs::read_to_string(fixture("rerankers/qwen3/config.json")).unwrap();
    let mut config = parse(&text);
    config["architectures"] = json!(["Qwen3ForSequenceClassification"]);
    let model = changed(&folder, "qwen3", "config.json", &config);
    let what =
        "is a decoder with a head for sequence classification (Qwen3ForSequenceClassification)";
    let said = failure(&mut kiln(&["rerank", "-m", &model, "-Q", "x", "-t", "y"]));
    assert!(said.contains(what), "{said}");
    let (texts, out) = (folder.texts(), folder.arg("out.npy"));
    let args = ["embed", "-m", &model, "--input", &texts, "--output", &out];
    let said = failure(&mut kiln(&args));
    assert!(said.contains(what) && !said.contains("use `kiln rerank`"), "{said}");
}

#[test]
fn a_reranker_is_not_pruned() {
    let (model, ..) = reranker();
    let folder = Folder::new();
    let (texts, out) = (folder.texts(), folder.arg("out"));
    let args = ["prune", "-m", &model, "--calibration", &texts, "-o", &out];
    let said = failure(&mut kiln(&args));
    assert!(said.contains("rerankers cannot be pruned"), "{said}");
}

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
