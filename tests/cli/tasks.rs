//! A task of each kind, small, on made-up texts.

use std::path::Path;

use serde_json::{Value, json};
use train_native::data::corpus::{Corpus, CorpusSize, RetrievalSet};

use crate::harness::Folder;

/// The seven kinds, as `--task` names them.
pub(crate) const KINDS: [&str; 7] =
    ["classification", "clustering", "pair", "reranking", "retrieval", "sts", "summarization"];

fn made_up(seed: u64) -> RetrievalSet {
    Corpus::generate(seed, CorpusSize { train: 1, test: 3, questions: 1 }).test
}

fn lines(rows: impl IntoIterator<Item = Value>) -> String {
    rows.into_iter().map(|row| format!("{row}\n")).collect()
}

/// Writes a data set of each kind below `data`, and a suite of all of them, `suite.toml`.
pub(crate) fn write_tasks(folder: &Folder) -> (String, String) {
    let data = folder.path("data");
    let write = |name: &str, text: String| {
        let path = data.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let (set, other) = (made_up(1), made_up(2));
    let labelled = |set: &RetrievalSet| {
        lines(
            set.corpus
                .iter()
                .zip(&set.kinds)
                .map(|(text, kind)| json!({ "text": text, "label": kind })),
        )
    };
    write("classification/train.jsonl", labelled(&other));
    write("classification/test.jsonl", labelled(&set));
    write("clustering/test.jsonl", labelled(&set));
    // mteb's older form: lists, each clustered by itself; the last one has one label.
    let list = |rows: std::ops::Range<usize>| json!({ "sentences": set.corpus[rows.clone()], "labels": set.kinds[rows] });
    let one = json!({ "sentences": ["a", "b"], "labels": ["x", "x"] });
    write("sets/test.jsonl", lines([list(0..50), list(50..105), one]));

    // A question with its passage, with another of the same kind, and with one of another kind.
    let count = set.queries.len();
    let near = |row: usize| {
        (1..count)
            .map(|step| (row + step) % count)
            .find(|&i| set.kinds[i] == set.kinds[row])
            .unwrap()
    };
    let far = |row: usize| {
        (1..count)
            .map(|step| (row + step) % count)
            .find(|&i| set.kinds[i] != set.kinds[row])
            .unwrap()
    };
    let pair = |row: usize, passage: usize, name: &str, value: f64| json!({ "sentence1": set.queries[row], "sentence2": set.corpus[passage], name: value });
    write(
        "pair/test.jsonl",
        lines(
            (0..count)
                .flat_map(|row| [pair(row, row, "label", 1.0), pair(row, near(row), "label", 0.0)]),
        ),
    );
    write(
        "sts/test.jsonl",
        lines((0..count).flat_map(|row| {
            let middle = 2.0 + (row % 3) as f64 * 0.25;
            [
                pair(row, row, "score", 5.0),
                pair(row, near(row), "score", middle),
                pair(row, far(row), "score", 0.5),
            ]
        })),
    );
    write("reranking/test.jsonl", lines((0..count).map(|row| {
        let negatives: Vec<&String> =
            (1..9).map(|step| &set.corpus[(row + 7 * step) % count]).collect();
        json!({ "query": set.queries[row], "positive": [set.corpus[row]], "negative": negatives })
    })));
    let id = |kind: char, row: usize| format!("{kind}{row}");
    write(
        "retrieval/corpus.jsonl",
        lines((0..count).map(
            |row| json!({ "_id": id('d', row), "title": set.kinds[row], "text": set.corpus[row] }),
        )),
    );
    write(
        "retrieval/queries.jsonl",
        lines((0..count).map(|row| json!({ "_id": id('q', row), "text": set.queries[row] }))),
    );
    // The passage that answers is worth 2, another of the same kind 1.
    let judged = (0..count).map(|row| format!("q{row}\td{row}\t2\nq{row}\td{}\t1\n", near(row)));
    write(
        "retrieval/qrels/test.tsv",
        // Two answers are judged that the corpus lacks.
        format!(
            "query-id\tcorpus-id\tscore\n{}q0\tgone\t1\nq1\tgone too\t2\n",
            judged.collect::<String>()
        ),
    );
    write(
        "summarization/test.jsonl",
        lines((0..30).map(|row| {
            // None is word for word a human one: ties of cosines at 1 fall by rounding.
            let machine = [
                &format!("{} {}", set.queries[row], set.corpus[row]),
                &set.queries[row],
                &set.corpus[near(row)],
                &set.corpus[far(row)],
            ];
            let human = [&set.corpus[row], &format!("In short: {}", set.corpus[row])];
            json!({
                "text": set.corpus[row], "human_summaries": human,
                "machine_summaries": machine, "relevance": [4.5, 4.0, 2.0 + (row % 2) as f64, 1.0],
            })
        })),
    );
    let task = |kind: &&str| {
        let name = match *kind {
            "pair" => "pair_classification",
            kind => kind,
        };
        format!(
            "[[task]]\nname = \"Own-{kind}\"\nkind = \"{name}\"\npath = \"{kind}\"\nsplit = \"test\"\n"
        )
    };
    let suite: String = KINDS.iter().map(task).collect();
    let suite = folder.write("suite.toml", format!("title = \"Own\"\n{suite}"));
    (data.display().to_string(), suite)
}

/// The mteb script, with the folder of Python that has mteb.
pub(crate) fn mteb(arguments: &[&str]) -> Option<Value> {
    let Some(python) = std::env::var_os("KILN_PYTHON") else {
        eprintln!("SKIPPED: KILN_PYTHON is not set; tests/run.sh installs mteb and sets it");
        return None;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/reference/mteb_local.py");
    let output = std::process::Command::new(python).arg(script).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    Some(serde_json::from_str(text.lines().last().unwrap()).unwrap())
}

/// The tested sentence model, if it is there.
pub(crate) fn minilm() -> Option<String> {
    let result = std::env::var("KILN_MINILM").ok();
    if result.is_none() {
        eprintln!(
            "SKIPPED: KILN_MINILM is not set; tests/run.sh installs all-MiniLM-L6-v2 and sets it"
        );
    }
    result
}
