//! Hostile clients of a server.

#![cfg(unix)]

mod access;
mod connections;
mod operation;
mod payloads;
#[path = "../cli/server.rs"]
mod server;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::Folder;
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
