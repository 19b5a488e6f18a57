//! Text files: encodings, quotes, rows that mean two things, and ends that are no end.

use std::io::Write as _;

use serde_json::{Value, json};
use train_native::text::{Columns, TextFile};

use super::{Place, beir, has, values};
use crate::harness::{Folder, failure, kiln, stdout};

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
