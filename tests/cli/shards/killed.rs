//! A job that is killed again and again, by what it has done and not by the clock, leaves the same bytes: in a folder, and
//! over a real object store.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use serde_json::{Value, json};
use train_native::vectors::TEMPORARY;

use super::store::Store;
use super::{contents, parse};
use crate::harness::{Folder, TEXTS, kiln, stdout};

const FILES: usize = 6;
const ROWS: usize = 300;
/// Rows of a group of Parquet.
const GROUP: usize = 64;
/// A job that does nothing for so long hangs.
const HANGS: Duration = Duration::from_secs(300);

/// Files of texts with their names, of which the last two are of Parquet in several groups of rows.
fn inputs() -> Vec<(String, Vec<u8>)> {
    let input = |file: usize| {
        let row = |row: usize| (format!("{file}-{row}"), format!("{} {row}", TEXTS[row % 6]));
        let rows: Vec<(String, String)> = (0..ROWS).map(row).collect();
        match file < FILES - 2 {
            true => {
                let line = |(id, text): &(String, String)| {
                    format!("{}\n", json!({"id": id, "text": text}))
                };
                let lines: String = rows.iter().map(line).collect();
                (format!("part-{file}.jsonl"), lines.into_bytes())
            }
            false => (format!("part-{file}.parquet"), in_parquet(&rows)),
        }
    };
    (0..FILES).map(input).collect()
}

fn in_parquet(rows: &[(String, String)]) -> Vec<u8> {
    let column = |of: fn(&(String, String)) -> &String| -> ArrayRef {
        Arc::new(rows.iter().map(|row| Some(of(row).as_str())).collect::<StringArray>())
    };
    let columns = [("id", column(|row| &row.0)), ("text", column(|row| &row.1))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    for start in (0..rows.len()).step_by(GROUP) {
        writer.write(&batch.slice(start, GROUP.min(rows.len() - start))).unwrap();
        writer.flush().unwrap();
    }
    assert_eq!(writer.flushed_row_groups().len(), ROWS.div_ceil(GROUP));
    writer.close().unwrap();
    bytes
}

/// A job over [`inputs`] with the variables that it needs.
fn job(model: &str, input: &str, output: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(["--device", "cpu", "--json", "--quiet", "embed", "-m", model]);
    command.args(["--input", input, "--output", output]).envs(variables.iter().copied());
    command
}

/// The summary of a job that runs to its end.
fn summary(mut job: Command) -> Value {
    let ended = job.output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    parse(std::str::from_utf8(&ended.stdout).unwrap())
}

/// How far a job has come.
#[derive(Default)]
struct Progress {
    /// Outputs that are there.
    done: BTreeSet<String>,
    /// What has begun to be written and is not there; a process that was killed leaves it.
    begun: BTreeSet<String>,
}

/// Starts a job again and again, and kills it now when one more output is there, now when one has begun to be written,
/// until one is left at most. How many kills came after the first output and before the last.
fn kills(start: impl Fn() -> Command, look: impl Fn() -> Progress) -> usize {
    let mut between = 0;
    // Every other time at least one more is there.
    for round in 0..2 * FILES {
        let before = look();
        if before.done.len() + 1 >= FILES {
            break;
        }
        let mut child = start().stdout(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success(), "the job failed by itself: {status}");
                break status;
            }
            let now = look();
            let is_time = match round % 2 {
                0 => now.done.len() > before.done.len(),
                _ => !now.begun.is_subset(&before.begun),
            };
            if is_time {
                child.kill().unwrap();
                break child.wait().unwrap();
            }
            if begun.elapsed() > HANGS {
                let _ = child.kill();
                panic!("{} outputs, and no more in {HANGS:?}", now.done.len());
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        // One that has ended meanwhile was not killed.
        let killed = !status.success();
        between += usize::from(killed && (1..FILES).contains(&look().done.len()));
    }
    between
}

/// The name of an output whose job was killed between its first file and its last. On a machine so fast that a job ends before
/// it can be killed another one begins.
fn killed(start: impl Fn(&str) -> Command, look: impl Fn(&str) -> Progress) -> String {
    for attempt in 0..5 {
        let name = format!("killed-{attempt}");
        let between = kills(|| start(&name), || look(&name));
        eprintln!("{name}: {between} kills between the first file and the last");
        if between > 0 {
            return name;
        }
    }
    panic!("five jobs ended before they could be killed");
}

#[test]
fn a_folder_gets_the_same_bytes_however_often_the_job_is_killed() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    std::fs::create_dir(folder.path("docs")).unwrap();
    for (name, bytes) in inputs() {
        folder.write(&format!("docs/{name}"), bytes);
    }
    let input = folder.arg("docs");
    let start = |name: &str| job(&model, &input, &folder.arg(&format!("{name}/")), &[]);
    let all = summary(start("whole"));
    assert_eq!((&all["files"], &all["texts"]), (&json!(FILES), &json!(FILES * ROWS)), "{all}");
    let name = killed(start, |name| {
        let mut progress = Progress::default();
        // There is none before the first process has made it.
        for entry in std::fs::read_dir(folder.path(name)).into_iter().flatten() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.starts_with(TEMPORARY) {
                progress.begun.insert(name);
            } else if name.ends_with(".parquet") {
                progress.done.insert(name);
            }
        }
        progress
    });
    let last = summary(start(&name));
    let [skipped, texts] = ["skipped", "texts"].map(|field| last[field].as_u64().unwrap());
    assert!(skipped > 0 && texts == (FILES as u64 - skipped) * ROWS as u64, "{last}");
    // What was being written when a process was killed is hidden, and swept later.
    let written = |name: &str| -> BTreeMap<String, Vec<u8>> {
        let is_whole = |name: &String| {
            let file = Path::new(name).file_name().unwrap().to_str().unwrap();
            !file.starts_with(TEMPORARY)
        };
        let files = contents(&folder.path(name)).into_iter();
        files.filter(|(name, _)| is_whole(name)).collect()
    };
    let whole = written("whole");
    assert_eq!(whole.len(), 2 * FILES + 1);
    assert!(whole == written(&name), "other bytes than without a kill");
    assert_eq!(summary(start(&name))["skipped"], FILES);
}

#[test]
fn an_object_store_gets_the_same_bytes_however_often_the_job_is_killed() {
    let Some(store) = Store::start() else { return };
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    store.put("docs", "");
    for (name, bytes) in inputs() {
        store.put(&format!("docs/in/{name}"), bytes);
    }
    let variables = store.variables();
    let from = |input: &str, output: &str| {
        job(&model, &format!("s3://docs/{input}"), &format!("s3://docs/{output}"), &variables)
    };
    let start = |name: &str| from("in/part-*", name);
    let all = summary(start("whole"));
    assert_eq!((&all["files"], &all["texts"]), (&json!(FILES), &json!(FILES * ROWS)), "{all}");
    let name = killed(start, |name| {
        let keys = store.keys("docs", name).into_iter();
        let done = keys.filter(|key| key.ends_with(".parquet")).collect();
        Progress { done, begun: store.uploads("docs") }
    });
    let last = summary(start(&name));
    assert!(last["skipped"].as_u64() > Some(0), "{last}");
    let objects = |prefix: &str| -> BTreeMap<String, Vec<u8>> {
        let objects = store.objects("docs", prefix).into_iter();
        let below = |key: String| key.split_once('/').unwrap().1.to_string();
        objects.map(|(key, bytes)| (below(key), bytes)).collect()
    };
    let whole = objects("whole");
    assert_eq!(whole.len(), 2 * FILES + 1);
    // A tag with a number of parts behind it.
    let tags = store.tags("docs", "whole");
    assert!(tags.iter().filter(|tag| tag.contains('-')).count() >= FILES, "{tags:?}");
    assert!(whole == objects(&name), "other bytes than without a kill");
    // The bytes are those of a folder, and all is done.
    for (input, output) in
        [("part-3.jsonl", "part-3.parquet"), ("part-5.parquet", "part-5.parquet")]
    {
        let local = folder.write(input, store.ask(&format!("docs/in/{input}"), None));
        let out = folder.arg("out.parquet");
        stdout(&mut kiln(&["embed", "--json", "-m", &model, "--input", &local, "--output", &out]));
        assert!(std::fs::read(out).unwrap() == whole[output], "{input}");
    }
    assert_eq!(summary(start(&name))["skipped"], FILES);

    // A byte that has changed since is found where it is looked for: the size does not tell.
    let mut damaged = whole["part-4.parquet"].clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    store.put(&format!("docs/{name}/part-4.parquet"), damaged.clone());
    assert_eq!(summary(start(&name))["skipped"], FILES);
    assert!(objects(&name)["part-4.parquet"] == damaged);
    let mut verified = start(&name);
    verified.arg("--verify");
    let verified = summary(verified);
    assert_eq!(
        (&verified["skipped"], &verified["damaged"], &verified["texts"]),
        (&json!(FILES - 1), &json!(1), &json!(ROWS))
    );
    assert!(whole == objects(&name), "other bytes than before the damage");

    // One object, all below a prefix, and one that is not there.
    for (input, files) in
        [("in/part-3.jsonl", 1), ("in/**/*.jsonl", FILES - 2), ("in", FILES), ("in/none.jsonl", 0)]
    {
        let output = format!("by-{files}-{}", input.len());
        if files == 0 {
            let ended = from(input, &output).output().unwrap();
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(!ended.status.success() && said.contains("has no file of texts"), "{said}");
            continue;
        }
        assert_eq!(summary(from(input, &output))["files"], files, "{input}");
    }
    assert!(objects("by-1-15")["part-3.parquet"] == whole["part-3.parquet"]);

    // A bucket that is not there, a store that does not answer, a file that has nothing.
    store.put("docs/bare/empty.jsonl", "");
    let empty = "s3://docs/bare/empty.jsonl: the file is empty";
    for (input, endpoint, part) in [
        ("s3://nothing/in/", store.endpoint.as_str(), "s3://nothing/in"),
        ("s3://docs/in/", "http://127.0.0.1:9", "s3://docs/in"),
        ("s3://docs/bare/", store.endpoint.as_str(), empty),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
        command.args(["--device", "cpu", "--quiet", "embed", "-m", &model, "--input", input]);
        command.args(["--output", &folder.arg("none/")]).envs(variables);
        let ended = command.env("AWS_ENDPOINT", endpoint).output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(
            !ended.status.success() && said.lines().count() == 1 && said.contains(part),
            "{said}"
        );
    }
}
