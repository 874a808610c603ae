//! A WebSocket in its loop_driver. Between the operations of the program the loop_driver's turns answer pings and keep its clock.
use std::sync::Arc;
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use towline_io::client::{CallId, Received};

use super::super::errors;
use super::super::websocket::{
    Handshake, OutgoingMessage, closed_error, message, mistake, outgoing, payload, refusal,
    second_receiver, too_late, until,
};
use super::awaitable::Call;
use super::loop_driver::LoopDriver;
use super::pending_op::PendingOp;
use super::waiter::Waiter;
use crate::gil::GilCell;

/// What all operations on one WebSocket hold.
pub struct WsState {
    loop_driver: Py<LoopDriver>,
    id: CallId,
    /// Some task is in `receive`.
    receiving: GilCell<bool>,
}

impl Drop for WsState {
    fn drop(&mut self) {
        Python::attach(|py| self.loop_driver.get().cancel(py, self.id));
    }
}

/// One thing that is being done with a WebSocket.
pub enum WsOp {
    /// Asked for, and not yet granted.
    Open(CallId),
    Receive {
        state: Arc<WsState>,
        until: Option<Instant>,
        /// It is this one that `receiving` speaks of.
        claimed: bool,
    },
    Send(Arc<WsState>, OutgoingMessage),
    /// The closing handshake is under way.
    Close(Arc<WsState>),
    Over,
}

impl WsOp {
    /// `None`: not yet; `wait` then.
    pub fn poll(
        &mut self,
        py: Python<'_>,
        loop_driver: &Py<LoopDriver>,
    ) -> PyResult<Option<Py<PyAny>>> {
        match self {
            Self::Open(id) => {
                let id = *id;
                let Some(done) = loop_driver.get().calls(py)?.take_handshake(id) else {
                    return Ok(None);
                };
                *self = Self::Over;
                let (head, content) = done.map_err(|failure| failure.to_error(py))?;
                let socket = match content {
                    None => Some(AsyncSocket::make(py, loop_driver, id)?),
                    Some(_) => None,
                };
                let handshake = Handshake {
                    head,
                    content,
                    socket,
                };
                Ok(Some(Py::new(py, handshake)?.into_any()))
            }
            Self::Receive {
                state,
                until,
                claimed,
            } => {
                if !*claimed {
                    if std::mem::replace(&mut *state.receiving.open(py), true) {
                        return Err(second_receiver());
                    }
                    *claimed = true;
                }
                let received = receive(py, state, *until);
                if !matches!(received, Ok(None)) {
                    *state.receiving.open(py) = false;
                    *claimed = false;
                }
                received
            }
            Self::Send(state, message) => {
                let said = state
                    .loop_driver
                    .get()
                    .calls(py)?
                    .driver
                    .say(state.id, message.as_outgoing());
                match said {
                    Ok(()) => {
                        LoopDriver::flush_soon(state.loop_driver.bind(py))?;
                        Ok(Some(py.None()))
                    }
                    Err(refused) => refusal(py, &refused).map_or(Ok(None), Err),
                }
            }
            Self::Close(state) => {
                let over = state.loop_driver.get().calls(py)?.driver.is_over(state.id);
                Ok(over.then(|| py.None()))
            }
            Self::Over => Ok(Some(py.None())),
        }
    }

    /// Has `waiter` woken when polling is worth while again. Returned: one that waits no more.
    pub fn wait(
        &self,
        py: Python<'_>,
        loop_driver: &LoopDriver,
        waiter: Py<Waiter>,
    ) -> PyResult<Option<Py<Waiter>>> {
        let mut calls = loop_driver.calls(py)?;
        Ok(match self {
            Self::Open(id) => calls.set_read_waiter(*id, Some(waiter)),
            Self::Receive { state, .. } => calls.set_read_waiter(state.id, Some(waiter)),
            Self::Send(state, _) | Self::Close(state) => {
                calls.add_send_waiter(state.id, waiter);
                None
            }
            Self::Over => None,
        })
    }

    /// Given up: a request is cancelled; a message stays for the next who asks.
    pub fn abandon(&mut self, py: Python<'_>, loop_driver: &LoopDriver) {
        match std::mem::replace(self, Self::Over) {
            Self::Open(id) => loop_driver.cancel(py, id),
            Self::Receive {
                state,
                claimed: true,
                ..
            } => {
                *state.receiving.open(py) = false;
                let before = loop_driver.calls(py).ok().and_then(|mut calls| {
                    calls.driver.stop_receiving(state.id);
                    calls.set_read_waiter(state.id, None)
                });
                drop(before);
            }
            _ => {}
        }
    }
}

fn receive(py: Python<'_>, state: &WsState, until: Option<Instant>) -> PyResult<Option<Py<PyAny>>> {
    let (received, due) = {
        let mut calls = state.loop_driver.get().calls(py)?;
        let driver = &mut calls.driver;
        let received = driver.receive(state.id, until, |kind, data| message(py, kind, data));
        (received, driver.is_unflushed())
    };
    if due {
        // ExclusiveReader has made an answer due.
        LoopDriver::flush_soon(state.loop_driver.bind(py))?;
    }
    match received {
        Received::Message(message) => Ok(Some(message)),
        Received::Pending if until.is_some_and(|until| until <= Instant::now()) => {
            state
                .loop_driver
                .get()
                .calls(py)?
                .driver
                .stop_receiving(state.id);
            Err(too_late())
        }
        Received::Pending => Ok(None),
        Received::Closed(closed) => Err(closed_error(py, &closed)),
        Received::Failed(error) => Err(errors::call_error(py, &error)),
    }
}

/// A WebSocket of an `AsyncClient`: what `AsyncWebSocket` stands on.
#[pyclass(frozen, module = "towline._native")]
pub struct AsyncSocket {
    state: Arc<WsState>,
}

impl AsyncSocket {
    fn make(py: Python<'_>, loop_driver: &Py<LoopDriver>, id: CallId) -> PyResult<Py<PyAny>> {
        let state = Arc::new(WsState {
            loop_driver: loop_driver.clone_ref(py),
            id,
            receiving: GilCell::new(false),
        });
        Ok(Py::new(py, Self { state })?.into_any())
    }

    fn call(&self, py: Python<'_>, task: WsOp) -> PyResult<Py<Call>> {
        Call::of(
            py,
            PendingOp::socket(self.state.loop_driver.clone_ref(py), task),
        )
    }
}

#[pymethods]
impl AsyncSocket {
    #[pyo3(signature = (timeout=None, /))]
    fn receive(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Py<Call>> {
        let task = WsOp::Receive {
            state: Arc::clone(&self.state),
            until: until(timeout)?,
            claimed: false,
        };
        self.call(py, task)
    }

    #[pyo3(signature = (data, /))]
    fn send(&self, data: &Bound<'_, PyAny>) -> PyResult<Py<Call>> {
        let (kind, data_bytes) = outgoing(data)?;
        let message = OutgoingMessage::Message(kind, data_bytes);
        self.call(data.py(), WsOp::Send(Arc::clone(&self.state), message))
    }

    #[pyo3(signature = (data, /))]
    fn ping(&self, data: &Bound<'_, PyAny>) -> PyResult<Py<Call>> {
        let message = OutgoingMessage::Ping(payload(data)?);
        self.call(data.py(), WsOp::Send(Arc::clone(&self.state), message))
    }

    /// Begins the closing handshake; awaiting waits for its end.
    #[pyo3(signature = (code, reason, /))]
    fn close(&self, py: Python<'_>, code: u16, reason: &str) -> PyResult<Py<Call>> {
        let closed = {
            let Ok(mut calls) = self.state.loop_driver.get().calls(py) else {
                // With its client.
                return Call::ready(py, py.None());
            };
            calls.driver.close_websocket(self.state.id, code, reason)
        };
        closed.map_err(mistake)?;
        LoopDriver::flush_soon(self.state.loop_driver.bind(py))?;
        self.call(py, WsOp::Close(Arc::clone(&self.state)))
    }

    /// Ends it without a word.
    fn abort(&self, py: Python<'_>) {
        self.state.loop_driver.get().cancel(py, self.state.id);
    }

    #[getter]
    fn subprotocol<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let calls = self.state.loop_driver.get().calls(py)?;
        let chosen = calls.driver.subprotocol(self.state.id);
        Ok(chosen.map(|chosen| PyBytes::new(py, chosen)))
    }

    /// `(code, reason)` once it has ended.
    #[getter]
    fn closed(&self, py: Python<'_>) -> Option<(u16, String)> {
        let calls = self.state.loop_driver.get().calls(py).ok()?;
        let closed = calls.driver.closed(self.state.id)?;
        Some((closed.code, closed.reason.clone()))
    }
}
