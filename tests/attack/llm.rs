//! A hostile or broken language model behind `kiln synthesize`: nothing is lost, nothing is asked twice, nothing
//! hangs, and the key goes nowhere.

mod capabilities;
mod completions;
mod credentials;
mod injection;
mod load;
mod rate_limits;
mod retries;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::chat::{Reply, Request, answer, no_key_below, no_key_in, synthesize};
use crate::harness::{Folder, kiln};

type Lie = fn(&Request) -> Reply;
type Behaviour = Box<dyn Fn(&Request) -> Reply + Send + Sync>;

/// What a command said, and how long it took. Wherever it ends: no key, no panic, no escape sequence, and at
/// most one line of error.
struct Said {
    code: Option<i32>,
    out: String,
    error: String,
    time: Duration,
}

fn run(url: &str, folder: &Folder, more: &[&str]) -> Said {
    let begun = Instant::now();
    let mut command = synthesize(url, folder, more);
    let output = command.timeout(Duration::from_secs(120)).output().unwrap();
    no_key_in(&output.stdout, "standard output");
    no_key_in(&output.stderr, "standard error");
    if folder.path("out").exists() {
        no_key_below(&folder.path("out"));
    }
    let [out, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(!error.contains("panicked") && !error.contains("internal failure"), "{error}");
    assert!(!(out.clone() + &error).contains('\u{1b}'), "{out}{error}");
    assert!(error.trim_end().lines().count() <= 1 && error.len() < 2000, "{error}");
    Said { code: output.status.code(), out, error, time: begun.elapsed() }
}

/// Questions that are rows at once.
const STS: [&str; 2] = ["--types", "sts"];

/// A part of a stream.
fn event(content: &str, finish: Option<&str>) -> String {
    let choice = json!({"index": 0, "delta": {"content": content}, "finish_reason": finish});
    format!("data: {}\n\n", json!({"choices": [choice]}))
}

/// A good answer as a stream that nobody asked for.
fn stream(request: &Request) -> String {
    let text = answer(request).to_string();
    let at = text.char_indices().nth(9).unwrap().0;
    event(&text[..at], None)
        + &event(&text[at..], None)
        + &event("", Some("stop"))
        + "data: [DONE]\n\n"
}

/// Runs the cases side by side, a few at a time: most of their time is waiting.
fn each<T: Sync>(cases: &[T], test: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let worker = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            test(case);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..6).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn files_of_endpoints_are_read_with_care() {
    let folder = Folder::new();
    let out = folder.arg("out");
    for (text, word) in [
        ("", "endpoint"),
        ("[[endpoint]]\nurl = 'http://a'\n", "model"),
        ("[[endpoint]]\nurl = 'ftp://a'\nmodel = 'm'\n", "http"),
        ("[[endpoint]]\nurl = 'http://a'\nmodel = 'm'\nkey = 'sk-0123456789'\n", "models.toml:4"),
        ("[[endpoint]]\nurl = 'http://a'\nmodel = 'm'\nshare = nan\n", "share"),
        ("[[endpoint]]\nurl = 'http://a'\nmodel = 'm'\nroles = ['boss']\n", "boss"),
        ("[[endpoint]]\nurl = 'http://a'\nmodel = 'm'\nroles = ['judge']\n", "role"),
        ("\u{0}", "models.toml"),
    ] {
        let config = folder.write("models.toml", text);
        let mut command = kiln(&["--quiet", "synthesize", "--rows", "3", "-o", &out]);
        let error = crate::harness::failure(command.args(["--llm-config", &config]));
        assert!(error.contains(word), "{text}: {error}");
        assert!(!error.contains("sk-0123456789"), "{error}");
    }
}
