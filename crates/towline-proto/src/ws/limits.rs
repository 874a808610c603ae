//! The bounds of one WebSocket, all in one place.

use std::time::Duration;

/// Bounds and times of a WebSocket. Shared by many through an `Arc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// A message after decompression, and a frame as announced. Over it: 1009, before any of it is buffered.
    pub max_message_bytes: usize,
    /// Total cost of all fragments of one message, each charged with at least 64 bytes; a message may always
    /// have `max_message_bytes`. Bytes and not a count: a legal message may come in 65,536 fragments. Over
    /// it: 1009.
    pub max_fragments_bytes: usize,
    /// Interval of keep-alive pings; `None`: never. Below the 60 s after which common load balancers drop an
    /// idle connection.
    pub ping_interval: Option<Duration>,
    /// Timeout for the pong. After it: 1011. `None`: no timeout, and pings continue.
    pub ping_timeout: Option<Duration>,
    /// Timeout for the peer's close frame, and then for the end of the connection.
    pub close_timeout: Duration,
}

/// Minimum charge of a fragment.
pub(super) const FRAGMENT_CHARGE_BYTES: usize = 64;

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_message_bytes: 16 * 1024 * 1024,
            max_fragments_bytes: 16 * 1024 * 1024,
            ping_interval: Some(Duration::from_secs(20)),
            ping_timeout: Some(Duration::from_secs(20)),
            close_timeout: Duration::from_secs(10),
        }
    }
}
