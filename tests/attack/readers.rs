//! Files of texts and vectors that would give wrong numbers in silence, take all memory, or speak to
//! the terminal.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;

use arrow_array::types::Float32Type;
use arrow_array::{ArrayRef, Int32Array, ListArray, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use serde_json::{Value, json};
use train_native::text::{Columns, TextFile};

use crate::harness::{Disk, Folder, failure, kiln, stdout};

const MEAN: &str = "{ mode = 'mean' }";

/// A folder with a tiny model in it.
struct Place {
    folder: Folder,
    model: String,
}

impl Place {
    fn new() -> Self {
        let folder = Folder::new();
        let model = folder.model(MEAN).display().to_string();
        Self { folder, model }
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.folder.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        self.folder.write(name, content)
    }

    fn command(&self, args: &[&str]) -> assert_cmd::Command {
        let mut command = kiln(args);
        command.args(["--model", &self.model]).env("KILN_EMBEDDINGS", self.folder.path("kept"));
        command
    }

    /// The vectors of a file.
    fn embed(&self, input: &str) -> Vec<Vec<f32>> {
        let output = self.folder.arg("vectors.jsonl");
        self.command(&["embed", "--input", input, "--output", &output]).assert().success();
        let lines = std::fs::read_to_string(&output).unwrap();
        lines.lines().map(|line| values(&serde_json::from_str(line).unwrap())).collect()
    }

    fn embed_error(&self, input: &str) -> String {
        let output = self.folder.arg("never.npy");
        let error = failure(&mut self.command(&["embed", "--input", input, "--output", &output]));
        assert!(!Path::new(&output).exists(), "{input}");
        error
    }

    fn index_error(&self, index: &str) -> String {
        failure(&mut self.command(&["search", "--query", "a river", "--index", index]))
    }

    fn eval(&self, task: &str, data: &str) -> assert_cmd::Command {
        self.command(&["eval", "--json", "--task", task, "--data", data])
    }
}

fn values(row: &Value) -> Vec<f32> {
    serde_json::from_value(row["embedding"].clone()).unwrap()
}

fn has(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

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

// Wrong numbers in silence.

const CORPUS: [&str; 4] = ["a river", "a ship of iron", "granite walls", "a portrait in the hall"];

/// A retrieval set of four documents and two queries, with more lines behind each file's own.
fn beir(place: &Place, name: &str, more: [&str; 4]) -> String {
    let rows = |prefix: &str, texts: &[&str]| -> String {
        let row = |(i, text): (usize, &&str)| {
            format!("{}\n", json!({ "_id": format!("{prefix}{i}"), "text": text }))
        };
        texts.iter().enumerate().map(row).collect()
    };
    let queries = rows("q", &["where is the river", "what is of iron"]);
    place.write(&format!("{name}/corpus.jsonl"), rows("d", &CORPUS) + more[0]);
    place.write(&format!("{name}/queries.jsonl"), queries + more[1]);
    let judged = "query-id\tcorpus-id\tscore\nq0\td0\t2\nq0\td3\t1\nq1\td1\t1\n";
    place.write(&format!("{name}/qrels/test.tsv"), format!("{judged}{}", more[2]));
    if !more[3].is_empty() {
        place.write(&format!("{name}/top_ranked.jsonl"), more[3]);
    }
    place.folder.arg(name)
}

#[test]
fn what_a_set_says_twice_counts_once_and_contradictions_are_refused() {
    let place = Place::new();
    let scores = |name: &str, more: [&str; 4], task: &str| -> (Value, String) {
        let output = place.eval(task, &beir(&place, name, more)).output().unwrap();
        let notes = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{notes}");
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let all: BTreeMap<String, f64> = serde_json::from_value(found["scores"].clone()).unwrap();
        assert!(all.values().all(|score| (0.0..=1.0).contains(score)), "{all:?}");
        (found["scores"].clone(), notes)
    };
    let document = r#"{"_id":"d0","text":"a river"}"#.to_string() + "\n";
    let query = r#"{"_id":"q0","text":"where is the river"}"#.to_string() + "\n";
    let (clean, notes) = scores("clean", ["", "", "", ""], "retrieval");
    assert!(!notes.contains("twice"), "{notes}");
    let twice = [&document.repeat(2), &query, "q0\td0\t2\nq1\tgone\t1\nq1\tgone\t1\n", ""];
    let (found, notes) = scores("twice", twice, "retrieval");
    has(&notes, &["twice", "2 documents", "1 query", "2 judgements"]);
    // Of q1 a document is judged that the corpus lacks: what it finds is now half of what there is.
    assert!(found["recall_at_10"].as_f64().unwrap() < clean["recall_at_10"].as_f64().unwrap());
    let (same, _) = scores("same", [&document, &query, "q0\td0\t2\n", ""], "retrieval");
    assert_eq!(same, clean);

    let list = |ids: &str| format!("{{\"query-id\":\"q0\",\"corpus-ids\":[{ids}]}}\n");
    let (plain, _) = scores("list", ["", "", "", &list(r#""d0","d1","d2""#)], "reranking");
    let again = list(r#""d0","d1","d0","d2""#).repeat(2);
    let (found, notes) = scores("lists", ["", "", "", &again], "reranking");
    assert_eq!(found, plain);
    has(&notes, &["candidates"]);

    let mut number = 0;
    let mut error = |more: [&str; 4], task: &str| {
        number += 1;
        failure(place.eval(task, &beir(&place, &format!("bad{number}"), more)).arg("--quiet"))
    };
    let other = document.replace("a river", "a lake");
    has(&error([&other, "", "", ""], "retrieval"), &["corpus.jsonl:5", "\"d0\"", "corpus.jsonl:1"]);
    let other = query.replace("river", "lake");
    has(&error(["", &other, "", ""], "retrieval"), &["queries.jsonl:3", "queries.jsonl:1"]);
    has(&error(["", "", "q0\td0\t1\n", ""], "retrieval"), &["test.tsv:5", "test.tsv:2", "\"d0\""]);
    let lists = list(r#""d0","d1""#) + &list(r#""d1","d0""#);
    has(&error(["", "", "", &lists], "reranking"), &["top_ranked.jsonl:2", "top_ranked.jsonl:1"]);
    for grade in ["1e999", "nan", "-1e300", "inf", ""] {
        let line = format!("q1\td0\t{grade}\n");
        has(&error(["", "", &line, ""], "retrieval"), &["test.tsv:5", "score"]);
    }
    // A grade below 0 is "judged, and not relevant".
    scores("below", ["", "", "q1\td2\t-1\n", ""], "retrieval");
}

#[test]
fn a_run_with_lines_twice_scores_as_without() {
    let place = Folder::new();
    let qrels = place.write("qrels.txt", "1 0 a 3\n1 0 b 0\n1 0 c 1\n1 0 a 3\n");
    let run = "1 Q0 b 1 9 x\n1 Q0 a 2 8 x\n1 Q0 d 3 7 x\n1 Q0 a 4 8 x\n";
    let path = place.write("run.txt", run);
    let mut command = kiln(&["eval", "trec", "--json", &qrels, &path]);
    let output = command.assert().success().get_output().clone();
    has(&String::from_utf8(output.stderr).unwrap(), &["left out 2 lines"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    // b, a, d with grades 0, 3, -; relevant are a (3) and c (1).
    // nDCG = (3 / log2 3) / (3 / log2 2 + 1 / log2 3) = 1.89279 / 3.63093 = 0.52130;
    // average precision = (1 / 2) / 2; recall = 1 / 2; P_5 = 1 / 5; reciprocal rank = 1 / 2.
    for (name, expected) in [
        ("ndcg", 0.521_296_1),
        ("map", 0.25),
        ("recall_1000", 0.5),
        ("P_5", 0.2),
        ("recip_rank", 0.5),
        ("num_ret", 3.0),
        ("num_rel", 2.0),
    ] {
        let value = found["all"][name].as_f64().unwrap();
        assert!((value - expected).abs() < 1e-6, "{name}: {value}");
    }
    let error = |qrels: &str, run: &str| {
        let (qrels, run) = (place.write("q.txt", qrels), place.write("r.txt", run));
        failure(&mut kiln(&["eval", "trec", "--quiet", &qrels, &run]))
    };
    let one = "1 0 a 1\n";
    has(&error(one, &run.replace("4 8 x", "4 6 x")), &["r.txt:4", "line 2", "a is there twice"]);
    has(&error("1 0 a 1\n1 0 a 2\n", run), &["q.txt:2", "line 1", "grade"]);
    for score in ["1e999", "nan", "-inf"] {
        has(&error(one, &format!("1 Q0 a 1 {score} x\n")), &["r.txt:1", "score"]);
        has(&error(&format!("1 0 a {score}\n"), run), &["q.txt:1", "grade"]);
    }
    has(&error(one, "1 Q0 \x1b[2J 1 9 x x\n"), &["r.txt:1", "7 words"]);
    has(&error(one, "1 Q0 \x1b[2J 1 x x\n"), &["r.txt:1"]);
    has(&failure(&mut kiln(&["eval", "trec", "--level", "nan", &qrels, &path])), &["--level"]);
}

#[test]
fn kept_results_are_what_a_task_can_give() {
    let place = Place::new();
    let sts = r#"{"sentence1":"a river","sentence2":"a ship","score":3}"#;
    let rows = format!("{sts}\n{}\n", sts.replace("a ship", "a lake").replace('3', "4"));
    place.write("data/sts.jsonl", rows);
    let name = "<script>alert(1)</script>";
    let suite = format!("[[task]]\nname = '{name}'\nkind = 'sts'\npath = 'sts.jsonl'\n");
    let suite = place.write("suite.toml", suite);
    let (data, output) = (place.folder.arg("data"), place.folder.arg("results"));
    let args = ["eval", "--suite", &suite, "--data", &data, "--output", &output];
    place.command(&args).assert().success();
    let inside = |folder: &Path| std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let results = inside(&inside(Path::new(&output)));
    let page = std::fs::read_to_string(results.join("report.html")).unwrap();
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"), "{page}");
    let kept = inside(&results.join("parts"));
    let whole = std::fs::read_to_string(&kept).unwrap();
    let compare = || failure(&mut kiln(&["compare", &output, &output]));
    let mut wrong: Value = serde_json::from_str(&whole).unwrap();
    wrong["scores"]["cosine_spearman"] = 1.5.into();
    std::fs::write(&kept, wrong.to_string()).unwrap();
    has(&compare(), &["cosine_spearman is 1.5", "parts"]);
    std::fs::write(&kept, &whole).unwrap();
    std::fs::write(kept.with_file_name("copy.json"), &whole).unwrap();
    has(&compare(), &["is in another file too"]);
}

#[test]
fn a_score_outside_its_range_is_an_error_that_names_task_and_measure() {
    let place = Place::new();
    // Texts without any label: a mean of nothing.
    let rows = "{\"text\":\"a\",\"labels\":[]}\n{\"text\":\"b\",\"labels\":[]}\n";
    let data = place.write("empty.jsonl", rows);
    has(&failure(place.eval("clustering", &data).arg("--quiet")), &["empty: ami is NaN"]);
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_text() {
    let place = Place::new();
    let plain = place.embed(&place.write("plain.txt", "a river\na ship\n"));
    let marked = |text: &str| [b"\xEF\xBB\xBF", text.as_bytes()].concat();
    let packed = |text: &str| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&marked(text)).unwrap();
        packed.finish().unwrap()
    };
    let lines = "{\"text\":\"a river\"}\n{\"text\":\"a ship\"}\n";
    for (name, bytes) in [
        ("a.txt", marked("a river\r\na ship\r\n")),
        ("a.txt.gz", packed("a river\na ship\n")),
        ("a.jsonl", marked(lines)),
        ("a.csv", marked("text,id\na river,1\na ship,2\n")),
        ("a.tsv", marked("text\tid\n\"a river\"\t1\na ship\t2\n")),
    ] {
        assert_eq!(place.embed(&place.write(name, bytes)), plain, "{name}");
    }
    let output = place.folder.arg("stdin.jsonl");
    let args = ["embed", "--input", "-", "--output", &output];
    place.command(&args).write_stdin(marked(lines)).assert().success();
    let row = std::fs::read_to_string(&output).unwrap();
    assert_eq!(values(&serde_json::from_str(row.lines().next().unwrap()).unwrap()), plain[0]);

    // Judgements, recipes and suites too.
    let set = beir(&place, "set", ["", "", "", ""]);
    let clean = stdout(place.eval("retrieval", &set).arg("--quiet"));
    for name in ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"] {
        let path = format!("set/{name}");
        let text = std::fs::read_to_string(place.folder.path(&path)).unwrap();
        place.write(&path, marked(&text));
    }
    let again = stdout(place.eval("retrieval", &set).arg("--quiet"));
    let scores = |text: &str| serde_json::from_str::<Value>(text).unwrap()["scores"].clone();
    assert_eq!(scores(&again), scores(&clean));
    let recipe = place.write("r.toml", marked("name = 'x'\n[model]\n"));
    has(&failure(&mut kiln(&["train", "--recipe", &recipe, "--dry-run"])), &["r.toml", "stage"]);
    let qrels = place.write("qrels.txt", marked("1 0 a 1\n"));
    let run = place.write("run.txt", marked("1 Q0 a 1 9 x\n"));
    has(&stdout(&mut kiln(&["eval", "trec", "-m", "map", &qrels, &run])), &["1.0000"]);

    let wide: Vec<u8> = "\u{feff}a river\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for name in ["w.txt", "w.jsonl", "w.csv"] {
        has(&place.embed_error(&place.write(name, &wide)), &[name, "UTF-16", "iconv"]);
    }
    has(&place.embed_error(&place.write("z.txt", &wide[2..])), &["z.txt:1", "zero byte"]);
    let recipe = place.write("w.toml", &wide);
    has(&failure(&mut kiln(&["train", "--recipe", &recipe, "--dry-run"])), &["w.toml", "UTF-16"]);
}

#[test]
fn a_stray_quote_swallows_no_rows() {
    let place = Place::new();
    let rows = "a ship,1\n".repeat(1000);
    for (name, text, parts) in [
        // A quote at the end of the file closes the first one.
        (
            "a.csv",
            format!("text,n\na river,1\n\"a hall,1\n{rows}end\",2\n"),
            ["a.csv:3", "500 lines"],
        ),
        ("b.csv", format!("text,n\na river,1\n\"a hall,1\n{rows}"), ["b.csv:3", "quote"]),
        ("c.tsv", "text\tn\n\"a hall\t1\n".into(), ["c.tsv:2", "before the file ends"]),
        ("d.csv", "text,n\n\"a\" hall,1\n".into(), ["d.csv:2", "middle"]),
        ("e.csv", "text,n\na,hall,1\n".into(), ["e.csv:2", "3 fields"]),
        ("f.csv", "text,n\na hall\n".into(), ["f.csv:2", "1 fields"]),
        ("g.csv", "text,text\na hall,1\n".into(), ["g.csv:1", "\"text\""]),
        ("h.csv", "text\na \u{0}hall\n".into(), ["h.csv:2", "zero byte"]),
    ] {
        has(&place.embed_error(&place.write(name, text)), &parts);
    }
    // What is meant by the quotes stays.
    let text = "a, \"long\"\nhall";
    let quoted = place.write("q.csv", "text,n\n\"a, \"\"long\"\"\nhall\",1\n5\" pipe,2\n");
    let line = format!("{}\n{{\"text\":\"5\\\" pipe\"}}\n", json!({ "text": text }));
    assert_eq!(place.embed(&quoted), place.embed(&place.write("q.jsonl", line)));
}

#[test]
fn rows_that_mean_two_things_are_refused() {
    let place = Place::new();
    let deep = format!("{{\"text\":\"a\",\"x\":{}1{}}}", "[".repeat(300), "]".repeat(300));
    for (name, text, parts) in [
        ("a.jsonl", "{\"text\":\"a\",\"text\":\"b\"}\n", ["a.jsonl:1", "twice"]),
        ("b.jsonl", &deep, ["b.jsonl:1", "recursion"]),
        ("c.json", "[\n{\"text\":\"a\"}]", ["c.json:1", "not a JSON object"]),
        ("d.jsonl", "{\"text\":\"a\",\"n\":1e999}", ["d.jsonl:1", "out of range"]),
        ("e.jsonl", "{\"text\":NaN}", ["e.jsonl:1", "not a JSON object"]),
        ("f.txt", "a river\ra ship\n", ["f.txt:1", "carriage return"]),
        ("g.txt", "a\0b\n", ["g.txt:1", "zero byte"]),
    ] {
        has(&place.embed_error(&place.write(name, text)), &parts);
    }
    has(&place.embed_error(&place.write("x.parquet.gz", "PAR1")), &["x.parquet.gz", "unpack"]);
    let data = place.write(
        "n.jsonl",
        "{\"query\":\"q\",\"pos\":[\"p\"],\"neg\":[\"n\"],\"neg_scores\":[1e300]}\n",
    );
    let output = place.folder.arg("mined.jsonl");
    let error = failure(&mut place.command(&["mine", "--data", &data, "--output", &output]));
    has(&error, &["n.jsonl:1", "neg_scores", "1e+300"]);
}

fn npy(shape: &str, values: &[f32]) -> Vec<u8> {
    let head = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
    let length = (head.len() as u16).to_le_bytes();
    let values = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    [b"\x93NUMPY\x01\0", &length[..], head.as_bytes(), &values].concat()
}

#[test]
fn a_vector_without_direction_is_no_hit() {
    let place = Place::new();
    let mut rows = [0.5f32; 48];
    let lines = |rows: &[f32]| -> String {
        rows.chunks(16).map(|row| format!("{}\n", json!({ "embedding": row }))).collect()
    };
    let ends = [("v.npy", "row 2"), ("v.parquet", "row 2"), ("v.safetensors", "v.safetensors")];
    let write = |name: &str, rows: &[f32]| match name {
        "v.npy" => place.write(name, npy("(3, 16)", rows)),
        "v.parquet" => {
            let lists = rows.chunks(16).map(|row| Some(row.iter().map(|value| Some(*value))));
            let lists: ArrayRef =
                Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(lists));
            let path = place.folder.path(name);
            write_parquet(&path, vec![("embedding", lists)]);
            path.display().to_string()
        }
        _ => {
            let tensor = ("embedding".to_string(), vec![3, 16], rows.to_vec());
            place.write(name, kiln_embed::checkpoint::write_safetensors(&[tensor], &[]).unwrap())
        }
    };
    for (name, i) in ends {
        let index = write(name, &rows);
        let args = ["search", "--json", "--query", "a river", "--index", &index];
        stdout(&mut place.command(&args));
        for (value, word) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
            rows[20] = value;
            has(&place.index_error(&write(name, &rows)), &[name, i, word]);
            rows[20] = 0.5;
        }
        rows[16..32].fill(0.0);
        has(&place.index_error(&write(name, &rows)), &[name, "row 2", "null vector"]);
        rows[16..32].fill(0.5);
    }
    let good = lines(&rows[..16]);
    let row = |text: &str| format!("{good}{{\"embedding\":{text}}}\n");
    let sixteen = |first: &str| format!("[{first}{}]", ",0.5".repeat(15));
    for (text, word) in [
        (row(&sixteen("NaN")), "expected"),
        (row(&sixteen("null")), "null"),
        (row(&sixteen("1e300")), "out of range"),
        (row("[0.5]"), "1 dimensions"),
        (row("[]"), "empty"),
        (row(&format!("[{}0]", "0,".repeat(15))), "null vector"),
    ] {
        has(&place.index_error(&place.write("v.jsonl", text)), &["v.jsonl:2", word]);
    }
    for (shape, word) in [
        ("(4294967296, 4294967296)", "larger than any memory"),
        ("(1152921504606846976, 16)", "larger than any memory"),
        ("(4, 16)", "cut off"),
        ("(2, 16)", "too long"),
        ("(-1, 16)", "negative"),
    ] {
        has(&place.index_error(&place.write("s.npy", npy(shape, &rows))), &["s.npy", word]);
    }
    has(&place.index_error(&place.write("v.npz", "PK")), &["v.npz", ".npy"]);
}

#[test]
fn modules_are_computed_in_the_order_of_their_list_or_refused() {
    let place = Place::new();
    let file = Path::new(&place.model).join("modules.json");
    let texts = place.folder.texts();
    let module = |i: usize, kind: &str| {
        let path = if kind == "Pooling" { "1_Pooling" } else { "" };
        json!({ "idx": i, "name": i.to_string(), "path": path,
            "type": format!("sentence_transformers.models.{kind}") })
    };
    let list = |kinds: &[&str]| -> Value {
        kinds.iter().enumerate().map(|(i, kind)| module(i, kind)).collect()
    };
    let write = |list: Value| std::fs::write(&file, list.to_string()).unwrap();
    write(list(&["Transformer", "Pooling", "Normalize"]));
    place.embed(&texts);
    let mut swapped = list(&["Transformer", "Pooling", "Normalize"]);
    swapped[1]["idx"] = 2.into();
    swapped[2]["idx"] = 1.into();
    for (modules, word) in [
        (list(&["Transformer", "Pooling", "Normalize", "Dense"]), "Dense comes after Normalize"),
        (list(&["Transformer", "Dense", "Pooling"]), "Pooling comes after Dense"),
        (list(&["Transformer", "Pooling", "Pooling"]), "two modules Pooling"),
        (list(&["Transformer", "Pooling", "Normalize", "Normalize"]), "two modules Normalize"),
        (list(&["Pooling", "Transformer"]), "first module is Pooling"),
        (list(&["Transformer", "Normalize"]), "no Pooling"),
        (list(&["Transformer", "Pooling", "CNN"]), "\"CNN\""),
        (list(&[]), "no module"),
        (swapped, "idx 2"),
    ] {
        write(modules);
        has(&place.embed_error(&texts), &["modules.json", word]);
    }
}

// Bombs.

/// Addresses that the binary gets where it reads a bomb; the bombs unpack to more.
const KILOBYTES: usize = 2_500_000;

fn write_parquet(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let packed = WriterProperties::builder().set_compression(Compression::ZSTD(Default::default()));
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(packed.build())).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[test]
#[cfg(target_os = "linux")]
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
#[cfg(target_os = "linux")]
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
#[cfg(target_os = "linux")]
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
#[cfg(unix)]
fn what_is_no_regular_file_is_refused_before_it_is_opened() {
    let place = Place::new();
    let made = |kind: &str| {
        let path = place.folder.path(kind);
        match kind {
            "fifo" => {
                let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
                assert!(made.success());
            }
            "socket" => drop(std::os::unix::net::UnixListener::bind(&path).unwrap()),
            "device" => std::os::unix::fs::symlink("/dev/zero", &path).unwrap(),
            _ => std::fs::create_dir(&path).unwrap(),
        }
        path
    };
    let out = place.folder.arg("out.npy");
    let at = |name: &str| place.folder.arg(name);
    for (kind, word) in
        [("fifo", "a FIFO"), ("socket", "a socket"), ("device", "a device"), ("folder", "a folder")]
    {
        let from = made(kind);
        let link = |name: &str| {
            let path = place.folder.path(name);
            let _ = std::fs::remove_file(&path);
            std::os::unix::fs::symlink(&from, &path).unwrap();
            path.display().to_string()
        };
        let qrels = place.write("qrels.txt", "1 0 a 1\n");
        let (texts, lines, index) = (link("x.txt"), link("x.jsonl"), link("x.npy"));
        let (recipe, suite, run) = (link("x.toml"), link("s.toml"), link("run.txt"));
        let model = place.model.as_str();
        let all: [&[&str]; 10] = [
            &["embed", "--model", model, "--input", &texts, "--output", &out],
            &["embed", "--model", model, "--input", &lines, "--output", &out],
            &["search", "--model", model, "--query", "a", "--corpus", &link("x.csv")],
            &["search", "--model", model, "--query", "a", "--corpus", &link("x.parquet")],
            &["search", "--model", model, "--query", "a", "--index", &index],
            &["search", "--model", model, "--query", "a", "--index", &link("x.safetensors")],
            &["similarity", "--model", model, "--input", &lines],
            &["eval", "trec", &qrels, &run],
            &["train", "--recipe", &recipe, "--dry-run"],
            &["eval", "--model", model, "--suite", &suite, "--output", &at("results")],
        ];
        for args in all {
            let error = failure(kiln(args).timeout(std::time::Duration::from_secs(60)));
            assert!(error.contains(word), "{args:?}: {error}");
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
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
fn a_file_that_grows_is_read_to_where_it_ended() {
    let folder = Folder::new();
    let path = folder.write("grows.txt", "one\ntwo\n");
    let file = TextFile::open(&path, Columns::required(&[])).unwrap();
    let mut end = std::fs::File::options().append(true).open(&path).unwrap();
    writeln!(end, "three").unwrap();
    let texts: Vec<String> = file.records().unwrap().map(|row| row.unwrap().joined()).collect();
    assert_eq!((texts, file.count().unwrap()), (vec!["one".to_string(), "two".into()], 2));
}

#[test]
fn garbage_behind_a_packed_file_is_said() {
    let place = Place::new();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(b"a river\n").unwrap();
    let packed = packed.finish().unwrap();
    // Two packed parts are one text.
    assert_eq!(place.embed(&place.write("two.txt.gz", packed.repeat(2))).len(), 2);
    let garbage = [&packed[..], b"garbage"].concat();
    has(&place.embed_error(&place.write("g.txt.gz", garbage)), &["g.txt.gz", "damaged"]);
    let packed = zstd::encode_all(&b"a river\n"[..], 1).unwrap();
    let garbage = [&packed[..], b"garbage"].concat();
    has(&place.embed_error(&place.write("g.txt.zst", garbage)), &["g.txt.zst", "damaged"]);
}

#[test]
#[cfg(target_os = "linux")]
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

#[test]
fn metrics_of_a_run_that_were_changed() {
    let folder = Folder::new();
    let rows: String = (0..8)
        .map(|n| format!("{{\"query\":\"where is {n}\",\"pos\":[\"{n} is here\"]}}\n"))
        .collect();
    folder.write("data.jsonl", rows);
    let recipe = folder.write(
        "r.toml",
        "name = 'x'\n[model]\nmax_length = 16\n[model.new]\nvocab_size = 300\nhidden_size = 16\n\
         intermediate_size = 24\nlayers = 1\nheads = 2\n[[stage]]\nname = 's'\ndata = ['data.jsonl']\n\
         steps = 2\nbatch_size = 2\nlr = 1e-3\n",
    );
    let out = folder.arg("out");
    let args = ["--quiet", "train", "--recipe", &recipe, "--output", &out];
    kiln(&args).args(["--checkpoint-every", "1"]).assert().success();
    let metrics = folder.path("out/metrics.jsonl");
    let whole = std::fs::read_to_string(&metrics).unwrap();
    std::fs::write(&metrics, format!("nonsense\n{whole}")).unwrap();
    has(&failure(kiln(&args).arg("--resume")), &["metrics.jsonl:1", "--output"]);
    std::fs::write(&metrics, "").unwrap();
    has(&failure(kiln(&args).arg("--resume")), &["metrics.jsonl", "steps", "--output"]);
}

// The terminal.

#[test]
fn no_text_speaks_to_the_terminal() {
    let place = Place::new();
    let evil = "\u{1b}[2J\u{1b}]0;owned\u{7} river \u{9b}31m\u{202e}txt\u{7f}";
    let row = json!({ "_id": "d\u{1b}[31m\n1", "text": evil });
    let corpus = place.write("evil.jsonl", format!("{row}\n"));
    let calm = |text: &str| {
        let quiet = |letter: char| !letter.is_control() || letter == '\n' || letter == '\t';
        assert!(text.chars().all(quiet) && !text.contains('\u{202e}'), "{text:?}");
    };
    let args = ["search", "--query", "river\u{1b}[31m", "--corpus", &corpus];
    let found = stdout(&mut place.command(&args));
    calm(&found);
    has(&found, &["\\u{1b}[2J", "d\\u{1b}[31m\\n1"]);
    // For programs it is what it was.
    let found = stdout(place.command(&args).arg("--json"));
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found[0]["hits"][0]["text"], evil);
    let pairs = json!({ "sentence1": evil, "sentence2": evil });
    let pairs = place.write("pairs.jsonl", format!("{pairs}\n"));
    calm(&stdout(&mut place.command(&["similarity", "--input", &pairs])));
    // Errors and notes that quote what a file holds, or name it.
    let wrong = place.write("wrong.jsonl", format!("{}\n", json!({ evil: [evil] })));
    let error = place.embed_error(&wrong);
    calm(&error);
    has(&error, &["wrong.jsonl:1", "\\u{1b}[2J"]);
    let huge = json!({ "text": vec!["x"; 100_000] });
    let error = place.embed_error(&place.write("huge.jsonl", format!("{huge}\n")));
    assert!(error.len() < 3000, "{}", error.len());
    calm(&place.embed_error(&place.write("n\u{1b}[31m.txt", "a\0b")));
    let suite = format!("[[task]]\nname = {}\nkind = 'sts'\npath = 'gone'\n", json!("t\u{1b}[31m"));
    let suite = place.write("suite.toml", suite);
    let args = ["eval", "--suite", &suite, "--output", &place.folder.arg("results")];
    let output = place.command(&args).output().unwrap();
    let notes = String::from_utf8(output.stderr).unwrap();
    calm(&notes);
    calm(&String::from_utf8(output.stdout).unwrap());
    has(&notes, &["t\\u{1b}[31m"]);
}

// What is written.

#[test]
#[cfg(unix)]
fn outputs_take_no_place_that_is_not_theirs() {
    let place = Place::new();
    let rows = "{\"id\":\"a\",\"text\":\"a river\"}\n";
    let texts = place.write("texts.jsonl", rows);
    std::os::unix::fs::symlink(&texts, place.folder.path("link.jsonl")).unwrap();
    std::fs::create_dir(place.folder.path("folder.npy")).unwrap();
    std::os::unix::fs::symlink("/dev/null", place.folder.path("null.npy")).unwrap();
    let link = place.folder.arg("link.jsonl");
    let embed = |output: &str| {
        failure(&mut place.command(&["embed", "--input", &texts, "--output", output]))
    };
    has(&embed(&texts), &["texts.jsonl", "overwritten"]);
    has(&embed(&link), &["link.jsonl", "overwritten"]);
    has(&embed(&place.folder.arg("folder.npy")), &["folder.npy", "folder"]);
    has(&embed(&place.folder.arg("null.npy")), &["null.npy", "regular file"]);
    has(&embed("/dev/null"), &["/dev/null", ".npy"]);
    let args = ["search", "--query", "a", "--corpus", &texts, "--save-index", &texts];
    has(&failure(&mut place.command(&args)), &["overwritten"]);
    let data = place.write("data.jsonl", "{\"query\":\"a\",\"pos\":[\"b\"]}\n");
    let args = ["mine", "--data", &data, "--output", &data];
    has(&failure(&mut place.command(&args)), &["data.jsonl", "overwritten"]);
    assert_eq!(std::fs::read_to_string(&texts).unwrap(), rows);
    assert!(place.folder.path("null.npy").is_symlink());
}

#[test]
fn scores_of_other_data_are_refused() {
    let place = Place::new();
    let rows = |texts: [&str; 2]| -> String {
        let row = |text| json!({ "query": text, "pos": [format!("{text} too")] });
        texts.iter().map(|text| format!("{}\n", row(text))).collect()
    };
    let corpus = place.write("corpus.txt", "a hall\na ship\na lake\n");
    let corpus = place.write("corpus.jsonl", {
        let texts = std::fs::read_to_string(corpus).unwrap();
        texts.lines().map(|text| format!("{}\n", json!({ "text": text }))).collect::<String>()
    });
    let data = place.write("data.jsonl", rows(["a river", "a town"]));
    let (scores, output) = (place.folder.arg("scores.jsonl"), place.folder.arg("mined.jsonl"));
    let args = ["mine", "--corpus", &corpus, "--output", &output, "--percent-of-positive", "0"];
    let actual =
        place.command(&args).args(["--data", &data, "--scores", &scores]).output().unwrap();
    assert!(actual.status.success(), "{}", String::from_utf8_lossy(&actual.stderr));
    let again = |data: &str| {
        let mut command = kiln(&args);
        command.args(["--quiet", "--data", data, "--from-scores", &scores]);
        command
    };
    again(&data).assert().success();
    let other = place.write("other.jsonl", rows(["a river", "a wood"]));
    has(&failure(&mut again(&other)), &["scores.jsonl", "other queries"]);
    let text = std::fs::read_to_string(&scores).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    place.write("scores.jsonl", [lines[0], lines[1], lines[1]].join("\n"));
    has(&failure(&mut again(&data)), &["scores.jsonl:3", "twice"]);
}
