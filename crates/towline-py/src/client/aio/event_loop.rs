//! The event loop that is running: which one it is, and what is asked of it.
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

/// A loop of asyncio's kind (asyncio itself, uvloop), or a run of trio, known by its token.
#[derive(Debug)]
pub enum EventLoop {
    Asyncio(Py<PyAny>),
    Trio(Py<PyAny>),
}

static TRIO: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// `trio.lowlevel`, if the program has imported trio.
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
    /// Where the driver of this function runs.
    pub fn running(py: Python<'_>) -> PyResult<Self> {
        static RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        // First, since a guest run of trio has asyncio's loop running around it.
        if let Some(trio) = trio(py)?
            && trio
                .call_method0(intern!(py, "in_trio_task"))?
                .is_truthy()?
        {
            let token = trio.call_method0(intern!(py, "current_trio_token"))?;
            return Ok(Self::Trio(token.unbind()));
        }
        let running = RUNNING_LOOP.import(py, "asyncio", "_get_running_loop")?;
        let loop_ = running.call0()?;
        if loop_.is_none() {
            return Err(PyRuntimeError::new_err(
                "no running event loop: an AsyncClient is called inside asyncio, uvloop or trio",
            ));
        }
        Ok(Self::Asyncio(loop_.unbind()))
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

    /// It will not run again.
    pub fn is_closed(&self, py: Python<'_>) -> bool {
        match self {
            Self::Asyncio(loop_) => loop_
                .call_method0(py, intern!(py, "is_closed"))
                .and_then(|closed| closed.is_truthy(py))
                .unwrap_or(true),
            // The system task of a loop_driver ends it with its run.
            Self::Trio(_) => false,
        }
    }

    /// Tasks can be stepped here and now: none is running, and none can run the loop inside itself,
    /// before the turn that steps it has ended (the mark is that of `nest_asyncio`).
    pub fn allows_stepping(&self, py: Python<'_>) -> PyResult<bool> {
        static CURRENT_TASK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let Self::Asyncio(loop_) = self else {
            return Ok(false);
        };
        let loop_ = loop_.bind(py);
        if loop_.getattr_opt(intern!(py, "_nest_patched"))?.is_some() {
            return Ok(false);
        }
        let current = CURRENT_TASK.import(py, "asyncio.tasks", "current_task")?;
        Ok(current.call1((loop_,))?.is_none())
    }

    /// `function(*arguments)` soon, in `context` where there is one. asyncio only.
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

    /// From whatever thread.
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

    /// Calls `loop_driver.turn()` whenever its descriptor is readable.
    pub fn watch(&self, loop_driver: &Bound<'_, PyAny>, fd: i32) -> PyResult<()> {
        let py = loop_driver.py();
        match self {
            Self::Asyncio(loop_) => {
                let turn = loop_driver.getattr(intern!(py, "turn"))?;
                loop_.call_method1(py, intern!(py, "add_reader"), (fd, turn))?;
            }
            Self::Trio(_) => {
                let watch = py
                    .import("towline._native_aio")?
                    .getattr(intern!(py, "watch"))?;
                let Some(trio) = trio(py)? else {
                    return Ok(());
                };
                trio.call_method1(intern!(py, "spawn_system_task"), (watch, loop_driver, fd))?;
            }
        }
        Ok(())
    }

    /// Undoes `watch`, on the loop's own thread.
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
