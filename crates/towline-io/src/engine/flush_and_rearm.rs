//! What follows every activity on a connection, and what follows from none at all.

use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Poll};

use crate::conn::flush::FlushOutcome;
use crate::conn::id::ConnId;
use crate::conn::{Output, Peer};
use crate::engine::Engine;
use crate::engine::conn_table::Slot;

impl<S: Default> Engine<S> {
    /// To be called after anything was done with a connection: sends what waits, watches what must be
    /// watched, keeps the clock, gives the receive block back, and closes what is over. New events that
    /// come of it are announced by `next_ready`.
    pub fn flush_and_rearm(&mut self, id: ConnId) {
        let now = self.now();
        let Some(peer) = self.table.peer(id) else {
            return;
        };
        let mut is_changed = peer.report_failure(now);
        if peer.output == Output::Broken && peer.has_ended() {
            // It has ended, what it would still say goes nowhere, and nothing comes that could tell so.
            peer.on_failure(now, "connection closed while we were sending");
            is_changed = true;
        }
        if peer.conn.interest().closed {
            // The face first learns of it, if it does not know yet, and reads what came before the end.
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
        // What has just been sent, or failed, may be news to the face; an end certainly is.
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

    /// Gives the receive block of a connection back before it is settled.
    pub(crate) fn release(&mut self, id: ConnId) {
        if let Some(peer) = self.table.peer(id) {
            peer.conn.release(&mut self.buffers);
        }
    }

    /// Puts a connection in line again: its events have not all been taken, or the exchange that held
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

    /// Drops a connection at once: its socket is reset, its state is dropped.
    pub fn abort(&mut self, id: ConnId) {
        if let Some(Slot::Attached(peer)) = self.table.remove(id) {
            let _ = peer.io.socket.set_linger(Some(Duration::ZERO));
        }
    }

    /// Looks at the connections whose promised time has come.
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
    // It is registered; without the news of room the write timeout ends the connection.
    let _ = poll
        .registry()
        .reregister(&mut SourceFd(&fd), token, interest);
}
