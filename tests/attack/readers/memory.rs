//! Memory: small files that unpack to gigabytes, and input without end, are refused within bounded memory.

#![cfg(target_os = "linux")]

use std::io::Write as _;
use std::process::{Output, Stdio};
use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, StringArray};

use super::{Place, has, write_parquet};
use crate::harness::{Disk, failure, kiln};

/// Addresses that the binary gets where it reads a bomb; the bombs unpack to more.
const KILOBYTES: usize = 2_500_000;

/// The binary in a shell that gives it so many kB of addresses and files of half a gigabyte.
fn limited(kilobytes: usize, args: &[&str], input: Stdio) -> Output {
    let mut shell = std::process::Command::new("sh");
    let script = format!("ulimit -v {kilobytes}; ulimit -f 1000000; exec \"$@\"");
    shell.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_kiln"), "--device", "cpu"]);
    shell.args(args).stdin(input).output().unwrap()
}

/// The one line of a command that must fail.
fn refused(output: &Output) -> String {
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    assert!(!error.contains("internal failure"), "{error}");
    error
}

#[test]
fn a_line_of_gigabytes_in_a_small_file() {
    let place = Place::new();
    // Three gigabytes, as so many parts of a compressed file.
    let part = vec![b'a'; 64 << 20];
    let parts = zstd::bulk::compress(&part, 1).unwrap().repeat(48);
    let out = place.folder.arg("out.npy");
    for (name, head) in [
        ("b.txt.zst", &b""[..]),
        ("b.jsonl.zst", b"{\"text\":\""),
        ("b.csv.zst", b"text\n\""),
        ("b.tsv.gz", b"text\n"),
    ] {
        let path = place.folder.path(name);
        if name.ends_with(".zst") {
            let head = zstd::bulk::compress(head, 1).unwrap();
            std::fs::write(&path, [head, parts.clone()].concat()).unwrap();
        } else {
            let file = std::fs::File::create(&path).unwrap();
            let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
            packed.write_all(head).unwrap();
            // Deflate packs a thousandfold only.
            (0..3).for_each(|_| packed.write_all(&part).unwrap());
            packed.finish().unwrap();
        }
        let path = path.display().to_string();
        let args = ["embed", "--model", &place.model, "--input", &path, "--output", &out];
        let error = refused(&limited(KILOBYTES, &args, Stdio::null()));
        has(&error, &[name, "64 MiB", "--max-text-bytes"]);
    }
    // As data of a training, as an index, and as judgements.
    let path = place.folder.arg("b.jsonl.zst");
    let mined = place.folder.arg("mined.jsonl");
    let args = ["mine", "--model", &place.model, "--data", &path, "--output", &mined, "--quiet"];
    has(&refused(&limited(KILOBYTES, &args, Stdio::null())), &["b.jsonl.zst", "64 MiB"]);
    let args = ["eval", "trec", &place.folder.arg("b.txt.zst"), &path];
    has(&refused(&limited(KILOBYTES, &args, Stdio::null())), &["b.txt.zst", "64 MiB"]);
    let index = place.folder.path("i.jsonl");
    std::fs::write(&index, [&part[..], &part[..1 << 20]].concat()).unwrap();
    let index = index.display().to_string();
    let args = ["search", "--model", &place.model, "--query", "a", "--index", &index];
    has(&refused(&limited(KILOBYTES, &args, Stdio::null())), &["i.jsonl:1", "64 MiB"]);
    // A limit of one's own lets more through, or less.
    let text = place.write("own.txt", "a".repeat(2000));
    let args = ["embed", "--model", &place.model, "--input", &text, "--output", &out];
    let small = [&args[..], &["--max-text-bytes", "1024"]].concat();
    has(&failure(&mut kiln(&small)), &["own.txt:1", "1 KiB"]);
    kiln(&args).assert().success();
}

#[test]
fn many_long_lines_and_values_in_a_small_file() {
    let place = Place::new();
    let out = place.folder.arg("out.npy");
    // 4096 lines of a megabyte: a block of them would be four gigabytes. What the texts are cut to is
    // the tokenizer's affair, so the lines are of one word.
    let mut lines = Vec::new();
    {
        let mut packed = zstd::Encoder::new(&mut lines, 1).unwrap();
        let values = format!("{{\"text\":\"a\",\"x\":[{}0]}}\n", "{\"\":0},".repeat(8_000_000));
        packed.write_all(values.as_bytes()).unwrap();
        packed.finish().unwrap();
    }
    let path = place.write("values.jsonl.zst", lines);
    let args = ["embed", "--model", &place.model, "--input", &path, "--output", &out];
    let error = refused(&limited(KILOBYTES, &args, Stdio::null()));
    has(&error, &["values.jsonl.zst:1", "8000000 values"]);
}

#[test]
fn a_page_of_gigabytes_in_a_small_parquet() {
    let place = Place::new();
    let path = place.folder.path("p.parquet");
    let texts = vec!["a".repeat(70 << 20); 2];
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("text", Arc::new(StringArray::from(texts))),
        ("n", Arc::new(Int32Array::from(vec![1, 2]))),
    ];
    write_parquet(&path, columns);
    assert!(std::fs::metadata(&path).unwrap().len() < 100_000);
    let path = path.display().to_string();
    let out = place.folder.arg("out.npy");
    let args = ["embed", "--model", &place.model, "--input", &path, "--output", &out];
    let error = refused(&limited(KILOBYTES, &args, Stdio::null()));
    has(&error, &["p.parquet", "--max-text-bytes"]);
    // The columns that are not asked for are not read.
    let numbers = [&args[..], &["--field", "n"]].concat();
    assert!(limited(KILOBYTES, &numbers, Stdio::null()).status.success());
}

#[test]
fn standard_input_without_end() {
    let place = Place::new();
    let out = place.folder.arg("out.npy");
    let args = ["embed", "--model", &place.model, "--input", "-", "--output", &out];
    let endless = || Stdio::from(std::fs::File::open("/dev/zero").unwrap());
    let error = refused(&limited(KILOBYTES, &args, endless()));
    has(&error, &["standard input:1", "64 MiB"]);
    // Short lines without end, and a disk that has no room for them.
    let lines = "a river\n".repeat(50_000);
    let mut command = kiln(&[&args[..], &["--max-text-bytes", "1024"]].concat());
    has(&failure(command.write_stdin(lines.clone())), &["standard input", "256 KiB"]);
    let Some(disk) = Disk::mount(place.folder.path("disk"), "64k") else {
        eprintln!("SKIPPED: mounting a small file system needs root");
        return;
    };
    let mut command = kiln(&args);
    let error = failure(command.env("TMPDIR", &disk.0).write_stdin(lines));
    has(&error, &["standard input", "No space left", "TMPDIR"]);
}

#[test]
fn small_files_that_are_not_small() {
    let place = Place::new();
    for name in ["r.toml", "s.toml"] {
        std::fs::File::create(place.folder.path(name)).unwrap().set_len(1 << 40).unwrap();
    }
    let (recipe, suite) = (place.folder.arg("r.toml"), place.folder.arg("s.toml"));
    let output = place.folder.arg("out");
    for (name, args) in [
        ("r.toml", &["train", "--recipe", &recipe, "--dry-run"][..]),
        ("r.toml", &["sweep", &recipe, "--output", &output]),
        ("s.toml", &["eval", "--model", &place.model, "--suite", &suite, "--output", &output]),
    ] {
        has(&refused(&limited(KILOBYTES, args, Stdio::null())), &[name, "16 MiB"]);
    }
}
