//! The context variable `towline.logging.REQUEST_ID`, which the formatter reads.
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Sets the variable in the current context.
pub fn set(py: Python<'_>, id: &str) -> PyResult<()> {
    static VARIABLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let variable = VARIABLE.import(py, "towline.logging", "REQUEST_ID")?;
    variable.call_method1(intern!(py, "set"), (id,)).map(drop)
}
