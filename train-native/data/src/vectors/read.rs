//! Reads files of vectors in blocks. Every vector is finite, not null and as wide as the first: a NaN
//! would be everybody's nearest neighbour, and a null vector has no direction.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;
use kiln_embed::checkpoint::{Directory, Weights, safetensors_metadata};

use super::npy::{self, Header};
use super::{DESCRIPTION, EMBEDDING, VectorFormat, VectorRow};
use crate::text::parquet::{Table, text};
use crate::text::{Stream, behind_mark, numbered, open, short};

/// A block of rows read from a file.
pub type Block = Vec<VectorRow>;

/// A row, and where it is.
type Placed = (String, VectorRow);

/// Reads the rows of a vector file in blocks, so that the file may be larger than memory.
///
/// # Errors
/// The file cannot be opened, is none or holds no vector; later items may be errors.
pub fn read_blocks(path: &Path, size: usize) -> Result<Stream<Block>> {
    let label = path.display().to_string();
    let format = VectorFormat::of(path)?;
    let file = open(path)?;
    let mut rows: Stream<Placed> = match format {
        VectorFormat::Npy => npy_rows(file, &label)?,
        VectorFormat::JsonLines => json_rows(file, label.clone())?,
        VectorFormat::Parquet => parquet_rows(path, label.clone())?,
        VectorFormat::Safetensors => safetensors_rows(path)?,
    };
    let mut width = None;
    let mut next = move || -> Result<Block> {
        let mut block = Vec::new();
        while block.len() < size {
            let Some(row) = rows.next() else { break };
            let (place, row) = row?;
            let expected = *width.get_or_insert(row.vector.len());
            check(&row.vector, expected).with_context(|| place)?;
            block.push(row);
        }
        Ok(block)
    };
    let first = next();
    if first.as_ref().is_ok_and(Vec::is_empty) {
        bail!("{label}: holds no vector");
    }
    let mut over = false;
    let mut first = Some(first);
    Ok(Box::new(std::iter::from_fn(move || {
        if over {
            return None;
        }
        match first.take().unwrap_or_else(&mut next) {
            Ok(block) if block.is_empty() => None,
            Ok(block) => Some(Ok(block)),
            Err(error) => {
                over = true;
                Some(Err(error))
            }
        }
    })))
}

/// Refuses what gives no cosine.
fn check(vector: &[f32], width: usize) -> Result<()> {
    if vector.is_empty() {
        bail!("the vector is empty");
    }
    if vector.len() != width {
        bail!("{} dimensions, the rows before have {width}", vector.len());
    }
    super::finite(vector)?;
    if vector.iter().all(|value| *value == 0.0) {
        bail!("a null vector, which has no direction");
    }
    // Its square is computed in f32.
    let square: f64 = vector.iter().map(|value| f64::from(*value).powi(2)).sum();
    if !(f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&square) {
        bail!("a vector of length {:e}; divide the vectors by their length", square.sqrt());
    }
    Ok(())
}

fn bare(vector: Vec<f32>) -> VectorRow {
    VectorRow { id: None, text: String::new(), vector }
}

fn npy_rows(mut file: File, label: &str) -> Result<Stream<Placed>> {
    let size = file.metadata().with_context(|| label.to_string())?.len();
    let header = Header::read(&mut file).with_context(|| format!("{label}: not an npy file"))?;
    let held = size.saturating_sub(header.bytes);
    let Some(number) = header.f32() else {
        bail!(
            "{label}: holds {}, expected f32; save it with .astype(\"float32\")",
            short(&header.descr.into())
        );
    };
    let &[rows, dim] = header.shape.as_slice() else {
        bail!("{label}: has shape {:?}, expected [rows, dim]", header.shape);
    };
    if header.fortran_order {
        bail!("{label}: is in Fortran order; save numpy.ascontiguousarray of it");
    }
    let needed = rows.checked_mul(dim).and_then(|count| count.checked_mul(4));
    let Some(needed) = needed else {
        bail!("{label}: its shape [{rows}, {dim}] is larger than any memory");
    };
    if needed != held {
        let how = if needed > held { "cut off" } else { "too long" };
        bail!(
            "{label}: is {how}: of the shape [{rows}, {dim}] in f32, with {held} bytes of numbers"
        );
    }
    let (label, dim) = (label.to_string(), usize::try_from(dim)?);
    let mut file = BufReader::new(file);
    let numbered = move |i| {
        let place = format!("{label}: row {}", i + 1);
        let row = npy::row(&mut file, dim, number).with_context(|| place.clone())?;
        Ok((place, bare(row)))
    };
    Ok(Box::new((0..rows).map(numbered)))
}

fn json_rows(file: File, label: String) -> Result<Stream<Placed>> {
    #[derive(serde::Deserialize)]
    struct Line {
        #[serde(alias = "_id")]
        id: Option<serde_json::Value>,
        #[serde(default)]
        text: String,
        embedding: Vec<f32>,
    }
    let lines = numbered(behind_mark(file, &label)?, label.clone(), true);
    Ok(Box::new(lines.map(move |line| {
        let (number, line) = line?;
        let place = format!("{label}:{number}");
        let line: Line = serde_json::from_str(&line).with_context(|| place.clone())?;
        let id = line.id.map(|id| id.as_str().map_or_else(|| id.to_string(), String::from));
        Ok((place, VectorRow { id, text: line.text, vector: line.embedding }))
    })))
}

fn parquet_rows(path: &Path, label: String) -> Result<Stream<Placed>> {
    let table = Table::open(path, &label)?;
    if !table.columns().contains(&EMBEDDING) {
        bail!("{label}: no column {EMBEDDING:?}; the file has {}", table.columns().join(", "));
    }
    let batches = table.batches(Some(&["_id", "id", "text", EMBEDDING]))?;
    let mut before = 0;
    Ok(Box::new(batches.flat_map(move |batch| {
        let rows = batch.and_then(|batch| {
            let first = before + 1;
            before += batch.num_rows();
            batch_rows(&batch, first, &label)
        });
        rows.unwrap_or_else(|error| vec![Err(error)])
    })))
}

fn batch_rows(batch: &RecordBatch, first: usize, label: &str) -> Result<Vec<Result<Placed>>> {
    let vectors = batch.column_by_name(EMBEDDING).with_context(|| label.to_string())?;
    let kind = vectors.data_type();
    if !matches!(kind, DataType::List(item) if *item.data_type() == DataType::Float32) {
        bail!("{label}: the column {EMBEDDING:?} is {kind}, no list of f32");
    }
    let vectors = vectors.as_list::<i32>();
    let row = |i: usize| -> Result<Placed> {
        let place = format!("{label}: row {}", first + i);
        let item = vectors.value(i);
        if vectors.is_null(i) || item.null_count() > 0 {
            bail!("{place}: the vector is null, or holds a null");
        }
        let text = |name: &str| text(batch, name, i).with_context(|| place.clone());
        let id = match text("_id")? {
            Some(id) => Some(id),
            None => text("id")?,
        };
        let vector = item.as_primitive::<Float32Type>().values().to_vec();
        let row = VectorRow { id, text: text("text")?.unwrap_or_default(), vector };
        Ok((place, row))
    };
    Ok((0..batch.num_rows()).map(row).collect())
}

/// What a file says about its vectors ([`super::VectorWriter::describe`]), if anything.
///
/// # Errors
/// The file cannot be opened, or is none of vectors.
pub fn description(path: &Path) -> Result<Option<String>> {
    match VectorFormat::of(path)? {
        VectorFormat::Npy | VectorFormat::JsonLines => Ok(None),
        VectorFormat::Parquet => {
            Ok(Table::open(path, &path.display().to_string())?.entry(DESCRIPTION))
        }
        VectorFormat::Safetensors => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let metadata = safetensors_metadata(&folder_of(path)?, &name)?;
            Ok(metadata[DESCRIPTION].as_str().map(String::from))
        }
    }
}

fn folder_of(path: &Path) -> Result<Directory> {
    Ok(Directory::new(super::folder_of(path))?)
}

fn safetensors_rows(path: &Path) -> Result<Stream<Placed>> {
    let label = path.display().to_string();
    let folder = folder_of(path)?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut weights = Weights::open(&folder, &stem)?;
    let shape = weights.tensors().get(EMBEDDING).map(|info| info.shape.clone());
    let Some([_, dim]) = shape.as_deref().and_then(|shape| <[usize; 2]>::try_from(shape).ok())
    else {
        bail!("{label}: no tensor {EMBEDDING:?} of shape [rows, dim]");
    };
    let values = weights.read(EMBEDDING)?.unwrap_or_default();
    let rows: Vec<VectorRow> = values.chunks(dim.max(1)).map(|row| bare(row.to_vec())).collect();
    let placed = move |(i, row)| Ok((format!("{label}: row {}", i + 1), row));
    Ok(Box::new(rows.into_iter().enumerate().map(placed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An npy file with a head and so many bytes of numbers, each 0.5.
    fn npy(version: u8, descr: &str, order: &str, shape: &str, numbers: &[u8]) -> Vec<u8> {
        let head = format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n");
        let length = (head.len() as u32).to_le_bytes();
        let length = if version == 1 { &length[..2] } else { &length[..] };
        [b"\x93NUMPY", &[version, 0][..], length, head.as_bytes(), numbers].concat()
    }

    fn read(name: &str, bytes: &[u8]) -> Result<Vec<Vec<f32>>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let blocks: Result<Vec<Block>> = read_blocks(&path, 2)?.collect();
        Ok(blocks?.into_iter().flatten().map(|row| row.vector).collect())
    }

    fn error(name: &str, bytes: &[u8]) -> String {
        let error = format!("{:#}", read(name, bytes).unwrap_err());
        assert!(error.contains(name), "{error}");
        error
    }

    #[test]
    fn npy_files_are_what_their_head_says() {
        let numbers: Vec<u8> =
            [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let big: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_be_bytes()).collect();
        let expected = [[1.0, 2.0], [3.0, 4.0]];
        for version in [1, 2, 3] {
            assert_eq!(
                read("a.npy", &npy(version, "'<f4'", "False", "(2, 2)", &numbers)).unwrap(),
                expected
            );
        }
        assert_eq!(read("a.npy", &npy(1, "'>f4'", "False", "(2, 2)", &big)).unwrap(), expected);
        let of = |descr: &str, order: &str, shape: &str| npy(1, descr, order, shape, &numbers);
        for (bytes, word) in [
            (of("'<f4'", "False", "(4294967296, 4294967296)"), "larger than any memory"),
            (of("'<f4'", "False", "(9223372036854775808, 2)"), "larger than any memory"),
            (of("'<f4'", "False", "(2, 99999999999999999999999)"), "larger than any memory"),
            (of("'<f4'", "False", "(3, 2)"), "cut off"),
            (of("'<f4'", "False", "(1, 2)"), "too long"),
            (of("'<f4'", "False", "(0, 2)"), "too long"),
            (of("'<f4'", "False", "(-2, 2)"), "negative"),
            (of("'<f4'", "False", "(4,)"), "[rows, dim]"),
            (of("'<f4'", "True", "(2, 2)"), "Fortran"),
            (of("'<f8'", "False", "(1, 2)"), "astype"),
            (of("'<i4'", "False", "(2, 2)"), "astype"),
            (of("'|O'", "False", "(2, 2)"), "astype"),
            (of("[('a', '<f4'), ('b', '<f4')]", "False", "(2,)"), "astype"),
            (of(&"(".repeat(4000), "False", "(2, 2)"), "brackets"),
            (of(&format!("'{}'", "x".repeat(20_000)), "False", "(2, 2)"), "10000"),
            (npy(9, "'<f4'", "False", "(2, 2)", &numbers), "not an npy file"),
            (b"\x93NUMPY\x02\0\xff\xff\xff\xff".to_vec(), "10000"),
            (b"\x93NUM".to_vec(), "too short"),
            (npy(1, "'<f4'", "False", "(0, 2)", &[]), "no vector"),
        ] {
            let error = error("a.npy", &bytes);
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    #[test]
    fn every_vector_has_a_direction_and_the_same_width() {
        for (lines, place, word) in [
            ("{\"embedding\":[1,2]}\n{\"embedding\":[1]}", ":2", "1 dimensions"),
            ("{\"embedding\":[1]}\n\n{\"embedding\":[1e300]}", ":3", "out of range"),
            ("{\"embedding\":[1]}\n{\"embedding\":[0.0]}", ":2", "null vector"),
            ("{\"embedding\":[1e-30]}", ":1", "length"),
            ("{\"embedding\":[1e30]}", ":1", "length"),
            ("{\"embedding\":[]}", ":1", "empty"),
            ("{\"embedding\":[null]}", ":1", "null"),
            ("{\"embedding\":[[1]]}", ":1", "sequence"),
            ("{\"embedding\":[NaN]}", ":1", "expected"),
            ("{\"embedding\":null}", ":1", "null"),
            ("{\"embedding\":[1],\"embedding\":[2]}", ":1", "duplicate"),
            ("\n", "", "no vector"),
        ] {
            let error = error("v.jsonl", lines.as_bytes());
            assert!(error.contains(&format!("v.jsonl{place}")) && error.contains(word), "{error}");
        }
        let marked =
            b"\xEF\xBB\xBF{\"id\":7,\"embedding\":[1]}\n{\"_id\":\"a\",\"embedding\":[-1]}";
        assert_eq!(read("v.jsonl", marked).unwrap(), [[1.0], [-1.0]]);
        let nan = [1.0, 2.0, f32::NAN, 4.0f32].iter().flat_map(|x| x.to_le_bytes());
        let nan: Vec<u8> = nan.collect();
        let error = error("n.npy", &npy(1, "'<f4'", "False", "(2, 2)", &nan));
        assert!(error.contains("row 2") && error.contains("NaN"), "{error}");
    }
}
