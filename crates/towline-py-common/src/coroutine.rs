//! The coroutine protocol, as far as native awaitables share it.
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::panic::PanicException;
use pyo3::prelude::*;

/// Returns the exception that the arguments of `throw` describe: an instance, or a class with a value (the form
/// before Python 3.12).
pub fn exception<'py>(
    error: Bound<'py, PyAny>,
    value: Option<Bound<'py, PyAny>>,
    traceback: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = error.py();
    let is_class = error.is_instance_of::<pyo3::types::PyType>();
    let value = value.filter(|value| !value.is_none());
    let error = match value {
        Some(value) if value.is_instance_of::<pyo3::exceptions::PyBaseException>() => value,
        Some(value) if is_class => error.call1((value,))?,
        None if is_class => error.call0()?,
        _ => error,
    };
    if !error.is_instance_of::<pyo3::exceptions::PyBaseException>() {
        return Err(PyTypeError::new_err(
            "exceptions must be classes or instances deriving from BaseException",
        ));
    }
    if let Some(traceback) = traceback.filter(|traceback| !traceback.is_none()) {
        error.call_method1(intern!(py, "with_traceback"), (traceback,))?;
    }
    Ok(error)
}

/// Wraps a call from the interpreter: the result becomes a pointer, an error a Python exception, and a panic a
/// `PanicException`.
pub fn guarded(call: impl FnOnce(Python<'_>) -> PyResult<Py<PyAny>>) -> *mut ffi::PyObject {
    Python::attach(|py| {
        let result = catch_unwind(AssertUnwindSafe(|| call(py)));
        let result = result.unwrap_or_else(|_| Err(PanicException::new_err("a bug in Towline")));
        match result {
            Ok(object) => object.into_ptr(),
            Err(error) => {
                error.restore(py);
                std::ptr::null_mut()
            }
        }
    })
}
