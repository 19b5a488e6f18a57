//! Exact search over vectors in memory.

use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

use anyhow::{Context as _, Result};
use kiln_embed::Error;
use kiln_embed::index::{self, Hit, IndexPrecision};
use numpy::{
    PyArray1, PyArray2, PyArrayMethods as _, PyReadonlyArray2, PyUntypedArrayMethods as _,
};
use pyo3::exceptions::{PyFileExistsError, PyIndexError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rayon::prelude::*;
use train_native::vectors::write_atomically;

use crate::errors::{bad_value, to_python};
use crate::job::{Stop, run_until};

/// Vectors in f32, int8 or bits. Readers may be many threads; one that writes waits for them.
#[pyclass(frozen, module = "kiln_embed._native")]
pub(crate) struct Index {
    /// `None` once it is closed.
    index: RwLock<Option<index::Index>>,
}

fn closed() -> Error {
    Error::invalid("the index is closed")
}

fn numbers<'a>(vectors: &'a PyReadonlyArray2<'_, f32>) -> PyResult<&'a [f32]> {
    if vectors.shape()[0] > 0 && vectors.shape()[1] == 0 {
        return Err(bad_value("vectors have no dimensions"));
    }
    vectors.as_slice().map_err(|_| bad_value("vectors must lie one after another in memory"))
}

impl Index {
    fn of(index: index::Index) -> Self {
        Self { index: RwLock::new(Some(index)) }
    }

    fn read<T>(&self, work: impl FnOnce(&index::Index) -> kiln_embed::Result<T>) -> Result<T> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        Ok(work(index.as_ref().ok_or_else(closed)?)?)
    }

    fn write<T>(&self, work: impl FnOnce(&mut index::Index) -> kiln_embed::Result<T>) -> Result<T> {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        Ok(work(index.as_mut().ok_or_else(closed)?)?)
    }

    /// As [`Index::read`], without the interpreter's lock: a thread that writes may be waiting for that.
    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&index::Index) -> kiln_embed::Result<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| self.read(work)).map_err(|error| to_python(&error))
    }
}

#[pymethods]
impl Index {
    #[new]
    fn new(dimensions: usize, precision: &str) -> PyResult<Self> {
        let precision = IndexPrecision::from_name(precision).map_err(bad_value)?;
        index::Index::new(dimensions, precision).map(Self::of).map_err(bad_value)
    }

    /// Reads a file, or bytes.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let read = || -> Result<index::Index> {
            let label = || path.display().to_string();
            let bytes = std::fs::read(&path).with_context(label)?;
            index::Index::from_bytes(&bytes).with_context(label)
        };
        py.detach(read).map(Self::of).map_err(|error| to_python(&error))
    }

    #[staticmethod]
    fn from_bytes(bytes: &[u8]) -> PyResult<Self> {
        index::Index::from_bytes(bytes).map(Self::of).map_err(|error| to_python(&error.into()))
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.ask(py, |index| Ok(index.to_bytes()))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Writes a file as a whole or not at all.
    fn save(&self, py: Python<'_>, path: PathBuf, overwrite: bool) -> PyResult<()> {
        if !overwrite && path.exists() {
            return Err(PyFileExistsError::new_err(format!(
                "{}: is there already; overwrite=True replaces it",
                path.display()
            )));
        }
        let bytes = self.ask(py, |index| Ok(index.to_bytes()))?;
        py.detach(|| write_atomically(&path, &bytes)).map_err(|error| to_python(&error))
    }

    /// Adds rows, all of them or none: the number of the first.
    fn add(&self, py: Python<'_>, vectors: PyReadonlyArray2<'_, f32>) -> PyResult<usize> {
        let width = vectors.shape()[1];
        let numbers = numbers(&vectors)?;
        let add = |index: &mut index::Index| {
            let rows = || numbers.chunks_exact(width.max(1)).enumerate();
            for (i, row) in rows() {
                index.check(row, format_args!("vectors[{i}]"))?;
            }
            let first = index.len();
            rows().try_for_each(|(_, row)| index.push(row))?;
            Ok(first)
        };
        py.detach(|| self.write(add)).map_err(|error| to_python(&error))
    }

    /// Removes a row; the last row takes its place.
    fn swap_remove(&self, py: Python<'_>, row: usize) -> PyResult<()> {
        let removed = py.detach(|| self.write(|index| index.swap_remove(row)));
        removed.map_err(|error| out_of_range(&error))
    }

    /// The vector of a row, as it is stored.
    fn vector<'py>(&self, py: Python<'py>, row: usize) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let vector = py.detach(|| self.read(|index| index.vector(row)));
        Ok(PyArray1::from_vec(py, vector.map_err(|error| out_of_range(&error))?))
    }

    /// Rows and scores `[queries, k]`, the best first.
    #[allow(clippy::type_complexity)]
    fn search<'py>(
        &self,
        py: Python<'py>,
        queries: PyReadonlyArray2<'py, f32>,
        k: usize,
        rescore: usize,
    ) -> PyResult<(Bound<'py, PyArray2<i64>>, Bound<'py, PyArray2<f32>>)> {
        let [count, width] = [queries.shape()[0], queries.shape()[1]];
        let numbers = numbers(&queries)?;
        let stop = Stop::default();
        let (k, hits) = run_until(py, &stop, || {
            self.read(|index| {
                for (i, query) in numbers.chunks_exact(width.max(1)).enumerate() {
                    index.check(query, format_args!("queries[{i}]"))?;
                }
                let search = |query| match stop.asked() {
                    true => Err(Error::Cancelled),
                    false => index.search(query, k, rescore),
                };
                let hits: Vec<Vec<Hit>> =
                    numbers.par_chunks_exact(width.max(1)).map(search).collect::<Result<_, _>>()?;
                Ok((k.min(index.len()), hits))
            })
        })?;
        let hits = hits.into_iter().flatten();
        let (rows, scores): (Vec<i64>, Vec<f32>) =
            hits.map(|hit| (hit.row as i64, hit.score)).unzip();
        if rows.len() != count * k {
            return Err(bad_value("a search found fewer rows than there are; please report it"));
        }
        Ok((
            PyArray1::from_vec(py, rows).reshape([count, k])?,
            PyArray1::from_vec(py, scores).reshape([count, k])?,
        ))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.ask(py, |index| Ok(index.len()))
    }

    /// Width of the vectors.
    #[getter]
    fn dimensions(&self, py: Python<'_>) -> PyResult<usize> {
        self.ask(py, |index| Ok(index.dimensions()))
    }

    /// How they are stored.
    #[getter]
    fn precision(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.ask(py, |index| Ok(index.precision().name()))
    }

    /// Memory of the rows.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.ask(py, |index| Ok(index.bytes()))
    }

    /// Whether [`Index::close`] was called.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        py.detach(|| self.index.read().unwrap_or_else(PoisonError::into_inner).is_none())
    }

    /// Gives the memory back.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.index.write().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// A row that is not there is an `IndexError`, as in every sequence; a closed index is none.
fn out_of_range(error: &anyhow::Error) -> PyErr {
    match error.downcast_ref::<Error>() {
        Some(Error::Invalid(what)) if what.starts_with("no row") => {
            PyIndexError::new_err(what.clone())
        }
        _ => to_python(error),
    }
}
