//! One HTTP/1 exchange: sending the request, receiving the response, and every wait in between.

use std::sync::Arc;
use std::time::Instant;

use towline_proto::{BodySize, ConnectionError, Event, OwnedHead, StreamError, StreamId};

use super::BlockingError;
use super::h1_conn::{H1Conn, RecvProgress, with_buffers};
use super::wait_policy::{Stop, WaitPolicy};
use crate::client::outcome::{self, FailureContext};
use crate::client::request::{
    Body, CallError, CallErrorKind, CallOptions, CallPhase, OutgoingRequest, Timeouts,
};

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
    fn take(&mut self) -> Option<OwnedHead> {
        let Self::Here { end, .. } = *self else {
            return None;
        };
        match std::mem::replace(self, Self::Taken { end }) {
            Self::Here { head, .. } => Some(head),
            Self::Awaited | Self::Taken { .. } => None,
        }
    }
}

/// The state of an exchange on its connection.
pub(super) struct Exchange {
    pub(super) stream: StreamId,
    pub(super) head_state: HeadState,
    pub(super) informational: Vec<OwnedHead>,
    failure: Option<Arc<ConnectionError>>,
    timeouts: Timeouts,
    /// Idempotence, replayability and reuse; `sent` counts the bytes.
    failure_context: FailureContext,
    size: BodySize,
    /// The program has not finished a streamed body.
    pub(super) uploading: bool,
    /// The body waits for `100 Continue`.
    awaits_continue: bool,
    /// No other call of this client is in progress, so no other thread here needs the CPU time spent polling.
    alone: bool,
    /// Bytes of the request that were queued, and that were sent.
    queued: u64,
    sent: u64,
}

impl Exchange {
    pub(super) fn new(
        request: &OutgoingRequest,
        options: &CallOptions,
        reused: bool,
        alone: bool,
    ) -> Self {
        Self {
            stream: StreamId(0),
            head_state: HeadState::Awaited,
            informational: Vec::new(),
            failure: None,
            timeouts: options.timeouts,
            failure_context: FailureContext::of(request, reused),
            size: request.body.size(),
            uploading: request.body.is_streamed(),
            awaits_continue: request.awaits_continue(),
            alone,
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
    fn queue_body(&mut self, conn: &mut H1Conn, body: &Body) -> Result<(), Box<CallError>> {
        let before = conn.peer.proto.pending_bytes();
        let protocol = &mut conn.peer.proto;
        let done = match body {
            Body::Empty | Body::Known(_) | Body::Unknown => Ok(()),
            Body::Bytes(bytes) => protocol.stream(self.stream).and_then(|mut stream| {
                stream.write_shared(bytes.clone())?;
                stream.finish()
            }),
            Body::File { file, offset, len } => {
                let file = file
                    .try_clone()
                    .map_err(|error| Box::new(file_error(&error)))?;
                self.queued += len;
                conn.peer.send_file(self.stream, file, *offset, *len)
            }
        };
        self.count_queued(before, conn);
        done.map_err(|error| Box::new(CallError::local(error)))
    }

    /// Waits with the body until the server sends 100 Continue or a response, or the time for that has passed (RFC 9110
    /// 10.1.1). Whether to send the body.
    pub(super) fn await_continue(
        &mut self,
        conn: &mut H1Conn,
        body: &Body,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<bool, BlockingError> {
        if !self.awaits_continue {
            return Ok(true);
        }
        let until = Instant::now() + outcome::CONTINUE_WITHIN;
        loop {
            let known = self.informational.len();
            self.take_events(conn);
            if !matches!(self.head_state, HeadState::Awaited) {
                return Ok(false);
            }
            self.check(conn, CallPhase::Head)?;
            let new = &self.informational[known..];
            if new.iter().any(|head| head.view().status() == 100) {
                break;
            }
            if self.flush(conn) {
                self.step(conn, CallPhase::Head, policy)?;
                continue;
            }
            let mut wait = policy.phase(Instant::now(), None);
            wait.end_at(Some(until));
            let slice = wait.first_slice();
            if with_buffers(|buffers| conn.recv_within(buffers, slice)) == RecvProgress::Nothing {
                match wait.next_slice() {
                    Ok(_) => {}
                    Err(Stop::Phase) => break,
                    Err(stop) => return Err(self.stopped(conn, CallPhase::Head, stop)),
                }
            }
        }
        self.awaits_continue = false;
        self.queue_body(conn, body).map_err(BlockingError::Failed)?;
        Ok(true)
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

    /// Counts bytes that were queued.
    pub(super) fn count_queued(&mut self, pending_before: usize, conn: &H1Conn) {
        let added = conn
            .peer
            .proto
            .pending_bytes()
            .saturating_sub(pending_before);
        self.queued += added as u64;
    }

    /// Waits until the final head has arrived.
    pub(super) fn await_head(
        &mut self,
        conn: &mut H1Conn,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<OwnedHead, BlockingError> {
        loop {
            self.take_events(conn);
            if let Some(head) = self.head_state.take() {
                return Ok(head);
            }
            self.check(conn, CallPhase::Head)?;
            if self.alone && !self.awaits_continue && self.sent == self.queued && conn.received == 0
            {
                let got = with_buffers(|buffers| conn.recv_soon(buffers));
                if got != RecvProgress::Nothing {
                    continue;
                }
            }
            self.step(conn, CallPhase::Head, policy)?;
        }
    }

    /// Sends or receives once, waiting if necessary. The caller checks events and buffer space afterwards.
    pub(super) fn step(
        &mut self,
        conn: &mut H1Conn,
        phase: CallPhase,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<(), BlockingError> {
        let sending = self.flush(conn);
        let (doing, timeout) = if sending {
            (CallPhase::Send, self.timeouts.write)
        } else {
            (phase, self.timeouts.read)
        };
        let mut wait = policy.phase(conn.now, timeout);
        let mut slice = wait.first_slice();
        loop {
            let got = if sending {
                let before = self.sent;
                if let Err(error) = conn.poll(slice) {
                    return Err(self.broken(conn, doing, &error));
                }
                self.flush(conn);
                match with_buffers(|buffers| conn.recv_at_once(buffers)) {
                    RecvProgress::Received => RecvProgress::Received,
                    _ if self.sent > before || conn.has_send_failed() => RecvProgress::Received,
                    RecvProgress::Nothing | RecvProgress::Full => RecvProgress::Nothing,
                }
            } else {
                with_buffers(|buffers| conn.recv_within(buffers, slice))
            };
            if got != RecvProgress::Nothing {
                return Ok(());
            }
            slice = wait
                .next_slice()
                .map_err(|stop| self.stopped(conn, doing, stop))?;
        }
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
                let phase = outcome::phase(has_head, self.uploading, size, self.sent);
                Err(self.ended(conn, outcome::failure(error, phase)))
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

    fn broken(&self, conn: &H1Conn, phase: CallPhase, error: &std::io::Error) -> BlockingError {
        let error = CallError {
            os_error: error.raw_os_error(),
            ..CallError::new(CallErrorKind::Read, phase, error.to_string())
        };
        self.ended(conn, error)
    }

    fn stopped(&self, conn: &H1Conn, phase: CallPhase, stop: Stop) -> BlockingError {
        match stop_error(stop, phase) {
            Some(error) => self.ended(conn, error),
            None => BlockingError::Interrupted,
        }
    }

    /// Adds `retryable`, bytes and reuse of this exchange to an error.
    fn ended(&self, conn: &H1Conn, error: CallError) -> BlockingError {
        let failure_context = FailureContext {
            bytes_sent: self.sent,
            bytes_received: conn.received,
            ..self.failure_context
        };
        BlockingError::Failed(Box::new(failure_context.describe(error, false)))
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

/// The error of a wait in `phase` that was stopped; `None` if the program interrupted it.
pub(super) fn stop_error(stop: Stop, phase: CallPhase) -> Option<CallError> {
    let kind = match (stop, phase) {
        (Stop::Interrupted, _) => return None,
        (Stop::Total, _) => CallErrorKind::TotalTimeout,
        (Stop::Phase, CallPhase::Send) => CallErrorKind::WriteTimeout,
        (Stop::Phase, _) => CallErrorKind::ReadTimeout,
    };
    Some(outcome::timeout(kind, phase))
}

/// Reads the clock again: the program may not have called for a while.
pub(super) fn refresh_clock(conn: &mut H1Conn) {
    conn.now = Instant::now();
}
