//! `index`: an approximate index over vectors, what `search` finds in it, and what is refused.

use std::path::Path;

use serde_json::{Value, json};
use train_native::vectors::{VectorFormat, VectorRow, VectorWriter};

use crate::harness::{Folder, TEXTS, failure, kiln, stdout};

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Vectors around a few places, as texts about a few things have them, in two files.
fn vectors(folder: &Folder, rows: usize, width: usize) -> String {
    let mut seed = 1u64;
    let mut number = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let places: Vec<Vec<f32>> = (0..20).map(|_| (0..width).map(|_| number()).collect()).collect();
    std::fs::create_dir_all(folder.path("vectors")).unwrap();
    for (file, part) in [(0, 0..rows / 2), (1, rows / 2..rows)] {
        let path = folder.path(&format!("vectors/{file}.parquet"));
        let mut writer =
            VectorWriter::create_as(VectorFormat::Parquet, &path, part.len(), width).unwrap();
        for row in part {
            let vector = places[row % 20].iter().map(|x| x + 0.7 * number()).collect();
            writer
                .write(&[VectorRow {
                    id: Some(format!("r{row}")),
                    text: format!("text {row}"),
                    vector,
                }])
                .unwrap();
        }
        writer.finish().unwrap();
    }
    folder.arg("vectors")
}

#[test]
fn a_graph_finds_nearly_all_that_exact_search_finds() {
    let folder = Folder::new();
    let input = vectors(&folder, 3000, 48);
    let recall = |precision: &str| -> Vec<f64> {
        let out = folder.arg(precision);
        let args = [
            "index",
            "--json",
            "-i",
            &input,
            "-o",
            &out,
            "--precision",
            precision,
            "--recall",
            "100",
        ];
        let said = parse(&stdout(&mut kiln(&args)));
        assert_eq!((&said["rows"], &said["dimensions"]), (&json!(3000), &json!(48)));
        let bytes: u64 = ["graph.usearch", "texts.jsonl", "texts.offsets"]
            .iter()
            .map(|name| std::fs::metadata(folder.path(precision).join(name)).unwrap().len())
            .sum();
        assert_eq!(said["bytes"], bytes);
        let settings = said["recall"].as_array().unwrap();
        let expansions: Vec<_> =
            settings.iter().map(|one| one["expansion"].as_u64().unwrap()).collect();
        assert_eq!(expansions, [32, 64, 128, 256]);
        settings.iter().map(|one| one["recall"].as_f64().unwrap()).collect()
    };
    let (f32, int8) = (recall("f32"), recall("int8"));
    assert!(f32[3] > 0.99 && f32[3] >= f32[0], "{f32:?}");
    // One byte a dimension: neighbours that are as near as its steps change places.
    assert!(int8[3] > 0.93 && int8[3] < f32[3] + 1e-9, "{int8:?}");
}

#[test]
fn search_reads_a_graph_and_files_of_vectors_as_it_reads_one_file() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    std::fs::create_dir_all(folder.path("docs")).unwrap();
    folder.write("docs/a.txt", TEXTS[..3].join("\n"));
    folder.write("docs/b.txt", TEXTS[3..].join("\n"));
    let (docs, vectors, index) = (folder.arg("docs"), folder.arg("vectors/"), folder.arg("index"));
    stdout(&mut kiln(&["embed", "--quiet", "-m", &model, "--input", &docs, "--output", &vectors]));
    let line = stdout(&mut kiln(&[
        "index",
        "--quiet",
        "-i",
        &vectors,
        "-o",
        &index,
        "--precision",
        "f32",
    ]));
    assert!(line.starts_with("6 vectors of 16 dimensions -> "), "{line}");
    let search = |index: &str, more: &[&str]| {
        let base = [
            "search", "--json", "--quiet", "-m", &model, "-Q", TEXTS[4], "-k", "4", "--index",
            index,
        ];
        parse(&stdout(&mut kiln(&[&base[..], more].concat())))[0]["hits"]
            .as_array()
            .unwrap()
            .clone()
    };
    let (graph, files) = (search(&index, &["--expansion", "50"]), search(&vectors, &[]));
    assert_eq!((graph.len(), files.len()), (4, 4));
    for (a, b) in graph.iter().zip(&files) {
        assert_eq!((&a["row"], &a["text"]), (&b["row"], &b["text"]));
        assert!((a["score"].as_f64().unwrap() - b["score"].as_f64().unwrap()).abs() < 1e-5);
    }
    // One file of them, by its name or a pattern, whatever else lies there.
    #[cfg(unix)]
    std::os::unix::fs::symlink("nowhere", folder.path("vectors/lost.parquet")).unwrap();
    for name in ["a.parquet", "a.*"] {
        let (input, out) = (folder.arg(&format!("vectors/{name}")), folder.arg(name));
        let line = stdout(&mut kiln(&["index", "--quiet", "-i", &input, "-o", &out]));
        assert!(line.starts_with("3 vectors of 16 dimensions -> "), "{line}");
    }
    #[cfg(unix)]
    std::fs::remove_file(folder.path("vectors/lost.parquet")).unwrap();
    // Both know what their vectors were made by.
    let other = folder.model("{ mode = 'cls' }").display().to_string();
    for index in [&index, &vectors] {
        let said =
            failure(&mut kiln(&["search", "--quiet", "-m", &other, "-Q", "x", "--index", index]));
        assert!(said.contains("has vectors of the model"), "{said}");
    }
    let said = failure(&mut kiln(&[
        "search",
        "--quiet",
        "-m",
        &model,
        "-Q",
        "x",
        "--index",
        &vectors,
        "--expansion",
        "9",
    ]));
    assert!(said.contains("--expansion"), "{said}");
}

/// Standard error of a search that must succeed.
fn notes(model: &str, index: &str, more: &[&str]) -> String {
    let args = ["search", "-m", model, "-Q", TEXTS[0], "--index", index];
    let output = kiln(&[&args[..], more].concat()).assert().success().get_output().clone();
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn vectors_of_another_precision_are_searched_and_said_to_be_so() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    std::fs::create_dir_all(folder.path("docs")).unwrap();
    let (docs, texts) = (folder.arg("docs"), folder.write("docs/a.txt", TEXTS.join("\n")));
    for (weights, said) in [
        ("int8:128", "int8:128"),
        ("int8:channel", "int8:channel"),
        ("int4:64", "int4:64"),
        ("fp8-e4m3", "fp8-e4m3:channel"),
        ("fp8-e5m2:32", "fp8-e5m2:32"),
    ] {
        let (many, single) =
            (folder.arg(&format!("{}/", weights.replace(':', "-"))), folder.arg("i.parquet"));
        for (input, output) in [(&docs, &many), (&texts, &single)] {
            let args = ["embed", "--quiet", "-m", &model, "--weights", weights];
            stdout(&mut kiln(&[&args[..], &["--input", input, "--output", output]].concat()));
            let noted = notes(&model, output, &[]);
            let expected = format!("made by {said} weights, and the queries' are by kept");
            assert!(noted.contains(&expected), "{output}: {noted}");
            let noted = notes(&model, output, &["--weights", weights]);
            assert!(!noted.contains("its vectors were"), "{output}: {noted}");
        }
    }
}

#[test]
fn a_file_of_vectors_knows_its_model() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let texts = folder.texts();
    let at = |name: &str| folder.arg(name);
    for name in ["e.parquet", "e.safetensors", "e.npy", "e.jsonl"] {
        let args = ["embed", "--quiet", "-m", &model, "--input", &texts, "--output", &at(name)];
        stdout(&mut kiln(&args));
    }
    for name in ["s.parquet", "s.safetensors"] {
        let args = ["search", "--quiet", "-m", &model, "-Q", "x", "--corpus", &texts];
        stdout(&mut kiln(&[&args[..], &["--save-index", &at(name)]].concat()));
    }
    let args = ["index", "--quiet", "-i", &at("e.parquet"), "-o", &at("graph")];
    stdout(&mut kiln(&args));
    for name in ["e.parquet", "e.safetensors", "s.parquet", "s.safetensors", "graph"] {
        let noted = notes(&model, &at(name), &[]);
        assert!(!noted.contains("its vectors were"), "{name}: {noted}");
    }
    // A model is what its files are: elsewhere it is the same, and what is in its place now is another.
    let moved = folder.arg("moved");
    std::fs::rename(&model, &moved).unwrap();
    let other = folder.model("{ mode = 'cls' }").display().to_string();
    assert_eq!(other, model);
    for name in ["e.parquet", "e.safetensors", "s.parquet", "s.safetensors", "graph"] {
        let noted = notes(&moved, &at(name), &[]);
        assert!(!noted.contains("its vectors were"), "{name}: {noted}");
        let args = ["search", "-m", &other, "-Q", "x", "--index", &at(name)];
        let said = failure(&mut kiln(&args));
        assert!(said.contains("has vectors of the model"), "{name}: {said}");
    }
    // These have no place for it.
    for name in ["e.npy", "e.jsonl"] {
        notes(&other, &at(name), &[]);
    }
    // What another program has put there.
    let tensor = ("embedding".to_string(), vec![1, 16], vec![0.5; 16]);
    let metadata = [("kiln.settings", "{}")];
    let bytes = kiln_embed::checkpoint::write_safetensors(&[tensor], &metadata).unwrap();
    let index = folder.write("odd.safetensors", bytes);
    let args = ["search", "-m", &moved, "-Q", "x", "--index", &index];
    let said = failure(&mut kiln(&args));
    assert!(said.contains("odd.safetensors") && said.contains("not what kiln embed"), "{said}");
}

#[test]
fn an_index_is_written_whole_and_read_whole_or_refused() {
    let folder = Folder::new();
    let input = vectors(&folder, 200, 8);
    let out = folder.arg("index");
    let build =
        |more: &[&str]| kiln(&[&["index", "--quiet", "-i", &input, "-o", &out][..], more].concat());
    stdout(&mut build(&[]));
    let said = failure(&mut build(&[]));
    assert!(said.contains("--overwrite"), "{said}");
    stdout(&mut build(&["--overwrite", "--connectivity", "8"]));
    let text = std::fs::read_to_string(folder.path("index/index.json")).unwrap();
    assert_eq!(parse(&text)["connectivity"], 8);
    let names = |folder: &Path| {
        let mut names: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&folder.path("")), ["index", "vectors"]);
    assert_eq!(
        names(&folder.path("index")),
        [".kiln-sums.json", "graph.usearch", "index.json", "texts.jsonl", "texts.offsets"]
    );
    // A stranger's file is never replaced.
    folder.write("index/notes.txt", "mine");
    let said = failure(&mut build(&["--overwrite"]));
    assert!(said.contains("notes.txt"), "{said}");
    std::fs::remove_file(folder.path("index/notes.txt")).unwrap();

    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../web-demo/kiln-mini.kiln");
    let search =
        || failure(&mut kiln(&["search", "--quiet", "-m", model, "-Q", "x", "--index", &out]));
    let said = search();
    assert!(said.contains("384 dimensions") && said.contains('8'), "{said}");
    for name in ["graph.usearch", "texts.jsonl", "texts.offsets", "index.json"] {
        let path = folder.path("index").join(name);
        let whole = std::fs::read(&path).unwrap();
        for cut in [0, 1, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let said = search();
            assert!(
                said.contains(name) && said.lines().count() == 1,
                "{name} cut at {cut}: {said}"
            );
        }
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 0x20;
        std::fs::write(&path, &flipped).unwrap();
        let said = search();
        // A letter of the description may be another's name for something, or make it no description.
        let expected = if name == "index.json" { "" } else { "is damaged" };
        assert!(said.lines().count() == 1, "{name} flipped: {said}");
        assert!(said.contains(expected), "{name} flipped: {said}");
        std::fs::write(&path, &whole).unwrap();
    }
    for (args, part) in [
        (vec!["-i", "none", "-o", "x"], "none"),
        (vec!["-i", &input, "-o", "x", "--precision", "int3"], "neither f32 nor int8"),
        (vec!["-i", &folder.arg("index"), "-o", "x"], "embedding"),
        (vec!["-i", &folder.texts(), "-o", "x"], "format"),
        (vec!["-i", &input, "-o", "s3://bucket/index"], "name a folder"),
    ] {
        let said = failure(&mut kiln(&[&["index", "--quiet"], &args[..]].concat()));
        assert!(said.contains(part), "{args:?}: {said}");
    }
}
