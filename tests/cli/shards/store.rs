//! An object store that the tests ask beside the command, and a WebDAV server.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{HeaderMap, Method, StatusCode, Uri};

/// An S3 server on loopback (moto, from PyPI), ended with the test.
pub(super) struct Store {
    child: Child,
    pub(super) endpoint: String,
    runtime: tokio::runtime::Runtime,
    client: reqwest::Client,
}

impl Store {
    pub(super) fn start() -> Option<Self> {
        let Some(program) = std::env::var_os("KILN_S3") else {
            eprintln!(
                "SKIPPED: KILN_S3 is not set; tests/run.sh installs an S3 server and sets it"
            );
            return None;
        };
        // A port that is free now.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(program)
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            // As small as the tests' parts.
            .env("S3_UPLOAD_PART_MIN_SIZE", "1024")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let endpoint = format!("http://127.0.0.1:{port}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // No connection is kept that the server may close meanwhile.
        let client = train_native::http::client().pool_max_idle_per_host(0).build().unwrap();
        let store = Self { child, endpoint, runtime, client };
        let start = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(120), "the S3 server does not start");
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(store)
    }

    /// What object_store reads from the environment.
    pub(super) fn variables(&self) -> [(&'static str, &str); 6] {
        [
            ("KILN_UPLOAD_PART", "2048"),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ENDPOINT", &self.endpoint),
            ("AWS_ALLOW_HTTP", "true"),
        ]
    }

    /// An object or a listing, or where there is a body, what the store says of putting it there.
    pub(super) fn ask(&self, path: &str, body: Option<Vec<u8>>) -> Vec<u8> {
        let (status, answer) = self.runtime.block_on(async {
            let address = format!("{}/{path}", self.endpoint);
            let request = match body {
                Some(body) => self.client.put(address).body(body),
                None => self.client.get(address),
            };
            // moto asks for a signature's form alone.
            let signed = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
            let answer = request.header("Authorization", signed).send().await.unwrap();
            (answer.status().as_u16(), answer.bytes().await.unwrap().to_vec())
        });
        assert_eq!(status, 200, "{path}: {}", String::from_utf8_lossy(&answer));
        answer
    }

    pub(super) fn put(&self, path: &str, body: impl Into<Vec<u8>>) {
        self.ask(path, Some(body.into()));
    }

    /// What a listing has between some tags.
    fn listed(&self, path: &str, tag: &str) -> Vec<String> {
        let listing = String::from_utf8(self.ask(path, None)).unwrap();
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        let parts = listing.split(&open).skip(1).filter_map(|rest| rest.split(&close).next());
        parts.map(String::from).collect()
    }

    /// Names of the objects below a prefix.
    pub(super) fn keys(&self, bucket: &str, prefix: &str) -> Vec<String> {
        self.listed(&format!("{bucket}?list-type=2&prefix={prefix}/"), "Key")
    }

    /// What the store says of their content: of one that came in parts with their number.
    pub(super) fn tags(&self, bucket: &str, prefix: &str) -> Vec<String> {
        self.listed(&format!("{bucket}?list-type=2&prefix={prefix}/"), "ETag")
    }

    /// Uploads that have begun and not ended.
    pub(super) fn uploads(&self, bucket: &str) -> BTreeSet<String> {
        self.listed(&format!("{bucket}?uploads"), "UploadId").into_iter().collect()
    }

    /// Objects below a prefix with their bytes.
    pub(super) fn objects(&self, bucket: &str, prefix: &str) -> BTreeMap<String, Vec<u8>> {
        let keys = self.keys(bucket, prefix).into_iter();
        keys.map(|key| (key.clone(), self.ask(&format!("{bucket}/{key}"), None))).collect()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address of a WebDAV server with files by their paths, which is there as long as the tests are.
pub(super) fn webdav(files: BTreeMap<String, Vec<u8>>) -> String {
    let (told, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let files = Arc::new(files);
            let answer = move |method: Method, uri: Uri, headers: HeaderMap| {
                let answer = match method.as_str() {
                    "PROPFIND" => listing(&files, uri.path(), headers["depth"] == "1"),
                    _ => files.get(uri.path()).map(|bytes| (StatusCode::OK, bytes.clone())),
                };
                async move { answer.ok_or(StatusCode::NOT_FOUND) }
            };
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            told.send(listener.local_addr().unwrap()).unwrap();
            axum::serve(listener, Router::new().fallback(answer)).await.unwrap();
        });
    });
    format!("http://{}", address.recv().unwrap())
}

/// What a folder has, by paths from the server's root.
fn listing(
    files: &BTreeMap<String, Vec<u8>>,
    folder: &str,
    is_flat: bool,
) -> Option<(StatusCode, Vec<u8>)> {
    let folder = format!("{}/", folder.trim_end_matches('/'));
    let mut found = String::new();
    for (path, bytes) in files {
        let Some(name) = path.strip_prefix(&folder) else { continue };
        if is_flat && name.contains('/') {
            continue;
        }
        let (date, size) = ("Mon, 30 Nov 2026 00:00:00 GMT", bytes.len());
        write!(
            found,
            "<response><href>{path}</href><propstat><prop><getlastmodified>{date}</getlastmodified>\
             <getcontentlength>{size}</getcontentlength><resourcetype/></prop><status>HTTP/1.1 200 OK</status>\
             </propstat></response>"
        )
        .unwrap();
    }
    let body = format!("<multistatus xmlns=\"DAV:\">{found}</multistatus>").into_bytes();
    (!found.is_empty()).then_some((StatusCode::MULTI_STATUS, body))
}
