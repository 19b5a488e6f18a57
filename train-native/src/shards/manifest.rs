//! What an output's files were made of.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::OWN;
use super::place::Place;

/// What vectors depend on beside their texts. An output has those of one kind alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The model's name.
    pub model: String,
    /// A number for its files and for what of its settings is overridden.
    pub fingerprint: String,
    /// The precision of its weights.
    pub weights: String,
    /// What stands before each text.
    pub prompt: String,
    /// How many of the vectors' first numbers; `None`: all.
    pub dimensions: Option<usize>,
    /// The columns of the texts.
    pub fields: Vec<String>,
    /// The format of the files.
    pub format: String,
}

impl Settings {
    /// Whether vectors of both can be compared: all but where the texts came from, and in which files.
    pub fn is_same_space(&self, other: &Self) -> bool {
        let of = |own: &Self| {
            (own.fingerprint.clone(), own.weights.clone(), own.prompt.clone(), own.dimensions)
        };
        of(self) == of(other)
    }

    /// As a file of vectors keeps them.
    ///
    /// # Errors
    /// What JSON cannot say, which is nothing of them.
    pub fn line(&self) -> Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    /// A number for all of them.
    pub(super) fn sum(&self) -> String {
        let text = format!("{self:?}");
        hex(&Sha256::digest(text.as_bytes()))[..16].to_string()
    }

    /// Writes them into an output that has none.
    ///
    /// # Errors
    /// An output with others.
    pub(super) fn agree(&self, output: &Place, label: &str) -> Result<()> {
        let name = format!("{OWN}/settings.json");
        let own = serde_json::to_vec_pretty(self)?;
        // Written only where there is none, and read again: another process may have been first.
        if output.read(&name)?.is_none() {
            output.write_new(&name, &own)?;
        }
        let kept = output.read(&name)?.unwrap_or_default();
        let kept: Self = serde_json::from_slice(&kept)
            .with_context(|| format!("{}: is not what kiln embed writes", output.label(&name)))?;
        if kept == *self {
            return Ok(());
        }
        let (kept_text, own_text) = (serde_json::to_value(&kept)?, serde_json::to_value(self)?);
        let keys = own_text.as_object().into_iter().flatten();
        let differing = keys.filter(|(key, value)| kept_text[key.as_str()] != **value);
        let differing: Vec<String> = differing
            .map(|(key, value)| format!("{key} {} instead of {value}", kept_text[key.as_str()]))
            .collect();
        bail!(
            "{label}: has vectors of another kind ({}); name another output",
            differing.join(", ")
        )
    }
}

/// What an output's file was made of: the line that says that it is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Done {
    pub input: String,
    pub input_bytes: u64,
    /// The store's tag of the input, or when it was changed.
    pub input_version: String,
    pub output: String,
    pub output_bytes: u64,
    /// Of the output: what a file's damage is known by ([`super::EmbedJob::verify`]).
    pub sha256: String,
    pub rows: usize,
    pub bad_rows: usize,
    pub tokens: usize,
    pub dimensions: usize,
    /// Of [`Settings::sum`].
    pub settings: String,
}

/// Size and SHA-256 of a file.
pub(super) fn sum_of(path: &Path) -> Result<(u64, String)> {
    let context = || path.display().to_string();
    let mut file = File::open(path).with_context(context)?;
    let (mut hash, mut bytes, mut part) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        match file.read(&mut part).with_context(context)? {
            0 => return Ok((bytes, hex(&hash.finalize()))),
            count => {
                hash.update(&part[..count]);
                bytes += count as u64;
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
