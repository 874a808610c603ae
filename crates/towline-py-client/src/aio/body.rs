//! The body of a response that is read on demand, in the driver that receives it.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use towline_io::client::{CallId, ConnectionInfo, Trailer};

use super::super::reply::{CallInfo, ReplyBody};
use super::calls::ReadOutcome;
use super::loop_driver::LoopDriver;
use towline_py_common::cell::StateCell;
use towline_py_common::errors::{StreamConsumed, UsageError};
use towline_py_common::task_future::TaskFuture;

/// ```text
///  Open ─ end of the body ─► Ended
///   └── close, failure ────► Closed
/// ```
pub struct AsyncBody {
    pub loop_driver: Py<LoopDriver>,
    pub id: CallId,
    connection: Option<Arc<ConnectionInfo>>,
    state: StateCell<State>,
    /// An [`ExclusiveReader`] waits for bytes.
    has_waiting_reader: AtomicBool,
    /// The task that sends the request body.
    upload: StateCell<Option<Py<PyAny>>>,
}

enum State {
    Open,
    Ended(CallInfo, Vec<Trailer>),
    Closed(CallInfo),
}

impl AsyncBody {
    pub fn new(
        py: Python<'_>,
        loop_driver: Py<LoopDriver>,
        id: CallId,
        upload: Option<Py<PyAny>>,
    ) -> Self {
        let calls = loop_driver.get().calls(py);
        let connection = calls.ok().and_then(|calls| calls.driver.info(id).cloned());
        Self {
            loop_driver,
            id,
            connection,
            state: StateCell::new(State::Open),
            has_waiting_reader: AtomicBool::new(false),
            upload: StateCell::new(upload),
        }
    }

    /// Has the upload end, if it has not. Returns an awaitable of that.
    pub fn end_upload(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let Some(task) = self.upload.open(py).take() else {
            return Ok(None);
        };
        task.call_method0(py, intern!(py, "end")).map(Some)
    }

    /// Reads at most `max_bytes`.
    fn read(&self, py: Python<'_>, max_bytes: usize) -> PyResult<ReadOutcome> {
        match *self.state.open(py) {
            State::Open => {}
            State::Ended(..) => return Ok(ReadOutcome::End),
            State::Closed(_) => {
                return Err(StreamConsumed::new_err("the response has been closed"));
            }
        }
        let loop_driver = self.loop_driver.get();
        let outcome = loop_driver.calls(py)?.read(py, self.id, max_bytes);
        match outcome {
            Ok(ReadOutcome::End) => {
                let trailers = loop_driver.calls(py)?.driver.trailers(self.id).to_vec();
                let info = self.remove_call(py);
                *self.state.open(py) = State::Ended(info, trailers);
                Ok(ReadOutcome::End)
            }
            Ok(outcome) => Ok(outcome),
            Err(failure) => {
                let info = self.remove_call(py);
                *self.state.open(py) = State::Closed(info);
                Err(failure.to_error(py))
            }
        }
    }

    /// Closes the body. A task that waits for bytes is woken and finds it closed.
    pub fn close(&self, py: Python<'_>) {
        if self.is_closed(py) {
            return;
        }
        let waiter = self.take_read_waiter(py);
        let info = self.remove_call(py);
        *self.state.open(py) = State::Closed(info);
        if let Some(waiter) = waiter
            && let Err(error) = TaskFuture::wake(waiter.bind(py), None)
        {
            error.write_unraisable(py, None);
        }
    }

    pub fn is_closed(&self, py: Python<'_>) -> bool {
        !matches!(*self.state.open(py), State::Open)
    }

    fn take_read_waiter(&self, py: Python<'_>) -> Option<Py<TaskFuture>> {
        let mut calls = self.loop_driver.get().calls(py).ok()?;
        calls.set_read_waiter(self.id, None)
    }

    fn remove_call(&self, py: Python<'_>) -> CallInfo {
        let info = self.live_info(py);
        self.loop_driver.get().cancel(py, self.id);
        info
    }

    fn live_info(&self, py: Python<'_>) -> CallInfo {
        let calls = self.loop_driver.get().calls(py);
        calls.map(|calls| calls.info(self.id)).unwrap_or_default()
    }
}

/// The read of one task. While it waits for bytes, another read fails: the table of calls has one read waiter,
/// and the order in which two tasks get bytes would be undefined.
pub struct ExclusiveReader {
    body: Arc<AsyncBody>,
    /// This reader has set `has_waiting_reader`.
    is_waiting: bool,
}

impl ExclusiveReader {
    pub fn new(body: Arc<AsyncBody>) -> Self {
        Self {
            body,
            is_waiting: false,
        }
    }

    pub fn body(&self) -> &AsyncBody {
        &self.body
    }

    /// Reads at most `max_bytes`.
    pub fn read(&mut self, py: Python<'_>, max_bytes: usize) -> PyResult<ReadOutcome> {
        if !self.is_waiting && self.body.has_waiting_reader.load(Relaxed) {
            return Err(second_reader());
        }
        let outcome = self.body.read(py, max_bytes);
        self.set_waiting(matches!(outcome, Ok(ReadOutcome::Pending)));
        outcome
    }

    /// Stops waiting. The bytes stay in the driver.
    pub fn cancel(&mut self, py: Python<'_>) {
        if self.is_waiting {
            self.set_waiting(false);
            drop(self.body.take_read_waiter(py));
        }
    }

    fn set_waiting(&mut self, is_waiting: bool) {
        if self.is_waiting != is_waiting {
            self.is_waiting = is_waiting;
            self.body.has_waiting_reader.store(is_waiting, Relaxed);
        }
    }
}

impl Drop for ExclusiveReader {
    fn drop(&mut self) {
        self.set_waiting(false);
    }
}

fn second_reader() -> PyErr {
    UsageError::new_err(
        "another task is reading this response: read it in one task and pass the data on",
    )
}

impl ReplyBody for AsyncBody {
    fn info(&self, py: Python<'_>) -> CallInfo {
        if let State::Ended(info, _) | State::Closed(info) = *self.state.open(py) {
            return info;
        }
        self.live_info(py)
    }

    fn buffered(&self, py: Python<'_>) -> usize {
        if self.is_closed(py) {
            return 0;
        }
        let calls = self.loop_driver.get().calls(py);
        calls.map_or(0, |mut calls| calls.driver.buffered(self.id))
    }

    fn connection(&self) -> Option<&ConnectionInfo> {
        self.connection.as_deref()
    }

    fn trailers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        if let State::Ended(_, trailers) = &*self.state.open(py) {
            for (name, value) in trailers {
                list.append((PyBytes::new(py, name), PyBytes::new(py, value)))?;
            }
        }
        Ok(list)
    }
}

impl Drop for AsyncBody {
    fn drop(&mut self) {
        Python::attach(|py| {
            if !self.is_closed(py) {
                self.close(py);
                self.loop_driver.get().wake();
            }
            if let Some(task) = self.upload.open(py).take() {
                // A finaliser may run in any thread. Nothing is left to cancel once the loop is closed.
                let cancel = task.getattr(py, intern!(py, "cancel"));
                let event_loop = &self.loop_driver.get().event_loop;
                let _ = cancel.and_then(|cancel| event_loop.call_from_thread(py, cancel.bind(py)));
            }
        });
    }
}
