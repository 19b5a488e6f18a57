//! Opens files: regular ones only, and behind a byte-order mark.

use std::fs::{File, FileType, Metadata};
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::limit::{SMALL_FILE, size};

/// What a path names that is no regular file.
fn kind(file_type: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt as _;
        if file_type.is_fifo() {
            return "a FIFO";
        }
        if file_type.is_socket() {
            return "a socket";
        }
        if file_type.is_char_device() || file_type.is_block_device() {
            return "a device";
        }
    }
    if file_type.is_dir() { "a folder" } else { "something else" }
}

/// What is known of a regular file, links followed. Anything else is refused before it is opened:
/// opening a FIFO waits for its writer, and a device may never end.
///
/// # Errors
/// Nothing there, or no regular file.
pub fn regular(path: &Path) -> Result<Metadata> {
    let label = || path.display().to_string();
    let data = std::fs::metadata(path).with_context(label)?;
    let what = kind(data.file_type());
    match (data.is_file(), data.is_dir()) {
        (true, _) => Ok(data),
        (_, true) => bail!("{}: is a folder; name a file", label()),
        _ => bail!(
            "{}: is {what}; name a regular file, or pipe it through standard input (-) where that is taken",
            label()
        ),
    }
}

/// Opens a regular file.
///
/// # Errors
/// As [`regular`], or a file that may not be read.
pub fn open(path: &Path) -> Result<File> {
    regular(path)?;
    let file = File::open(path).with_context(|| path.display().to_string())?;
    // What was looked at and what was opened may be two things.
    if !file.metadata().is_ok_and(|data| data.is_file()) {
        bail!("{}: is no regular file", path.display());
    }
    Ok(file)
}

/// Bytes of the byte-order mark at the start of a text, 0 where there is none.
///
/// # Errors
/// The mark of an encoding that is not read.
fn mark(start: &[u8], label: &str) -> Result<usize> {
    let other = match start {
        [0xEF, 0xBB, 0xBF, ..] => return Ok(3),
        [0xFF, 0xFE, 0, 0, ..] | [0, 0, 0xFE, 0xFF, ..] => "UTF-32",
        [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] => "UTF-16",
        _ => return Ok(0),
    };
    bail!("{label}: is {other}; convert it to UTF-8 (iconv -f {other} -t UTF-8)")
}

/// A reader behind the byte-order mark, which is no part of the text.
///
/// # Errors
/// As [`mark`], or bytes that cannot be read.
pub(crate) fn behind_mark(
    mut reader: impl Read + 'static,
    label: &str,
) -> Result<Box<dyn BufRead>> {
    let mut start = Vec::new();
    let read = reader.by_ref().take(4).read_to_end(&mut start);
    read.map_err(|error| super::unreadable(label, error))?;
    let skipped = mark(&start, label)?;
    let start = Cursor::new(start.split_off(skipped));
    Ok(Box::new(start.chain(BufReader::new(reader))))
}

/// The text of a small file that people write by hand: a recipe, a suite, a card.
///
/// # Errors
/// As [`open`]; a file that is too large or not UTF-8.
pub fn read_small(path: &Path) -> Result<String> {
    let label = path.display().to_string();
    let file = open(path)?;
    let mut bytes = Vec::new();
    file.take(SMALL_FILE as u64 + 1).read_to_end(&mut bytes).with_context(|| label.clone())?;
    if bytes.len() > SMALL_FILE {
        bail!("{label}: is larger than {}; is it the right file?", size(SMALL_FILE as u64));
    }
    let skipped = mark(&bytes, &label)?;
    bytes.drain(..skipped);
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        anyhow::anyhow!("{label}:{line}: invalid UTF-8; convert the file to UTF-8")
    })
}

/// Whether an error is that there is no such file.
pub fn is_missing(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<std::io::Error>();
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::NotFound)
}

/// Refuses an output that is one of the inputs, whose place it would take.
///
/// # Errors
/// It is one.
pub fn apart(output: &Path, inputs: &[&Path]) -> Result<()> {
    let Ok(place) = std::fs::canonicalize(output) else { return Ok(()) };
    match inputs.iter().find(|input| std::fs::canonicalize(input).is_ok_and(|i| i == place)) {
        Some(_) => bail!(
            "{}: is read and would be overwritten; name another file to write",
            output.display()
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_told_apart() {
        assert_eq!(mark(b"\xEF\xBB\xBFa", "x").unwrap(), 3);
        assert_eq!(mark(b"abc", "x").unwrap(), 0);
        assert_eq!(mark(b"\xEF", "x").unwrap(), 0);
        for (start, name) in [
            (&b"\xFF\xFEa\0"[..], "UTF-16"),
            (b"\xFE\xFF\0a", "UTF-16"),
            (b"\xFF\xFE\0\0", "UTF-32"),
            (b"\0\0\xFE\xFF", "UTF-32"),
        ] {
            assert!(mark(start, "x").unwrap_err().to_string().contains(name));
        }
    }

    #[test]
    fn small_files_are_small_and_name_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        std::fs::write(&path, b"\xEF\xBB\xBFa = 1").unwrap();
        assert_eq!(read_small(&path).unwrap(), "a = 1");
        std::fs::write(&path, b"a = 1\nb = \xff\n").unwrap();
        assert!(read_small(&path).unwrap_err().to_string().contains("a.toml:2"));
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(read_small(&path).unwrap_err().to_string().contains("16 MiB"));
    }
}
