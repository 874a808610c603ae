//! The Python class `AsgiServer`.
use pyo3::prelude::*;

use crate::server::options::{Bind, Options};

/// One engine, registered once in the running event loop, that serves one ASGI application.
#[pyclass(unsendable, module = "towline._native")]
pub struct AsgiServer {
    options: Options,
    binds: Vec<Bind>,
}

#[pymethods]
impl AsgiServer {
    #[new]
    #[pyo3(signature = (app, r#loop, config, binds, *, state=None, slot=None, log=None))]
    fn new(
        app: Py<PyAny>,
        r#loop: Py<PyAny>,
        config: Options,
        binds: Vec<Bind>,
        state: Option<Py<PyAny>>,
        slot: Option<Py<PyAny>>,
        log: Option<Py<PyAny>>,
    ) -> Self {
        let _ = (app, r#loop, state, slot, log);
        Self {
            options: config,
            binds,
        }
    }
}
