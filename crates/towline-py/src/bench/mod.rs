//! The Rust half of `towline load` and `towline bench`: programs that run in the process of the calling interpreter, and
//! `PoolBench`. No server or client uses it.
pub mod pool;

use std::ffi::OsString;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Runs `towline-load` with these arguments and returns its exit status. It writes to the standard streams of the
/// process and handles SIGINT itself.
#[pyfunction]
pub fn load_main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| towline_load::cli::status(arguments.into_iter()))
}

/// The options of the load generator: name, placeholder of the value (empty: a switch) and help.
#[pyfunction]
pub fn load_options() -> Vec<(&'static str, &'static str, String)> {
    let options = towline_load::cli::options();
    options
        .map(|option| (option.name, option.value, option.description()))
        .collect()
}

/// Runs `towline-responder` with these arguments until SIGTERM or SIGINT, and returns its exit status. It installs
/// its own signal handlers.
#[pyfunction]
pub fn responder_main(py: Python<'_>, arguments: Vec<OsString>) -> i32 {
    py.detach(|| towline_load::responder_main(arguments))
}

/// Runs the network emulator with these arguments until SIGTERM or SIGINT, and returns its exit status.
#[pyfunction]
pub fn netem_main(py: Python<'_>, arguments: Vec<OsString>) -> i32 {
    py.detach(|| towline_load::netem_main(arguments))
}

/// Creates a certificate for these names and addresses. Returns authority, certificate and key, in PEM.
#[pyfunction]
pub fn test_certificate(names: Vec<String>) -> PyResult<(String, String, String)> {
    let made = towline_load::TestCertificate::new(&names)
        .map_err(|error| PyValueError::new_err(format!("no certificate for {names:?}: {error}")))?;
    Ok((made.authority, made.certificate, made.key))
}
