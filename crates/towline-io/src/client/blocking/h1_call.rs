//! One call on a connection of its own (HTTP/1).

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use towline_proto::{Field, OwnedHead, StreamRead};

use super::Ended;
use super::call::{self, Taken, Trailer, Written};
use super::h1_conn::{Got, Line, with_buffers};
use super::h1_exchange::{Answer, Exchange, refresh};
use super::pooled_conn::open;
use super::shared_pool::Desk;
use super::wait_policy::Patience;
use crate::client::pool::SlotId;
use crate::client::request::{Body, CallError, CallErrorKind, CallPhase, Prepared};
use crate::client::retry::Standing;

/// Bytes of an unread body that are skipped to keep the connection.
const MOST_DRAINED: usize = 64 * 1024;

pub(super) struct Solo {
    pub(super) slot: SlotId,
    pub(super) fd: RawFd,
    pub(super) line: Arc<Mutex<Line>>,
    pub(super) exchange: Exchange,
}

impl Solo {
    /// Writes the request as far as it is at hand.
    pub(super) fn start(
        &mut self,
        prepared: &Prepared,
        begun: Instant,
    ) -> Result<(), Box<CallError>> {
        let mut line = open(&self.line);
        line.now = line.now.max(begun);
        let started = self.exchange.start(&mut line, prepared);
        // A streamed body's first bytes leave together with the head.
        if started.is_ok() && (!prepared.body.is_streamed() || prepared.holds_back()) {
            self.exchange.flush(&mut line);
        }
        started
    }

    /// Waits for the final head; whether that is all there is, and when it came.
    pub(super) fn await_head(
        &mut self,
        body: &Body,
        patience: &mut Patience<'_>,
    ) -> Result<(OwnedHead, bool, Instant), Ended> {
        let mut line = open(&self.line);
        self.exchange.await_continue(&mut line, body, patience)?;
        let head = self.exchange.await_head(&mut line, patience)?;
        let is_over = matches!(self.exchange.answer, Answer::Taken { end: true });
        Ok((head, is_over, line.now))
    }

    // The body of the request.

    pub(super) fn write(
        &mut self,
        data: Bytes,
        body: &Body,
        patience: &mut Patience<'_>,
    ) -> Result<Written, Ended> {
        let (exchange, mut line) = (&mut self.exchange, open(&self.line));
        refresh(&mut line);
        if !exchange.await_continue(&mut line, body, patience)? {
            return Ok(Written::Answered);
        }
        let before = line.peer.conn.pending_bytes();
        let stream = line.peer.conn.stream(exchange.stream);
        let written = stream.and_then(|mut stream| stream.write_shared(data));
        exchange.count_queued(before, &line);
        if let Err(error) = written {
            return Err(Ended::Failed(Box::new(CallError::local(error))));
        }
        exchange.flush(&mut line);
        exchange.await_room(&mut line, patience)
    }

    pub(super) fn finish(
        &mut self,
        trailers: &[Field<'_>],
        body: &Body,
        patience: &mut Patience<'_>,
    ) -> Result<(), Ended> {
        let (exchange, mut line) = (&mut self.exchange, open(&self.line));
        refresh(&mut line);
        if !exchange.await_continue(&mut line, body, patience)? {
            return Ok(());
        }
        let before = line.peer.conn.pending_bytes();
        let stream = line.peer.conn.stream(exchange.stream);
        let finished = stream.and_then(|mut stream| stream.finish_with(trailers));
        exchange.count_queued(before, &line);
        exchange.flush(&mut line);
        finished.map_err(|error| Ended::Failed(Box::new(CallError::local(error))))
    }

    // The body of the response.

    /// Gives `sink` up to `max` bytes that are here. Where the response is over: when, and its trailers.
    pub(super) fn take<T>(
        &mut self,
        max: usize,
        trailers: &mut Vec<Trailer>,
        sink: impl FnOnce(&[u8]) -> T,
    ) -> Result<(Taken<T>, Option<Instant>), Ended> {
        let mut line = open(&self.line);
        let Ok(mut stream) = line.peer.conn.stream(self.exchange.stream) else {
            return Err(call::over());
        };
        let taken = match stream.read(max) {
            StreamRead::Data(data) => Taken::Data(sink(data)),
            StreamRead::Pending => return Ok((Taken::Pending, None)),
            StreamRead::End => {
                *trailers = call::trailers_of(&stream);
                Taken::End
            }
            StreamRead::Failed => return Err(self.exchange.body_failed(&mut line)),
        };
        // The last bytes of a body of known length are its end.
        let is_over = matches!(taken, Taken::End) || line.peer.conn.is_idle();
        Ok((taken, is_over.then_some(line.now)))
    }

    /// Waits until more of the body, its end or its failure is here.
    pub(super) fn fill(&mut self, patience: &mut Patience<'_>) -> Result<(), Ended> {
        let mut line = open(&self.line);
        refresh(&mut line);
        self.exchange.step(&mut line, CallPhase::Body, patience)
    }

    /// More of the body is here that was not.
    fn fill_at_once(&mut self) -> bool {
        let mut line = open(&self.line);
        with_buffers(|buffers| line.recv_at_once(buffers)) == Got::News
    }

    pub(super) fn buffered(&self) -> usize {
        let mut line = open(&self.line);
        let stream = line.peer.conn.stream(self.exchange.stream);
        stream.map_or(0, |stream| stream.buffered())
    }

    // The end.

    /// The exchange is complete.
    pub(super) fn give_back(self, desk: &Desk, now: Instant) {
        let mut line = open(&self.line);
        let reusable = line.peer.conn.is_reusable() && !line.has_send_failed();
        if reusable {
            with_buffers(|buffers| line.peer.conn.release(buffers));
        }
        drop(line);
        if reusable {
            desk.give_back(self.slot, now);
        } else {
            desk.discard(self.slot, self.fd);
        }
    }

    /// The connection is of no more use.
    pub(super) fn put_away(self, desk: &Desk) {
        desk.discard(self.slot, self.fd);
    }

    /// Skips the rest of a response where it is small and there. Returned: when it was over.
    pub(super) fn skip(&mut self) -> Option<Instant> {
        let mut left = MOST_DRAINED;
        while left > 0 {
            match self.take(left, &mut Vec::new(), <[u8]>::len) {
                Ok((_, Some(over))) => return Some(over),
                Ok((Taken::Data(bytes), None)) => left -= bytes.min(left),
                Ok((Taken::Pending, None)) if self.fill_at_once() => {}
                Ok(_) | Err(_) => break,
            }
        }
        None
    }
}

/// How the exchange stood, if it is its connection that was there no more.
pub(super) fn standing(error: &CallError, resends: u8) -> Option<Standing> {
    let is_end = matches!(
        error.kind,
        CallErrorKind::ServerDisconnected | CallErrorKind::Read | CallErrorKind::Write
    );
    is_end.then_some(Standing {
        reused: error.reused,
        response_started: error.bytes_received > 0,
        unprocessed: false,
        resends,
    })
}

impl Exchange {
    /// Waits until more may be queued.
    fn await_room(
        &mut self,
        line: &mut Line,
        patience: &mut Patience<'_>,
    ) -> Result<Written, Ended> {
        loop {
            self.take_events(line);
            if let Answer::Here { head, .. } = &self.answer
                && (head.view().status() >= 300 || line.has_send_failed())
            {
                return Ok(Written::Answered);
            }
            self.check(line, CallPhase::Send)?;
            let room = line.peer.conn.stream(self.stream);
            if room.is_ok_and(|stream| stream.send_capacity() > 0) && !line.has_send_failed() {
                return Ok(Written::Taken);
            }
            self.step(line, CallPhase::Head, patience)?;
        }
    }
}
