//! A call on an HTTP/1 connection.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use towline_proto::{Field, OwnedHead, StreamRead};

use super::BlockingError;
use super::call::{self, ReadOutcome, Trailer, WriteOutcome};
use super::h1_conn::{H1Conn, RecvProgress, with_buffers};
use super::h1_exchange::{Exchange, HeadState, refresh_clock};
use super::pooled_conn::open;
use super::shared_pool::SharedPool;
use super::wait_policy::WaitPolicy;
use crate::client::conn_ext::MAX_SKIPPED_BODY_BYTES;
use crate::client::pool::SlotId;
use crate::client::request::{Body, CallError, CallPhase, OutgoingRequest};

/// A call on an HTTP/1 connection, which carries no other.
pub(super) struct H1Call {
    pub(super) slot: SlotId,
    pub(super) fd: RawFd,
    pub(super) conn: Arc<Mutex<H1Conn>>,
    pub(super) exchange: Exchange,
}

impl H1Call {
    /// Writes the request, with as much of the body as is available.
    pub(super) fn start(
        &mut self,
        request: &OutgoingRequest,
        begun: Instant,
    ) -> Result<(), Box<CallError>> {
        let mut conn = open(&self.conn);
        conn.now = conn.now.max(begun);
        let started = self.exchange.start(&mut conn, request);
        // A streamed body's first bytes are sent together with the head.
        if started.is_ok() && (!request.body.is_streamed() || request.awaits_continue()) {
            self.exchange.flush(&mut conn);
        }
        started
    }

    /// Waits for the final head. Returns it, whether the response ends with it, and when it arrived.
    pub(super) fn await_head(
        &mut self,
        body: &Body,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<(OwnedHead, bool, Instant), BlockingError> {
        let mut conn = open(&self.conn);
        self.exchange.await_continue(&mut conn, body, policy)?;
        let head = self.exchange.await_head(&mut conn, policy)?;
        let is_over = matches!(self.exchange.head_state, HeadState::Taken { end: true });
        Ok((head, is_over, conn.now))
    }

    // The request body.

    pub(super) fn write(
        &mut self,
        data: Bytes,
        body: &Body,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<WriteOutcome, BlockingError> {
        let (exchange, mut conn) = (&mut self.exchange, open(&self.conn));
        refresh_clock(&mut conn);
        if !exchange.await_continue(&mut conn, body, policy)? {
            return Ok(WriteOutcome::Responded);
        }
        let before = conn.peer.proto.pending_bytes();
        let stream = conn.peer.proto.stream(exchange.stream);
        let written = stream.and_then(|mut stream| stream.write_shared(data));
        exchange.count_queued(before, &conn);
        if let Err(error) = written {
            return Err(BlockingError::Failed(Box::new(CallError::local(error))));
        }
        exchange.flush(&mut conn);
        exchange.await_room(&mut conn, policy)
    }

    pub(super) fn finish(
        &mut self,
        trailers: &[Field<'_>],
        body: &Body,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<(), BlockingError> {
        let (exchange, mut conn) = (&mut self.exchange, open(&self.conn));
        refresh_clock(&mut conn);
        if !exchange.await_continue(&mut conn, body, policy)? {
            return Ok(());
        }
        let before = conn.peer.proto.pending_bytes();
        let stream = conn.peer.proto.stream(exchange.stream);
        let finished = stream.and_then(|mut stream| stream.finish_with(trailers));
        exchange.count_queued(before, &conn);
        exchange.flush(&mut conn);
        exchange.uploading = false;
        finished.map_err(|error| BlockingError::Failed(Box::new(CallError::local(error))))
    }

    // The response body.

    /// Passes up to `max` buffered bytes to `sink`. At the end of the response: also when it ended, and its
    /// trailers.
    pub(super) fn take<T>(
        &mut self,
        max: usize,
        trailers: &mut Vec<Trailer>,
        sink: impl FnOnce(&[u8]) -> T,
    ) -> Result<(ReadOutcome<T>, Option<Instant>), BlockingError> {
        let mut conn = open(&self.conn);
        let Ok(mut stream) = conn.peer.proto.stream(self.exchange.stream) else {
            return Err(call::over());
        };
        let taken = match stream.read(max) {
            StreamRead::Data(data) => ReadOutcome::Data(sink(data)),
            StreamRead::Pending => return Ok((ReadOutcome::Pending, None)),
            StreamRead::End => {
                *trailers = call::trailers_of(&stream);
                ReadOutcome::End
            }
            StreamRead::Failed => return Err(self.exchange.body_failed(&mut conn)),
        };
        // A body of known length ends with its last bytes.
        let is_over = matches!(taken, ReadOutcome::End) || conn.peer.proto.is_idle();
        Ok((taken, is_over.then_some(conn.now)))
    }

    /// Waits until more of the body, its end or its failure has arrived.
    pub(super) fn fill(&mut self, policy: &mut WaitPolicy<'_>) -> Result<(), BlockingError> {
        let mut conn = open(&self.conn);
        refresh_clock(&mut conn);
        self.exchange.step(&mut conn, CallPhase::Body, policy)
    }

    /// Reads without waiting. Whether more of the body arrived.
    fn fill_at_once(&mut self) -> bool {
        let mut conn = open(&self.conn);
        with_buffers(|buffers| conn.recv_at_once(buffers)) == RecvProgress::Received
    }

    pub(super) fn buffered(&self) -> usize {
        let mut conn = open(&self.conn);
        let stream = conn.peer.proto.stream(self.exchange.stream);
        stream.map_or(0, |stream| stream.buffered())
    }

    // The end of the call.

    /// Ends a complete exchange.
    pub(super) fn release(self, pool: &SharedPool, now: Instant) {
        let mut conn = open(&self.conn);
        let reusable = conn.peer.proto.is_reusable() && !conn.has_send_failed();
        if reusable {
            with_buffers(|buffers| conn.peer.proto.release(buffers));
        }
        drop(conn);
        if reusable {
            pool.release(self.slot, now);
        } else {
            pool.remove(self.slot, self.fd);
        }
    }

    /// Removes the connection from the pool.
    pub(super) fn abort(self, pool: &SharedPool) {
        pool.remove(self.slot, self.fd);
    }

    /// Skips the rest of a response if it is small and already here. Returns when it ended.
    pub(super) fn skip(&mut self) -> Option<Instant> {
        let mut left = MAX_SKIPPED_BODY_BYTES;
        while left > 0 {
            match self.take(left, &mut Vec::new(), <[u8]>::len) {
                Ok((_, Some(over))) => return Some(over),
                Ok((ReadOutcome::Data(bytes), None)) => left -= bytes.min(left),
                Ok((ReadOutcome::Pending, None)) if self.fill_at_once() => {}
                Ok(_) | Err(_) => break,
            }
        }
        None
    }
}

impl Exchange {
    /// Waits until more may be queued.
    fn await_room(
        &mut self,
        conn: &mut H1Conn,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<WriteOutcome, BlockingError> {
        loop {
            self.take_events(conn);
            if let HeadState::Here { head, .. } = &self.head_state
                && (head.view().status() >= 300 || conn.has_send_failed())
            {
                return Ok(WriteOutcome::Responded);
            }
            self.check(conn, CallPhase::Send)?;
            let room = conn.peer.proto.stream(self.stream);
            if room.is_ok_and(|mut stream| stream.send_capacity() > 0) && !conn.has_send_failed() {
                return Ok(WriteOutcome::Continue);
            }
            self.step(conn, CallPhase::Head, policy)?;
        }
    }
}
