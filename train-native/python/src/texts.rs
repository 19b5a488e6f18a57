//! Texts as Python's people have them: strings, or Arrow's arrays of strings, which are read where they are.

use arrow_array::cast::AsArray as _;
use arrow_array::{Array as _, ArrayRef};
use arrow_schema::DataType;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyByteArray, PyBytes, PyMapping, PyString};

use crate::arrow::arrays;

/// Texts, held while they are computed with.
pub(crate) enum Texts {
    Strings(Vec<PyBackedStr>),
    Arrow(Vec<ArrayRef>),
}

impl Texts {
    /// Texts of an iterable of strings, or of an object with Arrow's PyCapsule interface; `name` is the
    /// argument's.
    ///
    /// # Errors
    /// `TypeError` for what is no string, with its place.
    pub(crate) fn of(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        if let Some(arrays) = arrays(object)? {
            return Self::of_arrow(arrays, name);
        }
        let refused = object.is_instance_of::<PyString>()
            || object.is_instance_of::<PyBytes>()
            || object.is_instance_of::<PyByteArray>()
            || object.cast::<PyMapping>().is_ok();
        let items = if refused { None } else { object.try_iter().ok() };
        let Some(items) = items else {
            let kind = object.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "{name} must be str, or several in a list, an array or another iterable, not {kind}"
            )));
        };
        let mut texts = Vec::with_capacity(object.len().unwrap_or(0));
        for item in items {
            texts.push(string(&item?, || format!("{name}[{}]", texts.len()))?);
        }
        Ok(Self::Strings(texts))
    }

    fn of_arrow(arrays: Vec<ArrayRef>, name: &str) -> PyResult<Self> {
        let mut row = 0;
        for array in &arrays {
            if !matches!(
                array.data_type(),
                DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
            ) {
                return Err(PyTypeError::new_err(format!(
                    "{name} is an Arrow array of {}, not of strings; give one column of texts",
                    array.data_type()
                )));
            }
            if let Some(nulls) = array.nulls().filter(|nulls| nulls.null_count() > 0) {
                let first = nulls.iter().position(|valid| !valid).unwrap_or(0);
                return Err(PyTypeError::new_err(format!(
                    "{name}[{}] is null, not str",
                    row + first
                )));
            }
            // Whoever made it may have broken its promise of UTF-8, on which unsafe code relies.
            array.to_data().validate_full().map_err(|error| {
                PyValueError::new_err(format!("{name} is no sound Arrow array: {error}"))
            })?;
            row += array.len();
        }
        Ok(Self::Arrow(arrays))
    }

    /// The texts themselves.
    pub(crate) fn strs(&self) -> Vec<&str> {
        match self {
            Self::Strings(texts) => texts.iter().map(|text| &**text).collect(),
            Self::Arrow(arrays) => arrays.iter().flat_map(|array| strs(array)).collect(),
        }
    }
}

fn strs(array: &ArrayRef) -> Vec<&str> {
    // There are no nulls: see `Texts::of_arrow`.
    match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().iter().flatten().collect(),
        DataType::LargeUtf8 => array.as_string::<i64>().iter().flatten().collect(),
        DataType::Utf8View => array.as_string_view().iter().flatten().collect(),
        _ => Vec::new(),
    }
}

/// One string; `what` names it in the error.
///
/// # Errors
/// `TypeError` for what is none, `ValueError` for one that is no Unicode text.
pub(crate) fn string(
    object: &Bound<'_, PyAny>,
    what: impl Fn() -> String,
) -> PyResult<PyBackedStr> {
    let Ok(text) = object.cast::<PyString>() else {
        let kind = object.get_type().name()?;
        return Err(PyTypeError::new_err(format!("{} is {kind}, not str", what())));
    };
    PyBackedStr::try_from(text.clone()).map_err(|_| {
        PyValueError::new_err(format!(
            "{} has a surrogate without its other half, which is no character; \
             text.encode(errors=\"replace\").decode() replaces it",
            what()
        ))
    })
}
