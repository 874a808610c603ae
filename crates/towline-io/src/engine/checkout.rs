//! Connections that leave for another thread, and those that are to leave for good.
//!
//! A connection that is checked out belongs to one thread, which waits for its socket itself. One that is
//! shared goes from hand to hand: nobody keeps it, and the engine's thread visits it when there is news.

use std::time::Instant;

use crate::conn::flush::Flushed;
use crate::conn::id::ConnId;
use crate::conn::{Output, Peer};
use crate::engine::Engine;
use crate::engine::conn_table::{Away, Place};

impl<S: Default> Engine<S> {
    /// Lends a connection to another thread. Until `check_in`, the engine only remembers what happens.
    pub fn check_out(&mut self, id: ConnId) -> Option<Box<Peer<S>>> {
        self.lend(id, Away::default())
    }

    /// Lends a connection to several threads, who pass it to each other. `next_ready` names it when there
    /// is news: then [`visit`](Self::visit) it, and share it again after `settle`.
    pub fn share(&mut self, id: ConnId) -> Option<Box<Peer<S>>> {
        let queued = self.table.peer(id)?.queued;
        let away = Away {
            queued: Some(queued),
            ..Away::default()
        };
        self.lend(id, away)
    }

    fn lend(&mut self, id: ConnId, away: Away) -> Option<Box<Peer<S>>> {
        let place = self.table.place(id)?;
        if matches!(place, Place::Away(_)) {
            return None;
        }
        match std::mem::replace(place, Place::Away(away)) {
            Place::Here(peer) => Some(peer),
            Place::Away(_) => None,
        }
    }

    /// Takes a shared connection back for a visit, and reads its socket as `next_ready` does. False: it is
    /// no more.
    pub fn visit(&mut self, id: ConnId, peer: Box<Peer<S>>) -> bool {
        self.check_in(id, peer);
        let now = self.now();
        let budget = self.config.settle_bytes;
        let (Some(peer), buffers) = self.peer_and_buffers(id) else {
            return false;
        };
        peer.begin_visit(buffers, now, budget);
        true
    }

    /// Takes a connection back and settles it.
    pub fn check_in(&mut self, id: ConnId, mut peer: Box<Peer<S>>) {
        let Some(place) = self.table.place(id) else {
            return;
        };
        let Place::Away(away) = *place else {
            return;
        };
        // The ready list drops one that is away, unless it is shared.
        peer.queued = away.queued.unwrap_or_default();
        if away.looked {
            peer.looked = None;
        }
        if away.close_asked {
            peer.conn.close();
        }
        *place = Place::Here(peer);
        self.noticed(id, away.news);
        self.settle(id);
    }

    /// Closes every connection as soon as it has nothing in flight. What its peer has sent already is
    /// still read and answered; an unread request would become a reset.
    pub fn drain(&mut self) {
        self.draining = true;
        let now = self.now();
        for id in self.connection_ids() {
            match self.table.place(id) {
                Some(Place::Here(peer)) => {
                    if peer.conn.is_idle() {
                        peer.input.readable = true;
                        peer.receive(&mut self.buffers, now);
                    }
                    peer.conn.close();
                }
                Some(Place::Away(away)) => away.close_asked = true,
                None => {}
            }
            self.enqueue(id);
        }
    }
}

/// Sent by a thread that has a shared connection in hand, before the others want it.
const SENT_IN_HAND_BYTES: usize = 256 * 1024;

impl<S> Peer<S> {
    /// Sends what the kernel takes at once. Whether the engine has to see the connection: to send the
    /// rest, to watch for room, to keep an earlier deadline, or because events have come of it.
    pub fn send_in_hand(&mut self, now: Instant) -> bool {
        let flushed = match self.output {
            Output::Blocked => Flushed::Blocked,
            _ => self.flush(now, SENT_IN_HAND_BYTES),
        };
        let interest = self.conn.interest();
        let deadline = self.conn.deadline();
        let early = deadline.is_some_and(|at| self.looked.is_none_or(|looked| at < looked));
        match flushed {
            Flushed::Budget => true,
            Flushed::Blocked => !self.write_armed || early,
            Flushed::All => {
                early
                    || interest.shutdown
                    || interest.closed
                    || self.conn.has_events()
                    || (self.input.readable && !self.input.over && interest.read)
            }
        }
    }
}
