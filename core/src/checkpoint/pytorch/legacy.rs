//! What `torch.save` wrote before PyTorch 1.6, and writes on request since: pickles of a number that
//! marks the format, its version, the machine, the objects and the storages' keys; then every
//! storage, its length before it.

use std::collections::BTreeMap;
use std::ops::Range;

use super::fault::{Outcome, broken, bytes_at, foreign};
use super::pickle::{Pickle, Value};
use crate::checkpoint::header::LARGEST_HEADER;
use crate::folder::ReadSeek;

/// 0x1950a86a20f9469cfc6c.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
const VERSION: i64 = 1001;

/// Reads the bytes that hold all pickles.
pub(super) fn head(reader: &mut dyn ReadSeek, length: u64) -> Outcome<Vec<u8>> {
    bytes_at(reader, 0, length.min(LARGEST_HEADER) as usize)
}

/// The objects, and where each storage is, by key.
pub(super) fn read<'a>(
    head: &'a [u8],
    reader: &mut dyn ReadSeek,
    length: u64,
) -> Outcome<(Pickle<'a>, BTreeMap<&'a str, Range<u64>>)> {
    let mut at = 0;
    let mut next = || {
        let pickle = Pickle::read(&head[at..])?;
        at += pickle.length;
        Ok(pickle)
    };
    if next()?.root != Value::Big(&MAGIC) {
        return foreign("is a pickle, but not one that torch.save wrote");
    }
    if next()?.root != Value::Int(VERSION) {
        return foreign("was written by an unknown version of torch.save");
    }
    let machine = next()?;
    if machine.get(machine.root, "little_endian") != Some(Value::Bool(true)) {
        return foreign("its numbers are big-endian");
    }
    let (objects, keys) = (next()?, next()?);
    let Some(keys) = keys.list(keys.root) else {
        return broken("corrupt: the list of its storages is none");
    };
    let mut sizes = BTreeMap::new();
    for storage in &objects.storages {
        let size = (storage.count, storage.dtype.bitsize() as u64 / 8);
        if sizes.insert(storage.key, size).is_some_and(|other| other != size) {
            return broken("corrupt: a storage has two sizes");
        }
    }
    let mut places = BTreeMap::new();
    let mut at = at as u64;
    for key in keys {
        let Value::Text(key) = *key else {
            return broken("corrupt: the key of a storage is no text");
        };
        let Some(&(count, size)) = sizes.get(key) else {
            return broken("corrupt: a storage is listed that nothing uses");
        };
        let start = at + 8;
        let end = count.checked_mul(size).and_then(|bytes| start.checked_add(bytes));
        let Some(end) = end.filter(|end| *end <= length) else {
            return broken(format!(
                "truncated: a storage of {count} numbers begins at byte {start} of {length}"
            ));
        };
        if bytes_at(reader, at, 8)? != count.to_le_bytes() {
            return broken(format!("corrupt: a storage is not of {count} numbers"));
        }
        if places.insert(key, start..end).is_some() {
            return broken("corrupt: a storage is listed twice");
        }
        at = end;
    }
    Ok((objects, places))
}
