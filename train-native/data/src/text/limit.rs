//! How much of a file is held in memory at once.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a line, a row or a page of Parquet, if the user names no others.
pub const DEFAULT_MOST_BYTES: usize = 64 << 20;
/// Bytes of a file that is read as a whole and that people write by hand.
pub(super) const SMALL_FILE: usize = 16 << 20;
/// Standard input is kept on disk, and may be so many times as long as a line.
pub(super) const SPOOL: u64 = 256;

/// One number for the whole process, as readers are opened everywhere.
static MOST: AtomicUsize = AtomicUsize::new(DEFAULT_MOST_BYTES);

/// Most bytes of a line, a row or a page.
pub fn most_bytes() -> usize {
    MOST.load(Ordering::Relaxed)
}

/// Changes [`most_bytes`] for what is read from now on.
pub fn set_most_bytes(bytes: usize) {
    MOST.store(bytes, Ordering::Relaxed);
}

/// A number of bytes in the largest unit that leaves it whole.
pub(super) fn size(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB"];
    let mut number = bytes;
    let mut unit = 0;
    while unit + 1 < units.len() && number >= 1024 && number.is_multiple_of(1024) {
        number /= 1024;
        unit += 1;
    }
    format!("{number} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_said_in_whole_units() {
        assert_eq!(size(DEFAULT_MOST_BYTES as u64), "64 MiB");
        assert_eq!(size(16 << 30), "16 GiB");
        assert_eq!(size(1500), "1500 bytes");
    }
}
