//! Reads texts from txt, JSONL, CSV, TSV and Parquet, plain or compressed (gz, zst), record by
//! record, never the whole file in memory.

use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};

use super::parquet::Table;
use super::{Stream, csv, json, lines, numbered, open, parquet, spool};

/// Largest window of zstd that is unpacked, as a power of 2: what its own tool takes by default.
const WINDOW: u32 = 27;

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

impl Packing {
    /// Packing by a file's name, and the name without its ending.
    fn of(name: &str) -> (&str, Self) {
        match (name.strip_suffix(".gz"), name.strip_suffix(".zst")) {
            (Some(name), _) => (name, Self::Gzip),
            (_, Some(name)) => (name, Self::Zstd),
            _ => (name, Self::Plain),
        }
    }
}

/// The last part of a path, in small letters.
fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().to_lowercase()
}

impl Format {
    /// Format and packing by the file's name.
    fn of(path: &Path) -> Result<(Self, Packing)> {
        let name = file_name(path);
        let (name, packing) = Packing::of(&name);
        let format = match name.rsplit('.').next().unwrap_or_default() {
            "txt" | "text" | "md" => Format::Lines,
            "jsonl" | "ndjson" | "json" => Format::JsonLines,
            "csv" => Format::Csv { separator: b',' },
            "tsv" => Format::Csv { separator: b'\t' },
            "parquet" if packing == Packing::Plain => Format::Parquet,
            "parquet" => bail!(
                "{}: Parquet is compressed inside; unpack it first (gzip -d, zstd -d)",
                path.display()
            ),
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
    /// Bytes when it was opened; what is written to it later is not read.
    bytes: u64,
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
    /// An unreadable path, no regular file, or an unknown format.
    pub fn open(path: &str, columns: Columns) -> Result<Self> {
        if path == "-" {
            let mut file = Self::standard_input(columns)?;
            let mut start = Vec::new();
            file.reader()?.take(1).read_to_end(&mut start)?;
            if start == b"{" {
                file.format = Format::JsonLines;
            }
            return Ok(file);
        }
        let path = PathBuf::from(path);
        let (format, packing) = Format::of(&path)?;
        Self::new(path, format, packing, columns)
    }

    /// Opens a file of lines whatever its name; `-` is standard input.
    ///
    /// # Errors
    /// An unreadable path, or no regular file.
    pub fn of_lines(path: &Path) -> Result<Self> {
        let columns = Columns::required(&[]);
        if path == Path::new("-") {
            return Self::standard_input(columns);
        }
        let (_, packing) = Packing::of(&file_name(path));
        Self::new(path.to_path_buf(), Format::Lines, packing, columns)
    }

    fn new(path: PathBuf, format: Format, packing: Packing, columns: Columns) -> Result<Self> {
        let label = path.display().to_string();
        let bytes = super::regular(&path)?.len();
        if bytes == 0 {
            bail!("{label}: the file is empty");
        }
        Ok(Self { label, path, bytes, format, packing, columns, _spool: None })
    }

    /// Standard input as lines.
    fn standard_input(columns: Columns) -> Result<Self> {
        let file = spool::spool(std::io::stdin().lock())?;
        let bytes = file.as_file().metadata().context(spool::LABEL)?.len();
        if bytes == 0 {
            bail!("standard input is empty");
        }
        Ok(Self {
            label: spool::LABEL.into(),
            path: file.path().to_path_buf(),
            bytes,
            format: Format::Lines,
            packing: Packing::Plain,
            columns,
            _spool: Some(file.into()),
        })
    }

    /// The file's format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of records.
    ///
    /// # Errors
    /// The first record that cannot be read.
    pub fn count(&self) -> Result<usize> {
        if self.format == Format::Parquet {
            return Ok(Table::open(&self.path, &self.label)?.rows());
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
        let label = self.label.clone();
        match self.format {
            Format::Parquet => {
                parquet::records(Table::open(&self.path, &label)?, self.columns.clone())
            }
            Format::Csv { separator } => self.csv(separator),
            Format::JsonLines => {
                let columns = self.columns.clone();
                Ok(Box::new(self.numbered()?.map(move |line| {
                    let (number, line) = line?;
                    json_record(&line, number, &columns)
                        .with_context(|| format!("{label}:{number}"))
                })))
            }
            Format::Lines => Ok(Box::new(self.texts()?.map(|line| {
                let (number, line) = line?;
                Ok(Record { number, id: None, fields: vec![line] })
            }))),
        }
    }

    /// The rows with all their fields, whatever the format: JSON objects, CSV and Parquet rows as
    /// such, plain lines with the one field `text`. A row that is wrong is an error, and the rows
    /// after it still follow; after an [`super::Unreadable`] error nothing follows.
    ///
    /// # Errors
    /// A file that cannot be opened.
    pub fn objects(&self) -> Result<Stream<Object>> {
        let label = self.label.clone();
        Ok(match self.format {
            Format::Lines => Box::new(self.texts()?.map(|line| {
                let (number, line) = line?;
                let fields = [("text".to_string(), line.into())].into_iter().collect();
                Ok(Object { number, fields })
            })),
            Format::JsonLines => Box::new(self.numbered()?.map(move |line| {
                let (number, line) = line?;
                let place = || format!("{label}:{number}: not a JSON object");
                Ok(Object { number, fields: json::object(&line).with_context(place)? })
            })),
            Format::Csv { separator } => {
                let (header, rows) = csv::rows(self.reader()?, separator, label)?;
                Box::new(rows.map(move |row| {
                    let (number, row) = row?;
                    let cells = header.iter().zip(row.iter());
                    let fields = cells.map(|(name, cell)| (name.to_string(), cell.into()));
                    Ok(Object { number, fields: fields.collect() })
                }))
            }
            Format::Parquet => parquet::objects(Table::open(&self.path, &label)?)?,
        })
    }

    /// The unpacked bytes behind a byte-order mark.
    fn reader(&self) -> Result<Box<dyn BufRead>> {
        let file = open::open(&self.path)?.take(self.bytes);
        let label = &self.label;
        match self.packing {
            Packing::Plain => open::behind_mark(file, label),
            Packing::Gzip => open::behind_mark(flate2::read::MultiGzDecoder::new(file), label),
            Packing::Zstd => {
                let mut decoder = zstd::Decoder::new(file).with_context(|| label.clone())?;
                decoder.window_log_max(WINDOW).with_context(|| label.clone())?;
                open::behind_mark(decoder, label)
            }
        }
    }

    /// Lines with their numbers; of JSONL the blank ones left out, as they are nothing, where a
    /// blank line of text is an empty text.
    ///
    /// # Errors
    /// The file cannot be opened; what is wrong with a line is the line's own error.
    pub fn numbered(&self) -> Result<Stream<(usize, String)>> {
        Ok(numbered(self.reader()?, self.label.clone(), self.format == Format::JsonLines))
    }

    /// Lines that are texts.
    fn texts(&self) -> Result<Stream<(usize, String)>> {
        let label = self.label.clone();
        Ok(Box::new(self.numbered()?.map(move |line| {
            let (number, line) = line?;
            lines::check_text(&line).with_context(|| format!("{label}:{number}"))?;
            Ok((number, line))
        })))
    }

    fn csv(&self, separator: u8) -> Result<Stream<Record>> {
        let label = self.label.clone();
        let (header, rows) = csv::rows(self.reader()?, separator, label.clone())?;
        let column_of = |column: &String| header.iter().position(|name| name == column);
        let mut wanted = Vec::new();
        for field in &self.columns.fields {
            let known = || header.iter().collect::<Vec<_>>().join(", ");
            wanted.push(Some(column_of(field).with_context(|| {
                format!("{label}: no column {field:?}; the header has {}", known())
            })?));
        }
        wanted.extend(self.columns.optional.iter().map(column_of));
        let id = column_of(&"_id".to_string()).or_else(|| column_of(&"id".to_string()));
        Ok(Box::new(rows.map(move |row| {
            let (number, row) = row?;
            let cell = |column: usize| row.get(column).unwrap_or_default().to_string();
            Ok(Record {
                number,
                id: id.map(cell),
                fields: wanted.iter().map(|column| column.map(cell).unwrap_or_default()).collect(),
            })
        })))
    }
}

fn json_record(line: &str, number: usize, columns: &Columns) -> Result<Record> {
    let object = json::object(line).context("not a JSON object")?;
    let text = |field: &String| match object.get(field) {
        Some(serde_json::Value::String(text)) => Ok(Some(text.clone())),
        Some(serde_json::Value::Null) | None => Ok(None),
        Some(serde_json::Value::Number(number)) => Ok(Some(number.to_string())),
        Some(other) => Err(anyhow!("the field {field:?} is {}, not a text", short(other))),
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
    let id = ["_id", "id"].iter().find_map(|key| object.get(*key)).filter(|id| !id.is_null());
    let id = id.map(|id| id.as_str().map_or_else(|| id.to_string(), String::from));
    Ok(Record { number, id, fields })
}

/// A value for a message, which one line should hold.
pub(crate) fn short(value: &serde_json::Value) -> String {
    const MOST: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
