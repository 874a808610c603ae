//! The bounds of an engine.

use std::time::Duration;

/// The bounds of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Connections served per turn. With a light application 64 take less than `turn_time`; a front end that has a thread
    /// of its own may use more.
    pub max_ready_per_turn: usize,
    /// Duration of a turn after which no further connection is served.
    pub turn_time: Duration,
    /// Duration of one connection's service after which it goes to the end of the ready list. It is not
    /// served again in a turn that has lasted as long, because the poll may have new events.
    pub service_time: Duration,
    /// Bytes written per connection and flush.
    pub flush_bytes: usize,
    /// Size of one receive buffer.
    pub buffer_bytes: usize,
    /// Number of unused buffers kept, one for each connection of a turn.
    pub spare_buffers: usize,
    /// TLS handshakes in progress; beyond it the oldest is closed.
    pub max_handshakes: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_ready_per_turn: 64,
            turn_time: Duration::from_micros(500),
            // Bounds the wait of other connections; ten times the cost of a turn.
            service_time: Duration::from_micros(100),
            flush_bytes: 1024 * 1024,
            buffer_bytes: 64 * 1024,
            spare_buffers: 64,
            max_handshakes: 1024,
        }
    }
}
