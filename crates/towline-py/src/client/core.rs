//! The native half of `AsyncClient`.
use pyo3::exceptions::PyNotImplementedError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

#[pyclass(frozen, subclass, module = "towline._native")]
pub struct AsyncClientCore {}

#[pymethods]
impl AsyncClientCore {
    #[new]
    #[pyo3(signature = (*args, **kwargs))]
    fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        let _ = (args, kwargs);
        Self {}
    }

    #[pyo3(signature = (method, url, **kwargs))]
    fn request(
        &self,
        method: &Bound<'_, PyAny>,
        url: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        let _ = (method, url, kwargs);
        Err(PyNotImplementedError::new_err("request"))
    }
}
