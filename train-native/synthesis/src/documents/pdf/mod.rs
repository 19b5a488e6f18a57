//! PDF: `letters (by hayro, at their places) -> lines -> frames (left out) -> layout (paragraphs and headings)`.

mod frames;
mod layout;
mod letters;
mod lines;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use hayro_interpret::hayro_syntax::{DecryptionError, LoadPdfError, Pdf};

use super::outline::{Outline, one_line};
use super::{Document, Facts};
use lines::Line;

/// Share of letters of which nobody says which they are, above which the rest is of no use either.
const UNKNOWN: f64 = 0.1;

/// Ends of names of files, which programs write in the place of titles.
const ENDINGS: [&str; 14] = [
    ".doc", ".docx", ".odt", ".rtf", ".txt", ".tex", ".dvi", ".pdf", ".ppt", ".pptx", ".xls",
    ".xlsx", ".indd", ".html",
];

/// A document, and the share of its letters of which nobody says which they are; else why it has none. Where `cancelled`
/// says so, it ends before its end.
pub(super) fn read(
    name: String,
    data: Vec<u8>,
    cancelled: &dyn Fn() -> bool,
) -> Result<(Document, f64), String> {
    let read = || {
        let pdf = Pdf::new(data).map_err(|error| match error {
            LoadPdfError::Decryption(DecryptionError::PasswordProtected) => "asks for a password",
            LoadPdfError::Decryption(_) => "is encrypted in a way that is not known",
            LoadPdfError::Invalid => "is damaged, or no PDF",
        })?;
        let (mut pages, mut known, mut unknown) = (Vec::new(), 0, 0);
        for page in letters::pages(&pdf, cancelled) {
            known += page.letters.len() as u32;
            unknown += page.unknown;
            pages.push(lines::lines(page.letters));
        }
        if known + unknown == 0 {
            return Err("shows no letters: pictures of them, such as a scan, take OCR first");
        }
        let unknown = f64::from(unknown) / f64::from(known + unknown);
        if unknown > UNKNOWN {
            return Err(
                "does not say which letters its fonts show; print it anew, or read it by OCR",
            );
        }
        Ok((pages, title(pdf.metadata().title.as_deref()), unknown))
    };
    let (pages, title, unknown): (Vec<Vec<Line>>, _, _) =
        silently(read).unwrap_or(Err("is made in a way that cannot be read"))?;
    let mut outline = Outline::default();
    layout::write(pages, &mut outline);
    Ok((outline.finish(name, Facts { title, ..Facts::default() }), unknown))
}

/// The title that a file's header gives, where it is one and no name of a file.
fn title(bytes: Option<&[u8]>) -> Option<String> {
    let bytes = bytes?;
    let units = |from: fn([u8; 2]) -> u16| {
        let units: Vec<u16> =
            bytes[2..].chunks_exact(2).map(|two| from([two[0], two[1]])).collect();
        String::from_utf16_lossy(&units)
    };
    let text = match bytes {
        [0xFE, 0xFF, ..] => units(u16::from_be_bytes),
        [0xFF, 0xFE, ..] => units(u16::from_le_bytes),
        [0xEF, 0xBB, 0xBF, rest @ ..] => String::from_utf8_lossy(rest).into_owned(),
        // PDF's own letters are Latin-1's but for a few signs.
        _ => match std::str::from_utf8(bytes) {
            Ok(text) => text.to_string(),
            Err(_) => bytes.iter().map(|&byte| char::from(byte)).collect(),
        },
    };
    let text = one_line(&text.replace(char::is_control, " "));
    let lower = text.to_lowercase();
    let is_file = ENDINGS.iter().any(|ending| lower.ends_with(ending));
    let of_a_program =
        ["microsoft word - ", "microsoft powerpoint - ", "microsoft excel - ", "about:"]
            .iter()
            .any(|start| lower.starts_with(start));
    let bare = lower.trim_end_matches(|sign: char| sign.is_numeric() || sign == ' ');
    let none = is_file || of_a_program || ["untitled", "document", "title"].contains(&bare);
    (text.chars().filter(|letter| letter.is_alphabetic()).count() > 2 && !none).then_some(text)
}

/// Runs what may panic in a library; `None` where it does, of which nothing is printed.
fn silently<R>(run: impl FnOnce() -> R) -> Option<R> {
    thread_local! {
        static SILENT: Cell<bool> = const { Cell::new(false) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !SILENT.get() {
                before(info);
            }
        }));
    });
    SILENT.set(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    SILENT.set(false);
    result.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture(name: &str) -> Vec<u8> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/documents/");
        std::fs::read(format!("{folder}{name}")).unwrap()
    }

    fn read(data: Vec<u8>) -> Result<Document, String> {
        super::read("x.pdf".into(), data, &|| false).map(|(document, _)| document)
    }

    #[test]
    fn a_printed_page_is_read_with_its_headings() {
        let read = read(fixture("handbook.pdf")).unwrap();
        assert_eq!(read.title, "Harbour handbook");
        let headings: Vec<String> = read.sections.iter().map(|one| one.heading.join("/")).collect();
        assert_eq!(headings, ["", "Lights", "Lights/Fog signals", "Tides", "Fees"]);
        let all: Vec<&str> = read.sections.iter().map(|one| one.text.as_str()).collect();
        let all = all.join("\n\n");
        for part in [
            "where the bottom is sand and holds an anchor well.\n\nThe white light",
            // Two columns, one after the other.
            "adds half a metre to either.\n\nNobody should trust the old tables",
            "pump --quay fish --until low-water\npump --log pump.txt\n\nThe ferry",
        ] {
            assert!(all.contains(part), "{part}: {all}");
        }
        assert!(!all.contains("Lindholm"), "{all}");
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        for (data, words) in [
            (fixture("locked.pdf"), "password"),
            (b"%PDF".to_vec(), "damaged"),
            (Vec::new(), "damaged"),
            (b"a text".to_vec(), "damaged"),
        ] {
            let error = read(data).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    /// Cut anywhere, and with bytes that are others: never a panic, however little comes out.
    #[test]
    fn a_damaged_file_is_no_end() {
        let whole = fixture("handbook.pdf");
        for step in 1..60 {
            let _ = read(whole[..whole.len() * step / 60].to_vec());
            let mut other = whole.clone();
            for place in (step..other.len()).step_by(997) {
                other[place] ^= (step * 37) as u8;
            }
            let _ = read(other);
        }
    }

    #[test]
    fn titles_are_those_of_people() {
        let of = |bytes: &[u8]| title(Some(bytes));
        assert_eq!(of(b"On  harbours\n").as_deref(), Some("On harbours"));
        assert_eq!(of(b"\xFE\xFF\0H\0a\0f\0e\0n").as_deref(), Some("Hafen"));
        assert_eq!(of(b"\xFF\xFEH\0a\0f\0e\0n\0").as_deref(), Some("Hafen"));
        assert_eq!(of("Über Häfen".as_bytes()).as_deref(), Some("Über Häfen"));
        assert_eq!(of(b"\xDCber H\xE4fen").as_deref(), Some("Über Häfen"));
        for real in ["Version 1.25", "Documents of the Cold War", "Introduction to Node.js"] {
            assert_eq!(of(real.as_bytes()).as_deref(), Some(real));
        }
        for none in [
            &b"report.docx"[..],
            b"Microsoft Word - x",
            b"Untitled 2",
            b"Document1",
            b"",
            b"\xFE\xFF",
            b"--",
        ] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_panic_in_the_library_is_a_reason() {
        assert_eq!(silently(|| 1), Some(1));
        assert_eq!(silently(|| -> usize { panic!("not seen") }), None);
    }
}
