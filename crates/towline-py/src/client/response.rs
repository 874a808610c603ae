//! The native half of `Response`.
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

#[pyclass(frozen, subclass, module = "towline._native")]
pub struct ResponseCore {}

#[pymethods]
impl ResponseCore {
    #[new]
    #[pyo3(signature = (*args, **kwargs))]
    fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        let _ = (args, kwargs);
        Self {}
    }
}
