//! Vectors: stored ones without a direction, and modules that would compute others than those of the model.

use std::path::Path;
use std::sync::Arc;

use arrow_array::types::Float32Type;
use arrow_array::{ArrayRef, ListArray};
use serde_json::{Value, json};

use super::{Place, has, write_parquet};
use crate::harness::stdout;

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
