//! What a GGUF file says before its numbers: its version, its metadata, and where each tensor is.
//!
//! Every count and length is compared with what is left of the file before it is believed, so a small
//! file cannot ask for more memory than it has bytes. Of the metadata only what is used is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, ErrorKind, Read, Seek};

use anyhow::{Context as _, Error, Result, anyhow, bail};

use super::blocks::Kind;

/// Most entries and most tensors that are read; large models have some thousands of tensors.
const MOST: u64 = 1 << 16;
/// Longest name of an entry (as the format says) or a tensor, in bytes, and longest text that is kept.
const LONGEST: u64 = u16::MAX as u64;
/// Most dimensions of a tensor, as in ggml.
const DIMENSIONS: u64 = 4;
/// How deep arrays may be in arrays.
const DEEPEST: usize = 4;
/// Where tensors may begin, unless the file says otherwise.
const ALIGNMENT: u64 = 32;

pub(super) const ARCHITECTURE: &str = "general.architecture";
const ALIGNMENT_KEY: &str = "general.alignment";
/// What the entry that names a pooling head ends with.
pub(super) const POOLING: &str = ".pooling_type";

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Text(String),
    Whole(u64),
    Other,
}

/// One tensor, which lies inside the file.
pub(super) struct TensorInfo {
    pub(super) name: String,
    /// Rows before columns.
    pub(super) shape: Vec<usize>,
    pub(super) kind: &'static Kind,
    /// Its first byte in the file.
    pub(super) start: u64,
    pub(super) bytes: usize,
}

/// A file's header.
pub(super) struct Header {
    metadata: BTreeMap<String, Value>,
    /// In the order in which they are in the file.
    pub(super) tensors: Vec<TensorInfo>,
}

impl Header {
    /// Reads the header of a file of so many bytes.
    ///
    /// # Errors
    /// No GGUF, of a version that is not read, cut short, or with entries that contradict each other.
    pub(super) fn read(reader: impl Read + Seek, length: u64) -> Result<Self> {
        let mut source = LimitedReader { reader: BufReader::new(reader), left: length };
        let magic = source.take::<4>()?;
        if &magic != b"GGUF" {
            bail!("is not GGUF");
        }
        check_version(source.take()?)?;
        let tensors = source.u64()?;
        let entries = source.u64()?;
        for (what, count, least) in [("entries", entries, 13), ("tensors", tensors, 24)] {
            if count > MOST {
                bail!("its header promises {count} {what}, more than the {MOST} that are read");
            }
            source.has(count * least)?;
        }
        let mut metadata = BTreeMap::new();
        let mut keys = BTreeSet::new();
        for _ in 0..entries {
            let key = source.text("the name of an entry")?;
            let kind = source.u32()?;
            let used = key == ARCHITECTURE || key == ALIGNMENT_KEY || key.ends_with(POOLING);
            let value = source.value(kind, used).with_context(|| format!("its entry {key}"))?;
            if used {
                metadata.insert(key.clone(), value);
            }
            if let Some(twice) = keys.replace(key) {
                bail!("has the entry {twice} twice");
            }
        }
        let mut tensors = (0..tensors).map(|_| source.tensor()).collect::<Result<Vec<_>>>()?;

        let mut header = Self { metadata, tensors: Vec::new() };
        let alignment = header.alignment()?;
        let data = (length - source.left).next_multiple_of(alignment);
        for tensor in &mut tensors {
            if !tensor.start.is_multiple_of(alignment) {
                let TensorInfo { name, start, .. } = tensor;
                bail!("its tensor {name} begins at byte {start}, no multiple of {alignment}");
            }
            // Both ends are compared with the file's length before they are used.
            tensor.start = tensor.start.saturating_add(data);
            if tensor.start.saturating_add(tensor.bytes as u64) > length {
                bail!(
                    "cut short: its tensor {} would end behind the file's {length} bytes; download it again",
                    tensor.name
                );
            }
        }
        check_apart(&mut tensors)?;
        header.tensors = tensors;
        Ok(header)
    }

    /// The text of an entry.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The whole number of an entry.
    pub(super) fn number(&self, key: &str) -> Option<u64> {
        match self.metadata.get(key) {
            Some(Value::Whole(number)) => Some(*number),
            _ => None,
        }
    }

    fn alignment(&self) -> Result<u64> {
        match self.metadata.get(ALIGNMENT_KEY) {
            None => Ok(ALIGNMENT),
            // The format has 32 bits for it.
            Some(Value::Whole(number)) if number.is_power_of_two() && *number < 1 << 32 => {
                Ok(*number)
            }
            Some(Value::Whole(number)) => {
                bail!("{ALIGNMENT_KEY} is {number}, and has to be a power of two; convert it again")
            }
            Some(_) => bail!("{ALIGNMENT_KEY} is no whole number; convert it again"),
        }
    }
}

fn check_version(bytes: [u8; 4]) -> Result<()> {
    let again = "convert it again with today's llama.cpp";
    match (u32::from_le_bytes(bytes), u32::from_be_bytes(bytes)) {
        (2 | 3, _) => Ok(()),
        (_, big @ 1..=3) => {
            bail!("is big-endian GGUF of version {big}; little-endian files can be read ({again})")
        }
        (version, _) => {
            bail!("is GGUF of version {version}; versions 2 and 3 can be read ({again})")
        }
    }
}

/// Whether no two tensors have the same name or share bytes; sorts them by where they are.
fn check_apart(tensors: &mut [TensorInfo]) -> Result<()> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
        bail!("has the tensor {} twice", pair[0].name);
    }
    tensors.sort_by_key(|tensor| tensor.start);
    let shares = |pair: &&[TensorInfo]| pair[0].start + pair[0].bytes as u64 > pair[1].start;
    match tensors.windows(2).find(shares) {
        Some(pair) => bail!("its tensors {} and {} share bytes", pair[0].name, pair[1].name),
        None => Ok(()),
    }
}

/// What is left to be read of a file.
struct LimitedReader<R> {
    reader: BufReader<R>,
    left: u64,
}

fn short(error: std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::UnexpectedEof => {
            anyhow!("cut short: its header does not end in the file; download it again")
        }
        _ => error.into(),
    }
}

impl<R: Read + Seek> LimitedReader<R> {
    /// Whether so many bytes are left.
    fn has(&self, bytes: u64) -> Result<()> {
        if bytes <= self.left { Ok(()) } else { Err(short(ErrorKind::UnexpectedEof.into())) }
    }

    fn read(&mut self, to: &mut [u8]) -> Result<()> {
        let bytes = to.len() as u64;
        self.has(bytes)?;
        self.reader.read_exact(to).map_err(short)?;
        self.left -= bytes;
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// Passes over bytes.
    fn skip(&mut self, bytes: u64) -> Result<()> {
        self.has(bytes)?;
        // No file has more bytes than fit.
        self.reader.seek_relative(i64::try_from(bytes)?)?;
        self.left -= bytes;
        Ok(())
    }

    /// A text that is kept; `what` it is for the error.
    fn text(&mut self, what: &str) -> Result<String> {
        let length = self.u64()?;
        self.has(length)?;
        if length > LONGEST {
            bail!("{what} has {length} bytes, more than {LONGEST}");
        }
        let mut bytes = vec![0; length as usize];
        self.read(&mut bytes)?;
        // Some writers end a text with zeros.
        while bytes.pop_if(|byte| *byte == 0).is_some() {}
        match String::from_utf8(bytes) {
            Ok(text) if !text.contains(char::is_control) => Ok(text),
            _ => bail!("{what} is no plain UTF-8"),
        }
    }

    /// A value of one of the format's types; `Value::Other` unless it is used.
    fn value(&mut self, kind: u32, used: bool) -> Result<Value> {
        let whole = |number: Option<u64>| number.map_or(Value::Other, Value::Whole);
        Ok(match kind {
            8 if used => Value::Text(self.text("the text")?),
            0 if used => whole(Some(self.take().map(u8::from_le_bytes)?.into())),
            1 if used => whole(self.take().map(i8::from_le_bytes)?.try_into().ok()),
            2 if used => whole(Some(self.take().map(u16::from_le_bytes)?.into())),
            3 if used => whole(self.take().map(i16::from_le_bytes)?.try_into().ok()),
            4 if used => whole(Some(self.u32()?.into())),
            5 if used => whole(self.take().map(i32::from_le_bytes)?.try_into().ok()),
            10 if used => whole(Some(self.u64()?)),
            11 if used => whole(self.take().map(i64::from_le_bytes)?.try_into().ok()),
            _ => {
                self.pass(kind, DEEPEST)?;
                Value::Other
            }
        })
    }

    /// Passes over a value, which may be arrays in arrays so deep.
    fn pass(&mut self, kind: u32, deepest: usize) -> Result<()> {
        if let Some(bytes) = size(kind) {
            return self.skip(bytes);
        }
        match kind {
            8 => {
                let length = self.u64()?;
                self.skip(length)
            }
            9 => {
                let (kind, count) = (self.u32()?, self.u64()?);
                if let Some(bytes) = size(kind) {
                    return self.skip(count.saturating_mul(bytes));
                }
                let Some(deepest) = deepest.checked_sub(1) else {
                    bail!("has arrays in arrays, deeper than {DEEPEST}");
                };
                // Each has a length of its own.
                self.has(count.saturating_mul(8))?;
                (0..count).try_for_each(|_| self.pass(kind, deepest))
            }
            _ => bail!("is of the unknown type {kind}"),
        }
    }

    /// What the header says of one tensor, whose start is counted from the first one's.
    fn tensor(&mut self) -> Result<TensorInfo> {
        let name = self.text("the name of a tensor")?;
        let dimensions = u64::from(self.u32()?);
        if dimensions > DIMENSIONS {
            bail!("its tensor {name} has {dimensions} dimensions, more than {DIMENSIONS}");
        }
        // The shortest way through memory first, as ggml counts.
        let mut shape = (0..dimensions).map(|_| self.u64()).collect::<Result<Vec<_>>>()?;
        let id = self.u32()?;
        let start = self.u64()?;
        let Some(kind) = Kind::of(id) else {
            bail!(
                "its tensor {name} is {}; {} can be read (quantize it again)",
                Kind::name_of(id),
                Kind::all()
            );
        };
        let columns = shape.first().copied().unwrap_or(1);
        shape.reverse();
        let numbers = shape.iter().try_fold(1u64, |count, &size| count.checked_mul(size));
        let blocks = numbers.map(|numbers| numbers / kind.block as u64);
        let bytes = blocks.and_then(|blocks| blocks.checked_mul(kind.bytes as u64));
        let sizes = || shape.iter().map(|&size| usize::try_from(size).ok()).collect();
        match (numbers, bytes.and_then(|bytes| usize::try_from(bytes).ok()), sizes()) {
            (Some(1..), Some(bytes), Some(shape)) if columns.is_multiple_of(kind.block as u64) => {
                Ok(TensorInfo { name, shape, kind, start, bytes })
            }
            _ => bail!("its tensor {name} cannot have the shape {shape:?} in {}", kind.name),
        }
    }
}

/// Bytes of a value whose size is its type's.
fn size(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
    }

    /// A file with an entry of each (name, type, bytes) and a tensor of each (name, dimensions, type,
    /// offset), and so many bytes of numbers.
    fn file(
        entries: &[(&str, u32, Vec<u8>)],
        tensors: &[(&str, &[u64], u32, u64)],
        data: usize,
    ) -> Vec<u8> {
        let mut all = b"GGUF\x03\0\0\0".to_vec();
        all.extend((tensors.len() as u64).to_le_bytes());
        all.extend((entries.len() as u64).to_le_bytes());
        for (name, kind, value) in entries {
            all.extend(text(name));
            all.extend(kind.to_le_bytes());
            all.extend(value);
        }
        for (name, dimensions, kind, offset) in tensors {
            all.extend(text(name));
            all.extend((dimensions.len() as u32).to_le_bytes());
            all.extend(dimensions.iter().flat_map(|size| size.to_le_bytes()));
            all.extend(kind.to_le_bytes());
            all.extend(offset.to_le_bytes());
        }
        all.resize(all.len().next_multiple_of(32) + data, 0);
        all
    }

    fn read(bytes: &[u8]) -> Result<Header> {
        Header::read(Cursor::new(bytes), bytes.len() as u64)
    }

    fn refused(bytes: &[u8], word: &str) {
        let error = format!("{:#}", read(bytes).err().unwrap());
        assert!(error.contains(word) && error.lines().count() == 1, "{word}: {error}");
    }

    /// So many arrays in one another.
    fn arrays(depth: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for _ in 1..depth {
            all.extend([9u32.to_le_bytes().as_slice(), &1u64.to_le_bytes()].concat());
        }
        all.extend([4u32.to_le_bytes().as_slice(), &0u64.to_le_bytes()].concat());
        all
    }

    #[test]
    fn entries_and_tensors_are_read() {
        let words = [8u32.to_le_bytes().to_vec(), 2u64.to_le_bytes().to_vec(), text("a"), text("")];
        let entries = [
            ("general.architecture", 8, text("bert\0")),
            ("general.alignment", 4, 64u32.to_le_bytes().to_vec()),
            ("bert.pooling_type", 5, 2i32.to_le_bytes().to_vec()),
            ("words", 9, words.concat()),
            ("nested", 9, arrays(3)),
            ("flag", 7, vec![1]),
        ];
        let tensors: [(_, &[u64], _, _); 2] = [("b", &[32, 3], 2, 64), ("a", &[5], 0, 0)];
        let bytes = file(&entries, &tensors, 200);
        let header = read(&bytes).unwrap();
        assert_eq!(header.text(ARCHITECTURE), Some("bert"));
        assert_eq!(header.number("bert.pooling_type"), Some(2));
        let [a, b] = &header.tensors[..] else { panic!() };
        assert_eq!(
            (a.name.as_str(), a.kind.name, a.shape.as_slice(), a.bytes),
            ("a", "F32", &[5][..], 20)
        );
        assert_eq!(
            (b.name.as_str(), b.kind.name, b.shape.as_slice(), b.bytes),
            ("b", "Q4_0", &[3, 32][..], 54)
        );
        assert_eq!((a.start % 64, b.start), (0, a.start + 64));
        for length in 0..b.start as usize + b.bytes {
            refused(&bytes[..length], "cut short");
        }
    }

    #[test]
    fn other_versions_are_named() {
        let with = |version: [u8; 4]| {
            let mut bytes = file(&[], &[], 0);
            bytes[4..8].copy_from_slice(&version);
            bytes
        };
        read(&with([2, 0, 0, 0])).unwrap();
        refused(&with([1, 0, 0, 0]), "GGUF of version 1;");
        refused(&with([4, 0, 0, 0]), "GGUF of version 4;");
        refused(&with([0, 0, 0, 3]), "big-endian GGUF of version 3");
        refused(b"GGML\x03\0\0\0", "not GGUF");
    }

    #[test]
    fn what_a_header_promises_is_compared_with_the_file() {
        let promise = |tensors: u64, entries: u64| {
            let mut bytes = file(&[], &[], 0);
            bytes[8..16].copy_from_slice(&tensors.to_le_bytes());
            bytes[16..24].copy_from_slice(&entries.to_le_bytes());
            bytes
        };
        refused(&promise(u64::MAX, 0), "18446744073709551615 tensors");
        refused(&promise(0, u64::MAX), "18446744073709551615 entries");
        refused(&promise(1000, 0), "cut short");
        refused(&promise(0, 1000), "cut short");

        let array =
            |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
        let entry = |kind: u32, value: Vec<u8>| file(&[("key", kind, value)], &[], 0);
        refused(&entry(8, u64::MAX.to_le_bytes().to_vec()), "cut short");
        for kind in [4, 8, 9, 12] {
            refused(&entry(9, array(kind, u64::MAX)), "cut short");
            refused(&entry(9, array(kind, 1 << 40)), "cut short");
        }
        refused(&entry(9, arrays(6)), "arrays in arrays");
        refused(&entry(13, Vec::new()), "unknown type 13");
        refused(&entry(9, array(13, 1)), "unknown type 13");
        refused(&file(&[(&"k".repeat(70_000), 7, vec![1])], &[], 0), "70000 bytes");
        refused(&file(&[("a\nb", 7, vec![1])], &[], 0), "no plain UTF-8");
        refused(&file(&[("k", 7, vec![1]), ("k", 7, vec![1])], &[], 0), "the entry k twice");
        let mut bytes = file(&[("key", 7, vec![1])], &[], 0);
        bytes[32] = 0xff;
        refused(&bytes, "no plain UTF-8");
    }

    #[test]
    fn tensors_have_to_lie_apart_inside_the_file() {
        let one =
            |dimensions: &[u64], kind, offset| file(&[], &[("w", dimensions, kind, offset)], 64);
        read(&one(&[8, 2], 0, 0)).unwrap();
        refused(&one(&[8, 3], 0, 0), "cut short: its tensor w");
        refused(&one(&[8, 2], 0, 32), "cut short: its tensor w");
        refused(&one(&[8, 2], 0, 8), "no multiple of 32");
        refused(&one(&[8, 2], 0, u64::MAX - 31), "cut short: its tensor w");
        refused(&one(&[1 << 40, 1 << 40], 0, 0), "cannot have the shape");
        refused(&one(&[u64::MAX], 8, 0), "cannot have the shape");
        refused(&one(&[1 << 61], 0, 0), "cut short: its tensor w");
        refused(&one(&[0, 8], 0, 0), "cannot have the shape");
        refused(&one(&[16, 2], 2, 0), "cannot have the shape [2, 16] in Q4_0");
        refused(&one(&[1; 5], 0, 0), "5 dimensions");
        refused(&one(&[8], 17, 0), "its tensor w is IQ2_XS; F32, F16");
        refused(&one(&[8], 99, 0), "its tensor w is of the unknown type 99; F32, F16");
        let two = |a, b, offset| file(&[], &[(a, &[8], 0, 0), (b, &[8], 0, offset)], 64);
        read(&two("a", "b", 32)).unwrap();
        refused(&two("a", "b", 0), "its tensors a and b share bytes");
        refused(&two("a", "a", 32), "the tensor a twice");
        let long = file(&[], &[("a", &[9], 0, 0), ("b", &[4], 0, 32)], 64);
        refused(&long, "its tensors a and b share bytes");
        for (kind, value) in
            [(4, vec![0; 4]), (4, vec![3, 0, 0, 0]), (8, text("x")), (11, vec![255; 8])]
        {
            refused(&file(&[("general.alignment", kind, value)], &[], 0), "general.alignment is");
        }
    }
}
