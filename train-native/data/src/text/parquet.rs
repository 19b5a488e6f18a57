//! Parquet, read a few rows at a time, with the sizes of its pages checked before they are unpacked:
//! a page of a kilobyte may say that it holds gigabytes.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, StringViewArray};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, FieldRef, Schema};
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use super::limit::{most_bytes, size};
use super::{Object, Record, Stream, Unreadable, until_unreadable};
use crate::text::Columns;

/// Rows that are read at once; few, as each may be as large as the limit.
const ROWS: usize = 16;
/// Pages that the rows read at once may take, in multiples of the limit: one a column.
const PAGES: u64 = 8;

/// A file of Parquet.
pub(crate) struct Table {
    label: String,
    file: File,
    metadata: ArrowReaderMetadata,
}

/// Rows, a few at a time.
pub(crate) struct Batches {
    label: String,
    reader: ParquetRecordBatchReader,
    pulled: Arc<Pulled>,
    over: bool,
}

impl Table {
    /// Opens a file.
    ///
    /// # Errors
    /// No regular file, or no Parquet.
    pub(crate) fn open(path: &Path, label: &str) -> Result<Self> {
        let file = super::open(path)?;
        // What else Arrow once called the columns (dictionaries, wide offsets) does not matter.
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let metadata =
            ArrowReaderMetadata::load(&file, options).map_err(|error| failed(label, &error))?;
        // The reader takes these for whole numbers without asking.
        let groups = metadata.metadata().row_groups().iter();
        if let Some(column) = groups.flat_map(|group| group.columns()).find(|column| {
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            start < 0 || column.compressed_size() < 0
        }) {
            bail!(
                "{label}: the column {:?} starts at or spans a negative number of bytes; the file is damaged, \
                 fetch or write it again",
                column.column_path().string()
            );
        }
        Ok(Self { label: label.into(), file, metadata })
    }

    /// Number of rows, as the file has it.
    pub(crate) fn rows(&self) -> usize {
        self.metadata.metadata().file_metadata().num_rows().max(0) as usize
    }

    /// Names of the columns.
    pub(crate) fn columns(&self) -> Vec<&str> {
        self.metadata.schema().fields().iter().map(|field| field.name().as_str()).collect()
    }

    /// An entry of the file's metadata.
    pub(crate) fn entry(&self, key: &str) -> Option<String> {
        let entries = self.metadata.metadata().file_metadata().key_value_metadata()?;
        entries.iter().find(|entry| entry.key == key)?.value.clone()
    }

    /// The rows with some of the columns, or all. Texts and bytes come as views, which share what a
    /// dictionary says once.
    ///
    /// # Errors
    /// A schema that cannot be read.
    pub(crate) fn batches(self, wanted: Option<&[&str]>) -> Result<Batches> {
        let Self { label, file, metadata } = self;
        let schema = metadata.schema();
        let fields = schema.fields().iter().map(as_views);
        let viewed =
            Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone());
        let roots: Vec<usize> = (0..schema.fields().len())
            .filter(|&i| {
                wanted.is_none_or(|names| names.contains(&schema.field(i).name().as_str()))
            })
            .collect();
        let options = ArrowReaderOptions::new().with_schema(Arc::new(viewed));
        let metadata = ArrowReaderMetadata::try_new(metadata.metadata().clone(), options)
            .map_err(|error| failed(&label, &error))?;
        let mask = ProjectionMask::roots(metadata.parquet_schema(), roots);
        let pulled = Arc::new(Pulled::new());
        let pages = Pages { file, pulled: pulled.clone() };
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(pages, metadata)
            .with_projection(mask)
            .with_batch_size(ROWS)
            .build()
            .map_err(|error| failed(&label, &error))?;
        Ok(Batches { label, reader, pulled, over: false })
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        self.pulled.reset();
        let batch = match self.reader.next()? {
            Ok(batch) if batch.columns().iter().all(|column| is_utf8(column)) => Ok(batch),
            Ok(_) => Err(failed(&self.label, &"a text is not UTF-8")),
            Err(error) => Err(failed(&self.label, &error)),
        };
        self.over = batch.is_err();
        Some(batch)
    }
}

fn failed(label: &str, error: &dyn std::fmt::Display) -> anyhow::Error {
    Unreadable::damaged(label, error)
}

/// A field whose texts and bytes are views, all the way down.
fn as_views(field: &FieldRef) -> FieldRef {
    let viewed = match field.data_type() {
        DataType::Utf8 => DataType::Utf8View,
        DataType::Binary => DataType::BinaryView,
        DataType::List(item) => DataType::List(as_views(item)),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(as_views).collect()),
        other => other.clone(),
    };
    Arc::new(Field::clone(field).with_data_type(viewed))
}

/// Whether all texts of a column are UTF-8. The reader checks it of most columns, but not of those
/// whose logical type is JSON.
fn is_utf8(column: &dyn Array) -> bool {
    match column.data_type() {
        DataType::Utf8View => {
            let bytes = column.as_string_view().clone().to_binary_view();
            bytes.iter().flatten().all(|bytes| std::str::from_utf8(bytes).is_ok())
        }
        DataType::Utf8 => std::str::from_utf8(column.as_string::<i32>().value_data()).is_ok(),
        DataType::List(_) => is_utf8(column.as_list::<i32>().values()),
        DataType::Map(..) => {
            column.as_map().entries().columns().iter().all(|column| is_utf8(column))
        }
        DataType::Struct(_) => column.as_struct().columns().iter().all(|column| is_utf8(column)),
        _ => true,
    }
}

/// What the pages hold that were unpacked for the rows that are being read.
struct Pulled {
    most: u64,
    bytes: AtomicU64,
    values: AtomicU64,
}

impl Pulled {
    fn new() -> Self {
        Self { most: most_bytes() as u64, bytes: AtomicU64::new(0), values: AtomicU64::new(0) }
    }

    fn reset(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.values.store(0, Ordering::Relaxed);
    }

    /// Counts a page before it is unpacked.
    fn add(&self, page: &PageHead) -> Result<(), String> {
        let bytes = page.unpacked.max(page.packed).max(0) as u64;
        let values = page.values.max(0) as u64;
        let all_bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let all_values = self.values.fetch_add(values, Ordering::Relaxed).saturating_add(values);
        let (most, pages) = (size(self.most), size(PAGES * self.most));
        let cause = if bytes > self.most {
            format!("a page of {bytes} bytes, the limit is {most}")
        } else if all_bytes > PAGES * self.most {
            format!("{ROWS} rows need more than {pages} of pages")
        } else if all_values > self.most {
            format!("{ROWS} rows need pages of {all_values} values, the limit is {}", self.most)
        } else {
            return Ok(());
        };
        let remedy = "write it with smaller pages, or raise --max-text-bytes";
        Err(format!("{cause}; {remedy}"))
    }
}

/// A file whose pages are looked at before the reader unpacks them: with the metadata read, the
/// reader reads the head of a page from [`ChunkReader::get_read`], and its body from
/// [`ChunkReader::get_bytes`].
struct Pages {
    file: File,
    pulled: Arc<Pulled>,
}

/// A place where a page's head is, if the reader reads from it: where it has looked at the next page
/// before, as in columns of lists, it asks for the place behind the head as well, and reads nothing.
struct Head {
    reader: BufReader<File>,
    pulled: Arc<Pulled>,
    counted: bool,
}

impl Read for Head {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.counted {
            let head = PageHead::parse(self.reader.fill_buf()?);
            let odd = || io::Error::other("a page whose head has an unknown form");
            self.pulled.add(&head.ok_or_else(odd)?).map_err(io::Error::other)?;
            self.counted = true;
        }
        self.reader.read(buffer)
    }
}

impl Length for Pages {
    fn len(&self) -> u64 {
        Length::len(&self.file)
    }
}

impl ChunkReader for Pages {
    type T = Head;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let reader = self.file.get_read(start)?;
        Ok(Head { reader, pulled: self.pulled.clone(), counted: false })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        // Before memory is taken for them.
        if start.saturating_add(length as u64) > self.len() {
            return Err(ParquetError::EOF("a page that ends behind the file's end".into()));
        }
        self.file.get_bytes(start, length)
    }
}

/// The sizes at the start of a page's header, which is Thrift's compact protocol: a byte for each
/// field's number and type, then its value.
#[derive(Debug, PartialEq, Eq)]
struct PageHead {
    unpacked: i64,
    packed: i64,
    values: i64,
}

impl PageHead {
    /// `type`, `uncompressed_page_size`, `compressed_page_size`, perhaps `crc`, and of the struct
    /// that follows its first field, `num_values`.
    fn parse(bytes: &[u8]) -> Option<Self> {
        /// The next field, an i32.
        const NEXT_NUMBER: u8 = 0x15;
        const STRUCT: u8 = 12;
        let bytes = &mut bytes.iter().copied();
        let number = |bytes: &mut dyn Iterator<Item = u8>| {
            let mut value = 0u64;
            for i in 0..10 {
                let byte = bytes.next()?;
                value |= u64::from(byte & 0x7f).checked_shl(7 * i)?;
                if byte & 0x80 == 0 {
                    return Some((value >> 1) as i64 ^ -((value & 1) as i64));
                }
            }
            None
        };
        let mut sizes = [0; 3];
        for size in &mut sizes {
            if bytes.next()? != NEXT_NUMBER {
                return None;
            }
            *size = number(bytes)?;
        }
        let mut next = bytes.next()?;
        if next == NEXT_NUMBER {
            number(bytes)?;
            next = bytes.next()?;
        }
        let mut values = 0;
        if next & 0x0f == STRUCT && bytes.next()? == NEXT_NUMBER {
            values = number(bytes)?;
        }
        Some(Self { unpacked: sizes[1], packed: sizes[2], values })
    }
}

/// A cell as text; numbers are written out. `None` where it is null, or there is no such column.
///
/// # Errors
/// A column of something else, or bytes that are no text.
pub(crate) fn text(batch: &RecordBatch, name: &str, i: usize) -> Result<Option<String>> {
    let Some(column) = batch.column_by_name(name).filter(|column| !column.is_null(i)) else {
        return Ok(None);
    };
    let kind = column.data_type();
    Ok(Some(match kind {
        DataType::Utf8View => column.as_string_view().value(i).to_string(),
        DataType::BinaryView => std::str::from_utf8(column.as_binary_view().value(i))
            .with_context(|| format!("the column {name:?} holds bytes that are not UTF-8"))?
            .to_string(),
        DataType::Null => return Ok(None),
        _ if kind.is_numeric() => {
            cast(&column.slice(i, 1), &DataType::Utf8)?.as_string::<i32>().value(0).to_string()
        }
        _ => bail!("the column {name:?} is {kind}, not text"),
    }))
}

/// Bytes of the texts of a column.
fn text_bytes(column: &dyn Array) -> u64 {
    match column.data_type() {
        DataType::Utf8View => {
            column.as_string_view().lengths().map(u64::from).fold(0, u64::saturating_add)
        }
        DataType::BinaryView => {
            column.as_binary_view().lengths().map(u64::from).fold(0, u64::saturating_add)
        }
        DataType::List(_) => {
            let list = column.as_list::<i32>();
            let offsets = list.value_offsets();
            let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else { return 0 };
            text_bytes(&list.values().slice(first as usize, (last - first) as usize))
        }
        DataType::Struct(_) => {
            column.as_struct().columns().iter().map(|column| text_bytes(column)).sum()
        }
        _ => 0,
    }
}

/// The rows with the texts of some columns.
pub(super) fn records(table: Table, columns: Columns) -> Result<Stream<Record>> {
    let known = table.columns();
    if let Some(absent) = columns.fields.iter().find(|field| !known.contains(&field.as_str())) {
        bail!("{}: no column {absent:?}; the file has {}", table.label, known.join(", "));
    }
    let label = table.label.clone();
    let mut wanted: Vec<&str> = vec!["_id", "id"];
    wanted.extend(columns.fields.iter().chain(&columns.optional).map(String::as_str));
    let batches = table.batches(Some(&wanted))?;
    let mut number = 0;
    Ok(Box::new(batches.flat_map(move |batch| -> Vec<Result<Record>> {
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => return vec![Err(error)],
        };
        let mut next = |i: usize| {
            number += 1;
            record(&batch, i, number, &columns).with_context(|| format!("{label}: row {number}"))
        };
        (0..batch.num_rows()).map(&mut next).collect()
    })))
}

fn record(batch: &RecordBatch, i: usize, number: usize, columns: &Columns) -> Result<Record> {
    let mut fields = Vec::new();
    for field in &columns.fields {
        let text = text(batch, field, i)?;
        fields.push(text.with_context(|| format!("the column {field:?} is null"))?);
    }
    for field in &columns.optional {
        fields.push(text(batch, field, i)?.unwrap_or_default());
    }
    // An id of another kind is none.
    let id = ["_id", "id"].iter().find_map(|name| text(batch, name, i).unwrap_or(None));
    Ok(Record { number, id, fields })
}

/// The rows with all their columns.
pub(super) fn objects(table: Table) -> Result<Stream<Object>> {
    let label = table.label.clone();
    let batches = table.batches(None)?;
    let mut number = 0;
    let rows = batches.flat_map(move |batch| {
        let (label, first) = (label.clone(), number + 1);
        number += batch.as_ref().map_or(0, RecordBatch::num_rows);
        let (batch, failure) = match batch {
            Ok(batch) => (Some(batch), None),
            Err(error) => (None, Some(Err(error))),
        };
        // A row at a time: texts that a dictionary shares are written out.
        let rows = batch
            .into_iter()
            .flat_map(|batch| (0..batch.num_rows()).map(move |i| batch.slice(i, 1)));
        let objects = rows.enumerate().map(move |(i, row)| {
            let number = first + i;
            let place = || format!("{label}: row {number}");
            let fields = row_fields(&row)
                .map_err(|error| Unreadable::error(place(), format!("{error:#}")))?;
            Ok(Object { number, fields })
        });
        failure.into_iter().chain(objects)
    });
    Ok(Box::new(until_unreadable(rows)))
}

/// A row's columns of bytes as the texts that they may be; what is none becomes null, which is no
/// field.
fn bytes_as_texts(row: &RecordBatch) -> Result<RecordBatch> {
    let mut columns: Vec<(&str, ArrayRef)> = Vec::with_capacity(row.num_columns());
    for (field, column) in row.schema_ref().fields().iter().zip(row.columns()) {
        let texts = column.as_binary_view_opt().map(|bytes| -> ArrayRef {
            let text = |bytes| std::str::from_utf8(bytes).ok();
            Arc::new(bytes.iter().map(|bytes| text(bytes?)).collect::<StringViewArray>())
        });
        columns.push((field.name(), texts.unwrap_or_else(|| column.clone())));
    }
    Ok(RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, column)| (name, column, true)),
    )?)
}

fn row_fields(row: &RecordBatch) -> Result<serde_json::Map<String, serde_json::Value>> {
    let bytes: u64 = row.columns().iter().map(|column| text_bytes(column)).sum();
    let most = most_bytes() as u64;
    if bytes > most {
        bail!("texts of {bytes} bytes, the limit is {}; raise --max-text-bytes", size(most));
    }
    let mut writer = arrow_json::LineDelimitedWriter::new(Vec::new());
    writer.write(&bytes_as_texts(row)?)?;
    writer.finish()?;
    Ok(super::json::object(std::str::from_utf8(&writer.into_inner())?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::builder::{ListBuilder, StringBuilder};
    use arrow_array::types::Int8Type;
    use arrow_array::{
        BinaryArray, BooleanArray, DictionaryArray, Float64Array, Int64Array, LargeStringArray,
        StringArray,
    };
    use parquet::arrow::ArrowWriter;
    use parquet::basic::Compression;
    use parquet::file::properties::WriterProperties;

    fn write(path: &Path, columns: Vec<(&str, ArrayRef)>) {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let packed =
            WriterProperties::builder().set_compression(Compression::ZSTD(Default::default()));
        let file = File::create(path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(packed.build())).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }

    fn columns() -> Vec<(&'static str, ArrayRef)> {
        let shared: DictionaryArray<Int8Type> = [Some("x"), Some("y"), None].into_iter().collect();
        let mut lists = ListBuilder::new(StringBuilder::new());
        for list in [&["a", "b"][..], &[], &["c"]] {
            lists.append_value(list.iter().map(|text| Some(*text)));
        }
        vec![
            ("plain", Arc::new(StringArray::from(vec![Some("p"), None, Some("é")]))),
            ("large", Arc::new(LargeStringArray::from(vec!["l", "m", "n"]))),
            ("shared", Arc::new(shared)),
            ("bytes", Arc::new(BinaryArray::from(vec![&b"text"[..], b"\xff", b"more"]))),
            ("number", Arc::new(Int64Array::from(vec![1, 2, 3]))),
            ("share", Arc::new(Float64Array::from(vec![0.5, f64::NAN, 1.5]))),
            ("flag", Arc::new(BooleanArray::from(vec![true, false, true]))),
            ("list", Arc::new(lists.finish())),
        ]
    }

    fn of(path: &Path, fields: &[&str], optional: &[&str]) -> Result<Vec<Record>> {
        let mut columns = Columns::required(fields);
        columns.optional = optional.iter().map(|name| name.to_string()).collect();
        records(Table::open(path, "t.parquet")?, columns)?.collect()
    }

    #[test]
    fn texts_come_from_every_kind_of_column() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        write(&path, columns());
        let actual = of(&path, &["large", "number"], &["plain", "shared", "absent"]).unwrap();
        assert_eq!(actual[1].fields, ["m", "2", "", "y", ""]);
        assert_eq!(actual[2].fields, ["n", "3", "é", "", ""]);
        for (field, word) in [
            ("plain", "row 2: the column \"plain\" is null"),
            ("bytes", "row 2: the column \"bytes\" holds bytes that are not UTF-8"),
            ("flag", "Boolean"),
            ("list", "List"),
            ("absent", "no column"),
        ] {
            let error = format!("{:#}", of(&path, &[field], &[]).unwrap_err());
            assert!(error.contains(word) && error.starts_with("t.parquet"), "{field}: {error}");
        }
        let rows: Vec<Object> =
            objects(Table::open(&path, "t").unwrap()).unwrap().collect::<Result<_>>().unwrap();
        let row = |i: usize| serde_json::Value::from(rows[i].fields.clone());
        let first = serde_json::json!({"plain": "p", "large": "l", "shared": "x", "bytes": "text",
            "number": 1, "share": 0.5, "flag": true, "list": ["a", "b"]});
        assert_eq!(row(0), first);
        assert!(row(1).get("bytes").is_none(), "bytes that are no text: {}", row(1));
    }

    /// A few kilobytes that unpack to gigabytes, in the ways that Parquet has.
    #[test]
    fn bombs_are_refused_before_they_are_unpacked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let most = most_bytes();
        let refused = |what: &str, columns: Vec<(&str, ArrayRef)>| {
            write(&path, columns);
            let bytes = std::fs::metadata(&path).unwrap().len();
            assert!(bytes < 100_000, "{what}: {bytes} bytes");
            let read = || -> Result<Vec<Object>> { objects(Table::open(&path, "t")?)?.collect() };
            let error = format!("{:#}", read().unwrap_err());
            assert!(error.contains("--max-text-bytes"), "{what}: {error}");
        };
        // One text that is longer than the limit.
        refused("page", vec![("text", Arc::new(StringArray::from(vec!["a".repeat(most + 1)])))]);
        // A long text that a list names again and again.
        let mut lists = ListBuilder::new(StringBuilder::new());
        let long = "a".repeat(1 << 16);
        lists.append_value((0..most / (1 << 16) + 1).map(|_| Some(long.as_str())));
        refused("list", vec![("text", Arc::new(lists.finish()))]);
    }

    /// The reader does not check the texts of columns whose logical type is JSON.
    #[test]
    fn bytes_that_only_claim_to_be_text_are_refused() {
        use parquet::data_type::{ByteArray, ByteArrayType};
        use parquet::file::writer::SerializedFileWriter;
        use parquet::schema::parser::parse_message_type;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let schema = parse_message_type("message m { required binary text (JSON); }").unwrap();
        let settings = Arc::new(WriterProperties::builder().build());
        let file = File::create(&path).unwrap();
        let mut writer = SerializedFileWriter::new(file, Arc::new(schema), settings).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let values = [ByteArray::from(vec![b'a', 0xff])];
        column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        let error = format!("{:#}", of(&path, &["text"], &[]).unwrap_err());
        assert!(error.contains("not UTF-8"), "{error}");
        assert!(objects(Table::open(&path, "t").unwrap()).unwrap().next().unwrap().is_err());
    }

    #[test]
    fn heads_of_pages_are_read() {
        // Type 0, 300 bytes unpacked, 20 packed, data page of 5 values.
        let head = [0x15, 0, 0x15, 0xd8, 0x04, 0x15, 40, 0x2c, 0x15, 10];
        let actual = PageHead { unpacked: 300, packed: 20, values: 5 };
        assert_eq!(PageHead::parse(&head), Some(actual));
        assert_eq!(PageHead::parse(&head[..5]), None);
        assert_eq!(PageHead::parse(&[0xff; 20]), None);
    }
}
