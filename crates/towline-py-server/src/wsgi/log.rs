//! The server's log: a callable `log(level, text, exception)` from Python, or stderr.
use std::sync::Arc;

use pyo3::prelude::*;

use crate::log_level::{ERROR, WARNING};

#[derive(Clone)]
pub struct Log {
    call: Option<Arc<Py<PyAny>>>,
}

impl Log {
    pub fn new(call: Option<Py<PyAny>>) -> Self {
        Self {
            call: call.map(Arc::new),
        }
    }

    pub fn warning(&self, py: Python<'_>, text: &str) {
        self.log(py, WARNING, text, None);
    }

    pub fn error(&self, py: Python<'_>, text: &str, cause: Option<&PyErr>) {
        self.log(py, ERROR, text, cause);
    }

    /// A logger that raises must not fail the request: its exception goes to `sys.unraisablehook`.
    fn log(&self, py: Python<'_>, level: i32, text: &str, cause: Option<&PyErr>) {
        // `PyErr::value` alone would lack the traceback.
        let exception = cause.map(|error| error.clone_ref(py).into_value(py));
        let Some(call) = &self.call else {
            eprintln!("{text}");
            if let Some(error) = cause {
                error.clone_ref(py).print(py);
            }
            return;
        };
        if let Err(error) = call.call1(py, (level, text, exception)) {
            error.write_unraisable(py, None);
        }
    }
}
