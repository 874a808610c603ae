//! One HTTP/1 exchange: sending the request and receiving the response. Its waits are in `h1_wait`.

use std::sync::Arc;
use std::time::Instant;

use towline_proto::{BodySize, ConnectionError, Event, OwnedHead, StreamError, StreamId};

use super::h1_conn::H1Conn;
use super::outcome::BlockingError;
use crate::client::call_error::{self, FailureContext};
use crate::client::conn_ext::{duplicate, refuses_body, write_body};
use crate::client::request::{
    Body, CallError, CallErrorKind, CallOptions, CallPhase, OutgoingRequest, Timeouts,
};
use crate::client::route::Route;

/// State of the final response head.
pub(super) enum HeadState {
    Awaited,
    /// `end`: no body follows.
    Here {
        head: OwnedHead,
        end: bool,
    },
    /// The program has taken it.
    Taken {
        end: bool,
    },
}

impl HeadState {
    pub(super) fn take(&mut self) -> Option<OwnedHead> {
        let Self::Here { end, .. } = *self else {
            return None;
        };
        match std::mem::replace(self, Self::Taken { end }) {
            Self::Here { head, .. } => Some(head),
            Self::Awaited | Self::Taken { .. } => None,
        }
    }
}

/// State of the request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upload {
    /// Given with the request, or finished.
    Done,
    /// Being written by the program.
    Open,
    /// The rest cannot be sent, or is not wanted.
    GivenUp,
}

/// The state of an exchange on its connection.
pub(super) struct Exchange {
    pub(super) stream: StreamId,
    pub(super) head_state: HeadState,
    pub(super) informational: Vec<OwnedHead>,
    failure: Option<Arc<ConnectionError>>,
    pub(super) timeouts: Timeouts,
    /// Idempotence, replayability and reuse; `sent` counts the bytes.
    failure_context: FailureContext,
    /// The route, if it has a proxy, which errors name.
    proxied: Option<Arc<Route>>,
    size: BodySize,
    pub(super) upload: Upload,
    /// The end of the response has been read.
    pub(super) is_read: bool,
    /// The body waits for `100 Continue`.
    pub(super) awaits_continue: bool,
    /// No other call of this client is in progress, so no other thread here needs the CPU time spent polling.
    pub(super) is_only_call: bool,
    /// Bytes of the request that were queued, and that were sent.
    pub(super) queued: u64,
    pub(super) sent: u64,
}

impl Exchange {
    pub(super) fn new(
        request: &OutgoingRequest,
        options: &CallOptions,
        reused: bool,
        is_only_call: bool,
    ) -> Self {
        Self {
            stream: StreamId(0),
            head_state: HeadState::Awaited,
            informational: Vec::new(),
            failure: None,
            timeouts: options.timeouts,
            failure_context: FailureContext::of(request, reused),
            proxied: (request.route.proxy.as_ref()).map(|_| Arc::clone(&request.route)),
            size: request.body.size(),
            upload: if request.body.is_streamed() {
                Upload::Open
            } else {
                Upload::Done
            },
            is_read: false,
            awaits_continue: request.awaits_continue(),
            is_only_call,
            queued: 0,
            sent: 0,
        }
    }

    /// Queues the head and, as far as available, the body.
    pub(super) fn start(
        &mut self,
        conn: &mut H1Conn,
        request: &OutgoingRequest,
    ) -> Result<(), Box<CallError>> {
        conn.received = 0;
        let protocol = &mut conn.peer.proto;
        let size = request.body.size();
        let begun = request.head.with_head(|head| protocol.request(head, size));
        self.stream = begun.map_err(|error| Box::new(CallError::local(error)))?;
        self.queued += conn.peer.proto.pending_bytes() as u64;
        if self.awaits_continue {
            return Ok(());
        }
        self.queue_body(conn, &request.body)
    }

    /// Queues as much of the body as is available.
    pub(super) fn queue_body(
        &mut self,
        conn: &mut H1Conn,
        body: &Body,
    ) -> Result<(), Box<CallError>> {
        let file = duplicate(body).map_err(|error| Box::new(file_error(&error)))?;
        if let Body::File { len, .. } = body {
            self.queued += len;
        }
        let before = conn.peer.proto.pending_bytes();
        let done = write_body(&mut conn.peer, self.stream, body, file);
        self.count_queued(before, conn);
        done.map_err(|error| Box::new(CallError::local(error)))
    }

    /// Sends as much as the kernel accepts. Whether bytes are left.
    pub(super) fn flush(&mut self, conn: &mut H1Conn) -> bool {
        let blocked = conn.flush();
        if !conn.has_send_failed() {
            let waits = conn.peer.proto.pending_bytes() as u64 + conn.peer.files_left();
            self.sent = self.queued.saturating_sub(waits);
        }
        blocked
    }

    /// Whether the program is to write more of a streamed body.
    pub(super) fn wants_body(&self) -> bool {
        self.upload == Upload::Open
    }

    /// Whether the request is still being sent, to a server that has not refused it.
    pub(super) fn is_sending(&self, conn: &H1Conn) -> bool {
        let has_unsent = conn.peer.proto.pending_bytes() > 0 || conn.peer.is_sending_files();
        match self.upload {
            Upload::GivenUp => false,
            _ if conn.has_send_failed() => false,
            Upload::Open => true,
            Upload::Done => has_unsent,
        }
    }

    /// Counts bytes that were queued.
    pub(super) fn count_queued(&mut self, pending_before: usize, conn: &H1Conn) {
        let added = conn
            .peer
            .proto
            .pending_bytes()
            .saturating_sub(pending_before);
        self.queued += added as u64;
    }

    /// Processes the events of the connection.
    pub(super) fn take_events(&mut self, conn: &mut H1Conn) {
        if !matches!(self.head_state, HeadState::Awaited) && !conn.peer.proto.has_events() {
            return;
        }
        while let Some(event) = conn.peer.proto.next_event() {
            match event {
                Event::Head { head, end, .. } => {
                    let head = head.to_owned_head();
                    if refuses_body(head.view().status()) {
                        self.upload = Upload::GivenUp;
                    }
                    self.head_state = HeadState::Here { head, end };
                    // The events after it belong to the body.
                    return;
                }
                Event::Informational { head, .. } => self.informational.push(head.to_owned_head()),
                Event::Failed(_, StreamError::Connection(error)) | Event::Closed(error) => {
                    self.failure.get_or_insert(error);
                }
                Event::Failed(..)
                | Event::Readable(_)
                | Event::Writable(_)
                | Event::HalfClosed(_)
                | Event::Switched { .. }
                | Event::GoingAway { .. } => {}
            }
        }
    }

    /// `Err` when the exchange can no longer complete.
    pub(super) fn check(&self, conn: &H1Conn, phase: CallPhase) -> Result<(), BlockingError> {
        match &self.failure {
            None => Ok(()),
            Some(error) => {
                let has_head = phase == CallPhase::Body;
                let size = if self.awaits_continue {
                    BodySize::Empty
                } else {
                    self.size
                };
                let phase =
                    call_error::phase(has_head, self.upload == Upload::Open, size, self.sent);
                Err(self.ended(conn, call_error::failure(error, phase)))
            }
        }
    }

    /// The error of a body that cannot be completed.
    pub(super) fn body_failed(&mut self, conn: &mut H1Conn) -> BlockingError {
        self.take_events(conn);
        if let Err(ended) = self.check(conn, CallPhase::Body) {
            return ended;
        }
        let rule = "the response was given up";
        self.ended(
            conn,
            CallError::new(CallErrorKind::Read, CallPhase::Body, rule),
        )
    }

    pub(super) fn broken(
        &self,
        conn: &H1Conn,
        phase: CallPhase,
        error: &std::io::Error,
    ) -> BlockingError {
        let error = CallError {
            os_error: error.raw_os_error(),
            ..CallError::new(CallErrorKind::Read, phase, error.to_string())
        };
        self.ended(conn, error)
    }

    /// Adds `retryable`, bytes and reuse of this exchange to an error.
    pub(super) fn ended(&self, conn: &H1Conn, error: CallError) -> BlockingError {
        let failure_context = FailureContext {
            bytes_sent: self.sent,
            bytes_received: conn.received,
            ..self.failure_context
        };
        let error = failure_context.with_context(error, false);
        BlockingError::Failed(Box::new(match &self.proxied {
            Some(route) => error.through(route),
            None => error,
        }))
    }
}

fn file_error(error: &std::io::Error) -> CallError {
    CallError {
        os_error: error.raw_os_error(),
        ..CallError::new(
            CallErrorKind::LocalProtocol,
            CallPhase::Send,
            format!("the body's file cannot be read: {error}"),
        )
    }
}

/// Reads the clock again: the program may not have called for a while.
pub(super) fn refresh_clock(conn: &mut H1Conn) {
    conn.now = Instant::now();
}
