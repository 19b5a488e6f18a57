//! `serve` with real clients: openai's, mteb, and ours under load.

#[cfg(unix)]
mod probes;

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Folder, failure, kiln, stdout};
use crate::server::Server;
use crate::tasks::{KINDS, minilm, mteb, write_tasks};

fn vectors(body: &Value) -> Vec<Vec<f32>> {
    let of = |entry: &Value| serde_json::from_value(entry["embedding"].clone()).unwrap();
    body["data"].as_array().unwrap().iter().map(of).collect()
}

#[test]
fn both_protocols_give_the_vectors_of_embed() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let expected = crate::harness::embed(&model, &folder, &[]);
    let texts = crate::harness::TEXTS;
    let server = Server::start(&model, &["--name", "tiny"]);
    let close = |a: &[Vec<f32>], b: &[Vec<f32>]| {
        assert_eq!(a.len(), b.len());
        a.iter().flatten().zip(b.iter().flatten()).for_each(|(a, b)| assert!((a - b).abs() < 1e-5));
    };
    let (status, body) = server.post("/v1/embeddings", json!({ "model": "x", "input": texts }));
    assert_eq!(status, 200, "{body}");
    close(&vectors(&body), &expected);
    assert_eq!((&body["model"], &body["data"][1]["index"]), (&"tiny".into(), &1.into()));
    let tokens = body["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens > texts.len() as u64 && body["usage"]["total_tokens"] == tokens, "{body}");

    let (status, body) = server.post("/embed", json!({ "inputs": texts }));
    assert_eq!(status, 200, "{body}");
    close(&serde_json::from_value::<Vec<Vec<f32>>>(body).unwrap(), &expected);
    // A named prompt, fewer dimensions.
    let told =
        crate::harness::embed(&model, &folder, &["--prompt-name", "query", "--dimensions", "4"]);
    let request = json!({ "inputs": texts, "prompt_name": "query", "dimensions": 4 });
    let (_, body) = server.post("/embed", request);
    close(&serde_json::from_value::<Vec<Vec<f32>>>(body).unwrap(), &told);

    assert!(server.url.starts_with("http://127.0.0.1:"), "loopback unless told otherwise");
    let (_, models) = server.ask("/v1/models", None, None);
    assert_eq!(models["data"][0]["id"], "tiny");
    let (_, info) = server.ask("/info", None, None);
    assert_eq!(
        (&info["model_id"], &info["max_input_length"]),
        (&"tiny".into(), &16.into()),
        "{info}"
    );
    assert_eq!(server.ask("/health", None, None).0, 200);
    let (_, metrics) = server.ask("/metrics", None, None);
    let metrics = metrics.as_str().unwrap();
    assert!(metrics.contains("te_request_count{method=\"embed\"} 2"), "{metrics}");
    assert!(
        metrics.contains("te_embed_texts 18") && metrics.contains("te_queue_size 0"),
        "{metrics}"
    );
}

#[test]
fn what_is_wrong_is_refused_and_told() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let server = Server::start(
        &model,
        &[
            "--api-key",
            "secret",
            "--max-client-batch-size",
            "3",
            "--payload-limit",
            "2000",
            "--no-truncate",
        ],
    );
    let ask = |path: &str, body: Value| server.ask(path, Some(&body), Some("secret"));
    let text = json!({ "input": "a river" });
    assert_eq!(ask("/v1/embeddings", text.clone()).0, 200);
    for key in [None, Some("wrong"), Some("secret2")] {
        let (status, body) = server.ask("/v1/embeddings", Some(&text), key);
        assert_eq!((status, &body["error"]["type"]), (401, &"authentication_error".into()));
    }
    assert_eq!(server.ask("/health", None, None).0, 200);
    assert_eq!(server.ask("/info", None, None).0, 401);

    let long = "river ".repeat(60);
    for (path, body, status, word) in [
        ("/v1/embeddings", json!({ "input": [] }), 400, "empty"),
        ("/v1/embeddings", json!({ "input": [[1, 2]] }), 400, "token"),
        ("/v1/embeddings", json!({ "inputs": "x" }), 400, "input"),
        ("/v1/embeddings", json!({ "input": "x", "dimensions": 99 }), 400, "99"),
        ("/v1/embeddings", json!({ "input": "x", "encoding_format": "hex" }), 400, "hex"),
        ("/v1/embeddings", json!({ "input": ["a", "b", "c", "d"] }), 413, "at most 3"),
        ("/v1/embeddings", json!({ "input": long }), 413, "16 tokens"),
        ("/v1/embeddings", json!({ "input": "x".repeat(3000) }), 413, "2000 bytes"),
        ("/embed", json!({ "inputs": "x", "prompt_name": "none" }), 422, "none"),
        ("/embed", json!({ "inputs": "x".repeat(3000) }), 413, "2000 bytes"),
    ] {
        let (actual, answer) = ask(path, body);
        assert_eq!(actual, status, "{path}: {answer}");
        assert!(answer.to_string().contains(word), "{word}: {answer}");
    }
    assert_eq!(ask("/embed", json!({ "inputs": long, "truncate": true })).0, 200);
    assert_eq!(ask("/nothing", json!({})).0, 404);

    let address = server.url.trim_start_matches("http://");
    let port = address.rsplit(':').next().unwrap();
    // Before minutes of loading, so that what is wrong with the model is not seen.
    let error = failure(&mut kiln(&["serve", "-m", &folder.arg("none"), "--port", port]));
    assert!(error.contains(port) && error.contains("--port"), "{error}");
}

#[test]
fn a_full_queue_refuses_and_nothing_is_lost() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let server =
        Server::start(&model, &["--max-concurrent-requests", "2", "--max-batch-tokens", "64"]);
    let texts = folder.texts();
    let args = [
        "load",
        "--json",
        "--url",
        &server.url,
        "--input",
        &texts,
        "--batch",
        "1,8",
        "--connections",
        "1,16",
        "--requests",
        "120",
    ];
    let lines: Value = serde_json::from_str(&stdout(&mut kiln(&args))).unwrap();
    let lines = lines.as_array().unwrap();
    assert_eq!(lines.len(), 4);
    for line in lines {
        assert_eq!((&line["answered"], &line["lost"]), (&120.into(), &0.into()), "{line}");
        assert!(line["p50_ms"].as_f64().unwrap() <= line["p99_ms"].as_f64().unwrap());
        if line["connections"] == 1 {
            assert_eq!(line["refused"], 0, "{line}");
        }
    }
    assert!(lines.iter().any(|line| line["refused"].as_u64() > Some(0)), "{lines:?}");
    // No batch was larger than the limit, for requests that were, either (8 texts).
    let (_, metrics) = server.ask("/metrics", None, None);
    let value = |name: &str| -> f64 {
        let line = metrics.as_str().unwrap().lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let batches = value("te_batch_next_tokens_count");
    let within = value("te_batch_next_tokens_bucket{le=\"64\"}");
    assert!(batches == within && value("te_queue_size") == 0.0, "{within} of {batches}");
    assert_eq!(value("te_request_success{method=\"openai\"}"), 481.0);
    let error = failure(&mut kiln(&["load", "--quiet", "--url", "http://127.0.0.1:9"]));
    assert!(error.contains("127.0.0.1:9"), "{error}");
}

#[test]
#[cfg(unix)]
fn what_was_accepted_is_answered_after_the_signal_to_end() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let mut server = Server::start(&model, &[]);
    let url = server.url.clone();
    let texts: Vec<String> = (0..2000).map(|i| format!("{i} ships on the river {i}")).collect();
    let sent = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = train_native::http::client().build().unwrap();
            let request = client.post(format!("{url}/embed"));
            let answer = request.json(&json!({ "inputs": texts })).send().await.unwrap();
            answer.json::<Vec<Vec<f32>>>().await.unwrap().len()
        })
    });
    // Until it has been accepted.
    let accepted = "te_request_count{method=\"embed\"} 1";
    while !server.ask("/metrics", None, None).1.as_str().unwrap().contains(accepted) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(server.end(), Some(0));
    assert_eq!(sent.join().unwrap(), 2000);
}

#[test]
fn a_request_that_takes_too_long_is_given_up() {
    let Some(model) = minilm() else { return };
    let server = Server::start(&model, &["--timeout", "1"]);
    // More than a second's work anywhere.
    let texts: Vec<String> =
        (0..1500).map(|i| format!("{i} ships on the river ").repeat(40)).collect();
    let (status, body) = server.post("/embed", json!({ "inputs": texts }));
    assert_eq!((status, &body["error_type"]), (503, &"timeout".into()), "{body}");
    assert_eq!(server.ask("/health", None, None).0, 200);
    let (_, metrics) = server.ask("/metrics", None, None);
    assert!(metrics.as_str().unwrap().contains("te_request_failure{err=\"timeout\"} 1"));
}

const CLIENT: &str = r#"
import base64, json, struct, sys
import openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="secret", max_retries=0)
texts = json.load(open(sys.argv[2]))
floats = client.embeddings.create(model="m", input=texts, encoding_format="float")
default = client.embeddings.create(model="m", input=texts)
raw = client.embeddings.with_raw_response.create(model="m", input=texts[0], encoding_format="base64")
packed = base64.b64decode(json.loads(raw.text)["data"][0]["embedding"])
short = client.embeddings.create(model="m", input=texts[0], dimensions=4, encoding_format="float")
errors = []
for call in (lambda: client.embeddings.create(model="m", input=[]),
             lambda: openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="no").embeddings.create(model="m", input="a")):
    try:
        call()
    except openai.APIStatusError as error:
        errors.append([type(error).__name__, error.status_code])
print(json.dumps({
    "floats": [entry.embedding for entry in floats.data],
    "default": [entry.embedding for entry in default.data],
    "packed": list(struct.unpack(f"<{len(packed) // 4}f", packed)),
    "short": short.data[0].embedding,
    "tokens": floats.usage.prompt_tokens,
    "models": [model.id for model in client.models.list()],
    "errors": errors,
}))
"#;

#[test]
fn the_openai_client_is_answered() {
    let Some(python) = std::env::var_os("KILN_PYTHON") else {
        eprintln!("SKIPPED: KILN_PYTHON is not set; tests/run.sh installs openai and sets it");
        return;
    };
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let expected = crate::harness::embed(&model, &folder, &[]);
    let server = Server::start(&model, &["--api-key", "secret", "--name", "model"]);
    let texts = folder.write("texts.json", serde_json::to_string(&crate::harness::TEXTS).unwrap());
    let output = Command::new(python).args(["-c", CLIENT, &server.url, &texts]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    for name in ["floats", "default"] {
        let vectors: Vec<Vec<f32>> = serde_json::from_value(found[name].clone()).unwrap();
        for (a, b) in vectors.iter().flatten().zip(expected.iter().flatten()) {
            assert!((a - b).abs() < 1e-5, "{name}");
        }
        assert_eq!(vectors.len(), expected.len());
    }
    let packed: Vec<f32> = serde_json::from_value(found["packed"].clone()).unwrap();
    assert!(
        packed.iter().zip(&expected[0]).all(|(a, b)| (a - b).abs() < 1e-5)
            && packed.len() == expected[0].len()
    );
    let short: Vec<f32> = serde_json::from_value(found["short"].clone()).unwrap();
    assert!(short.len() == 4 && (short.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
    assert!(found["tokens"].as_u64().unwrap() > 6);
    assert_eq!(found["models"][0], "model");
    assert_eq!(found["errors"], json!([["BadRequestError", 400], ["AuthenticationError", 401]]));
}

/// The real mteb, through the real openai client, against our server; and our own evaluation.
#[test]
fn mteb_over_the_server_agrees_with_eval() {
    let Some(model) = minilm() else { return };
    let folder = Folder::new();
    let (data, suite) = write_tasks(&folder);
    // mteb's older clustering, and its cross-validation where there is one split only.
    let more = [
        ("Own-sets", "clustering", "sets"),
        ("Own-folds", "classification", "classification/test.jsonl"),
    ];
    let more: String = more
        .iter()
        .map(|(name, kind, path)| {
            format!("[[task]]\nname = \"{name}\"\nkind = \"{kind}\"\npath = \"{path}\"\nsplit = \"test\"\n")
        })
        .collect();
    let suite = folder.write("all.toml", std::fs::read_to_string(suite).unwrap() + &more);
    let server = Server::start(&model, &[]);
    let Some(theirs) = mteb(&[&suite, &data, "--server", &server.url]) else { return };
    let output = folder.arg("results");
    let ours = stdout(&mut kiln(&[
        "eval",
        "--json",
        "--no-cache",
        "-m",
        &model,
        "--suite",
        &suite,
        "--data",
        &data,
        "--output",
        &output,
    ]));
    let ours: Value = serde_json::from_str(&ours).unwrap();
    let tasks = ours["tasks"].as_array().unwrap();
    assert_eq!(tasks.len(), KINDS.len() + 2);
    for task in tasks {
        let name = task["task"].as_str().unwrap();
        let mut compared = 0;
        for (measure, score) in theirs[name].as_object().unwrap() {
            if let (Some(theirs), Some(ours)) = (score.as_f64(), task["scores"][measure].as_f64()) {
                assert!((ours - theirs).abs() < 1e-3, "{name} {measure}: {ours}, mteb {theirs}");
                compared += 1;
            }
        }
        println!("{name}: {} in both, {compared} measures within 1e-3", task["main_score"]);
        let main =
            (task["main_score"].as_f64().unwrap(), theirs[name]["main_score"].as_f64().unwrap());
        assert!((main.0 - main.1).abs() < 1e-3 && compared >= 2, "{name}: {main:?}");
    }
}

/// Paths and verbs of the server's routes, as its source has them.
fn routes() -> BTreeSet<(&'static str, &'static str)> {
    let source = include_str!("../../train-native/src/serve/routes.rs");
    let route = |rest: &'static str| {
        let (path, rest) = rest.split_once("\", ").unwrap();
        (path, rest.split_once('(').unwrap().0)
    };
    source.split(".route(\"").skip(1).map(route).collect()
}

#[test]
fn the_document_names_every_route_and_what_the_model_takes() {
    let (reranker, folder) =
        (concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/rerankers/bert"), Folder::new());
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let server = Server::start(
        &model,
        &["--reranker", reranker, "--max-client-batch-size", "7", "--api-key", "secret"],
    );
    let (status, document) = server.ask("/openapi.json", None, None);
    assert_eq!(status, 200, "{document}");
    let paths = document["paths"].as_object().unwrap();
    let documented: BTreeSet<(&str, &str)> = paths
        .iter()
        .flat_map(|(path, verbs)| {
            verbs.as_object().unwrap().keys().map(move |verb| (path.as_str(), verb.as_str()))
        })
        .collect();
    let mut served = routes();
    // The document does not describe itself, nor the page that shows it.
    for path in ["/openapi.json", "/docs"] {
        assert!(served.remove(&(path, "get")), "{path}");
    }
    assert_eq!(documented, served);
    for (path, verb) in documented {
        let route = &document["paths"][path][verb];
        assert!(route["responses"]["200"].is_object(), "{path}: {document}");
        // What the document says of the key is so.
        let asks = !route["security"].is_null();
        let (status, _) = match verb {
            "get" => server.ask(path, None, None),
            _ => server.ask(path, Some(&json!({})), None),
        };
        assert_eq!(status == 401, asks, "{path}: {status}");
    }
    let schemas = &document["components"]["schemas"];
    assert_eq!(schemas["Texts"]["oneOf"][1]["maxItems"], 7, "{schemas}");
    let (_, info) = server.ask("/info", None, Some("secret"));
    assert_eq!(schemas["TeiBody"]["properties"]["dimensions"]["maximum"], info["dimensions"]);
    let prompts = schemas["TeiBody"]["properties"]["prompt_name"]["enum"].as_array().unwrap();
    assert!(prompts.contains(&json!("query")), "{prompts:?}");
    let (status, page) = server.ask("/docs", None, None);
    assert_eq!(status, 200);
    assert!(page.as_str().unwrap().contains("openapi.json"));

    let bare = Server::start(&model, &[]);
    let (_, document) = bare.ask("/openapi.json", None, None);
    for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
        assert!(document["paths"][path].is_null(), "{path}");
    }
    assert!(document["paths"]["/embed"]["post"]["security"].is_null());
}

#[test]
fn several_models_answer_by_their_names() {
    let folder = Folder::new();
    let first = folder.model("{ mode = 'mean' }").display().to_string();
    let other = Folder::new();
    let second = other.path("second").display().to_string();
    std::fs::rename(other.model("{ mode = 'cls' }"), &second).unwrap();
    let server = Server::start(&first, &["--also", &second, "--name", "first"]);
    let (_, models) = server.ask("/v1/models", None, None);
    let names: Vec<&str> =
        models["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["first", "second"]);
    let ask = |model: Value| {
        server.post("/v1/embeddings", json!({"input": "the river floods", "model": model}))
    };
    for (name, folder) in [("first", &first), ("second", &second)] {
        let alone = Server::start(folder, &[]);
        let (_, expected) = alone.post("/v1/embeddings", json!({"input": "the river floods"}));
        let (status, found) = ask(name.into());
        assert_eq!((status, &found["model"]), (200, &json!(name)));
        assert_eq!(vectors(&found), vectors(&expected));
        // What a client calls the only model does not matter.
        let (status, _) = alone.post("/v1/embeddings", json!({"input": "a", "model": "any"}));
        assert_eq!(status, 200);
    }
    assert_eq!(ask(Value::Null).1["model"], "first");
    let (status, refused) = ask("third".into());
    assert_eq!(status, 404, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("first, second"), "{refused}");
    let twice = failure(&mut kiln(&["serve", "-m", &first, "--also", &first]));
    assert!(twice.contains("two models would answer"), "{twice}");
}
