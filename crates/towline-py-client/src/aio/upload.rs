//! A request whose body is written while it is in flight. `_native_aio.upload` drives it.
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use towline_io::client::{CallError, CallErrorKind, CallId};

use super::super::errors;
use super::super::request::shared_bytes;
use super::awaitable::{Call, helper};
use super::calls::WaitFor;
use super::loop_driver::LoopDriver;
use super::pending_op::{OpOutcome, PendingOp};
use super::reply::ReplyOp;
use towline_py_common::task_future::TaskFuture;

/// Failures of the connection are not raised here: the server may have responded before, and the reader of the response
/// gets them.
#[pyclass(frozen, module = "towline._native")]
pub struct Upload {
    loop_driver: Py<LoopDriver>,
    id: CallId,
    /// Nothing more can be sent.
    failed: AtomicBool,
}

impl Upload {
    /// Returns an awaitable of the response to call `id`. A background task sends `pieces` as its body.
    pub fn start(
        py: Python<'_>,
        loop_driver: Py<LoopDriver>,
        id: CallId,
        pieces: Py<PyAny>,
    ) -> PyResult<Py<Call>> {
        let upload = Self {
            loop_driver,
            id,
            failed: AtomicBool::new(false),
        };
        let upload = Py::new(py, upload)?;
        // Not awaited when the call fails before its first step.
        Call::deferred(py, None, move |py| {
            let helper = helper(py, intern!(py, "upload"))?;
            Ok(helper.call1((&upload, &pieces))?.unbind())
        })
    }

    /// A body that is too short or too long is a mistake of the program and raised at once.
    fn on_failure(&self, py: Python<'_>, error: &CallError) -> PyResult<()> {
        self.failed.store(true, Relaxed);
        match error.kind {
            CallErrorKind::LocalProtocol => Err(errors::call_error(py, error)),
            _ => Ok(()),
        }
    }
}

#[pymethods]
impl Upload {
    /// Queues a piece. False: there is no room, or no connection yet, or the rest is not wanted: nothing was taken.
    fn write(&self, data: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = data.py();
        let bytes = match data.cast::<PyBytes>() {
            Ok(bytes) => shared_bytes(bytes),
            Err(_) => bytes::Bytes::from(data.extract::<Vec<u8>>()?),
        };
        if bytes.is_empty() {
            return Ok(true);
        }
        let loop_driver = self.loop_driver.bind(py);
        let written = {
            let mut calls = loop_driver.get().calls(py)?;
            if !calls.driver.wants_body(self.id) || calls.driver.room(self.id) == 0 {
                return Ok(false);
            }
            calls.driver.write(self.id, bytes)
        };
        match written {
            Ok(_) => LoopDriver::flush_soon(loop_driver).map(|()| true),
            Err(error) => self.on_failure(py, &error).map(|()| false),
        }
    }

    /// Waits for room. False: the server does not want the rest, or the call is over.
    fn room(&self, py: Python<'_>) -> PyResult<Py<Call>> {
        if self.failed.load(Relaxed) {
            return Call::ready(py, py_bool(py, false)?);
        }
        Call::native(py, self.loop_driver.clone_ref(py), RoomOp(self.id))
    }

    /// The body is complete.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let loop_driver = self.loop_driver.bind(py);
        let finished = loop_driver.get().calls(py)?.driver.finish(self.id, &[]);
        LoopDriver::flush_soon(loop_driver)?;
        finished.or_else(|error| self.on_failure(py, &error))
    }

    /// Ends the call: the program cannot go on with the body. The reader of the response gets the exception.
    fn fail(&self, py: Python<'_>, error: &Bound<'_, PyAny>) -> PyResult<()> {
        let error = PyErr::from_value(error.clone());
        let woken = self.loop_driver.get().calls(py)?.fail(self.id, error);
        for waiter in woken {
            TaskFuture::wake(waiter.bind(py), None)?;
        }
        Ok(())
    }

    /// Waits for the response. `task` sends the body.
    fn reply(&self, py: Python<'_>, task: Py<PyAny>) -> PyResult<Py<Call>> {
        let upload = Some(task);
        Call::native(
            py,
            self.loop_driver.clone_ref(py),
            ReplyOp {
                id: self.id,
                upload,
            },
        )
    }

    fn cancel(&self, py: Python<'_>) {
        self.loop_driver.get().cancel(py, self.id);
    }
}

/// Waits until more of the body can be written. False: the rest is not wanted.
struct RoomOp(CallId);

impl PendingOp for RoomOp {
    fn poll(
        &mut self,
        py: Python<'_>,
        loop_driver: &Py<LoopDriver>,
    ) -> PyResult<Option<OpOutcome>> {
        let mut calls = loop_driver.get().calls(py)?;
        let is_wanted = calls.driver.wants_body(self.0);
        if is_wanted && calls.driver.room(self.0) == 0 {
            return Ok(None);
        }
        drop(calls);
        Ok(Some(OpOutcome::Done(py_bool(py, is_wanted)?)))
    }

    fn waits_for(&self) -> WaitFor {
        WaitFor::Write(self.0)
    }
}

fn py_bool(py: Python<'_>, value: bool) -> PyResult<Py<PyAny>> {
    Ok(value.into_pyobject(py)?.to_owned().into_any().unbind())
}
