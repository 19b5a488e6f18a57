//! A hostile Hub: names that leave the cache, answers that lie, bodies cut short.

mod names;
mod server;
mod transfers;
mod trust;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::harness::{Folder, failure, kiln, stdout};
use server::{COMMIT, Files, ID, Reply, Request, Server, git, sha256};

const WEIGHTS: &str = "model.safetensors";
const TOKEN: &str = "hf_secret";

/// A user with a model's files at hand, a cache, and files that are none of the Hub's business.
struct User {
    folder: Folder,
    files: Files,
    kept: BTreeMap<PathBuf, Vec<u8>>,
}

impl User {
    fn new() -> Self {
        let folder = Folder::new();
        let files = Files::of(&folder.model("{ mode = 'mean' }"));
        std::fs::create_dir_all(folder.path("home/deep")).unwrap();
        for name in
            ["home/canary", "home/canary.safetensors", "home/config.json", "home/deep/canary"]
        {
            folder.write(name, "the user's own");
        }
        let kept = content(&folder.path("home"));
        Self { folder, files, kept }
    }

    fn canary(&self) -> String {
        self.folder.arg("home/canary")
    }

    fn repo(&self) -> PathBuf {
        self.folder.path("home/cache/hub/models--someone--model")
    }

    fn snapshot(&self) -> PathBuf {
        self.repo().join("snapshots").join(COMMIT)
    }

    /// A command that asks a server.
    fn run(&self, server: &Server, args: &[&str]) -> assert_cmd::Command {
        let mut command = kiln(&["--quiet"]);
        command.args(args).env("HF_ENDPOINT", server.url()).env("HF_TOKEN", TOKEN);
        command.env("HF_HOME", self.folder.path("home/cache")).env("NO_PROXY", "127.0.0.1");
        for name in
            ["HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"]
        {
            command.env_remove(name);
        }
        command
    }

    fn inspect(&self, server: &Server) -> assert_cmd::Command {
        self.run(server, &["inspect", "--model", ID])
    }

    /// Nothing of the user's has changed, and the cache holds only what belongs there.
    fn check(&self) {
        let mut now = content(&self.folder.path("home"));
        now.retain(|path, _| !path.starts_with(self.folder.path("home/cache")));
        assert_eq!(now, self.kept);
        let blobs = self.repo().join("blobs");
        if blobs.is_symlink() {
            return;
        }
        let Ok(blobs) = std::fs::read_dir(blobs) else { return };
        for blob in blobs {
            let blob = blob.unwrap();
            let name = blob.file_name().into_string().unwrap();
            let bytes = std::fs::read(blob.path()).unwrap();
            let sound = name == sha256(&bytes) || name == git(&bytes) || name.starts_with("tag-");
            assert!(sound || name.ends_with(".incomplete"), "{name}");
        }
    }

    /// The command fails in one line, which says some words, and does no harm.
    fn refused(&self, command: &mut assert_cmd::Command, words: &[&str]) -> String {
        let error = failure(command);
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert!(error.contains(ID), "{error}");
        assert!(!error.contains(TOKEN), "{error}");
        self.check();
        error
    }

    /// The command works, and does no harm.
    fn accepted(&self, command: &mut assert_cmd::Command) -> String {
        let actual = stdout(command);
        self.check();
        actual
    }
}

/// Files below a folder, links not followed.
fn content(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut result = BTreeMap::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_symlink() {
                let target = std::fs::read_link(entry.path()).unwrap();
                result.insert(entry.path(), target.to_string_lossy().into_owned().into_bytes());
            } else {
                result.insert(entry.path(), std::fs::read(entry.path()).unwrap());
            }
        }
    }
    result
}

/// A server that is honest but where a test says otherwise.
fn server(files: &Files, lie: impl Fn(&Request, Reply) -> Reply + Send + Sync + 'static) -> Server {
    let files = files.clone();
    Server::start(move |request| lie(request, files.answer(request)))
}

fn honest(files: &Files) -> Server {
    server(files, |_, reply| reply)
}

/// An honest server but for the content of one file.
fn lying_about(
    file: &'static str,
    files: &Files,
    lie: impl Fn(&Request, Reply) -> Reply + Send + Sync + 'static,
) -> Server {
    server(
        files,
        move |request, reply| {
            if request.file() == Some(file) { lie(request, reply) } else { reply }
        },
    )
}
