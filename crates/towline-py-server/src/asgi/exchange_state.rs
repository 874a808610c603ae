//! The state of one exchange.
use pyo3::prelude::*;
use towline_io::ConnId;
use towline_io::serve::features::ExchangeRecord;
use towline_proto::StreamId;
use towline_py_common::task_future::TaskFuture;

use super::part_batch::PartBatch;
use super::pending_head::PendingHead;
use super::websocket::Session;

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
    /// The client has closed its sending half: `receive()` reports it, responses are still sent.
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
    /// The future on which the task waited when the step under way began.
    pub stepping: Option<Py<TaskFuture>>,
    receivers: Vec<Py<TaskFuture>>,
    senders: Vec<Py<TaskFuture>>,
}

impl ExchangeState {
    pub fn new(id: ConnId, stream: StreamId) -> Self {
        Self {
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
            stepping: None,
            receivers: Vec::new(),
            senders: Vec::new(),
        }
    }

    /// Begins another request; buffers are kept.
    pub fn reset(&mut self, id: ConnId, stream: StreamId) {
        self.id = id;
        self.stream = stream;
        self.client = ClientState::Connected;
        self.response = ResponsePhase::Idle;
        self.body_ended = false;
        self.dirty = false;
        self.sends_file = false;
        self.head.clear();
        self.parts = PartBatch::default();
        self.websocket = None;
    }

    pub fn add_waiter(&mut self, future: Py<TaskFuture>, wait_for: WaitFor) {
        if wait_for == WaitFor::Receive {
            self.receivers.push(future);
        } else {
            self.senders.push(future);
        }
    }

    pub fn waiters(&self) -> impl Iterator<Item = &Py<TaskFuture>> {
        self.receivers.iter().chain(&self.senders)
    }

    /// Takes all waiters, to be woken when no cell is open.
    pub fn take_waiters(&mut self) -> Vec<Py<TaskFuture>> {
        let mut waiters = std::mem::take(&mut self.receivers);
        waiters.append(&mut self.senders);
        waiters
    }

    pub fn has_receivers(&self) -> bool {
        !self.receivers.is_empty()
    }

    pub fn take_receivers(&mut self) -> Vec<Py<TaskFuture>> {
        std::mem::take(&mut self.receivers)
    }

    pub fn take_senders(&mut self) -> Vec<Py<TaskFuture>> {
        std::mem::take(&mut self.senders)
    }
}
