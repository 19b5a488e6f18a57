//! Payloads: large texts, many texts, and bodies that are no requests.

use serde_json::json;

use super::server::Server;
use super::{JSON, LOCAL, many, tiny};
use crate::harness::Folder;

#[test]
fn one_text_of_all_bytes_takes_the_memory_of_its_body() {
    let folder = Folder::new();
    let server = Server::start(&tiny(&folder), &[]);
    let before = server.resident();
    for part in ["a", "river ", "蜂", "\\n", "\u{1F6A2}", "a\u{301}"] {
        let text = part.repeat(7_900_000 / part.len());
        let answer =
            server.post_raw("/embed", JSON, format!("{{\"inputs\": \"{text}\"}}").as_bytes());
        // Taken as far as it is kept, or refused where nobody knows how far that is.
        assert!([200, 422].contains(&answer.status), "{part:?}: {}", answer.body);
    }
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 250, "{grown} MB");
    server.serves_others();
}

#[test]
fn a_prompt_counts_with_every_text_and_before_any_work() {
    let folder = Folder::new();
    let server = Server::start(&tiny(&folder), &["--timeout", "5"]);
    let prompt = "river ".repeat(20_000);
    let body = json!({ "input": vec!["a"; 2048], "prompt": prompt }).to_string();
    let answer = server.post_raw("/v1/embeddings", JSON, body.as_bytes());
    assert_eq!(answer.status, 413, "{}", answer.body);
    assert!(answer.error().contains("each with its prompt; at most 16000000"), "{}", answer.body);
    assert_eq!(server.metric("te_embed_texts"), 0.0);
    // Within the limit, it is over when its time is.
    let prompt = &prompt[..7000];
    let body = json!({ "input": vec!["a"; 2048], "prompt": prompt }).to_string();
    let status = server.post_raw("/v1/embeddings", JSON, body.as_bytes()).status;
    assert!([200, 503].contains(&status), "{status}");
    server.serves_others();
}

#[test]
fn large_requests_take_turns_with_small_ones() {
    let folder = Folder::new();
    let limits = ["--max-batch-tokens", "512", "--max-concurrent-requests", "16"];
    let server = Server::start(&tiny(&folder), &limits);
    let body = many(2048);
    std::thread::scope(|scope| {
        let large: Vec<_> =
            (0..6).map(|_| scope.spawn(|| server.post_raw("/embed", JSON, &body))).collect();
        while !large.iter().all(|large| large.is_finished()) {
            server.serves_others();
        }
        for large in large {
            let answer = large.join().unwrap();
            assert_eq!(answer.status, 200, "{}", answer.body);
            assert_eq!(answer.json().as_array().map(Vec::len), Some(2048));
        }
    });
    // No turn was larger than it may be, for a single request neither.
    let turns = server.metric("te_batch_next_tokens_count");
    assert_eq!(server.metric("te_batch_next_tokens_bucket{le=\"512\"}"), turns);
    assert!(turns > 100.0, "{turns}");
}

#[test]
fn bodies_that_are_no_requests_cost_their_size_and_one_line() {
    let folder = Folder::new();
    let server = Server::start(&tiny(&folder), &[]);
    let before = server.resident();
    let big = |part: &str, close: &str| {
        format!("{{\"input\": [{}{close}", part.repeat(7_000_000 / part.len())).into_bytes()
    };
    let nested = format!("{{\"x\": {}", "[".repeat(1_000_000)).into_bytes();
    let objects = format!("{{\"input\": {}", "{\"a\":".repeat(1_000_000)).into_bytes();
    let keys: String = (0..300_000).map(|i| format!("\"k{i}\":[],")).collect();
    let keys = format!("{{{keys}\"input\": \"a\"}}").into_bytes();
    let variant = format!("{{\"input\": \"a\", \"encoding_format\": \"{}\"}}", "\u{1b}".repeat(99));
    let prompt = format!("{{\"input\": \"a\", \"prompt_name\": \"{}\"}}", "é".repeat(1_000_000));
    let cases: &[(&[u8], u16)] = &[
        (&big("\"\",", "\"\"]}"), 413),
        (&big("1,", "1]}"), 400),
        (&big("[],", "[]]}"), 400),
        (&nested, 400),
        (&objects, 400),
        (&keys, 200),
        (variant.as_bytes(), 400),
        (prompt.as_bytes(), 400),
        (b"", 400),
        (b"null", 400),
        (b"[\"a\"]", 400),
        (b"{\"input\": \"\\ud800\"}", 400),
        (b"{\"input\": \"\xff\xfe\"}", 400),
        (b"{\"input\": \"a\\u0000b\"}", 200),
        (b"{\"input\": [\"\", \"\\u0000\"]}", 200),
        (b"{\"input\": \"a\", \"input\": \"b\"}", 400),
        (b"{\"input\": \"a\", \"dimensions\": 0}", 400),
        (b"{\"input\": \"a\", \"dimensions\": 99999999999}", 400),
        (b"{\"input\": \"a\", \"dimensions\": 18446744073709551616}", 400),
        (b"{\"input\": \"a\", \"dimensions\": -1}", 400),
        (b"{\"input\": \"a\", \"encoding_format\": null}", 200),
        (b"{\"input\": \"a\", \"encoding_format\": [1]}", 400),
        (b"{\"input\": [[1, 2, 3]]}", 400),
        (b"{\"input\": []}", 400),
        (b"{\"inputs\": \"a\"}", 400),
    ];
    for (body, status) in cases {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]);
        let answer = server.post_raw("/v1/embeddings", JSON, body);
        assert_eq!(answer.status, *status, "{shown}: {}", answer.body);
        if *status != 200 {
            let error = answer.error();
            assert!(error.len() < 700 && !error.contains(char::is_control), "{shown}: {error}");
        }
        // The other protocol says so in its own form.
        let other = server.post_raw("/embed", JSON, body);
        assert!([200, 413, 422].contains(&other.status), "{shown}: {}", other.body);
    }
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 150, "{grown} MB");
    // What clients say never becomes a name in the metrics.
    let metrics = server.get("/metrics", LOCAL).body;
    let failures: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("te_request_failure{")).collect();
    assert!(failures.iter().all(|line| line.contains("\"validation\"")), "{failures:?}");
    server.serves_others();
}
