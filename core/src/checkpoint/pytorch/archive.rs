//! Zip archives as `torch.save` writes them: entries stored as they are, in one folder, with the
//! 64-bit fields that files of more than 4 GB need.
//! (APPNOTE.TXT of PKWARE, sections 4.3 and 4.5.3.)

use std::collections::BTreeMap;
use std::ops::Range;

use super::fault::{Outcome, broken, bytes_at, foreign, shown};
use super::slice::Slice;
use crate::checkpoint::header::LARGEST_HEADER;
use crate::folder::ReadSeek;

const LOCAL_ENTRY: u32 = 0x0403_4b50;
const LISTED_ENTRY: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const WIDE_END: u32 = 0x0606_4b50;
const WIDE_END_LOCATOR: u32 = 0x0706_4b50;
/// Lengths of those records without what varies.
const LOCAL_LENGTH: u64 = 30;
const END_LENGTH: u64 = 22;
const WIDE_END_LENGTH: u64 = 56;
const WIDE_END_LOCATOR_LENGTH: u64 = 20;
/// The extra field that holds 64-bit sizes.
const WIDE_SIZES: u16 = 1;

/// The entries of an archive, by name.
pub(super) struct Archive {
    /// The folder that all of them are in, with its slash: the file's name when it was saved.
    folder: String,
    entries: BTreeMap<String, Listed>,
    /// Where the list of entries begins.
    list: u64,
}

/// What the list says of an entry.
struct Listed {
    flags: u16,
    method: u16,
    /// Lengths in the file and unpacked.
    packed: u64,
    whole: u64,
    start: u64,
}

impl Archive {
    /// Reads the list of entries.
    pub(super) fn open(reader: &mut dyn ReadSeek, length: u64) -> Outcome<Self> {
        let (count, list) = find_list(reader, length)?;
        if list.end - list.start > LARGEST_HEADER {
            return broken(format!(
                "its list of entries has {} bytes, more than the {LARGEST_HEADER} that are read",
                list.end - list.start
            ));
        }
        let bytes = bytes_at(reader, list.start, (list.end - list.start) as usize)?;
        let mut fields = Slice::new(&bytes);
        let mut archive =
            Self { folder: String::new(), entries: BTreeMap::new(), list: list.start };
        while !fields.is_empty() {
            let Some((name, entry)) = read_listed(&mut fields) else {
                return broken("corrupt: its list of entries cannot be read");
            };
            if archive.entries.is_empty() {
                archive.folder = name.split_inclusive('/').next().unwrap_or_default().into();
            }
            if archive.entries.insert(name.clone(), entry).is_some() {
                return broken(format!("corrupt: the entry {} is there twice", shown(&name)));
            }
        }
        if archive.entries.len() as u64 != count {
            return broken(format!(
                "corrupt: it has {} entries, not {count}",
                archive.entries.len()
            ));
        }
        Ok(archive)
    }

    /// Whether there are entries whose names begin so.
    pub(super) fn has(&self, beginning: &str) -> bool {
        let beginning = format!("{}{beginning}", self.folder);
        let mut from = self.entries.range(beginning.clone()..);
        from.next().is_some_and(|(name, _)| name.starts_with(&beginning))
    }

    /// Where the bytes of an entry are; `None` where there is no such entry.
    pub(super) fn locate(
        &self,
        reader: &mut dyn ReadSeek,
        name: &str,
    ) -> Outcome<Option<Range<u64>>> {
        let Some((name, entry)) = self.entries.get_key_value(&format!("{}{name}", self.folder))
        else {
            return Ok(None);
        };
        // Bits of traditional, strong and header encryption.
        if entry.flags & 0x2041 != 0 {
            return foreign(format!("its entry {} is encrypted", shown(name)));
        }
        if entry.method != 0 {
            return foreign(format!(
                "its entry {} is compressed (method {}), which torch.save does not do",
                shown(name),
                entry.method
            ));
        }
        if self.list.checked_sub(LOCAL_LENGTH).is_none_or(|last| entry.start > last) {
            return broken(format!("truncated: the entry {} is behind its end", shown(name)));
        }
        let head = bytes_at(reader, entry.start, LOCAL_LENGTH as usize)?;
        let mut fields = Slice::new(&head);
        let signature = fields.u32();
        fields.take(22);
        let (Some(LOCAL_ENTRY), Some(name_length), Some(extra)) =
            (signature, fields.u16(), fields.u16())
        else {
            return broken(format!("corrupt: the entry {} is not where it should be", shown(name)));
        };
        let start = entry.start + LOCAL_LENGTH + u64::from(name_length) + u64::from(extra);
        let fits = start.checked_add(entry.whole).filter(|end| *end <= self.list);
        let Some(end) = fits.filter(|_| entry.packed == entry.whole) else {
            return broken(format!(
                "truncated: the entry {} has {} bytes",
                shown(name),
                entry.whole
            ));
        };
        let own = bytes_at(reader, entry.start + LOCAL_LENGTH, name_length.into())?;
        if own != name.as_bytes() {
            return broken(format!("corrupt: the entry {} has another name", shown(name)));
        }
        Ok(Some(start..end))
    }

    /// The bytes of a small entry; `None` where there is none.
    pub(super) fn read(&self, reader: &mut dyn ReadSeek, name: &str) -> Outcome<Option<Vec<u8>>> {
        let Some(place) = self.locate(reader, name)? else {
            return Ok(None);
        };
        let length = place.end - place.start;
        if length > LARGEST_HEADER {
            return broken(format!(
                "its {name} has {length} bytes, more than the {LARGEST_HEADER} that are read"
            ));
        }
        bytes_at(reader, place.start, length as usize).map(Some)
    }
}

/// How many entries there are, and where they are listed.
fn find_list(reader: &mut dyn ReadSeek, length: u64) -> Outcome<(u64, Range<u64>)> {
    // A comment could follow, but torch.save writes none.
    let end = length.checked_sub(END_LENGTH);
    let narrow = match end {
        Some(at) => read_end(&bytes_at(reader, at, END_LENGTH as usize)?),
        None => None,
    };
    let (Some(end), Some(narrow)) = (end, narrow) else {
        return broken("truncated: the list of its entries is not at its end");
    };
    const WIDE: u64 = WIDE_END_LENGTH + WIDE_END_LOCATOR_LENGTH;
    let wide = match end.checked_sub(WIDE) {
        Some(at) => read_wide_end(&bytes_at(reader, at, WIDE as usize)?, at).map(|wide| (at, wide)),
        None => None,
    };
    let (end, [count, size, start]) = wide.unwrap_or((end, narrow));
    // Where the 32-bit record has a number at all, both must say the same.
    const NONE: [u64; 3] = [u16::MAX as u64, u32::MAX as u64, u32::MAX as u64];
    let wide = [count, size, start];
    let same = (0..3).all(|i| narrow[i] == NONE[i] || narrow[i] == wide[i]);
    match start.checked_add(size) {
        Some(last) if same && last == end => Ok((count, start..last)),
        _ => broken("corrupt: the list of its entries is not where it should be"),
    }
}

/// The last record: how many entries are listed, in how many bytes, and from where.
fn read_end(bytes: &[u8]) -> Option<[u64; 3]> {
    let mut fields = Slice::new(bytes);
    let signature = fields.u32()?;
    let disks = [fields.u16()?, fields.u16()?];
    let counts = [fields.u16()?, fields.u16()?];
    let (size, start, comment) = (fields.u32()?, fields.u32()?, fields.u16()?);
    let whole = signature == END && disks == [0, 0] && counts[0] == counts[1] && comment == 0;
    whole.then_some([counts[0].into(), size.into(), start.into()])
}

/// The same in 64 bits, from a record at some place and the one behind it that says so.
fn read_wide_end(bytes: &[u8], at: u64) -> Option<[u64; 3]> {
    let mut fields = Slice::new(bytes);
    let (signature, length) = (fields.u32()?, fields.u64()?);
    fields.take(4)?;
    let disks = [fields.u32()?, fields.u32()?];
    let counts = [fields.u64()?, fields.u64()?];
    let (size, start) = (fields.u64()?, fields.u64()?);
    let locator = (fields.u32()?, fields.u32()?, fields.u64()?);
    let whole = signature == WIDE_END
        && length == WIDE_END_LENGTH - 12
        && disks == [0, 0]
        && counts[0] == counts[1]
        && locator == (WIDE_END_LOCATOR, 0, at);
    whole.then_some([counts[0], size, start])
}

/// One entry of the list.
fn read_listed(fields: &mut Slice<'_>) -> Option<(String, Listed)> {
    let signature = fields.u32()?;
    // Versions.
    fields.take(4)?;
    let (flags, method) = (fields.u16()?, fields.u16()?);
    // Time and checksum.
    fields.take(8)?;
    let mut sizes = [fields.u32()?, fields.u32()?, 0].map(u64::from);
    let lengths = [fields.u16()?, fields.u16()?, fields.u16()?].map(usize::from);
    // Disk and attributes.
    fields.take(8)?;
    sizes[2] = fields.u32()?.into();
    let name = std::str::from_utf8(fields.take(lengths[0])?).ok()?;
    let mut extra = Slice::new(fields.take(lengths[1])?);
    fields.take(lengths[2])?;
    while !extra.is_empty() {
        let (kind, length) = (extra.u16()?, extra.u16()?);
        let mut field = Slice::new(extra.take(length.into())?);
        if kind == WIDE_SIZES {
            // Those that have no room above, in the order: unpacked, packed, start.
            for i in [1, 0, 2] {
                if sizes[i] == u64::from(u32::MAX) {
                    sizes[i] = field.u64()?;
                }
            }
        }
    }
    let [packed, whole, start] = sizes;
    let entry = Listed { flags, method, packed, whole, start };
    (signature == LISTED_ENTRY).then(|| (name.to_string(), entry))
}
