//! Connection and waiter counts of a pool, as Python sees them.
use pyo3::prelude::*;
use pyo3::types::PyDict;
use towline_io::client::PoolStatus;

/// The dictionary that `pool_status()` of either client returns.
pub fn status_dict(py: Python<'_>, status: PoolStatus) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("active", status.active)?;
    dict.set_item("idle", status.idle)?;
    dict.set_item("connecting", status.dialling)?;
    dict.set_item("waiting", status.waiting)?;
    Ok(dict)
}
