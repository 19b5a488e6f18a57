//! Training data as it comes: broken rows, odd packing, and a disk that fills up.

use std::io::Write as _;

use crate::harness::{Disk, Folder, failure, kiln, names};
use crate::training::DATA;

fn recipe(data: &str) -> String {
    format!(
        "name = 'data'\nseed = 3\n[model]\nmax_length = 24\n[filter]\ndeduplicate = false\n\
         [model.new]\nvocab_size = 320\nhidden_size = 32\nintermediate_size = 48\nlayers = 1\nheads = 2\n\
         [[stage]]\nname = 's'\ndata = ['{data}']\nsteps = 3\nbatch_size = 4\nlr = 1e-3\n"
    )
}

/// Many rows, and in their middle the given one.
fn many(middle: &[u8]) -> Vec<u8> {
    let row = |n: usize| {
        format!(
            "{{\"query\":\"where is number {n}\",\"pos\":[\"number {n} stands here\"],\"neg\":[\"{}\"]}}\n",
            n + 1
        )
    };
    let mut bytes = Vec::new();
    for n in 0..20_000 {
        if n == 12_345 {
            bytes.extend_from_slice(middle);
            bytes.push(b'\n');
        }
        bytes.extend_from_slice(row(n).as_bytes());
    }
    bytes
}

#[test]
fn a_broken_row_in_the_middle_stops_or_is_counted() {
    let folder = Folder::new();
    for (name, middle) in [
        ("json", &b"{\"query\":\"broken\",\"pos\":["[..]),
        ("utf8", b"{\"query\":\"bad \xff text\",\"pos\":[\"x\"]}"),
        ("type", b"{\"query\":{\"a\":1},\"pos\":[\"x\"]}"),
        ("field", b"{\"asked\":\"a\",\"pos\":[\"x\"]}"),
        ("empty", b"{\"query\":\"\",\"pos\":[\"x\"]}"),
        ("none", b"{\"query\":\"a\",\"pos\":[]}"),
    ] {
        let file = format!("{name}.jsonl.gz");
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&many(middle)).unwrap();
        folder.write(&file, packed.finish().unwrap());
        let recipe = folder.write(&format!("{name}.toml"), recipe(&file));
        let out = folder.arg(name);
        let error =
            failure(&mut kiln(&["--quiet", "train", "--recipe", &recipe, "--output", &out]));
        assert!(error.contains(&format!("{file}:12346")), "{name}: {error}");
        assert!(!folder.path(name).exists(), "{name}: a failed start left something behind");
        let run = kiln(&["train", "--recipe", &recipe, "--output", &out, "--skip-bad-rows"])
            .assert()
            .success();
        let notes = String::from_utf8(run.get_output().stderr.clone()).unwrap();
        assert!(
            notes.contains("20,000 examples") && notes.contains("left out 1 bad row,"),
            "{name}: {notes}"
        );
    }
    // A file that ends in the middle of its packing is an error either way.
    let whole = std::fs::read(folder.path("json.jsonl.gz")).unwrap();
    folder.write("cut.jsonl.gz", &whole[..whole.len() / 2]);
    let recipe = folder.write("cut.toml", recipe("cut.jsonl.gz"));
    let out = folder.arg("cut");
    for skip in [None, Some("--skip-bad-rows")] {
        let mut command = kiln(&["--quiet", "train", "--recipe", &recipe, "--output", &out]);
        let error = failure(command.args(skip));
        assert!(error.contains("cut.jsonl.gz"), "{error}");
    }
}

#[test]
fn long_texts_and_negatives_that_are_positives() {
    let folder = Folder::new();
    let long = "a river that floods ".repeat(5000);
    let rows = format!(
        "{{\"query\":\"{long}\",\"pos\":[\"the river\"],\"neg\":[\"the river\",\"a ship\"]}}\n\
         {{\"query\":\"tea\",\"pos\":[\"{long}\"],\"neg\":[]}}\n{DATA}"
    );
    folder.write("data.jsonl", rows);
    let recipe = folder.write("r.toml", recipe("data.jsonl"));
    let out = folder.arg("out");
    let run = kiln(&["train", "--recipe", &recipe, "--output", &out]).assert().success();
    let notes = String::from_utf8(run.get_output().stderr.clone()).unwrap();
    assert!(notes.contains("1 negative equal to a positive"), "{notes}");
    let lines = std::fs::read_to_string(folder.path("out/metrics.jsonl")).unwrap();
    for line in lines.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let (texts, tokens) = (line["texts"].as_u64().unwrap(), line["tokens"].as_u64().unwrap());
        assert!(tokens <= 24 * texts, "{line}");
    }
}

#[test]
fn a_disk_that_fills_up_during_a_checkpoint() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let text = recipe("data.jsonl").replace("steps = 3", "steps = 12");
    let recipe = folder.write("r.toml", text);
    let whole = folder.arg("whole");
    kiln(&["train", "--recipe", &recipe, "--output", &whole]).assert().success();
    let Some(disk) = Disk::mount(folder.path("disk"), "4m") else {
        eprintln!("SKIPPED: mounting a small file system needs root");
        return;
    };
    // Room for a checkpoint or two of the twelve that are to be kept.
    let out = disk.0.join("out").display().to_string();
    let args = ["--quiet", "train", "--recipe", &recipe, "--output", &out];
    let keep = ["--checkpoint-every", "1", "--keep", "12"];
    std::fs::create_dir_all(&out).unwrap();
    let filler = disk.0.join("filler");
    let one: u64 = std::fs::read_dir(folder.path("whole/checkpoints"))
        .unwrap()
        .flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap())
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    std::fs::write(&filler, vec![0u8; ((4 << 20) - 2 * one - one / 2) as usize]).unwrap();
    let error = failure(kiln(&args).args(keep));
    assert!(error.contains("No space left"), "{error}");
    let left = names(&disk.0.join("out/checkpoints"));
    assert!(!left.is_empty() && left.iter().all(|name| name.len() == 8), "{left:?}");
    assert!(!disk.0.join("out/model").exists());
    // With room again it goes on from there, to the same end.
    std::fs::remove_file(filler).unwrap();
    kiln(&args).args(["--resume"]).assert().success();
    let model = |folder: &std::path::Path| std::fs::read(folder.join("model/model.safetensors"));
    assert_eq!(model(&disk.0.join("out")).unwrap(), model(&folder.path("whole")).unwrap());
}

#[test]
fn more_than_the_memory_is_said_before() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("r.toml", recipe("data.jsonl"));
    let text = crate::harness::stdout(&mut kiln(&[
        "train",
        "--dry-run",
        "--recipe",
        &recipe,
        "--set",
        "stage.1.batch_size=10000000",
    ]));
    assert!(text.contains("compute.chunk") && text.contains("are free"), "{text}");
}
