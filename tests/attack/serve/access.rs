//! Access: the hosts and origins of web pages, and keys.

use std::io::Write as _;

use super::server::Server;
use super::{JSON, LOCAL, read, request, tiny};
use crate::harness::{Folder, failure, kiln};

#[test]
fn web_pages_reach_no_server_that_does_not_let_them() {
    let folder = Folder::new();
    let model = tiny(&folder);
    let text = br#"{"inputs": "a"}"#;
    let json = "Content-Type: application/json\r\n";
    let post = |server: &Server, headers: &str| {
        let answer = server.post_raw("/embed", headers, text);
        if answer.status != 200 {
            answer.error();
        }
        answer.status
    };

    let server = Server::start(&model, &[]);
    let port = server.address().rsplit(':').next().unwrap().to_string();
    for (host, status) in [
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:8080", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
        ("a b", 403),
    ] {
        assert_eq!(post(&server, &format!("Host: {host}\r\n{json}")), status, "{host}");
        let health = server.get("/health", &format!("Host: {host}\r\n"));
        assert_eq!(health.status, status, "{host}");
    }
    assert_eq!(post(&server, &format!("Host: localhost\r\nHost: evil.example\r\n{json}")), 403);
    let absolute = format!(
        "POST http://evil.example/embed HTTP/1.1\r\n{JSON}Content-Length: 15\r\nConnection: close\r\n\r\n"
    );
    let absolute = [absolute.as_bytes(), text].concat();
    assert_eq!(server.send(&absolute).map(|answer| answer.status), Some(403));

    let own = format!("Host: localhost:{port}\r\n{json}");
    for (origin, status) in [
        (format!("http://localhost:{port}"), 200),
        ("http://evil.example".into(), 403),
        ("null".into(), 403),
        ("http://localhost:1".into(), 403),
    ] {
        assert_eq!(post(&server, &format!("{own}Origin: {origin}\r\n")), status, "{origin}");
    }
    // What a page can send without asking is not taken.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""] {
        let status = post(&server, &format!("{LOCAL}Content-Type: {kind}\r\n"));
        assert_eq!(status, 415, "{kind}");
    }
    assert_eq!(post(&server, LOCAL), 415);
    assert_eq!(
        post(&server, &format!("{LOCAL}Content-Type: Application/JSON; charset=utf-8\r\n")),
        200
    );
    let refused = server.post_raw("/v1/embeddings", "Host: evil.example\r\n", b"{}");
    assert_eq!(refused.json()["error"]["type"], "permission_error");
    drop(server);

    let more = ["--allow-host", "box.example", "--allow-origin", "https://page.example"];
    let server = Server::start(&model, &more);
    let page = "Host: box.example:80\r\nOrigin: https://page.example\r\n";
    let answer = server.post_raw("/embed", &format!("{page}{json}"), text);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(
        answer.head.contains("access-control-allow-origin: https://page.example"),
        "{}",
        answer.head
    );
    let asks = "Access-Control-Request-Method: POST\r\n\
                Access-Control-Request-Headers: authorization,content-type,x-stainless-os\r\n";
    let answer = server.send(&request("OPTIONS", "/embed", &format!("{page}{asks}"), b"")).unwrap();
    assert!(
        answer.status == 200
            && answer.head.contains("access-control-allow-origin: https://page.example")
            && answer.head.contains(
                "access-control-allow-headers: authorization,content-type,x-stainless-os"
            ),
        "{}",
        answer.head
    );
    let other = format!("{LOCAL}Origin: https://other.example\r\n{asks}");
    let answer = server.send(&request("OPTIONS", "/embed", &other, b"")).unwrap();
    assert_eq!(answer.status, 403);
    assert!(!answer.head.contains("access-control-allow-origin"), "{}", answer.head);
}

#[test]
fn keys_are_such_as_clients_can_send_and_are_asked_for_before_the_body() {
    let folder = Folder::new();
    let model = tiny(&folder);
    for key in ["", " secret", "secret ", "sec\nret", "sécret", "\u{7f}"] {
        let error = failure(&mut kiln(&["serve", "-m", &model, "--port", "0", "--api-key", key]));
        assert!(error.contains("--api-key"), "{key:?}: {error}");
        let error = failure(&mut kiln(&["load", "--api-key", key, "--url", "http://127.0.0.1:9"]));
        assert!(error.contains("--api-key"), "{key:?}: {error}");
    }
    let server = Server::start(&model, &["--api-key", "my secret", "--stall-timeout", "60"]);
    let with = |key: &str| format!("{JSON}Authorization: {key}\r\n");
    for (key, status) in [
        ("Bearer my secret", 200),
        ("bearer my secret", 200),
        ("Bearer my secre", 401),
        ("Bearer my secretx", 401),
        ("Bearer", 401),
        ("Basic my secret", 401),
        ("", 401),
    ] {
        let answer = server.post_raw("/embed", &with(key), br#"{"inputs": "a"}"#);
        assert_eq!(answer.status, status, "{key:?}: {}", answer.body);
    }
    // Nothing of the body is there yet, and its length is too much, but the key comes first.
    let mut stream = server.connect();
    let head = format!("POST /embed HTTP/1.1\r\n{JSON}Content-Length: 99999999\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(read(&mut stream).map(|answer| answer.status), Some(401));
    // Who is too large is told so while still sending.
    let body = vec![b' '; 9_000_000];
    assert_eq!(server.post_raw("/embed", &with("Bearer my secret"), &body).status, 413);
}
