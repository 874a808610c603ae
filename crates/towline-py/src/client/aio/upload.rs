//! A request whose body is written while it is under way: what `_loops.upload` drives.
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use towline_io::call::CallId;

use super::super::call::Call;
use super::super::prepare::shared_bytes;
use super::hub::Hub;
use super::operation::Operation;

/// Failures are not raised here: whether the server has answered in spite of them is known by `reply()`.
#[pyclass(frozen, module = "towline._native")]
pub struct Upload {
    hub: Py<Hub>,
    id: CallId,
}

impl Upload {
    pub fn new(hub: Py<Hub>, id: CallId) -> Self {
        Self { hub, id }
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
        {
            let mut desk = hub.get().desk(py)?;
            if desk.is_answered(self.id) || desk.caller.room(self.id) == 0 {
                return Ok(false);
            }
            if desk.caller.write(self.id, bytes).is_err() {
                return Ok(false);
            }
        }
        Hub::flush_soon(hub)?;
        Ok(true)
    }

    /// Waits for room. False: the server has answered already, or the connection is gone.
    fn room(&self, py: Python<'_>) -> PyResult<Py<Call>> {
        Call::of(py, Operation::room(self.hub.clone_ref(py), self.id))
    }

    /// The body is complete.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let hub = self.hub.bind(py);
        let finished = hub.get().desk(py)?.caller.finish(self.id, &[]);
        Hub::flush_soon(hub)?;
        match finished {
            // Too short a body is the program's mistake and not the server's.
            Err(error) if error.kind == towline_io::call::CallErrorKind::LocalProtocol => {
                Err(super::super::errors::call_error(py, &error))
            }
            _ => Ok(()),
        }
    }

    fn reply(&self, py: Python<'_>) -> PyResult<Py<Call>> {
        Call::of(py, Operation::exchange(self.hub.clone_ref(py), self.id))
    }

    fn cancel(&self, py: Python<'_>) {
        self.hub.get().cancel(py, self.id);
    }
}
