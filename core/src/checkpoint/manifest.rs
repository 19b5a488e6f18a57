//! `kiln.json`: what an exported model is, the sums of its files, and a test that it carries.
//!
//! A model that is exported says which vectors it gave before its weights were rounded. Whoever
//! loads it compares them with what it computes, so that a device that computes wrongly, or a file
//! that was damaged, is an error and never a wrong vector. FORMAT.md describes the file.

use std::collections::BTreeMap;
use std::io::Read as _;

use burn::tensor::read_sync;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::folder::{Files, Folder, read_text, stays_inside};
use crate::embedder::{EmbedOptions, Embedder, Prompt, go_on};
use crate::index::cosine;
use crate::kernels::Kernels;
use crate::{Error, Result};

/// Name of the file.
pub const MANIFEST: &str = "kiln.json";
/// The version of the format that is written; readers refuse later ones.
pub const FORMAT_VERSION: u32 = 1;

/// Largest file that is read; its sums take some kilobytes, its vectors some hundred.
const LARGEST: usize = 1 << 24;
/// Most texts of a test and most bytes of each: whoever loads the model computes their vectors.
const MOST_TEXTS: usize = 64;
const LONGEST_TEXT: usize = 1 << 14;

/// Texts that every exported model is tested with: short, long, other scripts, code.
const SELF_TEST_TEXTS: [&str; 4] = [
    "How do I open a bank account?",
    "The lighthouse keeper counted the ships that passed before dawn, wrote their names into a book, \
     and went to sleep when the fog had lifted.",
    "fn main() { println!(\"{}\", 6 * 7); }",
    "Ein Löffel Honig, 蜂蜜一匙, une cuillère de miel",
];

/// What an exported model says about itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format.
    pub format: u32,
    /// Which program wrote it.
    pub written_by: String,
    /// How most of its numbers are kept (`int4:32`, `f16`), for people and lists.
    pub weights: String,
    /// Every other file of the model.
    pub files: BTreeMap<String, FileSum>,
    /// The test.
    pub self_test: SelfTest,
}

/// Length and sum of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSum {
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 in hexadecimal digits.
    pub sha256: String,
}

/// Texts, and the vectors that the model gave before its weights were rounded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SelfTest {
    /// The texts.
    pub texts: Vec<String>,
    /// A vector each, without a prompt.
    pub vectors: Vec<Vec<f32>>,
    /// The least cosine to them that is right for this model.
    pub least_cosine: f32,
}

impl FileSum {
    /// Of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len() as u64, sha256: hexadecimal(&Sha256::digest(bytes)) }
    }

    /// Compares a file of a folder; `list` is where this length and sum are from, `remedy` what to do.
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
        let Some((mut reader, length)) = folder.open(path).map_err(io)? else {
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
        let mut hash = Sha256::new();
        let mut block = vec![0; 1 << 16];
        loop {
            match reader.read(&mut block).map_err(io)? {
                0 => break,
                read => hash.update(&block[..read]),
            }
        }
        if hexadecimal(&hash.finalize()) != self.sha256 {
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
        let SelfTest { texts, vectors, least_cosine } = &manifest.self_test;
        // A test of nothing would be passed by everything.
        let sound = (1..=MOST_TEXTS).contains(&texts.len())
            && texts.len() == vectors.len()
            && texts.iter().all(|text| text.len() <= LONGEST_TEXT)
            && (-1.0..=1.0).contains(least_cosine);
        if !sound {
            return Err(bad("its self_test makes no sense".into(), again));
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

    /// Puts a manifest with the sums of all other files among them.
    ///
    /// # Errors
    /// Numbers that JSON cannot hold.
    pub fn seal(files: &mut Files, weights: &str, self_test: SelfTest) -> Result<()> {
        files.0.remove(MANIFEST);
        let manifest = Self {
            format: FORMAT_VERSION,
            written_by: concat!("kiln ", env!("CARGO_PKG_VERSION")).into(),
            weights: weights.into(),
            files: files.0.iter().map(|(path, bytes)| (path.clone(), FileSum::of(bytes))).collect(),
            self_test,
        };
        let text = serde_json::to_vec(&manifest).map_err(Error::invalid)?;
        files.0.insert(MANIFEST.into(), text.into());
        Ok(())
    }
}

impl SelfTest {
    /// The test that a model gives itself, on the present device and at its present precision.
    ///
    /// # Errors
    /// As [`Embedder::embed_async_with`].
    pub fn of<B: Kernels>(embedder: &Embedder<B>, least_cosine: f32) -> Result<Self> {
        let texts: Vec<String> = SELF_TEST_TEXTS.iter().map(|text| text.to_string()).collect();
        let vectors = read_sync(Self::vectors(embedder, &texts))?;
        Ok(Self { texts, vectors, least_cosine })
    }

    /// Vectors without a prompt.
    async fn vectors<B: Kernels>(
        embedder: &Embedder<B>,
        texts: &[String],
    ) -> Result<Vec<Vec<f32>>> {
        embedder.embed_async_with(texts, &EmbedOptions::with_prompt(Prompt::None), go_on).await
    }

    /// The least cosine between the kept vectors and those that a model gives.
    ///
    /// # Errors
    /// As [`Embedder::embed_async_with`].
    pub async fn run<B: Kernels>(&self, embedder: &Embedder<B>) -> Result<f32> {
        Ok(self.least(&Self::vectors(embedder, &self.texts).await?))
    }

    fn least(&self, result: &[Vec<f32>]) -> f32 {
        let cosines = self.vectors.iter().zip(result).map(|(kept, result)| match kept.len() {
            length if length == result.len() => cosine(kept, result),
            _ => f32::NAN,
        });
        // NaN stays NaN, and is below every threshold.
        cosines.fold(1.0, |least, cosine| if cosine >= least { least } else { cosine })
    }

    /// Whether a cosine that [`SelfTest::run`] found is right.
    ///
    /// # Errors
    /// It is not; the error names the device.
    pub fn judge(&self, least: f32, device: &str) -> Result<()> {
        if least >= self.least_cosine {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the model fails the test that it carries: on {device} its vectors have a cosine of {least:.4} \
             to the right ones, where {:.4} is the least; use another device (--device cpu), or \
             export the model again",
            self.least_cosine
        )))
    }
}
