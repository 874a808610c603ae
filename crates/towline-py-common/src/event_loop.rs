//! The event loop in which a call is made: asyncio, uvloop or trio.
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

/// A loop with asyncio's interface (asyncio, uvloop), or the token of a trio run.
#[derive(Debug)]
pub enum EventLoop {
    Asyncio(Py<PyAny>),
    Trio(Py<PyAny>),
}

static TRIO: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Returns `trio.lowlevel` if the program has imported trio.
fn trio(py: Python<'_>) -> PyResult<Option<&Bound<'_, PyAny>>> {
    static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    if let Some(trio) = TRIO.get(py) {
        return Ok(Some(trio.bind(py)));
    }
    let modules = MODULES.import(py, "sys", "modules")?;
    if !modules.contains(intern!(py, "trio"))? {
        return Ok(None);
    }
    let lowlevel = py.import("trio.lowlevel")?.into_any().unbind();
    Ok(Some(TRIO.get_or_init(py, || lowlevel).bind(py)))
}

impl EventLoop {
    /// The loop that runs on this thread. Raises `RuntimeError` if there is none.
    pub fn running(py: Python<'_>) -> PyResult<Self> {
        Self::current(py)?.ok_or_else(|| {
            PyRuntimeError::new_err(
                "no running event loop: an AsyncClient must be called inside asyncio, uvloop or trio",
            )
        })
    }

    /// The loop that runs on this thread, or `None`.
    pub fn current(py: Python<'_>) -> PyResult<Option<Self>> {
        static RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        // Trio first: a guest run of trio is itself run by an asyncio loop.
        if let Some(trio) = trio(py)?
            && trio
                .call_method0(intern!(py, "in_trio_task"))?
                .is_truthy()?
        {
            let token = trio.call_method0(intern!(py, "current_trio_token"))?;
            return Ok(Some(Self::Trio(token.unbind())));
        }
        let running = RUNNING_LOOP.import(py, "asyncio", "_get_running_loop")?;
        let loop_ = running.call0()?;
        Ok((!loop_.is_none()).then(|| Self::Asyncio(loop_.unbind())))
    }

    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Asyncio(one), Self::Asyncio(other)) | (Self::Trio(one), Self::Trio(other)) => {
                one.is(other)
            }
            _ => false,
        }
    }

    pub fn is_trio(&self) -> bool {
        matches!(self, Self::Trio(_))
    }

    #[must_use]
    pub fn clone_ref(&self, py: Python<'_>) -> Self {
        match self {
            Self::Asyncio(object) => Self::Asyncio(object.clone_ref(py)),
            Self::Trio(object) => Self::Trio(object.clone_ref(py)),
        }
    }

    /// Whether it is closed for good.
    pub fn is_closed(&self, py: Python<'_>) -> bool {
        match self {
            Self::Asyncio(loop_) => loop_
                .call_method0(py, intern!(py, "is_closed"))
                .and_then(|closed| closed.is_truthy(py))
                .unwrap_or(true),
            // The system task that watches a driver closes it at the end of the run.
            Self::Trio(_) => false,
        }
    }

    /// Whether tasks can be stepped from a callback: no task is running, and no task can run the loop inside itself
    /// before the turn that steps it has ended (`_nest_patched` is set by `nest_asyncio`).
    pub fn allows_stepping(&self, py: Python<'_>) -> PyResult<bool> {
        static CURRENT_TASK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let Self::Asyncio(loop_) = self else {
            return Ok(false);
        };
        let loop_ = loop_.bind(py);
        let name = intern!(py, "_nest_patched");
        // SAFETY: both objects are alive; errors are suppressed. Unlike `hasattr` it makes no exception, in each turn.
        if unsafe { ffi::PyObject_HasAttr(loop_.as_ptr(), name.as_ptr()) } != 0 {
            return Ok(false);
        }
        let current = CURRENT_TASK.import(py, "asyncio.tasks", "current_task")?;
        Ok(current.call1((loop_,))?.is_none())
    }

    /// A future that is done, with the result None; `None` for trio.
    pub fn done_future(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let Self::Asyncio(loop_) = self else {
            return Ok(None);
        };
        let future = loop_.call_method0(py, intern!(py, "create_future"))?;
        future.call_method1(py, intern!(py, "set_result"), (py.None(),))?;
        Ok(Some(future))
    }

    /// Schedules `function(argument)`, in `context` if given. Does nothing under trio.
    pub fn call_soon(
        &self,
        py: Python<'_>,
        function: Py<PyAny>,
        argument: Option<Py<PyAny>>,
        context: Option<&Py<PyAny>>,
    ) -> PyResult<()> {
        let Self::Asyncio(loop_) = self else {
            return Ok(());
        };
        let arguments = match argument {
            Some(argument) => PyTuple::new(py, [function, argument])?,
            None => PyTuple::new(py, [function])?,
        };
        let keywords = match context {
            Some(context) => {
                let keywords = PyDict::new(py);
                keywords.set_item(intern!(py, "context"), context)?;
                Some(keywords)
            }
            None => None,
        };
        let call_soon = loop_.bind(py).getattr(intern!(py, "call_soon"))?;
        call_soon.call(arguments, keywords.as_ref())?;
        Ok(())
    }

    /// Schedules `function()` from any thread.
    pub fn call_from_thread(&self, py: Python<'_>, function: &Bound<'_, PyAny>) -> PyResult<()> {
        match self {
            Self::Asyncio(loop_) => {
                loop_.call_method1(py, intern!(py, "call_soon_threadsafe"), (function,))?;
            }
            Self::Trio(token) => {
                token.call_method1(py, intern!(py, "run_sync_soon"), (function,))?;
            }
        }
        Ok(())
    }

    /// Has `driver.turn()` called whenever `fd` is readable.
    pub fn watch(&self, driver: &Bound<'_, PyAny>, fd: i32) -> PyResult<()> {
        let py = driver.py();
        match self {
            Self::Asyncio(loop_) => {
                let turn = driver.getattr(intern!(py, "turn"))?;
                loop_.call_method1(py, intern!(py, "add_reader"), (fd, turn))?;
            }
            Self::Trio(_) => {
                let watch = py
                    .import("towline._native_aio")?
                    .getattr(intern!(py, "watch"))?;
                let Some(trio) = trio(py)? else {
                    return Ok(());
                };
                trio.call_method1(intern!(py, "spawn_system_task"), (watch, driver, fd))?;
            }
        }
        Ok(())
    }

    /// Undoes `watch`. To be called on the loop's own thread.
    pub fn unwatch(&self, py: Python<'_>, fd: i32) -> PyResult<()> {
        if let Self::Asyncio(loop_) = self
            && !self.is_closed(py)
        {
            loop_.call_method1(py, intern!(py, "remove_reader"), (fd,))?;
        }
        Ok(())
    }

    pub fn object(&self) -> &Py<PyAny> {
        match self {
            Self::Asyncio(object) | Self::Trio(object) => object,
        }
    }
}
