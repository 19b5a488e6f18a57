//! The server's `/rerank`, beside an embedder and alone.

use serde_json::json;

use super::{reranker, sigmoid};
use crate::harness::{Folder, failure, kiln};
use crate::server::Server;

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
