//! From a request to a connection: taken from the pool, waited for, or dialled on this thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Ended;
use super::h1_conn::{poll, with_buffers};
use super::pooled_conn::{self, Cable, Wire};
use super::shared_pool::{Asked, Desk, Found, Place};
use super::wait_policy::{Patience, Stop};
use super::waiter::{Errand, Message};
use crate::client::acquire_timer::timed_out;
use crate::client::dial::{Dial, Established, Progress};
use crate::client::pool::{Lease, SlotId};
use crate::client::request::{CallError, CallErrorKind, CallOptions, CallPhase};
use crate::client::route::Route;
use crate::conn::Peer;
use crate::conn::id::ConnId;

impl Desk {
    /// A connection to `route` that has nothing unread on it. `urgent`: this call has had one already,
    /// which died.
    pub(super) fn acquire(
        &self,
        route: &Arc<Route>,
        options: &CallOptions,
        urgent: bool,
        patience: &mut Patience<'_>,
        now: Instant,
    ) -> Result<Found, Ended> {
        let mut urgent = urgent;
        loop {
            let found = match self.ask(route, options, urgent, now)? {
                Asked::Free(found) => found,
                Asked::Wait(place) => Found {
                    lease: self.wait(&place, patience)?,
                    alone: false,
                },
            };
            let lease = &found.lease;
            if !lease.reused || self.is_usable(&lease.conn, now) {
                return Ok(found);
            }
            // Its end, or bytes that answer nothing, have come while it was idle.
            match &lease.conn.wire {
                Wire::Line(_) => self.discard(lease.slot, lease.conn.fd),
                Wire::Shared(_) => self.give_back(lease.slot, now),
            }
            urgent = true;
        }
    }

    fn is_usable(&self, cable: &Cable, now: Instant) -> bool {
        match &cable.wire {
            Wire::Line(line) => {
                with_buffers(|buffers| pooled_conn::open(line).is_quiet(buffers, now))
            }
            Wire::Shared(shared) => shared.is_alive(self),
        }
    }

    fn wait(&self, place: &Place, patience: &mut Patience<'_>) -> Result<Lease<Cable>, Ended> {
        let mut driving = None;
        match self.wait_driving(place, &mut driving, patience) {
            Ok(lease) => {
                self.part_with(driving, place);
                Ok(lease)
            }
            Err(ended) => {
                self.leave(place, driving, Instant::now());
                Err(ended)
            }
        }
    }

    fn wait_driving(
        &self,
        place: &Place,
        driving: &mut Option<Errand>,
        patience: &mut Patience<'_>,
    ) -> Result<Lease<Cable>, Ended> {
        let mut wait = patience.phase(Instant::now(), None);
        let mut has_slept = false;
        loop {
            while let Some(message) = place.seat.next() {
                match message {
                    Message::Served(lease) => return Ok(lease),
                    Message::Failed(error) => return Err(Ended::Failed(error)),
                    Message::Drive(errand) => *driving = Some(errand),
                    Message::Forget(slot) => {
                        driving.take_if(|errand| errand.slot == slot);
                    }
                    Message::Look => {}
                }
            }
            if let Some(errand) = driving
                && let Some(over) = self.drive(errand, Instant::now())
            {
                let slot = errand.slot;
                *driving = None;
                match over {
                    Ok(cable) => self.dialled(slot, cable, &place.seat, Instant::now()),
                    Err(error) => self.dial_failed(slot, error, &place.seat),
                }
                continue;
            }
            let bound = place.seat.bound();
            wait.end_at(bound.map(|(at, _)| at));
            let slice = if has_slept {
                let in_vain = |stop| no_connection(stop, bound.map(|(_, kind)| kind));
                wait.next_slice().map_err(in_vain)?
            } else {
                wait.first_slice()
            };
            has_slept = true;
            if let Err(error) = sleep(place, driving.as_ref(), slice)
                && let Some(errand) = driving.take()
            {
                self.dial_failed(errand.slot, broken(&error), &place.seat);
            }
        }
    }

    /// One who has been served had a dial under way. What has come of it by now is not wasted.
    fn part_with(&self, driving: Option<Errand>, place: &Place) {
        let Some(mut errand) = driving else {
            return;
        };
        let (slot, now) = (errand.slot, Instant::now());
        if errand.dial.is_none() {
            return self.hand_over(Some(errand));
        }
        match self.advance(&mut errand, now) {
            Progress::Pending => self.hand_over(Some(errand)),
            Progress::Failed(error) => {
                self.dial_failed(slot, CallError::dial(&error), &place.seat);
            }
            Progress::Done(established) => match self.connect(slot, *established, now) {
                Ok(cable) => self.dialled(slot, cable, &place.seat, now),
                Err(error) => self.dial_failed(slot, broken(&error), &place.seat),
            },
        }
    }

    /// As far as a dial goes. `None`: it goes on, or begins anew later.
    fn drive(&self, errand: &mut Errand, now: Instant) -> Option<Result<Cable, CallError>> {
        let error = match self.advance(errand, now) {
            Progress::Pending => return None,
            Progress::Done(established) => match self.connect(errand.slot, *established, now) {
                Ok(cable) => return Some(Ok(cable)),
                Err(error) => broken(&error),
            },
            Progress::Failed(error) => CallError::dial(&error),
        };
        if !self.redial(errand, &error, now) {
            return Some(Err(error));
        }
        self.drive(errand, now)
    }

    fn advance(&self, errand: &mut Errand, now: Instant) -> Progress {
        let Errand {
            route,
            begin_at,
            deadline,
            ..
        } = errand;
        let dial = errand.dial.get_or_insert_with(|| {
            let mut dial = Dial::start(Arc::clone(route), &self.config.dial, now);
            if let Some(at) = *begin_at {
                dial.rest_until(at);
            }
            dial.set_deadline(*deadline);
            Box::new(dial)
        });
        dial.advance(now)
    }

    fn connect(
        &self,
        slot: SlotId,
        established: Established,
        now: Instant,
    ) -> std::io::Result<Cable> {
        let timings = established.timings;
        let peer = Peer::from_dial(ConnId::from_u64(0), established, &self.service, now);
        Cable::new(peer, slot, timings, self.generation, now)
    }

    /// Opens connections until `route` has `n`; returns how many have been opened.
    pub(super) fn open_ahead(
        &self,
        route: &Arc<Route>,
        n: usize,
        timeout: Option<Duration>,
        patience: &mut Patience<'_>,
    ) -> Result<usize, Ended> {
        let mut errands = self.prewarm(route, n);
        let begun = Instant::now();
        for errand in &mut errands {
            errand.deadline = timeout.and_then(|timeout| begun.checked_add(timeout));
        }
        let mut opened = 0;
        let mut result = Ok(());
        while !errands.is_empty() && result.is_ok() {
            let now = Instant::now();
            let mut phase = patience.phase(now, None);
            let mut most = phase.first_slice();
            let mut entries = Vec::new();
            let mut going_on = Vec::with_capacity(errands.len());
            for mut errand in errands {
                let cable = match self.advance(&mut errand, now) {
                    Progress::Done(established) => {
                        self.connect(errand.slot, *established, now).ok()
                    }
                    Progress::Failed(_) => None,
                    Progress::Pending => {
                        most = watch(&errand, &mut entries, most, now);
                        going_on.push(errand);
                        continue;
                    }
                };
                opened += usize::from(cable.is_some());
                self.prewarmed(errand.slot, cable, now);
            }
            errands = going_on;
            if !errands.is_empty() {
                result = poll(&mut entries, most)
                    .map_err(|error| Ended::Failed(Box::new(broken(&error))))
                    .and_then(|_| {
                        let slice = phase.next_slice().map(drop);
                        slice.map_err(|stop| no_connection(stop, None))
                    });
            }
        }
        for errand in errands {
            self.prewarmed(errand.slot, None, Instant::now());
        }
        result.map(|()| opened)
    }
}

/// Sleeps until something is told or the dial can go on, for `slice` at the longest.
fn sleep(place: &Place, driving: Option<&Errand>, slice: Duration) -> std::io::Result<()> {
    let Some(errand) = driving else {
        place.seat.sleep(slice);
        return Ok(());
    };
    let mut entries = Vec::with_capacity(4);
    let most = watch(errand, &mut entries, slice, Instant::now());
    if let Ok(fd) = place.seat.wire() {
        entries.push(entry(fd, libc::POLLIN));
    }
    if !place.seat.has_mail() {
        poll(&mut entries, most)?;
    }
    Ok(())
}

/// Adds what a dial waits for; returns how long to wait.
fn watch(
    errand: &Errand,
    entries: &mut Vec<libc::pollfd>,
    most: Duration,
    now: Instant,
) -> Duration {
    let Some(dial) = &errand.dial else {
        return most;
    };
    let mut watches = Vec::with_capacity(4);
    dial.fds(&mut watches);
    entries.extend(watches.iter().map(|watch| {
        let read = if watch.readable { libc::POLLIN } else { 0 };
        let write = if watch.writable { libc::POLLOUT } else { 0 };
        entry(watch.fd, read | write)
    }));
    let left = dial
        .deadline()
        .map(|deadline| deadline.saturating_duration_since(now));
    left.map_or(most, |left| left.min(most))
}

fn entry(fd: std::os::fd::RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd {
        fd,
        events,
        revents: 0,
    }
}

fn broken(error: &std::io::Error) -> CallError {
    CallError {
        os_error: error.raw_os_error(),
        retryable: true,
        ..CallError::new(
            CallErrorKind::Connect,
            CallPhase::Connect,
            error.to_string(),
        )
    }
}

/// `kind`: of the bound of the wait itself.
fn no_connection(stop: Stop, kind: Option<CallErrorKind>) -> Ended {
    let kind = match (stop, kind) {
        (Stop::Interrupted, _) => return Ended::Interrupted,
        (Stop::Phase, Some(kind)) => kind,
        (Stop::Phase | Stop::Total, _) => CallErrorKind::TotalTimeout,
    };
    Ended::Failed(Box::new(timed_out(kind)))
}
