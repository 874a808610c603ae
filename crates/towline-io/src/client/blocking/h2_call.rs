//! A call on an HTTP/2 connection, which many calls share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use towline_proto::{Field, OwnedHead};

use super::h2_driver::{DriverState, H2Conn};
use super::outcome::{self, BlockingError, FillOutcome, WriteOutcome};
use super::read_buffer::ReadBuffer;
use super::shared_pool::SharedPool;
use super::wait_policy::WaitPolicy;
use crate::client::connection_info::ConnectionInfo;
use crate::client::driver::{CallId, CallRead};
use crate::client::request::{CallError, CallOptions, OutgoingRequest};
use crate::client::retry_policy::RetryContext;

/// Most bytes taken from the connection at once; a response body of at most this size is taken with its head.
const MOST_PULLED: usize = 64 * 1024;

/// A call of the shared driver. Dropping it ends the stream; the connection stays open.
pub(super) struct H2Call {
    conn: Arc<H2Conn>,
    pool: Arc<SharedPool>,
    call: CallId,
    /// The body waits for `100 Continue`.
    awaits_continue: bool,
}

/// The reason why a call could not begin.
pub(super) enum Refused {
    /// The connection has no capacity for another stream.
    NoCapacity,
    Failed(Box<CallError>),
}

impl H2Call {
    /// Writes the request, with as much of the body as is available. The driver keeps the request until the call
    /// has ended.
    pub(super) fn begin(
        conn: Arc<H2Conn>,
        pool: &Arc<SharedPool>,
        request: &mut OutgoingRequest,
        options: CallOptions,
    ) -> Result<Self, Refused> {
        let awaits_continue = request.awaits_continue();
        let begun = conn.driver.with(pool, |state| {
            let lease = state.driver.lease(conn.id).ok_or(Refused::NoCapacity)?;
            let empty = OutgoingRequest::empty(&request.route);
            let request = std::mem::replace(request, empty);
            let begun = state.driver.begin_on(&lease, request, options);
            let call = begun.map_err(Refused::Failed)?;
            state.calls.insert(call);
            Ok(call)
        });
        match begun {
            Ok(call) => Ok(Self {
                conn,
                pool: Arc::clone(pool),
                call,
                awaits_continue,
            }),
            Err(refused) => {
                pool.release(conn.slot, Instant::now());
                Err(refused)
            }
        }
    }

    /// Waits until the server has announced its limits or the call has failed, for `most` at most.
    pub(super) fn await_limits(
        &mut self,
        most: Option<Duration>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<(), BlockingError> {
        let (conn, call, started) = (self.conn.id, self.call, Instant::now());
        self.wait(policy, |state| {
            let is_over = state.driver.knows_limits(conn)
                || most.is_some_and(|most| started.elapsed() >= most)
                || state.calls.get_mut(call)?.failure.is_some();
            is_over.then_some(Ok(()))
        })
    }

    // The response.

    /// Waits for the final head. Returns it and whether the response ends with it. A small body that arrived
    /// whole is taken at once.
    pub(super) fn await_head(
        &mut self,
        buffer: &mut ReadBuffer,
        informational: &mut Vec<OwnedHead>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<(OwnedHead, bool), BlockingError> {
        let call = self.call;
        self.wait(policy, |state| {
            let slot = state.calls.get_mut(call)?;
            informational.append(&mut slot.informational);
            let Some(head) = slot.head.take() else {
                return slot.failure.take().map(Err);
            };
            let is_over = state.driver.is_received(call, MOST_PULLED)
                && pull(state, call, MOST_PULLED, buffer).is_ok_and(|is_over| is_over);
            Some(Ok((head, is_over)))
        })
    }

    /// Waits until more of the body has arrived and takes as much as `buffer` wants, or until the request body can be
    /// continued. Also returns whether the call is over.
    pub(super) fn fill(
        &mut self,
        buffer: &mut ReadBuffer,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<(FillOutcome, bool), BlockingError> {
        let call = self.call;
        let most = buffer.wanted.clamp(1, MOST_PULLED);
        if self.wants_body() {
            self.conn.driver.turn_at_once(&self.pool);
        }
        self.wait(policy, |state| match pull(state, call, most, buffer) {
            Ok(true) => Some(Ok((FillOutcome::Filled, true))),
            _ if !buffer.is_empty() => Some(Ok((FillOutcome::Filled, false))),
            Ok(false) => {
                let is_writable = state.driver.wants_body(call) && state.driver.room(call) > 0;
                is_writable.then_some(Ok((FillOutcome::Writable, false)))
            }
            Err(error) => Some(Err(error)),
        })
    }

    /// Bytes of the body that are buffered on the connection.
    pub(super) fn buffered(&self) -> usize {
        if self.conn.driver.is_from_parent_process() {
            return 0;
        }
        let call = self.call;
        let buffered = |state: &mut DriverState| state.driver.buffered(call);
        self.conn.driver.with(&self.pool, buffered)
    }

    /// Whether the request was sent in early data, and what is known about the connection since its handshake.
    pub(super) fn early_facts(&self) -> (bool, Option<Arc<ConnectionInfo>>) {
        let (call, conn) = (self.call, self.conn.id);
        let facts = |state: &mut DriverState| {
            let known = state.driver.describe_conn(conn);
            let early_data = state.driver.timings(call).early_data;
            (early_data, known.map(|(_, info)| info))
        };
        self.conn.driver.with(&self.pool, facts)
    }

    // The request.

    /// Sends a piece of a streamed body, waiting for buffer space.
    pub(super) fn write(
        &mut self,
        data: Bytes,
        informational: &mut Vec<OwnedHead>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<WriteOutcome, BlockingError> {
        if !self.await_continue(informational, policy)? {
            return Ok(WriteOutcome::Responded);
        }
        self.conn.driver.turn_at_once(&self.pool);
        let call = self.call;
        let mut data = Some(data);
        self.wait(policy, |state| {
            let is_wanted = state.driver.wants_body(call);
            if let Some(data) = data.take()
                && is_wanted
                && let Err(error) = state.driver.write(call, data)
            {
                return Some(Err(error));
            }
            let slot = state.calls.get_mut(call)?;
            if slot.head.is_some() {
                return Some(Ok(WriteOutcome::Responded));
            }
            if let Some(failure) = slot.failure.take() {
                return Some(Err(failure));
            }
            if !is_wanted {
                return Some(Ok(WriteOutcome::Responded));
            }
            (state.driver.room(call) > 0).then_some(Ok(WriteOutcome::Continue))
        })
    }

    /// Queues a piece of a streamed body.
    pub(super) fn queue(&mut self, data: Bytes) -> Result<(), BlockingError> {
        let call = self.call;
        let write = |state: &mut DriverState| state.driver.write(call, data);
        let written = self.conn.driver.with(&self.pool, write);
        written.map(drop).map_err(BlockingError::Failed)
    }

    pub(super) fn wants_body(&mut self) -> bool {
        let call = self.call;
        let wants = |state: &mut DriverState| state.driver.wants_body(call);
        self.conn.driver.with(&self.pool, wants)
    }

    /// Whether the whole response is here and has been taken.
    pub(super) fn is_received(&mut self) -> bool {
        let call = self.call;
        let is_received = |state: &mut DriverState| state.driver.is_received(call, 0);
        self.conn.driver.with(&self.pool, is_received)
    }

    pub(super) fn is_writable(&mut self) -> bool {
        let call = self.call;
        let room = |state: &mut DriverState| state.driver.room(call);
        self.wants_body() && self.conn.driver.with(&self.pool, room) > 0
    }

    /// Ends a streamed body.
    pub(super) fn finish(
        &mut self,
        trailers: &[Field<'_>],
        informational: &mut Vec<OwnedHead>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<(), BlockingError> {
        if self.await_continue(informational, policy)? {
            let call = self.call;
            self.wait(policy, |state| Some(state.driver.finish(call, trailers)))?;
        }
        Ok(())
    }

    /// Waits until the driver has decided about a body that waits for 100 (Continue) (RFC 9110 10.1.1). Whether to
    /// send it.
    fn await_continue(
        &mut self,
        informational: &mut Vec<OwnedHead>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<bool, BlockingError> {
        if !self.awaits_continue {
            return Ok(true);
        }
        let call = self.call;
        let is_wanted = self.wait(policy, |state| {
            let slot = state.calls.get_mut(call)?;
            informational.append(&mut slot.informational);
            if slot.failure.is_some() {
                return Some(Ok(false));
            }
            if slot.head.is_some() {
                // The driver releases the body after a success.
                return Some(Ok(state.driver.wants_body(call)));
            }
            (!state.driver.awaits_continue(call)).then_some(Ok(true))
        })?;
        self.awaits_continue = !is_wanted;
        Ok(is_wanted)
    }

    /// Waits until `ready` returns something; it may also find that the call has failed.
    fn wait<T>(
        &mut self,
        policy: &mut WaitPolicy<'_>,
        ready: impl FnMut(&mut DriverState) -> Option<Result<T, Box<CallError>>>,
    ) -> Result<T, BlockingError> {
        if self.conn.driver.is_from_parent_process() {
            return Err(outcome::belongs_to_parent());
        }
        match self.conn.driver.wait(self.call, &self.pool, policy, ready) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(BlockingError::Failed(error)),
            Err(_) => Err(BlockingError::Interrupted),
        }
    }

    /// Takes back the request of a failed call, with what decides about sending it again.
    pub(super) fn take_failed_request(&mut self) -> Option<(OutgoingRequest, RetryContext)> {
        let call = self.call;
        let take = |state: &mut DriverState| state.driver.take_failed_request(call);
        self.conn.driver.with(&self.pool, take)
    }
}

/// Takes up to `most` bytes of a body. Whether that was the end.
fn pull(
    state: &mut DriverState,
    call: CallId,
    most: usize,
    buffer: &mut ReadBuffer,
) -> Result<bool, Box<CallError>> {
    loop {
        let left = most.saturating_sub(buffer.len());
        if left == 0 && !state.driver.is_received(call, 0) {
            return Ok(false);
        }
        match state.driver.read(call, left.max(1)) {
            CallRead::Data(data) => buffer.push(data),
            CallRead::Pending => return Ok(false),
            CallRead::Failed(error) => return Err(error),
            CallRead::End => {
                buffer.trailers = state.driver.trailers(call).to_vec();
                return Ok(true);
            }
        }
    }
}

impl Drop for H2Call {
    fn drop(&mut self) {
        if self.conn.driver.is_from_parent_process() {
            return std::mem::forget(Arc::clone(&self.conn));
        }
        let call = self.call;
        self.conn.driver.with(&self.pool, |state| {
            state.calls.remove(call);
            state.driver.cancel(call);
        });
        self.pool.release(self.conn.slot, Instant::now());
    }
}
