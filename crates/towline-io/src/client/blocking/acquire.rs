//! Getting a connection for a request: from the pool, by waiting, or by dialling on this thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_proto::Protocol;

use super::BlockingError;
use super::h1_conn::{poll, with_buffers};
use super::h2_driver::H2Conn;
use super::pool_waiter::{Message, PendingDial};
use super::pooled_conn::{self, ConnKind, PooledConn};
use super::shared_pool::{AcquireOutcome, Acquired, QueueEntry, SharedPool};
use super::wait_policy::{Stop, WaitPolicy};
use crate::client::call_error;
use crate::client::dial::{Dial, DialError, Established, Progress};
use crate::client::pool::Lease;
use crate::client::request::{CallError, CallErrorKind, CallOptions};
use crate::client::route::Route;
use crate::conn::Conn;
use crate::conn::id::ConnId;

impl SharedPool {
    /// Returns a connection to `route` with nothing unread on it. `urgent`: this call already had a
    /// connection, which died.
    pub(super) fn acquire(
        &self,
        route: &Arc<Route>,
        options: &CallOptions,
        urgent: bool,
        policy: &mut WaitPolicy<'_>,
        now: Instant,
    ) -> Result<Acquired, BlockingError> {
        let mut urgent = urgent;
        loop {
            let acquired = match self.try_acquire(route, options, urgent, now)? {
                AcquireOutcome::Free(acquired) => acquired,
                AcquireOutcome::Wait(entry) => Acquired {
                    lease: self.wait(&entry, policy)?,
                    alone: false,
                },
            };
            let lease = &acquired.lease;
            if !lease.reused || self.is_usable(&lease.conn, now) {
                return Ok(acquired);
            }
            // Its end, or bytes that no request asked for, arrived while it was idle.
            match &lease.conn.kind {
                ConnKind::H1(_) => self.remove(lease.slot, lease.conn.fd),
                ConnKind::H2(_) => self.release(lease.slot, now),
            }
            urgent = true;
        }
    }

    fn is_usable(&self, conn: &PooledConn, now: Instant) -> bool {
        match &conn.kind {
            ConnKind::H1(conn) => {
                with_buffers(|buffers| pooled_conn::open(conn).is_quiet(buffers, now))
            }
            ConnKind::H2(h2) => h2.is_alive(self),
        }
    }

    fn wait(
        &self,
        entry: &QueueEntry,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<Lease<PooledConn>, BlockingError> {
        let mut driving = None;
        match self.wait_driving(entry, &mut driving, policy) {
            Ok(lease) => {
                self.release_dial(driving, entry);
                Ok(lease)
            }
            Err(ended) => {
                self.cancel_wait(entry, driving, Instant::now());
                Err(ended)
            }
        }
    }

    fn wait_driving(
        &self,
        entry: &QueueEntry,
        driving: &mut Option<PendingDial>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<Lease<PooledConn>, BlockingError> {
        let mut wait = policy.phase(Instant::now(), None);
        let mut has_slept = false;
        loop {
            while let Some(message) = entry.waiter.next() {
                match message {
                    Message::Assigned(lease) => return Ok(lease),
                    Message::Failed(error) => return Err(BlockingError::Failed(error)),
                    Message::Dial(pending) => *driving = Some(pending),
                    Message::DropDial(slot) => {
                        driving.take_if(|pending| pending.slot == slot);
                    }
                    Message::Recheck => {}
                }
            }
            if let Some(pending) = driving
                && let Some(over) = self.drive(pending, Instant::now())
            {
                let slot = pending.slot;
                *driving = None;
                match over {
                    Ok(conn) => self.dialled(slot, conn, &entry.waiter, Instant::now()),
                    Err(error) => self.dial_failed(slot, error, &entry.waiter),
                }
                continue;
            }
            let bound = entry.waiter.bound();
            wait.end_at(bound.map(|(at, _)| at));
            let slice = if has_slept {
                let timeout_error = |stop| no_connection(stop, bound.map(|(_, kind)| kind));
                wait.next_slice().map_err(timeout_error)?
            } else {
                wait.first_slice()
            };
            has_slept = true;
            if let Err(error) = sleep(entry, driving.as_ref(), slice)
                && let Some(pending) = driving.take()
            {
                self.dial_failed(pending.slot, broken(&error), &entry.waiter);
            }
        }
    }

    /// The waiter got another connection while it was dialling: pools its dial if it is done, else hands it
    /// to another waiter.
    fn release_dial(&self, driving: Option<PendingDial>, entry: &QueueEntry) {
        let Some(mut pending) = driving else {
            return;
        };
        let (slot, now) = (pending.slot, Instant::now());
        if pending.dial.is_none() {
            return self.hand_over(Some(pending));
        }
        match self.advance(&mut pending, now) {
            Progress::Pending => self.hand_over(Some(pending)),
            Progress::Failed(error) => {
                self.dial_failed(slot, CallError::dial(&error), &entry.waiter);
            }
            Progress::Done(established) => match self.connect(&pending, *established, now) {
                Ok(conn) => self.dialled(slot, conn, &entry.waiter, now),
                Err(error) => self.dial_failed(slot, broken(&error), &entry.waiter),
            },
        }
    }

    /// Advances a dial as far as possible. `None`: it is still pending, or starts again after a pause.
    fn drive(
        &self,
        pending: &mut PendingDial,
        now: Instant,
    ) -> Option<Result<PooledConn, CallError>> {
        let error = match self.advance(pending, now) {
            Progress::Pending => return None,
            Progress::Done(established) => match self.connect(pending, *established, now) {
                Ok(conn) => return Some(Ok(conn)),
                Err(error) => broken(&error),
            },
            Progress::Failed(error) => CallError::dial(&error),
        };
        if !self.redial(pending, &error, now) {
            return Some(Err(error));
        }
        self.drive(pending, now)
    }

    fn advance(&self, pending: &mut PendingDial, now: Instant) -> Progress {
        let PendingDial {
            route,
            begin_at,
            deadline,
            ..
        } = pending;
        let dial = pending.dial.get_or_insert_with(|| {
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
        pending: &PendingDial,
        established: Established,
        now: Instant,
    ) -> std::io::Result<PooledConn> {
        if established.protocol(self.service.protocols) == Protocol::Http2 {
            let driver = self.h2_driver()?;
            let conn = H2Conn::new(driver, pending.slot, &pending.route, established)?;
            return PooledConn::h2(conn);
        }
        let timings = established.timings;
        let peer = Conn::from_dial(ConnId::from_u64(0), established, &self.service, now);
        PooledConn::h1(peer, timings, self.generation, now)
    }

    /// Opens connections until `route` has `n`. Returns how many were opened.
    pub(super) fn open_ahead(
        &self,
        route: &Arc<Route>,
        n: usize,
        timeout: Option<Duration>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<usize, BlockingError> {
        let mut pending_dials = self.prewarm(route, n);
        let started = Instant::now();
        for pending in &mut pending_dials {
            pending.deadline = timeout.and_then(|timeout| started.checked_add(timeout));
        }
        let mut opened = 0;
        let mut result = Ok(());
        while !pending_dials.is_empty() && result.is_ok() {
            let now = Instant::now();
            let mut phase = policy.phase(now, None);
            let mut most = phase.first_slice();
            let mut entries = Vec::new();
            let mut going_on = Vec::with_capacity(pending_dials.len());
            for mut pending in pending_dials {
                let conn = match self.advance(&mut pending, now) {
                    Progress::Done(established) => self.connect(&pending, *established, now).ok(),
                    Progress::Failed(_) => None,
                    Progress::Pending => {
                        most = watch(&pending, &mut entries, most, now);
                        going_on.push(pending);
                        continue;
                    }
                };
                opened += usize::from(conn.is_some());
                self.prewarmed(pending.slot, conn, now);
            }
            pending_dials = going_on;
            if !pending_dials.is_empty() {
                result = poll(&mut entries, most)
                    .map_err(|error| BlockingError::Failed(Box::new(broken(&error))))
                    .and_then(|_| {
                        let slice = phase.next_slice().map(drop);
                        slice.map_err(|stop| no_connection(stop, None))
                    });
            }
        }
        for pending in pending_dials {
            self.prewarmed(pending.slot, None, Instant::now());
        }
        result.map(|()| opened)
    }
}

/// Sleeps until a message arrives or the dial can continue, for `slice` at most.
fn sleep(
    entry: &QueueEntry,
    driving: Option<&PendingDial>,
    slice: Duration,
) -> std::io::Result<()> {
    let Some(pending) = driving else {
        entry.waiter.park(slice);
        return Ok(());
    };
    let mut entries = Vec::with_capacity(4);
    let most = watch(pending, &mut entries, slice, Instant::now());
    if let Ok(fd) = entry.waiter.wake_pipe() {
        entries.push(poll_entry(fd, libc::POLLIN));
    }
    if !entry.waiter.has_messages() {
        poll(&mut entries, most)?;
    }
    Ok(())
}

/// Adds the descriptors that a dial waits for. Returns how long to wait.
fn watch(
    pending: &PendingDial,
    entries: &mut Vec<libc::pollfd>,
    most: Duration,
    now: Instant,
) -> Duration {
    let Some(dial) = &pending.dial else {
        return most;
    };
    let mut watches = Vec::with_capacity(4);
    dial.fds(&mut watches);
    entries.extend(watches.iter().map(|watch| {
        let read = if watch.readable { libc::POLLIN } else { 0 };
        let write = if watch.writable { libc::POLLOUT } else { 0 };
        poll_entry(watch.fd, read | write)
    }));
    let left = dial
        .deadline()
        .map(|deadline| deadline.saturating_duration_since(now));
    left.map_or(most, |left| left.min(most))
}

fn poll_entry(fd: std::os::fd::RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd {
        fd,
        events,
        revents: 0,
    }
}

/// The error of a new connection that cannot be waited for.
fn broken(error: &std::io::Error) -> CallError {
    CallError::dial(&DialError::adoption(error))
}

/// The error of a stopped wait; `kind` is the timeout that bounded it.
fn no_connection(stop: Stop, kind: Option<CallErrorKind>) -> BlockingError {
    let kind = match (stop, kind) {
        (Stop::Interrupted, _) => return BlockingError::Interrupted,
        (Stop::Phase, Some(kind)) => kind,
        (Stop::Phase | Stop::Total, _) => CallErrorKind::TotalTimeout,
    };
    BlockingError::Failed(Box::new(call_error::acquire_timeout(kind)))
}
