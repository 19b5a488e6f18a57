//! Vectors in files: npy, JSONL, Parquet and safetensors, written row by row and read in blocks.

mod npy;
mod read;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use arrow_array::builder::{FixedSizeListBuilder, Float32Builder};
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use kiln_embed::checkpoint::write_safetensors;
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use serde::Serialize;
use tempfile::NamedTempFile;

use kiln_terminal::terminal::StandardOutput;

pub use read::{Block, description, read_blocks};

/// Name of the vectors' column, field or tensor.
pub const EMBEDDING: &str = "embedding";

/// Under it a file keeps what [`VectorWriter::describe`] says in its own metadata.
const DESCRIPTION: &str = "kiln.settings";

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

impl FromStr for VectorFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "npy" => Ok(Self::Npy),
            "jsonl" => Ok(Self::JsonLines),
            "parquet" => Ok(Self::Parquet),
            "safetensors" => Ok(Self::Safetensors),
            _ => Err(format!("{name:?} is none of npy, jsonl, parquet, safetensors")),
        }
    }
}

impl VectorFormat {
    /// Its name, which is the ending of its files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Npy => "npy",
            Self::JsonLines => "jsonl",
            Self::Parquet => "parquet",
            Self::Safetensors => "safetensors",
        }
    }

    /// Format by the file's name.
    ///
    /// # Errors
    /// An ending that is none of the four.
    pub fn of(path: &Path) -> Result<Self> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if ending == "npz" {
            bail!(
                "{}: holds several arrays; save the one of the vectors by itself (numpy.save, .npy)",
                path.display()
            );
        }
        ending.parse().map_err(|_| {
            anyhow!(
                "{}: unknown format; vectors are .npy, .jsonl, .parquet or .safetensors",
                path.display()
            )
        })
    }
}

/// A row to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct VectorRow {
    /// Id of the text, if it has one.
    pub id: Option<String>,
    /// The text; empty where the file does not keep it.
    pub text: String,
    /// Its vector.
    pub vector: Vec<f32>,
}

/// Writes rows to standard output, or to a temporary file beside the target, which
/// [`VectorWriter::finish`] puts in place.
pub struct VectorWriter {
    label: String,
    dim: usize,
    /// How many rows there shall be, where that is known.
    rows: Option<usize>,
    written: usize,
    sink: Sink,
}

enum Sink {
    Npy(BufWriter<Place>),
    JsonLines(BufWriter<Place>),
    Parquet { schema: Arc<Schema>, writer: Box<ArrowWriter<Place>> },
    Safetensors { place: Place, values: Vec<f32>, description: Option<String> },
}

/// Where the bytes go.
enum Place {
    File { file: NamedTempFile, target: PathBuf },
    StandardOutput,
}

impl Place {
    fn finish(self) -> Result<()> {
        match self {
            Self::File { file, target } => persist(file, &target),
            Self::StandardOutput => StandardOutput.flush().context("standard output"),
        }
    }
}

impl Write for Place {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::File { file, .. } => file.write(bytes),
            Self::StandardOutput => StandardOutput.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::File { file, .. } => file.flush(),
            Self::StandardOutput => StandardOutput.flush(),
        }
    }
}

/// The file that a target names, links followed, if it may be written.
///
/// # Errors
/// A folder or a device, whose place no file can take.
fn writable(target: &Path) -> Result<PathBuf> {
    match std::fs::metadata(target) {
        Ok(data) if data.is_dir() => bail!("{}: is a folder; name a file", target.display()),
        Ok(data) if !data.is_file() => {
            bail!("{}: is no regular file; name one to write", target.display())
        }
        // A link stays a link, and what it names is replaced.
        Ok(_) => std::fs::canonicalize(target).with_context(|| target.display().to_string()),
        Err(_) => Ok(target.to_path_buf()),
    }
}

fn folder_of(target: &Path) -> &Path {
    target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A temporary file in the folder of `target`, so that renaming it is atomic.
fn beside(target: &Path) -> Result<NamedTempFile> {
    let target = writable(target)?;
    sweep(folder_of(&target));
    let mut builder = tempfile::Builder::new();
    builder.prefix(TEMPORARY);
    // Temporary files are private; a result is as readable as any other new file.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let made = builder.tempfile_in(folder_of(&target));
    let made = made.with_context(|| target.display().to_string())?;
    // Says that it belongs to a living process. Where a file system has no locks, nothing is swept either.
    let _ = made.as_file().try_lock();
    Ok(made)
}

/// Beginning of the names of temporary files.
pub const TEMPORARY: &str = ".kiln-";
/// Letters that follow it.
const LETTERS: usize = 6;
/// A younger file may be another process's that has not locked it yet.
const YOUNG: Duration = Duration::from_secs(600);

/// Removes the temporary files that killed processes have left in a folder.
fn sweep(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let letters = name.to_str().and_then(|name| name.strip_prefix(TEMPORARY));
        let is_ours = letters.is_some_and(|letters| {
            letters.len() == LETTERS && letters.bytes().all(|letter| letter.is_ascii_alphanumeric())
        });
        let is_old = |data: std::fs::Metadata| {
            let age = data.modified().ok().and_then(|modified| modified.elapsed().ok());
            data.is_file() && age.is_some_and(|age| age > YOUNG)
        };
        if is_ours && entry.metadata().is_ok_and(is_old) {
            // One that cannot be removed is untidy only.
            let free = File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
            let _ = free.then(|| std::fs::remove_file(entry.path()));
        }
    }
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

/// Writes a file where there is none, whole or not at all, and says whether it did; one that is there stays.
///
/// # Errors
/// A folder that cannot be written.
pub fn write_new(target: &Path, bytes: &[u8]) -> Result<bool> {
    let label = || target.display().to_string();
    let mut file = beside(target)?;
    file.write_all(bytes).with_context(label)?;
    file.as_file().sync_all().with_context(label)?;
    match file.persist_noclobber(writable(target)?) {
        Ok(_) => Ok(true),
        Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error.error).with_context(label),
    }
}

/// A file that is written piece by piece, and takes its target's place when it is finished; until then, and
/// where it never is, the target is as it was.
pub struct NewFile {
    bytes: BufWriter<NamedTempFile>,
    target: PathBuf,
}

impl NewFile {
    /// Begins a file for a target.
    ///
    /// # Errors
    /// A target whose place no file can take, or a folder that cannot be written.
    pub fn create(target: &Path) -> Result<Self> {
        Ok(Self { bytes: BufWriter::new(beside(target)?), target: target.to_path_buf() })
    }

    /// Adds a line of JSON.
    ///
    /// # Errors
    /// A disk that is full.
    pub fn line(&mut self, value: &impl Serialize) -> Result<()> {
        let written = serde_json::to_writer(&mut self.bytes, value).map_err(anyhow::Error::from);
        let ended = written.and_then(|()| Ok(self.bytes.write_all(b"\n")?));
        ended.with_context(|| self.target.display().to_string())
    }

    /// Puts what was written in the target's place.
    ///
    /// # Errors
    /// Whatever the file system refuses.
    pub fn finish(self) -> Result<()> {
        let file = self.bytes.into_inner().map_err(std::io::IntoInnerError::into_error);
        persist(file.with_context(|| self.target.display().to_string())?, &self.target)
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.bytes.flush()
    }
}

/// Puts a written file in the target's place, so that a loss of power leaves the old or the new.
fn persist(file: NamedTempFile, target: &Path) -> Result<()> {
    let label = || target.display().to_string();
    let target = writable(target)?;
    file.as_file().sync_all().with_context(label)?;
    file.persist(&target).with_context(label)?;
    #[cfg(unix)]
    File::open(folder_of(&target)).and_then(|folder| folder.sync_all()).with_context(label)?;
    Ok(())
}

impl VectorWriter {
    /// A writer for `rows` vectors of width `dim` into a file, in the format that its name says.
    ///
    /// # Errors
    /// An unknown format, or a folder that cannot be written.
    pub fn create(target: &Path, rows: usize, dim: usize) -> Result<Self> {
        Self::create_as(VectorFormat::of(target)?, target, rows, dim)
    }

    /// As [`VectorWriter::create`], in a format whatever the file's name.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn create_as(format: VectorFormat, target: &Path, rows: usize, dim: usize) -> Result<Self> {
        let place = Place::File { file: beside(target)?, target: target.to_path_buf() };
        Self::new(place, format, &target.display().to_string(), rows, dim)
    }

    /// A writer for vectors of width `dim` whose number is not known.
    ///
    /// # Errors
    /// A format that says at its beginning how many follow, or a folder that cannot be written.
    pub fn create_growing(format: VectorFormat, target: &Path, dim: usize) -> Result<Self> {
        if !matches!(format, VectorFormat::JsonLines | VectorFormat::Parquet) {
            bail!("{}: .jsonl and .parquet alone grow as rows come", target.display());
        }
        let place = Place::File { file: beside(target)?, target: target.to_path_buf() };
        let writer = Self::new(place, format, &target.display().to_string(), 0, dim)?;
        Ok(Self { rows: None, ..writer })
    }

    /// A writer for `rows` vectors of width `dim` to standard output.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn to_standard_output(format: VectorFormat, rows: usize, dim: usize) -> Result<Self> {
        Self::new(Place::StandardOutput, format, "standard output", rows, dim)
    }

    fn new(
        place: Place,
        format: VectorFormat,
        label: &str,
        rows: usize,
        dim: usize,
    ) -> Result<Self> {
        let context = || label.to_string();
        let sink = match format {
            VectorFormat::Npy => {
                let mut writer = BufWriter::new(place);
                writer.write_all(&npy::header(rows, dim)).with_context(context)?;
                Sink::Npy(writer)
            }
            VectorFormat::JsonLines => Sink::JsonLines(BufWriter::new(place)),
            VectorFormat::Parquet => {
                let item = Arc::new(Field::new("item", DataType::Float32, true));
                let schema = Arc::new(Schema::new(vec![
                    Field::new("id", DataType::Utf8, true),
                    Field::new("text", DataType::Utf8, false),
                    Field::new(EMBEDDING, DataType::FixedSizeList(item, dim as i32), false),
                ]));
                let settings = Some(parquet_settings(dim));
                let writer =
                    ArrowWriter::try_new(place, schema.clone(), settings).with_context(context)?;
                Sink::Parquet { schema, writer: Box::new(writer) }
            }
            VectorFormat::Safetensors => {
                Sink::Safetensors { place, values: Vec::new(), description: None }
            }
        };
        Ok(Self { label: label.into(), dim, rows: Some(rows), written: 0, sink })
    }

    /// Keeps a text about the vectors, which [`description`] reads; .npy and .jsonl have no place for one, and it is not asked
    /// for.
    ///
    /// # Errors
    /// Those of `text`.
    pub fn describe(&mut self, text: impl FnOnce() -> Result<String>) -> Result<()> {
        match &mut self.sink {
            Sink::Parquet { writer, .. } => {
                writer.append_key_value_metadata(KeyValue::new(DESCRIPTION.into(), text()?));
            }
            Sink::Safetensors { description, .. } => *description = Some(text()?),
            Sink::Npy(_) | Sink::JsonLines(_) => {}
        }
        Ok(())
    }

    /// Writes the next rows.
    ///
    /// # Errors
    /// A vector of another width or with NaN, or a disk that is full.
    pub fn write(&mut self, rows: &[VectorRow]) -> Result<()> {
        if let Some(row) = rows.iter().find(|row| row.vector.len() != self.dim) {
            bail!("a vector has {} dimensions, expected {}", row.vector.len(), self.dim);
        }
        for (i, row) in rows.iter().enumerate() {
            finite(&row.vector).with_context(|| format!("row {}", self.written + i + 1))?;
        }
        self.written += rows.len();
        let written = match &mut self.sink {
            Sink::Npy(writer) => {
                let mut values = rows.iter().flat_map(|row| &row.vector);
                values.try_for_each(|value| Ok(writer.write_all(&value.to_le_bytes())?))
            }
            Sink::JsonLines(writer) => write_json_lines(writer, rows),
            Sink::Parquet { schema, writer } => {
                parquet_batch(schema, rows, self.dim).and_then(|batch| Ok(writer.write(&batch)?))
            }
            Sink::Safetensors { values, .. } => {
                values.extend(rows.iter().flat_map(|row| row.vector.iter()));
                Ok(())
            }
        };
        written.with_context(|| self.label.clone())
    }

    /// Writes what is left, and puts a file in the target's place.
    ///
    /// # Errors
    /// Fewer rows than announced, or a disk that is full; the target is then as it was.
    pub fn finish(self) -> Result<()> {
        let Self { label, dim, rows, written, sink } = self;
        let context = || label.clone();
        if let Some(rows) = rows.filter(|&rows| rows != written) {
            bail!(
                "{label}: {written} of {rows} rows were written; was what they come from changed meanwhile?"
            );
        }
        let place = match sink {
            Sink::Npy(writer) | Sink::JsonLines(writer) => writer
                .into_inner()
                .map_err(std::io::IntoInnerError::into_error)
                .with_context(context)?,
            Sink::Parquet { writer, .. } => writer.into_inner().with_context(context)?,
            Sink::Safetensors { mut place, values, description } => {
                let tensor = (EMBEDDING.to_string(), vec![written, dim], values);
                let mut metadata = vec![("format", "kiln")];
                metadata.extend(description.as_deref().map(|text| (DESCRIPTION, text)));
                let bytes = write_safetensors(&[tensor], &metadata)?;
                place.write_all(&bytes).with_context(context)?;
                place
            }
        };
        place.finish()
    }
}

/// Groups of rows that a writer holds in memory, however long their texts are, and vectors as they are: a dictionary of numbers that
/// hardly repeat would only be made, and their least and greatest number says nothing.
fn parquet_settings(dim: usize) -> WriterProperties {
    const GROUP_BYTES: usize = 64 << 20;
    let vectors = ColumnPath::from(vec![EMBEDDING.into(), "list".into(), "item".into()]);
    WriterProperties::builder()
        .set_max_row_group_row_count(Some((GROUP_BYTES / (4 * dim.max(1))).max(1)))
        .set_max_row_group_bytes(Some(GROUP_BYTES))
        .set_column_dictionary_enabled(vectors.clone(), false)
        .set_column_statistics_enabled(vectors, EnabledStatistics::None)
        .build()
}

fn write_json_lines(writer: &mut impl Write, rows: &[VectorRow]) -> Result<()> {
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

fn parquet_batch(schema: &Arc<Schema>, rows: &[VectorRow], dim: usize) -> Result<RecordBatch> {
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

/// Refuses a vector that no cosine can be computed with.
fn finite(vector: &[f32]) -> Result<()> {
    match vector.iter().position(|value| !value.is_finite()) {
        Some(i) => bail!("value {} of the vector is {}", i + 1, vector[i]),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;

    #[test]
    fn every_format_gives_back_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let rows: Vec<VectorRow> = (0..5)
            .map(|n| VectorRow {
                id: Some(format!("d{n}")),
                text: format!("text {n} é"),
                vector: vec![n as f32, -0.5, 1e-7],
            })
            .collect();
        for name in ["v.npy", "v.jsonl", "v.parquet", "v.safetensors"] {
            let path = folder.path().join(name);
            let mut writer = VectorWriter::create(&path, 5, 3).unwrap();
            writer.describe(|| Ok("{\"by\":\"é\"}".into())).unwrap();
            writer.write(&rows[..2]).unwrap();
            writer.write(&rows[2..]).unwrap();
            writer.finish().unwrap();
            let says_it = matches!(name, "v.parquet" | "v.safetensors");
            let said = description(&path).unwrap();
            assert_eq!(said.as_deref(), says_it.then_some("{\"by\":\"é\"}"), "{name}");
            let back: Vec<VectorRow> =
                read_blocks(&path, 2).unwrap().flat_map(Result::unwrap).collect();
            assert_eq!(back.len(), 5, "{name}");
            for (back, row) in back.iter().zip(&rows) {
                assert_eq!(back.vector, row.vector, "{name}");
                if matches!(name, "v.jsonl" | "v.parquet") {
                    assert_eq!(back, row);
                }
            }
        }
    }

    /// Several pages a column, also of dictionaries, and several groups of rows.
    #[test]
    fn parquet_of_many_pages_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let vector = |n: usize| (0..384).map(|i| ((n * 384 + i) as f32).sin()).collect();
        let rows: Vec<VectorRow> = (0..3000)
            .map(|n| VectorRow { id: Some(n.to_string()), text: "x".repeat(n), vector: vector(n) })
            .collect();
        let path = folder.path().join("v.parquet");
        let mut writer = VectorWriter::create(&path, rows.len(), 384).unwrap();
        rows.chunks(700).for_each(|rows| writer.write(rows).unwrap());
        writer.finish().unwrap();
        let read = |path: &Path| -> Vec<VectorRow> {
            read_blocks(path, 512).unwrap().flat_map(Result::unwrap).collect()
        };
        assert_eq!(read(&path), rows);
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&path).unwrap()).unwrap();
        let schema = reader.schema().clone();
        let again = folder.path().join("dictionaries.parquet");
        let settings = WriterProperties::builder().set_max_row_group_row_count(Some(1700)).build();
        let file = File::create(&again).unwrap();
        let mut writer = ArrowWriter::try_new(file, schema, Some(settings)).unwrap();
        reader.build().unwrap().for_each(|batch| writer.write(&batch.unwrap()).unwrap());
        writer.close().unwrap();
        assert_eq!(read(&again), rows);
    }

    #[test]
    fn an_unfinished_file_never_appears() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.npy");
        let mut writer = VectorWriter::create(&path, 2, 1).unwrap();
        writer.write(&[row(1.0)]).unwrap();
        assert!(writer.finish().is_err());
        assert!(!path.exists());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    fn row(value: f32) -> VectorRow {
        VectorRow { id: None, text: String::new(), vector: vec![value] }
    }

    #[test]
    fn what_is_no_number_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["v.npy", "v.jsonl", "v.parquet", "v.safetensors"] {
            let mut writer = VectorWriter::create(&folder.path().join(name), 2, 1).unwrap();
            let error = writer.write(&[row(1.0), row(f32::NAN)]).unwrap_err();
            assert!(format!("{error:#}").contains("row 2"), "{name}: {error:#}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    #[cfg(unix)]
    fn links_stay_links_and_folders_and_devices_are_refused() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("real.jsonl"), "old").unwrap();
        symlink("real.jsonl", at("link.jsonl")).unwrap();
        write_atomically(&at("link.jsonl"), b"new").unwrap();
        assert!(std::fs::symlink_metadata(at("link.jsonl")).unwrap().is_symlink());
        assert_eq!(std::fs::read(at("real.jsonl")).unwrap(), b"new");
        let mode = std::fs::metadata(at("real.jsonl")).unwrap().permissions().mode();
        assert_eq!(mode & 0o700, 0o600, "{mode:o}");
        std::fs::create_dir(at("folder.npy")).unwrap();
        symlink("/dev/null", at("null.npy")).unwrap();
        for name in ["folder.npy", "null.npy"] {
            assert!(VectorWriter::create(&at(name), 1, 1).is_err(), "{name}");
            assert!(write_atomically(&at(name), b"x").is_err(), "{name}");
        }
    }
}
