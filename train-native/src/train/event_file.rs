//! TensorBoard's event files: protocol buffers, each in a record of TensorFlow's.
//!
//! Only what curves need of the two formats is here: `Event`, `Summary` and its scalars
//! (tensorboard/compat/proto/event.proto, summary.proto), and the framing of a record
//! (tensorflow/core/lib/io/record_writer.h).

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use prost::Message;

/// What every event file begins with.
const VERSION: &str = "brain.Event:2";

#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Scalar>,
}

/// `Summary.Value` with a `simple_value`, which is written where it is zero too.
#[derive(Clone, PartialEq, Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// A new event file. Each event is with the operating system as soon as it is written.
pub(super) struct EventFile {
    file: File,
    path: PathBuf,
}

impl EventFile {
    /// A file of its own in a folder, which is made where it is missing; TensorBoard joins the files of
    /// a folder to one run.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub(super) fn create(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let host = sysinfo::System::host_name().unwrap_or_default();
        // A host may be called anything; a file may not.
        let host =
            host.replace(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-', "_");
        let (seconds, process) = (now() as u64, std::process::id());
        let path = folder.join(format!("events.out.tfevents.{seconds:010}.{host}.{process}.0"));
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        let mut events = Self { file, path };
        events.write(&Event { file_version: Some(VERSION.into()), ..Event::at(0) })?;
        Ok(events)
    }

    /// Adds the numbers of one step.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn scalars(&mut self, step: usize, numbers: Vec<(String, f64)>) -> Result<()> {
        let scalar = |(tag, number)| Scalar { tag, simple_value: Some(number as f32) };
        let summary = Some(Summary { value: numbers.into_iter().map(scalar).collect() });
        self.write(&Event { summary, ..Event::at(step) })
    }

    fn write(&mut self, event: &Event) -> Result<()> {
        let record = record(&event.encode_to_vec());
        self.file.write_all(&record).with_context(|| self.path.display().to_string())
    }
}

impl Event {
    fn at(step: usize) -> Self {
        Self { wall_time: now(), step: step as i64, ..Self::default() }
    }
}

/// Seconds since 1970; 0 where the clock is wrong.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// A record: the length, its checksum, the bytes, and their checksum.
fn record(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    let (of_length, of_bytes) = (masked_sum(&length), masked_sum(bytes));
    [&length[..], &of_length.to_le_bytes(), bytes, &of_bytes.to_le_bytes()].concat()
}

/// CRC-32C, rotated and shifted, so that bytes which contain a checksum have a sound one too.
fn masked_sum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_framed_as_tensorflow_does_it() {
        // `RecordWriter` of the Python package tensorboard.
        let expected = [
            9, 0, 0, 0, 0, 0, 0, 0, 0x37, 0xf9, 0x71, 0x39, b'1', b'2', b'3', b'4', b'5', b'6',
            b'7', b'8', b'9', 0xe5, 0xb0, 0x8a, 0xc7,
        ];
        assert_eq!(record(b"123456789"), expected);
    }

    #[test]
    fn a_file_holds_its_version_and_every_number() {
        let folder = tempfile::tempdir().unwrap();
        let board = folder.path().join("tensorboard");
        let mut file = EventFile::create(&board).unwrap();
        file.scalars(1, vec![("loss".into(), 0.0), ("lr".into(), 1e-3)]).unwrap();
        let bytes = std::fs::read(&file.path).unwrap();
        let mut left = bytes.as_slice();
        let mut events = Vec::new();
        while !left.is_empty() {
            let length = u64::from_le_bytes(left[..8].try_into().unwrap()) as usize;
            events.push(Event::decode(&left[12..12 + length]).unwrap());
            left = &left[16 + length..];
        }
        let [version, step] = &events[..] else { panic!("{events:?}") };
        assert_eq!(version.file_version.as_deref(), Some(VERSION));
        let scalars = &step.summary.as_ref().unwrap().value;
        let actual: Vec<_> =
            scalars.iter().map(|scalar| (scalar.tag.as_str(), scalar.simple_value)).collect();
        assert_eq!((step.step, actual), (1, vec![("loss", Some(0.0)), ("lr", Some(1e-3))]));
    }
}
