//! Kiln's errors as Python's people expect them.

use std::io;
use std::path::Path;

use kiln_embed::Error;
use pyo3::exceptions::{
    PyFileExistsError, PyFileNotFoundError, PyKeyboardInterrupt, PyOSError, PyPermissionError,
    PyRuntimeError, PyValueError,
};
use pyo3::prelude::*;
use train_native::cli::BadArguments;
use train_native::hub;
use train_native::model::without_adapter;
use train_native::terminal::error_line;

pyo3::create_exception!(
    kiln_embed,
    KilnError,
    PyRuntimeError,
    "What Kiln cannot do, in one line: what was wrong, where, and what to do."
);

/// The exception for what the library or a command says.
pub(crate) fn to_python(error: &anyhow::Error) -> PyErr {
    let line = error_line(error);
    if error.is::<BadArguments>() {
        return PyValueError::new_err(line);
    }
    for cause in error.chain() {
        if let Some(cause) = cause.downcast_ref::<Error>() {
            match cause {
                Error::Cancelled => return PyKeyboardInterrupt::new_err(()),
                Error::Invalid(_) => return PyValueError::new_err(line),
                Error::MissingFile { .. } => return PyFileNotFoundError::new_err(line),
                Error::Io { cause, .. } => return of_system(cause, line),
                _ => {}
            }
        }
        if let Some(cause) = cause.downcast_ref::<io::Error>() {
            return of_system(cause, line);
        }
    }
    KilnError::new_err(line)
}

fn of_system(error: &io::Error, line: String) -> PyErr {
    match error.kind() {
        io::ErrorKind::NotFound => PyFileNotFoundError::new_err(line),
        io::ErrorKind::AlreadyExists => PyFileExistsError::new_err(line),
        io::ErrorKind::PermissionDenied => PyPermissionError::new_err(line),
        _ => PyOSError::new_err(line),
    }
}

/// Refuses a model that is neither here nor something that the Hub could have.
pub(crate) fn check_model(name: &str) -> PyResult<()> {
    let model = without_adapter(name);
    if Path::new(model).exists() || hub::is_id(model) {
        return Ok(());
    }
    Err(PyFileNotFoundError::new_err(format!(
        "{name:?}: no such folder or file, and not a Hub id (owner/name); name a model's folder, its .kiln file, a Hub \
         id, or kiln-mini"
    )))
}

/// A `ValueError` from what a setting's own parser says.
pub(crate) fn bad_value(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}
