//! Lines of a file, none longer than the limit.

use std::io::{BufRead, Read as _};

use anyhow::{Result, anyhow, bail};

use super::limit::{most_bytes, size};
use super::{Stream, Unreadable, unreadable, until_unreadable};

/// Lines with their numbers from 1; the blank ones left out where they mean nothing.
/// Lines follow one that is no UTF-8; none follows an [`Unreadable`] error.
pub fn numbered(
    mut reader: impl BufRead + 'static,
    label: String,
    skip_blank: bool,
) -> Stream<(usize, String)> {
    let most = most_bytes();
    let mut number = 0;
    let mut next = move || -> Result<Option<(usize, String)>> {
        loop {
            let mut line = Vec::new();
            number += 1;
            let place = || format!("{label}:{number}");
            // Two more for the line's end.
            let read = reader.by_ref().take(most as u64 + 2).read_until(b'\n', &mut line);
            if read.map_err(|error| unreadable(place(), error))? == 0 {
                return Ok(None);
            }
            while matches!(line.last(), Some(b'\n' | b'\r')) {
                line.pop();
            }
            if line.len() > most {
                let most = size(most as u64);
                let cause =
                    format!("a line of more than {most}; split it, or raise --max-text-bytes");
                return Err(Unreadable::error(place(), cause));
            }
            let line = String::from_utf8(line).map_err(|error| {
                let i = error.utf8_error().valid_up_to();
                anyhow!("{}: invalid UTF-8 at byte {i}; convert the file to UTF-8", place())
            })?;
            if skip_blank && line.trim().is_empty() {
                continue;
            }
            return Ok(Some((number, line)));
        }
    };
    Box::new(until_unreadable(std::iter::from_fn(move || next().transpose())))
}

/// Refuses what no text holds: the zero bytes of a binary file or of UTF-16 without its mark, and
/// line ends of a kind that would make one text of many.
///
/// # Errors
/// The text holds one.
pub(super) fn check_text(text: &str) -> Result<()> {
    if text.contains('\0') {
        bail!("holds a zero byte; is it a text in UTF-8?");
    }
    if text.contains('\r') {
        bail!("holds a carriage return within the line; convert the line ends to \\n");
    }
    Ok(())
}
