//! Flushing and re-arming a connection after every activity on it, and its timeouts.

use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Poll};

use crate::conn::flush::FlushOutcome;
use crate::conn::id::ConnId;
use crate::conn::{Output, Peer};
use crate::engine::Engine;
use crate::engine::conn_table::Slot;

impl<S: Default> Engine<S> {
    /// Flushes the output, arms write interest and timers, releases the receive buffer, and closes the
    /// connection when it is done. Call it after every change to a connection. Events that result from it
    /// are reported by `next_ready`.
    pub fn flush_and_rearm(&mut self, id: ConnId) {
        let now = self.now();
        let Some(peer) = self.table.peer(id) else {
            return;
        };
        let mut is_changed = peer.report_failure(now);
        if peer.output == Output::Broken && peer.has_ended() {
            // Nothing more can be sent or received, and no readiness event would report it.
            peer.on_failure(now, "connection closed while we were sending");
            is_changed = true;
        }
        if peer.conn.interest().closed {
            // The front end handles the remaining events first.
            if peer.keep_open || is_changed && peer.conn.has_events() {
                if peer.conn.has_events() {
                    self.enqueue(id);
                }
            } else if !peer.queued {
                self.close_now(id, now);
            }
            return;
        }
        let mut again = false;
        if peer.output != Output::Blocked {
            again = peer.flush(now, self.config.flush_bytes) == FlushOutcome::Budget;
        }
        let interest = peer.conn.interest();
        if interest.shutdown && peer.output == Output::Open {
            peer.finish_output(now);
        }
        if peer.output == Output::Blocked && !peer.write_armed {
            peer.write_armed = true;
            arm_write(&self.poll, peer);
        }
        // The flush may have caused events; the end of the connection is always reported.
        again |= interest.closed || peer.conn.has_events();
        again |= peer.input.readable && !peer.input.over && interest.read;
        peer.conn.release(&mut self.buffers);
        if let Some(deadline) = peer.deadline() {
            self.timers.schedule(id, &mut peer.scheduled_at, deadline);
        }
        if again {
            self.enqueue(id);
        }
        if !self.turn.running {
            self.set_timer(now);
        }
    }

    /// Releases the receive buffer of a connection before it is flushed.
    pub(crate) fn release(&mut self, id: ConnId) {
        if let Some(peer) = self.table.peer(id) {
            peer.conn.release(&mut self.buffers);
        }
    }

    /// Adds a connection to the ready list again: it has unhandled events, or the exchange that held
    /// back the next request has ended.
    pub fn requeue(&mut self, id: ConnId) {
        self.enqueue(id);
    }

    pub(crate) fn close_now(&mut self, id: ConnId, now: Instant) {
        if let Some(Slot::Attached(mut peer)) = self.table.remove(id) {
            peer.conn.release(&mut self.buffers);
            peer.close(now);
        }
    }

    /// Resets the socket of a connection and drops its state.
    pub fn abort(&mut self, id: ConnId) {
        if let Some(Slot::Attached(peer)) = self.table.remove(id) {
            let _ = peer.io.socket.set_linger(Some(Duration::ZERO));
        }
    }

    /// Handles the connections whose timers are due.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some((at, id)) = self.timers.pop_due(now) {
            let peer = match self.table.slot(id) {
                Some(Slot::Attached(peer)) => peer,
                Some(Slot::CheckedOut(checked_out)) => {
                    checked_out.timer_fired = true;
                    self.enqueue(id);
                    continue;
                }
                None => continue,
            };
            if peer.scheduled_at != Some(at) {
                continue;
            }
            peer.scheduled_at = None;
            match peer.deadline() {
                Some(deadline) if deadline <= now => {
                    peer.on_timeout(now);
                    self.enqueue(id);
                }
                Some(later) => self.timers.schedule(id, &mut peer.scheduled_at, later),
                None => {}
            }
        }
    }
}

fn arm_write<S>(poll: &Poll, peer: &Peer<S>) {
    let (fd, token) = (peer.as_raw_fd(), peer.id().token());
    let interest = Interest::READABLE | Interest::WRITABLE;
    // The socket is registered. If this fails nevertheless, the write timeout ends the connection.
    let _ = poll
        .registry()
        .reregister(&mut SourceFd(&fd), token, interest);
}
