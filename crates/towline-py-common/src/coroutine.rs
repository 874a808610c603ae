//! The coroutine protocol, as far as native awaitables share it.
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
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
