//! Waiting without the GIL, interrupted by Python's signal handlers.
use std::cell::Cell;
use std::time::Duration;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use towline_io::client::fork;
use towline_io::client::{BlockingError, WaitPolicy};

use super::super::errors;

/// A signal during a system call interrupts it; a signal just before it is noticed after this time. Only the main
/// thread checks: only it runs handlers.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Runs `operation` without the GIL. A signal handler that raises (`KeyboardInterrupt`) ends it.
pub fn detached<T: Send>(
    py: Python<'_>,
    operation: impl FnOnce(&mut WaitPolicy<'_>) -> Result<T, BlockingError> + Send,
) -> PyResult<T> {
    let is_main = is_main_thread(py)?;
    let (result, raised) = py.detach(|| {
        let mut raised = None;
        let mut interrupted = || {
            if !is_main {
                return false;
            }
            raised = Python::attach(|py| py.check_signals().err());
            raised.is_some()
        };
        let mut wait = WaitPolicy::new(&mut interrupted, is_main.then_some(SIGNAL_CHECK_INTERVAL));
        (operation(&mut wait), raised)
    });
    match (result, raised) {
        (Ok(value), _) => Ok(value),
        (Err(_), Some(raised)) => Err(raised),
        (Err(ended), None) => Err(to_error(py, &ended)),
    }
}

pub fn to_error(py: Python<'_>, ended: &BlockingError) -> PyErr {
    match ended {
        BlockingError::Failed(error) => errors::call_error(py, error),
        BlockingError::Interrupted => pyo3::exceptions::PyKeyboardInterrupt::new_err(()),
    }
}

/// Whether signal handlers run on this thread. Cached per thread and process.
fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    static MAIN_THREAD: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static GET_IDENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    thread_local! {
        static CACHED: Cell<Option<(u64, bool)>> = const { Cell::new(None) };
    }
    let generation = fork::generation();
    if let Some((of, is_main)) = CACHED.get()
        && of == generation
    {
        return Ok(is_main);
    }
    let main = MAIN_THREAD
        .import(py, "threading", "main_thread")?
        .call0()?;
    let own = GET_IDENT.import(py, "threading", "get_ident")?.call0()?;
    let is_main = main.getattr(intern!(py, "ident"))?.eq(own)?;
    CACHED.set(Some((generation, is_main)));
    Ok(is_main)
}
