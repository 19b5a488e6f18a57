//! What those see who look after a server: while its models are loaded, and while it ends.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::Folder;
use crate::hub::Hub;
use crate::server::Server;

/// What comes later has failed.
const PATIENCE: Duration = Duration::from_secs(60);
const EMBED: &str = r#"{"inputs": "the river floods"}"#;

/// The bytes of a request; one with a body is posted.
fn request(path: &str, body: &str) -> String {
    let verb = if body.is_empty() { "GET" } else { "POST" };
    let length = body.len();
    format!(
        "{verb} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

/// Status, head in lower case, and body.
struct Answer(u16, String, String);

impl Answer {
    fn read(stream: &mut TcpStream) -> Option<Self> {
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(Self(status, head.to_lowercase(), body.to_string()))
    }

    /// A refusal for the time being: one line of JSON, whose message this is, and when to come back.
    fn refusal(&self) -> String {
        let Self(status, head, body) = self;
        assert_eq!(*status, 503, "{head}\n{body}");
        assert!(head.contains("retry-after: 1") && body.lines().count() == 1, "{head}\n{body}");
        let body: Value = serde_json::from_str(body).unwrap();
        let message = body["error"]["message"].as_str().or_else(|| body["error"].as_str());
        message.unwrap_or_else(|| panic!("no error: {body}")).to_string()
    }
}

/// The answer on a connection of its own; `None` where nobody listens.
fn ask(address: &str, path: &str, body: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(request(path, body).as_bytes()).ok()?;
    Answer::read(&mut stream)
}

/// What `look` finds, looked for until it does.
fn wait<T>(look: impl Fn() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "nothing came within {PATIENCE:?}");
        sleep(Duration::from_millis(10));
    }
}

/// Lets through whoever waits at the gate.
fn open(gate: TcpListener, to: String) {
    spawn(move || {
        for mut from in gate.incoming().map_while(Result::ok) {
            let mut there = TcpStream::connect(&to).unwrap();
            let (mut back, mut here) = (there.try_clone().unwrap(), from.try_clone().unwrap());
            spawn(move || std::io::copy(&mut back, &mut here));
            spawn(move || std::io::copy(&mut from, &mut there));
        }
    });
}

#[test]
fn it_lives_and_is_not_ready_while_its_model_is_loaded() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }");
    std::fs::create_dir_all(folder.path("hub/someone")).unwrap();
    std::fs::rename(&model, folder.path("hub/someone/slow")).unwrap();
    let Some(hub) = Hub::start(&folder) else { return };
    // The Hub takes as long as the test wants: who connects is not answered until the gate opens.
    let gate = TcpListener::bind("127.0.0.1:0").unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (address, port) = (free.to_string(), free.port().to_string());
    let mut child = Command::new(env!("CARGO_BIN_EXE_kiln"))
        .args(["--device", "cpu", "--json", "--quiet", "serve", "-m", "someone/slow"])
        .args(["--port", &port])
        .env("HF_ENDPOINT", format!("http://{}", gate.local_addr().unwrap()))
        .env("HF_HOME", folder.arg("cache"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
    let server = Server { child, url: format!("http://{address}") };

    let Answer(live, ..) = wait(|| ask(&address, "/livez", ""));
    assert_eq!(live, 200);
    for (path, body) in [
        ("/readyz", ""),
        ("/health", ""),
        ("/info", ""),
        ("/embed", EMBED),
        ("/v1/embeddings", r#"{"input": "the river floods"}"#),
    ] {
        let message = ask(&address, path, body).unwrap().refusal();
        assert!(message.contains("being loaded"), "{path}: {message}");
    }
    let Answer(counts, ..) = ask(&address, "/metrics", "").unwrap();
    assert_eq!(counts, 200);

    open(gate, hub.endpoint.trim_start_matches("http://").to_string());
    // What it prints comes when requests are taken, and no sooner.
    let line: Value = serde_json::from_str(&printed.next().unwrap().unwrap()).unwrap();
    assert_eq!(line["url"], json!(server.url));
    for (path, body) in [("/livez", ""), ("/readyz", ""), ("/health", ""), ("/embed", EMBED)] {
        let Answer(status, _, said) = ask(&address, path, body).unwrap();
        assert_eq!(status, 200, "{path}: {said}");
    }
}

#[test]
fn it_lives_and_is_not_ready_while_it_answers_what_it_accepted() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let mut server = Server::start(&model, &["--stall-timeout", "60"]);
    let address = server.url.trim_start_matches("http://").to_string();
    // A request that was accepted, and lasts as long as the test wants: the end of its body is still to come.
    let whole = request("/embed", EMBED);
    let (begin, end) = whole.split_at(whole.len() - 10);
    let mut accepted = TcpStream::connect(&address).unwrap();
    accepted.write_all(begin.as_bytes()).unwrap();
    let counted = "te_request_count{method=\"embed\"} 1";
    wait(|| ask(&address, "/metrics", "")?.2.contains(counted).then_some(()));
    server.signal("-TERM");
    // It hears of it in a moment.
    let refused = wait(|| ask(&address, "/embed", EMBED).filter(|answer| answer.0 == 503));
    assert!(refused.refusal().contains("the server ends"), "{}", refused.2);
    for (path, status) in [("/livez", 200), ("/metrics", 200), ("/readyz", 503), ("/health", 503)] {
        let answer = ask(&address, path, "").unwrap();
        assert_eq!(answer.0, status, "{path}: {}", answer.2);
        if status == 503 {
            assert!(answer.refusal().contains("the server ends"), "{path}: {}", answer.2);
        }
    }
    accepted.write_all(end.as_bytes()).unwrap();
    let Answer(status, _, said) = Answer::read(&mut accepted).unwrap();
    assert_eq!(status, 200, "{said}");
    drop(accepted);
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    assert!(ask(&address, "/livez", "").is_none());
}
