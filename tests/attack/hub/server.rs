//! A Hub that does as it is told: answers whatever a test wants, and writes down what it was asked.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha1::{Digest as _, Sha1};

/// The commit that an honest Hub is at.
pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The id of the repository.
pub(super) const ID: &str = "someone/model";

/// What was asked.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) body: Vec<u8>,
    headers: Vec<(String, String)>,
}

impl Request {
    fn read(reader: &mut impl std::io::BufRead) -> Option<Self> {
        let mut lines = reader.by_ref().lines().map_while(Result::ok);
        let first = lines.next()?;
        let mut words = first.split(' ');
        let (method, path) = (words.next()?.into(), words.next()?.into());
        let headers = lines.take_while(|line| !line.is_empty()).filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_lowercase(), value.trim().to_string()))
        });
        let headers = headers.collect();
        let mut request = Self { method, path, body: Vec::new(), headers };
        let length = request.header("content-length").map_or(0, |text| text.parse().unwrap());
        reader.take(length).read_to_end(&mut request.body).ok()?;
        Some(request)
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// Where the wanted part of the file begins.
    pub(super) fn range(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }

    pub(super) fn is_get(&self) -> bool {
        self.method == "GET"
    }

    /// The file that is asked for.
    pub(super) fn file(&self) -> Option<&str> {
        self.path.split_once("/resolve/")?.1.split_once('/').map(|(_, file)| file)
    }
}

/// What comes after the body.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Then {
    Close,
    /// Bytes for as long as somebody takes them.
    Endless,
    /// Nothing, and the connection stays open.
    Silence,
}

#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    pub(super) then: Then,
}

impl Reply {
    pub(super) fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), then: Then::Close }
    }

    pub(super) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.retain(|(own, _)| !own.eq_ignore_ascii_case(name));
        self.headers.push((name.into(), value.to_string()));
        self
    }

    pub(super) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(own, _)| !own.eq_ignore_ascii_case(name));
        self
    }

    pub(super) fn body(self, body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref().to_vec();
        Self { body, ..self }.measured()
    }

    /// With the length of its body.
    fn measured(self) -> Self {
        let length = self.body.len();
        self.with("Content-Length", length)
    }

    /// Breaks off after some bytes.
    pub(super) fn cut(mut self, length: usize) -> Self {
        self.body.truncate(length);
        self
    }

    pub(super) fn then(self, then: Then) -> Self {
        Self { then, ..self }
    }

    fn write(&self, request: &Request, stream: &mut TcpStream) -> std::io::Result<()> {
        let mut head = format!("HTTP/1.1 {} x\r\nConnection: close\r\n", self.status);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        stream.write_all(format!("{head}\r\n").as_bytes())?;
        if request.method == "HEAD" {
            return Ok(());
        }
        stream.write_all(&self.body)?;
        match self.then {
            Then::Close => Ok(()),
            Then::Endless => loop {
                stream.write_all(&[b' '; 1 << 16])?;
            },
            Then::Silence => stream.read(&mut [0]).map(drop),
        }
    }
}

/// A server on loopback for as long as the test runs.
pub(super) struct Server {
    pub(super) address: String,
    log: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub(super) fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (kept, answer) = (log.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (log, answer) = (kept.clone(), answer.clone());
                std::thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    let Some(request) = Request::read(&mut reader) else { return };
                    log.lock().unwrap().push(request.clone());
                    // Who is written to may have gone.
                    let _ = answer(&request).write(&request, &mut stream);
                });
            }
        });
        Self { address, log }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.log.lock().unwrap().clone()
    }

    /// Requests for a file's content.
    pub(super) fn gets(&self, file: &str) -> Vec<Request> {
        let wanted = |request: &Request| request.is_get() && request.file() == Some(file);
        self.requests().into_iter().filter(wanted).collect()
    }
}

pub(super) fn sha256(content: &[u8]) -> String {
    hexadecimal(&<sha2::Sha256 as sha2::Digest>::digest(content))
}

/// As git names a file.
pub(super) fn git(content: &[u8]) -> String {
    let mut sum = Sha1::new();
    sum.update(format!("blob {}\0", content.len()));
    sum.update(content);
    hexadecimal(&sum.finalize())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The files of a repository, and how an honest Hub answers for them.
#[derive(Clone)]
pub(super) struct Files(pub(super) BTreeMap<String, Vec<u8>>);

impl Files {
    /// All below a folder.
    pub(super) fn of(folder: &Path) -> Self {
        let names = train_native::text::names_below(folder).unwrap();
        let read = |name: String| {
            let content = std::fs::read(folder.join(&name)).unwrap();
            (name, content)
        };
        Self(names.into_iter().map(read).collect())
    }

    pub(super) fn with(mut self, name: &str, content: impl AsRef<[u8]>) -> Self {
        self.0.insert(name.into(), content.as_ref().to_vec());
        self
    }

    /// As a mirror answers that says nothing of the repository but its name: with sums, lengths and
    /// ranges.
    pub(super) fn answer(&self, request: &Request) -> Reply {
        if request.path.starts_with("/api/models/") {
            return Reply::new(200).body(serde_json::json!({ "id": ID }).to_string());
        }
        let Some(name) = request.file() else { return Reply::new(404).body("") };
        let Some(content) = self.0.get(name) else {
            return Reply::new(404).with("X-Error-Code", "EntryNotFound").body("");
        };
        let reply = match request.range() {
            Some(from) => {
                let range = format!("bytes {from}-{}/{}", content.len() - 1, content.len());
                Reply::new(206).with("Content-Range", range).body(&content[from..])
            }
            None => Reply::new(200).body(content),
        };
        let reply = reply.with("X-Repo-Commit", COMMIT);
        match name.ends_with(".safetensors") {
            true => reply
                .with("X-Linked-Etag", format!("\"{}\"", sha256(content)))
                .with("X-Linked-Size", content.len()),
            false => reply.with("ETag", format!("\"{}\"", git(content))),
        }
    }
}
