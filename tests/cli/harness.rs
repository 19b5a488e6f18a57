//! A tiny model on disk, and the binary.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use assert_cmd::Command;
use burn::tensor::backend::Backend as _;
use kiln_embed::checkpoint::{Existing, save, write_directory};
use kiln_embed::embedder::Embedder;
use train_native::device::Cpu;
use train_native::recipe::Recipe;
use train_native::train::new_model;

/// Texts for the tiny tokenizer and for the tests.
pub(crate) const TEXTS: [&str; 6] = [
    "the river floods the lower streets",
    "a violinist from a small town",
    "granite walls and a long way up",
    "the ship carried tea and timber",
    "petals of pale blue in wet meadows",
    "a portrait hangs in the hall",
];

/// The command, on the CPU.
pub(crate) fn kiln(args: &[&str]) -> Command {
    kiln_on("cpu", args)
}

/// The command on some device.
pub(crate) fn kiln_on(device: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(["--device", device]).args(args).timeout(Duration::from_secs(300));
    command
}

/// The most memory of a process, in bytes, when it has ended; `None` where the system does not say.
pub(crate) fn peak(child: &mut std::process::Child) -> Option<usize> {
    let path = format!("/proc/{}/status", child.id());
    let (mut peak, begun) = (None, Instant::now());
    while child.try_wait().unwrap().is_none() {
        let status = std::fs::read_to_string(&path).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let now = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok());
        peak = now.map(|now| now << 10).max(peak);
        assert!(begun.elapsed() < Duration::from_secs(900));
        std::thread::sleep(Duration::from_millis(20));
    }
    peak
}

/// A folder that is removed after the test.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The path as an argument.
    pub(crate) fn arg(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), content).unwrap();
        self.arg(name)
    }

    /// A random model with the given pooling (TOML) in `model`.
    pub(crate) fn model(&self, pooling: &str) -> PathBuf {
        let recipe = format!(
            "name = 'tiny'\n[model]\nmax_length = 16\npooling = {pooling}\nprompts = {{ query = 'find:' }}\n\
             [model.new]\nvocab_size = 300\nhidden_size = 16\nintermediate_size = 24\nlayers = 2\nheads = 2\n\
             [[stage]]\nname = 's'\ndata = ['x']\nsteps = 1\nbatch_size = 2\nlr = 1e-3\n"
        );
        let recipe = Recipe::parse(&recipe).unwrap();
        let new = recipe.model.new.as_ref().unwrap();
        let device = Default::default();
        Cpu::seed(&device, 1);
        let embedder: Embedder<Cpu> =
            new_model(new, &recipe.model, TEXTS.into_iter(), &device).unwrap();
        let path = self.path("model");
        write_directory(&path, &save(&embedder).unwrap(), Existing::ReplaceOurs).unwrap();
        path
    }

    /// [`TEXTS`] as a txt file.
    pub(crate) fn texts(&self) -> String {
        self.write("texts.txt", TEXTS.join("\n") + "\n")
    }
}

/// Standard output of a command that must succeed.
pub(crate) fn stdout(command: &mut Command) -> String {
    let output = command.assert().success().get_output().clone();
    String::from_utf8(output.stdout).unwrap()
}

/// Standard error of a command that must fail with one `error:` line, exit code 1 or 2.
pub(crate) fn failure(command: &mut Command) -> String {
    let output = command.assert().failure().get_output().clone();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(matches!(output.status.code(), Some(1 | 2)), "{:?}: {error}", output.status);
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(error.starts_with("error: "), "{error}");
    assert!(!error.contains("panicked") && !error.contains("internal failure"), "{error}");
    if output.status.code() == Some(1) {
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    }
    error
}

/// Vectors of [`TEXTS`] by a model, as the command writes them.
pub(crate) fn embed(model: &str, folder: &Folder, more: &[&str]) -> Vec<Vec<f32>> {
    let (texts, out) = (folder.texts(), folder.arg("vectors.jsonl"));
    let args = ["embed", "--model", model, "--input", &texts, "--output", &out];
    kiln(&args).args(more).assert().success();
    let lines = std::fs::read_to_string(&out).unwrap();
    let vector = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        serde_json::from_value(line["embedding"].clone()).unwrap()
    };
    lines.lines().map(vector).collect()
}

/// Names in a folder, sorted.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A small memory file system, unmounted at the end of the test.
pub(crate) struct Disk(pub(crate) PathBuf);

impl Disk {
    /// `None` where this process may not mount.
    pub(crate) fn mount(path: PathBuf, size: &str) -> Option<Self> {
        std::fs::create_dir(&path).unwrap();
        let mut mount = std::process::Command::new("mount");
        let options = format!("size={size}");
        let done = mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&path).output();
        done.is_ok_and(|output| output.status.success()).then_some(Self(path))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}
