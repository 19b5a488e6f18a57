//! The one error type of the crate. Every message says what was wrong, where, and what to do.

use std::fmt::Write as _;

/// Result of every fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong between a model folder and a vector.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error("{file}: {cause}")]
    Io {
        /// File, as the user would name it.
        file: String,
        /// The operating system's error.
        cause: std::io::Error,
    },
    /// A folder lacks a file that the model needs.
    #[error("{folder}: no {file} there; {remedy}")]
    MissingFile {
        /// Folder that was searched.
        folder: String,
        /// Name of the missing file.
        file: String,
        /// What to do about it.
        remedy: String,
    },
    /// A file is there but does not hold what it should.
    #[error("{file}: {cause}; {remedy}")]
    BadFile {
        /// File, as the user would name it.
        file: String,
        /// What is wrong with it.
        cause: String,
        /// What to do about it.
        remedy: String,
    },
    /// A `model_type` that is not supported.
    #[error("config.json: unknown model_type {found:?}; supported are {known}")]
    UnknownFamily {
        /// The value found.
        found: String,
        /// The families that are known.
        known: String,
    },
    /// Tensors of a checkpoint that do not match the model.
    #[error("{0}")]
    Tensors(TensorReport),
    /// A request that this model or function cannot serve.
    #[error("{0}")]
    Invalid(String),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    /// A [`Error::BadFile`] from anything printable.
    pub fn bad_file(file: impl Into<String>, cause: impl std::fmt::Display, remedy: &str) -> Self {
        Error::BadFile { file: file.into(), cause: cause.to_string(), remedy: remedy.into() }
    }

    /// The same [`Error::BadFile`] of another file; other errors stay.
    pub(crate) fn in_file(self, file: String) -> Self {
        match self {
            Error::BadFile { cause, remedy, .. } => Error::BadFile { file, cause, remedy },
            other => other,
        }
    }

    /// A [`Error::Invalid`] from anything printable.
    pub fn invalid(message: impl std::fmt::Display) -> Self {
        Error::Invalid(message.to_string())
    }
}

/// Everything in a checkpoint that does not fit the model, listed in one place.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct TensorReport {
    /// Checkpoint file or folder.
    pub file: String,
    /// Names the model needs and the checkpoint lacks.
    pub missing: Vec<String>,
    /// Names the checkpoint has and the model has no place for.
    pub extra: Vec<String>,
    /// `(name, expected shape, found shape)`.
    pub misshaped: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Names of tensors that hold NaN or infinity.
    pub non_finite: Vec<String>,
}

impl TensorReport {
    /// True where the checkpoint fits the model.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty()
            && self.extra.is_empty()
            && self.misshaped.is_empty()
            && self.non_finite.is_empty()
    }
}

impl std::fmt::Display for TensorReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        /// Further names are only counted, so that the line stays readable.
        const NAMED: usize = 16;
        let mut line = String::new();
        let mut list = |title: &str, names: &[String]| {
            if !names.is_empty() {
                let named = &names[..names.len().min(NAMED)];
                let _ = write!(line, "; {} {title}: {}", names.len(), named.join(", "));
                if names.len() > NAMED {
                    let _ = write!(line, " and {} more", names.len() - NAMED);
                }
            }
        };
        list("missing", &self.missing);
        list("with no place in the model", &self.extra);
        list("with NaN or infinite values", &self.non_finite);
        let misshaped: Vec<String> = self
            .misshaped
            .iter()
            .map(|(name, expected, actual)| {
                format!("{name} expected {expected:?} found {actual:?}")
            })
            .collect();
        list("with another shape", &misshaped);
        write!(
            f,
            "{}: the tensors do not fit the model{line}; check that config.json belongs to these weights",
            self.file
        )
    }
}
