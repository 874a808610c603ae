//! Flushing and re-arming a connection after every activity on it, and its timeouts.

use std::time::Instant;

use mio::unix::SourceFd;
use mio::{Interest, Registry};
use towline_proto::{BufferPool, Side};

use crate::conn::flush::FlushOutcome;
use crate::conn::id::ConnId;
use crate::conn::transport::Transport;
use crate::conn::{Conn, Output};
use crate::engine::Engine;
use crate::engine::conn_table::Slot;

impl<S: Default> Engine<S> {
    /// Flushes the output, arms write interest and timers, releases the receive buffer, and closes the
    /// connection when it is done. Call it after every change to a connection. Events that result from it
    /// are reported by `next_ready`.
    pub fn flush_and_rearm(&mut self, id: ConnId) {
        self.flush_and_rearm_with(id, Conn::flush);
    }

    /// [`flush_and_rearm`](Self::flush_and_rearm) with the function that flushes the connection.
    #[inline]
    pub(crate) fn flush_and_rearm_with(
        &mut self,
        id: ConnId,
        flush: impl FnOnce(&mut Conn<S>, Instant, usize) -> FlushOutcome,
    ) {
        let now = self.now();
        let Some(conn) = self.table.conn(id) else {
            return;
        };
        let mut is_changed = conn.report_failure(now);
        if conn.output == Output::Broken && conn.has_ended() {
            // Nothing more can be sent or received, and no readiness event would report it.
            conn.on_failure(now, "connection closed while we were sending");
            is_changed = true;
        }
        if conn.proto.has_refusals() {
            conn.report_refusals(now);
        }
        if conn.proto.interest().closed {
            // The front end handles the remaining events first.
            if conn.keep_open || is_changed && conn.proto.has_events() {
                if conn.proto.has_events() {
                    self.enqueue(id);
                }
            } else if !conn.queued {
                self.close_now(id, now);
            }
            return;
        }
        let mut again = false;
        if conn.output != Output::Blocked {
            again = flush(conn, now, self.config.flush_bytes) == FlushOutcome::Budget;
        }
        conn.register_reconnected(self.poller.registry());
        let interest = conn.proto.interest();
        if interest.shutdown && conn.output == Output::Open {
            conn.finish_output(now);
        }
        let mut is_endpoint_full = false;
        if conn.output == Output::Blocked && !conn.write_armed {
            is_endpoint_full = conn.shares_socket();
            if !is_endpoint_full {
                conn.write_armed = true;
                arm_write(self.poller.registry(), conn);
            }
        }
        // The flush may have caused events; the end of the connection is always reported.
        again |= interest.closed || conn.proto.has_events();
        again |= conn.has_more_input(interest);
        conn.proto.release(&mut self.buffers);
        if let Some(deadline) = conn.deadline() {
            conn.timers.schedule(&mut self.timers, id, deadline);
        }
        if is_endpoint_full {
            self.endpoints.arm_blocked(self.poller.registry());
        }
        if again {
            self.enqueue(id);
        }
        if !self.turn.is_running() {
            self.set_timer(now);
        }
    }

    /// Releases the receive buffer of a connection before it is flushed: the next one reads into memory that is in
    /// the cache.
    pub fn release(&mut self, id: ConnId) {
        if let Some(conn) = self.table.conn(id) {
            conn.proto.release(&mut self.buffers);
        }
    }

    /// Adds a connection to the ready list again: it has unhandled events, or the exchange that held
    /// back the next request has ended.
    pub fn requeue(&mut self, id: ConnId) {
        self.enqueue(id);
    }

    pub(crate) fn close_now(&mut self, id: ConnId, now: Instant) {
        if let Some(Slot::Attached(mut conn)) = self.table.remove(id) {
            conn.proto.release(&mut self.buffers);
            conn.close(now);
            conn.retire(now);
        }
    }

    /// Resets the socket of a connection and drops its state. A QUIC connection is closed.
    pub fn abort(&mut self, id: ConnId) {
        let now = self.now();
        if let Some(Slot::Attached(mut conn)) = self.table.remove(id) {
            if conn.io.quic().is_some() {
                conn.close(now);
            }
            conn.reset_socket();
            conn.retire(now);
        }
    }

    /// Handles the connections whose timers are due.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some((at, id)) = self.timers.pop_due(now) {
            let conn = match self.table.slot(id) {
                Some(Slot::Attached(conn)) => conn,
                Some(Slot::CheckedOut(checked_out)) => {
                    checked_out.timer_fired = true;
                    self.enqueue(id);
                    continue;
                }
                None => continue,
            };
            if !conn.timers.is_due(at) {
                continue;
            }
            match conn.deadline() {
                Some(deadline) if deadline <= now => self.on_deadline(id, deadline, now),
                Some(later) => conn.timers.schedule(&mut self.timers, id, later),
                None => {}
            }
        }
    }

    fn on_deadline(&mut self, id: ConnId, deadline: Instant, now: Instant) {
        let is_shared_and_due = |conn: &mut Conn<S>| {
            conn.shares_socket() && conn.proto.deadline().is_some_and(|at| at <= now)
        };
        if self.table.conn(id).is_some_and(is_shared_and_due) {
            // The kernel keeps datagrams for this connection among those of others: they are read first.
            self.endpoints.expect_datagrams();
            self.receive_datagrams(now);
        }
        if let Some(conn) = self.table.conn(id) {
            if !conn.catch_up(deadline, &mut self.buffers, now, self.config.flush_bytes) {
                conn.on_timeout(now);
            }
            self.enqueue(id);
        }
    }
}

impl<S> Conn<S> {
    /// Drops the connection after its last flush.
    pub(crate) fn retire(self, now: Instant) {
        if let Transport::Quic(quic) = self.io {
            quic.retire(now);
        }
    }

    /// Whether its socket is that of other connections, too.
    fn shares_socket(&self) -> bool {
        self.io.quic().is_some_and(|quic| !quic.owns_endpoint())
    }

    /// Registers the new socket of a client's connection that has changed networks.
    fn register_reconnected(&mut self, registry: &Registry) {
        if let Some(quic) = self.io.quic_mut()
            && quic.take_reconnected()
        {
            let (fd, token) = (self.as_raw_fd(), self.id().token());
            self.write_armed = false;
            // If this fails, the connection ends by its idle timeout.
            let _ = registry.register(&mut SourceFd(&fd), token, Interest::READABLE);
        }
    }

    /// Removes the write interest of a client's UDP socket, which is writable after every datagram sent.
    pub(crate) fn disarm_udp(&mut self, registry: &Registry) {
        if self.io.quic().is_some() && std::mem::take(&mut self.write_armed) {
            let (fd, token) = (self.as_raw_fd(), self.id().token());
            let interest = Interest::READABLE;
            // The socket of a shared endpoint is not registered with this token, and this fails.
            let _ = registry.reregister(&mut SourceFd(&fd), token, interest);
        }
    }

    /// Reads and sends what the kernel has for us before a timeout is handled: the caller may have had the
    /// thread for longer than the timeout (WSGI), and a timer runs only while we wait for the peer. Returns
    /// whether the timeout has to wait until the front end has handled the events.
    fn catch_up(
        &mut self,
        deadline: Instant,
        buffers: &mut BufferPool,
        now: Instant,
        budget: usize,
    ) -> bool {
        if self.proto.side() == Side::Client || self.proto.deadline().is_none_or(|at| now < at) {
            return false;
        }
        if self.proto.has_events() {
            return true;
        }
        // Once for each deadline: single bytes at long intervals must not postpone it indefinitely.
        if !self.timers.begin_catch_up(deadline) {
            return false;
        }
        let sent = self.traffic.sent;
        if self.output == Output::Blocked {
            self.output = Output::Open;
        }
        self.input.readable = true;
        self.begin_service(buffers, now, budget) || self.traffic.sent > sent
    }
}

fn arm_write<S>(registry: &Registry, conn: &Conn<S>) {
    let (fd, token) = (conn.as_raw_fd(), conn.id().token());
    let interest = Interest::READABLE | Interest::WRITABLE;
    // The socket is registered. If this fails nevertheless, the write timeout ends the connection.
    let _ = registry.reregister(&mut SourceFd(&fd), token, interest);
}
