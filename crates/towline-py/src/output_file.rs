//! Files that the program writes at paths that are known in advance.
use std::os::fd::{IntoRawFd, RawFd};
use std::path::PathBuf;

use pyo3::prelude::*;
use towline_io::output_file::{Output, open};

/// Opens a file to replace its content (`towline_io::output_file`). The caller owns the descriptor.
#[pyfunction]
#[pyo3(signature = (path, mode=0o666, /))]
pub fn open_output(py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<RawFd> {
    let file = py.detach(|| open(&path, Output::Replace, mode))?;
    Ok(file.into_raw_fd())
}
