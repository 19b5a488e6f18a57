//! Arrow's PyCapsule interface, both ways. (`pyo3-arrow` has it too, for another major version of Arrow than the
//! one that reads our Parquet files; two of them would be two of everything.)
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::sync::Arc;

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi};
use arrow_array::ffi_stream::{ArrayStreamReader, FFI_ArrowArrayStream};
use arrow_array::{
    Array as _, ArrayRef, FixedSizeListArray, Float32Array, StructArray, make_array,
};
use arrow_schema::{ArrowError, DataType, Field};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple, PyType};

const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";
const STREAM: &CStr = c"arrow_array_stream";

fn refused(error: ArrowError) -> PyErr {
    PyValueError::new_err(format!("the Arrow array cannot be read: {error}"))
}

/// The arrays of an object that has Arrow's interface; `None` where it has not. A table of one column is that
/// column.
pub(crate) fn arrays(object: &Bound<'_, PyAny>) -> PyResult<Option<Vec<ArrayRef>>> {
    // Some classes have the methods as well as their instances.
    if object.is_instance_of::<PyType>() {
        return Ok(None);
    }
    if let Some(method) = object.getattr_opt("__arrow_c_array__")? {
        let capsules = method.call0()?.cast_into::<PyTuple>()?;
        let (schema, array) = (capsules.get_item(0)?, capsules.get_item(1)?);
        return Ok(Some(vec![column(read_array(schema.cast()?, array.cast()?)?)?]));
    }
    let Some(method) = object.getattr_opt("__arrow_c_stream__")? else {
        return Ok(None);
    };
    let capsule = method.call0()?.cast_into::<PyCapsule>()?;
    read_stream(&capsule)?.into_iter().map(column).collect::<PyResult<_>>().map(Some)
}

fn read_array(schema: &Bound<'_, PyCapsule>, array: &Bound<'_, PyCapsule>) -> PyResult<ArrayRef> {
    let schema = schema.pointer_checked(Some(SCHEMA))?.cast::<FFI_ArrowSchema>();
    let array = array.pointer_checked(Some(ARRAY))?.cast::<FFI_ArrowArray>();
    // SAFETY: a capsule of this name holds such a structure, by Arrow's PyCapsule protocol. The schema is only
    // borrowed, while the capsule lives. The array is moved out, which marks it as released, so that the capsule's
    // destructor does not free it again.
    let (schema, array) = unsafe { (schema.as_ref(), FFI_ArrowArray::from_raw(array.as_ptr())) };
    // SAFETY: both describe one array, which their producer keeps until it is released.
    let data = unsafe { from_ffi(array, schema) }.map_err(refused)?;
    Ok(make_array(data))
}

fn read_stream(capsule: &Bound<'_, PyCapsule>) -> PyResult<Vec<ArrayRef>> {
    let stream = capsule.pointer_checked(Some(STREAM))?.cast::<FFI_ArrowArrayStream>();
    // SAFETY: as in `read_array`: the stream is moved out of the capsule.
    let stream = unsafe { FFI_ArrowArrayStream::from_raw(stream.as_ptr()) };
    let arrays = ArrayStreamReader::try_new(stream).map_err(refused)?;
    arrays.map(|array| array.map_err(refused)).collect()
}

/// The one column of a table, or the array itself.
fn column(array: ArrayRef) -> PyResult<ArrayRef> {
    let Some(table) = array.as_any().downcast_ref::<StructArray>() else {
        return Ok(array);
    };
    match table.columns() {
        [column] => Ok(column.clone()),
        columns => Err(PyTypeError::new_err(format!(
            "an Arrow table of {} columns; give the one that is meant",
            columns.len()
        ))),
    }
}

/// Vectors as an Arrow array: fixed-size lists of float32, which `pyarrow.array`, polars, DuckDB 2 and LanceDB take
/// without a copy.
#[pyclass(frozen, module = "kiln_embed")]
pub(crate) struct Vectors {
    array: FixedSizeListArray,
}

impl Vectors {
    /// Of rows of one width, one after another.
    pub(crate) fn new(rows: usize, width: usize, values: Vec<f32>) -> PyResult<Self> {
        let item = Arc::new(Field::new("item", DataType::Float32, false));
        let size = i32::try_from(width)
            .map_err(|_| PyValueError::new_err("vectors are too wide for Arrow"))?;
        let values: ArrayRef = Arc::new(Float32Array::from(values));
        let array = FixedSizeListArray::try_new_with_length(item, size, values, None, rows);
        Ok(Self { array: array.map_err(refused)? })
    }

    fn schema(&self) -> PyResult<FFI_ArrowSchema> {
        FFI_ArrowSchema::try_from(Field::new("vector", self.array.data_type().clone(), false))
            .map_err(refused)
    }
}

#[pymethods]
impl Vectors {
    fn __len__(&self) -> usize {
        self.array.len()
    }

    fn __repr__(&self) -> String {
        format!("Vectors({} x {} float32)", self.array.len(), self.array.value_length())
    }

    /// Width of each vector.
    #[getter]
    fn dimensions(&self) -> i32 {
        self.array.value_length()
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        PyCapsule::new_with_value(py, self.schema()?, SCHEMA)
    }

    /// The request is only that, by the protocol: vectors are float32 whatever it says.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        drop(requested_schema);
        let array = FFI_ArrowArray::new(&self.array.to_data());
        let schema = PyCapsule::new_with_value(py, self.schema()?, SCHEMA)?;
        Ok((schema, PyCapsule::new_with_value(py, array, ARRAY)?))
    }
}
