//! `kiln serve` as OpenTelemetry's collectors see it.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use serde_json::{Value, json};

use crate::harness::Folder;
use crate::server::Server;

/// What a collector got: where, what it calls itself, and the bytes.
type Sent = (String, String, Bytes);

/// A collector on a free port, which answers with a status.
fn collector(status: StatusCode) -> (String, Receiver<Sent>) {
    let (sender, sent) = channel();
    let (told, address) = channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let take = move |State(sender): State<Sender<Sent>>,
                             uri: Uri,
                             headers: HeaderMap,
                             body: Bytes| async move {
                let kind = headers["content-type"].to_str().unwrap().to_string();
                let _ = sender.send((uri.path().to_string(), kind, body));
                (status, "{}")
            };
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            told.send(listener.local_addr().unwrap()).unwrap();
            axum::serve(listener, Router::new().fallback(take).with_state(sender)).await.unwrap();
        });
    });
    (format!("http://{}", address.recv().unwrap()), sent)
}

/// A server with variables in its environment.
fn server(model: &str, variables: &[(&str, &str)]) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.envs(variables.iter().copied()).env("OTEL_BSP_SCHEDULE_DELAY", "50");
    Server::start_by(command, model, &["--name", "tiny"])
}

/// The spans of what was sent until there are so many, by name, with their attributes.
fn spans(sent: &Receiver<Sent>, count: usize) -> (BTreeMap<String, Value>, Value) {
    let (mut spans, mut resource) = (BTreeMap::new(), Value::Null);
    while spans.len() < count {
        let (path, kind, body) = sent.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!((path.as_str(), kind.as_str()), ("/v1/traces", "application/json"));
        let body: Value = serde_json::from_slice(&body).unwrap();
        for one in body["resourceSpans"].as_array().unwrap() {
            resource = one["resource"]["attributes"].clone();
            for span in one["scopeSpans"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|scope| scope["spans"].as_array().unwrap())
            {
                spans.insert(span["name"].as_str().unwrap().to_string(), span.clone());
            }
        }
    }
    (spans, resource)
}

fn attribute<'a>(attributes: &'a Value, key: &str) -> &'a Value {
    let found = attributes.as_array().unwrap().iter().find(|one| one["key"] == key);
    &found.unwrap_or_else(|| panic!("{key}: {attributes}"))["value"]
}

#[test]
fn each_request_is_a_span_with_its_parts() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let (url, sent) = collector(StatusCode::OK);
    let json = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
    ];
    let server = server(&model, &json);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let status = runtime.block_on(async {
        let client = train_native::http::client().build().unwrap();
        let request = client.post(format!("{}/v1/embeddings", server.url));
        let request = request
            .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        request.json(&json!({ "input": ["one", "two words"] })).send().await.unwrap().status()
    });
    assert_eq!(status, 200);
    // Probes leave no trace.
    assert_eq!(server.ask("/readyz", None, None).0, 200);
    let (found, resource) = spans(&sent, 6);
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(names, ["POST /v1/embeddings", "inference", "queue", "read", "tokenize", "write"]);
    assert_eq!(attribute(&resource, "service.name")["stringValue"], "kiln");
    let whole = &found["POST /v1/embeddings"];
    assert_eq!(whole["parentSpanId"], "b7ad6b7169203331");
    let time = |span: &Value, key: &str| span[key].as_str().unwrap().parse::<u64>().unwrap();
    for (name, span) in &found {
        assert_eq!(span["traceId"], "0af7651916cd43dd8448eb211c80319c", "{name}");
        assert!(time(span, "startTimeUnixNano") <= time(span, "endTimeUnixNano"), "{span}");
        if name != "POST /v1/embeddings" {
            assert_eq!(span["parentSpanId"], whole["spanId"], "{name}");
            assert!(time(span, "endTimeUnixNano") <= time(whole, "endTimeUnixNano"), "{span}");
        }
    }
    assert!(
        time(&found["queue"], "endTimeUnixNano") == time(&found["inference"], "startTimeUnixNano")
    );
    let noted = &whole["attributes"];
    for (key, value) in [
        ("http.route", json!({ "stringValue": "/v1/embeddings" })),
        ("gen_ai.request.model", json!({ "stringValue": "tiny" })),
        ("http.response.status_code", json!({ "intValue": "200" })),
        ("kiln.texts", json!({ "intValue": "2" })),
    ] {
        assert_eq!(attribute(noted, key), &value);
    }
    // A refusal is one too; and what came before it had no trace of the probe.
    assert_eq!(server.post("/embed", json!({})).0, 422);
    let (mut found, _) = spans(&sent, 1);
    while !found.contains_key("POST /embed") {
        found.extend(spans(&sent, 1).0);
    }
    let noted = &found["POST /embed"]["attributes"];
    assert_eq!(attribute(noted, "http.response.status_code")["intValue"], "422");
    assert!(found.keys().all(|name| !name.contains("readyz")), "{:?}", found.keys());
}

#[cfg(unix)]
#[test]
fn traces_go_as_protobuf_unless_asked_otherwise_and_at_the_end_too() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let (url, sent) = collector(StatusCode::OK);
    let endpoint = format!("{url}/own/path");
    let variables =
        [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint.as_str()), ("OTEL_SERVICE_NAME", "shop")];
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.envs(variables).env("OTEL_BSP_SCHEDULE_DELAY", "60000");
    let mut server = Server::start_by(command, &model, &[]);
    assert_eq!(server.post("/embed", json!({ "inputs": "one" })).0, 200);
    assert_eq!(server.end(), Some(0));
    let (path, kind, body) = sent.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!((path.as_str(), kind.as_str()), ("/own/path", "application/x-protobuf"));
    for word in ["POST /embed", "tokenize", "shop"] {
        assert!(body.windows(word.len()).any(|some| some == word.as_bytes()), "{word}");
    }
}

#[test]
fn a_collector_that_is_away_costs_a_line_and_one_that_cannot_be_ends_the_start() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let log = folder.path("log");
    let mut child = Command::new(env!("CARGO_BIN_EXE_kiln"))
        .args(["--device", "cpu", "serve", "-m", &model, "--port", "0"])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        .env("OTEL_BSP_SCHEDULE_DELAY", "50")
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let line = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let line = line.map(Result::unwrap).find(|line| line.contains("http://")).unwrap();
    let url = line.split_whitespace().find(|word| word.starts_with("http://")).unwrap().to_string();
    let server = Server { child, url };
    let said = || std::fs::read_to_string(&log).unwrap();
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while !said().contains("traces are lost") {
        assert_eq!(server.post("/embed", json!({ "inputs": "one" })).0, 200);
        assert!(std::time::Instant::now() < until, "{}", said());
        std::thread::sleep(Duration::from_millis(100));
    }
    // Each failure takes some tries.
    for _ in 0..30 {
        assert_eq!(server.post("/embed", json!({ "inputs": "one" })).0, 200);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(said().matches("traces are lost").count(), 1, "{}", said());
    drop(server);

    for (name, value, word) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "4318"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4318", "no address"),
    ] {
        let error = crate::harness::failure(
            crate::harness::kiln(&["serve", "-m", &model, "--port", "0"])
                .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
                .env(name, value),
        );
        assert!(error.contains(name) && error.contains(word), "{error}");
    }
}
