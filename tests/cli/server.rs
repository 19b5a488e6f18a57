//! A running `serve`, and a client of it.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A server, ended with the test.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) url: String,
}

impl Server {
    /// Serves a model on a port of the system's choice.
    pub(crate) fn start(model: &str, more: &[&str]) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_kiln")), model, more)
    }

    /// As [`Server::start`], by a command that ends in the binary.
    pub(crate) fn start_by(command: Command, model: &str, more: &[&str]) -> Self {
        Self::serve(command, &[&["-m", model], more].concat())
    }

    /// As [`Server::start_by`], of what the options name.
    pub(crate) fn serve(mut command: Command, options: &[&str]) -> Self {
        let mut child = command
            .args(["--device", "cpu", "--json", "--quiet", "serve", "--port", "0"])
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let line = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        let started: Value = serde_json::from_str(&line).unwrap();
        Self { child, url: started["url"].as_str().unwrap().into() }
    }

    /// Status, and the body as JSON or text.
    pub(crate) fn ask(&self, path: &str, body: Option<&Value>, key: Option<&str>) -> (u16, Value) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = train_native::http::client().build().unwrap();
            let address = format!("{}{path}", self.url);
            let mut request = match body {
                Some(body) => client.post(address).json(body),
                None => client.get(address),
            };
            if let Some(key) = key {
                request = request.bearer_auth(key);
            }
            let response = request.send().await.unwrap();
            let status = response.status().as_u16();
            let text = response.text().await.unwrap();
            (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
        })
    }

    pub(crate) fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.ask(path, Some(&body), None)
    }

    /// Sends the process a signal, as `-TERM`.
    #[cfg(unix)]
    pub(crate) fn signal(&self, signal: &str) {
        Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
    }

    /// Asks the process to end, and waits for it.
    #[cfg(unix)]
    pub(crate) fn end(&mut self) -> Option<i32> {
        self.signal("-TERM");
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
