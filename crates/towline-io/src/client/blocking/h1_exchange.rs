//! One exchange on a line: the request out, the response in, and every wait in between.

use std::sync::Arc;
use std::time::Instant;

use towline_proto::{ConnectionError, Event, OwnedHead, StreamError, StreamId};

use super::Ended;
use super::h1_conn::{Got, Line, with_buffers};
use super::wait_policy::{Patience, Stop};
use crate::client::request::{
    Body, CallError, CallErrorKind, CallOptions, CallPhase, Prepared, Timeouts,
};
use crate::client::retry;

/// The final head.
pub(super) enum Answer {
    Awaited,
    /// `end`: no body follows.
    Here {
        head: OwnedHead,
        end: bool,
    },
    /// The program has it.
    Taken {
        end: bool,
    },
}

impl Answer {
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

/// The state of a call on its connection.
#[expect(
    clippy::struct_excessive_bools,
    reason = "four facts, none of which implies another"
)]
pub(super) struct Exchange {
    pub(super) stream: StreamId,
    pub(super) answer: Answer,
    pub(super) informational: Vec<OwnedHead>,
    failure: Option<Arc<ConnectionError>>,
    timeouts: Timeouts,
    retryable: bool,
    reused: bool,
    /// The body waits for the server to want it.
    held: bool,
    /// No other call of this client is under way: nobody here needs the time spent in looking.
    alone: bool,
    /// Bytes of the request that have been made, and that have left.
    queued: u64,
    sent: u64,
}

impl Exchange {
    pub(super) fn new(
        prepared: &Prepared,
        options: &CallOptions,
        reused: bool,
        alone: bool,
    ) -> Self {
        Self {
            stream: StreamId(0),
            answer: Answer::Awaited,
            informational: Vec::new(),
            failure: None,
            timeouts: options.timeouts,
            retryable: prepared.idempotent && prepared.body.is_replayable(),
            held: prepared.holds_back(),
            reused,
            alone,
            queued: 0,
            sent: 0,
        }
    }

    /// Writes the head, and the body as far as it is at hand, into the connection.
    pub(super) fn start(
        &mut self,
        line: &mut Line,
        prepared: &Prepared,
    ) -> Result<(), Box<CallError>> {
        line.received = 0;
        let conn = &mut line.peer.conn;
        let size = prepared.body.size();
        let begun = prepared.head.with_head(|head| conn.request(head, size));
        self.stream = begun.map_err(|error| Box::new(CallError::local(error)))?;
        self.queued += line.peer.conn.pending_bytes() as u64;
        if self.held {
            return Ok(());
        }
        self.queue_body(line, &prepared.body)
    }

    /// The body as far as it is at hand, and what waits before it.
    fn queue_body(&mut self, line: &mut Line, body: &Body) -> Result<(), Box<CallError>> {
        let before = line.peer.conn.pending_bytes();
        let conn = &mut line.peer.conn;
        let done = match body {
            Body::Empty | Body::Known(_) | Body::Unknown => Ok(()),
            Body::Bytes(bytes) => conn.stream(self.stream).and_then(|mut stream| {
                stream.write_shared(bytes.clone())?;
                stream.finish()
            }),
            Body::File { file, offset, len } => {
                let file = file
                    .try_clone()
                    .map_err(|error| Box::new(file_error(&error)))?;
                self.queued += len;
                line.peer.send_file(self.stream, file, *offset, *len)
            }
        };
        self.count_queued(before, line);
        done.map_err(|error| Box::new(CallError::local(error)))
    }

    /// Holds the body back until the server wants it, has answered, or has had its time
    /// (RFC 9110 10.1.1). Whether the body goes.
    pub(super) fn await_continue(
        &mut self,
        line: &mut Line,
        body: &Body,
        patience: &mut Patience<'_>,
    ) -> Result<bool, Ended> {
        if !self.held {
            return Ok(true);
        }
        let until = Instant::now() + retry::CONTINUE_WITHIN;
        loop {
            let known = self.informational.len();
            self.take_events(line);
            if !matches!(self.answer, Answer::Awaited) {
                return Ok(false);
            }
            self.check(line, CallPhase::Head)?;
            let new = &self.informational[known..];
            if new.iter().any(|head| head.view().status() == 100) {
                break;
            }
            if self.flush(line) {
                self.step(line, CallPhase::Head, patience)?;
                continue;
            }
            let mut wait = patience.phase(Instant::now(), None);
            wait.end_at(Some(until));
            let slice = wait.first_slice();
            if with_buffers(|buffers| line.recv_within(buffers, slice)) == Got::Nothing {
                match wait.next_slice() {
                    Ok(_) => {}
                    Err(Stop::Phase) => break,
                    Err(stop) => return Err(self.stopped(line, CallPhase::Head, stop)),
                }
            }
        }
        self.held = false;
        self.queue_body(line, body).map_err(Ended::Failed)?;
        Ok(true)
    }

    /// Sends what the kernel takes at once. Whether that leaves a rest.
    pub(super) fn flush(&mut self, line: &mut Line) -> bool {
        let blocked = line.flush();
        if !line.has_send_failed() {
            let waits = line.peer.conn.pending_bytes() as u64 + line.peer.files_left();
            self.sent = self.queued.saturating_sub(waits);
        }
        blocked
    }

    /// Counts bytes that the program has added.
    pub(super) fn count_queued(&mut self, pending_before: usize, line: &Line) {
        let added = line
            .peer
            .conn
            .pending_bytes()
            .saturating_sub(pending_before);
        self.queued += added as u64;
    }

    /// Waits until the final head is here.
    pub(super) fn await_head(
        &mut self,
        line: &mut Line,
        patience: &mut Patience<'_>,
    ) -> Result<OwnedHead, Ended> {
        loop {
            self.take_events(line);
            if let Some(head) = self.answer.take() {
                return Ok(head);
            }
            self.check(line, CallPhase::Head)?;
            if self.alone && !self.held && self.sent == self.queued && line.received == 0 {
                let got = with_buffers(|buffers| line.recv_soon(buffers));
                if got != Got::Nothing {
                    continue;
                }
            }
            self.step(line, CallPhase::Head, patience)?;
        }
    }

    /// One step of sending or receiving, waited for. Look at the events, and at the room, afterwards.
    pub(super) fn step(
        &mut self,
        line: &mut Line,
        phase: CallPhase,
        patience: &mut Patience<'_>,
    ) -> Result<(), Ended> {
        let sending = self.flush(line);
        let (doing, timeout) = if sending {
            (CallPhase::Send, self.timeouts.write)
        } else {
            (phase, self.timeouts.read)
        };
        let mut wait = patience.phase(line.now, timeout);
        let mut slice = wait.first_slice();
        loop {
            let got = if sending {
                let before = self.sent;
                if let Err(error) = line.poll(slice) {
                    return Err(self.broken(line, doing, &error));
                }
                self.flush(line);
                match with_buffers(|buffers| line.recv_at_once(buffers)) {
                    Got::News => Got::News,
                    _ if self.sent > before || line.has_send_failed() => Got::News,
                    Got::Nothing | Got::Full => Got::Nothing,
                }
            } else {
                with_buffers(|buffers| line.recv_within(buffers, slice))
            };
            if got != Got::Nothing {
                return Ok(());
            }
            slice = wait
                .next_slice()
                .map_err(|stop| self.stopped(line, doing, stop))?;
        }
    }

    /// Notes what has happened.
    pub(super) fn take_events(&mut self, line: &mut Line) {
        if !matches!(self.answer, Answer::Awaited) && !line.peer.conn.has_events() {
            return;
        }
        while let Some(event) = line.peer.conn.next_event() {
            match event {
                Event::Head { head, end, .. } => {
                    let head = head.to_owned_head();
                    self.answer = Answer::Here { head, end };
                    // What follows is the body's business.
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
    pub(super) fn check(&self, line: &Line, phase: CallPhase) -> Result<(), Ended> {
        match &self.failure {
            None => Ok(()),
            Some(error) => {
                let phase = if phase == CallPhase::Head && self.sent < self.queued {
                    CallPhase::Send
                } else {
                    phase
                };
                Err(self.ended(line, retry::failure(error, phase)))
            }
        }
    }

    /// The body can no longer be completed.
    pub(super) fn body_failed(&mut self, line: &mut Line) -> Ended {
        self.take_events(line);
        if let Err(ended) = self.check(line, CallPhase::Body) {
            return ended;
        }
        let rule = "the response was given up";
        self.ended(
            line,
            CallError::new(CallErrorKind::Read, CallPhase::Body, rule),
        )
    }

    fn broken(&self, line: &Line, phase: CallPhase, error: &std::io::Error) -> Ended {
        let error = CallError {
            os_error: error.raw_os_error(),
            ..CallError::new(CallErrorKind::Read, phase, error.to_string())
        };
        self.ended(line, error)
    }

    fn stopped(&self, line: &Line, phase: CallPhase, stop: Stop) -> Ended {
        match overdue(stop, phase) {
            Some(error) => self.ended(line, error),
            None => Ended::Interrupted,
        }
    }

    /// An error with the facts of this exchange.
    fn ended(&self, line: &Line, error: CallError) -> Ended {
        Ended::Failed(Box::new(CallError {
            retryable: self.retryable || self.sent == 0,
            bytes_sent: self.sent,
            bytes_received: line.received,
            reused: self.reused,
            ..error
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

/// What a wait in `phase` that was stopped ends with; `None`: nothing has failed.
pub(super) fn overdue(stop: Stop, phase: CallPhase) -> Option<CallError> {
    let (kind, rule) = match (stop, phase) {
        (Stop::Interrupted, _) => return None,
        (Stop::Total, _) => (
            CallErrorKind::TotalTimeout,
            "the call took longer than its total timeout",
        ),
        (Stop::Phase, CallPhase::Send) => (
            CallErrorKind::WriteTimeout,
            "the server took nothing of the request within the write timeout",
        ),
        (Stop::Phase, _) => (
            CallErrorKind::ReadTimeout,
            "nothing of the response came within the read timeout",
        ),
    };
    Some(CallError::new(kind, phase, rule))
}

/// The program may have been elsewhere for a while.
pub(super) fn refresh(line: &mut Line) {
    line.now = Instant::now();
}
