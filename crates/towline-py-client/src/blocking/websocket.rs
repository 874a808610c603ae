//! `SyncSocket`: a WebSocket whose operations run on the calling threads. The native part of `WebSocket`.
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use towline_io::client::{
    BlockingWebSocket, CallOptions, ClientDriverConfig, OutgoingRequest, UpgradeOutcome,
    WebSocketConfig, WsRecvOutcome,
};

use super::super::head::Head;
use super::super::websocket::{
    Handshake, OutgoingMessage, closed_error, deadline, message, outgoing, payload,
    receive_timeout, second_receiver, send_error, send_refusal,
};
use super::wait::detached;

#[pyclass(frozen, module = "towline._native")]
pub struct SyncSocket {
    socket: Box<BlockingWebSocket>,
}

/// Sends the opening handshake and waits for the response.
pub fn open(
    py: Python<'_>,
    config: ClientDriverConfig,
    request: OutgoingRequest,
    options: CallOptions,
    websocket: WebSocketConfig,
) -> PyResult<Handshake> {
    let shaken = detached(py, |wait| {
        BlockingWebSocket::open(config, request, options, websocket, wait)
    })?;
    Ok(match shaken {
        UpgradeOutcome::Granted(head, socket) => Handshake {
            head: Head::from_wire(head).into(),
            content: None,
            socket: Some(Py::new(py, SyncSocket { socket })?.into_any()),
        },
        UpgradeOutcome::Refused(head, content) => Handshake {
            head: Head::from_wire(head).into(),
            content: Some(content),
            socket: None,
        },
    })
}

impl SyncSocket {
    fn send_message(&self, py: Python<'_>, message: &OutgoingMessage) -> PyResult<()> {
        let sent = detached(py, |wait| self.socket.send(&message.as_outgoing(), wait))?;
        sent.or_else(|refused| send_refusal(py, &refused).map_or(Ok(()), Err))
    }
}

#[pymethods]
impl SyncSocket {
    #[pyo3(signature = (timeout=None, /))]
    fn receive(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        let deadline = deadline(timeout)?;
        match detached(py, |wait| self.socket.receive(deadline, wait))? {
            WsRecvOutcome::Message(kind, data) => Ok(message(py, kind, &data)),
            WsRecvOutcome::Closed(closed) => Err(closed_error(py, &closed)),
            WsRecvOutcome::TimedOut => Err(receive_timeout()),
            WsRecvOutcome::Busy => Err(second_receiver()),
        }
    }

    #[pyo3(signature = (data, /))]
    fn send(&self, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let (kind, bytes) = outgoing(data)?;
        self.send_message(data.py(), &OutgoingMessage::Data(kind, bytes))
    }

    #[pyo3(signature = (data, /))]
    fn ping(&self, data: &Bound<'_, PyAny>) -> PyResult<()> {
        self.send_message(data.py(), &OutgoingMessage::Ping(payload(data)?))
    }

    #[pyo3(signature = (code, reason, /))]
    fn close(&self, py: Python<'_>, code: u16, reason: &str) -> PyResult<()> {
        detached(py, |wait| self.socket.close(code, reason, wait))?.map_err(send_error)
    }

    fn abort(&self, py: Python<'_>) {
        py.detach(|| self.socket.abort());
    }

    #[getter]
    fn subprotocol<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let chosen = py.detach(|| self.socket.subprotocol());
        chosen.map(|chosen| PyBytes::new(py, &chosen))
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> Option<(u16, String)> {
        let closed = py.detach(|| self.socket.closed());
        closed.map(|closed| (closed.code, closed.reason))
    }
}
