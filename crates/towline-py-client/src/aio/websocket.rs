//! `AsyncSocket`: a WebSocket in an event loop. Between its operations the driver's turns answer pings and run
//! the keep-alive timer.
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use towline_io::client::{CallId, WsReceived};

use super::super::errors;
use super::super::websocket::{
    Handshake, OutgoingMessage, closed_error, deadline, message, outgoing, payload,
    receive_timeout, second_receiver, send_error, send_refusal,
};
use super::awaitable::Call;
use super::calls::WaitFor;
use super::loop_driver::LoopDriver;
use super::pending_op::{OpOutcome, PendingOp};

/// Shared by all operations of one WebSocket.
pub struct WsState {
    loop_driver: Py<LoopDriver>,
    id: CallId,
    /// A [`WsOp::Receive`] is in progress.
    is_receiving: AtomicBool,
}

impl Drop for WsState {
    fn drop(&mut self) {
        Python::attach(|py| {
            self.loop_driver.get().cancel(py, self.id);
            self.loop_driver.get().wake();
        });
    }
}

/// An operation of a WebSocket.
pub enum WsOp {
    /// Waits for the response to the opening handshake.
    Open(CallId),
    Receive {
        state: Arc<WsState>,
        deadline: Option<Instant>,
        /// This operation has set `is_receiving`.
        claimed: bool,
    },
    Send(Arc<WsState>, OutgoingMessage),
    /// Waits for the end of the closing handshake.
    Close(Arc<WsState>),
}

impl PendingOp for WsOp {
    fn poll(
        &mut self,
        py: Python<'_>,
        loop_driver: &Py<LoopDriver>,
    ) -> PyResult<Option<OpOutcome>> {
        let value = match self {
            Self::Open(id) => open_result(py, loop_driver, *id)?,
            Self::Receive {
                state,
                deadline,
                claimed,
            } => {
                if !*claimed {
                    if state.is_receiving.swap(true, Relaxed) {
                        return Err(second_receiver());
                    }
                    *claimed = true;
                }
                let received = receive(py, state, *deadline);
                if !matches!(received, Ok(None)) {
                    state.is_receiving.store(false, Relaxed);
                    *claimed = false;
                }
                received?
            }
            Self::Send(state, message) => {
                let sent = {
                    let mut calls = state.loop_driver.get().calls(py)?;
                    calls.driver.send_message(state.id, message.as_outgoing())
                };
                match sent {
                    Ok(()) => {
                        LoopDriver::flush_soon(state.loop_driver.bind(py))?;
                        Some(py.None())
                    }
                    Err(refused) => send_refusal(py, &refused).map_or(Ok(None), Err)?,
                }
            }
            Self::Close(state) => {
                let calls = state.loop_driver.get().calls(py)?;
                calls.driver.is_over(state.id).then(|| py.None())
            }
        };
        Ok(value.map(OpOutcome::Done))
    }

    fn waits_for(&self) -> WaitFor {
        match self {
            Self::Open(id) => WaitFor::Read(*id),
            Self::Receive { state, .. } => WaitFor::Read(state.id),
            Self::Send(state, _) | Self::Close(state) => WaitFor::Send(state.id),
        }
    }

    fn cancel(&mut self, py: Python<'_>, loop_driver: &LoopDriver) {
        match self {
            Self::Open(id) => loop_driver.cancel(py, *id),
            Self::Receive { state, claimed, .. } if *claimed => {
                *claimed = false;
                state.is_receiving.store(false, Relaxed);
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

fn open_result(
    py: Python<'_>,
    loop_driver: &Py<LoopDriver>,
    id: CallId,
) -> PyResult<Option<Py<PyAny>>> {
    let Some(handshake) = loop_driver.get().calls(py)?.take_handshake(id) else {
        return Ok(None);
    };
    let (head, content) = handshake.map_err(|failure| failure.to_error(py))?;
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

fn receive(
    py: Python<'_>,
    state: &WsState,
    deadline: Option<Instant>,
) -> PyResult<Option<Py<PyAny>>> {
    let (received, is_unflushed) = {
        let mut calls = state.loop_driver.get().calls(py)?;
        let driver = &mut calls.driver;
        let received = driver.receive(state.id, deadline, |kind, data| message(py, kind, data));
        (received, driver.is_unflushed())
    };
    if is_unflushed {
        // Reading has queued a pong, or a window update.
        LoopDriver::flush_soon(state.loop_driver.bind(py))?;
    }
    match received {
        WsReceived::Message(message) => Ok(Some(message)),
        WsReceived::Pending if deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
            let loop_driver = state.loop_driver.get();
            loop_driver.calls(py)?.driver.stop_receiving(state.id);
            Err(receive_timeout())
        }
        WsReceived::Pending => Ok(None),
        WsReceived::Closed(closed) => Err(closed_error(py, &closed)),
        WsReceived::Failed(error) => Err(errors::call_error(py, &error)),
    }
}

/// The native part of `AsyncWebSocket`.
#[pyclass(frozen, module = "towline._native")]
pub struct AsyncSocket {
    state: Arc<WsState>,
}

impl AsyncSocket {
    fn make(py: Python<'_>, loop_driver: &Py<LoopDriver>, id: CallId) -> PyResult<Py<PyAny>> {
        let state = Arc::new(WsState {
            loop_driver: loop_driver.clone_ref(py),
            id,
            is_receiving: AtomicBool::new(false),
        });
        Ok(Py::new(py, Self { state })?.into_any())
    }

    fn call(&self, py: Python<'_>, op: WsOp) -> PyResult<Py<Call>> {
        Call::native(py, self.state.loop_driver.clone_ref(py), op)
    }
}

#[pymethods]
impl AsyncSocket {
    #[pyo3(signature = (timeout=None, /))]
    fn receive(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Py<Call>> {
        let op = WsOp::Receive {
            state: Arc::clone(&self.state),
            deadline: deadline(timeout)?,
            claimed: false,
        };
        self.call(py, op)
    }

    #[pyo3(signature = (data, /))]
    fn send(&self, data: &Bound<'_, PyAny>) -> PyResult<Py<Call>> {
        let (kind, data_bytes) = outgoing(data)?;
        let message = OutgoingMessage::Data(kind, data_bytes);
        self.call(data.py(), WsOp::Send(Arc::clone(&self.state), message))
    }

    #[pyo3(signature = (data, /))]
    fn ping(&self, data: &Bound<'_, PyAny>) -> PyResult<Py<Call>> {
        let message = OutgoingMessage::Ping(payload(data)?);
        self.call(data.py(), WsOp::Send(Arc::clone(&self.state), message))
    }

    /// Starts the closing handshake; the awaitable waits for its end.
    #[pyo3(signature = (code, reason, /))]
    fn close(&self, py: Python<'_>, code: u16, reason: &str) -> PyResult<Py<Call>> {
        let closed = {
            let Ok(mut calls) = self.state.loop_driver.get().calls(py) else {
                // The client is closed, and the WebSocket with it.
                return Call::ready(py, py.None());
            };
            calls.driver.close_websocket(self.state.id, code, reason)
        };
        closed.map_err(send_error)?;
        LoopDriver::flush_soon(self.state.loop_driver.bind(py))?;
        self.call(py, WsOp::Close(Arc::clone(&self.state)))
    }

    /// Closes the connection without a closing handshake.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let loop_driver = self.state.loop_driver.get();
        loop_driver.thread.check()?;
        loop_driver.cancel(py, self.state.id);
        Ok(())
    }

    #[getter]
    fn subprotocol<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let calls = self.state.loop_driver.get().calls(py)?;
        let chosen = calls.driver.subprotocol(self.state.id);
        Ok(chosen.map(|chosen| PyBytes::new(py, chosen)))
    }

    /// `(code, reason)` once it is closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> Option<(u16, String)> {
        let calls = self.state.loop_driver.get().calls(py).ok()?;
        let closed = calls.driver.closed(self.state.id)?;
        Some((closed.code, closed.reason.clone()))
    }
}
