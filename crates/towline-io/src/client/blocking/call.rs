//! A call on the calling thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use towline_proto::{Field, OwnedHead};

use super::h1_call::H1Call;
use super::h1_exchange::{Exchange, HeadState};
use super::h2_call::{H2Call, Refused};
use super::outcome::{
    BlockingError, FillOutcome, ReadOutcome, WriteOutcome, belongs_to_parent, over,
};
use super::pooled_conn::ConnKind;
use super::read_buffer::ReadBuffer;
use super::shared_pool::{Acquired, SharedPool};
use super::wait_policy::{Stop, WaitPolicy};
use crate::client::conn_ext::{Trailer, announced_idle_time};
use crate::client::connection_info::ConnectionInfo;
use crate::client::connection_log::{self, ConnectionEvent};
use crate::client::request::{CallError, CallErrorKind, CallOptions, OutgoingRequest, Timings};
use crate::client::retry_policy::{self, RetryContext};
use crate::client::{call_error, fork};

/// The call on its connection.
#[expect(
    clippy::large_enum_variant,
    reason = "a box would cost an HTTP/1 call an allocation"
)]
enum CallKind {
    H1(H1Call),
    H2(H2Call),
}

/// One call. Dropping it releases the connection if the rest of the response is small and already here;
/// otherwise it closes the connection, or resets the stream.
pub struct BlockingCall {
    pool: Arc<SharedPool>,
    request: OutgoingRequest,
    options: CallOptions,
    /// `None`: the exchange is over.
    kind: Option<CallKind>,
    buffer: ReadBuffer,
    informational: Vec<OwnedHead>,
    info: Arc<ConnectionInfo>,
    reused: bool,
    resends: u8,
    started: Instant,
    deadline: Option<Instant>,
    timings: Timings,
    trailers: Vec<Trailer>,
}

impl BlockingCall {
    pub(super) fn begin(
        pool: Arc<SharedPool>,
        request: OutgoingRequest,
        options: CallOptions,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<Self, BlockingError> {
        let dial = &pool.config.dial;
        dial.check_protocols(&request)?;
        let started = Instant::now();
        let mut request = request;
        dial.choose_transport(&mut request, started);
        let total = options.timeouts.total;
        let deadline = total.and_then(|total| started.checked_add(total));
        policy.set_total(deadline);
        let acquired = pool.acquire(&request.route, &options, false, policy, started)?;
        let mut call = Self {
            info: Arc::clone(&acquired.lease.conn.info),
            reused: acquired.lease.reused,
            kind: None,
            buffer: ReadBuffer::default(),
            informational: Vec::new(),
            resends: 0,
            started,
            deadline,
            timings: Timings::default(),
            trailers: Vec::new(),
            pool,
            request,
            options,
        };
        call.start(acquired, policy)?;
        Ok(call)
    }

    /// Writes the request on the acquired connection, or on another one if that has no capacity left.
    fn start(
        &mut self,
        acquired: Acquired,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<(), BlockingError> {
        let mut acquired = acquired;
        // The driver takes the request.
        let is_streamed = self.request.body.is_streamed();
        loop {
            self.reused = acquired.lease.reused;
            self.info = Arc::clone(&acquired.lease.conn.info);
            match self.start_on(acquired) {
                Ok(()) if is_streamed => return self.await_limits(policy),
                Ok(()) => return Ok(()),
                Err(Refused::Failed(error)) => return Err(BlockingError::Failed(error)),
                Err(Refused::NoCapacity) => {
                    let (route, now) = (&self.request.route, Instant::now());
                    acquired = self.pool.acquire(route, &self.options, true, policy, now)?;
                }
            }
        }
    }

    /// Before a streamed body: waits for the limits of a new HTTP/2 connection, for which other calls wait. Nobody
    /// reads from the connection while the program makes the body.
    fn await_limits(&mut self, policy: &mut WaitPolicy<'_>) -> Result<(), BlockingError> {
        match &mut self.kind {
            Some(CallKind::H2(h2)) => h2.await_limits(self.options.timeouts.connect, policy),
            _ => Ok(()),
        }
    }

    fn start_on(&mut self, acquired: Acquired) -> Result<(), Refused> {
        if !self.reused {
            let dial = &self.info.timings;
            self.timings.dns = dial.dns.unwrap_or_default();
            self.timings.connect = dial.connect;
            self.timings.tls = dial.tls.unwrap_or_default();
            self.timings.quic = dial.quic.unwrap_or_default();
        }
        let Acquired {
            lease,
            is_only_call,
        } = acquired;
        let (request, options) = (&self.request, &self.options);
        match lease.conn.kind {
            ConnKind::H1(conn) => {
                let mut h1 = H1Call {
                    slot: lease.slot,
                    fd: lease.conn.fd,
                    conn,
                    exchange: Exchange::new(request, options, self.reused, is_only_call),
                };
                if let Err(error) = h1.start(request, self.started) {
                    h1.abort(&self.pool);
                    return Err(Refused::Failed(error));
                }
                self.kind = Some(CallKind::H1(h1));
            }
            ConnKind::H2(h2) => {
                let mut options = *options;
                // The driver counts from now.
                options.timeouts.total = self
                    .deadline
                    .map(|deadline| deadline.saturating_duration_since(Instant::now()));
                let h2 = H2Call::begin(h2, &self.pool, &mut self.request, options)?;
                self.kind = Some(CallKind::H2(h2));
            }
        }
        Ok(())
    }

    /// Waits for the final head of the response. A request is sent again if its reused connection turns out
    /// to be dead, if the server did not process it, or if the server requires HTTP/1.1.
    pub fn await_head(&mut self, policy: &mut WaitPolicy<'_>) -> Result<OwnedHead, BlockingError> {
        policy.set_total(self.deadline);
        loop {
            let result = match &mut self.kind {
                None => return Err(over()),
                Some(CallKind::H1(h1)) => h1.await_head(&self.request.body, policy),
                Some(CallKind::H2(h2)) => h2
                    .await_head(&mut self.buffer, &mut self.informational, policy)
                    .map(|(head, is_over)| (head, is_over, Instant::now())),
            };
            match result {
                Ok((head, is_over, now)) => {
                    // Over HTTP/2 and HTTP/3 the driver has learned from it.
                    if let (Some(CallKind::H1(_)), Some(http3)) =
                        (&self.kind, &self.pool.config.dial.http3)
                    {
                        http3.observe(&self.request.route, &head.view(), now);
                    }
                    // A server announces the same with every response.
                    if !self.reused
                        && let Some(CallKind::H1(h1)) = &self.kind
                        && let Some(most) = announced_idle_time(&head.view())
                    {
                        self.pool.limit_idle(h1.slot, most);
                    }
                    self.timings.first_byte = Some(now.saturating_duration_since(self.started));
                    self.note_early_data();
                    if is_over {
                        self.release(now);
                    }
                    return Ok(head);
                }
                Err(BlockingError::Failed(error)) => {
                    let Some(pause) = self.may_resend(&error) else {
                        self.abort();
                        return Err(BlockingError::Failed(error));
                    };
                    self.resends += 1;
                    self.abort();
                    policy.rest(pause).map_err(|stop| match stop {
                        Stop::Interrupted => BlockingError::Interrupted,
                        _ => Box::new(call_error::acquire_timeout(CallErrorKind::TotalTimeout))
                            .into(),
                    })?;
                    connection_log::record(ConnectionEvent::Resent, &self.info);
                    let (route, now) = (&self.request.route, Instant::now());
                    let acquired = self.pool.acquire(route, &self.options, true, policy, now)?;
                    self.start(acquired, policy)?;
                }
                Err(ended) => {
                    self.abort();
                    return Err(ended);
                }
            }
        }
    }

    /// Completes the facts about a connection that began with early data.
    fn note_early_data(&mut self) {
        let is_unknown = self.info.tls.is_none() && self.info.timings.quic.is_some();
        if let (true, Some(CallKind::H2(h2))) = (is_unknown, &self.kind) {
            let (early_data, info) = h2.early_facts();
            self.timings.early_data = early_data;
            self.info = info.unwrap_or_else(|| Arc::clone(&self.info));
        }
    }

    /// Whether the request is sent again after `error`, and after which pause.
    fn may_resend(&mut self, error: &CallError) -> Option<Duration> {
        let retry_context: Option<RetryContext> = match &mut self.kind {
            None => None,
            Some(CallKind::H1(_)) => RetryContext::after(error, self.resends),
            Some(CallKind::H2(h2)) => h2.take_failed_request().map(|(request, retry_context)| {
                self.request = request;
                RetryContext {
                    resends: self.resends,
                    ..retry_context
                }
            }),
        };
        retry_context
            .filter(|&retry_context| {
                retry_policy::may_resend(&self.request, &self.options, retry_context)
            })
            .map(RetryContext::pause)
    }

    /// Interim responses received so far.
    pub fn take_informational(&mut self) -> Vec<OwnedHead> {
        if let Some(CallKind::H1(h1)) = &mut self.kind {
            self.informational.append(&mut h1.exchange.informational);
        }
        std::mem::take(&mut self.informational)
    }

    // The request body.

    /// Sends a piece of a streamed body, waiting for buffer space. Large pieces are sent without copying.
    pub fn write(
        &mut self,
        data: Bytes,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<WriteOutcome, BlockingError> {
        policy.set_total(self.deadline);
        let body = &self.request.body;
        let result = match &mut self.kind {
            None => return Err(over()),
            Some(CallKind::H1(h1)) => h1.write(data, body, policy),
            Some(CallKind::H2(h2)) => h2.write(data, &mut self.informational, policy),
        };
        result.inspect_err(|_| self.abort())
    }

    /// Whether the rest of a streamed body is to be written.
    pub fn wants_body(&mut self) -> bool {
        match &mut self.kind {
            None => false,
            Some(CallKind::H1(h1)) => h1.exchange.wants_body(),
            Some(CallKind::H2(h2)) => h2.wants_body(),
        }
    }

    /// Whether the response has ended with its head, as far as is known without reading its body.
    pub fn is_response_complete(&mut self) -> bool {
        match &mut self.kind {
            None => true,
            Some(CallKind::H1(h1)) => {
                matches!(h1.exchange.head_state, HeadState::Taken { end: true })
            }
            Some(CallKind::H2(h2)) => self.buffer.is_empty() && h2.is_received(),
        }
    }

    /// Queues a piece of a streamed body after [`FillOutcome::Writable`], and sends what the connection accepts.
    pub fn queue(&mut self, data: Bytes) -> Result<(), BlockingError> {
        let result = match &mut self.kind {
            None => return Err(over()),
            Some(CallKind::H1(h1)) => h1.queue(data),
            Some(CallKind::H2(h2)) => h2.queue(data),
        };
        result.inspect_err(|_| self.abort())
    }

    /// Whether a piece of a streamed body can be written at once.
    pub fn is_writable(&mut self) -> bool {
        match &mut self.kind {
            None => false,
            Some(CallKind::H1(h1)) => h1.is_writable(),
            Some(CallKind::H2(h2)) => h2.is_writable(),
        }
    }

    /// Ends a streamed body.
    pub fn finish(
        &mut self,
        trailers: &[Field<'_>],
        policy: &mut WaitPolicy<'_>,
    ) -> Result<(), BlockingError> {
        policy.set_total(self.deadline);
        let body = &self.request.body;
        let result = match &mut self.kind {
            None => return Err(over()),
            Some(CallKind::H1(h1)) => h1.finish(trailers, body, policy),
            Some(CallKind::H2(h2)) => h2.finish(trailers, &mut self.informational, policy),
        };
        result.inspect_err(|_| self.abort())
    }

    // The response body.

    /// Passes up to `max` buffered bytes to `sink`. Never waits.
    pub fn take<T>(
        &mut self,
        max: usize,
        sink: impl FnOnce(&[u8]) -> T,
    ) -> Result<ReadOutcome<T>, BlockingError> {
        let h1 = match &mut self.kind {
            Some(_) if self.pool.generation != fork::generation() => {
                return Err(belongs_to_parent());
            }
            Some(CallKind::H1(h1)) => h1,
            kind => {
                let is_over = kind.is_none();
                return Ok(match self.buffer.take(max, sink) {
                    Some(value) => ReadOutcome::Data(value),
                    None if is_over => ReadOutcome::End,
                    None => ReadOutcome::Pending,
                });
            }
        };
        match h1.take(max, &mut self.trailers, sink) {
            Ok((taken, None)) => Ok(taken),
            Ok((taken, Some(now))) => {
                self.release(now);
                Ok(taken)
            }
            Err(ended) => {
                self.abort();
                Err(ended)
            }
        }
    }

    /// Waits until more of the body, its end or its failure has arrived, or until the request body can be continued.
    pub fn fill(&mut self, policy: &mut WaitPolicy<'_>) -> Result<FillOutcome, BlockingError> {
        policy.set_total(self.deadline);
        let result = match &mut self.kind {
            None => return Ok(FillOutcome::Filled),
            Some(CallKind::H1(h1)) => h1.fill(policy).map(|outcome| (outcome, false)),
            Some(CallKind::H2(h2)) => h2.fill(&mut self.buffer, policy),
        };
        match result {
            Ok((outcome, is_over)) => {
                if is_over {
                    self.release(Instant::now());
                }
                Ok(outcome)
            }
            Err(ended) => {
                self.abort();
                Err(ended)
            }
        }
    }

    /// Appends the rest of the body to `out`; the request has been written.
    pub fn read_all(
        &mut self,
        out: &mut Vec<u8>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<(), BlockingError> {
        loop {
            match self.take(usize::MAX, |data| out.extend_from_slice(data))? {
                ReadOutcome::Data(()) => {}
                ReadOutcome::Pending => {
                    self.fill(policy)?;
                }
                ReadOutcome::End => return Ok(()),
            }
        }
    }

    /// Bytes buffered and not yet read, framing included: never more than the window.
    pub fn buffered(&self) -> usize {
        match &self.kind {
            None => self.buffer.len(),
            Some(CallKind::H1(h1)) => h1.buffered(),
            Some(CallKind::H2(h2)) => self.buffer.len() + h2.buffered(),
        }
    }

    // Information.

    pub fn is_over(&self) -> bool {
        self.kind.is_none()
    }

    pub fn is_reused(&self) -> bool {
        self.reused
    }

    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// Information about the connection.
    pub fn info(&self) -> &Arc<ConnectionInfo> {
        &self.info
    }

    /// Trailers of the response; empty before the end of its body.
    pub fn trailers(&self) -> &[Trailer] {
        &self.trailers
    }

    // The end of the call.

    /// Ends a complete exchange.
    fn release(&mut self, now: Instant) {
        self.timings.total = Some(now.saturating_duration_since(self.started));
        match self.kind.take() {
            None => {}
            Some(CallKind::H1(mut h1)) => {
                self.informational = std::mem::take(&mut h1.exchange.informational);
                h1.release(&self.pool, now);
            }
            Some(CallKind::H2(h2)) => {
                self.trailers = std::mem::take(&mut self.buffer.trailers);
                drop(h2);
            }
        }
    }

    /// Removes the connection from the pool, or ends the call's stream on it.
    fn abort(&mut self) {
        match self.kind.take() {
            None => {}
            Some(CallKind::H1(h1)) => h1.abort(&self.pool),
            Some(CallKind::H2(h2)) => drop(h2),
        }
    }

    /// Abandons the response: its rest is skipped if it is small and already here.
    pub fn close(&mut self) {
        if self.timings.first_byte.is_some()
            && let Some(CallKind::H1(h1)) = &mut self.kind
            && let Some(now) = h1.skip()
        {
            return self.release(now);
        }
        self.abort();
    }
}

impl Drop for BlockingCall {
    fn drop(&mut self) {
        if self.pool.generation == fork::generation() {
            self.close();
        } else {
            // A thread of the parent process may hold its lock.
            std::mem::forget(self.kind.take());
            self.pool.outlive_fork();
        }
    }
}
