//! Check-out of connections to other threads.
//!
//! A connection that is checked out belongs to one thread, which waits for its socket itself. A shared
//! connection is passed between threads, and the engine's thread services it when its socket is ready.

use std::time::Instant;

use mio::Interest;
use mio::unix::SourceFd;

use crate::conn::flush::FlushOutcome;
use crate::conn::id::ConnId;
use crate::conn::{Conn, Output, failure_rule};
use crate::engine::Engine;
use crate::engine::conn_table::{CheckedOut, Slot};

impl<S: Default> Engine<S> {
    /// Checks a connection out to another thread. Until `check_in`, the engine only records readiness.
    pub fn check_out(&mut self, id: ConnId) -> Option<Box<Conn<S>>> {
        self.replace_with(id, CheckedOut::default())
    }

    /// Checks a connection out to several threads, which pass it to each other. When `next_ready` returns
    /// it, call [`service`](Self::service), and check it out again after `flush_and_rearm`.
    pub fn check_out_shared(&mut self, id: ConnId) -> Option<Box<Conn<S>>> {
        let queued = self.table.conn(id)?.queued;
        let checked_out = CheckedOut {
            queued: Some(queued),
            ..CheckedOut::default()
        };
        self.replace_with(id, checked_out)
    }

    /// Checks a connection out like [`check_out`](Self::check_out), for a thread that keeps it long: until
    /// `check_in` the poll does not watch its socket, so that its traffic does not wake the engine.
    pub fn check_out_unwatched(&mut self, id: ConnId) -> Option<Box<Conn<S>>> {
        let checked_out = CheckedOut {
            unwatched: true,
            ..CheckedOut::default()
        };
        let conn = self.replace_with(id, checked_out)?;
        // A socket that is not registered causes no events either.
        let _ = self
            .poller
            .registry()
            .deregister(&mut SourceFd(&conn.as_raw_fd()));
        Some(conn)
    }

    /// Registers the socket of a connection that was unwatched. The poll reports what is readable already.
    fn watch(&self, id: ConnId, conn: &mut Conn<S>) {
        let fd = conn.as_raw_fd();
        conn.write_armed = false;
        let registry = self.poller.registry();
        if let Err(error) = registry.register(&mut SourceFd(&fd), id.token(), Interest::READABLE) {
            conn.on_failure(self.now(), failure_rule(&error));
        }
    }

    fn replace_with(&mut self, id: ConnId, checked_out: CheckedOut) -> Option<Box<Conn<S>>> {
        let slot = self.table.slot(id)?;
        if matches!(slot, Slot::CheckedOut(_)) {
            return None;
        }
        match std::mem::replace(slot, Slot::CheckedOut(checked_out)) {
            Slot::Attached(conn) => Some(conn),
            Slot::CheckedOut(_) => None,
        }
    }

    /// Takes a shared connection back and reads its socket, as `next_ready` does. Returns false when the
    /// connection has been closed.
    pub fn service(&mut self, id: ConnId, conn: Box<Conn<S>>) -> bool {
        self.check_in(id, conn);
        let now = self.now();
        let budget = self.config.flush_bytes;
        let (Some(conn), buffers) = self.conn_and_buffers(id) else {
            return false;
        };
        conn.begin_service(buffers, now, budget);
        true
    }

    /// Takes a connection back, and flushes and re-arms it.
    pub fn check_in(&mut self, id: ConnId, mut conn: Box<Conn<S>>) {
        let drain = self.drain.map(|drain| (drain, self.now()));
        let Some(slot) = self.table.slot(id) else {
            return;
        };
        let Slot::CheckedOut(checked_out) = *slot else {
            return;
        };
        // `next_ready` skips a connection that is checked out, unless it is shared.
        conn.queued = checked_out.queued.unwrap_or_default();
        if checked_out.timer_fired {
            conn.timers.fired();
        }
        if let (true, Some((drain, now))) = (checked_out.drain_requested, drain) {
            conn.start_drain(drain, now);
        }
        if checked_out.unwatched && !conn.proto.interest().closed {
            self.watch(id, &mut conn);
        }
        if let Some(slot) = self.table.slot(id) {
            *slot = Slot::Attached(conn);
        }
        self.on_readiness(id, checked_out.readiness);
        self.flush_and_rearm(id);
    }
}

/// Most bytes that a thread sends while it holds a shared connection.
const CHECKED_OUT_FLUSH_BYTES: usize = 256 * 1024;

impl<S> Conn<S> {
    /// Sends what the kernel accepts at once. Returns whether the engine must service the connection: to
    /// send the rest, to arm write interest, to set an earlier timer, or because there are new events.
    pub fn flush_checked_out(&mut self, now: Instant) -> bool {
        let flushed = match self.output {
            Output::Blocked => FlushOutcome::Blocked,
            _ => self.flush(now, CHECKED_OUT_FLUSH_BYTES),
        };
        let interest = self.proto.interest();
        let deadline = self.deadline();
        let early = deadline.is_some_and(|at| self.timers.is_early(at));
        match flushed {
            FlushOutcome::Budget => true,
            FlushOutcome::Blocked => !self.write_armed || early,
            FlushOutcome::All => {
                early
                    || interest.shutdown
                    || interest.closed
                    || self.proto.has_events()
                    || self.has_more_input(interest)
            }
        }
    }
}
