//! A call on a shared HTTP/2 connection.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use towline_proto::{
    BodySize, Field, OwnedHead, StreamId, StreamMut, StreamRead, StreamStats, UserError,
};

use super::BlockingError;
use super::call::{self, WriteOutcome};
use super::h1_exchange::stop_error;
use super::h2_conn::{H2Conn, SharedState, StreamFailure, StreamSlot, StreamWait, WaitError};
use super::read_buffer::ReadBuffer;
use super::shared_pool::SharedPool;
use super::wait_policy::{Stop, WaitPolicy};
use crate::client::conn_ext::{duplicate, write_body, write_request};
use crate::client::outcome::{self, DRAIN_BYTES, FailureContext, RetryContext};
use crate::client::request::{Body, CallError, CallOptions, CallPhase, OutgoingRequest, Timeouts};

/// Most bytes taken from the connection at once; a response body of at most this size is taken with its head.
const MOST_PULLED: usize = 64 * 1024;

/// A stream on a shared connection. Dropping it ends the stream; the connection stays open.
pub(super) struct H2Call {
    conn: Arc<H2Conn>,
    pool: Arc<SharedPool>,
    stream: StreamId,
    timeouts: Timeouts,
    begun: Instant,
    /// Idempotence, replayability and reuse; the stream counts the bytes.
    failure_context: FailureContext,
    size: BodySize,
    /// The body waits for `100 Continue`.
    held: bool,
    upload: Upload,
    has_head: bool,
    /// The reason why the exchange failed.
    failure: Option<StreamFailure>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Upload {
    /// The body was given whole, or is finished.
    Done,
    /// The program is writing it.
    Open,
}

/// The reason why a call could not begin.
pub(super) enum Refused {
    /// The connection has no capacity for another stream.
    NoCapacity,
    Failed(Box<CallError>),
}

impl H2Call {
    /// Writes the request, with as much of the body as is available.
    pub(super) fn begin(
        conn: Arc<H2Conn>,
        pool: &Arc<SharedPool>,
        request: &OutgoingRequest,
        options: &CallOptions,
        reused: bool,
    ) -> Result<Self, Refused> {
        let begun = Instant::now();
        let written = conn.with(pool, |state| {
            let stream = write_request(&mut state.peer, request)?;
            state.streams.insert(stream, StreamSlot::default());
            Ok(stream)
        });
        match written {
            Ok(stream) => Ok(Self {
                stream,
                timeouts: options.timeouts,
                begun,
                failure_context: FailureContext::of(request, reused),
                size: request.body.size(),
                held: request.awaits_continue(),
                upload: if request.body.is_streamed() {
                    Upload::Open
                } else {
                    Upload::Done
                },
                has_head: false,
                failure: None,
                conn,
                pool: Arc::clone(pool),
            }),
            Err(UserError::NotIdle) => {
                pool.release(conn.slot(), Instant::now());
                Err(Refused::NoCapacity)
            }
            Err(error) => {
                pool.release(conn.slot(), Instant::now());
                Err(Refused::Failed(Box::new(CallError::local(error))))
            }
        }
    }

    // The response.

    /// Waits for the final head. Returns it and whether the response ends with it. A small body that arrived
    /// whole is taken at once.
    pub(super) fn await_head(
        &mut self,
        body: &Body,
        buffer: &mut ReadBuffer,
        informational: &mut Vec<OwnedHead>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<(OwnedHead, bool), BlockingError> {
        self.await_continue(body, informational, policy)?;
        let stream = self.stream;
        let (head, is_over) = self.wait(CallPhase::Head, None, policy, |state| {
            let slot = state.streams.get_mut(stream)?;
            informational.append(&mut slot.informational);
            let Some((head, end)) = slot.head.take() else {
                return slot.failure.take().map(Err);
            };
            let is_whole =
                |body: StreamMut<'_>| body.end_received() && body.buffered() <= MOST_PULLED;
            let body = state.peer.proto.stream(stream);
            let is_over =
                end || (body.is_ok_and(is_whole) && pull(state, stream, MOST_PULLED, buffer));
            Some(Ok((head, is_over)))
        })?;
        self.has_head = true;
        Ok((head, is_over))
    }

    /// Waits until more of the body has arrived and takes as much as `buffer` wants. Whether that was the
    /// end.
    pub(super) fn fill(
        &mut self,
        buffer: &mut ReadBuffer,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<bool, BlockingError> {
        let stream = self.stream;
        let most = buffer.wanted.clamp(1, MOST_PULLED);
        self.wait(CallPhase::Body, None, policy, |state| {
            if pull(state, stream, most, buffer) {
                return Some(Ok(true));
            }
            if !buffer.is_empty() {
                return Some(Ok(false));
            }
            let slot = state.streams.get_mut(stream)?;
            slot.failure.take().map(Err)
        })
    }

    /// Bytes of the body that are buffered on the connection.
    pub(super) fn buffered(&self) -> usize {
        if self.conn.is_foreign() {
            return 0;
        }
        let stream = self.stream;
        self.conn.with(&self.pool, |state| {
            let body = state.peer.proto.stream(stream);
            body.map_or(0, |body| body.buffered())
        })
    }

    // The request.

    /// Waits with the body until the server asks for it, responds, or the time for that has passed (RFC 9110
    /// 10.1.1). Whether to send the body.
    fn await_continue(
        &mut self,
        body: &Body,
        informational: &mut Vec<OwnedHead>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<bool, BlockingError> {
        if !self.held {
            return Ok(true);
        }
        let stream = self.stream;
        let until = Instant::now() + outcome::CONTINUE_WITHIN;
        let is_wanted = self.wait_until(CallPhase::Head, Some(until), policy, |state| {
            let slot = state.streams.get_mut(stream)?;
            let new = slot.informational.drain(..);
            let mut is_wanted = false;
            informational.extend(new.inspect(|head| is_wanted |= head.view().status() == 100));
            if is_wanted {
                return Some(true);
            }
            (slot.head.is_some() || slot.failure.is_some()).then_some(false)
        });
        match is_wanted {
            Ok(true)
            | Err(WaitError {
                stop: Stop::Phase, ..
            }) => {}
            Ok(false) => return Ok(false),
            Err(error) => return Err(self.timeout_error(&error)),
        }
        self.held = false;
        let written = duplicate(body).and_then(|file| {
            self.conn.with(&self.pool, |state| {
                write_body(&mut state.peer, stream, body, file)
            })
        });
        match written {
            Ok(()) | Err(UserError::StreamFailed) => Ok(true),
            Err(error) => Err(BlockingError::Failed(Box::new(CallError::local(error)))),
        }
    }

    /// Sends a piece of a streamed body, waiting for buffer space.
    pub(super) fn write(
        &mut self,
        data: Bytes,
        body: &Body,
        informational: &mut Vec<OwnedHead>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<WriteOutcome, BlockingError> {
        if !self.await_continue(body, informational, policy)? {
            return Ok(WriteOutcome::Responded);
        }
        if !self.on_body(|mut stream| stream.write_shared(data))? {
            return Ok(WriteOutcome::Responded);
        }
        let stream = self.stream;
        self.wait(CallPhase::Head, None, policy, |state| {
            let slot = state.streams.get_mut(stream)?;
            if let Some((head, _)) = &slot.head
                && head.view().status() >= 300
            {
                return Some(Ok(WriteOutcome::Responded));
            }
            if let Some(failure) = slot.failure.take() {
                return Some(Err(failure));
            }
            match state.peer.proto.stream(stream) {
                Ok(body) => (body.send_capacity() > 0).then_some(Ok(WriteOutcome::Continue)),
                // The response is complete and has been read.
                Err(_) => Some(Ok(WriteOutcome::Responded)),
            }
        })
    }

    /// Ends a streamed body.
    pub(super) fn finish(
        &mut self,
        trailers: &[Field<'_>],
        body: &Body,
        informational: &mut Vec<OwnedHead>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<(), BlockingError> {
        if self.await_continue(body, informational, policy)? {
            self.on_body(|mut stream| stream.finish_with(trailers))?;
            self.upload = Upload::Done;
        }
        Ok(())
    }

    /// Runs `act` on the request body; `false`: the server does not want it any more, and the head or the
    /// failure says why.
    fn on_body(
        &mut self,
        act: impl FnOnce(StreamMut<'_>) -> Result<(), UserError>,
    ) -> Result<bool, BlockingError> {
        if self.conn.is_foreign() {
            return Err(call::belongs_to_parent());
        }
        let stream = self.stream;
        let done = (self.conn).with(&self.pool, |state| {
            state.peer.proto.stream(stream).and_then(act)
        });
        match done {
            Ok(()) => Ok(true),
            Err(
                UserError::StreamFailed | UserError::AlreadyFinished | UserError::UnknownStream,
            ) => Ok(false),
            Err(error) => Err(BlockingError::Failed(Box::new(CallError::local(error)))),
        }
    }

    // Waiting.

    fn wait_until<T>(
        &self,
        phase: CallPhase,
        until: Option<Instant>,
        policy: &mut WaitPolicy<'_>,
        ready: impl FnMut(&mut SharedState) -> Option<T>,
    ) -> Result<T, WaitError> {
        let terms = StreamWait {
            pool: &self.pool,
            stream: self.stream,
            timeouts: &self.timeouts,
            phase,
            begun: self.begun,
            until,
        };
        self.conn.wait(&terms, policy, ready)
    }

    /// Waits until `ready` returns something; it may also find that the exchange has failed.
    fn wait<T>(
        &mut self,
        phase: CallPhase,
        until: Option<Instant>,
        policy: &mut WaitPolicy<'_>,
        ready: impl FnMut(&mut SharedState) -> Option<Result<T, StreamFailure>>,
    ) -> Result<T, BlockingError> {
        if self.conn.is_foreign() {
            return Err(call::belongs_to_parent());
        }
        match self.wait_until(phase, until, policy, ready) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(failure)) => Err(self.failed(failure)),
            Err(error) => Err(self.timeout_error(&error)),
        }
    }

    fn failed(&mut self, failure: StreamFailure) -> BlockingError {
        let size = if self.held {
            BodySize::Empty
        } else {
            self.size
        };
        let uploading = self.upload == Upload::Open;
        let phase = outcome::phase(self.has_head, uploading, size, failure.stats.sent);
        let error = outcome::stream_failure(&failure.why, phase);
        let error = self.describe(error, failure.stats, failure.why.is_unprocessed());
        self.failure = Some(failure);
        BlockingError::Failed(Box::new(error))
    }

    fn timeout_error(&self, wait: &WaitError) -> BlockingError {
        match stop_error(wait.stop, wait.doing) {
            Some(error) => BlockingError::Failed(Box::new(self.describe(error, wait.stats, false))),
            None => BlockingError::Interrupted,
        }
    }

    fn describe(&self, error: CallError, stats: StreamStats, unprocessed: bool) -> CallError {
        let failure_context = FailureContext {
            bytes_sent: stats.sent,
            bytes_received: stats.received,
            ..self.failure_context
        };
        failure_context.describe(error, unprocessed)
    }

    /// The retry context of the failed exchange; `None` if it would fail again.
    pub(super) fn retry_context(&self, resends: u8) -> Option<RetryContext> {
        let failure = self.failure.as_ref()?;
        let retry_context = RetryContext {
            reused: self.failure_context.reused,
            response_started: self.has_head || failure.stats.received > 0,
            unprocessed: false,
            resends,
        };
        retry_context.failed(&failure.why, self.pool.service.protocols)
    }

    /// The exchange failed because the server requires HTTP/1.1.
    pub(super) fn wants_http1(&self) -> bool {
        let failure = self.failure.as_ref();
        failure
            .is_some_and(|failure| outcome::wants_http1(&failure.why, self.pool.service.protocols))
    }
}

/// Takes up to `most` buffered bytes of a body. Whether that was the end, after which the stream is gone.
fn pull(state: &mut SharedState, stream: StreamId, most: usize, buffer: &mut ReadBuffer) -> bool {
    let Ok(mut body) = state.peer.proto.stream(stream) else {
        return false;
    };
    loop {
        let left = most.saturating_sub(buffer.len());
        if left == 0 && !(body.end_received() && body.buffered() == 0) {
            return false;
        }
        match body.read(left.max(1)) {
            StreamRead::Data(data) => buffer.push(data),
            StreamRead::Pending | StreamRead::Failed => return false,
            StreamRead::End => {
                buffer.trailers = call::trailers_of(&body);
                return true;
            }
        }
    }
}

impl Drop for H2Call {
    fn drop(&mut self) {
        if self.conn.is_foreign() {
            return std::mem::forget(Arc::clone(&self.conn));
        }
        let is_taken = self.has_head && self.upload == Upload::Done;
        let stream = self.stream;
        self.conn.with(&self.pool, |state| {
            state.streams.remove(stream);
            let Ok(mut body) = state.peer.proto.stream(stream) else {
                return;
            };
            let mut left = if is_taken { DRAIN_BYTES } else { 0 };
            while left > 0
                && let StreamRead::Data(data) = body.read(left)
            {
                left -= data.len();
            }
            // No effect if both directions are complete.
            body.reset();
        });
        self.pool.release(self.conn.slot(), Instant::now());
    }
}
