//! Vectors in files: npy, JSONL, Parquet and safetensors, written row by row and read in blocks.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListBuilder, Float32Builder, RecordBatch, StringArray,
};
use arrow::datatypes::{DataType, Field, Float32Type, Schema};
use kiln_core::checkpoint::{Directory, Weights, write_safetensors};
use npyz::WriterBuilder as _;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tempfile::NamedTempFile;

use crate::text::Stream;

/// Name of the vectors' column, field or tensor.
pub const EMBEDDING: &str = "embedding";

/// Format of a file of vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VectorFormat {
    /// NumPy, `[rows, dim]` f32; no ids and no texts.
    Npy,
    /// One object a line: `id`, `text`, `embedding`.
    JsonLines,
    /// Columns `id`, `text`, `embedding`.
    Parquet,
    /// One tensor `embedding` `[rows, dim]`; no ids and no texts.
    Safetensors,
}

impl VectorFormat {
    /// Format by the file's name.
    ///
    /// # Errors
    /// An ending that is none of the four.
    pub fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|ending| ending.to_str()).unwrap_or_default() {
            "npy" => Ok(Self::Npy),
            "jsonl" => Ok(Self::JsonLines),
            "parquet" => Ok(Self::Parquet),
            "safetensors" => Ok(Self::Safetensors),
            _ => bail!(
                "{}: unknown format; vectors are .npy, .jsonl, .parquet or .safetensors",
                path.display()
            ),
        }
    }
}

/// A row to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Id of the text, if it has one.
    pub id: Option<String>,
    /// The text; empty where the file does not keep it.
    pub text: String,
    /// Its vector.
    pub vector: Vec<f32>,
}

/// Writes rows to a temporary file beside the target; [`VectorWriter::finish`] puts it in place.
pub struct VectorWriter {
    target: PathBuf,
    dim: usize,
    rows: usize,
    written: usize,
    sink: Sink,
}

enum Sink {
    Npy { file: NamedTempFile, writer: npyz::NpyWriter<f32, BufWriter<File>> },
    JsonLines(BufWriter<NamedTempFile>),
    Parquet { schema: Arc<Schema>, writer: Box<ArrowWriter<NamedTempFile>> },
    Safetensors(Vec<f32>),
}

/// A temporary file in the folder of `target`, so that renaming it is atomic.
fn beside(target: &Path) -> Result<NamedTempFile> {
    let folder =
        target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    NamedTempFile::with_prefix_in(".kiln-", folder).with_context(|| target.display().to_string())
}

/// Writes a whole small file at once, atomically.
///
/// # Errors
/// Whatever the file system refuses; the target is then as it was.
pub fn write_atomically(target: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = beside(target)?;
    file.write_all(bytes).with_context(|| target.display().to_string())?;
    persist(file, target)
}

fn persist(file: NamedTempFile, target: &Path) -> Result<()> {
    let label = || target.display().to_string();
    file.as_file().sync_all().with_context(label)?;
    // Temporary files are private; a result is as readable as any other new file.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        file.as_file()
            .set_permissions(std::fs::Permissions::from_mode(0o644))
            .with_context(label)?;
    }
    file.persist(target).with_context(label)?;
    Ok(())
}

impl VectorWriter {
    /// A writer for `rows` vectors of width `dim`.
    ///
    /// # Errors
    /// An unknown format, or a folder that cannot be written.
    pub fn create(target: &Path, rows: usize, dim: usize) -> Result<Self> {
        let label = || target.display().to_string();
        let sink = match VectorFormat::of(target)? {
            VectorFormat::Npy => {
                let file = beside(target)?;
                let writer = npyz::WriteOptions::new()
                    .default_dtype()
                    .shape(&[rows as u64, dim as u64])
                    .writer(BufWriter::new(file.reopen().with_context(label)?))
                    .begin_nd()
                    .with_context(label)?;
                Sink::Npy { file, writer }
            }
            VectorFormat::JsonLines => Sink::JsonLines(BufWriter::new(beside(target)?)),
            VectorFormat::Parquet => {
                let item = Arc::new(Field::new("item", DataType::Float32, true));
                let schema = Arc::new(Schema::new(vec![
                    Field::new("id", DataType::Utf8, true),
                    Field::new("text", DataType::Utf8, false),
                    Field::new(EMBEDDING, DataType::FixedSizeList(item, dim as i32), false),
                ]));
                let writer = ArrowWriter::try_new(beside(target)?, schema.clone(), None)
                    .with_context(label)?;
                Sink::Parquet { schema, writer: Box::new(writer) }
            }
            VectorFormat::Safetensors => Sink::Safetensors(Vec::with_capacity(rows * dim)),
        };
        Ok(Self { target: target.to_path_buf(), dim, rows, written: 0, sink })
    }

    /// Writes the next rows.
    ///
    /// # Errors
    /// A vector of another width, or a disk that is full.
    pub fn write(&mut self, rows: &[Row]) -> Result<()> {
        if let Some(row) = rows.iter().find(|row| row.vector.len() != self.dim) {
            bail!("a vector has {} dimensions, expected {}", row.vector.len(), self.dim);
        }
        self.written += rows.len();
        let written = match &mut self.sink {
            Sink::Npy { writer, .. } => writer
                .extend(rows.iter().flat_map(|row| row.vector.iter().copied()))
                .map_err(Into::into),
            Sink::JsonLines(writer) => write_json_lines(writer, rows),
            Sink::Parquet { schema, writer } => {
                parquet_batch(schema, rows, self.dim).and_then(|batch| Ok(writer.write(&batch)?))
            }
            Sink::Safetensors(values) => {
                values.extend(rows.iter().flat_map(|row| row.vector.iter()));
                Ok(())
            }
        };
        written.with_context(|| self.target.display().to_string())
    }

    /// Closes the file and puts it in the target's place.
    ///
    /// # Errors
    /// Fewer rows than announced, or a disk that is full; the target is then as it was.
    pub fn finish(self) -> Result<()> {
        let Self { target, dim, rows, written, sink } = self;
        let label = || target.display().to_string();
        if written != rows {
            bail!("{}: {written} of {rows} rows were written", target.display());
        }
        match sink {
            Sink::Npy { file, writer } => {
                writer.finish().with_context(label)?;
                persist(file, &target)
            }
            Sink::JsonLines(writer) => {
                let file = writer
                    .into_inner()
                    .map_err(std::io::IntoInnerError::into_error)
                    .with_context(label)?;
                persist(file, &target)
            }
            Sink::Parquet { writer, .. } => {
                persist(writer.into_inner().with_context(label)?, &target)
            }
            Sink::Safetensors(values) => {
                let tensor = (EMBEDDING.to_string(), vec![rows, dim], values);
                write_atomically(&target, &write_safetensors(&[tensor], &[("format", "kiln")])?)
            }
        }
    }
}

fn write_json_lines(writer: &mut impl Write, rows: &[Row]) -> Result<()> {
    for row in rows {
        let mut value = serde_json::Map::new();
        if let Some(id) = &row.id {
            value.insert("id".into(), id.clone().into());
        }
        value.insert("text".into(), row.text.clone().into());
        value.insert(EMBEDDING.into(), row.vector.clone().into());
        serde_json::to_writer(&mut *writer, &value)?;
        writer.write_all(b"\n")?;
    }
    Ok(())
}

fn parquet_batch(schema: &Arc<Schema>, rows: &[Row], dim: usize) -> Result<RecordBatch> {
    let ids: ArrayRef = Arc::new(rows.iter().map(|row| row.id.as_deref()).collect::<StringArray>());
    let texts: ArrayRef =
        Arc::new(rows.iter().map(|row| Some(row.text.as_str())).collect::<StringArray>());
    let mut vectors = FixedSizeListBuilder::new(Float32Builder::new(), dim as i32);
    for row in rows {
        vectors.values().append_slice(&row.vector);
        vectors.append(true);
    }
    Ok(RecordBatch::try_new(schema.clone(), vec![ids, texts, Arc::new(vectors.finish())])?)
}

/// A block of rows read from a file.
pub type Block = Vec<Row>;

/// Reads the rows of a vector file in blocks, so that the file may be larger than memory.
///
/// # Errors
/// The file cannot be opened or is none; later items may be errors.
pub fn read_blocks(path: &Path, size: usize) -> Result<Stream<Block>> {
    let label = path.display().to_string();
    let format = VectorFormat::of(path)?;
    let file = File::open(path).with_context(|| label.clone())?;
    let rows: Stream<Row> = match format {
        VectorFormat::Npy => npy_rows(file, &label)?,
        VectorFormat::JsonLines => json_rows(BufReader::new(file), label),
        VectorFormat::Parquet => parquet_rows(file, label)?,
        VectorFormat::Safetensors => safetensors_rows(path)?,
    };
    let mut rows = rows;
    Ok(Box::new(std::iter::from_fn(move || {
        let block: Result<Block> = rows.by_ref().take(size).collect();
        match block {
            Ok(block) if block.is_empty() => None,
            other => Some(other),
        }
    })))
}

fn bare(vector: Vec<f32>) -> Row {
    Row { id: None, text: String::new(), vector }
}

fn npy_rows(file: File, label: &str) -> Result<Stream<Row>> {
    let npy = npyz::NpyFile::new(BufReader::new(file))
        .map_err(|e| anyhow!("{label}: not an npy file: {e}"))?;
    let &[_, dim] = npy.shape() else {
        bail!("{label}: has shape {:?}, expected [rows, dim]", npy.shape());
    };
    if npy.order() != npyz::Order::C || dim == 0 {
        bail!("{label}: expected row-major vectors that are not empty");
    }
    let label = label.to_string();
    let mut values = npy.data::<f32>().map_err(|e| anyhow!("{label}: expected f32: {e}"))?;
    Ok(Box::new(std::iter::from_fn(move || {
        let row: std::io::Result<Vec<f32>> = values.by_ref().take(dim as usize).collect();
        match row {
            Ok(row) if row.is_empty() => None,
            Ok(row) => Some(Ok(bare(row))),
            Err(error) => Some(Err(anyhow!("{label}: truncated: {error}"))),
        }
    })))
}

fn json_rows(reader: impl BufRead + 'static, label: String) -> Stream<Row> {
    #[derive(serde::Deserialize)]
    struct Line {
        #[serde(alias = "_id")]
        id: Option<String>,
        #[serde(default)]
        text: String,
        embedding: Vec<f32>,
    }
    Box::new(reader.lines().enumerate().map(move |(number, line)| {
        let number = number + 1;
        let line = line.map_err(|e| anyhow!("{label}:{number}: {e}"))?;
        let line: Line =
            serde_json::from_str(&line).map_err(|e| anyhow!("{label}:{number}: {e}"))?;
        Ok(Row { id: line.id, text: line.text, vector: line.embedding })
    }))
}

fn parquet_rows(file: File, label: String) -> Result<Stream<Row>> {
    let builder =
        ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| anyhow!("{label}: {e}"))?;
    if builder.schema().index_of(EMBEDDING).is_err() {
        bail!("{label}: no column {EMBEDDING:?}");
    }
    let reader = builder.build().map_err(|e| anyhow!("{label}: {e}"))?;
    Ok(Box::new(reader.flat_map(move |batch| match batch {
        Ok(batch) => parquet_batch_rows(&batch, &label),
        Err(error) => vec![Err(anyhow!("{label}: {error}"))],
    })))
}

fn parquet_batch_rows(batch: &RecordBatch, label: &str) -> Vec<Result<Row>> {
    let text = |name: &str, at: usize| -> Option<String> {
        let column = batch.column_by_name(name)?.as_string_opt::<i32>()?;
        (!column.is_null(at)).then(|| column.value(at).to_string())
    };
    let vector = |at: usize| -> Option<Vec<f32>> {
        let column = batch.column_by_name(EMBEDDING)?;
        let item = match column.data_type() {
            DataType::FixedSizeList(..) => column.as_fixed_size_list().value(at),
            DataType::List(_) => column.as_list::<i32>().value(at),
            _ => return None,
        };
        Some(item.as_primitive_opt::<Float32Type>()?.values().to_vec())
    };
    (0..batch.num_rows())
        .map(|at| {
            let vector =
                vector(at).with_context(|| format!("{label}: {EMBEDDING:?} is no list of f32"))?;
            Ok(Row { id: text("id", at), text: text("text", at).unwrap_or_default(), vector })
        })
        .collect()
}

fn safetensors_rows(path: &Path) -> Result<Stream<Row>> {
    let folder = Directory::new(
        path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")),
    )?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut weights = Weights::open(&folder, &stem)?;
    let shape = weights.tensors().get(EMBEDDING).map(|info| info.shape.clone());
    let Some([_, dim]) = shape.as_deref().and_then(|shape| <[usize; 2]>::try_from(shape).ok())
    else {
        bail!("{}: no tensor {EMBEDDING:?} of shape [rows, dim]", path.display());
    };
    let values = weights.read(EMBEDDING)?.unwrap_or_default();
    let rows: Vec<Row> = values.chunks(dim.max(1)).map(|row| bare(row.to_vec())).collect();
    Ok(Box::new(rows.into_iter().map(Ok)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_gives_back_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let rows: Vec<Row> = (0..5)
            .map(|n| Row {
                id: Some(format!("d{n}")),
                text: format!("text {n} é"),
                vector: vec![n as f32, -0.5, 1e-7],
            })
            .collect();
        for name in ["v.npy", "v.jsonl", "v.parquet", "v.safetensors"] {
            let path = folder.path().join(name);
            let mut writer = VectorWriter::create(&path, 5, 3).unwrap();
            writer.write(&rows[..2]).unwrap();
            writer.write(&rows[2..]).unwrap();
            writer.finish().unwrap();
            let back: Vec<Row> = read_blocks(&path, 2).unwrap().flat_map(Result::unwrap).collect();
            assert_eq!(back.len(), 5, "{name}");
            for (back, row) in back.iter().zip(&rows) {
                assert_eq!(back.vector, row.vector, "{name}");
                if matches!(name, "v.jsonl" | "v.parquet") {
                    assert_eq!(back, row);
                }
            }
        }
    }

    #[test]
    fn an_unfinished_file_never_appears() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.npy");
        let mut writer = VectorWriter::create(&path, 2, 1).unwrap();
        writer.write(&[bare(vec![1.0])]).unwrap();
        assert!(writer.finish().is_err());
        assert!(!path.exists());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
