//! A call on an HTTP/1 connection.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use towline_proto::{Field, OwnedHead, StreamRead};

use super::h1_conn::{H1Conn, RecvProgress, with_buffers};
use super::h1_exchange::{Exchange, HeadState, Upload, refresh_clock};
use super::outcome::{self, BlockingError, FillOutcome, ReadOutcome, WriteOutcome};
use super::pooled_conn::open;
use super::shared_pool::SharedPool;
use super::wait_policy::WaitPolicy;
use crate::client::conn_ext::{MAX_SKIPPED_BODY_BYTES, Trailer, trailers_of};
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
        // The head is sent before the program writes a streamed body. Bytes that arrive from now on may be the response.
        if started.is_ok() {
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
        let is_over = matches!(self.exchange.head_state, HeadState::Taken { end: true })
            && !self.exchange.is_sending(&conn);
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
        let is_wanted = exchange.await_continue(&mut conn, body, policy)?;
        if !is_wanted {
            return Ok(WriteOutcome::Responded);
        }
        exchange.queue(&mut conn, data)?;
        exchange.await_room(&mut conn, policy)
    }

    pub(super) fn queue(&mut self, data: Bytes) -> Result<(), BlockingError> {
        let mut conn = open(&self.conn);
        refresh_clock(&mut conn);
        self.exchange.queue(&mut conn, data)
    }

    pub(super) fn is_writable(&mut self) -> bool {
        self.exchange.is_writable(&mut open(&self.conn))
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
        exchange.upload = Upload::Done;
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
            return Err(outcome::over());
        };
        let taken = match stream.read(max) {
            StreamRead::Data(data) => ReadOutcome::Data(sink(data)),
            StreamRead::Pending => return Ok((ReadOutcome::Pending, None)),
            StreamRead::End => {
                *trailers = trailers_of(&stream);
                self.exchange.is_read = true;
                if self.exchange.is_sending(&conn) {
                    // The call is over when its request has been sent, too.
                    return Ok((ReadOutcome::Pending, None));
                }
                ReadOutcome::End
            }
            // The response is complete: the rest of the request is not needed.
            StreamRead::Failed if self.exchange.is_read => {
                self.exchange.upload = Upload::GivenUp;
                ReadOutcome::End
            }
            StreamRead::Failed => return Err(self.exchange.body_failed(&mut conn)),
        };
        // A body of known length ends with its last bytes.
        let is_over = matches!(taken, ReadOutcome::End) || conn.peer.proto.is_idle();
        Ok((taken, is_over.then_some(conn.now)))
    }

    /// Waits until more of the body, its end or its failure has arrived, or until the request body can be continued.
    pub(super) fn fill(
        &mut self,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<FillOutcome, BlockingError> {
        let (exchange, mut conn) = (&mut self.exchange, open(&self.conn));
        refresh_clock(&mut conn);
        if exchange.wants_body() {
            if recv_at_once(&mut conn) {
                return Ok(FillOutcome::Filled);
            }
            if exchange.is_writable(&mut conn) {
                return Ok(FillOutcome::Writable);
            }
        }
        match exchange.step_writing(&mut conn, CallPhase::Body, policy) {
            // The response is complete: the rest of the request is not needed.
            Err(BlockingError::Failed(_)) if exchange.is_read => exchange.upload = Upload::GivenUp,
            stepped => stepped?,
        }
        Ok(FillOutcome::Filled)
    }

    /// Reads without waiting. Whether more of the body arrived.
    fn fill_at_once(&mut self) -> bool {
        recv_at_once(&mut open(&self.conn))
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
    /// Waits until more may be queued, or until the final head has arrived.
    fn await_room(
        &mut self,
        conn: &mut H1Conn,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<WriteOutcome, BlockingError> {
        recv_at_once(conn);
        loop {
            self.take_events(conn);
            if let HeadState::Here { .. } = &self.head_state {
                return Ok(WriteOutcome::Responded);
            }
            self.check(conn, CallPhase::Send)?;
            if self.is_writable(conn) {
                return Ok(WriteOutcome::Continue);
            }
            self.step_writing(conn, CallPhase::Head, policy)?;
        }
    }

    /// Queues a piece of the body and sends what the kernel accepts.
    fn queue(&mut self, conn: &mut H1Conn, data: Bytes) -> Result<(), BlockingError> {
        let before = conn.peer.proto.pending_bytes();
        let stream = conn.peer.proto.stream(self.stream);
        let written = stream.and_then(|mut stream| stream.write_shared(data));
        self.count_queued(before, conn);
        written.map_err(|error| BlockingError::Failed(Box::new(CallError::local(error))))?;
        self.flush(conn);
        Ok(())
    }

    /// Whether there is room for a piece of the body.
    fn is_writable(&mut self, conn: &mut H1Conn) -> bool {
        self.flush(conn);
        if conn.has_send_failed() {
            // A response that the server sent before may still be readable.
            self.upload = Upload::GivenUp;
            return false;
        }
        let stream = conn.peer.proto.stream(self.stream);
        stream.is_ok_and(|mut stream| stream.send_capacity() > 0)
    }
}

/// Receives without waiting. Whether anything has arrived.
fn recv_at_once(conn: &mut H1Conn) -> bool {
    conn.peer.proto.interest().read
        && with_buffers(|buffers| conn.recv_at_once(buffers)) == RecvProgress::Received
}
