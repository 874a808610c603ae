//! The load generator inside the interpreter: its command line, and certificates for what it measures.

use std::ffi::OsString;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// All of `towline-load`, from its arguments to the exit status. It writes to the process's own streams
/// and has Ctrl-C to itself.
#[pyfunction]
pub fn load_main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| towline_load::cli::status(arguments.into_iter()))
}

/// Authority, certificate and key in PEM, made anew, for these names and addresses.
#[pyfunction]
pub fn test_certificate(names: Vec<String>) -> PyResult<(String, String, String)> {
    let made = towline_load::TestCertificate::new(&names)
        .map_err(|error| PyValueError::new_err(format!("no certificate for {names:?}: {error}")))?;
    Ok((made.authority, made.certificate, made.key))
}
