//! Training data cleaned: by filters alone, by a teacher, and by judges behind an endpoint.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::harness::{Folder, failure, kiln, names, stdout};

fn lines(folder: &Folder, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.path(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn summary(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// A chat endpoint that says of each passage with the word `flood` that it answers.
struct Judges {
    url: String,
    asked: Arc<AtomicUsize>,
}

impl Judges {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let count = count.clone();
                std::thread::spawn(move || answer(stream.unwrap(), &count));
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn answer(mut stream: TcpStream, count: &AtomicUsize) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    if length == 0 || reader.read_exact(&mut body).is_err() {
        return;
    }
    count.fetch_add(1, Ordering::SeqCst);
    let body: Value = serde_json::from_slice(&body).unwrap();
    let prompt = body["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap();
    let passage =
        prompt.split("--- passage ").nth(1).unwrap().split("--- end of passage").next().unwrap();
    let answers = passage.contains("flood");
    let said =
        json!({"answerable": answers, "relatedness": if answers { 9 } else { 2 }}).to_string();
    let reply = json!({
        "choices": [{"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10},
    })
    .to_string();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
    let _ = write!(stream, "{head}content-length: {}\r\n\r\n{reply}", reply.len());
}

const ROWS: &str = r#"{"id": 7, "query": "the river", "pos": ["the river floods the lower streets"], "neg": ["granite walls", "a portrait"], "type": "short-long", "meta": {"z": 1, "a": [1, 2]}}
{"query": "A violinist", "pos": ["a violinist."], "type": "short-long"}
{"query": "the river", "positive": "The river floods the lower streets!", "negatives": {"n1": "tea and timber", "n3": "a hall"}, "type": "short-long"}
{"query": "a ship <script>alert(1)</script>", "positive": "the ship carried tea", "negatives": {"n1": "the ship carried tea", "n2": "petals", "n4": "a hall"}, "type": "short-long"}
"#;

#[test]
fn rows_are_cleaned_without_a_model_and_keep_their_fields() {
    let folder = Folder::new();
    let data = folder.write("rows.jsonl", ROWS);
    let out = folder.arg("out");
    let done = summary(&stdout(&mut kiln(&["refine", "--json", "-d", &data, "-o", &out])));
    assert_eq!((&done["rows"], &done["kept"]), (&4.into(), &2.into()), "{done}");
    assert_eq!(done["left_out"][0]["name"], "leak", "{done}");
    let kept = std::fs::read_to_string(folder.path("out/kept.jsonl")).unwrap();
    assert_eq!(kept.lines().next(), ROWS.lines().next(), "as it came");
    let kept = lines(&folder, "out/kept.jsonl");
    assert_eq!(kept[1]["negatives"], json!({"n2": "petals", "n4": "a hall"}));
    let dropped = lines(&folder, "out/dropped.jsonl");
    let why = |i: usize| dropped[i]["dropped"]["filter"].as_str().unwrap().to_string();
    assert_eq!((why(0), why(1)), ("equal".into(), "duplicates".into()));
    assert_eq!(
        names(&folder.path("out")),
        [".kiln-run", "dropped.jsonl", "kept.jsonl", "report.html", "summary.json"]
    );
    let page = std::fs::read_to_string(folder.path("out/report.html")).unwrap();
    assert!(page.contains("&lt;script&gt;") && !page.contains("<script"), "{page}");

    // What is kept is training data, and passes as it is.
    let (kept, again) = (folder.arg("out/kept.jsonl"), folder.arg("again"));
    let done = summary(&stdout(&mut kiln(&["refine", "--json", "-d", &kept, "-o", &again])));
    assert_eq!((&done["rows"], &done["kept"]), (&2.into(), &2.into()), "{done}");
    let text = |name: &str| std::fs::read_to_string(folder.path(name)).unwrap();
    assert_eq!(text("again/kept.jsonl"), text("out/kept.jsonl"));
    let third = folder.arg("third");
    let people =
        stdout(&mut kiln(&["refine", "--quiet", "-d", &data, "-o", &third, "--leak", &kept]));
    assert!(people.contains("of 4 rows kept") && people.contains("leak"), "{people}");

    // CSV and Parquet as well.
    let csv = folder.write("rows.csv", "anchor,positive,negative\na b,c d,e f\nq,Q,n\n");
    let done =
        summary(&stdout(&mut kiln(&["refine", "--json", "-d", &csv, "-d", &data, "-o", &out])));
    assert_eq!((&done["rows"], &done["kept"]), (&6.into(), &3.into()), "{done}");
}

#[test]
fn a_teacher_ranks_once() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let data = folder.write(
        "rows.jsonl",
        r#"{"query": "the river floods", "pos": ["the river floods the lower streets"], "neg": ["a portrait"]}
{"query": "a violinist", "pos": ["tea and timber on a ship"], "neg": ["a violinist from a small town", "granite walls"]}
{"query": "granite walls and a long way", "pos": ["granite walls and a long way up"], "neg": ["petals of pale blue"]}
"#,
    );
    let filters = |max: usize| {
        let text = format!(
            "[[filter]]\nkind = 'positive_rank'\nmax = {max}\n[[filter]]\nkind = 'rank_order'\ndrop = 'negative'\n\
             [[filter]]\nkind = 'negatives'\nmin = 1\n"
        );
        folder.write("filters.toml", text)
    };
    let out = folder.arg("out");
    let first = filters(3);
    let args = ["refine", "--json", "-d", &data, "-o", &out, "--filters", &first];
    let with = ["--model", &model, "--query-prompt", ""];
    let done = summary(&stdout(kiln(&args).args(with)));
    assert_eq!(done["teacher"].as_str().unwrap().split(',').next().unwrap(), model, "{done}");
    let page = std::fs::read_to_string(folder.path("out/report.html")).unwrap();
    assert!(page.contains("teacher&#39;s score") || page.contains("teacher's score"), "{page}");
    let kept = std::fs::metadata(folder.path("out/ranks.jsonl.zst")).unwrap().modified().unwrap();
    let ranks =
        || std::fs::metadata(folder.path("out/ranks.jsonl.zst")).unwrap().modified().unwrap();
    // Other thresholds: nothing is computed again.
    filters(1);
    let stricter = summary(&stdout(kiln(&args).args(with)));
    assert!(stricter["kept"].as_u64() <= done["kept"].as_u64(), "{stricter}");
    assert_eq!(ranks(), kept);
    // Nor with a prompt by name, once it was.
    let named = ["--model", &model, "--query-prompt-name", "query"];
    stdout(kiln(&args).args(named));
    assert_ne!(ranks(), kept);
    let kept = ranks();
    stdout(kiln(&args).args(named));
    assert_eq!(ranks(), kept);
    // Another model under the same name is another teacher.
    stdout(kiln(&args).args(with));
    let kept = ranks();
    folder.write("model/other.json", "{}");
    let other = kiln(&args).args(with).assert().success().get_output().clone();
    let error = String::from_utf8(other.stderr).unwrap();
    assert!(error.contains("another teacher") && ranks() != kept, "{error}");
    let kept = ranks();
    // Other weights are another teacher.
    let other =
        kiln(&args).args(with).args(["--weights", "int8"]).assert().success().get_output().clone();
    let error = String::from_utf8(other.stderr).unwrap();
    assert!(error.contains("another teacher") && ranks() != kept, "{error}");

    // What an earlier version kept says nothing of its format, and is computed anew.
    let path = folder.path("out/ranks.jsonl.zst");
    let text = zstd::decode_all(&*std::fs::read(&path).unwrap()).unwrap();
    let text = String::from_utf8(text).unwrap();
    let older = text.replacen("\"format\":1,", "", 1);
    assert_ne!(older, text);
    std::fs::write(&path, zstd::encode_all(older.as_bytes(), 3).unwrap()).unwrap();
    let kept = ranks();
    let again =
        kiln(&args).args(with).args(["--weights", "int8"]).assert().success().get_output().clone();
    let error = String::from_utf8(again.stderr).unwrap();
    assert!(error.contains("another version") && ranks() != kept, "{error}");

    let error = failure(kiln(&["--quiet"]).args(args));
    assert!(error.contains("--model") && error.contains("--without-teacher"), "{error}");
    let done = summary(&stdout(kiln(&args).arg("--without-teacher")));
    assert_eq!(done["left_out"].as_array().unwrap().len(), 2, "{done}");
    let deep = ["refine", "-d", &data, "-o", &out, "--filters", "linq", "--without-llm"];
    let error = failure(kiln(&["--quiet"]).args(deep).args(with).args(["--top-k", "20"]));
    assert!(error.contains("up to 100") && error.contains("--top-k"), "{error}");
}

#[test]
fn judges_are_asked_once() {
    let folder = Folder::new();
    let data = folder.write(
        "rows.jsonl",
        r#"{"query": "what does the river do", "pos": ["it floods the streets"], "neg": ["it carries tea", "the flood came"]}
{"query": "what does the river do", "pos": ["nobody knows"]}
{"query": "equal", "pos": ["Equal"]}
{"query": "what does the ship do", "pos": ["a flood took it"], "neg": ["it carries tea"]}
"#,
    );
    let judges = Judges::start();
    let filters = |least: u32| {
        let text = format!(
            "[[filter]]\nkind = 'equal'\n[[filter]]\nkind = 'answerable'\n[[filter]]\nkind = 'relatedness'\nmin_positive = {least}\n"
        );
        folder.write("filters.toml", text)
    };
    let (filters, again) = (filters(5), filters);
    let out = folder.arg("out");
    let args = ["refine", "--json", "-d", &data, "-o", &out, "--filters", &filters];
    let llm = ["--llm", &judges.url, "--llm-model", "judge"];
    let few =
        summary(&stdout(kiln(&args).args(llm).args(["--max-requests", "2", "--concurrency", "1"])));
    assert_eq!((judges.asked(), few["kept"].as_u64()), (2, Some(1)), "{few}");
    assert!(few["judges"]["stopped"]["budget"].is_string(), "{few}");
    let done = summary(&stdout(kiln(&args).args(llm)));
    // The row that is equal is not asked about.
    assert_eq!((judges.asked(), &done["kept"]), (6, &2.into()), "{done}");
    assert_eq!(lines(&folder, "out/kept.jsonl")[0]["neg"], json!(["it carries tea"]));
    again(10);
    let strict = summary(&stdout(kiln(&args).args(llm)));
    assert_eq!((judges.asked(), &strict["kept"]), (6, &0.into()), "{strict}");
    let page = std::fs::read_to_string(folder.path("out/report.html")).unwrap();
    assert!(page.contains("judged relatedness"), "{page}");

    // Prompts of the user's own are other questions.
    std::fs::create_dir(folder.path("prompts")).unwrap();
    let own =
        "{{ query }}\n--- passage {{ mark }} ---\n{{ passage }}\n--- end of passage {{ mark }} ---";
    folder.write("prompts/answerable.jinja", own);
    stdout(kiln(&args).args(llm).args(["--prompts", &folder.arg("prompts")]));
    assert_eq!(judges.asked(), 12);

    let error = failure(kiln(&["--quiet"]).args(args));
    assert!(error.contains("--llm") && error.contains("--without-llm"), "{error}");
    let done = summary(&stdout(kiln(&args).arg("--without-llm")));
    assert_eq!(
        (&done["kept"], done["left_out"].as_array().unwrap().len()),
        (&3.into(), 2),
        "{done}"
    );
}

#[test]
fn mistakes_are_named() {
    let folder = Folder::new();
    let data = folder.write("rows.jsonl", ROWS);
    let out = folder.arg("out");
    let error = |more: &[&str]| failure(kiln(&["--quiet", "refine", "-o", &out]).args(more));
    let broken = folder.write("broken.jsonl", format!("{ROWS}{{\"query\": \"q\"\n"));
    assert!(error(&["-d", &broken]).contains("broken.jsonl:5"));
    let labels = folder.write("labels.jsonl", "{\"text\": \"a\", \"label\": \"b\"}\n");
    assert!(error(&["-d", &labels]).contains("queries with positives"));
    let unknown = folder.write("unknown.toml", "[[filter]]\nkind = 'lenght'\n");
    let unknown = error(&["-d", &data, "--filters", &unknown]);
    assert!(unknown.contains("unknown.toml") && unknown.contains("filter 1 (lenght)"), "{unknown}");
    assert!(error(&["-d", &data, "--filters", "nobody"]).contains("plain, linq"));
    // Nothing was written, and nothing of the user's is replaced.
    assert!(!folder.path("out/kept.jsonl").exists());
    std::fs::create_dir(folder.path("theirs")).unwrap();
    folder.write("theirs/kept.jsonl", "{}");
    let theirs =
        failure(&mut kiln(&["--quiet", "refine", "-d", &data, "-o", &folder.arg("theirs")]));
    assert!(theirs.contains("did not write it"), "{theirs}");
    let own = failure(&mut kiln(&[
        "--quiet",
        "refine",
        "-d",
        &folder.arg("theirs/kept.jsonl"),
        "-o",
        &folder.arg("theirs"),
    ]));
    assert!(own.contains("kept.jsonl"), "{own}");

    let done =
        stdout(&mut kiln(&["refine", "--json", "-d", &broken, "-o", &out, "--skip-bad-rows"]));
    assert_eq!(summary(&done)["bad_rows"], 1, "{done}");
    let list = stdout(&mut kiln(&["refine", "--list-filters"]));
    assert!(list.contains("negative_rank") && list.contains("linq"), "{list}");
    let linq = stdout(&mut kiln(&["refine", "--print-filters", "--filters", "linq"]));
    let copy = folder.write("copy.toml", linq);
    let done = stdout(&mut kiln(&[
        "refine",
        "--json",
        "-d",
        &data,
        "-o",
        &out,
        "--filters",
        &copy,
        "--without-llm",
        "--without-teacher",
    ]));
    assert_eq!(summary(&done)["left_out"].as_array().unwrap().len(), 8, "{done}");
}
