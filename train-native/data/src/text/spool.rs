//! Standard input, kept on disk so that it can be read twice.

use std::io::{Read, Write as _};

use anyhow::{Context as _, Result, bail};
use tempfile::NamedTempFile;

use super::limit::{SPOOL, most_bytes, size};
use kiln_terminal::interrupt;

/// Name for messages.
pub(super) const LABEL: &str = "standard input";

/// Keeps all that a reader gives, as long as its lines and the whole keep to the limits.
///
/// # Errors
/// A line or a whole that is too long, a full disk, or Ctrl-C.
pub(super) fn spool(mut input: impl Read) -> Result<NamedTempFile> {
    let full = || {
        let place = std::env::temp_dir();
        format!(
            "{LABEL} cannot be kept in {}; free space there, set TMPDIR, or name a file",
            place.display()
        )
    };
    let most = most_bytes() as u64;
    let mut file = NamedTempFile::new().with_context(full)?;
    let mut bytes = vec![0; 1 << 16];
    let (mut whole, mut line, mut number) = (0u64, 0u64, 1usize);
    loop {
        if interrupt::asked() {
            return Err(kiln_embed::Error::Cancelled.into());
        }
        let read = match input.read(&mut bytes) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).context(LABEL),
        };
        let part = &bytes[..read];
        whole += read as u64;
        // Whole reads are counted, so a line may be longer by one of them; its reader is exact.
        number += part.iter().filter(|&&byte| byte == b'\n').count();
        line = match part.iter().rposition(|&byte| byte == b'\n') {
            Some(end) => (read - end - 1) as u64,
            None => line + read as u64,
        };
        if line > most + 2 {
            bail!(
                "{LABEL}:{number}: a line of more than {}; split it, or raise --max-text-bytes",
                size(most)
            );
        }
        if whole > SPOOL * most {
            bail!("{LABEL}: more than {}; name a file instead", size(SPOOL * most));
        }
        file.write_all(part).with_context(full)?;
    }
    file.flush().with_context(full)?;
    Ok(file)
}
