//! What goes where: results to standard output, and what is meant for people to standard error.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::{Folder, TEXTS, embed, failure, kiln, names, stdout};

#[test]
fn vectors_go_to_standard_output() {
    let folder = Folder::new();
    let (model, texts) = (folder.model("{ mode = 'mean' }").display().to_string(), folder.texts());
    let args = ["embed", "--model", &model, "--input", &texts, "--output", "-"];
    let output = kiln(&args).assert().success().get_output().clone();
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: Vec<Vec<f32>> = lines
        .iter()
        .map(|line| serde_json::from_value(line["embedding"].clone()).unwrap())
        .collect();
    assert_eq!(found, embed(&model, &folder, &[]));
    assert!(lines.iter().zip(TEXTS).all(|(line, text)| line["text"] == text));
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.contains("6 texts") && notes.contains("standard output"), "{notes}");
    assert!(kiln(&args).arg("--quiet").assert().success().get_output().stderr.is_empty());

    // Every format is what the file of it would be.
    for format in ["npy", "jsonl", "parquet", "safetensors"] {
        let file = folder.arg(&format!("file.{format}"));
        let to_file = ["embed", "--model", &model, "--input", &texts, "--output", &file];
        kiln(&to_file).assert().success();
        let piped = kiln(&args).args(["--format", format]).assert().success().get_output().clone();
        assert!(piped.stdout == std::fs::read(&file).unwrap(), "{format}");
    }
    let plain = folder.arg("vectors");
    let args = ["embed", "--model", &model, "--input", &texts, "--output", &plain];
    assert!(failure(&mut kiln(&args)).contains("unknown format"));
    kiln(&args).args(["--format", "npy"]).assert().success();
    assert_eq!(std::fs::read(&plain).unwrap(), std::fs::read(folder.path("file.npy")).unwrap());
    assert!(!names(&folder.path("")).contains(&"-".to_string()));
}

#[test]
fn a_summary_does_not_mix_with_vectors() {
    let args = ["embed", "--json", "--model", "m", "--input", "-", "--output", "-"];
    let error = failure(kiln(&args).write_stdin("a text\n"));
    assert!(error.contains("--json") && error.contains("name a file"), "{error}");
}

#[test]
fn a_reader_of_vectors_may_go_away() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }");
    let texts = folder.write("many.txt", (TEXTS.join("\n") + "\n").repeat(500));
    let mut child = Command::new(env!("CARGO_BIN_EXE_kiln"))
        .args(["--device", "cpu", "--quiet", "embed", "--output", "-", "--input", &texts])
        .arg("--model")
        .arg(&model)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with('{'), "{first}");
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let status = child.wait().unwrap();
    assert!(status.success() && said.is_empty(), "{status}: {said}");
}

/// A log file gets a line now and then, and standard output none of them.
#[test]
fn long_jobs_write_lines_into_a_log() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let texts = folder.write("many.txt", (TEXTS.join("\n") + "\n").repeat(2000));
    let corpus: String =
        TEXTS.repeat(1000).iter().enumerate().fold(String::new(), |all, (i, text)| {
            all + &serde_json::json!({"text": format!("{text} {i}")}).to_string() + "\n"
        });
    let corpus = folder.write("corpus.jsonl", corpus);
    let data = folder.write("data.jsonl", crate::training::DATA);
    let (vectors, mined) = (folder.arg("out.npy"), folder.arg("mined.jsonl"));
    let jobs: [(&[&str], &str); 2] = [
        (&["embed", "--input", &texts, "--output", &vectors], "embedding "),
        (
            &[
                "mine",
                "--data",
                &data,
                "--corpus",
                &corpus,
                "--output",
                &mined,
                "--percent-of-positive",
                "0",
            ],
            "corpus ",
        ),
    ];
    for (args, what) in jobs {
        let run = |more: &[&str]| {
            let mut command = kiln(&[args, &["--json", "--model", &model], more].concat());
            let command = command.env("KILN_PROGRESS_SECONDS", "0.001");
            command.assert().success().get_output().clone()
        };
        let output = run(&[]);
        serde_json::from_slice::<Value>(&output.stdout).unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<&str> = said.lines().filter(|line| line.starts_with(what)).collect();
        assert!(lines.len() > 1, "{said}");
        // How much of how much, how fast, and when it ends.
        assert!(
            lines.iter().any(|line| line.contains("/s  ") && line.ends_with(" left")),
            "{said}"
        );
        let last = lines.last().unwrap();
        assert!(last.contains("/s  in "), "{said}");
        assert!(run(&["--quiet"]).stderr.is_empty());
    }
    // A short job has no lines.
    let short = folder.texts();
    let args = ["embed", "--model", &model, "--input", &short, "--output", &vectors];
    let output = kiln(&args).assert().success().get_output().clone();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn drivers_print_no_errors_of_their_own() {
    let mut command = kiln(&["devices"]);
    for name in ["XDG_RUNTIME_DIR", "WAYLAND_DISPLAY", "WAYLAND_SOCKET"] {
        command.env_remove(name);
    }
    let output = command.assert().success().get_output().clone();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!said.lines().any(|line| line.starts_with("error")), "{said}");
    assert!(!stdout(&mut command).is_empty());
}
