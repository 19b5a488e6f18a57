//! A whole model in one file, for the web and for copying: `model.kiln`.
//!
//! ```text
//! 4 bytes   "KILN"
//! 4 bytes   version of the container, little-endian (1)
//! 8 bytes   length of the header, little-endian
//! 32 bytes  SHA-256 of the header
//! header    JSON: {"files": [{"path", "offset", "bytes", "sha256"}, ..]}
//! ...       the files, each at a multiple of 64 bytes from the file's beginning
//! ```
//!
//! Offsets count from the beginning of the file. Small files come first, so that a page can read
//! configuration and tokenizer while the weights are on their way. FORMAT.md describes it in full.

use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::manifest::{MANIFEST, hexadecimal};
use crate::folder::{Files, Folder, ReadSeek, read_text, stays_inside};
use crate::{Error, Result};

const MAGIC: &[u8; 4] = &KILN_MAGIC;
/// How a `.kiln` file begins.
pub const KILN_MAGIC: [u8; 4] = *b"KILN";
const VERSION: u32 = 1;
const PRELUDE: u64 = 48;
const ALIGNMENT: u64 = 64;
/// Largest header that is read: a model has some dozens of files.
const LARGEST_HEADER: u64 = 1 << 20;
const REMEDY: &str = "download or export the model again";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Entry {
    path: String,
    offset: u64,
    bytes: u64,
    sha256: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Header {
    files: Vec<Entry>,
}

/// Writes files as one; equal files give equal bytes.
///
/// # Errors
/// Errors of the writer.
pub fn write_kiln_file(files: &Files, to: &mut dyn Write) -> std::io::Result<()> {
    let mut order: Vec<(&String, &Bytes)> = files.0.iter().collect();
    order.sort_by_key(|(path, bytes)| (bytes.len(), path.as_str()));
    let aligned = |offset: u64| offset.next_multiple_of(ALIGNMENT);
    // The header's length depends on the offsets in it, and they on its length: reserve room for
    // the longest offsets and pad with spaces.
    let entry = |(path, bytes): &(&String, &Bytes), offset: u64| Entry {
        path: path.to_string(),
        offset,
        bytes: bytes.len() as u64,
        sha256: hexadecimal(&Sha256::digest(bytes)),
    };
    let room = Header { files: order.iter().map(|file| entry(file, u64::MAX)).collect() };
    let length = serde_json::to_vec(&room)?.len();
    let mut offset = aligned(PRELUDE + length as u64);
    let mut header = Header { files: Vec::new() };
    for file in &order {
        header.files.push(entry(file, offset));
        offset = aligned(offset + file.1.len() as u64);
    }
    let mut text = serde_json::to_vec(&header)?;
    text.resize(length, b' ');
    to.write_all(MAGIC)?;
    to.write_all(&VERSION.to_le_bytes())?;
    to.write_all(&(length as u64).to_le_bytes())?;
    to.write_all(&Sha256::digest(&text))?;
    to.write_all(&text)?;
    let mut written = PRELUDE + length as u64;
    for ((_, bytes), entry) in order.iter().zip(&header.files) {
        to.write_all(&vec![0; (entry.offset - written) as usize])?;
        to.write_all(bytes)?;
        written = entry.offset + entry.bytes;
    }
    Ok(())
}

/// An open model file, whose header and manifest have been checked. The other files are compared
/// with the manifest when the model is loaded ([`super::Manifest::check_files`]).
pub struct KilnFile {
    label: String,
    reader: Arc<Mutex<Box<dyn ReadSeek>>>,
    header: Header,
    /// The whole file, where it is mapped.
    mapped: Option<Bytes>,
}

impl KilnFile {
    /// Opens and maps a file on disk.
    ///
    /// # Errors
    /// As [`KilnFile::open`], and errors of the file system.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn on_disk(path: &std::path::Path) -> Result<Self> {
        let label = path.display().to_string();
        let io = |cause| Error::Io { file: label.clone(), cause };
        let file = std::fs::File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mapped = crate::folder::map_file(&file).ok();
        let opened = Self::open(&label, Box::new(std::io::BufReader::new(file)), length)?;
        Ok(Self { mapped, ..opened })
    }

    /// Opens a file of the given length; `label` is its name in messages.
    ///
    /// # Errors
    /// Not a `.kiln` file, one of a later version, cut short, or damaged.
    pub fn open(label: &str, mut reader: Box<dyn ReadSeek>, length: u64) -> Result<Self> {
        let io = |cause| Error::Io { file: label.into(), cause };
        let bad = |cause: String| Error::bad_file(label, cause, REMEDY);
        let mut prelude = [0; PRELUDE as usize];
        if length < PRELUDE {
            return Err(bad(format!("{length} bytes are too few for a .kiln file")));
        }
        reader.seek(SeekFrom::Start(0)).map_err(io)?;
        reader.read_exact(&mut prelude).map_err(io)?;
        if &prelude[..4] != MAGIC {
            return Err(bad("is no .kiln file".into()));
        }
        let number = |offset: usize| {
            prelude[offset..].iter().take(8).rev().fold(0u64, |n, b| n << 8 | u64::from(*b))
        };
        let version = number(4) as u32;
        if version != VERSION {
            return Err(Error::bad_file(
                label,
                format!("is a .kiln file of version {version}, and this Kiln reads {VERSION}"),
                "use the Kiln that wrote it, or a later one",
            ));
        }
        let size = number(8);
        if size > LARGEST_HEADER || PRELUDE + size > length {
            return Err(bad(format!("cut short or damaged: its header has {size} bytes")));
        }
        let mut text = vec![0; size as usize];
        reader.read_exact(&mut text).map_err(io)?;
        if Sha256::digest(&text)[..] != prelude[16..] {
            return Err(bad("damaged: its header is not what was written".into()));
        }
        let header: Header =
            serde_json::from_slice(&text).map_err(|e| bad(format!("damaged header: {e}")))?;
        for Entry { path, offset, bytes, .. } in &header.files {
            if !stays_inside(path) {
                return Err(bad(format!("names the file {path:?}, outside the model")));
            }
            if offset.checked_add(*bytes).is_none_or(|end| end > length) {
                return Err(bad(format!(
                    "cut short: {path} would end at byte {}, and there are {length}",
                    offset.saturating_add(*bytes)
                )));
            }
        }
        let file = Self {
            label: label.into(),
            reader: Arc::new(Mutex::new(reader)),
            header,
            mapped: None,
        };
        file.check_manifest()?;
        Ok(file)
    }

    /// The manifest has the sums of all other files; its own is in the header.
    fn check_manifest(&self) -> Result<()> {
        let bad = |cause: &str| Error::bad_file(self.file_label(MANIFEST), cause, REMEDY);
        let entry = self.header.files.iter().find(|entry| entry.path == MANIFEST);
        match (entry, read_text(self, MANIFEST)?) {
            (Some(entry), Some(text)) if hexadecimal(&Sha256::digest(&text)) == entry.sha256 => {
                Ok(())
            }
            (Some(_), _) => Err(bad("damaged: it is not what was written")),
            (None, _) => Err(bad("is not in the file, so nothing can be checked")),
        }
    }

    /// Opens a file in memory.
    ///
    /// # Errors
    /// As [`KilnFile::open`].
    pub fn from_bytes(label: &str, bytes: Vec<u8>) -> Result<Self> {
        let length = bytes.len() as u64;
        Self::open(label, Box::new(std::io::Cursor::new(bytes)), length)
    }

    /// Paths of the files inside, small ones first.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.header.files.iter().map(|entry| entry.path.as_str())
    }
}

impl Folder for KilnFile {
    fn label(&self) -> String {
        self.label.clone()
    }

    fn open(&self, path: &str) -> std::io::Result<Option<(Box<dyn ReadSeek>, u64)>> {
        let Some(entry) = self.header.files.iter().find(|entry| entry.path == path) else {
            return Ok(None);
        };
        let part =
            Part { reader: self.reader.clone(), start: entry.offset, length: entry.bytes, at: 0 };
        Ok(Some((Box::new(part), entry.bytes)))
    }

    fn map(&self, path: &str) -> Option<Bytes> {
        let entry = self.header.files.iter().find(|entry| entry.path == path)?;
        let whole = self.mapped.as_ref()?;
        let end = (entry.offset + entry.bytes) as usize;
        (end <= whole.len()).then(|| whole.slice(entry.offset as usize..end))
    }
}

/// One file inside the whole.
struct Part {
    reader: Arc<Mutex<Box<dyn ReadSeek>>>,
    start: u64,
    length: u64,
    at: u64,
}

impl Read for Part {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let left = self.length.saturating_sub(self.at).min(to.len() as u64) as usize;
        if left == 0 {
            return Ok(0);
        }
        let mut reader =
            self.reader.lock().map_err(|_| std::io::Error::other("another reader failed"))?;
        reader.seek(SeekFrom::Start(self.start + self.at))?;
        let read = reader.read(&mut to[..left])?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Part {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Files {
        let file = |path: &str, length: usize| {
            (path.to_string(), (0..length).map(|i| (i * 7) as u8).collect::<Bytes>())
        };
        Files(
            [
                file("config.json", 10),
                file("model.safetensors", 1000),
                file("1_Pooling/config.json", 65),
                file("empty", 0),
                file("kiln.json", 30),
            ]
            .into(),
        )
    }

    fn written() -> Vec<u8> {
        let mut bytes = Vec::new();
        write_kiln_file(&files(), &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn files_come_back_small_ones_first() {
        let opened = KilnFile::from_bytes("m.kiln", written()).unwrap();
        assert_eq!(
            opened.paths().collect::<Vec<_>>(),
            ["empty", "config.json", "kiln.json", "1_Pooling/config.json", "model.safetensors"]
        );
        for (path, bytes) in &files().0 {
            let (mut reader, length) = opened.open(path).unwrap().unwrap();
            let mut read = Vec::new();
            reader.read_to_end(&mut read).unwrap();
            assert_eq!((&read[..], length), (&bytes[..], bytes.len() as u64));
            if bytes.len() > 20 {
                reader.seek(SeekFrom::End(-3)).unwrap();
                let mut end = Vec::new();
                reader.read_to_end(&mut end).unwrap();
                assert_eq!(end, bytes[bytes.len() - 3..]);
            }
        }
        assert!(opened.open("other").unwrap().is_none());
        assert!(opened.header.files.iter().all(|entry| entry.offset % 64 == 0));
        assert_eq!(written(), written());
    }

    #[test]
    fn files_outside_the_model_and_a_missing_manifest_are_refused() {
        for path in ["../evil", "/etc/evil", "a/../../evil", "a\\b", "c:evil", "a//b", ""] {
            let mut files = files();
            files.0.insert(path.into(), vec![1].into());
            let mut bytes = Vec::new();
            write_kiln_file(&files, &mut bytes).unwrap();
            let error = KilnFile::from_bytes("m.kiln", bytes).err().unwrap().to_string();
            assert!(error.contains("outside the model"), "{path}: {error}");
        }
        let mut files = files();
        files.0.remove("kiln.json");
        let mut bytes = Vec::new();
        write_kiln_file(&files, &mut bytes).unwrap();
        let error = KilnFile::from_bytes("m.kiln", bytes).err().unwrap().to_string();
        assert!(error.contains("kiln.json"), "{error}");
    }

    #[test]
    fn cut_files_and_changed_headers_are_refused() {
        let whole = written();
        for length in 0..whole.len() {
            assert!(KilnFile::from_bytes("m.kiln", whole[..length].to_vec()).is_err(), "{length}");
        }
        let header = 48 + u64::from_le_bytes(whole[8..16].try_into().unwrap()) as usize;
        for i in 0..header {
            let mut changed = whole.clone();
            changed[i] ^= 1;
            let error = KilnFile::from_bytes("m.kiln", changed).err().unwrap().to_string();
            assert!(error.starts_with("m.kiln: "), "{error}");
        }
        let mut later = whole;
        later[4] = 2;
        let error = KilnFile::from_bytes("m.kiln", later).err().unwrap().to_string();
        assert!(error.contains("version 2"), "{error}");
    }
}
