//! A WebSocket in its hub. Between the operations of the program the hub's turns answer pings and keep its clock.
use std::sync::Arc;
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use towline_io::call::{CallId, Received};

use super::super::errors;
use super::super::websocket::{
    Handshake, Saying, closed_error, message, mistake, outgoing, payload, refusal, second_receiver,
    too_late, until,
};
use super::awaitable::Call;
use super::loop_driver::Hub;
use super::pending_op::Operation;
use super::waiter::Waiter;
use crate::gil::GilCell;

/// What all operations on one WebSocket hold.
pub struct Line {
    hub: Py<Hub>,
    id: CallId,
    /// Some task is in `receive`.
    receiving: GilCell<bool>,
}

impl Drop for Line {
    fn drop(&mut self) {
        Python::attach(|py| self.hub.get().cancel(py, self.id));
    }
}

/// One thing that is being done with a WebSocket.
pub enum Task {
    /// Asked for, and not yet granted.
    Open(CallId),
    Receive {
        line: Arc<Line>,
        until: Option<Instant>,
        /// It is this one that `receiving` speaks of.
        claimed: bool,
    },
    Say(Arc<Line>, Saying),
    /// The closing handshake is under way.
    Close(Arc<Line>),
    Over,
}

impl Task {
    /// `None`: not yet; `wait` then.
    pub fn poll(&mut self, py: Python<'_>, hub: &Py<Hub>) -> PyResult<Option<Py<PyAny>>> {
        match self {
            Self::Open(id) => {
                let id = *id;
                let Some(done) = hub.get().desk(py)?.take_handshaken(id) else {
                    return Ok(None);
                };
                *self = Self::Over;
                let (head, content) = done.map_err(|failure| failure.to_error(py))?;
                let socket = match content {
                    None => Some(AsyncSocket::make(py, hub, id)?),
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
                line,
                until,
                claimed,
            } => {
                if !*claimed {
                    if std::mem::replace(&mut *line.receiving.open(py), true) {
                        return Err(second_receiver());
                    }
                    *claimed = true;
                }
                let received = receive(py, line, *until);
                if !matches!(received, Ok(None)) {
                    *line.receiving.open(py) = false;
                    *claimed = false;
                }
                received
            }
            Self::Say(line, saying) => {
                let said = line
                    .hub
                    .get()
                    .desk(py)?
                    .caller
                    .say(line.id, saying.as_outgoing());
                match said {
                    Ok(()) => {
                        Hub::flush_soon(line.hub.bind(py))?;
                        Ok(Some(py.None()))
                    }
                    Err(refused) => refusal(py, &refused).map_or(Ok(None), Err),
                }
            }
            Self::Close(line) => {
                let over = line.hub.get().desk(py)?.caller.is_over(line.id);
                Ok(over.then(|| py.None()))
            }
            Self::Over => Ok(Some(py.None())),
        }
    }

    /// Has `waiter` woken when polling is worth while again. Returned: one that waits no more.
    pub fn wait(
        &self,
        py: Python<'_>,
        hub: &Hub,
        waiter: Py<Waiter>,
    ) -> PyResult<Option<Py<Waiter>>> {
        let mut desk = hub.desk(py)?;
        Ok(match self {
            Self::Open(id) => desk.set_reader(*id, Some(waiter)),
            Self::Receive { line, .. } => desk.set_reader(line.id, Some(waiter)),
            Self::Say(line, _) | Self::Close(line) => {
                desk.add_other(line.id, waiter);
                None
            }
            Self::Over => None,
        })
    }

    /// Given up: a request is cancelled; a message stays for the next who asks.
    pub fn abandon(&mut self, py: Python<'_>, hub: &Hub) {
        match std::mem::replace(self, Self::Over) {
            Self::Open(id) => hub.cancel(py, id),
            Self::Receive {
                line,
                claimed: true,
                ..
            } => {
                *line.receiving.open(py) = false;
                let before = hub.desk(py).ok().and_then(|mut desk| {
                    desk.caller.stop_receiving(line.id);
                    desk.set_reader(line.id, None)
                });
                drop(before);
            }
            _ => {}
        }
    }
}

fn receive(py: Python<'_>, line: &Line, until: Option<Instant>) -> PyResult<Option<Py<PyAny>>> {
    let (received, due) = {
        let mut desk = line.hub.get().desk(py)?;
        let caller = &mut desk.caller;
        let received = caller.receive(line.id, until, |kind, data| message(py, kind, data));
        (received, caller.is_unflushed())
    };
    if due {
        // Reading has made an answer due.
        Hub::flush_soon(line.hub.bind(py))?;
    }
    match received {
        Received::Message(message) => Ok(Some(message)),
        Received::Pending if until.is_some_and(|until| until <= Instant::now()) => {
            line.hub.get().desk(py)?.caller.stop_receiving(line.id);
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
    line: Arc<Line>,
}

impl AsyncSocket {
    fn make(py: Python<'_>, hub: &Py<Hub>, id: CallId) -> PyResult<Py<PyAny>> {
        let line = Arc::new(Line {
            hub: hub.clone_ref(py),
            id,
            receiving: GilCell::new(false),
        });
        Ok(Py::new(py, Self { line })?.into_any())
    }

    fn call(&self, py: Python<'_>, task: Task) -> PyResult<Py<Call>> {
        Call::of(py, Operation::socket(self.line.hub.clone_ref(py), task))
    }
}

#[pymethods]
impl AsyncSocket {
    #[pyo3(signature = (timeout=None, /))]
    fn receive(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Py<Call>> {
        let task = Task::Receive {
            line: Arc::clone(&self.line),
            until: until(timeout)?,
            claimed: false,
        };
        self.call(py, task)
    }

    #[pyo3(signature = (data, /))]
    fn send(&self, data: &Bound<'_, PyAny>) -> PyResult<Py<Call>> {
        let (kind, data_bytes) = outgoing(data)?;
        let saying = Saying::Message(kind, data_bytes);
        self.call(data.py(), Task::Say(Arc::clone(&self.line), saying))
    }

    #[pyo3(signature = (data, /))]
    fn ping(&self, data: &Bound<'_, PyAny>) -> PyResult<Py<Call>> {
        let saying = Saying::Ping(payload(data)?);
        self.call(data.py(), Task::Say(Arc::clone(&self.line), saying))
    }

    /// Begins the closing handshake; awaiting waits for its end.
    #[pyo3(signature = (code, reason, /))]
    fn close(&self, py: Python<'_>, code: u16, reason: &str) -> PyResult<Py<Call>> {
        let closed = {
            let Ok(mut desk) = self.line.hub.get().desk(py) else {
                // With its client.
                return Call::ready(py, py.None());
            };
            desk.caller.close_websocket(self.line.id, code, reason)
        };
        closed.map_err(mistake)?;
        Hub::flush_soon(self.line.hub.bind(py))?;
        self.call(py, Task::Close(Arc::clone(&self.line)))
    }

    /// Ends it without a word.
    fn abort(&self, py: Python<'_>) {
        self.line.hub.get().cancel(py, self.line.id);
    }

    #[getter]
    fn subprotocol<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let desk = self.line.hub.get().desk(py)?;
        let chosen = desk.caller.subprotocol(self.line.id);
        Ok(chosen.map(|chosen| PyBytes::new(py, chosen)))
    }

    /// `(code, reason)` once it has ended.
    #[getter]
    fn closed(&self, py: Python<'_>) -> Option<(u16, String)> {
        let desk = self.line.hub.get().desk(py).ok()?;
        let closed = desk.caller.closed(self.line.id)?;
        Some((closed.code, closed.reason.clone()))
    }
}
