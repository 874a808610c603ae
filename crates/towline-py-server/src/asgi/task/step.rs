//! Stepping a coroutine without a task, in a context of its own.
use pyo3::exceptions::PyStopIteration;
use pyo3::ffi;
use pyo3::prelude::*;

/// The result of one step of a coroutine.
#[derive(Debug)]
pub enum Step {
    /// The task waits for a future; `None`: it is to be resumed at once.
    Yield(Py<PyAny>),
    Return,
    Raise(PyErr),
}

impl Step {
    pub fn error(&self) -> Option<&PyErr> {
        match self {
            Self::Raise(error) => Some(error),
            Self::Yield(_) | Self::Return => None,
        }
    }
}

/// Resumes a coroutine (or another object with the same protocol) with `None`.
pub fn resume(coroutine: &Bound<'_, PyAny>) -> Step {
    let py = coroutine.py();
    let mut out: *mut ffi::PyObject = std::ptr::null_mut();
    // SAFETY: both objects are alive. PyIter_Send sets `out` to a new reference, or with PYGEN_ERROR to null with
    // an exception set.
    unsafe {
        match ffi::PyIter_Send(coroutine.as_ptr(), ffi::Py_None(), &raw mut out) {
            ffi::PySendResult::PYGEN_RETURN => {
                drop(Bound::from_owned_ptr(py, out));
                Step::Return
            }
            ffi::PySendResult::PYGEN_NEXT => Step::Yield(Bound::from_owned_ptr(py, out).unbind()),
            ffi::PySendResult::PYGEN_ERROR => Step::Raise(PyErr::fetch(py)),
        }
    }
}

/// Resumes a coroutine with an exception.
pub fn throw(coroutine: &Bound<'_, PyAny>, error: &Bound<'_, PyAny>) -> Step {
    match coroutine.call_method1(pyo3::intern!(coroutine.py(), "throw"), (error,)) {
        Ok(value) => Step::Yield(value.unbind()),
        Err(error) if error.is_instance_of::<PyStopIteration>(coroutine.py()) => Step::Return,
        Err(error) => Step::Raise(error),
    }
}

/// A copy of `base`, for one request.
pub fn copy_context(py: Python<'_>, base: &Py<PyAny>) -> PyResult<Py<PyAny>> {
    // SAFETY: `base` is a contextvars.Context; the result is a new reference or null with an exception.
    unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyContext_Copy(base.as_ptr())).map(Bound::unbind)
    }
}

/// A copy of the current context.
pub fn current_context(py: Python<'_>) -> PyResult<Py<PyAny>> {
    // SAFETY: requires only to be attached; the result is a new reference or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyContext_CopyCurrent()).map(Bound::unbind) }
}

/// Runs `f` inside a context. An error means that the context could not be entered or left.
pub fn in_context<R>(py: Python<'_>, context: &Py<PyAny>, f: impl FnOnce() -> R) -> PyResult<R> {
    // SAFETY: `context` is a contextvars.Context; -1 means that an exception is set.
    if unsafe { ffi::PyContext_Enter(context.as_ptr()) } < 0 {
        return Err(PyErr::fetch(py));
    }
    let result = f();
    // SAFETY: as above; it was entered above.
    if unsafe { ffi::PyContext_Exit(context.as_ptr()) } < 0 {
        return Err(PyErr::fetch(py));
    }
    Ok(result)
}
