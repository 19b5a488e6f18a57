//! CSV and TSV by the `csv` crate, as Python's `csv` and pandas read them: a field that begins with
//! `"` ends at the next single `"`, and a quote further inside a field means itself. What those
//! readers guess at is an error here: a quote that is never closed or closes in the middle of a
//! field, a row of another width, a name that two columns have.

use std::io::{self, BufRead, Read};

use anyhow::{Result, anyhow, bail};
use csv::StringRecord;

use super::limit::{most_bytes, size};
use super::{Unreadable, unreadable, until_unreadable};

/// Lines that a quoted field may span; a quote that is never closed would take in all that follow.
const MOST_LINES: usize = 500;
/// Columns of a row.
const MOST_COLUMNS: usize = 100_000;

/// A row with the number of its first line.
pub(super) type CsvRow = (usize, StringRecord);

/// The names of the columns, and the rows.
///
/// # Errors
/// A header that cannot be read, or with a name twice.
pub(super) fn rows(
    reader: Box<dyn BufRead>,
    separator: u8,
    label: String,
) -> Result<(StringRecord, impl Iterator<Item = Result<CsvRow>>)> {
    let guard = Guard::new(reader, separator, label.clone());
    let mut reader = csv::ReaderBuilder::new().delimiter(separator).from_reader(guard);
    let header = match reader.headers() {
        Ok(header) => header.clone(),
        Err(error) => return Err(explained(&label, error)),
    };
    let mut names: Vec<&str> = header.iter().filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        bail!("{label}:1: two columns have the name {:?}; give each its own", pair[0]);
    }
    if names.is_empty() {
        bail!("{label}:1: the header names no column");
    }
    let rows = reader.into_records().map(move |row| {
        let row = row.map_err(|error| explained(&label, error))?;
        let line = row.position().map_or(0, |position| position.line() as usize);
        if row.iter().any(|cell| cell.contains('\0')) {
            bail!("{label}:{line}: holds a zero byte; is it a text in UTF-8?");
        }
        Ok((line, row))
    });
    Ok((header, until_unreadable(rows)))
}

/// The crate's error in our words.
fn explained(label: &str, error: csv::Error) -> anyhow::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => unreadable(label, error),
        csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
            let line = pos.map_or(0, |position| position.line());
            anyhow!(
                "{label}:{line}: {len} fields, the header has {expected_len}; a text that holds the separator, \
                 a line end or a quote at its start belongs in quotes"
            )
        }
        csv::ErrorKind::Utf8 { pos, err } => {
            let line = pos.map_or(0, |position| position.line());
            let field = err.field() + 1;
            anyhow!("{label}:{line}: invalid UTF-8 in field {field}; convert the file to UTF-8")
        }
        other => anyhow!("{label}: {other:?}"),
    }
}

/// Where in a row a byte stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Where a field begins.
    Start,
    /// In a field without quotes.
    Plain,
    /// In a field with quotes.
    Quoted,
    /// Behind a quote in such a field: its end, or half of a doubled one.
    Closed,
}

/// Watches the bytes on their way to the parser.
struct Guard {
    reader: Box<dyn BufRead>,
    separator: u8,
    label: String,
    place: Place,
    line: usize,
    /// Line of the last quote that opened a field.
    opened: usize,
    /// First line, bytes and columns of the row.
    row: (usize, usize, usize),
    most: usize,
}

impl Guard {
    fn new(reader: Box<dyn BufRead>, separator: u8, label: String) -> Self {
        let place = Place::Start;
        let most = most_bytes();
        Self { reader, separator, label, place, line: 1, opened: 0, row: (1, 0, 1), most }
    }

    fn refused(&self, line: usize, cause: String) -> io::Error {
        io::Error::other(Unreadable::of(format!("{}:{line}", self.label), cause))
    }

    fn unclosed(&self, how: &str) -> io::Error {
        let cause = format!(
            "the quote that opens a field here {how}; close it, or double a quote that is part of the text \
             and put the field in quotes"
        );
        self.refused(self.opened, cause)
    }

    fn step(&mut self, byte: u8) -> io::Result<()> {
        self.row.1 += 1;
        if self.row.1 > self.most {
            let cause =
                format!("a row of more than {}; raise --max-text-bytes", size(self.most as u64));
            return Err(self.refused(self.row.0, cause));
        }
        let line_end = matches!(byte, b'\n' | b'\r');
        self.line += usize::from(byte == b'\n');
        self.place = match self.place {
            Place::Quoted if byte == b'"' => Place::Closed,
            Place::Quoted => {
                if self.line - self.opened > MOST_LINES {
                    return Err(self.unclosed(&format!(
                        "is not closed within {MOST_LINES} lines (longer texts belong in JSONL or Parquet)"
                    )));
                }
                Place::Quoted
            }
            Place::Closed if byte == b'"' => Place::Quoted,
            Place::Start if byte == b'"' => {
                self.opened = self.line;
                Place::Quoted
            }
            _ if byte == self.separator => {
                self.row.2 += 1;
                if self.row.2 > MOST_COLUMNS {
                    return Err(
                        self.refused(self.row.0, format!("more than {MOST_COLUMNS} columns"))
                    );
                }
                Place::Start
            }
            _ if line_end => {
                self.row = (self.line, 0, 1);
                Place::Start
            }
            Place::Closed => return Err(self.unclosed("is closed in the middle of a field")),
            Place::Start | Place::Plain => Place::Plain,
        };
        Ok(())
    }
}

impl Read for Guard {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(bytes)?;
        if read == 0 && !bytes.is_empty() && self.place == Place::Quoted {
            return Err(self.unclosed("is not closed before the file ends"));
        }
        bytes[..read].iter().try_for_each(|&byte| self.step(byte))?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, separator: u8) -> Result<Vec<Vec<String>>> {
        let reader = Box::new(io::Cursor::new(text.as_bytes().to_vec()));
        let (_, rows) = rows(reader, separator, "x.csv".into())?;
        rows.map(|row| Ok(row?.1.iter().map(String::from).collect())).collect()
    }

    /// What Python's `csv.reader` and pandas give of the same files.
    #[test]
    fn fields_are_those_of_python() {
        for (text, expected) in [
            ("a,b\n1,\"x, y\"\n", &[["1", "x, y"]][..]),
            ("a,b\r\n1,\"x\r\ny\"\r\n", &[["1", "x\r\ny"]]),
            ("a,b\n1,\"say \"\"no\"\"\"\n", &[["1", "say \"no\""]]),
            ("a,b\n5\" pipe,it's 6\"\n", &[["5\" pipe", "it's 6\""]]),
            ("a,b\n1,\"\"\n2,\n", &[["1", ""], ["2", ""]]),
            ("a,b\n\n1,2", &[["1", "2"]]),
            ("a,b\n1, \"x\"\n", &[["1", " \"x\""]]),
        ] {
            assert_eq!(read(text, b',').unwrap(), expected, "{text:?}");
        }
        // The same rules hold between tabs.
        assert_eq!(read("a\tb\n1\t\"x\ty\"\n", b'\t').unwrap(), [["1", "x\ty"]]);
        let paragraphs = "a line\n".repeat(MOST_LINES);
        assert_eq!(read(&format!("a,b\n1,\"{paragraphs}\"\n"), b',').unwrap()[0][1], paragraphs);
    }

    #[test]
    fn what_would_be_guessed_at_is_an_error_that_names_the_line() {
        let rows = "1,2\n".repeat(1000);
        for (text, place, word) in [
            (format!("a,b\n1,2\n\"never,2\n{rows}"), "x.csv:3", "within 500 lines"),
            ("a,b\n1,2\n1,\"never\n1,2\n".into(), "x.csv:3", "before the file ends"),
            ("a,b\n1,\"x\" y\n".into(), "x.csv:2", "in the middle of a field"),
            ("a,b\n\"x\n1,\"y,2\n".into(), "x.csv:2", "in the middle of a field"),
            ("a,b\n1,2\n1,2,3\n".into(), "x.csv:3", "3 fields, the header has 2"),
            ("a,b\n1\n".into(), "x.csv:2", "1 fields, the header has 2"),
            ("a,b,a\n1,2,3\n".into(), "x.csv:1", "\"a\""),
            ("a,b\n1,\0\n".into(), "x.csv:2", "zero byte"),
            ("\n\n".into(), "x.csv:1", "no column"),
            (format!("a{}\n", ",".repeat(MOST_COLUMNS)), "x.csv:1", "columns"),
        ] {
            let error = read(&text, b',').unwrap_err().to_string();
            let text: String = text.chars().take(40).collect();
            assert!(error.starts_with(place) && error.contains(word), "{text:?}: {error}");
        }
    }
}
