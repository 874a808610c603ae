//! A request whose body is written while it is under way: what `_native_aio.upload` drives.
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use towline_io::call::{CallError, CallErrorKind, CallId};

use super::super::errors;
use super::super::request::shared_bytes;
use super::awaitable::Call;
use super::loop_driver::Hub;
use super::pending_op::Operation;
use crate::gil::GilCell;

/// Failures are not raised here: whether the server has answered in spite of them is known by `reply()`.
#[pyclass(frozen, module = "towline._native")]
pub struct Upload {
    hub: Py<Hub>,
    id: CallId,
    /// Nothing more can be sent.
    broken: GilCell<bool>,
}

impl Upload {
    pub fn new(hub: Py<Hub>, id: CallId) -> Self {
        Self {
            hub,
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
        let hub = self.hub.bind(py);
        let written = {
            let mut desk = hub.get().desk(py)?;
            if desk.is_answered(self.id) || desk.caller.room(self.id) == 0 {
                return Ok(false);
            }
            desk.caller.write(self.id, bytes)
        };
        match written {
            Ok(_) => Hub::flush_soon(hub).map(|()| true),
            Err(error) => self.fail(py, &error).map(|()| false),
        }
    }

    /// Waits for room. False: the server has answered already, or the connection is gone.
    fn room(&self, py: Python<'_>) -> PyResult<Py<Call>> {
        if *self.broken.open(py) {
            return Call::ready(py, false.into_pyobject(py)?.to_owned().into_any().unbind());
        }
        Call::of(py, Operation::room(self.hub.clone_ref(py), self.id))
    }

    /// The body is complete.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let hub = self.hub.bind(py);
        let finished = hub.get().desk(py)?.caller.finish(self.id, &[]);
        Hub::flush_soon(hub)?;
        finished.or_else(|error| self.fail(py, &error))
    }

    fn reply(&self, py: Python<'_>) -> PyResult<Py<Call>> {
        Call::of(py, Operation::exchange(self.hub.clone_ref(py), self.id))
    }

    fn cancel(&self, py: Python<'_>) {
        self.hub.get().cancel(py, self.id);
    }
}
