//! The server's log, as the supervisor hands it in: `log(level, text, exception)`.
use std::sync::Arc;

use pyo3::prelude::*;

/// Levels of the `logging` module.
const WARNING: i32 = 30;
const ERROR: i32 = 40;

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
        self.say(py, WARNING, text, None);
    }

    pub fn error(&self, py: Python<'_>, text: &str, cause: Option<&PyErr>) {
        self.say(py, ERROR, text, cause);
    }

    /// A logger that raises must not take the request with it: its exception goes to `sys.unraisablehook`.
    fn say(&self, py: Python<'_>, level: i32, text: &str, cause: Option<&PyErr>) {
        // Its value alone would come without the traceback.
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
