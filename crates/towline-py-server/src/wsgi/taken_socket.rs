//! `environ["werkzeug.socket"]` of a request for a WebSocket: the connection's socket, on which simple-websocket, and
//! so Flask-Sock and Flask-SocketIO, speak the protocol themselves.
//!
//! It stands for a `socket.socket`, which is made when an attribute of it is used first. Until then the request is an
//! ordinary one, with an ordinary response.
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::Arc;
use std::time::Instant;

use pyo3::exceptions::{PyAttributeError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use towline_io::TakenSocket;
use towline_io::serve::metrics::SlotHandle;

use super::request_io::lock;
use super::start_response::{Phase, Responder};
use super::websockets::Permit;

/// The key of Werkzeug. Gunicorn's would do as well, but engineio adds eventlet's key where it finds that, and
/// Flask-Sock ends with `StopIteration`, while it ends with an empty response here.
pub const ENVIRON_KEY: &str = "werkzeug.socket";

#[pyclass(frozen, module = "towline._native")]
pub struct ConnectionSocket {
    responder: Py<Responder>,
    serial: u64,
    permit: Arc<Permit>,
    slot: Option<SlotHandle>,
    socket: PyOnceLock<Py<PyAny>>,
}

impl ConnectionSocket {
    pub fn new(
        responder: Py<Responder>,
        serial: u64,
        (permit, slot): (Arc<Permit>, Option<SlotHandle>),
    ) -> Self {
        Self {
            responder,
            serial,
            permit,
            slot,
            socket: PyOnceLock::new(),
        }
    }

    fn socket<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyAny>> {
        let socket = self.socket.get_or_try_init(py, || {
            let TakenSocket { socket, control } =
                self.responder.get().take_over(py, self.serial)?;
            self.permit.take(control, self.slot.clone());
            let options = PyDict::new(py);
            options.set_item("fileno", socket.as_raw_fd())?;
            let made = py
                .import("socket")?
                .getattr("socket")?
                .call((), Some(&options))?;
            // The application owns the descriptor now.
            let _ = socket.into_raw_fd();
            // `socket.setdefaulttimeout` may have been called.
            made.call_method1("settimeout", (py.None(),))?;
            Ok::<_, PyErr>(made.unbind())
        })?;
        Ok(socket.bind(py))
    }
}

#[pymethods]
impl ConnectionSocket {
    /// Private attributes take nothing over: debuggers and copies look for them.
    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        if name.starts_with('_') {
            return Err(PyAttributeError::new_err(name.to_owned()));
        }
        self.socket(py)?.getattr(name)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.socket(py)?.call_method0("close")?;
        self.permit.on_closed();
        Ok(())
    }
}

impl Responder {
    /// Takes the connection of exchange `serial` from the server. The server then sends no response.
    fn take_over(&self, py: Python<'_>, serial: u64) -> PyResult<TakenSocket> {
        let mut state = self.state(py);
        let taken =
            if state.serial == serial && matches!(state.phase, Phase::Waiting | Phase::Started) {
                lock(py, &self.request_io).take_over(serial)?
            } else {
                None
            };
        let taken = taken.ok_or_else(|| {
            PyRuntimeError::new_err(
                "the socket cannot be used any more: the response has begun, the client has sent bytes behind its \
                 request, or the request is over",
            )
        })?;
        state.on_taken_over(Instant::now());
        Ok(taken)
    }
}
