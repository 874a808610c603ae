//! A call on the calling thread.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use towline_proto::{Field, OwnedHead, StreamMut};

use super::Ended;
use super::h1_call::{self, Solo};
use super::h1_exchange::Exchange;
use super::h2_call::{Refused, Ride};
use super::pooled_conn::Wire;
use super::read_buffer::Rest;
use super::shared_pool::{Desk, Found};
use super::wait_policy::Patience;
use crate::client::connection_info::ConnectionFacts;
use crate::client::fork;
use crate::client::request::{CallError, CallErrorKind, CallOptions, CallPhase, Prepared, Timings};
use crate::client::retry::{self, Standing};

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

/// What a call has of its connection.
enum Carriage {
    Solo(Solo),
    Ride(Ride),
}

/// One call. Dropping it gives its connection back where the rest of the response is small and there,
/// and otherwise closes it, or ends its stream.
pub struct BlockingCall {
    desk: Arc<Desk>,
    prepared: Prepared,
    options: CallOptions,
    /// `None`: the exchange is over.
    carriage: Option<Carriage>,
    rest: Rest,
    informational: Vec<OwnedHead>,
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
        retry::check_protocols(desk.service.protocols, &prepared.route)?;
        let begun = Instant::now();
        let total = options.timeouts.total;
        let deadline = total.and_then(|total| begun.checked_add(total));
        patience.set_total(deadline);
        let found = desk.acquire(&prepared.route, &options, false, patience, begun)?;
        let mut call = Self {
            facts: Arc::clone(&found.lease.conn.facts),
            reused: found.lease.reused,
            carriage: None,
            rest: Rest::default(),
            informational: Vec::new(),
            resends: 0,
            begun,
            deadline,
            timings: Timings::default(),
            trailers: Vec::new(),
            desk,
            prepared,
            options,
        };
        call.start(found, patience)?;
        Ok(call)
    }

    /// Writes the request on the connection that was found, or on another where that has turned out to be
    /// full.
    fn start(&mut self, found: Found, patience: &mut Patience<'_>) -> Result<(), Ended> {
        let mut found = found;
        loop {
            self.reused = found.lease.reused;
            self.facts = Arc::clone(&found.lease.conn.facts);
            match self.start_on(found) {
                Ok(()) => return Ok(()),
                Err(Refused::Failed(error)) => return Err(Ended::Failed(error)),
                Err(Refused::Crowded) => {
                    let (route, now) = (&self.prepared.route, Instant::now());
                    found = self
                        .desk
                        .acquire(route, &self.options, true, patience, now)?;
                }
            }
        }
    }

    fn start_on(&mut self, found: Found) -> Result<(), Refused> {
        if !self.reused {
            let dial = &self.facts.timings;
            self.timings.dns = dial.dns.unwrap_or_default();
            self.timings.connect = dial.connect;
            self.timings.tls = dial.tls.unwrap_or_default();
        }
        let Found { lease, alone } = found;
        let (prepared, options) = (&self.prepared, &self.options);
        match lease.conn.wire {
            Wire::Line(line) => {
                let mut solo = Solo {
                    slot: lease.slot,
                    fd: lease.conn.fd,
                    line,
                    exchange: Exchange::new(prepared, options, self.reused, alone),
                };
                if let Err(error) = solo.start(prepared, self.begun) {
                    solo.put_away(&self.desk);
                    return Err(Refused::Failed(error));
                }
                self.carriage = Some(Carriage::Solo(solo));
            }
            Wire::Shared(shared) => {
                let ride = Ride::begin(shared, &self.desk, prepared, options, self.reused)?;
                self.carriage = Some(Carriage::Ride(ride));
            }
        }
        Ok(())
    }

    /// Waits for the final head of the response. A request whose reused connection turns out to have
    /// been dying is sent again, and so is one that the server has not begun with, or wants over HTTP/1.1.
    pub fn await_head(&mut self, patience: &mut Patience<'_>) -> Result<OwnedHead, Ended> {
        patience.set_total(self.deadline);
        loop {
            let body = &self.prepared.body;
            let result = match &mut self.carriage {
                None => return Err(over()),
                Some(Carriage::Solo(solo)) => solo.await_head(body, patience),
                Some(Carriage::Ride(ride)) => ride
                    .await_head(body, &mut self.rest, &mut self.informational, patience)
                    .map(|(head, is_over)| (head, is_over, Instant::now())),
            };
            match result {
                Ok((head, is_over, now)) => {
                    self.timings.first_byte = Some(now.saturating_duration_since(self.begun));
                    if is_over {
                        self.give_back(now);
                    }
                    return Ok(head);
                }
                Err(Ended::Failed(error)) if self.may_resend(&error) => {
                    self.resends += 1;
                    if let Some(Carriage::Ride(ride)) = &self.carriage
                        && ride.wants_http1()
                    {
                        self.prepared.route = Arc::new(self.prepared.route.over_http1());
                    }
                    self.put_away();
                    let (route, now) = (&self.prepared.route, Instant::now());
                    let found = self
                        .desk
                        .acquire(route, &self.options, true, patience, now)?;
                    self.start(found, patience)?;
                }
                Err(ended) => {
                    self.put_away();
                    return Err(ended);
                }
            }
        }
    }

    fn may_resend(&self, error: &CallError) -> bool {
        let standing: Option<Standing> = match &self.carriage {
            None => None,
            Some(Carriage::Solo(_)) => h1_call::standing(error, self.resends),
            Some(Carriage::Ride(ride)) => ride.standing(self.resends),
        };
        standing.is_some_and(|standing| retry::may_resend(&self.prepared, &self.options, standing))
    }

    /// Interim responses that have come so far.
    pub fn take_informational(&mut self) -> Vec<OwnedHead> {
        if let Some(Carriage::Solo(solo)) = &mut self.carriage {
            self.informational.append(&mut solo.exchange.informational);
        }
        std::mem::take(&mut self.informational)
    }

    // The body of the request.

    /// Sends a piece of a streamed body, waiting for room: large pieces by reference.
    pub fn write(&mut self, data: Bytes, patience: &mut Patience<'_>) -> Result<Written, Ended> {
        patience.set_total(self.deadline);
        let body = &self.prepared.body;
        let result = match &mut self.carriage {
            None => return Err(over()),
            Some(Carriage::Solo(solo)) => solo.write(data, body, patience),
            Some(Carriage::Ride(ride)) => ride.write(data, body, &mut self.informational, patience),
        };
        result.inspect_err(|_| self.put_away())
    }

    /// Ends a streamed body.
    pub fn finish(
        &mut self,
        trailers: &[Field<'_>],
        patience: &mut Patience<'_>,
    ) -> Result<(), Ended> {
        patience.set_total(self.deadline);
        let body = &self.prepared.body;
        let result = match &mut self.carriage {
            None => return Err(over()),
            Some(Carriage::Solo(solo)) => solo.finish(trailers, body, patience),
            Some(Carriage::Ride(ride)) => {
                ride.finish(trailers, body, &mut self.informational, patience)
            }
        };
        result.inspect_err(|_| self.put_away())
    }

    // The body of the response.

    /// Gives `sink` up to `max` bytes that are here already. Never waits.
    pub fn take<T>(
        &mut self,
        max: usize,
        sink: impl FnOnce(&[u8]) -> T,
    ) -> Result<Taken<T>, Ended> {
        let solo = match &mut self.carriage {
            Some(_) if self.desk.generation != fork::generation() => return Err(parents()),
            Some(Carriage::Solo(solo)) => solo,
            carriage => {
                let is_over = carriage.is_none();
                return Ok(match self.rest.take(max, sink) {
                    Some(value) => Taken::Data(value),
                    None if is_over => Taken::End,
                    None => Taken::Pending,
                });
            }
        };
        match solo.take(max, &mut self.trailers, sink) {
            Ok((taken, None)) => Ok(taken),
            Ok((taken, Some(now))) => {
                self.give_back(now);
                Ok(taken)
            }
            Err(ended) => {
                self.put_away();
                Err(ended)
            }
        }
    }

    /// Waits until more of the body, its end or its failure is here.
    pub fn fill(&mut self, patience: &mut Patience<'_>) -> Result<(), Ended> {
        patience.set_total(self.deadline);
        let result = match &mut self.carriage {
            None => return Ok(()),
            Some(Carriage::Solo(solo)) => solo.fill(patience).map(|()| false),
            Some(Carriage::Ride(ride)) => ride.fill(&mut self.rest, patience),
        };
        match result {
            Ok(false) => {}
            Ok(true) => self.give_back(Instant::now()),
            Err(ended) => {
                self.put_away();
                return Err(ended);
            }
        }
        Ok(())
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
        match &self.carriage {
            None => self.rest.len(),
            Some(Carriage::Solo(solo)) => solo.buffered(),
            Some(Carriage::Ride(ride)) => self.rest.len() + ride.buffered(),
        }
    }

    // Facts.

    pub fn is_over(&self) -> bool {
        self.carriage.is_none()
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
        match self.carriage.take() {
            None => {}
            Some(Carriage::Solo(mut solo)) => {
                self.informational = std::mem::take(&mut solo.exchange.informational);
                solo.give_back(&self.desk, now);
            }
            Some(Carriage::Ride(ride)) => {
                self.trailers = std::mem::take(&mut self.rest.trailers);
                drop(ride);
            }
        }
    }

    /// The connection is of no more use, or this call's part of it.
    fn put_away(&mut self) {
        match self.carriage.take() {
            None => {}
            Some(Carriage::Solo(solo)) => solo.put_away(&self.desk),
            Some(Carriage::Ride(ride)) => drop(ride),
        }
    }

    /// Gives the response up: its rest is skipped where it is small and there.
    pub fn close(&mut self) {
        if self.timings.first_byte.is_some()
            && let Some(Carriage::Solo(solo)) = &mut self.carriage
            && let Some(now) = solo.skip()
        {
            return self.give_back(now);
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
            std::mem::forget(self.carriage.take());
            self.desk.outlive_fork();
        }
    }
}

pub(super) fn trailers_of(body: &StreamMut<'_>) -> Vec<Trailer> {
    let trailers = body.trailers();
    trailers
        .map(|field| (field.name.into(), field.value.into()))
        .collect()
}

pub(super) fn over() -> Ended {
    Ended::Failed(Box::new(CallError::new(
        CallErrorKind::LocalProtocol,
        CallPhase::Send,
        "the exchange is over",
    )))
}

/// What a child of fork is told.
pub(super) fn parents() -> Ended {
    Ended::Failed(Box::new(CallError::new(
        CallErrorKind::Read,
        CallPhase::Body,
        "the response belongs to the parent process",
    )))
}
