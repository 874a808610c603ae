//! A call on the calling thread.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use towline_proto::{Field, KeptHead, Read};

use super::Ended;
use super::cable::Cable;
use super::desk::Desk;
use super::exchange::{Answer, Exchange, refresh};
use super::line::{Got, Line, with_blocks};
use super::patience::Patience;
use crate::call::facts::ConnectionFacts;
use crate::call::fork;
use crate::call::pool::Lease;
use crate::call::request::{
    Body, CallError, CallErrorKind, CallOptions, CallPhase, Prepared, Timings,
};
use crate::call::rules::{self, Standing};

/// Bytes of an unread body that are skipped to keep the connection.
const MOST_DRAINED: usize = 64 * 1024;

/// Name and value of a trailer field.
pub type Trailer = (Box<[u8]>, Box<[u8]>);

/// What [`BlockingCall::take`] found.
#[derive(Debug)]
pub enum Taken<T> {
    Data(T),
    /// Nothing is here yet: [`BlockingCall::fill`].
    Pending,
    /// The whole body has been read, and the connection has been given back.
    End,
}

/// What became of [`BlockingCall::write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Go on.
    Taken,
    /// The server has answered and wants no more of the body.
    Answered,
}

/// One call. Dropping it gives its connection back where the rest of the response is small and there,
/// and closes it otherwise.
pub struct BlockingCall {
    desk: Arc<Desk>,
    prepared: Prepared,
    options: CallOptions,
    /// `None`: the exchange is over.
    lease: Option<Lease<Cable>>,
    exchange: Exchange,
    facts: Arc<ConnectionFacts>,
    reused: bool,
    resends: u8,
    begun: Instant,
    deadline: Option<Instant>,
    timings: Timings,
    trailers: Vec<Trailer>,
}

impl BlockingCall {
    pub(super) fn begin(
        desk: Arc<Desk>,
        prepared: Prepared,
        options: CallOptions,
        patience: &mut Patience<'_>,
    ) -> Result<Self, Ended> {
        let begun = Instant::now();
        let deadline = options
            .timeouts
            .total
            .and_then(|total| begun.checked_add(total));
        patience.set_total(deadline);
        let found = desk.acquire(&prepared.route, &options, false, patience, begun)?;
        let exchange = Exchange::new(&prepared, &options, &found);
        let lease = found.lease;
        let mut call = Self {
            exchange,
            facts: Arc::clone(&lease.conn.facts),
            reused: lease.reused,
            lease: Some(lease),
            resends: 0,
            begun,
            deadline,
            timings: Timings::default(),
            trailers: Vec::new(),
            desk,
            prepared,
            options,
        };
        call.start()?;
        Ok(call)
    }

    fn start(&mut self) -> Result<(), Ended> {
        let Some(lease) = &self.lease else {
            return Err(over());
        };
        if !self.reused {
            let dial = &self.facts.timings;
            self.timings.dns = dial.dns.unwrap_or_default();
            self.timings.connect = dial.connect;
            self.timings.tls = dial.tls.unwrap_or_default();
        }
        let mut line = lease.conn.open();
        line.now = line.now.max(self.begun);
        let started = self.exchange.start(&mut line, &self.prepared);
        // A streamed body's first bytes leave together with the head.
        if started.is_ok() && (!self.prepared.body.is_streamed() || self.prepared.holds_back()) {
            self.exchange.flush(&mut line);
        }
        drop(line);
        started.map_err(|error| {
            self.put_away();
            Ended::Failed(error)
        })
    }

    /// Waits for the final head of the response. A request whose reused connection turns out to have
    /// been dying is sent again.
    pub fn await_head(&mut self, patience: &mut Patience<'_>) -> Result<KeptHead, Ended> {
        patience.set_total(self.deadline);
        loop {
            let Some(lease) = &self.lease else {
                return Err(over());
            };
            let mut line = lease.conn.open();
            let body = &self.prepared.body;
            let result = self
                .exchange
                .await_continue(&mut line, body, patience)
                .and_then(|_| self.exchange.await_head(&mut line, patience));
            let standing = Standing {
                reused: self.reused,
                response_started: line.received > 0,
                resends: self.resends,
            };
            let now = line.now;
            drop(line);
            match result {
                Ok(head) => {
                    self.timings.first_byte = Some(now.saturating_duration_since(self.begun));
                    if matches!(self.exchange.answer, Answer::Taken { end: true }) {
                        self.give_back(now);
                    }
                    return Ok(head);
                }
                Err(Ended::Failed(error))
                    if is_end_of_connection(&error)
                        && rules::may_resend(&self.prepared, &self.options, standing) =>
                {
                    self.resends += 1;
                    self.put_away();
                    self.again(patience, now)?;
                }
                Err(ended) => {
                    self.put_away();
                    return Err(ended);
                }
            }
        }
    }

    /// The same request on another connection.
    fn again(&mut self, patience: &mut Patience<'_>, now: Instant) -> Result<(), Ended> {
        let route = &self.prepared.route;
        let found = self
            .desk
            .acquire(route, &self.options, true, patience, now)?;
        self.exchange = Exchange::new(&self.prepared, &self.options, &found);
        let lease = found.lease;
        self.reused = lease.reused;
        self.facts = Arc::clone(&lease.conn.facts);
        self.lease = Some(lease);
        self.start()
    }

    /// Interim responses that have come so far.
    pub fn take_informational(&mut self) -> Vec<KeptHead> {
        std::mem::take(&mut self.exchange.informational)
    }

    // The body of the request.

    /// Sends a piece of a streamed body, waiting for room: large pieces by reference.
    pub fn write(&mut self, data: Bytes, patience: &mut Patience<'_>) -> Result<Written, Ended> {
        self.sending(patience, |exchange, line, body, patience| {
            if !exchange.await_continue(line, body, patience)? {
                return Ok(Written::Answered);
            }
            let before = line.peer.conn.pending_bytes();
            let written = line
                .peer
                .conn
                .stream(exchange.stream)
                .and_then(|mut stream| stream.write_shared(data));
            exchange.count_queued(before, line);
            if let Err(error) = written {
                return Err(Ended::Failed(Box::new(CallError::local(error))));
            }
            exchange.flush(line);
            exchange.await_room(line, patience)
        })
    }

    /// Ends a streamed body.
    pub fn finish(
        &mut self,
        trailers: &[Field<'_>],
        patience: &mut Patience<'_>,
    ) -> Result<(), Ended> {
        self.sending(patience, |exchange, line, body, patience| {
            if !exchange.await_continue(line, body, patience)? {
                return Ok(());
            }
            let before = line.peer.conn.pending_bytes();
            let finished = line
                .peer
                .conn
                .stream(exchange.stream)
                .and_then(|mut stream| stream.finish_with(trailers));
            exchange.count_queued(before, line);
            exchange.flush(line);
            finished.map_err(|error| Ended::Failed(Box::new(CallError::local(error))))
        })
    }

    fn sending<T>(
        &mut self,
        patience: &mut Patience<'_>,
        act: impl FnOnce(&mut Exchange, &mut Line, &Body, &mut Patience<'_>) -> Result<T, Ended>,
    ) -> Result<T, Ended> {
        patience.set_total(self.deadline);
        let Some(lease) = &self.lease else {
            return Err(over());
        };
        let mut line = lease.conn.open();
        refresh(&mut line);
        let result = act(&mut self.exchange, &mut line, &self.prepared.body, patience);
        drop(line);
        if result.is_err() {
            self.put_away();
        }
        result
    }

    // The body of the response.

    /// Gives `sink` up to `max` bytes that are here already. Never waits.
    pub fn take<T>(
        &mut self,
        max: usize,
        sink: impl FnOnce(&[u8]) -> T,
    ) -> Result<Taken<T>, Ended> {
        let Some(lease) = &self.lease else {
            return Ok(Taken::End);
        };
        if self.desk.generation != fork::generation() {
            return Err(Ended::Failed(Box::new(CallError::new(
                CallErrorKind::Read,
                CallPhase::Body,
                "the response belongs to the parent process",
            ))));
        }
        let mut line = lease.conn.open();
        let Ok(mut stream) = line.peer.conn.stream(self.exchange.stream) else {
            drop(line);
            self.put_away();
            return Err(over());
        };
        let taken = match stream.read(max) {
            Read::Data(data) => Taken::Data(sink(data)),
            Read::Pending => return Ok(Taken::Pending),
            Read::End => {
                self.trailers = stream
                    .trailers()
                    .map(|field| (field.name.into(), field.value.into()))
                    .collect();
                Taken::End
            }
            Read::Failed => {
                let ended = self.exchange.body_failed(&mut line);
                drop(line);
                self.put_away();
                return Err(ended);
            }
        };
        // The last bytes of a body of known length are its end.
        let is_over = matches!(taken, Taken::End) || line.peer.conn.is_idle();
        let now = line.now;
        drop(line);
        if is_over {
            self.give_back(now);
        }
        Ok(taken)
    }

    /// Waits until more of the body, its end or its failure is here.
    pub fn fill(&mut self, patience: &mut Patience<'_>) -> Result<(), Ended> {
        patience.set_total(self.deadline);
        let Some(lease) = &self.lease else {
            return Ok(());
        };
        let mut line = lease.conn.open();
        refresh(&mut line);
        let result = self.exchange.step(&mut line, CallPhase::Body, patience);
        drop(line);
        if result.is_err() {
            self.put_away();
        }
        result
    }

    /// The rest of the body, added to `out`.
    pub fn read_all(
        &mut self,
        out: &mut Vec<u8>,
        patience: &mut Patience<'_>,
    ) -> Result<(), Ended> {
        loop {
            match self.take(usize::MAX, |data| out.extend_from_slice(data))? {
                Taken::Data(()) => {}
                Taken::Pending => self.fill(patience)?,
                Taken::End => return Ok(()),
            }
        }
    }

    /// Bytes held that have not been read, framing included: never more than the window.
    pub fn buffered(&self) -> usize {
        let Some(lease) = &self.lease else {
            return 0;
        };
        let mut line = lease.conn.open();
        let stream = line.peer.conn.stream(self.exchange.stream);
        stream.map_or(0, |stream| stream.buffered())
    }

    // Facts.

    pub fn is_over(&self) -> bool {
        self.lease.is_none()
    }

    pub fn is_reused(&self) -> bool {
        self.reused
    }

    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// Of the connection.
    pub fn facts(&self) -> &Arc<ConnectionFacts> {
        &self.facts
    }

    /// Of the response; none before the end of its body.
    pub fn trailers(&self) -> &[Trailer] {
        &self.trailers
    }

    // The end.

    /// The exchange is complete.
    fn give_back(&mut self, now: Instant) {
        self.timings.total = Some(now.saturating_duration_since(self.begun));
        let Some(lease) = self.lease.take() else {
            return;
        };
        let mut line = lease.conn.open();
        let reusable = line.peer.conn.is_reusable() && !line.has_send_failed();
        if reusable {
            with_blocks(|blocks| line.peer.conn.release(blocks));
        }
        drop(line);
        if reusable {
            self.desk.give_back(lease.slot, now);
        } else {
            self.desk.discard(&lease);
        }
    }

    /// The connection is of no more use.
    fn put_away(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.desk.discard(&lease);
        }
    }

    /// Gives the response up: its rest is skipped where it is small and there.
    pub fn close(&mut self) {
        if self.timings.first_byte.is_none() {
            return self.put_away();
        }
        let mut left = MOST_DRAINED;
        while left > 0 {
            match self.take(left, <[u8]>::len) {
                Ok(Taken::Data(bytes)) => left -= bytes.min(left),
                Ok(Taken::End) | Err(_) => break,
                Ok(Taken::Pending) => {
                    let Some(lease) = &self.lease else { break };
                    let mut line = lease.conn.open();
                    if with_blocks(|blocks| line.recv_at_once(blocks)) != Got::News {
                        break;
                    }
                }
            }
        }
        self.put_away();
    }
}

impl Drop for BlockingCall {
    fn drop(&mut self) {
        if self.desk.generation == fork::generation() {
            self.close();
        } else {
            // Its lock may be held by a thread of the parent.
            std::mem::forget(self.lease.take());
            self.desk.outlive_fork();
        }
    }
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
            if room.is_ok_and(|stream| stream.room() > 0) && !line.has_send_failed() {
                return Ok(Written::Taken);
            }
            self.step(line, CallPhase::Head, patience)?;
        }
    }
}

/// The kinds of failure that mean that the connection was there no more.
fn is_end_of_connection(error: &CallError) -> bool {
    matches!(
        error.kind,
        CallErrorKind::ServerDisconnected | CallErrorKind::Read | CallErrorKind::Write
    )
}

fn over() -> Ended {
    Ended::Failed(Box::new(CallError::new(
        CallErrorKind::LocalProtocol,
        CallPhase::Send,
        "the exchange is over",
    )))
}
