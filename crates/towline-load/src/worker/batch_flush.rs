//! Requests of several connections that leave together.
//!
//! A server that has answered everybody sleeps, and whoever sends to it then pays for waking it, on a virtual
//! machine as much as for ten requests. Where several connections were answered at once, the first bytes wake it
//! and the others are there before it has looked. Beside sending each by itself, with eight connections of ten streams
//! and the native responder: half as many wake-ups, 7 % less CPU time for a request. Few connections and few bytes
//! wait for each other, since meanwhile the server may have nothing to do; with a hundred streams nobody waits.

use towline_io::ConnId;

use super::Worker;

const MAX_CONNECTIONS: usize = 4;
const MAX_BYTES: usize = 1024;

/// Connections that were served in this turn and are not settled yet.
#[derive(Debug, Default)]
pub(super) struct BatchFlush {
    ids: Vec<ConnId>,
    unsent_bytes: usize,
}

impl Worker {
    /// A connection was served. In an open loop nobody waits: what is sent there has its time.
    pub(super) fn flush_batched(&mut self, id: ConnId) {
        if self.schedule.is_some() {
            return self.engine.settle(id);
        }
        let unsent = (self.engine.peer(id)).map_or(0, |peer| peer.conn.pending_bytes());
        self.batch.ids.push(id);
        self.batch.unsent_bytes += unsent;
        if self.batch.ids.len() >= MAX_CONNECTIONS || self.batch.unsent_bytes >= MAX_BYTES {
            self.flush_batch();
        }
    }

    /// Settles those that have waited; whether there were any.
    pub(super) fn flush_batch(&mut self) -> bool {
        let BatchFlush { mut ids, .. } = std::mem::take(&mut self.batch);
        let any = !ids.is_empty();
        for id in ids.drain(..) {
            self.engine.settle(id);
        }
        self.batch.ids = ids;
        any
    }
}
