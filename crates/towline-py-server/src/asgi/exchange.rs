//! One request and its response, as the application holds it: `receive` and `send` are bound to it.
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use towline_io::ConnId;
use towline_io::serve::features::ExchangeRecord;
use towline_proto::StreamId;

use super::part_batch::PartBatch;
use super::pending_head::PendingHead;
use super::state::AsgiServer;
use super::websocket::Session;
use towline_py_common::gil::GilCell;

/// Progress of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponsePhase {
    /// Waits for `http.response.start`.
    Idle,
    /// The head is held back until the first body, which may determine its content-length.
    HeadPending,
    /// The head has been sent, body follows.
    Body,
    /// Trailers follow.
    Trailers,
    Complete,
    /// The request is for a WebSocket, which has not been denied: there is no response.
    Switched,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientState {
    Connected,
    /// It has closed its sending half: `receive()` reports it, responses are still sent.
    HalfClosed,
    Disconnected,
}

/// An event of an exchange, from its connection.
#[derive(Debug, Clone, Copy)]
pub enum ExchangeEvent {
    Readable,
    Writable,
    HalfClosed,
    Disconnected,
}

/// The condition that an awaitable waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// A message for the application.
    Receive,
    /// Room below the high-water mark.
    Room,
    /// The end of a file that is being sent.
    File,
}

#[allow(clippy::struct_excessive_bools)] // independent flags; states are enums
pub struct ExchangeState {
    pub id: ConnId,
    pub stream: StreamId,
    pub client: ClientState,
    pub response: ResponsePhase,
    /// The last body message has been given to the application.
    pub body_ended: bool,
    /// Something was written or read since the connection was flushed.
    pub dirty: bool,
    /// The request is HEAD: no body is sent.
    pub head_only: bool,
    /// A file is being sent (http.response.pathsend).
    pub sends_file: bool,
    pub head: PendingHead,
    /// Parts of the response that wait to be sent together.
    pub parts: PartBatch,
    /// In a websocket scope.
    pub websocket: Option<Box<Session>>,
    /// For counters, the access log and compression.
    pub record: Box<ExchangeRecord>,
    /// The task that runs the application, once it has suspended.
    pub task: Option<Py<PyAny>>,
    receivers: Vec<Py<PyAny>>,
    senders: Vec<Py<PyAny>>,
}

impl ExchangeState {
    /// Takes all waiters, to be woken when no cell is open.
    pub fn take_waiters(&mut self) -> Vec<Py<PyAny>> {
        let mut waiters = std::mem::take(&mut self.receivers);
        waiters.append(&mut self.senders);
        waiters
    }

    pub fn has_receivers(&self) -> bool {
        !self.receivers.is_empty()
    }

    pub fn take_receivers(&mut self) -> Vec<Py<PyAny>> {
        std::mem::take(&mut self.receivers)
    }

    pub fn take_senders(&mut self) -> Vec<Py<PyAny>> {
        std::mem::take(&mut self.senders)
    }
}

#[pyclass(frozen, module = "towline._native", name = "Exchange")]
pub struct Exchange {
    pub server: Py<AsgiServer>,
    pub state: GilCell<ExchangeState>,
}

#[pymethods]
impl Exchange {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.server)?;
        let Some(state) = self.state.peek() else {
            return Ok(());
        };
        visit.call(&state.task)?;
        for future in state.receivers.iter().chain(&state.senders) {
            visit.call(future)?;
        }
        Ok(())
    }
}

impl Exchange {
    pub fn new(server: Py<AsgiServer>, id: ConnId, stream: StreamId) -> Self {
        let state = ExchangeState {
            id,
            stream,
            client: ClientState::Connected,
            response: ResponsePhase::Idle,
            body_ended: false,
            dirty: false,
            head_only: false,
            sends_file: false,
            head: PendingHead::default(),
            parts: PartBatch::default(),
            websocket: None,
            record: Box::default(),
            task: None,
            receivers: Vec::new(),
            senders: Vec::new(),
        };
        Self {
            server,
            state: GilCell::new(state),
        }
    }

    pub fn create_future<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.server.get().asyncio.create_future(py)
    }

    pub fn add_waiter(&self, py: Python<'_>, future: Py<PyAny>, wait_for: WaitFor) {
        let mut state = self.state.open(py);
        if wait_for == WaitFor::Receive {
            state.receivers.push(future);
        } else {
            state.senders.push(future);
        }
    }

    /// Notes that the client has disconnected. Returns the waiters, to be woken.
    pub fn mark_disconnected(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        let mut state = self.state.open(py);
        state.client = ClientState::Disconnected;
        state.take_waiters()
    }

    /// Wakes the waiters for the end of the file that was being sent.
    pub fn on_file_sent(&self, py: Python<'_>) -> PyResult<()> {
        let waiters = {
            let mut state = self.state.open(py);
            if !std::mem::replace(&mut state.sends_file, false) {
                return Ok(());
            }
            state.take_senders()
        };
        wake(py, waiters)
    }
}

/// An exchange and the two functions bound to it, reused when no application has kept any of them.
pub struct ExchangeHandle {
    pub exchange: Py<Exchange>,
    pub receive: Py<PyAny>,
    pub send: Py<PyAny>,
}

impl ExchangeHandle {
    /// Resets the exchange for a new request.
    pub fn begin(&self, py: Python<'_>, id: ConnId, stream: StreamId) {
        let mut state = self.exchange.get().state.open(py);
        state.id = id;
        state.stream = stream;
        state.client = ClientState::Connected;
        state.response = ResponsePhase::Idle;
        state.body_ended = false;
        state.dirty = false;
        state.sends_file = false;
        state.head.clear();
        state.parts = PartBatch::default();
        state.websocket = None;
    }

    /// True if no reference exists outside this handle.
    pub fn is_unshared(&self, py: Python<'_>) -> bool {
        references(&self.receive) == 1
            && references(&self.send) == 1
            // The handle and the two functions.
            && references(&self.exchange) == 3
            && self.exchange.get().state.open(py).task.is_none()
    }

    pub fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            exchange: self.exchange.clone_ref(py),
            receive: self.receive.clone_ref(py),
            send: self.send.clone_ref(py),
        }
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.exchange)?;
        visit.call(&self.receive)?;
        visit.call(&self.send)
    }
}

pub fn references<T>(object: &Py<T>) -> isize {
    // SAFETY: the object is alive; this reads a field of it.
    unsafe { pyo3::ffi::Py_REFCNT(object.as_ptr()) as isize }
}

/// Completes futures: all of them, even if one fails. No cell may be open, because Python code of the loop runs.
pub fn wake(py: Python<'_>, waiters: Vec<Py<PyAny>>) -> PyResult<()> {
    let complete = |future: Py<PyAny>| {
        let future = future.into_bound(py);
        if !future.call_method0(intern!(py, "done"))?.is_truthy()? {
            future.call_method1(intern!(py, "set_result"), (py.None(),))?;
        }
        Ok(())
    };
    let outcomes = waiters.into_iter().map(complete);
    outcomes.fold(Ok(()), PyResult::and)
}
