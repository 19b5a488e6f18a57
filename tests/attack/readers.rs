//! Files of texts and vectors that would give wrong numbers in silence, take all memory, or speak to
//! the terminal.

mod earlier_runs;
mod evaluation;
mod memory;
mod special_files;
mod terminal;
mod texts;
mod vectors;

use std::path::Path;

use arrow_array::{ArrayRef, RecordBatch};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use serde_json::{Value, json};

use crate::harness::{Folder, failure, kiln};

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

fn write_parquet(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let packed = WriterProperties::builder().set_compression(Compression::ZSTD(Default::default()));
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(packed.build())).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}
