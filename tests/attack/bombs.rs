//! Small files that would become large, and numbers that make no sense.
//!
//! The command may have as much memory as it needs to start, and no more: what a file promises has to be
//! compared with what it holds before memory is set aside for it.

mod configs;
mod numbers;
mod safetensors;

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use kiln_embed::checkpoint::write_safetensors;

use crate::harness::{Folder, failure, names};

const MEAN: &str = "{ mode = 'mean' }";

/// The command on the CPU with 3 GB of addresses, threads and code included.
fn bounded(args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -v 3000000; exec \"$0\" --device cpu \"$@\""])
        .arg(env!("CARGO_BIN_EXE_kiln"))
        .args(args)
        .timeout(std::time::Duration::from_secs(300));
    command
}

/// The one line with which embedding with a model fails.
fn refused(folder: &Folder, model: &Path) -> String {
    let (texts, out) = (folder.texts(), folder.arg("out.npy"));
    let model = model.display().to_string();
    let error =
        failure(&mut bounded(&["embed", "--model", &model, "--input", &texts, "--output", &out]));
    assert!(!error.contains("out of memory"), "{error}");
    assert!(error.len() < 4000, "{} characters: {error}", error.len());
    assert!(!names(&folder.path("")).contains(&"out.npy".to_string()));
    error
}

fn has(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

/// Replaces a file by tensors of zeros.
fn weights(path: &Path, tensors: &[(&str, &[usize])]) {
    let all: Vec<(String, Vec<usize>, Vec<f32>)> = tensors
        .iter()
        .map(|(name, shape)| (name.to_string(), shape.to_vec(), vec![0.0; shape.iter().product()]))
        .collect();
    std::fs::write(path, write_safetensors(&all, &[("format", "pt")]).unwrap()).unwrap();
}

/// A file of so many zeros, which takes no room on most disks.
fn zeros(path: &Path, bytes: u64) {
    std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
}

/// The path of something that every machine has and no model.
#[test]
fn models_that_are_no_files() {
    let folder = Folder::new();
    for path in ["/dev/null", "/dev/zero", "/proc/self/mem"] {
        if Path::new(path).exists() {
            refused(&folder, &PathBuf::from(path));
        }
    }
}
