//! `embed` of many files: folders and patterns, shares, what is done and what is not, and a real object store.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::harness::{Folder, TEXTS, failure, kiln, stdout};

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A folder of files of texts in several formats, some rows of them bad.
fn documents(folder: &Folder) -> String {
    let lines = |texts: &[&str]| {
        texts.iter().map(|text| json!({"text": text}).to_string() + "\n").collect::<String>()
    };
    std::fs::create_dir_all(folder.path("docs/more")).unwrap();
    folder.write("docs/a.jsonl", lines(&TEXTS[..2]));
    folder.write("docs/b.txt", TEXTS[2..4].join("\n"));
    folder.write(
        "docs/more/c.jsonl.zst",
        zstd::encode_all(lines(&TEXTS[4..]).as_bytes(), 1).unwrap(),
    );
    folder.write("docs/picture.png", "no text");
    folder.arg("docs")
}

/// All files below a folder with their bytes, without the times in `_kiln`.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(next).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().display().to_string();
                found.insert(name, std::fs::read(path).unwrap());
            }
        }
    }
    found
}

#[test]
fn shares_together_embed_each_file_once() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let docs = documents(&folder);
    let embed = |out: &str, more: &[&str]| {
        let base = ["embed", "--json", "-m", &model, "--input", &docs, "--output", out];
        parse(&stdout(&mut kiln(&[&base[..], more].concat())))
    };
    let (whole, shares) = (folder.arg("whole/"), folder.arg("shares/"));
    let all = embed(&whole, &[]);
    assert_eq!((&all["files"], &all["texts"], &all["skipped"]), (&json!(3), &json!(6), &json!(0)));
    let first = embed(&shares, &["--shard", "0/2"]);
    let second = embed(&shares, &["--shard", "1/2"]);
    assert_eq!((&first["files"], &second["files"]), (&json!(2), &json!(1)));
    assert_eq!(contents(Path::new(&whole)), contents(Path::new(&shares)));
    // The vectors are those of the file alone.
    let alone = folder.arg("alone.parquet");
    let args =
        ["embed", "--json", "-m", &model, "--input", &folder.arg("docs/b.txt"), "--output", &alone];
    stdout(&mut kiln(&args));
    assert_eq!(
        std::fs::read(alone).unwrap(),
        std::fs::read(folder.path("whole/b.parquet")).unwrap()
    );
    // What is done is skipped, and made anew where its input changed or it is gone.
    assert_eq!(embed(&whole, &[])["skipped"], 3);
    folder.write("docs/b.txt", "another text\nand one more\nand a third");
    std::fs::remove_file(folder.path("whole/a.parquet")).unwrap();
    let again = embed(&whole, &[]);
    assert_eq!((&again["skipped"], &again["texts"]), (&json!(1), &json!(5)));
    let done = parse(&std::fs::read_to_string(folder.path("whole/_kiln/b.txt.json")).unwrap());
    assert_eq!((&done["rows"], &done["output"]), (&json!(3), &json!("b.parquet")));
    // A scheduler says which share it is.
    let auto = folder.arg("auto/");
    let mut command = kiln(&[
        "embed", "--json", "-m", &model, "--input", &docs, "--output", &auto, "--shard", "auto",
    ]);
    command
        .env("SLURM_ARRAY_TASK_ID", "3")
        .env("SLURM_ARRAY_TASK_MIN", "2")
        .env("SLURM_ARRAY_TASK_COUNT", "3");
    assert_eq!(parse(&stdout(&mut command))["files"], 1);
    assert!(folder.path("auto/b.parquet").exists());
}

#[test]
fn what_is_amiss_is_said_and_other_files_go_on() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let docs = documents(&folder);
    let out = folder.arg("out/");
    let embed = |more: &[&str]| {
        let base = ["embed", "--quiet", "-m", &model, "--output", &out];
        kiln(&[&base[..], more].concat())
    };
    let said = |more: &[&str]| failure(&mut embed(more));
    stdout(&mut embed(&["--input", &docs]));
    // Vectors of two kinds never share an output.
    let other = said(&["--input", &docs, "--prompt", "x: "]);
    assert!(other.contains("vectors of another kind") && other.contains("prompt"), "{other}");
    let rounded = said(&["--input", &docs, "--weights", "int8"]);
    assert!(rounded.contains("weights"), "{rounded}");
    for (args, part) in [
        (vec!["--input", &docs, "--shard", "2/2"], "shares are counted from 0"),
        (vec!["--input", &docs, "--format", "npy"], "npy"),
        (vec!["--input", &folder.arg("docs/*.csv")], "has no file of texts"),
        (vec!["--input", &folder.arg("none/")], "none"),
        (vec!["--input", "-", "--skip-bad-rows"], "standard input"),
        (vec!["--input", "ftp://host/docs/"], "ftp"),
    ] {
        let said = said(&args);
        assert!(said.contains(part), "{args:?}: {said}");
    }
    let inside = folder.arg("docs/vectors/");
    let args = ["embed", "--quiet", "-m", &model, "--input", &docs, "--output", &inside];
    assert!(failure(&mut kiln(&args)).contains("inside the input"));
    let file = folder.arg("vectors.npy");
    let args = ["embed", "--quiet", "-m", &model, "--input", &docs, "--output", &file];
    assert!(failure(&mut kiln(&args)).contains("a folder"), "many files into one");
    // Two inputs that would become one output.
    folder.write("docs/a.csv", "text\nx\n");
    assert!(said(&["--input", &docs]).contains("a.parquet"));
    std::fs::remove_file(folder.path("docs/a.csv")).unwrap();
    // A bad row ends its own file alone, or is left out and listed.
    folder.write(
        "docs/d.jsonl",
        "{\"text\": \"fine\"}\n{\"text\": [7]}\n{\"text\": \"fine too\"}\nnonsense\n",
    );
    folder.write("docs/e.txt", "after it");
    let bad = said(&["--input", &docs]);
    assert!(bad.contains("1 of 5 files failed") && bad.contains("d.jsonl:2"), "{bad}");
    assert!(folder.path("out/e.parquet").exists() && !folder.path("out/d.parquet").exists());
    let summary = parse(&stdout(&mut embed(&["--input", &docs, "--skip-bad-rows", "--json"])));
    assert_eq!(
        (&summary["texts"], &summary["bad_rows"], &summary["skipped"]),
        (&json!(2), &json!(2), &json!(4))
    );
    let listed = std::fs::read_to_string(folder.path("out/_kiln/d.jsonl.bad.jsonl")).unwrap();
    let rows: Vec<Value> = listed.lines().map(|line| parse(line)["row"].clone()).collect();
    assert_eq!(rows, [json!(2), json!(4)], "{listed}");
    // A file that is cut off fails, whatever is said of rows.
    let whole = std::fs::read(folder.path("docs/more/c.jsonl.zst")).unwrap();
    folder.write("docs/f.jsonl.zst", &whole[..whole.len() - 4]);
    assert!(said(&["--input", &docs, "--skip-bad-rows"]).contains("f.jsonl.zst"));
}

#[test]
fn what_is_not_whole_is_not_searched() {
    let folder = Folder::new();
    let (docs, out) = (documents(&folder), folder.arg("out"));
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    stdout(&mut kiln(&["embed", "-m", &model, "--input", &docs, "--output", &out]));
    // Neither what another process has not ended, nor what somebody has put there.
    std::fs::copy(folder.path("out/a.parquet"), folder.path("out/stray.parquet")).unwrap();
    std::fs::remove_file(folder.path("out/_kiln/b.txt.json")).unwrap();
    let search =
        || kiln(&["search", "--json", "-m", &model, "--index", &out, "--query", "boat", "-k", "9"]);
    let ended = search().output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success() && said.contains("2 of 4 files are left out"), "{said}");
    let hits =
        parse(std::str::from_utf8(&ended.stdout).unwrap())[0]["hits"].as_array().map(Vec::len);
    assert_eq!(hits, Some(4), "{said}");
    // Vectors of another model that came between.
    let line = folder.path("out/_kiln/a.jsonl.json");
    let mut done = parse(&std::fs::read_to_string(&line).unwrap());
    done["settings"] = json!("0123456789abcdef");
    std::fs::write(&line, done.to_string()).unwrap();
    let error = failure(&mut search());
    assert!(error.contains("a.parquet") && error.contains("another kind"), "{error}");
}

/// An S3 server on loopback (moto, from PyPI), ended with the test.
struct Store {
    child: Child,
    endpoint: String,
}

impl Store {
    fn start() -> Option<Self> {
        let Some(program) = std::env::var_os("KILN_S3") else {
            eprintln!(
                "SKIPPED: KILN_S3 is not set; tests/run.sh installs an S3 server and sets it"
            );
            return None;
        };
        // A port that is free now.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(program)
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            // As small as the tests' parts.
            .env("S3_UPLOAD_PART_MIN_SIZE", "1024")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let store = Self { child, endpoint: format!("http://127.0.0.1:{port}") };
        let start = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(120), "the S3 server does not start");
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(store)
    }

    /// What object_store reads from the environment.
    fn variables(&self) -> [(&'static str, &str); 6] {
        [
            ("KILN_UPLOAD_PART", "2048"),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ENDPOINT", &self.endpoint),
            ("AWS_ALLOW_HTTP", "true"),
        ]
    }

    /// An object, or where there is a body, what the store says of putting it there.
    fn ask(&self, path: &str, body: Option<Vec<u8>>) -> (u16, Vec<u8>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = train_native::http::client().build().unwrap();
            let address = format!("{}/{path}", self.endpoint);
            let request = match body {
                Some(body) => client.put(address).body(body),
                None => client.get(address),
            };
            // moto asks for a signature's form alone.
            let signed = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
            let answer = request.header("Authorization", signed).send().await.unwrap();
            (answer.status().as_u16(), answer.bytes().await.unwrap().to_vec())
        })
    }

    fn put(&self, path: &str, body: impl Into<Vec<u8>>) {
        let (status, answer) = self.ask(path, Some(body.into()));
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
    }

    /// Objects below a prefix with their bytes.
    fn objects(&self, bucket: &str, prefix: &str) -> BTreeMap<String, Vec<u8>> {
        let (_, listing) = self.ask(&format!("{bucket}?list-type=2&prefix={prefix}/"), None);
        let listing = String::from_utf8(listing).unwrap();
        let keys = listing.split("<Key>").skip(1).map(|rest| rest.split('<').next().unwrap());
        keys.map(|key| (key.to_string(), self.ask(&format!("{bucket}/{key}"), None).1)).collect()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_object_store_gets_the_same_bytes_however_often_the_job_is_killed() {
    let Some(store) = Store::start() else { return };
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    store.put("docs", "");
    for file in 0..6 {
        let lines: String = (0..300)
            .map(|row| {
                json!({"id": format!("{file}-{row}"), "text": format!("{} {row}", TEXTS[row % 6])})
                    .to_string()
                    + "\n"
            })
            .collect();
        store.put(&format!("docs/in/part-{file}.jsonl"), lines);
    }
    let from = |input: &str, output: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
        command.args(["--device", "cpu", "--json", "--quiet", "embed", "-m", &model]);
        command.args(["--input", input, "--output", output]).envs(store.variables());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let command = |output: &str| from("s3://docs/in/*.jsonl", output);
    let whole = command("s3://docs/whole").output().unwrap();
    assert!(whole.status.success(), "{}", String::from_utf8_lossy(&whole.stderr));
    let summary = parse(std::str::from_utf8(&whole.stdout).unwrap());
    assert_eq!((&summary["files"], &summary["texts"]), (&json!(6), &json!(1800)), "{summary}");
    let took = summary["seconds"].as_f64().unwrap();
    // Killed at moments that fall all over the run, then left to end.
    let mut kills = 0;
    let seed = std::process::id();
    eprintln!("seed of the moments: {seed}");
    let mut moments = ChaCha8Rng::seed_from_u64(seed.into());
    for _ in 0..6 {
        let mut child = command("s3://docs/killed").spawn().unwrap();
        // The first is killed before it can be done, what it starts with apart.
        let most = if kills == 0 { took } else { took + 0.3 };
        std::thread::sleep(Duration::from_secs_f64(most * moments.random::<f64>()));
        if child.try_wait().unwrap().is_none() {
            kills += 1;
        }
        let _ = child.kill();
        child.wait().unwrap();
    }
    assert!(kills > 0);
    let last = command("s3://docs/killed").output().unwrap();
    assert!(last.status.success(), "{}", String::from_utf8_lossy(&last.stderr));
    let (whole, killed) = (store.objects("docs", "whole"), store.objects("docs", "killed"));
    let named = |objects: &BTreeMap<String, Vec<u8>>| {
        objects
            .iter()
            .map(|(key, bytes)| (key.split_once('/').unwrap().1.to_string(), bytes.clone()))
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(whole.len(), 6 + 6 + 1);
    // A tag with a number of parts behind it.
    let listing = store.ask("docs?list-type=2&prefix=whole/", None).1;
    let listing = String::from_utf8(listing).unwrap();
    let tags = listing.split("<ETag>").skip(1).map(|rest| rest.split("</ETag>").next().unwrap());
    assert!(tags.filter(|tag| tag.contains('-')).count() >= 6, "{listing}");
    assert!(named(&whole) == named(&killed));
    // The bytes are those of a folder, and all is done.
    let local = folder.write("part-3.jsonl", &store.ask("docs/in/part-3.jsonl", None).1);
    let out = folder.arg("out.parquet");
    stdout(&mut kiln(&["embed", "--json", "-m", &model, "--input", &local, "--output", &out]));
    assert!(std::fs::read(out).unwrap() == whole["whole/part-3.parquet"]);
    let again = command("s3://docs/killed").output().unwrap();
    assert_eq!(parse(std::str::from_utf8(&again.stdout).unwrap())["skipped"], 6);
    // One object, all below a prefix, and one that is not there.
    for (input, files) in
        [("in/part-3.jsonl", 1), ("in/**/*.jsonl", 6), ("in", 6), ("in/none.jsonl", 0)]
    {
        let output = format!("s3://docs/by-{files}-{}", input.len());
        let ended = from(&format!("s3://docs/{input}"), &output).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        if files == 0 {
            assert!(said.contains("has no file of texts"), "{said}");
            continue;
        }
        assert!(ended.status.success(), "{said}");
        assert_eq!(parse(std::str::from_utf8(&ended.stdout).unwrap())["files"], files, "{input}");
    }
    let one = store.objects("docs", "by-1-15");
    assert!(one["by-1-15/part-3.parquet"] == whole["whole/part-3.parquet"]);

    // A bucket that is not there, a wrong address, a store that does not answer.
    for (input, endpoint, part) in [
        ("s3://nothing/in/", store.endpoint.as_str(), "s3://nothing/in"),
        ("s3://docs/in/", "http://127.0.0.1:9", "s3://docs/in"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
        command.args(["--device", "cpu", "--quiet", "embed", "-m", &model, "--input", input]);
        command.args(["--output", &folder.arg("none/")]).envs(store.variables());
        let ended = command.env("AWS_ENDPOINT", endpoint).output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(
            !ended.status.success() && said.lines().count() == 1 && said.contains(part),
            "{said}"
        );
    }
}
