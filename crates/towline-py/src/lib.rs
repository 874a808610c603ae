//! `towline._native`: the binding between the engine and Python.
use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
