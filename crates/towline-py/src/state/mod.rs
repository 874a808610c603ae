//! The embedded store of `towline.state`.
pub mod log_reader;
pub mod store;

use pyo3::exceptions::PyBlockingIOError;
use pyo3::prelude::*;
use towline_state::Error;

use towline_py_common::errors::{StateClosed, StateError, StateFull, StateUnavailable, UsageError};

/// The exception of an error. `Busy` is one only for a caller that must not wait, and for one that has waited long.
fn to_python(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Full { .. } => StateFull::new_err(text),
        Error::Busy => PyBlockingIOError::new_err(text),
        Error::Argument(_) => UsageError::new_err(text),
        Error::Refused(_) | Error::Damaged | Error::Io(..) => StateUnavailable::new_err(text),
        Error::NotInteger | Error::Lmdb(..) => StateError::new_err(text),
    }
}

fn closed() -> PyErr {
    StateClosed::new_err("the state is closed")
}
