//! Graceful shutdown of an engine: every connection ends after its exchanges.

use std::time::Instant;

use crate::conn::Conn;
use crate::engine::Engine;
use crate::engine::conn_table::Slot;

/// Treatment of idle connections in a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drain {
    /// Each may send one more request within `Limits::drain_idle_timeout`.
    Graceful,
    /// Idle connections are closed at once.
    CloseIdle,
}

impl<S: Default> Engine<S> {
    /// Ends every connection after its exchanges in flight, and idle ones according to `drain`. Requests that have
    /// arrived already are still served: closing a socket with unread bytes resets it.
    pub fn drain(&mut self, drain: Drain) {
        self.drain = self.drain.max(Some(drain));
        let now = self.now();
        for id in self.connection_ids() {
            match self.table.slot(id) {
                Some(Slot::Attached(conn)) => {
                    if conn.proto.is_idle() {
                        conn.input.readable = true;
                        conn.receive(&mut self.buffers, now);
                    }
                    conn.start_drain(drain, now);
                }
                Some(Slot::CheckedOut(checked_out)) => checked_out.drain_requested = true,
                None => {}
            }
            self.enqueue(id);
        }
    }

    pub fn is_draining(&self) -> bool {
        self.drain.is_some()
    }
}

impl<S> Conn<S> {
    /// Lets the exchanges of the connection end, and then closes it.
    pub(crate) fn start_drain(&mut self, drain: Drain, now: Instant) {
        match drain {
            Drain::Graceful => self.proto.drain(now),
            Drain::CloseIdle => self.proto.close(),
        }
    }
}
