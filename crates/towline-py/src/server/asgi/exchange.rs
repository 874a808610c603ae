//! One request and its response, as the application holds it: `receive` and `send` are bound to it.
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use towline_io::ConnId;
use towline_io::serve::site::Visit;
use towline_proto::{StreamId, StreamRead};

use super::awaitables::Purpose;
use super::cfunctions;
use super::pending_head::Draft;
use super::server::AsgiServer;
use super::websocket::{self, Session};
use crate::gil::GilCell;

/// The most that one `http.request` message carries.
const MESSAGE_BYTES: usize = 64 * 1024;

/// How far the response is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response {
    /// Waits for `http.response.start`.
    Idle,
    /// The head is held until the first body, which may tell its length.
    Held,
    /// The head is out, body follows.
    Body,
    /// Trailers follow.
    Trailers,
    Complete,
    /// A WebSocket was asked for, and has not been denied: there is none.
    Switched,
}

/// Whether the client is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    Present,
    /// It has closed its sending half: `receive()` says so, answers still go out.
    HalfClosed,
    Gone,
}

#[allow(clippy::struct_excessive_bools)] // facts that vary independently; states are enums
pub struct Exchanged {
    pub id: ConnId,
    pub stream: StreamId,
    pub client: Client,
    pub response: Response,
    /// The last body message has been given to the application.
    pub body_ended: bool,
    /// Something was written or read since the connection was settled.
    pub dirty: bool,
    /// Answers HEAD: a body is not sent.
    pub head_only: bool,
    /// A file is under way (http.response.pathsend).
    pub sends_file: bool,
    pub draft: Draft,
    /// In a websocket scope.
    pub websocket: Option<Box<Session>>,
    /// For counters, the access log and compression.
    pub visit: Box<Visit>,
    /// The task that runs it, once it has suspended.
    pub task: Option<Py<PyAny>>,
    receivers: Vec<Py<PyAny>>,
    senders: Vec<Py<PyAny>>,
}

impl Exchanged {
    /// Everybody who waits, to be woken when no cell is open.
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
    pub state: GilCell<Exchanged>,
}

/// An exchange with the two functions bound to it, used again when no application has kept any of them.
pub struct Kit {
    pub exchange: Py<Exchange>,
    pub receive: Py<PyAny>,
    pub send: Py<PyAny>,
}

impl Kit {
    pub fn new(
        py: Python<'_>,
        server: Py<AsgiServer>,
        id: ConnId,
        stream: StreamId,
    ) -> PyResult<Self> {
        let state = Exchanged {
            id,
            stream,
            client: Client::Present,
            response: Response::Idle,
            body_ended: false,
            dirty: false,
            head_only: false,
            sends_file: false,
            draft: Draft::default(),
            websocket: None,
            visit: Box::default(),
            task: None,
            receivers: Vec::new(),
            senders: Vec::new(),
        };
        let exchange = Bound::new(
            py,
            Exchange {
                server,
                state: GilCell::new(state),
            },
        )?;
        let receive = cfunctions::receive(&exchange)?;
        let send = cfunctions::send(&exchange)?;
        Ok(Self {
            exchange: exchange.unbind(),
            receive,
            send,
        })
    }

    /// Makes it a new exchange.
    pub fn begin(&self, py: Python<'_>, id: ConnId, stream: StreamId) {
        let mut state = self.exchange.get().state.open(py);
        state.id = id;
        state.stream = stream;
        state.client = Client::Present;
        state.response = Response::Idle;
        state.body_ended = false;
        state.dirty = false;
        state.sends_file = false;
        state.draft.clear();
        state.websocket = None;
    }

    /// True when nobody but us holds any part of it.
    pub fn is_unshared(&self, py: Python<'_>) -> bool {
        references(&self.receive) == 1
            && references(&self.send) == 1
            // We, and the two functions.
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

/// What reading the request gave.
enum Part {
    Body { more: bool },
    Disconnect,
    Nothing,
}

impl Exchange {
    pub fn create_future<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.server.get().asyncio.create_future(py)
    }

    pub fn add_waiter(&self, py: Python<'_>, future: Py<PyAny>, purpose: Purpose) {
        let mut state = self.state.open(py);
        if purpose == Purpose::Receive {
            state.receivers.push(future);
        } else {
            state.senders.push(future);
        }
    }

    /// The client has gone. Returns those who wait, to be woken.
    pub fn lose(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        let mut state = self.state.open(py);
        state.client = Client::Gone;
        state.take_waiters()
    }

    /// No file is on its way any more: whoever waits for its end looks again.
    pub fn file_sent(&self, py: Python<'_>) -> PyResult<()> {
        let waiters = {
            let mut state = self.state.open(py);
            if !std::mem::replace(&mut state.sends_file, false) {
                return Ok(());
            }
            state.take_senders()
        };
        wake(py, waiters)
    }

    /// The next message, if there is one.
    pub fn poll_receive(slf: &Bound<'_, Self>) -> PyResult<Option<Py<PyAny>>> {
        let (py, this) = (slf.py(), slf.get());
        if this.state.open(py).websocket.is_some() {
            return websocket::receive(slf);
        }
        let mut scratch = Vec::new();
        let part = this.read_part(py, &mut scratch)?;
        let message = match part {
            Part::Nothing => None,
            Part::Disconnect => {
                let message = PyDict::new(py);
                message.set_item(intern!(py, "type"), intern!(py, "http.disconnect"))?;
                Some(message)
            }
            Part::Body { more } => {
                let message = PyDict::new(py);
                message.set_item(intern!(py, "type"), intern!(py, "http.request"))?;
                message.set_item(intern!(py, "body"), PyBytes::new(py, &scratch))?;
                message.set_item(intern!(py, "more_body"), more)?;
                Some(message)
            }
        };
        this.server.get().flush_outside(py, slf);
        Ok(message.map(|message| message.into_any().unbind()))
    }

    fn read_part(&self, py: Python<'_>, out: &mut Vec<u8>) -> PyResult<Part> {
        let mut state = self.state.open(py);
        if state.client == Client::Gone || state.response == Response::Complete {
            return Ok(Part::Disconnect);
        }
        if state.body_ended {
            let half_closed = state.client == Client::HalfClosed;
            return Ok(if half_closed {
                Part::Disconnect
            } else {
                Part::Nothing
            });
        }
        let mut engine = self.server.get().engine(py)?;
        let Some(peer) = engine.peer(state.id) else {
            return Ok(Part::Disconnect);
        };
        let Ok(mut stream) = peer.conn.stream(state.stream) else {
            return Ok(Part::Disconnect);
        };
        state.dirty = true;
        while out.len() < MESSAGE_BYTES {
            match stream.read(MESSAGE_BYTES - out.len()) {
                StreamRead::Data(bytes) => out.extend_from_slice(bytes),
                StreamRead::End => {
                    state.body_ended = true;
                    return Ok(Part::Body { more: false });
                }
                // A truncated body never looks complete (THREATS.md); what came before it is of no use.
                StreamRead::Failed => {
                    // Known before the event that says so: the application did nothing wrong by leaving.
                    state.client = Client::Gone;
                    return Ok(Part::Disconnect);
                }
                StreamRead::Pending => break,
            }
        }
        Ok(if out.is_empty() {
            Part::Nothing
        } else {
            Part::Body { more: true }
        })
    }

    /// None once there is room for more, or once there is nobody to send to: the next send says so.
    pub fn poll_room(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let state = self.state.open(py);
        if state.client == Client::Gone {
            return Some(py.None());
        }
        let mut engine = self.server.get().engine(py).ok()?;
        let room = engine.peer(state.id).and_then(|peer| {
            peer.conn
                .stream(state.stream)
                .ok()
                .map(|stream| stream.send_capacity())
        });
        (room != Some(0)).then(|| py.None())
    }

    /// None once the file is out, or once there is nobody to send it to.
    pub fn poll_file(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let state = self.state.open(py);
        if state.client == Client::Gone {
            return Some(py.None());
        }
        let mut engine = self.server.get().engine(py).ok()?;
        let sending = engine
            .peer(state.id)
            .is_some_and(|peer| peer.is_sending_file(state.stream));
        (!sending).then(|| py.None())
    }
}

pub fn references<T>(object: &Py<T>) -> isize {
    // SAFETY: the object is alive; this reads a field of it.
    unsafe { pyo3::ffi::Py_REFCNT(object.as_ptr()) as isize }
}

/// Completes futures on which somebody waits: all of them, whatever becomes of one. No cell may be open: the
/// loop's Python code runs.
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
