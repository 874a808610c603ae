//! The native helpers of the bench, responder and relay, in the process of the interpreter that asks for them.
use pyo3::prelude::*;

/// Serves with the arguments of `towline-responder` until it is told to end; the exit status. No other
/// Python code runs meanwhile that would need its signals: it takes SIGTERM and SIGINT for itself.
#[pyfunction]
pub fn responder_main(py: Python<'_>, arguments: Vec<std::ffi::OsString>) -> i32 {
    py.detach(|| towline_load::responder_main(arguments))
}

/// Relays with the arguments of `towline_load::relay_main` until it is told to end; the exit status.
#[pyfunction]
pub fn relay_main(py: Python<'_>, arguments: Vec<std::ffi::OsString>) -> i32 {
    py.detach(|| towline_load::relay_main(arguments))
}
