//! Children that an application forks in a request and that come back from it.
//!
//! A child shares the sockets and the epoll descriptor of its parent. If it went on as a server, it would answer the
//! parent's request a second time and take its next connections. So it ends where it comes back to the server.
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::exceptions::PySystemExit;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

/// Number of forks between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

#[pyfunction]
fn after_fork_in_child() {
    GENERATION.fetch_add(1, Relaxed);
}

/// The process that has created a server.
#[derive(Clone, Copy)]
pub struct Process(u32);

impl Process {
    pub fn current(py: Python<'_>) -> PyResult<Self> {
        static REGISTERED: PyOnceLock<()> = PyOnceLock::new();
        REGISTERED.get_or_try_init(py, || {
            let hook = PyDict::new(py);
            let function = wrap_pyfunction!(after_fork_in_child, py)?;
            hook.set_item("after_in_child", function)?;
            let os = py.import("os")?;
            os.call_method("register_at_fork", (), Some(&hook))
                .map(drop)
        })?;
        Ok(Self(GENERATION.load(Relaxed)))
    }

    #[inline]
    pub fn is_current(self) -> bool {
        GENERATION.load(Relaxed) == self.0
    }

    /// Ends this process if it is a child, in which the application has returned or raised `error`.
    #[inline]
    pub fn end_child(self, py: Python<'_>, error: Option<&PyErr>) {
        if !self.is_current() {
            end(py, error);
        }
    }
}

/// Ends the process with the status of an exception, as Python does at its end.
#[cold]
fn end(py: Python<'_>, error: Option<&PyErr>) {
    let status = match error {
        None => 0,
        Some(error) if error.is_instance_of::<PySystemExit>(py) => {
            let code = error.value(py).getattr("code");
            code.map_or(1, |code| {
                if code.is_none() {
                    0
                } else {
                    code.extract().unwrap_or(1)
                }
            })
        }
        Some(error) => {
            error.display(py);
            1
        }
    };
    let ended = py.import("sys").and_then(|sys| {
        for name in ["stdout", "stderr"] {
            // Closed streams have nothing to flush.
            let _ = sys
                .getattr(name)
                .and_then(|stream| stream.call_method0("flush"));
        }
        py.import("os")?.call_method1("_exit", (status,))
    });
    if ended.is_err() {
        std::process::abort();
    }
}
