//! `kiln_embed._native`: what the Python package asks of Kiln. Nothing is computed here; names, defaults and
//! documentation are in the Python sources beside this crate, which are its only callers.

mod arrow;
mod commands;
mod embedder;
mod errors;
mod index;
mod job;
mod reranker;
mod texts;

use std::ffi::OsString;
use std::io::Write as _;

use mimalloc::MiMalloc;
use pyo3::prelude::*;

/// As in the command `kiln`, whose training sets mimalloc's options.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Runs the command `kiln` with arguments that begin with its own name, and returns its exit code. Signals become
/// the command's: this is for a process that does nothing else.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| {
        let code = train_native::cli::run_as_process(arguments);
        // Python ends the process, and knows nothing of Rust's buffer. Nobody is left to tell where it is gone.
        let _ = std::io::stdout().flush();
        code
    })
}

/// The module.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    job::remember_this_process();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("KilnError", module.py().get_type::<errors::KilnError>())?;
    module.add_class::<arrow::Vectors>()?;
    module.add_class::<embedder::TextModel>()?;
    module.add_class::<index::Index>()?;
    module.add_class::<reranker::PairModel>()?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(commands::call, module)?)?;
    module.add_function(wrap_pyfunction!(commands::train, module)?)?;
    Ok(())
}
