//! The two ways of draining a connection.

use std::time::Instant;

use crate::conn::Conn;

/// The end of idle connections in a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drain {
    /// Each may send one more request within `Limits::drain_idle_timeout`.
    AwaitIdle,
    /// They are closed at once.
    CloseIdle,
}

impl<S> Conn<S> {
    /// Ends the connection after its exchanges.
    pub(crate) fn end(&mut self, drain: Drain, now: Instant) {
        match drain {
            Drain::AwaitIdle => self.proto.drain(now),
            Drain::CloseIdle => self.proto.close(),
        }
    }
}
