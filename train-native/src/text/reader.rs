//! Reads texts from txt, JSONL, CSV, TSV and Parquet, plain or compressed (gz, zst), record by
//! record, never the whole file in memory.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::DataType;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

/// The error of a file whose rest cannot be read, as against a row that is wrong; no row follows.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {cause}; the file is cut off or damaged")]
pub struct Unreadable {
    place: String,
    cause: String,
}

impl Unreadable {
    fn at(place: impl std::fmt::Display, cause: impl std::fmt::Display) -> anyhow::Error {
        Self { place: place.to_string(), cause: cause.to_string() }.into()
    }
}

/// The items up to the first [`Unreadable`] error, which is the last.
fn until_unreadable<T>(items: impl Iterator<Item = Result<T>>) -> impl Iterator<Item = Result<T>> {
    let mut over = false;
    items.take_while(move |item| {
        let before = over;
        over |= matches!(item, Err(error) if error.is::<Unreadable>());
        !before
    })
}

/// Items that are read one after another, each of which may fail.
pub type Stream<T> = Box<dyn Iterator<Item = Result<T>>>;

/// Format of a file of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One text a line.
    Lines,
    /// One JSON object a line.
    JsonLines,
    /// Comma- or tab-separated with a header line.
    Csv {
        /// Separator.
        separator: u8,
    },
    /// Parquet with text columns.
    Parquet,
}

/// How a file is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl Format {
    /// Format and packing by the file's name.
    fn of(path: &Path) -> Result<(Self, Packing)> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let (name, packing) = match (name.strip_suffix(".gz"), name.strip_suffix(".zst")) {
            (Some(name), _) => (name, Packing::Gzip),
            (_, Some(name)) => (name, Packing::Zstd),
            _ => (name.as_str(), Packing::Plain),
        };
        let format = match name.rsplit('.').next().unwrap_or_default() {
            "txt" | "text" | "md" => Format::Lines,
            "jsonl" | "ndjson" | "json" => Format::JsonLines,
            "csv" => Format::Csv { separator: b',' },
            "tsv" => Format::Csv { separator: b'\t' },
            "parquet" => Format::Parquet,
            _ => bail!(
                "{}: unknown format; texts are read from .txt, .jsonl, .csv, .tsv and .parquet (plain, .gz or .zst)",
                path.display()
            ),
        };
        Ok((format, packing))
    }
}

/// Which columns (JSON fields) hold what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// Columns whose texts are read; each is one entry of [`Record::fields`].
    pub fields: Vec<String>,
    /// Columns that may be absent or null (then empty).
    pub optional: Vec<String>,
}

impl Columns {
    /// Required columns only.
    pub fn required(fields: &[&str]) -> Self {
        Self {
            fields: fields.iter().map(|field| field.to_string()).collect(),
            optional: Vec::new(),
        }
    }
}

/// One row of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Line or row number, from 1.
    pub number: usize,
    /// `_id` or `id`, where the row has one.
    pub id: Option<String>,
    /// The texts of the columns asked for, required ones first.
    pub fields: Vec<String>,
}

impl Record {
    /// All fields that are not empty, joined by spaces.
    pub fn joined(&self) -> String {
        let parts: Vec<&str> =
            self.fields.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
        parts.join(" ")
    }
}

/// One row with all its fields.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    /// Line or row number, from 1.
    pub number: usize,
    /// Field names and values.
    pub fields: serde_json::Map<String, serde_json::Value>,
}

/// A file of texts, or standard input (`-`).
#[derive(Debug, Clone)]
pub struct TextFile {
    /// Name for messages.
    pub label: String,
    path: PathBuf,
    format: Format,
    packing: Packing,
    columns: Columns,
    /// Holds standard input, so that it can be read twice.
    _spool: Option<std::sync::Arc<tempfile::NamedTempFile>>,
}

impl TextFile {
    /// Opens a file; `-` is standard input: JSONL if its first character is `{`, else lines.
    ///
    /// # Errors
    /// An unreadable path or an unknown format.
    pub fn open(path: &str, columns: Columns) -> Result<Self> {
        if path == "-" {
            return Self::standard_input(columns);
        }
        let path = PathBuf::from(path);
        let label = path.display().to_string();
        let (format, packing) = Format::of(&path)?;
        let data = std::fs::metadata(&path).with_context(|| label.clone())?;
        if data.is_dir() {
            bail!("{label}: is a folder; name a file of texts");
        }
        if data.len() == 0 {
            bail!("{label}: the file is empty");
        }
        Ok(Self { label, path, format, packing, columns, _spool: None })
    }

    fn standard_input(columns: Columns) -> Result<Self> {
        let mut spool = tempfile::NamedTempFile::new()
            .context("cannot make a temporary file for standard input")?;
        std::io::copy(&mut std::io::stdin().lock(), &mut spool).context("standard input")?;
        spool.flush()?;
        let mut first = [0; 1];
        let read = File::open(spool.path())?.read(&mut first)?;
        if read == 0 {
            bail!("standard input is empty");
        }
        let format = if first[0] == b'{' { Format::JsonLines } else { Format::Lines };
        Ok(Self {
            label: "standard input".into(),
            path: spool.path().to_path_buf(),
            format,
            packing: Packing::Plain,
            columns,
            _spool: Some(spool.into()),
        })
    }

    /// The file's format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Number of records.
    ///
    /// # Errors
    /// The first record that cannot be read.
    pub fn count(&self) -> Result<usize> {
        if self.format == Format::Parquet {
            let file = File::open(&self.path).with_context(|| self.label.clone())?;
            let reader = ParquetRecordBatchReaderBuilder::try_new(file)
                .map_err(|e| anyhow!("{}: {e}", self.label))?;
            return Ok(reader.metadata().file_metadata().num_rows().max(0) as usize);
        }
        let mut count = 0;
        for record in self.records()? {
            record?;
            count += 1;
        }
        Ok(count)
    }

    /// The records, one after another.
    ///
    /// # Errors
    /// The file cannot be opened; later items may be errors that name the line.
    pub fn records(&self) -> Result<Stream<Record>> {
        match self.format {
            Format::Parquet if self.packing != Packing::Plain => {
                bail!("{}: Parquet is compressed inside; unpack the outer compression", self.label)
            }
            Format::Parquet => {
                self.parquet(File::open(&self.path).with_context(|| self.label.clone())?)
            }
            Format::Csv { separator } => self.csv(self.reader()?, separator),
            _ => Ok(self.lines(BufReader::new(self.reader()?))),
        }
    }

    /// The unpacked bytes.
    fn reader(&self) -> Result<Box<dyn Read>> {
        let file = File::open(&self.path).with_context(|| self.label.clone())?;
        Ok(match self.packing {
            Packing::Plain => Box::new(file),
            Packing::Gzip => Box::new(flate2::read::MultiGzDecoder::new(file)),
            Packing::Zstd => {
                Box::new(zstd::Decoder::new(file).with_context(|| self.label.clone())?)
            }
        })
    }

    /// The rows with all their fields, whatever the format: JSON objects, CSV and Parquet rows as
    /// such, plain lines with the one field `text`. A row that is wrong is an error, and the rows after it still follow; after an
    /// [`Unreadable`] error nothing follows.
    ///
    /// # Errors
    /// A file that cannot be opened.
    pub fn objects(&self) -> Result<Stream<Object>> {
        let label = self.label.clone();
        Ok(match self.format {
            Format::Lines => {
                let lines = self.numbered(BufReader::new(self.reader()?));
                Box::new(lines.map(|line| {
                    let (number, line) = line?;
                    let fields = [("text".to_string(), line.into())].into_iter().collect();
                    Ok(Object { number, fields })
                }))
            }
            Format::JsonLines => {
                let lines = self.numbered(BufReader::new(self.reader()?));
                Box::new(lines.map(move |line| {
                    let (number, line) = line?;
                    let place = || format!("{label}:{number}");
                    let fields = serde_json::from_str(&line)
                        .with_context(|| format!("{}: not a JSON object", place()))?;
                    Ok(Object { number, fields })
                }))
            }
            Format::Csv { separator } => {
                let mut reader =
                    csv::ReaderBuilder::new().delimiter(separator).from_reader(self.reader()?);
                let header = reader.headers().with_context(|| label.clone())?.clone();
                Box::new(until_unreadable(reader.into_records().map(move |row| {
                    let row = row.map_err(|error| match error.is_io_error() {
                        true => Unreadable::at(&label, error),
                        false => anyhow!("{label}: {error}"),
                    })?;
                    let cells = header.iter().zip(row.iter());
                    let value = |cell: &str| serde_json::Value::String(cell.to_string());
                    Ok(Object {
                        number: row.position().map_or(0, |position| position.line() as usize),
                        fields: cells.map(|(name, cell)| (name.to_string(), value(cell))).collect(),
                    })
                })))
            }
            Format::Parquet => self.parquet_objects()?,
        })
    }

    fn parquet_objects(&self) -> Result<Stream<Object>> {
        if self.packing != Packing::Plain {
            bail!("{}: Parquet is compressed inside; unpack the outer compression", self.label);
        }
        let label = self.label.clone();
        let file = File::open(&self.path).with_context(|| label.clone())?;
        let reader = ParquetRecordBatchReaderBuilder::try_new(file)
            .and_then(|builder| builder.build())
            .map_err(|error| anyhow!("{label}: {error}"))?;
        let mut number = 0;
        Ok(Box::new(until_unreadable(reader.flat_map(move |batch| {
            let rows = || -> Result<Vec<serde_json::Map<String, serde_json::Value>>> {
                let mut writer = arrow::json::LineDelimitedWriter::new(Vec::new());
                writer.write(&batch?)?;
                writer.finish()?;
                let bytes = writer.into_inner();
                let lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
                Ok(lines.map(serde_json::from_slice).collect::<Result<_, _>>()?)
            };
            match rows() {
                Err(error) => vec![Err(Unreadable::at(&label, format!("{error:#}")))],
                Ok(rows) => rows
                    .into_iter()
                    .map(|fields| {
                        number += 1;
                        Ok(Object { number, fields })
                    })
                    .collect(),
            }
        }))))
    }

    /// Lines with their numbers; of JSONL the blank ones left out.
    fn numbered(&self, mut reader: impl BufRead + 'static) -> Stream<(usize, String)> {
        let (label, json) = (self.label.clone(), self.format == Format::JsonLines);
        let mut number = 0;
        let mut next = move || -> Result<Option<(usize, String)>> {
            loop {
                let mut line = Vec::new();
                number += 1;
                let read = reader
                    .read_until(b'\n', &mut line)
                    .map_err(|error| Unreadable::at(format!("{label}:{number}"), error))?;
                if read == 0 {
                    return Ok(None);
                }
                while matches!(line.last(), Some(b'\n' | b'\r')) {
                    line.pop();
                }
                let line = String::from_utf8(line).map_err(|error| {
                    let at = error.utf8_error().valid_up_to();
                    anyhow!(
                        "{label}:{number}: invalid UTF-8 at byte {at}; convert the file to UTF-8"
                    )
                })?;
                // A blank line of JSONL is nothing; a blank line of text is an empty text.
                if json && line.trim().is_empty() {
                    continue;
                }
                return Ok(Some((number, line)));
            }
        };
        Box::new(until_unreadable(std::iter::from_fn(move || next().transpose())))
    }

    fn lines(&self, reader: impl BufRead + 'static) -> Stream<Record> {
        let (label, columns, json) =
            (self.label.clone(), self.columns.clone(), self.format == Format::JsonLines);
        Box::new(self.numbered(reader).map(move |line| {
            let (number, line) = line?;
            if json {
                json_record(&line, number, &columns).with_context(|| format!("{label}:{number}"))
            } else {
                Ok(Record { number, id: None, fields: vec![line] })
            }
        }))
    }

    fn csv(&self, reader: Box<dyn Read>, separator: u8) -> Result<Stream<Record>> {
        let label = self.label.clone();
        let mut reader = csv::ReaderBuilder::new().delimiter(separator).from_reader(reader);
        let header = reader.headers().with_context(|| label.clone())?.clone();
        let at = |column: &String| header.iter().position(|name| name == column);
        let mut wanted = Vec::new();
        for field in &self.columns.fields {
            let known = || header.iter().collect::<Vec<_>>().join(", ");
            wanted.push(Some(at(field).with_context(|| {
                format!("{label}: no column {field:?}; the header has {}", known())
            })?));
        }
        wanted.extend(self.columns.optional.iter().map(at));
        let id = at(&"_id".to_string()).or_else(|| at(&"id".to_string()));
        Ok(Box::new(reader.into_records().map(move |row| {
            let row = row.map_err(|error| anyhow!("{label}: {error}"))?;
            let cell = |at: usize| row.get(at).unwrap_or_default().to_string();
            Ok(Record {
                number: row.position().map_or(0, |position| position.line() as usize),
                id: id.map(cell),
                fields: wanted.iter().map(|at| at.map(cell).unwrap_or_default()).collect(),
            })
        })))
    }

    fn parquet(&self, file: File) -> Result<Stream<Record>> {
        let label = self.label.clone();
        let failed = |label: &str, error: &dyn std::fmt::Display| anyhow!("{label}: {error}");
        let builder =
            ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| failed(&label, &e))?;
        let known: Vec<String> =
            builder.schema().fields().iter().map(|field| field.name().clone()).collect();
        if let Some(absent) = self.columns.fields.iter().find(|field| !known.contains(field)) {
            bail!("{label}: no column {absent:?}; the file has {}", known.join(", "));
        }
        let reader = builder.build().map_err(|e| failed(&label, &e))?;
        let columns = self.columns.clone();
        let mut row = 0;
        let rows = reader.flat_map(move |batch| -> Vec<Result<Record>> {
            match batch {
                Ok(batch) => (0..batch.num_rows())
                    .map(|at| {
                        row += 1;
                        parquet_record(&batch, at, row, &columns)
                            .with_context(|| format!("{label}: row {row}"))
                    })
                    .collect(),
                Err(error) => vec![Err(failed(&label, &error))],
            }
        });
        Ok(Box::new(rows))
    }
}

fn json_record(line: &str, number: usize, columns: &Columns) -> Result<Record> {
    let value: serde_json::Value = serde_json::from_str(line).context("not valid JSON")?;
    let object = value.as_object().context("not a JSON object")?;
    let text = |field: &String| match object.get(field) {
        Some(serde_json::Value::String(text)) => Ok(Some(text.clone())),
        Some(serde_json::Value::Null) | None => Ok(None),
        Some(serde_json::Value::Number(number)) => Ok(Some(number.to_string())),
        Some(other) => Err(anyhow!("the field {field:?} is {other}, not a text")),
    };
    let mut fields = Vec::new();
    for field in &columns.fields {
        let known = || object.keys().cloned().collect::<Vec<_>>().join(", ");
        fields.push(
            text(field)?
                .with_context(|| format!("no field {field:?}; the line has {}", known()))?,
        );
    }
    for field in &columns.optional {
        fields.push(text(field)?.unwrap_or_default());
    }
    let id = ["_id", "id"].iter().find_map(|key| object.get(*key)).map(|id| match id {
        serde_json::Value::String(id) => id.clone(),
        other => other.to_string(),
    });
    Ok(Record { number, id, fields })
}

fn parquet_record(
    batch: &RecordBatch,
    at: usize,
    number: usize,
    columns: &Columns,
) -> Result<Record> {
    let text = |name: &str| -> Result<Option<String>> {
        let Some(column) = batch.column_by_name(name) else {
            return Ok(None);
        };
        if column.is_null(at) {
            return Ok(None);
        }
        Ok(Some(match column.data_type() {
            DataType::Utf8 => column.as_string::<i32>().value(at).to_string(),
            DataType::LargeUtf8 => column.as_string::<i64>().value(at).to_string(),
            DataType::Utf8View => column.as_string_view().value(at).to_string(),
            DataType::Int64 => {
                column.as_primitive::<arrow::datatypes::Int64Type>().value(at).to_string()
            }
            DataType::Int32 => {
                column.as_primitive::<arrow::datatypes::Int32Type>().value(at).to_string()
            }
            other => bail!("the column {name:?} is {other}, not text"),
        }))
    };
    let mut fields = Vec::new();
    for field in &columns.fields {
        fields.push(text(field)?.with_context(|| format!("the column {field:?} is null"))?);
    }
    for field in &columns.optional {
        fields.push(text(field)?.unwrap_or_default());
    }
    let id = match text("_id")? {
        Some(id) => Some(id),
        None => text("id").unwrap_or(None),
    };
    Ok(Record { number, id, fields })
}
