//! What the asynchronous methods return.
use pyo3::exceptions::PyNotImplementedError;
use pyo3::prelude::*;

/// An awaitable that has begun already.
#[pyclass(frozen, module = "towline._native", generic)]
pub struct Call {}

#[pymethods]
impl Call {
    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self) -> PyResult<Option<Py<PyAny>>> {
        Err(PyNotImplementedError::new_err("Call"))
    }

    fn send(&self, value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let _ = value;
        Err(PyNotImplementedError::new_err("Call"))
    }

    #[pyo3(signature = (error, value=None, traceback=None, /))]
    fn throw(
        &self,
        error: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let _ = (error, value, traceback);
        Err(PyNotImplementedError::new_err("Call"))
    }

    fn close(&self) {}
}
