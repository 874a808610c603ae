//! Connections whose output waits for that of other connections.
//!
//! Flushed one by one, responses wake a client that sleeps on another core once each, as `asgi::flush` explains. ASGI
//! gathers what is sent outside of a turn, in the same iteration of the loop: frameworks respond in tasks of their own
//! (Django, Quart), and most applications after something they have awaited. WSGI gathers the responses of a turn.
use std::time::{Duration, Instant};

use towline_io::ConnId;

/// As long as a turn.
const MAX_WAIT: Duration = Duration::from_micros(500);
/// As many connections as a turn has.
const MAX_CONNS: usize = 64;

/// The connections whose output waits.
#[derive(Default)]
pub struct Gathered {
    conns: Vec<ConnId>,
    /// When the first output was sent.
    since: Option<Instant>,
    /// When the last output was sent.
    last: Option<Instant>,
    /// The flush is scheduled in the loop.
    is_scheduled: bool,
}

impl Gathered {
    /// Adds a connection. Returns whether all must be flushed now.
    pub fn add(&mut self, id: ConnId, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        self.last = Some(now);
        if self.conns.last() != Some(&id) {
            self.conns.push(id);
        }
        self.conns.len() == MAX_CONNS || now - since > MAX_WAIT
    }

    /// Notes that the flush is scheduled. Returns whether it was already.
    pub fn schedule(&mut self) -> bool {
        std::mem::replace(&mut self.is_scheduled, true)
    }

    /// The scheduled flush begins. Returns when the last output was sent that waits for it.
    pub fn begin_scheduled(&mut self) -> Option<Instant> {
        self.is_scheduled = false;
        self.last.take()
    }

    /// Takes the connections to flush.
    pub fn take(&mut self) -> Vec<ConnId> {
        (self.since, self.last) = (None, None);
        std::mem::take(&mut self.conns)
    }

    /// Keeps the memory of flushed connections.
    pub fn recycle(&mut self, flushed: Vec<ConnId>) {
        if self.conns.is_empty() {
            self.conns = flushed;
        }
    }
}
