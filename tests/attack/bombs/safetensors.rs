//! Safetensors: shards that do not add up, and headers that lie.

use std::path::Path;

use serde_json::{Value, json};

use super::{MEAN, has, refused, weights, zeros};
use crate::harness::Folder;

/// A safetensors file with a header of one's own and so many bytes of data.
fn with_header(path: &Path, header: &str, data: usize) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn shards_that_do_not_add_up() {
    let folder = Folder::new();
    let model = folder.model(MEAN);
    let index = model.join("model.safetensors.index.json");
    let mapped = |map: Value| {
        std::fs::write(&index, json!({"metadata": {}, "weight_map": map}).to_string()).unwrap();
        refused(&folder, &model)
    };
    weights(&model.join("a.safetensors"), &[("x", &[2]), ("y", &[2])]);
    weights(&model.join("b.safetensors"), &[("y", &[2]), ("z", &[2])]);
    weights(&model.join("c.safetensors"), &[("z", &[2])]);
    has(&mapped(json!({})), &["model.safetensors.index.json", "names no tensor", "again"]);
    let missing = mapped(json!({"x": "a.safetensors", "z": "nowhere.safetensors"}));
    has(&missing, &["index.json", "the shard nowhere.safetensors is not there", "again"]);
    let twice = mapped(json!({"x": "a.safetensors", "z": "b.safetensors"}));
    has(&twice, &["b.safetensors", "the tensor y is in two shards"]);
    let elsewhere = mapped(json!({"x": "c.safetensors", "z": "a.safetensors"}));
    has(&elsewhere, &["index.json", "not in"]);
    has(&mapped(json!({"w": "c.safetensors"})), &["the tensor w is in no shard"]);
    has(&mapped(json!({"x": "/etc/passwd"})), &["outside the folder"]);
    has(&mapped(json!([])), &["weight_map is missing"]);
    std::fs::write(&index, format!("{{\"weight_map\": {{\"x\": \"{}\"}}}}", "y".repeat(20 << 20)))
        .unwrap();
    has(&refused(&folder, &model), &["index.json", "bytes, more than"]);
    zeros(&index, 1 << 36);
    has(&refused(&folder, &model), &["index.json", "68719476736 bytes"]);
}

#[test]
fn headers_that_lie() {
    let folder = Folder::new();
    let model = folder.model(MEAN);
    let file = model.join("model.safetensors");
    let entry = |shape: &str, offsets: &str| {
        format!(r#"{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}"#)
    };
    let header = |text: &str, data: usize| {
        with_header(&file, text, data);
        let error = refused(&folder, &model);
        has(&error, &["model.safetensors"]);
        error
    };
    let (first, second) = (entry("[2]", "[0,8]"), entry("[2]", "[8,16]"));
    let twice = header(&format!(r#"{{"w":{first},"w":{first}}}"#), 8);
    has(&twice, &["\"w\" is there twice"]);
    // Two tensors in the same bytes, half over each other, with a gap, and beyond the end.
    for (a, b, data) in [
        (&first, &first, 8),
        (&first, &entry("[2]", "[4,12]"), 12),
        (&first, &entry("[2]", "[12,20]"), 20),
        (&first, &second, 12),
        (&entry("[2]", "[8,0]"), &second, 16),
    ] {
        header(&format!(r#"{{"v":{a},"w":{b}}}"#), data);
    }
    header(&format!(r#"{{"w":{}}}"#, entry("[18446744073709551615,2]", "[0,8]")), 8);
    header(
        &format!(r#"{{"w":{}}}"#, entry("[4611686018427387904,4611686018427387904]", "[0,8]")),
        8,
    );
    header(&format!(r#"{{"w":{}}}"#, entry("[2]", "[0,18446744073709551615]")), 8);
    // A hundred megabytes of header, in a file that has them and in one that has not.
    let mut long = std::fs::File::create(&file).unwrap();
    std::io::Write::write_all(&mut long, &100_000_000u64.to_le_bytes()).unwrap();
    has(&refused(&folder, &model), &["truncated", "100000000 bytes"]);
    long.set_len(200_000_000).unwrap();
    has(&refused(&folder, &model), &["its header has 100000000 bytes"]);
    let empty = entry("[0]", "[0,0]");
    let many: Vec<String> = (0..1_000_000).map(|i| format!(r#""{i}":{empty}"#)).collect();
    has(&header(&format!("{{{}}}", many.join(",")), 0), &["its header has"]);
    let deep = "[".repeat(1_000_000);
    has(&header(&format!(r#"{{"w":{deep}"#), 0), &["corrupt safetensors header"]);
}
