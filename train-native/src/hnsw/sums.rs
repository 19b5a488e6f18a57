//! Sums of an index's files, which every search compares: CRC-32C, as fast as they can be read.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

/// Length and CRC-32C of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileSum {
    bytes: u64,
    crc32c: u32,
}

impl FileSum {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn of(path: &Path) -> Result<Self> {
        let context = || path.display().to_string();
        let mut file = File::open(path).with_context(context)?;
        let mut own = Self { bytes: 0, crc32c: 0 };
        let mut part = vec![0; 1 << 20];
        loop {
            match file.read(&mut part).with_context(context)? {
                0 => return Ok(own),
                count => {
                    own.crc32c = crc32c::crc32c_append(own.crc32c, &part[..count]);
                    own.bytes += count as u64;
                }
            }
        }
    }

    /// Compares a file with what was written.
    pub(super) fn check(&self, path: &Path) -> Result<()> {
        let there = fs::metadata(path).with_context(|| path.display().to_string())?.len();
        if there != self.bytes {
            bail!(
                "{}: has {there} bytes instead of {}: it is cut or replaced; build the index again",
                path.display(),
                self.bytes
            );
        }
        if Self::of(path)? != *self {
            bail!(
                "{}: is damaged: its sum is another than was written; build the index again",
                path.display()
            );
        }
        Ok(())
    }
}
