//! Frames: at most a megabyte each, with their length and a checksum, so that damage is found; and reads and
//! writes that end when they have to.
//!
//! ```text
//! crc32c u32 | length u32 | operation u64 | left u64 | kind u8, 7 zeros | payload
//! ```
//!
//! `left` is how many bytes of a block of data are still to come, this frame's included. The checksum is of all
//! that follows it.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Bytes of a frame's payload at most; a multiple of the size of every number.
pub(crate) const MOST: usize = 1 << 20;
const HEADER: usize = 32;
/// How long a read or write waits before it asks whether to go on.
pub(crate) const POLL: Duration = Duration::from_millis(200);

/// Why a frame did not come or go.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The connection is closed or failed.
    Closed(io::Error),
    /// What came is not what was sent, or not for us.
    Damaged(String),
    /// What came is whole, and not what belongs to what we do.
    Unexpected,
    /// The caller's patience has ended.
    Ended(Error),
}

/// When to stop waiting.
pub(crate) trait Patience {
    /// # Errors
    /// It has ended.
    fn check(&self) -> Result<()>;

    /// Told of bytes that came.
    fn came(&self, _: usize) {}
}

/// Until some time.
pub(crate) struct Deadline(pub(crate) Instant, pub(crate) Error);

impl Patience for Deadline {
    fn check(&self) -> Result<()> {
        if Instant::now() < self.0 { Ok(()) } else { Err(self.1.clone()) }
    }
}

/// What is known of a frame before its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: u8,
    pub(crate) operation: u64,
    pub(crate) left: u64,
}

/// Prepares a connection for [`read`] and [`write`].
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(POLL))?;
    stream.set_write_timeout(Some(POLL))
}

fn waits(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(error.kind(), K::WouldBlock | K::TimedOut | K::Interrupted)
}

/// Fills a buffer.
pub(crate) fn read(
    mut stream: &TcpStream,
    mut buffer: &mut [u8],
    patience: &dyn Patience,
) -> Result<(), Broken> {
    while !buffer.is_empty() {
        match stream.read(buffer) {
            Ok(0) => return Err(Broken::Closed(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => {
                patience.came(count);
                buffer = &mut buffer[count..];
                if !buffer.is_empty() {
                    patience.check().map_err(Broken::Ended)?;
                }
            }
            Err(error) if waits(&error) => patience.check().map_err(Broken::Ended)?,
            Err(error) => return Err(Broken::Closed(error)),
        }
    }
    Ok(())
}

/// Writes all bytes.
pub(crate) fn write(
    mut stream: &TcpStream,
    mut bytes: &[u8],
    patience: &dyn Patience,
) -> Result<(), Broken> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err(Broken::Closed(io::ErrorKind::WriteZero.into())),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if waits(&error) => patience.check().map_err(Broken::Ended)?,
            Err(error) => return Err(Broken::Closed(error)),
        }
    }
    Ok(())
}

/// A frame on its way out; its memory is used again.
#[derive(Debug, Default)]
pub(crate) struct Outgoing(Vec<u8>);

impl Outgoing {
    /// Room for a payload, which `fill` writes.
    pub(crate) fn send(
        &mut self,
        stream: &TcpStream,
        header: Header,
        patience: &dyn Patience,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Broken> {
        self.0.clear();
        self.0.resize(HEADER, 0);
        fill(&mut self.0);
        let length = (self.0.len() - HEADER) as u32;
        self.0[4..8].copy_from_slice(&length.to_le_bytes());
        self.0[8..16].copy_from_slice(&header.operation.to_le_bytes());
        self.0[16..24].copy_from_slice(&header.left.to_le_bytes());
        self.0[24] = header.kind;
        let sum = crc32c::crc32c(&self.0[4..]);
        self.0[..4].copy_from_slice(&sum.to_le_bytes());
        write(stream, &self.0, patience)
    }
}

/// Reads a frame; the payload replaces what `payload` holds.
pub(crate) fn receive(
    stream: &TcpStream,
    payload: &mut Vec<u8>,
    patience: &dyn Patience,
) -> Result<Header, Broken> {
    let mut head = [0u8; HEADER];
    read(stream, &mut head, patience)?;
    let word = |from: usize| {
        u32::from_le_bytes([head[from], head[from + 1], head[from + 2], head[from + 3]])
    };
    let long = |from: usize| u64::from(word(from)) | u64::from(word(from + 4)) << 32;
    let (sum, length) = (word(0), word(4) as usize);
    if length > MOST {
        return Err(Broken::Damaged(format!("a frame of {length} bytes")));
    }
    payload.resize(length, 0);
    read(stream, payload, patience)?;
    if crc32c::crc32c_append(crc32c::crc32c(&head[4..]), payload) != sum {
        return Err(Broken::Damaged("a frame whose checksum is wrong".into()));
    }
    Ok(Header { kind: head[24], operation: long(8), left: long(16) })
}

/// Sends one small message.
pub(crate) fn send_message(
    stream: &TcpStream,
    kind: u8,
    message: &[u8],
    patience: &dyn Patience,
) -> Result<(), Broken> {
    let header = Header { kind, operation: 0, left: message.len() as u64 };
    Outgoing::default().send(stream, header, patience, |buffer| buffer.extend_from_slice(message))
}
