//! `kiln synthesize` as tests run it, and what it leaves behind.

use std::path::Path;
use std::process::{Child, Stdio};

use assert_cmd::Command;
use serde_json::Value;

use crate::harness::{Folder, kiln};

/// What a server must get and nobody else may see.
pub(crate) const KEY: &str = "sk-test-6c62272e07bb0142";
/// All kinds of rows that need no documents.
pub(crate) const TYPES: [&str; 6] =
    ["short-long", "long-short", "short-short", "long-long", "sts", "bitext"];

/// The command's arguments, into `out` of a folder.
fn arguments(url: &str, folder: &Folder, more: &[&str]) -> Vec<String> {
    let out = folder.arg("out");
    let own =
        ["--quiet", "synthesize", "-o", &out, "--llm", url, "--llm-model", "writer"].into_iter();
    own.chain(more.iter().copied()).map(String::from).collect()
}

/// The command, into `out` of a folder.
pub(crate) fn synthesize(url: &str, folder: &Folder, more: &[&str]) -> Command {
    let arguments = arguments(url, folder, more);
    let mut command = kiln(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    command.env("OPENAI_API_KEY", KEY).env("NO_PROXY", "127.0.0.1");
    command
}

/// The command, running.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn start(url: &str, folder: &Folder, more: &[&str]) -> Self {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kiln"));
        command.args(["--device", "cpu"]).args(arguments(url, folder, more));
        command.env("OPENAI_API_KEY", KEY).env("NO_PROXY", "127.0.0.1");
        Self(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Asks it to end as Ctrl-C does, and waits for it.
    #[cfg(unix)]
    pub(crate) fn interrupt(mut self) -> Option<i32> {
        let id = self.0.id().to_string();
        std::process::Command::new("kill").args(["-INT", &id]).status().unwrap();
        self.0.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lines of a file of JSON lines.
pub(crate) fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The rows that were written.
pub(crate) fn rows(folder: &Folder) -> Vec<Value> {
    lines(&folder.path("out/rows.jsonl"))
}

/// The answers that were kept.
pub(crate) fn answers(folder: &Folder) -> Vec<Value> {
    lines(&folder.path("out/answers.jsonl"))
}

/// The answers that were no rows.
pub(crate) fn rejected(folder: &Folder) -> Vec<Value> {
    lines(&folder.path("out/rejected.jsonl"))
}

pub(crate) fn summary(folder: &Folder) -> Value {
    serde_json::from_slice(&std::fs::read(folder.path("out/summary.json")).unwrap()).unwrap()
}

/// The key is in no file below a folder.
pub(crate) fn no_key_below(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            no_key_below(&path);
        } else {
            no_key_in(&std::fs::read(&path).unwrap(), &path.display().to_string());
        }
    }
}

/// Nor in these bytes, nor enough of it to guess the rest.
pub(crate) fn no_key_in(bytes: &[u8], what: &str) {
    let part = &KEY.as_bytes()[..KEY.len() - 6];
    assert!(!bytes.windows(part.len()).any(|window| window == part), "the key is in {what}");
}
