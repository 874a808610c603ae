//! A request whose body is written while it is under way: what `_native_aio.upload` drives.
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use towline_io::client::{CallError, CallErrorKind, CallId};

use super::super::errors;
use super::super::request::shared_bytes;
use super::awaitable::Call;
use super::loop_driver::LoopDriver;
use super::pending_op::PendingOp;
use crate::gil::GilCell;

/// Failures are not raised here: whether the server has answered in spite of them is known by `reply()`.
#[pyclass(frozen, module = "towline._native")]
pub struct Upload {
    loop_driver: Py<LoopDriver>,
    id: CallId,
    /// Nothing more can be sent.
    broken: GilCell<bool>,
}

impl Upload {
    pub fn new(loop_driver: Py<LoopDriver>, id: CallId) -> Self {
        Self {
            loop_driver,
            id,
            broken: GilCell::new(false),
        }
    }
}

impl Upload {
    /// Too short or too long a body is the program's mistake and is raised at once.
    fn fail(&self, py: Python<'_>, error: &CallError) -> PyResult<()> {
        *self.broken.open(py) = true;
        match error.kind {
            CallErrorKind::LocalProtocol => Err(errors::call_error(py, error)),
            _ => Ok(()),
        }
    }
}

#[pymethods]
impl Upload {
    /// Queues a piece. False: there is no room, or no connection yet, and nothing was taken.
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
            if calls.has_response(self.id) || calls.driver.room(self.id) == 0 {
                return Ok(false);
            }
            calls.driver.write(self.id, bytes)
        };
        match written {
            Ok(_) => LoopDriver::flush_soon(loop_driver).map(|()| true),
            Err(error) => self.fail(py, &error).map(|()| false),
        }
    }

    /// Waits for room. False: the server has answered already, or the connection is gone.
    fn room(&self, py: Python<'_>) -> PyResult<Py<Call>> {
        if *self.broken.open(py) {
            return Call::ready(py, false.into_pyobject(py)?.to_owned().into_any().unbind());
        }
        Call::of(py, PendingOp::room(self.loop_driver.clone_ref(py), self.id))
    }

    /// The body is complete.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let loop_driver = self.loop_driver.bind(py);
        let finished = loop_driver.get().calls(py)?.driver.finish(self.id, &[]);
        LoopDriver::flush_soon(loop_driver)?;
        finished.or_else(|error| self.fail(py, &error))
    }

    fn reply(&self, py: Python<'_>) -> PyResult<Py<Call>> {
        Call::of(
            py,
            PendingOp::exchange(self.loop_driver.clone_ref(py), self.id),
        )
    }

    fn cancel(&self, py: Python<'_>) {
        self.loop_driver.get().cancel(py, self.id);
    }
}
