//! Hostile clients of a server.

#![cfg(unix)]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use socket2::{Domain, SockRef, Socket, Type};

use crate::harness::{Folder, failure, kiln};

#[path = "../cli/server.rs"]
mod server;

use server::Server;

/// A hang is a failure; nothing here waits as long as that.
const HANG: Duration = Duration::from_secs(120);

fn tiny(folder: &Folder) -> String {
    folder.model("{ mode = 'mean' }").display().to_string()
}

/// The page's model: wide vectors and quantized tables.
fn mini() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../web-demo/kiln-mini.kiln")
}

/// What a raw client read.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body))
    }

    /// The message of an error, whose body is one line in the form of either protocol.
    fn error(&self) -> String {
        let body = self.json();
        assert_eq!(self.body.lines().count(), 1, "{}", self.body);
        let message = body["error"]["message"].as_str().or_else(|| body["error"].as_str());
        message.unwrap_or_else(|| panic!("no error: {body}")).to_string()
    }
}

impl Server {
    fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream
    }

    /// Sends bytes on a connection of its own and reads the answer, if there is one.
    fn send(&self, bytes: &[u8]) -> Option<Answer> {
        let mut stream = self.connect();
        // The server may refuse and close before it has read everything.
        let _ = stream.write_all(bytes);
        read(&mut stream)
    }

    fn post_raw(&self, path: &str, headers: &str, body: &[u8]) -> Answer {
        self.send(&request("POST", path, headers, body)).expect("an answer")
    }

    fn get(&self, path: &str, headers: &str) -> Answer {
        self.send(&request("GET", path, headers, b"")).expect("an answer")
    }

    /// Others are served as if nothing were.
    fn serves_others(&self) {
        assert_eq!(self.get("/health", LOCAL).status, 200);
        let answer = self.post_raw("/embed", JSON, br#"{"inputs": ["a river", "a ship"]}"#);
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.json().as_array().map(Vec::len), Some(2));
    }

    /// Megabytes that the process has in memory.
    fn resident(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() / 1000
    }

    fn metric(&self, name: &str) -> f64 {
        let metrics = self.get("/metrics", LOCAL).body;
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0.0, |value| value.trim().parse().unwrap())
    }
}

const LOCAL: &str = "Host: localhost\r\n";
const JSON: &str = "Host: localhost\r\nContent-Type: application/json\r\n";

fn request(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// The answer up to the end of the connection; `None` where it ends without one.
fn read(stream: &mut TcpStream) -> Option<Answer> {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert!(error.kind() != ErrorKind::WouldBlock, "the server hangs");
    }
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head: head.to_lowercase(), body: body.to_string() })
}

/// A body that asks for the vectors of so many short texts.
fn many(count: usize) -> Vec<u8> {
    let texts: Vec<String> = (0..count).map(|i| format!("{i} ships on the river {i}")).collect();
    json!({ "inputs": texts }).to_string().into_bytes()
}

#[test]
fn half_sent_bodies_hold_neither_memory_nor_the_server() {
    let folder = Folder::new();
    let more = ["--request-memory", "48000000", "--stall-timeout", "3"];
    let server = Server::start(&tiny(&folder), &more);
    let before = server.resident();
    let size = 7_900_000;
    let head = format!("POST /embed HTTP/1.1\r\n{JSON}Content-Length: {size}\r\n\r\n");
    let mut open: Vec<(TcpStream, usize)> = (0..60)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(b"{\"inputs\": \"").unwrap();
            stream.set_nonblocking(true).unwrap();
            (stream, 0)
        })
        .collect();
    // As much as the server takes, but never all of it.
    let block = [b'a'; 65_536];
    for _ in 0..20 {
        for (stream, sent) in &mut open {
            while *sent + block.len() < size - 100_000
                && let Ok(wrote) = stream.write(&block)
            {
                *sent += wrote;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 150, "{grown} MB for bodies that never end");
    server.serves_others();
    // Nothing came for too long, while others waited: they are told so, and end.
    let (mut stream, _) = open.swap_remove(0);
    stream.set_nonblocking(false).unwrap();
    let answer = read(&mut stream).expect("an answer");
    assert_eq!(answer.status, 408, "{}", answer.body);
    assert!(answer.error().contains("body"), "{}", answer.body);
    drop(open);
    // What they held is free again.
    let body = json!({ "inputs": "river ".repeat(50_000) }).to_string();
    assert_eq!(server.post_raw("/embed", JSON, body.as_bytes()).status, 200);
}

#[test]
fn slow_heads_keep_nobody_out() {
    let folder = Folder::new();
    let limits =
        ["--max-concurrent-requests", "8", "--max-connections", "40", "--header-timeout", "2"];
    let server = Server::start(&tiny(&folder), &limits);
    let mut slow: Vec<TcpStream> = (0..300)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(b"GET /health HTTP/1.1\r\nHost: local").unwrap();
            stream
        })
        .collect();
    server.serves_others();
    // The first had to go for the last; the last runs out of time.
    assert!(read(&mut slow[0]).is_none());
    assert!(read(slow.last_mut().unwrap()).is_none());
    server.serves_others();
}

#[test]
fn without_file_descriptors_a_waiting_connection_goes() {
    let folder = Folder::new();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_kiln")]);
    let server = Server::start_by(command, &tiny(&folder), &[]);
    let open: Vec<TcpStream> = (0..150).map(|_| server.connect()).collect();
    server.serves_others();
    drop(open);
}

#[test]
fn heads_without_end_garbage_and_other_protocols_are_cut_off() {
    let folder = Folder::new();
    let server = Server::start(&tiny(&folder), &["--header-timeout", "2"]);
    let before = server.resident();
    let long = format!("GET /health HTTP/1.1\r\nHost: localhost\r\nX: {}", "a".repeat(1 << 20));
    let lines = "X: a\r\n".repeat(100_000);
    let many_lines = format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n");
    let path = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(1 << 20));
    for bytes in [long.as_bytes(), many_lines.as_bytes(), path.as_bytes()] {
        // The server may have closed before all of it was written, which takes its answer away.
        if let Some(answer) = server.send(bytes) {
            assert!([400, 414, 431].contains(&answer.status), "{}", answer.head);
        }
    }
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let noise: Vec<u8> =
        (0..50_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let smuggled = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde";
    for bytes in [
        &preface[..],
        &noise,
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        b"\r\n\r\n\r\n",
        smuggled,
    ] {
        if let Some(answer) = server.send(bytes) {
            assert!((400..500).contains(&answer.status), "{}", answer.head);
        }
    }
    // Requests one behind the other, none of whose answers is read.
    let mut stream = server.connect();
    stream.set_nonblocking(true).unwrap();
    let piped = format!("GET /info HTTP/1.1\r\n{LOCAL}\r\n").repeat(1000);
    for _ in 0..200 {
        if stream.write(piped.as_bytes()).is_err() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 60, "{grown} MB");
    server.serves_others();
}

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
fn who_has_gone_is_worked_for_no_more() {
    let folder = Folder::new();
    let server = Server::start(&tiny(&folder), &["--max-batch-tokens", "64"]);
    let body = request("POST", "/embed", JSON, &many(2048));
    let open: Vec<TcpStream> = (0..12)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(&body).unwrap();
            // Closed like this, a connection is reset.
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            stream
        })
        .collect();
    while server.metric("te_request_count{method=\"embed\"}") < 12.0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(open);
    let ended = || {
        let gone = server.metric("te_request_failure{err=\"gone\"}");
        (gone, gone + server.metric("te_request_success{method=\"embed\"}"))
    };
    while ended().1 < 12.0 || server.metric("te_queue_size") > 0.0 {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(ended().0 > 0.0, "all were answered to nobody");
    server.serves_others();
}

#[test]
fn a_client_that_has_sent_all_may_close_its_side() {
    let folder = Folder::new();
    let server = Server::start(&tiny(&folder), &[]);
    let mut stream = server.connect();
    stream.write_all(&request("POST", "/embed", JSON, &many(300))).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let answer = read(&mut stream).expect("an answer");
    assert_eq!(answer.json().as_array().map(Vec::len), Some(300));
    // One that has not sent all is answered so.
    let mut stream = server.connect();
    let whole = request("POST", "/embed", JSON, &many(300));
    stream.write_all(&whole[..whole.len() - 9]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    if let Some(answer) = read(&mut stream) {
        assert_eq!(answer.status, 422, "{}", answer.body);
    }
    server.serves_others();
}

#[test]
fn answers_that_nobody_reads_give_their_memory_back() {
    // One such answer takes all the memory that there is for them.
    let more = ["--request-memory", "4000000", "--stall-timeout", "1"];
    let server = Server::start(mini(), &more);
    let before = server.resident();
    let body = request("POST", "/embed", JSON, &many(400));
    let unread: Vec<Socket> = (0..3)
        .map(|_| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_recv_buffer_size(2048).unwrap();
            let address: std::net::SocketAddr = server.address().parse().unwrap();
            socket.connect(&address.into()).unwrap();
            (&socket).write_all(&body).unwrap();
            socket
        })
        .collect();
    let answer = server.post_raw("/embed", JSON, &many(400));
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.json().as_array().map(Vec::len), Some(400));
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 250, "{grown} MB");
    drop(unread);
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

#[test]
fn limits_are_numbers_that_can_be() {
    let folder = Folder::new();
    let model = tiny(&folder);
    for flag in [
        "--max-batch-tokens",
        "--max-concurrent-requests",
        "--max-connections",
        "--max-client-batch-size",
        "--payload-limit",
        "--expanded-limit",
        "--request-memory",
        "--timeout",
        "--header-timeout",
        "--stall-timeout",
        "--dimensions",
        "--max-length",
        "--port",
    ] {
        for value in ["18446744073709551615", "99999999999999999999", "-1", "0.5", "x"] {
            let error = failure(&mut kiln(&["serve", "-m", &model, flag, value]));
            assert!(error.len() < 600, "{flag} {value}: {error}");
        }
        if flag != "--port" {
            failure(&mut kiln(&["serve", "-m", &model, flag, "0"]));
        }
    }
    for flag in ["--batch", "--connections", "--requests"] {
        for value in ["18446744073709551615", "0", "-1", "1,,2"] {
            failure(&mut kiln(&["load", "--url", "http://127.0.0.1:9", flag, value]));
        }
    }
    let few = ["--max-concurrent-requests", "9", "--max-connections", "9"];
    let error = failure(kiln(&["serve", "-m", &model]).args(few));
    assert!(error.contains("--max-connections 9"), "{error}");
}

#[test]
fn the_model_may_change_on_disk_while_it_is_served() {
    let folder = Folder::new();
    let model = folder.arg("served.kiln");
    std::fs::copy(mini(), &model).unwrap();
    let server = Server::start(&model, &[]);
    let texts = json!({ "inputs": ["the river floods the lower streets", "petals of pale blue"] });
    let (status, before) = server.post("/embed", texts.clone());
    assert_eq!(status, 200, "{before}");
    // In place, as `cp` does it; and to nothing.
    std::fs::write(&model, vec![0xff; 5_000_000]).unwrap();
    assert_eq!(server.post("/embed", texts.clone()), (200, before.clone()));
    std::fs::OpenOptions::new().write(true).open(&model).unwrap().set_len(0).unwrap();
    assert_eq!(server.post("/embed", texts), (200, before));
    server.serves_others();
}

#[test]
fn hanging_up_ends_a_server_unless_it_was_told_to_outlive_that() {
    let folder = Folder::new();
    let model = tiny(&folder);
    let mut command = Command::new("sh");
    let script = "trap '' HUP; exec \"$0\" \"$@\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_kiln")]);
    let mut server = Server::start_by(command, &model, &[]);
    for _ in 0..3 {
        server.signal("-HUP");
    }
    server.serves_others();
    assert_eq!(server.end(), Some(0));
    let mut server = Server::start(&model, &[]);
    server.signal("-HUP");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}
