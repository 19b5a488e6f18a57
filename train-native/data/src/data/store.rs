//! Examples on disk: read at random, never all in memory.

use std::fs::File;
use std::io::{BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::Xxh3;

use crate::text::most_bytes;

/// A growing file of records in the system's temporary folder, which goes with the program.
pub struct StoreWriter {
    file: BufWriter<File>,
    offsets: Vec<u64>,
    sum: Xxh3,
}

/// Records that can be read in any order; eight bytes of memory each.
#[derive(Debug)]
pub struct Store {
    file: Mutex<File>,
    offsets: Vec<u64>,
    sum: u64,
}

impl StoreWriter {
    /// An empty store.
    ///
    /// # Errors
    /// No temporary file can be made.
    pub fn new() -> Result<Self> {
        let file = tempfile::tempfile().context("cannot make a temporary file for the examples")?;
        Ok(Self { file: BufWriter::new(file), offsets: vec![0], sum: Xxh3::new() })
    }

    /// Adds a record.
    ///
    /// # Errors
    /// The temporary folder is full.
    pub fn push<T: Serialize>(&mut self, record: &T) -> Result<()> {
        let bytes = serde_json::to_vec(record)?;
        self.file.write_all(&bytes).context(
            "cannot keep the examples in the temporary folder; free space there, or set TMPDIR",
        )?;
        self.sum.update(&bytes);
        self.offsets.push(self.offsets.last().copied().unwrap_or(0) + bytes.len() as u64);
        Ok(())
    }

    /// Number of records so far.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The finished store.
    ///
    /// # Errors
    /// The temporary folder is full.
    pub fn finish(self) -> Result<Store> {
        let file = self.file.into_inner().map_err(|error| error.into_error()).context(
            "cannot keep the examples in the temporary folder; free space there, or set TMPDIR",
        )?;
        Ok(Store { file: Mutex::new(file), offsets: self.offsets, sum: self.sum.digest() })
    }
}

impl Store {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The records in order, in blocks of some records or, where they are long, of as many as keep
    /// to [`most_bytes`].
    pub fn blocks(&self, records: usize) -> impl Iterator<Item = Range<usize>> {
        self.blocks_of(records, most_bytes() as u64)
    }

    fn blocks_of(&self, records: usize, most: u64) -> impl Iterator<Item = Range<usize>> {
        let mut start = 0;
        std::iter::from_fn(move || {
            let within = |end: &u64| *end <= self.offsets[start].saturating_add(most);
            let fit = self.offsets[start + 1..].iter().take(records).take_while(|end| within(end));
            let count = fit.count().max(usize::from(start < self.len()));
            let block = start..start + count;
            start = block.end;
            (count > 0).then_some(block)
        })
    }

    /// A number for the records, the same for the same records in the same order.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Bytes of a record.
    pub(super) fn bytes(&self, i: usize) -> u64 {
        self.offsets[i + 1] - self.offsets[i]
    }

    /// A record by its number.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    pub fn get<T: DeserializeOwned>(&self, i: usize) -> Result<T> {
        let (start, end) = (self.offsets[i], self.offsets[i + 1]);
        let mut bytes = vec![0; (end - start) as usize];
        // Each read says where it begins, so a reader that failed leaves nothing behind.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(start))
            .and_then(|_| file.read_exact(&mut bytes))
            .context("the temporary file of examples")?;
        drop(file);
        Ok(serde_json::from_slice(&bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_in_any_order() {
        let mut writer = StoreWriter::new().unwrap();
        for text in ["", "zwei", "drei ü"] {
            writer.push(&text).unwrap();
        }
        let store = writer.finish().unwrap();
        assert_eq!(store.len(), 3);
        assert_eq!(store.get::<String>(2).unwrap(), "drei ü");
        assert_eq!(store.get::<String>(0).unwrap(), "");
        assert_eq!(store.get::<String>(1).unwrap(), "zwei");
        assert_eq!(store.blocks(2).collect::<Vec<_>>(), [0..2, 2..3]);
        let sum = |texts: &[&str]| {
            let mut writer = StoreWriter::new().unwrap();
            texts.iter().for_each(|text| writer.push(text).unwrap());
            writer.finish().unwrap().sum()
        };
        assert_eq!(sum(&["", "zwei", "drei ü"]), store.sum());
        assert_ne!(sum(&["zwei", "", "drei ü"]), store.sum());
        assert_eq!(StoreWriter::new().unwrap().finish().unwrap().blocks(2).count(), 0);
    }

    #[test]
    fn blocks_of_long_records_are_short() {
        let mut writer = StoreWriter::new().unwrap();
        for bytes in [10, 50, 50, 110, 10] {
            writer.push(&"a".repeat(bytes)).unwrap();
        }
        let blocks: Vec<_> = writer.finish().unwrap().blocks_of(100, 100).collect();
        assert_eq!(blocks, [0..2, 2..3, 3..4, 4..5]);
    }
}
