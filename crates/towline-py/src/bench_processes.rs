//! The native helpers of the bench, run in the process of the calling interpreter.
use pyo3::prelude::*;

/// Runs `towline-responder` with these arguments until SIGTERM or SIGINT, and returns its exit status. It installs
/// its own signal handlers.
#[pyfunction]
pub fn responder_main(py: Python<'_>, arguments: Vec<std::ffi::OsString>) -> i32 {
    py.detach(|| towline_load::responder_main(arguments))
}

/// Runs `towline_load::netem_main` with these arguments until SIGTERM or SIGINT, and returns its exit status.
#[pyfunction]
pub fn netem_main(py: Python<'_>, arguments: Vec<std::ffi::OsString>) -> i32 {
    py.detach(|| towline_load::netem_main(arguments))
}
