//! Gets a connection for a request: from the pool, by waiting (`pool_wait`), or by dialling on this thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_proto::Protocol;

use super::h1_conn::{poll, with_buffers};
use super::h2_driver::H2Conn;
use super::outcome::BlockingError;
use super::pooled_conn::{self, ConnKind, PooledConn};
use super::shared_pool::{AcquireOutcome, Acquired, SharedPool};
use super::wait_policy::{Stop, WaitPolicy};
use super::waiter_mailbox::PendingDial;
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
            let (acquired, waited) = match self.try_acquire(route, options, urgent, now)? {
                AcquireOutcome::Free(acquired) => (acquired, false),
                AcquireOutcome::Wait(entry) => {
                    let lease =
                        (self.wait(&entry, policy)).map_err(|ended| ended.through(route))?;
                    let is_only_call = false;
                    (
                        Acquired {
                            lease,
                            is_only_call,
                        },
                        true,
                    )
                }
            };
            let lease = &acquired.lease;
            if self.is_usable(lease, now) {
                return Ok(acquired);
            }
            // The idle connection has ended, or bytes that no request asked for have arrived.
            match &lease.conn.kind {
                ConnKind::H1(conn) => {
                    self.remove(lease.slot, lease.conn.fd);
                    if waited && !lease.reused {
                        // Opened for this call: the server does so each time.
                        let conn = pooled_conn::open(conn);
                        let error = call_error::before_request(conn.peer.proto.error());
                        return Err(BlockingError::Failed(Box::new(error)).through(route));
                    }
                }
                ConnKind::H2(_) => self.release(lease.slot, now),
            }
            urgent = true;
        }
    }

    fn is_usable(&self, lease: &Lease<PooledConn>, now: Instant) -> bool {
        match &lease.conn.kind {
            ConnKind::H2(_) if !lease.reused => true,
            ConnKind::H1(conn) => {
                with_buffers(|buffers| pooled_conn::open(conn).is_quiet(buffers, now))
            }
            ConnKind::H2(h2) => h2.is_alive(self),
        }
    }

    /// Advances a dial as far as possible. `None`: it is still pending, or starts again after a pause.
    pub(super) fn drive(
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

    pub(super) fn advance(&self, pending: &mut PendingDial, now: Instant) -> Progress {
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

    pub(super) fn connect(
        &self,
        pending: &PendingDial,
        established: Established,
        now: Instant,
    ) -> std::io::Result<PooledConn> {
        if established.protocol(self.service.protocols) != Protocol::Http1 {
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

/// Adds the descriptors that a dial waits for. Returns how long to wait.
pub(super) fn watch(
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

pub(super) fn poll_entry(fd: std::os::fd::RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd {
        fd,
        events,
        revents: 0,
    }
}

/// The error of a new connection that cannot be waited for.
pub(super) fn broken(error: &std::io::Error) -> CallError {
    CallError::dial(&DialError::registration(error))
}

/// The error of a stopped wait; `kind` is the timeout that bounded it.
pub(super) fn no_connection(stop: Stop, kind: Option<CallErrorKind>) -> BlockingError {
    let kind = match (stop, kind) {
        (Stop::Interrupted, _) => return BlockingError::Interrupted,
        (Stop::Phase, Some(kind)) => kind,
        (Stop::Phase | Stop::Total, _) => CallErrorKind::TotalTimeout,
    };
    BlockingError::Failed(Box::new(call_error::acquire_timeout(kind)))
}
