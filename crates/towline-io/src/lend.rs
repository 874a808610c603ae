//! Connections that leave for another thread, and those that are to leave for good.

use crate::engine::Engine;
use crate::id::ConnId;
use crate::peer::Peer;
use crate::table::{Away, Place};

impl<S: Default> Engine<S> {
    /// Lends a connection to another thread. Until `check_in`, the engine only remembers what happens.
    pub fn check_out(&mut self, id: ConnId) -> Option<Box<Peer<S>>> {
        let place = self.table.place(id)?;
        if matches!(place, Place::Away(_)) {
            return None;
        }
        match std::mem::replace(place, Place::Away(Away::default())) {
            Place::Here(peer) => Some(peer),
            Place::Away(_) => None,
        }
    }

    /// Takes a connection back and settles it.
    pub fn check_in(&mut self, id: ConnId, mut peer: Box<Peer<S>>) {
        let Some(place) = self.table.place(id) else {
            return;
        };
        let Place::Away(away) = *place else {
            return;
        };
        // The ready list may have dropped it while it was away.
        peer.queued = false;
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
                        peer.receive(&mut self.blocks, now);
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
