//! Finds documents in a folder, and reads them one after another.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use kiln_data::data::text_hash;
use kiln_data::text::{TextFile, most_bytes, regular};
#[cfg(feature = "pdf")]
use kiln_terminal::interrupt;
use kiln_terminal::terminal::{counted, field};

#[cfg(feature = "pdf")]
use super::pdf;
use super::rows::Rows;
use super::{Document, html, markdown, plain};

/// What is read, for people.
const KINDS: &str = if cfg!(feature = "pdf") {
    "documents are .txt, .md, .html, .pdf, .jsonl, .csv, .tsv and .parquet (all but .pdf and .parquet also as .gz or .zst)"
} else {
    "documents are .txt, .md, .html, .jsonl, .csv, .tsv and .parquet (the first six also as .gz or .zst)"
};

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Plain,
    Markdown,
    Html,
    #[cfg(feature = "pdf")]
    Pdf,
    Rows,
}

impl Format {
    /// By the file's name; else the ending that is not known.
    fn of(name: &str) -> Result<Self, String> {
        let name = name.rsplit('/').next().unwrap_or_default().to_lowercase();
        let bare = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(&name);
        let ending = bare.rsplit_once('.').map(|(_, ending)| ending);
        match ending {
            Some("txt" | "text") => Ok(Self::Plain),
            Some("md" | "markdown") => Ok(Self::Markdown),
            Some("html" | "htm" | "xhtml") => Ok(Self::Html),
            #[cfg(feature = "pdf")]
            Some("pdf") if bare == name => Ok(Self::Pdf),
            Some("jsonl" | "ndjson" | "csv" | "tsv" | "parquet") => Ok(Self::Rows),
            Some(other) => Err(format!(".{other}{}", &name[bare.len()..])),
            None => Err("without an ending".into()),
        }
    }
}

/// What lay in the folder and was not read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Unread {
    /// Files of other kinds, by their ending.
    pub endings: BTreeMap<String, usize>,
    /// Links that lead out of the folder or to a folder, and what is no file.
    pub links: usize,
    /// Files and rows without a text.
    pub empty: usize,
    /// PDF that cannot be read, with what is the matter.
    pub unreadable: Vec<(String, String)>,
    /// PDF that were read but for a share of their letters, of which nobody says which they are.
    pub holed: Vec<(String, f64)>,
}

impl Unread {
    /// A line for people, where there is something to say.
    pub fn note(&self) -> Option<String> {
        /// Endings that are named.
        const NAMED: usize = 8;
        /// PDF that are named.
        const FILES: usize = 3;
        let mut parts = Vec::new();
        let mut endings: Vec<_> = self.endings.iter().collect();
        endings.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let count: usize = self.endings.values().sum();
        if count > 0 {
            let named =
                endings.iter().take(NAMED).map(|(ending, count)| format!("{count} {ending}"));
            let mut named = named.collect::<Vec<_>>().join(", ");
            if endings.len() > NAMED {
                named.push_str(", ...");
            }
            let files = counted(count, "file of another kind", "files of other kinds");
            parts.push(format!("{files} ({named})"));
        }
        let links = "links that lead out of the folder or to a folder, or no files";
        for (count, what) in [(self.links, links), (self.empty, "files and rows without a text")] {
            if count > 0 {
                parts.push(format!("{count} {what}"));
            }
        }
        let named = |all: Vec<String>| {
            let more = if all.len() > FILES { "; ..." } else { "" };
            format!("{} PDF ({}{more})", all.len(), all[..all.len().min(FILES)].join("; "))
        };
        let unreadable = self.unreadable.iter().map(|(name, reason)| format!("{name} {reason}"));
        if !self.unreadable.is_empty() {
            parts.push(named(unreadable.collect()));
        }
        let holed = self.holed.iter().map(|(name, share)| {
            format!("{name} does not say which {:.1} % of its letters are", 100.0 * share)
        });
        let holed = match self.holed.is_empty() {
            true => String::new(),
            false => format!("read with holes: {}", named(holed.collect())),
        };
        if parts.is_empty() {
            return Some(holed).filter(|holed| !holed.is_empty());
        }
        // Of a build that reads none.
        let pdf = match self.endings.contains_key(".pdf") {
            true => "; builds with --features pdf read .pdf, and pdftotext makes text of it",
            false => "",
        };
        let holed = if holed.is_empty() { holed } else { format!("; {holed}") };
        Some(format!("not read: {}{pdf}{holed}", parts.join(", ")))
    }
}

/// Documents of a folder or a file, in the order of their names.
pub struct Documents {
    /// Files that are left, last first, with their names below the folder.
    files: Vec<(PathBuf, String, Format)>,
    /// Rows of the file that is being read.
    rows: Option<Rows>,
    /// How often each name was given.
    names: HashMap<u128, usize>,
    unread: Unread,
    /// Whether it is one file, which has to be readable.
    #[cfg_attr(not(feature = "pdf"), expect(dead_code, reason = "only PDF may be left out"))]
    alone: bool,
}

impl std::fmt::Debug for Documents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Documents").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

impl Documents {
    /// Finds the documents of a folder, hidden ones left out, or takes one file.
    ///
    /// # Errors
    /// Nothing there, a folder that cannot be read or has no document, or a file of another kind.
    pub fn open(path: &Path) -> Result<Self> {
        let label = path.display();
        let mut unread = Unread::default();
        if !path.exists() {
            bail!("{label}: no such file or folder; name the one that holds the documents");
        }
        if !path.is_dir() {
            regular(path)?;
            let name = field(&path.file_name().unwrap_or_default().to_string_lossy()).into_owned();
            let format = match Format::of(&name) {
                Ok(format) => format,
                Err(ending) if ending.starts_with(".pdf") => {
                    bail!(
                        "{label}: this build does not read PDF; build it with --features pdf, or make text of it \
                         (pdftotext FILE.pdf FILE.txt)"
                    )
                }
                Err(_) => bail!("{label}: is none of the kinds that are read; {KINDS}"),
            };
            let files = vec![(path.to_path_buf(), name, format)];
            return Ok(Self { files, rows: None, names: HashMap::new(), unread, alone: true });
        }
        let mut files = Vec::new();
        find(path, &mut files, &mut unread)?;
        if files.is_empty() {
            let note = unread.note().map(|note| format!(" ({note})")).unwrap_or_default();
            bail!("{label}: has no document{note}; {KINDS}");
        }
        files.sort_by(|a, b| b.1.cmp(&a.1));
        Ok(Self { files, rows: None, names: HashMap::new(), unread, alone: false })
    }

    /// What was not read so far.
    pub fn unread(&self) -> &Unread {
        &self.unread
    }

    fn step(&mut self) -> Result<Option<Document>> {
        loop {
            let mut document = match &mut self.rows {
                Some(rows) => match rows.next().transpose()? {
                    Some(document) => document,
                    None => {
                        self.rows = None;
                        continue;
                    }
                },
                None => {
                    let Some((path, name, format)) = self.files.pop() else { return Ok(None) };
                    let bytes = regular(&path)?.len();
                    if bytes == 0 {
                        self.unread.empty += 1;
                        continue;
                    }
                    match format {
                        Format::Rows => {
                            self.rows = Some(Rows::open(&path, &name)?);
                            continue;
                        }
                        Format::Plain => plain::read(name, &whole(&path)?),
                        Format::Markdown => markdown::read(name, &whole(&path)?),
                        Format::Html => html::read(name, &whole(&path)?),
                        #[cfg(feature = "pdf")]
                        Format::Pdf => match self.pdf(&path, name, bytes)? {
                            Some(document) => document,
                            None => continue,
                        },
                    }
                }
            };
            if document.sections.is_empty() {
                self.unread.empty += 1;
                continue;
            }
            document.name = self.unused(document.name);
            return Ok(Some(document));
        }
    }

    /// A document of PDF; none where it cannot be read and is not the only one, which is noted.
    #[cfg(feature = "pdf")]
    fn pdf(&mut self, path: &Path, name: String, bytes: u64) -> Result<Option<Document>> {
        let read = match bytes > most_bytes() as u64 {
            true => Err(format!("has more than {} bytes; raise --max-text-bytes", most_bytes())),
            false => {
                let data = std::fs::read(path).with_context(|| path.display().to_string())?;
                pdf::read(name.clone(), data, &interrupt::asked)
            }
        };
        if interrupt::asked() {
            return Err(kiln_embed::Error::Cancelled.into());
        }
        match read {
            Ok((document, unknown)) => {
                if unknown > 0.0 {
                    self.unread.holed.push((name, unknown));
                }
                Ok(Some(document))
            }
            Err(reason) if self.alone => bail!("{}: {reason}", path.display()),
            Err(reason) => {
                self.unread.unreadable.push((name, reason));
                Ok(None)
            }
        }
    }

    /// A name that no document before has, as passages are known by it: two rows may have one id, and two paths
    /// that differ in what cannot be written may be written alike.
    fn unused(&mut self, name: String) -> String {
        let mut unused = name.clone();
        let mut number =
            *self.names.entry(text_hash(&name)).and_modify(|count| *count += 1).or_insert(1);
        while number > 1 {
            unused = format!("{name}:{number}");
            if self.names.insert(text_hash(&unused), 1).is_none() {
                break;
            }
            number += 1;
        }
        self.names.insert(text_hash(&name), number);
        unused
    }
}

impl Iterator for Documents {
    type Item = Result<Document>;

    /// The next document. After an error nothing follows.
    fn next(&mut self) -> Option<Self::Item> {
        let next = self.step();
        if next.is_err() {
            self.files.clear();
            self.rows = None;
        }
        next.transpose()
    }
}

/// Finds the files below a folder.
fn find(
    root: &Path,
    files: &mut Vec<(PathBuf, String, Format)>,
    unread: &mut Unread,
) -> Result<()> {
    let real = std::fs::canonicalize(root).with_context(|| root.display().to_string())?;
    let mut open = vec![(root.to_path_buf(), String::new())];
    while let Some((folder, above)) = open.pop() {
        let label = || folder.display().to_string();
        for entry in std::fs::read_dir(&folder).with_context(label)? {
            let entry = entry.with_context(label)?;
            let file_name = entry.file_name();
            let word = file_name.to_string_lossy();
            if word.starts_with('.') {
                continue;
            }
            let name = format!("{above}{}", field(&word));
            let path = entry.path();
            let kind = entry.file_type().with_context(label)?;
            if kind.is_dir() {
                open.push((path, name + "/"));
                continue;
            }
            let inside =
                || std::fs::canonicalize(&path).is_ok_and(|place| place.starts_with(&real));
            if !path.is_file() || kind.is_symlink() && !inside() {
                unread.links += 1;
                continue;
            }
            match Format::of(&name) {
                Ok(format) => files.push((path, name, format)),
                Err(ending) => *unread.endings.entry(ending).or_default() += 1,
            }
        }
    }
    Ok(())
}

/// The text of a file, unpacked; line ends are `\n`.
fn whole(path: &Path) -> Result<String> {
    let label = path.display();
    let most = most_bytes();
    let mut text = String::new();
    for line in TextFile::of_lines(path)?.numbered()? {
        let (number, line) = line?;
        if text.len() + line.len() >= most {
            bail!("{label}: holds more than {most} bytes; split it, or raise --max-text-bytes");
        }
        if line.contains('\0') {
            bail!("{label}:{number}: holds a zero byte; is it a text in UTF-8?");
        }
        text.push_str(&line);
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        folder
    }

    fn read(path: &Path) -> Result<Vec<Document>> {
        Documents::open(path)?.collect()
    }

    #[test]
    fn every_kind_is_read_in_the_order_of_names() {
        let folder = folder(&[
            ("b/z.txt", b"\xEF\xBB\xBFa text\r\nof two lines\r\n"),
            ("b/page.HTM", b"<title>T</title><p>a page"),
            ("a.md", b"# A\n\nmarked"),
            ("rows.jsonl", b"{\"_id\":\"7\\n/../x\",\"title\":\"R\",\"text\":\"one\",\"license\":\"MIT\"}\n{\"_id\":\"7\\n/../x\",\"body\":\"two\"}\n{\"content\":null}\n"),
            ("t.csv", b"text,url\nthree,https://a.example\n"),
            ("e.txt", b""),
            ("w.txt", b" \n\n"),
            (".hidden.txt", b"no"),
            (".git/no.txt", b"no"),
            ("x.pdf", b"%PDF"),
            ("y.PDF", b"%PDF"),
            ("x.tar.gz", b"x"),
            ("LICENCE", b"x"),
        ]);
        let mut documents = Documents::open(folder.path()).unwrap();
        let read: Vec<Document> = documents.by_ref().map(Result::unwrap).collect();
        let names: Vec<(&str, &str, &str)> = read
            .iter()
            .map(|one| (one.name.as_str(), one.title.as_str(), one.sections[0].text.as_str()))
            .collect();
        assert_eq!(
            names,
            [
                ("a.md", "A", "marked"),
                ("b/page.HTM", "T", "a page"),
                ("b/z.txt", "", "a text\nof two lines"),
                ("rows.jsonl:7\\n/../x", "R", "one"),
                ("rows.jsonl:7\\n/../x:2", "", "two"),
                ("t.csv:2", "", "three"),
            ]
        );
        assert_eq!(read[3].licence.as_deref(), Some("MIT"));
        assert_eq!(read[5].origin.as_deref(), Some("https://a.example"));
        let note = documents.unread().note().unwrap();
        let of_pdf = match cfg!(feature = "pdf") {
            true => ["2 files of other kinds", "2 PDF (x.pdf is damaged, or no PDF; y.PDF is"],
            false => ["4 files of other kinds", "2 .pdf"],
        };
        for part in of_pdf.into_iter().chain(["1 .tar.gz", "3 files and rows"]) {
            assert!(note.contains(part), "{note}");
        }
        assert_eq!(note.contains("pdftotext"), cfg!(not(feature = "pdf")), "{note}");
    }

    #[test]
    fn packed_files_are_unpacked() {
        let folder = folder(&[]);
        let packed = zstd_of("# T\n\npacked");
        std::fs::write(folder.path().join("a.md.zst"), packed).unwrap();
        let read = read(folder.path()).unwrap();
        assert_eq!((read[0].name.as_str(), read[0].title.as_str()), ("a.md.zst", "T"));
    }

    /// A frame of zstd with one raw block.
    fn zstd_of(text: &str) -> Vec<u8> {
        let length = text.len() as u32;
        let block = (length << 3 | 1).to_le_bytes();
        let mut bytes = vec![0x28, 0xB5, 0x2F, 0xFD, 0x20, length as u8];
        bytes.extend(&block[..3]);
        bytes.extend(text.as_bytes());
        bytes
    }

    #[test]
    fn errors_say_what_where_and_what_to_do() {
        let folder = folder(&[
            ("bad/a.txt", b"fine\nbad \xff\n"),
            ("zero/a.txt", b"a\0b"),
            ("field/a.jsonl", b"{\"words\":\"x\"}\n"),
            ("type/a.jsonl", b"{\"text\":[1]}\n"),
            ("none/a.png", b"%PDF"),
            ("alone/a.pdf", b"%PDF"),
            ("json/a.jsonl", b"{\"text\":\n"),
        ]);
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        let of_pdf = if cfg!(feature = "pdf") { "is damaged, or no PDF" } else { "pdftotext" };
        for (name, words) in [
            ("bad", &["a.txt:2", "UTF-8"][..]),
            ("zero", &["a.txt:1", "zero byte"]),
            ("field", &["a.jsonl:1", "text, body or content", "words"]),
            ("type", &["a.jsonl:1", "no text"]),
            ("none", &["no document", "1 .png"]),
            ("none/a.png", &["a.png", "none of the kinds"]),
            ("alone/a.pdf", &["a.pdf", of_pdf]),
            ("json", &["a.jsonl:1"]),
            ("empty", &["no document", ".parquet"]),
            ("gone", &["no such file or folder"]),
        ] {
            let error = format!("{:#}", read(&folder.path().join(name)).unwrap_err());
            for word in words {
                assert!(error.contains(word) && error.contains(name), "{name}: {error}");
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_lead_nowhere_else_and_names_are_harmless() {
        let outside = folder(&[("secret.txt", b"secret")]);
        let folder = folder(&[("in.txt", b"inside"), ("a\nb\u{1b}[2J.txt", b"odd")]);
        let link = |to: &Path, name: &str| {
            std::os::unix::fs::symlink(to, folder.path().join(name)).unwrap();
        };
        link(&outside.path().join("secret.txt"), "out.txt");
        link(outside.path(), "out");
        link(folder.path(), "round");
        link(Path::new("in.txt"), "same.txt");
        link(Path::new("gone.txt"), "gone.txt");
        let mut documents = Documents::open(folder.path()).unwrap();
        let names: Vec<String> = documents.by_ref().map(|one| one.unwrap().name).collect();
        assert_eq!(names, ["a\\nb\\u{1b}[2J.txt", "in.txt", "same.txt"]);
        assert_eq!(documents.unread().links, 4);
    }

    #[test]
    fn no_two_documents_have_one_name() {
        let ids = ["x", "x:2", "x", "x", "7"];
        let rows = ids.map(|id| format!("{{\"_id\":\"{id}\",\"text\":\"of {id}\"}}\n")).concat();
        let folder = folder(&[("a.jsonl", rows.as_bytes())]);
        let names: Vec<String> =
            read(folder.path()).unwrap().into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["a.jsonl:x", "a.jsonl:x:2", "a.jsonl:x:3", "a.jsonl:x:4", "a.jsonl:7"]);
    }
}
