//! Of which model an adapter is, as its files say.

use std::io::Read as _;

use serde_json::Value;

use super::header::LARGEST_HEADER;
use crate::folder::{Folder, read_text};
use crate::index::VectorAdapter;
use crate::{Error, Result};

/// As PEFT spells it; in the configuration, which a reader may change, or else in the weights' metadata.
pub(super) const BASE: &str = "base_model_name_or_path";
/// In the weights' metadata.
pub(super) const FINGERPRINT: &str = "kiln.base_fingerprint";

/// Which model an adapter is of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdapterBase {
    /// Its name, as a path or an id.
    pub name: Option<String>,
    /// The SHA-256 of its manifest `kiln.json`, where it has one.
    pub fingerprint: Option<String>,
}

impl AdapterBase {
    /// That an adapter is of the model with a `fingerprint`, where both have one: many models are of one shape.
    ///
    /// # Errors
    /// Another model, which is named where it has a name.
    pub fn check_model(&self, fingerprint: Option<&str>) -> Result<()> {
        if self.fingerprint.as_deref().zip(fingerprint).is_some_and(|(own, other)| own != other) {
            let named = self.name.as_ref().map_or(String::new(), |name| format!(", {name:?}"));
            return Err(Error::invalid(format!("the adapter is of another model{named}")));
        }
        Ok(())
    }

    /// That an adapter is for the vectors of a model: of `width` dimensions, and with the `fingerprint`, where both have
    /// one.
    ///
    /// # Errors
    /// Those of another model, which is named where it has a name.
    pub fn check(
        &self,
        adapter: &VectorAdapter,
        width: usize,
        fingerprint: Option<&str>,
    ) -> Result<()> {
        self.check_model(fingerprint)?;
        if adapter.width() != width {
            let of =
                self.name.as_ref().map_or(String::new(), |name| format!(", those of {name:?}"));
            return Err(Error::invalid(format!(
                "the adapter is for vectors of {} dimensions{of}, and the model's have {width}",
                adapter.width()
            )));
        }
        Ok(())
    }

    /// What an adapter's two files say.
    pub(super) fn read(folder: &dyn Folder, config: &str, weights: &str) -> Result<Self> {
        let config = json_of(folder, config)?;
        let named = config.and_then(|config| config[BASE].as_str().map(String::from));
        let metadata = safetensors_metadata(folder, weights)?;
        let said = |key: &str| metadata.get(key).and_then(Value::as_str).map(String::from);
        Ok(Self { name: named.or_else(|| said(BASE)), fingerprint: said(FINGERPRINT) })
    }
}

/// What a file of JSON has; none where it is no JSON, which those say who need what is in it.
pub(super) fn json_of(folder: &dyn Folder, path: &str) -> Result<Option<Value>> {
    Ok(read_text(folder, path)?.and_then(|text| serde_json::from_slice(&text).ok()))
}

/// The metadata of a safetensors file, an object of texts; `null` where there is no such file or header.
///
/// # Errors
/// A file that cannot be read.
pub fn safetensors_metadata(folder: &dyn Folder, path: &str) -> Result<Value> {
    let io = |cause| Error::Io { file: folder.file_label(path), cause };
    let Some((mut reader, _)) = folder.open(path).map_err(io)? else {
        return Ok(Value::Null);
    };
    let mut size = [0; 8];
    let mut header = Vec::new();
    if reader.read_exact(&mut size).is_ok() {
        let size = u64::from_le_bytes(size).min(LARGEST_HEADER);
        reader.take(size).read_to_end(&mut header).map_err(io)?;
    }
    let header: Value = serde_json::from_slice(&header).unwrap_or_default();
    Ok(header.get("__metadata__").cloned().unwrap_or_default())
}
