//! `embed` of many files: folders and patterns, shares, what is done and what is not, and a real object store.

mod killed;
mod memory;
mod store;

use std::collections::BTreeMap;
use std::path::Path;

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
fn a_webdav_servers_folders_are_read() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let docs = documents(&folder);
    let args = |input: &str, out: &str| {
        let args = ["embed", "--json", "-m", &model, "--input", input, "--output", out];
        args.map(String::from)
    };
    let run = |args: [String; 8]| kiln(&args.each_ref().map(String::as_str));
    let embed = |input: &str, out: &str| parse(&stdout(&mut run(args(input, out))));
    let vectors = |out: &str| {
        let mut files = contents(Path::new(out));
        files.retain(|name, _| !name.starts_with("_kiln/"));
        files
    };
    let (here, there) = (folder.arg("here/"), folder.arg("there/"));
    embed(&docs, &here);
    let mut files = BTreeMap::new();
    for name in ["docs", "here"] {
        for (file, bytes) in contents(&folder.path(name)) {
            files.insert(format!("/open/{name}/{file}"), bytes);
        }
    }
    // Below the server's root, from which it names what it lists.
    let server = format!("{}/open", store::webdav(files));
    let all = format!("{server}/docs/");
    assert_eq!(embed(&all, &there)["files"], 3);
    assert!(vectors(&there) == vectors(&here), "other bytes than from a folder");
    assert_eq!(embed(&all, &there)["skipped"], 3);
    for (number, pattern) in ["*.txt", "**/*.zst", "a.jsonl"].into_iter().enumerate() {
        let out = folder.arg(&format!("by-{number}/"));
        assert_eq!(embed(&format!("{all}{pattern}"), &out)["files"], 1, "{pattern}");
    }
    let search = |index: &str| {
        let asked = ["search", "--json", "-m", &model, "--query", TEXTS[0], "--index", index];
        stdout(&mut kiln(&asked))
    };
    assert_eq!(search(&format!("{server}/here")), search(&here));
    let private = all.replace("http://", "http://me:secret@");
    let error = failure(&mut run(args(&private, &there)));
    assert!(error.contains("takes no user") && !error.contains("secret"), "{error}");
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
        (vec!["--input", "-", "--verify"], "standard input"),
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

#[test]
fn what_was_damaged_is_found_where_it_is_looked_for() {
    let folder = Folder::new();
    let (docs, out) = (documents(&folder), folder.arg("out/"));
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let embed = |more: &[&str]| {
        let base = ["embed", "--json", "-m", &model, "--input", &docs, "--output", &out];
        let ended = kiln(&[&base[..], more].concat()).output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(ended.status.success(), "{said}");
        (parse(std::str::from_utf8(&ended.stdout).unwrap()), said)
    };
    embed(&[]);
    let whole = contents(Path::new(&out));
    let (summary, said) = embed(&["--verify"]);
    assert_eq!((&summary["skipped"], &summary["damaged"]), (&json!(3), &json!(0)), "{said}");
    // One bit, which the size does not tell.
    let path = folder.path("out/b.parquet");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let (summary, said) = embed(&[]);
    assert_eq!((&summary["skipped"], &summary["damaged"]), (&json!(3), &json!(0)), "{said}");
    assert!(std::fs::read(&path).unwrap() == bytes);
    let (summary, said) = embed(&["--verify"]);
    assert_eq!(
        (&summary["skipped"], &summary["damaged"], &summary["texts"]),
        (&json!(2), &json!(1), &json!(2)),
        "{said}"
    );
    assert!(said.contains("b.parquet: is not what was written, by its SHA-256"), "{said}");
    assert_eq!(contents(Path::new(&out)), whole);
}
