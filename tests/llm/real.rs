//! SmolLM2 in llama.cpp, as `tests/setup.sh llm` installs it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::Value;

/// A running server, ended with the test.
pub(crate) struct Real {
    child: Child,
    /// It ends when this does, however the test ends.
    _alive: ChildStdin,
    /// Where it is.
    pub(crate) url: String,
    /// The model's name.
    pub(crate) model: String,
}

impl Real {
    /// Starts it, or says why not.
    pub(crate) fn start_or_skip() -> Option<Self> {
        let Some(folder) = std::env::var_os("KILN_LLM") else {
            eprintln!(
                "SKIPPED: KILN_LLM is not set; tests/run.sh installs the language model and sets it"
            );
            return None;
        };
        let adapter = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/llm/server.mjs");
        let mut child = Command::new(Path::new(&folder).join("node"))
            .arg(adapter)
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let alive = child.stdin.take().unwrap();
        let line = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        let started: Value = serde_json::from_str(&line).unwrap();
        let text = |name: &str| started[name].as_str().unwrap().to_string();
        Some(Self { child, _alive: alive, url: text("url"), model: text("model") })
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
