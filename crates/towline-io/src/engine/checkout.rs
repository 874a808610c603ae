//! Connections that leave for another thread, and those that are to leave for good.
//!
//! A connection that is checked out belongs to one thread, which waits for its socket itself. One that is
//! shared goes from hand to hand: nobody keeps it, and the engine's thread visits it when there is news.

use std::time::Instant;

use crate::conn::flush::FlushOutcome;
use crate::conn::id::ConnId;
use crate::conn::{Output, Peer};
use crate::engine::Engine;
use crate::engine::conn_table::{CheckedOut, Slot};

impl<S: Default> Engine<S> {
    /// Lends a connection to another thread. Until `check_in`, the engine only remembers what happens.
    pub fn check_out(&mut self, id: ConnId) -> Option<Box<Peer<S>>> {
        self.replace_with(id, CheckedOut::default())
    }

    /// Lends a connection to several threads, who pass it to each other. `next_ready` names it when there
    /// is news: then [`visit`](Self::visit) it, and share it again after `flush_and_rearm`.
    pub fn check_out_shared(&mut self, id: ConnId) -> Option<Box<Peer<S>>> {
        let queued = self.table.peer(id)?.queued;
        let checked_out = CheckedOut {
            queued: Some(queued),
            ..CheckedOut::default()
        };
        self.replace_with(id, checked_out)
    }

    fn replace_with(&mut self, id: ConnId, checked_out: CheckedOut) -> Option<Box<Peer<S>>> {
        let slot = self.table.slot(id)?;
        if matches!(slot, Slot::CheckedOut(_)) {
            return None;
        }
        match std::mem::replace(slot, Slot::CheckedOut(checked_out)) {
            Slot::Attached(peer) => Some(peer),
            Slot::CheckedOut(_) => None,
        }
    }

    /// Takes a shared connection back for a visit, and reads its socket as `next_ready` does. False: it is
    /// no more.
    pub fn service(&mut self, id: ConnId, peer: Box<Peer<S>>) -> bool {
        self.check_in(id, peer);
        let now = self.now();
        let budget = self.config.flush_bytes;
        let (Some(peer), buffers) = self.peer_and_buffers(id) else {
            return false;
        };
        peer.begin_service(buffers, now, budget);
        true
    }

    /// Takes a connection back and settles it.
    pub fn check_in(&mut self, id: ConnId, mut peer: Box<Peer<S>>) {
        let Some(slot) = self.table.slot(id) else {
            return;
        };
        let Slot::CheckedOut(checked_out) = *slot else {
            return;
        };
        // The ready list drops one that is away, unless it is shared.
        peer.queued = checked_out.queued.unwrap_or_default();
        if checked_out.timer_fired {
            peer.scheduled_at = None;
        }
        if checked_out.close_requested {
            peer.conn.close();
        }
        *slot = Slot::Attached(peer);
        self.on_readiness(id, checked_out.readiness);
        self.flush_and_rearm(id);
    }

    /// Closes every connection as soon as it has nothing in flight. What its peer has sent already is
    /// still read and answered; an unread request would become a reset.
    pub fn drain(&mut self) {
        self.draining = true;
        let now = self.now();
        for id in self.connection_ids() {
            match self.table.slot(id) {
                Some(Slot::Attached(peer)) => {
                    if peer.conn.is_idle() {
                        peer.input.readable = true;
                        peer.receive(&mut self.buffers, now);
                    }
                    peer.conn.close();
                }
                Some(Slot::CheckedOut(checked_out)) => checked_out.close_requested = true,
                None => {}
            }
            self.enqueue(id);
        }
    }
}

/// Sent by a thread that has a shared connection in hand, before the others want it.
const CHECKED_OUT_FLUSH_BYTES: usize = 256 * 1024;

impl<S> Peer<S> {
    /// Sends what the kernel takes at once. Whether the engine has to see the connection: to send the
    /// rest, to watch for room, to keep an earlier deadline, or because events have come of it.
    pub fn flush_checked_out(&mut self, now: Instant) -> bool {
        let flushed = match self.output {
            Output::Blocked => FlushOutcome::Blocked,
            _ => self.flush(now, CHECKED_OUT_FLUSH_BYTES),
        };
        let interest = self.conn.interest();
        let deadline = self.conn.deadline();
        let early =
            deadline.is_some_and(|at| self.scheduled_at.is_none_or(|scheduled| at < scheduled));
        match flushed {
            FlushOutcome::Budget => true,
            FlushOutcome::Blocked => !self.write_armed || early,
            FlushOutcome::All => {
                early
                    || interest.shutdown
                    || interest.closed
                    || self.conn.has_events()
                    || (self.input.readable && !self.input.over && interest.read)
            }
        }
    }
}
