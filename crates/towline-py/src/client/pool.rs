//! Connections of one client, per event loop.
use pyo3::prelude::*;

#[pyclass(frozen, subclass, module = "towline._native")]
pub struct AsyncPool {}

#[pymethods]
impl AsyncPool {
    #[new]
    fn new(options: &Bound<'_, PyAny>) -> Self {
        let _ = options;
        Self {}
    }
}
