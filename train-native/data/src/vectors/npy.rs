//! NumPy's file of one array (`.npy`, versions 1.0, 2.0 and 3.0): the header that says what follows, and
//! rows of f32. As NumPy itself, it takes a header of exactly three keys and of at most 10,000 bytes.

use std::io::{self, Read};

use anyhow::{Context as _, Result, bail};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Most bytes of a header's text, as NumPy itself takes them.
const LONGEST: usize = 10_000;
/// The numbers begin at a multiple of it.
const ALIGNMENT: usize = 64;

/// What a file says of its array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    /// Kind of the numbers, as Python writes it: a string, or a list of a structure's fields.
    pub(super) descr: String,
    /// Whether the first index moves fastest.
    pub(super) fortran_order: bool,
    /// Length of each axis.
    pub(super) shape: Vec<u64>,
    /// Bytes before the numbers.
    pub(super) bytes: u64,
}

impl Header {
    /// Reads a file up to its numbers.
    ///
    /// # Errors
    /// Another kind of file, a header that is cut off or longer than NumPy takes, or one that does not
    /// say in three keys what follows.
    pub(super) fn read(from: &mut impl Read) -> Result<Self> {
        let mut start = [0; 8];
        from.read_exact(&mut start).context("too short")?;
        let Some(version) = start.strip_prefix(MAGIC) else { bail!("it does not begin as one") };
        let mut length = [0; 4];
        let width = match version {
            [1, 0] => 2,
            [2 | 3, 0] => 4,
            _ => bail!("its version is {}.{}, expected 1.0 to 3.0", version[0], version[1]),
        };
        from.read_exact(&mut length[..width]).context("too short")?;
        let length = u32::from_le_bytes(length) as usize;
        if length > LONGEST {
            bail!("its header has {length} bytes, more than {LONGEST}");
        }
        let mut text = vec![0; length];
        from.read_exact(&mut text).context("too short")?;
        let (descr, fortran_order, shape) = parse(&String::from_utf8_lossy(&text))?;
        let bytes = (start.len() + width + length) as u64;
        Ok(Self { descr, fortran_order, shape, bytes })
    }

    /// How an f32 is made of its bytes, if the numbers are f32.
    pub(super) fn f32(&self) -> Option<fn([u8; 4]) -> f32> {
        match unquoted(&self.descr)? {
            "<f4" => Some(f32::from_le_bytes),
            ">f4" => Some(f32::from_be_bytes),
            "=f4" => Some(f32::from_ne_bytes),
            _ => None,
        }
    }
}

/// What stands before `[rows, dim]` numbers in f32, little-endian and row by row.
pub(super) fn header(rows: usize, dim: usize) -> Vec<u8> {
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {dim}, ), }}");
    let start = [MAGIC, &[1, 0]].concat();
    // Blanks and an end of line fill it up, far below the bytes that two can count.
    let all = (start.len() + 2 + text.len() + 1).next_multiple_of(ALIGNMENT);
    let length = all - start.len() - 2;
    let text = format!("{text:<width$}\n", width = length - 1);
    [&start, &(length as u16).to_le_bytes()[..], text.as_bytes()].concat()
}

/// The next `dim` numbers.
///
/// # Errors
/// The file ends before, or cannot be read.
pub(super) fn row(
    from: &mut impl Read,
    dim: usize,
    number: fn([u8; 4]) -> f32,
) -> io::Result<Vec<f32>> {
    let mut bytes = vec![0; dim * 4];
    from.read_exact(&mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|bytes| number(*bytes)).collect())
}

/// `descr`, `fortran_order` and `shape` of a header's text, a Python dictionary.
fn parse(text: &str) -> Result<(String, bool, Vec<u64>)> {
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    let mut rest = after(text, '{')?;
    while !rest.trim_start().starts_with('}') {
        let (key, more) = value(rest)?;
        let (value, more) = value(after(more, ':')?)?;
        let repeated = match unquoted(key) {
            Some("descr") => descr.replace(value.to_string()).is_some(),
            Some("fortran_order") => fortran_order.replace(boolean(value)?).is_some(),
            Some("shape") => shape.replace(lengths(value)?).is_some(),
            _ => bail!("its header has the key {}, which no array has", shown(key)),
        };
        if repeated {
            bail!("its header has the key {} twice", shown(key));
        }
        rest = more;
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => break,
        }
    }
    let behind = after(rest, '}')?.trim();
    if !behind.is_empty() {
        bail!("its header goes on after its end with {}", shown(behind));
    }
    let missing = |key: &str| format!("its header has no key '{key}'");
    Ok((
        descr.with_context(|| missing("descr"))?,
        fortran_order.with_context(|| missing("fortran_order"))?,
        shape.with_context(|| missing("shape"))?,
    ))
}

/// What follows a mark.
fn after(text: &str, mark: char) -> Result<&str> {
    let text = text.trim_start();
    match text.strip_prefix(mark) {
        Some(rest) => Ok(rest),
        None if text.is_empty() => bail!("its header ends where {mark:?} should be"),
        None => bail!("its header has {} where {mark:?} should be", shown(text)),
    }
}

/// The text of a value, up to the mark that ends it, and the rest. What stands in brackets and quotes
/// belongs to it.
fn value(text: &str) -> Result<(&str, &str)> {
    let (mut depth, mut quote, mut escaped) = (0, None, false);
    for (i, letter) in text.char_indices() {
        if let Some(end) = quote {
            let ends = letter == end && !escaped;
            escaped = letter == '\\' && !escaped;
            quote = Some(end).filter(|_| !ends);
            continue;
        }
        match letter {
            '\'' | '"' => quote = Some(letter),
            '(' | '[' | '{' => depth += 1,
            ',' | ':' | ')' | ']' | '}' if depth == 0 => return Ok((text[..i].trim(), &text[i..])),
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
    }
    bail!("its header ends within quotes or brackets");
}

/// The beginning of a text, in one line.
fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(40).collect::<String>())
}

/// A string without its quotes.
fn unquoted(text: &str) -> Option<&str> {
    let within = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    within('\'').or_else(|| within('"'))
}

fn boolean(text: &str) -> Result<bool> {
    match text {
        "True" => Ok(true),
        "False" => Ok(false),
        _ => bail!("its fortran_order is {}, expected True or False", shown(text)),
    }
}

/// The numbers of a tuple.
fn lengths(text: &str) -> Result<Vec<u64>> {
    let odd = || format!("its shape is {}, expected a tuple of whole numbers", shown(text));
    let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).with_context(odd)?;
    let mut items: Vec<&str> = inner.split(',').map(str::trim).collect();
    // One number in brackets is a number, and no tuple.
    if items.len() == 1 && !items[0].is_empty() {
        bail!(odd());
    }
    items.pop_if(|last| last.is_empty());
    let length = |item: &str| {
        let digits = item.strip_prefix('-').unwrap_or(item);
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            bail!(odd());
        }
        if item.starts_with('-') {
            bail!("its shape is {}, with a negative length", shown(text));
        }
        item.parse().context("its shape is larger than any memory")
    };
    items.into_iter().map(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A file of a version, with a header's text.
    fn file(version: [u8; 2], text: &str) -> Vec<u8> {
        let length = (text.len() as u32).to_le_bytes();
        let length = if version[0] == 1 { &length[..2] } else { &length[..] };
        [MAGIC, &version, length, text.as_bytes()].concat()
    }

    fn read(bytes: &[u8]) -> Result<Header> {
        Header::read(&mut &bytes[..])
    }

    #[test]
    fn the_written_header_is_numpys() {
        let expected = "\u{76}\0{'descr': '<f4', 'fortran_order': False, 'shape': (6, 32, ), }";
        let mut expected = [b"\x93NUMPY\x01\0", expected.as_bytes()].concat();
        expected.resize(127, b' ');
        expected.push(b'\n');
        assert_eq!(header(6, 32), expected);
        // The longest begins its numbers at the same place.
        assert_eq!(header(usize::MAX, usize::MAX).len(), 128);
    }

    #[test]
    fn headers_as_others_write_them() {
        let wide = |text: &str| read(&file([3, 0], text)).unwrap();
        let header = wide("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n");
        assert_eq!(header.shape, [2, 3]);
        assert!(header.f32().is_some() && !header.fortran_order);
        assert_eq!(
            wide("\n{\n\"shape\":(7,),\"descr\" : \">f4\",\t'fortran_order':True}").shape,
            [7]
        );
        assert_eq!(
            wide("{'shape': (), 'descr': '|O', 'fortran_order': True}").shape,
            [] as [u64; 0]
        );
        let fields = "[('a, (b', '<f4'), ('c\\'}', [('d', '|S3', (2,))]), ]";
        let header = wide(&format!("{{'descr': {fields}, 'fortran_order': False, 'shape': (1,)}}"));
        assert_eq!(header.descr, fields);
        assert!(header.f32().is_none());
    }

    #[test]
    fn odd_headers_are_one_line() {
        let keys = |descr: &str, order: &str, shape: &str| {
            format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n")
        };
        let shape = |shape: &str| keys("'<f4'", "False", shape);
        for (text, word) in [
            (String::new(), "'{'"),
            ("   \n".into(), "'{'"),
            ("[]".into(), "'{'"),
            ("{}".into(), "no key 'descr'"),
            ("{'descr': '<f4', 'shape': (1,)}".into(), "no key 'fortran_order'"),
            ("{'descr': '<f4', 'fortran_order': False}".into(), "no key 'shape'"),
            ("{'descr': '<f4', 'descr': '<f8'}".into(), "twice"),
            ("{'color': 'red'}".into(), "'color'"),
            ("{descr: '<f4'}".into(), "\"descr\", which"),
            ("{'descr' '<f4': 1}".into(), "key \"'descr' '<f4'\""),
            ("{'descr', '<f4'}".into(), "':'"),
            ("{'descr': '<f4' 'shape': (1,)}".into(), "'}'"),
            ("{'descr': '<f4".into(), "quotes"),
            ("{'descr': ((".into(), "brackets"),
            ("{'descr': '<f4'".into(), "brackets"),
            ("{,}".into(), "':'"),
            (keys("'<f4'", "0", "(1,)"), "fortran_order is \"0\""),
            (keys("'<f4'", "\u{1b}\n", "(1,)"), "fortran_order is \""),
            (shape("[1, 2]"), "tuple"),
            (shape("(1)"), "tuple"),
            (shape("1"), "tuple"),
            (shape("(,)"), "tuple"),
            (shape("(1,,)"), "tuple"),
            (shape("(1.0, 2)"), "tuple"),
            (shape("(0x10, 2)"), "tuple"),
            (shape("((1, 2), 3)"), "tuple"),
            (shape("(+1, 2)"), "tuple"),
            (shape("(1 2, 3)"), "tuple"),
            (shape("(-1, 2)"), "negative"),
            (shape("(18446744073709551616, 2)"), "larger than any memory"),
            (shape("(1, 2)") + "x", "goes on"),
            (shape("(1, 2)}"), "goes on"),
        ] {
            let error = format!("{:#}", read(&file([1, 0], &text)).unwrap_err());
            assert!(error.contains(word) && !error.contains('\n'), "{text}: {error}");
        }
        for (bytes, word) in [
            (b"".to_vec(), "too short"),
            (b"\x93NUMPX\x01\0\0\0".to_vec(), "does not begin"),
            (b"PK\x03\x04aaaaaa".to_vec(), "does not begin"),
            (file([1, 1], "{}"), "1.1"),
            (file([4, 0], "{}"), "4.0"),
            (b"\x93NUMPY\x01\0\xff\xff".to_vec(), "10000"),
            (b"\x93NUMPY\x02\0\xff\xff\xff\xff".to_vec(), "10000"),
        ] {
            let error = format!("{:#}", read(&bytes).unwrap_err());
            assert!(error.contains(word) && !error.contains('\n'), "{error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(rows in any::<u32>(), dim in any::<u32>(), cut in 0usize..128) {
            let (rows, dim) = (rows as usize, dim as usize);
            let bytes = header(rows, dim);
            let back = read(&bytes).unwrap();
            prop_assert_eq!(back.shape, [rows as u64, dim as u64]);
            prop_assert_eq!(back.bytes, bytes.len() as u64);
            prop_assert_eq!(bytes.len() % ALIGNMENT, 0);
            prop_assert!(read(&bytes[..cut.min(bytes.len() - 1)]).is_err());
        }

        #[test]
        fn numbers_come_back_in_either_order(numbers in proptest::collection::vec(any::<f32>(), 0..20)) {
            let little: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            let big: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
            let dim = numbers.len();
            prop_assert_eq!(&row(&mut &little[..], dim, f32::from_le_bytes).unwrap(), &numbers);
            prop_assert_eq!(&row(&mut &big[..], dim, f32::from_be_bytes).unwrap(), &numbers);
            prop_assert!(row(&mut &big[..], dim + 1, f32::from_be_bytes).is_err());
        }

        #[test]
        fn any_text_is_an_error_or_a_header(text in "[{}()\\[\\]'\",: a-f0-9<\\\\é-]{0,60}", i in 0usize..200) {
            let _ = read(&file([3, 0], &text));
            let mut whole = header(12, 34);
            let i = i % whole.len();
            whole.splice(i..=i, text.bytes().take(3));
            let _ = read(&whole);
        }
    }
}
