//! Connections that this end has closed, and that only repeat their `CONNECTION_CLOSE` (RFC 9000 10.2.1).

use std::time::{Duration, Instant};

use quinn_proto::ConnectionEvent;

use crate::quic::Connection;

/// Closed connections that are kept to answer late packets; over it the oldest is forgotten. Its peer then gets a
/// stateless reset.
pub(super) const MAX_CLOSING: usize = 256;

/// Longest time for which a closed connection is kept: three times a probe timeout (RFC 9000 10.2) of a slow path.
pub(super) const MAX_CLOSING_TIME: Duration = Duration::from_secs(3);

/// A connection that this end has closed.
pub(super) struct Closing {
    conn: Connection,
    /// Datagrams that have arrived since.
    late_datagrams: u32,
}

impl Closing {
    pub(super) fn new(conn: Connection) -> Self {
        Self {
            conn,
            late_datagrams: 0,
        }
    }

    /// Answers the first, second, fourth, eighth ... datagram with `CONNECTION_CLOSE`, and drops the others.
    pub(super) fn handle(&mut self, now: Instant, event: ConnectionEvent) {
        self.late_datagrams = self.late_datagrams.saturating_add(1);
        if self.late_datagrams.is_power_of_two() {
            self.conn.quic().handle_event(event);
            self.conn.send(now, usize::MAX);
        }
    }
}
