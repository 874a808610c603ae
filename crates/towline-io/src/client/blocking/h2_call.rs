//! One call on a connection that it shares with others.

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
use crate::client::outcome::{self, DRAIN_BYTES, ExchangeFacts, RetryContext};
use crate::client::request::{Body, CallError, CallOptions, CallPhase, OutgoingRequest, Timeouts};

/// Bytes taken from the connection at once, and of a whole body that need not wait to be asked for.
const MOST_PULLED: usize = 64 * 1024;

/// A place on a shared connection. It is given up when this is dropped, and the connection goes on.
pub(super) struct H2Call {
    conn: Arc<H2Conn>,
    pool: Arc<SharedPool>,
    stream: StreamId,
    timeouts: Timeouts,
    begun: Instant,
    /// Of the request; the bytes are the stream's.
    facts: ExchangeFacts,
    size: BodySize,
    /// The body waits for the server to want it.
    held: bool,
    upload: Upload,
    has_head: bool,
    /// Why it failed.
    failure: Option<StreamFailure>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Upload {
    /// It was given whole, or is finished.
    Done,
    /// The program writes it.
    Open,
}

/// Why a call could not begin.
pub(super) enum Refused {
    /// The connection takes no more calls now.
    NoCapacity,
    Failed(Box<CallError>),
}

impl H2Call {
    /// Writes the request as far as it is at hand.
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
                facts: ExchangeFacts::of(request, reused),
                size: request.body.size(),
                held: request.holds_back(),
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

    /// Waits for the final head; whether that is all there is. A body that has come with it whole is
    /// taken at once.
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

    /// Waits until more of the body is here, and takes it as far as `rest` was asked for. Whether that was
    /// the last of it.
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

    /// Bytes of the body that are held here and have not been read.
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

    /// Holds the body back until the server wants it, has answered, or has had its time
    /// (RFC 9110 10.1.1). Whether the body goes.
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
            Err(vain) => return Err(self.timeout_error(&vain)),
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

    /// Sends a piece of a streamed body, waiting for room.
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
                // The response is complete and has been taken.
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

    /// Does something with the body that is being sent; `false`: nobody wants it any more, and the head, or
    /// the failure, says why.
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

    /// Waits; `ready` may also find that the exchange has failed.
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
            Err(vain) => Err(self.timeout_error(&vain)),
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
        let facts = ExchangeFacts {
            bytes_sent: stats.sent,
            bytes_received: stats.received,
            ..self.facts
        };
        facts.describe(error, unprocessed)
    }

    /// How the exchange stood when it failed, if that was not its own fault.
    pub(super) fn retry_context(&self, resends: u8) -> Option<RetryContext> {
        let failure = self.failure.as_ref()?;
        let retry_context = RetryContext {
            reused: self.facts.reused,
            response_started: self.has_head || failure.stats.received > 0,
            unprocessed: false,
            resends,
        };
        retry_context.failed(&failure.why, self.pool.service.protocols)
    }

    /// It has failed because the server wants it over HTTP/1.1.
    pub(super) fn wants_http1(&self) -> bool {
        let failure = self.failure.as_ref();
        failure
            .is_some_and(|failure| outcome::wants_http1(&failure.why, self.pool.service.protocols))
    }
}

/// Takes up to `most` bytes of a body that are here. Whether that was the last of it: nobody has to do with
/// the stream any more then.
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
            // Without effect when both directions are complete.
            body.reset();
        });
        self.pool.release(self.conn.slot(), Instant::now());
    }
}
