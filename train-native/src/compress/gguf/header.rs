//! Compares a header with its file before it is believed.

use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _, SeekFrom};

use anyhow::{Context as _, Result, bail};

/// Compares the lengths that a header promises with the file's own: Candle believes them, and sets
/// memory aside.
pub(super) fn check_header(reader: &mut BufReader<File>, length: u64) -> Result<()> {
    let mut magic = [0; 4];
    let short = || format!("cut short: its header does not end in its {length} bytes");
    reader.read_exact(&mut magic).with_context(short)?;
    if &magic != b"GGUF" {
        bail!("is not GGUF");
    }
    let version = number(reader, 4).with_context(short)?;
    if !(2..=3).contains(&version) {
        bail!("is GGUF of version {version}; versions 2 and 3 can be read (convert it again)");
    }
    let tensors = number(reader, 8).with_context(short)?;
    let entries = number(reader, 8).with_context(short)?;
    let mut walk = || -> std::io::Result<()> {
        for _ in 0..entries {
            skip(reader, 8, length)?;
            let kind = number(reader, 4)?;
            skip(reader, kind, length)?;
        }
        for _ in 0..tensors {
            skip(reader, 8, length)?;
            let dimensions = number(reader, 4)?;
            // And its type and place.
            jump(reader, dimensions.saturating_mul(8).saturating_add(12), length)?;
        }
        Ok(())
    };
    walk().with_context(short)?;
    reader.seek(SeekFrom::Start(0))?;
    Ok(())
}

/// Passes over a value of one of GGUF's types.
fn skip(reader: &mut BufReader<File>, kind: u64, length: u64) -> std::io::Result<()> {
    let size = |kind| match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    };
    match (kind, size(kind)) {
        (_, Some(bytes)) => jump(reader, bytes, length),
        (8, _) => {
            let bytes = number(reader, 8)?;
            jump(reader, bytes, length)
        }
        (9, _) => {
            let (kind, count) = (number(reader, 4)?, number(reader, 8)?);
            match size(kind) {
                Some(bytes) => jump(reader, count.saturating_mul(bytes), length),
                None if kind == 8 => (0..count).try_for_each(|_| skip(reader, kind, length)),
                None => Err(std::io::ErrorKind::InvalidData.into()),
            }
        }
        _ => Err(std::io::ErrorKind::InvalidData.into()),
    }
}

fn jump(reader: &mut BufReader<File>, bytes: u64, length: u64) -> std::io::Result<()> {
    let at = reader.stream_position()?;
    match i64::try_from(bytes) {
        Ok(by) if bytes <= length.saturating_sub(at) => reader.seek_relative(by),
        _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A whole number of so many bytes.
fn number(reader: &mut BufReader<File>, bytes: usize) -> std::io::Result<u64> {
    let mut all = [0; 8];
    reader.read_exact(&mut all[..bytes])?;
    Ok(u64::from_le_bytes(all))
}
