//! Memory: a file is read and its vectors are written a part at a time.

use std::fs::{File, create_dir};
use std::process::Command;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;

use crate::harness::{Folder, peak};

#[test]
fn a_long_parquet_takes_no_more_than_a_short_one() {
    const ROWS: usize = 2_000;
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let peak_of = |name: &str, groups: usize| {
        // Of one word each, so that the tokenizer has little to do.
        let batch = |group: usize| {
            let text = |row| format!("{:08}{}", group * ROWS + row, "a".repeat(6_000));
            let texts = StringArray::from((0..ROWS).map(text).collect::<Vec<_>>());
            RecordBatch::try_from_iter([("text", Arc::new(texts) as ArrayRef)]).unwrap()
        };
        create_dir(folder.path(name)).unwrap();
        let file = File::create(folder.path(name).join("long.parquet")).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch(0).schema(), None).unwrap();
        for group in 0..groups {
            writer.write(&batch(group)).unwrap();
            writer.flush().unwrap();
        }
        writer.close().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
        command.args(["--device", "cpu", "embed", "--quiet", "-m", &model, "--input"]);
        command.args([folder.arg(&format!("{name}/")), "--output".into()]);
        let mut child = command.arg(folder.arg(&format!("{name}-out/"))).spawn().unwrap();
        let peak = peak(&mut child);
        assert!(child.wait().unwrap().success());
        peak
    };
    // 24 MB of texts, and 168. A group of rows, which is written in one piece, has 64 MiB.
    let (Some(short), Some(long)) = (peak_of("short", 2), peak_of("long", 14)) else { return };
    assert!(long < short + (110 << 20), "{} and {} MiB", short >> 20, long >> 20);
}
