//! `kiln.json`: what an exported model is, the sums of its files, and a test that it carries.
//!
//! The sums make a damaged file an error and the test makes a wrong device one, so that neither
//! ever becomes a wrong vector. FORMAT.md describes the file.

use std::collections::BTreeMap;
use std::io::Read;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::score_test::ScoreTest;
use crate::embedder::SelfTest;
use crate::folder::{Files, Folder, read_text, stays_inside};
use crate::{Error, Result};

/// Name of the file.
pub const MANIFEST: &str = "kiln.json";
/// The version of the format that is written; readers refuse later ones.
pub const FORMAT_VERSION: u32 = 1;

/// Largest file that is read; sums take a few kilobytes, vectors a few hundred.
const LARGEST: usize = 1 << 24;
/// Most texts of a test and most bytes of each, because every load computes their vectors.
const MOST_TEXTS: usize = 64;
const LONGEST_TEXT: usize = 1 << 14;

/// What an exported model says about itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format.
    pub format: u32,
    /// Which program wrote it.
    pub written_by: String,
    /// Format of most of its numbers (`int4:32`, `f16`), for display.
    pub weights: String,
    /// Every other file of the model.
    pub files: BTreeMap<String, FileSum>,
    /// The test of an embedder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub self_test: Option<SelfTest>,
    /// The test of a cross-encoder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score_test: Option<ScoreTest>,
}

/// Length and sum of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSum {
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 in hexadecimal digits.
    pub sha256: String,
}

impl FileSum {
    /// Length and sum of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len() as u64, sha256: hexadecimal(&Sha256::digest(bytes)) }
    }

    /// Length and sum of all that a reader gives.
    pub(super) fn read(mut reader: impl Read) -> std::io::Result<Self> {
        let (mut bytes, mut hash, mut block) = (0, Sha256::new(), vec![0; 1 << 16]);
        loop {
            match reader.read(&mut block)? {
                0 => return Ok(Self { bytes, sha256: hexadecimal(&hash.finalize()) }),
                read => {
                    bytes += read as u64;
                    hash.update(&block[..read]);
                }
            }
        }
    }

    /// Compares a file of a folder; `list` names where this length and sum come from, `remedy` what
    /// to do.
    ///
    /// # Errors
    /// The file is missing, cut short or changed.
    pub(super) fn check(
        &self,
        folder: &dyn Folder,
        path: &str,
        list: &str,
        remedy: &str,
    ) -> Result<()> {
        let label = folder.file_label(path);
        let io = |cause| Error::Io { file: label.clone(), cause };
        let Some((reader, length)) = folder.open(path).map_err(io)? else {
            return Err(Error::MissingFile {
                folder: folder.label(),
                file: path.into(),
                remedy: remedy.into(),
            });
        };
        if length != self.bytes {
            let cause = format!("has {length} bytes, and {list} says {}", self.bytes);
            return Err(Error::bad_file(label, cause, remedy));
        }
        if Self::read(reader).map_err(io)? != *self {
            let cause = format!("its SHA-256 is not the one of {list}");
            return Err(Error::bad_file(label, cause, remedy));
        }
        Ok(())
    }
}

/// Hexadecimal digits.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Manifest {
    /// The manifest of a folder; `None` where it has none (it was not exported by Kiln).
    ///
    /// # Errors
    /// One that cannot be read, or of a later version.
    pub fn read(folder: &dyn Folder) -> Result<Option<Self>> {
        let Some(text) = read_text(folder, MANIFEST)? else {
            return Ok(None);
        };
        let bad = |cause: String, remedy: &str| {
            Error::bad_file(folder.file_label(MANIFEST), cause, remedy)
        };
        let again = "download or export the model again";
        if text.len() > LARGEST {
            let cause = format!("has {} bytes, more than the {LARGEST} that are read", text.len());
            return Err(bad(cause, again));
        }
        let value: serde_json::Value = serde_json::from_slice(&text)
            .map_err(|e| bad(format!("not valid JSON: {e}"), again))?;
        // The version first: a later one may have other fields.
        match value.get("format").and_then(serde_json::Value::as_u64) {
            Some(format) if format == u64::from(FORMAT_VERSION) => {}
            Some(format) => {
                return Err(bad(
                    format!("has format {format}, and this Kiln reads {FORMAT_VERSION}"),
                    "use the Kiln that wrote the model, or a later one",
                ));
            }
            None => return Err(bad("names no format".into(), again)),
        }
        let manifest: Self =
            serde_json::from_value(value).map_err(|e| bad(e.to_string(), again))?;
        // A test of nothing would be passed by everything.
        let counts =
            |texts: usize, results: usize| (1..=MOST_TEXTS).contains(&texts) && texts == results;
        let short = |text: &String| text.len() <= LONGEST_TEXT;
        let (test, sound) = match (&manifest.self_test, &manifest.score_test) {
            (Some(SelfTest { texts, vectors, least_cosine }), None) => {
                let sound = counts(texts.len(), vectors.len()) && texts.iter().all(short);
                ("self_test", sound && (-1.0..=1.0).contains(least_cosine))
            }
            (None, Some(ScoreTest { pairs, scores, most_apart })) => {
                let short = |(query, text): &(String, String)| short(query) && short(text);
                let sound = counts(pairs.len(), scores.len()) && pairs.iter().all(short);
                ("score_test", sound && *most_apart >= 0.0)
            }
            (None, None) => return Err(bad("names no self_test".into(), again)),
            (Some(_), Some(_)) => {
                return Err(bad("has a self_test and a score_test".into(), again));
            }
        };
        if !sound {
            return Err(bad(format!("its {test} makes no sense"), again));
        }
        if let Some(path) = manifest.files.keys().find(|path| !stays_inside(path)) {
            return Err(bad(format!("names the file {path:?}, outside the model"), again));
        }
        Ok(Some(manifest))
    }

    /// Compares every file of a folder with its sum.
    ///
    /// # Errors
    /// A file that is missing, cut short or changed.
    pub fn check_files(&self, folder: &dyn Folder) -> Result<()> {
        let again = "download or export the model again";
        self.files.iter().try_for_each(|(path, sum)| sum.check(folder, path, MANIFEST, again))
    }

    /// Adds a manifest with the sums of all files.
    ///
    /// # Errors
    /// Numbers that JSON cannot hold.
    pub fn seal(files: &mut Files, weights: &str, self_test: SelfTest) -> Result<()> {
        Self::seal_with(files, weights, Some(self_test), None)
    }

    /// As [`Manifest::seal`], of a cross-encoder.
    ///
    /// # Errors
    /// As [`Manifest::seal`].
    pub fn seal_reranker(files: &mut Files, weights: &str, score_test: ScoreTest) -> Result<()> {
        Self::seal_with(files, weights, None, Some(score_test))
    }

    fn seal_with(
        files: &mut Files,
        weights: &str,
        self_test: Option<SelfTest>,
        score_test: Option<ScoreTest>,
    ) -> Result<()> {
        files.0.remove(MANIFEST);
        let manifest = Self {
            format: FORMAT_VERSION,
            written_by: concat!("kiln ", env!("CARGO_PKG_VERSION")).into(),
            weights: weights.into(),
            files: files.0.iter().map(|(path, bytes)| (path.clone(), FileSum::of(bytes))).collect(),
            self_test,
            score_test,
        };
        let text = serde_json::to_vec(&manifest).map_err(Error::invalid)?;
        files.0.insert(MANIFEST.into(), text.into());
        Ok(())
    }
}
